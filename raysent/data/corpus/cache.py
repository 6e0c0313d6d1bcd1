"""The cache of prepared corpora: folders that appear whole or not at all, built by one process of the machine.

Machines of a cluster can share what one of them has built, inside `shared_cache`: in a folder, or below an address in a
bucket. Each folder of the cache has one there, with its files below a name of their writer's, and a manifest that is
written last and never replaced:

    corpora/<key>/manifest.json        {"place": "5b0c…", "files": {"ids.bin": [bytes, SHA-256], …}}
    corpora/<key>/5b0c…/ids.bin …

So a reader finds everything or nothing, and of two writers one removes its own files.

A folder is used only if all of its bytes are what was written: training reads them without looking. The summary holds
the SHA-256 of each file and a hash of itself; to hash a folder takes far less than to build it.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from raysent import storage
from raysent.errors import ArtifactError, RaysentError
from raysent.reading import parse_json

_SUMMARY = "corpus.json"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class _Shared:
    """Where machines share what they have built, and whether what is found in the cache here is published too."""

    address: str
    publishes_all: bool


_SHARED: ContextVar[_Shared | None] = ContextVar("shared cache", default=None)


@contextlib.contextmanager
def shared_cache(address: str | None, *, publishes_all: bool = False) -> Iterator[None]:
    """Fetch what the cache lacks from an address that machines share, and publish there what is built, in the block.

    An address that cannot be read or written is not used: then each machine builds for itself.

    Args:
        address: A folder that all machines have, or an address in ``s3://``; None shares nothing.
        publishes_all: Whether to publish also what the cache has already; for the first machine.
    """
    token = _SHARED.set(None if address is None else _Shared(address, publishes_all))
    try:
        yield
    finally:
        _SHARED.reset(token)


def shared_address() -> str | None:
    """Return the address of the enclosing `shared_cache`, or None outside of one."""
    shared = _SHARED.get()
    return None if shared is None else shared.address


@contextlib.contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Hold the lock of the part `name` of the cache, under which one process of the machine builds it."""
    lock = cache / "locks" / (name.replace("/", "-") + ".lock")
    with storage.storage_errors(cache):
        lock.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock):
            yield


def build_once(
    cache: Path, name: str, build: Callable[[Path], dict[str, Any]], *, is_shared: bool = True
) -> Path:
    """Return the folder `name` of the cache; if it is missing or damaged, it is fetched or built.

    Args:
        cache: The cache.
        name: Path of the folder inside the cache.
        build: Fills an empty folder and returns the summary to store in it.
        is_shared: Whether the machines of an enclosing `shared_cache` share it.
    """
    folder = cache / name
    shared = _SHARED.get() if is_shared else None
    if _is_intact(folder):
        if shared is not None and shared.publishes_all:
            _publish(folder, f"{shared.address}/{name}")
        return folder
    with locked(cache, name):
        if _is_intact(folder):
            return folder
        # The holder of the lock is the only builder: an existing folder was left by a killed process.
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        storage.remove_tree(unfinished, below=cache)
        unfinished.mkdir(parents=True)
        try:
            is_fetched = shared is not None and _fetch(f"{shared.address}/{name}", unfinished)
            if not is_fetched:
                summary = build(unfinished)
                files = {file.name: _size_and_hash(file) for file in sorted(unfinished.iterdir())}
                storage.write_json(unfinished / _SUMMARY, summary | {"files": files})
            for file in unfinished.iterdir():
                storage.flush(file)
            storage.remove_tree(folder, below=cache)
            unfinished.rename(folder)
        finally:
            storage.remove_tree(unfinished, below=cache)
    if shared is not None and not is_fetched:
        _publish(folder, f"{shared.address}/{name}")
    return folder


def _publish(folder: Path, address: str) -> None:
    """Copy a folder to an address that machines share, unless it is there; a failure leaves the others to build."""
    with contextlib.suppress(RaysentError, OSError):
        if storage.read_shared(f"{address}/{_MANIFEST}") is not None:
            return
        writer_folder = uuid.uuid4().hex
        files = {file.name: _size_and_hash(file) for file in sorted(folder.iterdir())}
        for name in files:
            storage.copy_to_shared(folder / name, f"{address}/{writer_folder}/{name}")
        manifest = json.dumps({"place": writer_folder, "files": files}).encode()
        if not storage.create_shared(f"{address}/{_MANIFEST}", manifest):
            for name in files:
                storage.remove_shared(f"{address}/{writer_folder}/{name}")


def _fetch(address: str, folder: Path) -> bool:
    """Copy what `_publish` wrote into an empty folder; return False, and leave it empty, if it is not as written."""
    try:
        content = storage.read_shared(f"{address}/{_MANIFEST}")
        if content is None:
            return False
        manifest = parse_json(content)
        for name, expected in manifest["files"].items():
            file = folder / Path(name).name
            storage.copy_from_shared(f"{address}/{manifest['place']}/{name}", file)
            if _size_and_hash(file) != expected:
                raise ArtifactError(f"{address}/{name}: not as it was written")
        if _is_intact(folder):
            return True
    except (RaysentError, OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    for file in list(folder.iterdir()):
        file.unlink()
    return False


def _size_and_hash(file: Path) -> list[Any]:
    return [file.stat().st_size, storage.file_sha256(file)]


def _is_intact(folder: Path) -> bool:
    try:
        summary = storage.read_json(folder / _SUMMARY, sealed=True)
        return all(
            expected == _size_and_hash(folder / name) for name, expected in summary["files"].items()
        )
    except (ArtifactError, OSError, KeyError, TypeError, AttributeError):
        return False
