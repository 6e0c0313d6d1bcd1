"""Runs in a bucket: each ``s3://`` address has a working folder on this machine, and both are kept synchronized.

    s3://BUCKET/KEY  <->  <cache>/s3/<endpoint>/BUCKET/KEY

The address of a file follows from its path below ``<cache>/s3``. So commands, trials and workers use local folders and
need not know that a run is in a bucket. `commit` uploads the object first, then renames the local file: all that a
killed machine has committed is in the bucket, and another machine downloads it with `open_folder`. The bucket is
authoritative: a local file without an object is deleted. A lock per folder synchronizes the processes of one machine.
Files whose names begin with a dot are not uploaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock

from raysent.errors import ArtifactError
from raysent.storage.disk import (
    cache_folder,
    check_below,
    keep_mode,
    remove_tree,
    storage_errors,
    temporary_beside,
)
from raysent.storage.layout import CHECKPOINT_FOLDER
from raysent.storage.object_store import (
    S3,
    RemoteObject,
    delete,
    endpoint,
    exists,
    get_content,
    get_file,
    has_content,
    has_hash,
    is_remote,
    list_s3,
    put_file,
    split_address,
)

# Each line of an append-only file is an object of its own, below the file's name.
LINES_SUFFIX = ".jsonl"

_NUM_CONNECTIONS = 16
# The longest name of a file or folder on every file system of today; and how much of a longer one a message shows.
_MAX_NAME_BYTES = 255
_SHOWN_CHARACTERS = 40


def open_folder(name: str | Path, *, with_checkpoints: bool = False) -> Path:
    """Return the local folder of a run, a trial or a model; an ``s3://`` address is downloaded first.

    Args:
        name: Local path or ``s3://`` address; it need not exist.
        with_checkpoints: Whether to download training checkpoints, which only resuming a run needs.

    Raises:
        RaysentError: If the address is invalid, the object store refuses, or an object is damaged.
    """
    folder = working_folder(name)
    if is_remote(name):
        refresh(folder, with_checkpoints=with_checkpoints)
    return folder


def working_folder(name: str | Path) -> Path:
    """Return the local folder of a run, a trial or a model as it is: nothing is downloaded.

    Args:
        name: Local path or ``s3://`` address; it need not exist.

    Raises:
        RaysentError: If the address is invalid, or a name of a local path is too long.
    """
    if not is_remote(name):
        _check_lengths(Path(name))
        return Path(name)
    bucket, key = split_address(name)
    return _root() / endpoint().replace(":", "-") / bucket / key


def _check_lengths(path: Path) -> None:
    """Refuse a path with a name that no file system has, of which it could not even be asked whether it is there.

    Raises:
        ArtifactError: If there is one.
    """
    for part in path.parts:
        num_bytes = len(os.fsencode(part))
        if num_bytes > _MAX_NAME_BYTES:
            raise ArtifactError(
                f"{part[:_SHOWN_CHARACTERS]}…: must be a name of at most {_MAX_NAME_BYTES} bytes; given {num_bytes:,}; "
                "name a shorter one"
            )


def address_of(path: Path) -> str:
    """Return the name of a path for messages: the ``s3://`` address in a working folder, any other path as it is."""
    return remote_address(path) or str(path)


def to_uri(folder: Path) -> str:
    """Return a name of the folder that `open_folder` accepts on every machine with access to it."""
    return remote_address(folder) or str(folder.resolve())


def remote_address(path: Path) -> str | None:
    """Return the ``s3://`` address of a path in a working folder, or None for any other path."""
    try:
        _, bucket, *key = path.absolute().relative_to(_root()).parts
    except ValueError:
        return None
    return S3 + "/".join((bucket, *key))


def commit(temporary: Path, path: Path) -> None:
    """Rename a temporary file to `path`; it is uploaded first, if `path` is in a working folder."""
    address = remote_address(path)
    if address is None or path.name.startswith("."):
        temporary.replace(path)
        return
    with locked(path.parent):
        put_file(address, temporary)
        temporary.replace(path)


def remove(path: Path) -> None:
    """Remove a file here and in its bucket, if it exists."""
    address = remote_address(path)
    if address is None:
        with storage_errors(path):
            path.unlink(missing_ok=True)
        return
    with locked(path.parent):
        if path.suffix == LINES_SUFFIX:
            _delete_below(address)
        else:
            delete(address)
        path.unlink(missing_ok=True)


def remove_folder(folder: Path, *, below: Path) -> None:
    """Remove a folder with its content, here and in its bucket; local files that cannot be removed are left.

    Args:
        folder: The folder; it need not exist.
        below: The folder of raysent's that it is inside, such as a run's.

    Raises:
        ArtifactError: If it is not inside, or the object store refuses.
    """
    check_below(folder, below)
    address = remote_address(folder)
    if address is not None:
        with locked(folder):
            _delete_below(address)
            remove_tree(folder, below=below)
    remove_tree(folder, below=below)


def _delete_below(address: str) -> None:
    for item in list_s3(address, kind=ArtifactError):
        delete(item.address)


def refresh(folder: Path, *, with_checkpoints: bool = False) -> None:
    """Download the changes of a working folder from its bucket; any other folder is left unchanged.

    Args:
        folder: Any folder.
        with_checkpoints: Whether to include the checkpoints of runs below it.

    Raises:
        ArtifactError: If the object store refuses, or an object is damaged.
    """
    address = remote_address(folder)
    if address is None:
        return
    objects_of_folder: dict[Path, list[RemoteObject]] = {}
    for remote_object in list_s3(address, kind=ArtifactError):
        if remote_object.address.endswith(
            "/"
        ):  # the console of S3 makes such an object for a folder
            continue
        path = folder / _inside(remote_object, address)
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and (with_checkpoints or not _is_in_checkpoint(path, folder)):
            objects_of_folder.setdefault(path.parent, []).append(remote_object)
    folders = {
        path
        for path in _local_folders(folder)
        if with_checkpoints or not _is_in_checkpoint(path / "x", folder)
    }
    line_files = {path for path in objects_of_folder if path.suffix == LINES_SUFFIX}
    names = {path.name for path in line_files}
    with (
        storage_errors(folder),
        ThreadPoolExecutor(_NUM_CONNECTIONS) as folder_pool,
        ThreadPoolExecutor(_NUM_CONNECTIONS) as object_pool,
    ):
        tasks = [folder_pool.submit(_download_lines, path, object_pool) for path in line_files]
        tasks += [
            folder_pool.submit(_download_folder, path, objects_of_folder.get(path, []), names)
            for path in (folders | objects_of_folder.keys()) - line_files
        ]
        for task in tasks:
            task.result()


def line_address(path: Path, number: int) -> str | None:
    """Return the address of a line of an append-only file, counted from 0, or None if the file is in no bucket."""
    address = remote_address(path)
    if address is None:
        return None
    return line_object(address, number)


def line_object(address: str, number: int) -> str:
    """Return the address of a line of the append-only file at an address, counted from 0."""
    return f"{address}/{number:09d}.json"


def _inside(item: RemoteObject, address: str) -> str:
    """Return an object's path relative to an address; refuse one that would leave the folder."""
    inside = item.address.removeprefix(address).removeprefix("/")
    if item.address == address or any(part in ("", ".", "..") for part in inside.split("/")):
        raise ArtifactError(
            f"{item.address}: an object exists where a folder is needed, or its name leaves its folder; remove it"
        )
    return inside


def _root() -> Path:
    return (cache_folder() / "s3").resolve()


def _is_in_checkpoint(path: Path, folder: Path) -> bool:
    return CHECKPOINT_FOLDER in path.parent.relative_to(folder).parts


def _local_folders(folder: Path) -> Iterator[Path]:
    for path, names, _ in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".")]
        yield Path(path)


def _download_folder(folder: Path, items: Iterable[RemoteObject], line_files: set[str]) -> None:
    with locked(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = {item.address.rpartition("/")[2]: item for item in items}
        for name, item in names.items():
            if not has_content(item, folder / name):
                with temporary_beside(folder / name) as temporary:
                    # Checkpoints record their own hash: the reader detects a damaged one and uses the one before.
                    get_file(item.address, temporary, is_checked=folder.name != CHECKPOINT_FOLDER)
                    keep_mode(temporary, folder / name)
                    temporary.replace(folder / name)
        for file in list(folder.iterdir()):
            is_mirrored = (
                file.is_file() and not file.name.startswith(".") and file.name not in line_files
            )
            # Ask again: the file may have been uploaded since the bucket was listed.
            if is_mirrored and file.name not in names and not exists(remote_address(file) or ""):
                file.unlink(missing_ok=True)


def _download_lines(path: Path, pool: ThreadPoolExecutor) -> None:
    """Rebuild an append-only file from its line objects; lines that exist locally are not downloaded again."""
    with locked(path.parent):
        # List under the lock, so that a line that this machine appends in the meantime is not lost.
        items = _line_objects(path)
        existing = []
        if path.is_file():
            existing = path.read_bytes().splitlines(keepends=True)
        pairs = list(zip(existing, items, strict=False))
        is_same = [
            hashlib.md5(line, usedforsecurity=False).hexdigest() == item.etag
            for line, item in pairs
        ]
        num_same = sum(itertools.takewhile(bool, is_same))
        if pairs and not is_same[-1]:
            # An ETag is no MD5 where KMS encrypts. A line has its number and its time, and lines are only added: where
            # the last one is the same, those before it are.
            last_line, last_object = pairs[-1]
            if has_hash(last_object.address, hashlib.sha256(last_line).hexdigest()):
                num_same = len(pairs)
        if num_same == len(items) == len(existing):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched = pool.map(lambda item: get_content(item.address), items[num_same:])
        with temporary_beside(path) as temporary:
            temporary.write_bytes(
                b"".join(
                    [
                        *existing[:num_same],
                        *(content.data for content in fetched if content is not None),
                    ]
                )
            )
            keep_mode(temporary, path)
            temporary.replace(path)


def _line_objects(path: Path) -> list[RemoteObject]:
    """Return the line objects of an append-only file, in order; refuse a gap."""
    items = list_s3(address_of(path), kind=ArtifactError)
    for number, item in enumerate(items):
        if item.address != line_address(path, number):
            raise ArtifactError(
                f"{line_address(path, number)}: no such object, but later lines exist; restore it"
            )
    return items


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, under which one process of this machine changes it and its bucket."""
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:32]
    lock = cache_folder() / "locks" / f"s3-{name}.lock"
    with storage_errors(cache_folder()):
        lock.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(lock):
        yield
