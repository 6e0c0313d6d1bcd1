"""Runs in a bucket: a working folder on this machine for each ``s3://`` address, and the two kept the same.

    s3://BUCKET/KEY  <->  <cache>/s3/<endpoint>/BUCKET/KEY

A path below ``<cache>/s3`` says by itself where its object is, so nothing else needs to be told that a run lives in a
bucket: commands, trials and workers work in local folders. `commit` puts the object first and renames the local file
then; whatever a killed machine had committed is in the bucket, and another one brings it home with `open_folder`.
The bucket is the truth: what is not in it is removed here. A lock of each folder sees to it that the processes of one
machine find both the same. Names that begin with a dot stay on this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock

from raysent.errors import ArtifactError
from raysent.storage.disk import cache_folder, storage_errors, temporary_beside
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
    is_remote,
    list_s3,
    put_file,
    split_address,
)

# The entries of an append-only file are objects of their own, below its name.
LINES_SUFFIX = ".jsonl"

_NUM_CONNECTIONS = 16


def open_folder(name: str | Path, *, with_checkpoints: bool = False) -> Path:
    """Return the local folder of a run, a trial or a model; one in a bucket is brought home first.

    Args:
        name: Local path or ``s3://`` address; there need be nothing yet.
        with_checkpoints: Whether to bring home what is only needed to go on training.

    Raises:
        RaysentError: If the address is wrong, the object store refuses, or an object is torn.
    """
    if not is_remote(name):
        return Path(name)
    bucket, key = split_address(name)
    folder = _root() / endpoint().replace(":", "-") / bucket / key
    refresh(folder, with_checkpoints=with_checkpoints)
    return folder


def address_of(path: Path) -> str:
    """Return what a user calls a path: the ``s3://`` address of a working folder, any other as it is."""
    return remote_address(path) or str(path)


def to_uri(folder: Path) -> str:
    """Return a name of a folder that `open_folder` takes on every machine that reaches it."""
    return remote_address(folder) or str(folder.resolve())


def remote_address(path: Path) -> str | None:
    """Return the ``s3://`` address of a path in a working folder; None for any other path."""
    try:
        _, bucket, *key = path.absolute().relative_to(_root()).parts
    except ValueError:
        return None
    return S3 + "/".join((bucket, *key))


def commit(temporary: Path, path: Path) -> None:
    """Give a temporary file its name, in its bucket first."""
    address = remote_address(path)
    if address is None or path.name.startswith("."):
        temporary.replace(path)
        return
    with locked(path.parent):
        put_file(address, temporary)
        temporary.replace(path)


def remove(path: Path) -> None:
    """Remove a file, in its bucket too, where it is there."""
    address = remote_address(path)
    if address is None:
        path.unlink(missing_ok=True)
        return
    with locked(path.parent):
        if path.suffix == LINES_SUFFIX:
            for item in list_s3(address, kind=ArtifactError):
                delete(item.address)
        delete(address)
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, in its bucket too; what cannot be removed here is left."""
    address = remote_address(folder)
    if address is not None:
        with locked(folder):
            for item in list_s3(address, kind=ArtifactError):
                delete(item.address)
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def refresh(folder: Path, *, with_checkpoints: bool = False) -> None:
    """Make a working folder agree with its bucket; a folder that has none stays as it is.

    Args:
        folder: Any folder.
        with_checkpoints: Whether checkpoints of runs below it are looked at too.

    Raises:
        ArtifactError: If the object store refuses, or an object is torn.
    """
    address = remote_address(folder)
    if address is None:
        return
    found: dict[Path, list[RemoteObject]] = {}
    for item in list_s3(address, kind=ArtifactError):
        path = folder / _inside(item, address)
        is_wanted = not _is_hidden(path.relative_to(folder)) and not item.address.endswith("/")
        if is_wanted and (with_checkpoints or not _is_in_checkpoint(path, folder)):
            found.setdefault(path.parent, []).append(item)
    places = {place for place in _places(folder) if with_checkpoints or not _is_in_checkpoint(place / "x", folder)}
    lines = {place for place in found if place.suffix == LINES_SUFFIX}
    with (
        storage_errors(folder),
        ThreadPoolExecutor(_NUM_CONNECTIONS) as of_folders,
        ThreadPoolExecutor(_NUM_CONNECTIONS) as of_objects,
    ):
        tasks = [of_folders.submit(_fetch_lines, place, of_objects) for place in lines]
        tasks += [
            of_folders.submit(_fetch_folder, place, found.get(place, []), {path.name for path in lines})
            for place in (places | found.keys()) - lines
        ]
        for task in tasks:
            task.result()


def line_address(path: Path, number: int) -> str | None:
    """Return the address of an append-only file's entry, from 0; None where the file is in no bucket."""
    address = remote_address(path)
    return None if address is None else f"{address}/{number:09d}.json"


def _inside(item: RemoteObject, address: str) -> str:
    """Return an object's name below an address.

    Raises:
        ArtifactError: If a file of that name would not lie below the folder.
    """
    inside = item.address.removeprefix(address).removeprefix("/").removesuffix("/")
    if item.address == address or any(part in ("", ".", "..") for part in inside.split("/")):
        raise ArtifactError(
            f"{item.address}: an object stands where a folder is needed, or its name leaves its folder; remove it"
        )
    return inside


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _root() -> Path:
    return (cache_folder() / "s3").resolve()


def _is_in_checkpoint(path: Path, folder: Path) -> bool:
    return CHECKPOINT_FOLDER in path.parent.relative_to(folder).parts


def _places(folder: Path) -> Iterator[Path]:
    """Yield the local folders, hidden ones and what is in them left out."""
    for place, below, _ in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        yield Path(place)


def _fetch_folder(place: Path, items: Iterable[RemoteObject], line_files: set[str]) -> None:
    """Make the files that stand directly in a folder those of the bucket."""
    with locked(place):
        place.mkdir(parents=True, exist_ok=True)
        names = {item.address.rpartition("/")[2]: item for item in items}
        for name, item in names.items():
            if not has_content(item, place / name):
                with temporary_beside(place / name) as temporary:
                    # A torn checkpoint is told by its record when it is read, and the one before is taken.
                    get_file(item.address, temporary, is_checked=place.name != CHECKPOINT_FOLDER)
                    temporary.replace(place / name)
        for file in list(place.iterdir()):
            is_ours = file.is_file() and not file.name.startswith(".") and file.name not in line_files
            # Looked at again: it may have been written since the bucket was listed.
            if is_ours and file.name not in names and not exists(remote_address(file) or ""):
                file.unlink(missing_ok=True)


def _fetch_lines(path: Path, pool: ThreadPoolExecutor) -> None:
    """Make an append-only file of its entries; those that are there already are not fetched again."""
    with locked(path.parent):
        # Listed under the lock, so that no line which this machine writes meanwhile is cut.
        items = _entries(path)
        have = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        is_same = (
            hashlib.md5(line, usedforsecurity=False).hexdigest() == item.etag
            for line, item in zip(have, items, strict=False)
        )
        num_same = sum(itertools.takewhile(bool, is_same))
        if num_same == len(items) == len(have):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched = pool.map(lambda item: get_content(item.address), items[num_same:])
        with temporary_beside(path) as temporary:
            temporary.write_bytes(b"".join([*have[:num_same], *(one.data for one in fetched if one is not None)]))
            temporary.replace(path)


def _entries(path: Path) -> list[RemoteObject]:
    """Return the objects of an append-only file's entries, in order.

    Raises:
        ArtifactError: If one is missing between others.
    """
    items = list_s3(address_of(path), kind=ArtifactError)
    for number, item in enumerate(items):
        if item.address != line_address(path, number):
            raise ArtifactError(f"{line_address(path, number)}: no such object, but later ones; restore it")
    return items


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Let one process of this machine at a time change a folder here and in its bucket."""
    name = hashlib.sha256(str(place).encode()).hexdigest()[:32]
    lock = cache_folder() / "locks" / f"s3-{name}.lock"
    with storage_errors(cache_folder()):
        lock.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(lock):
        yield
