"""The cache of prepared corpora: folders that appear whole or not at all, built by one process of the machine."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from raysent import storage
from raysent.errors import ArtifactError

SUMMARY = "corpus.json"
# When a folder is opened, files up to this size are verified by their hash, larger ones by their size only.
_HASHED_BYTES = 32 << 20


@contextlib.contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Hold the lock of the part `name` of the cache, under which one process of the machine builds it."""
    lock = cache / "locks" / (name.replace("/", "-") + ".lock")
    with storage.storage_errors(cache):
        lock.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock):
            yield


def build_once(cache: Path, name: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Return the folder `name` of the cache; it is built if it is missing or damaged.

    Args:
        cache: The cache.
        name: Path of the folder inside the cache.
        build: Fills an empty folder and returns the summary to store in it.
    """
    folder = cache / name
    if _is_intact(folder):
        return folder
    with locked(cache, name):
        if _is_intact(folder):
            return folder
        # The holder of the lock is the only builder: an existing folder was left by a killed process.
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            summary = build(unfinished)
            storage.write_json(unfinished / SUMMARY, summary | {"files": _describe(unfinished)})
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _describe(folder: Path) -> dict[str, list[Any]]:
    """Return the size of each file and, for smaller ones, its hash."""
    return {file.name: _size_and_hash(file) for file in sorted(folder.iterdir()) if file.name != SUMMARY}


def _size_and_hash(file: Path) -> list[Any]:
    """Return the size of a file in bytes, and its hash, or None if it is large."""
    num_bytes = file.stat().st_size
    return [num_bytes, hashlib.sha256(file.read_bytes()).hexdigest() if num_bytes <= _HASHED_BYTES else None]


def _is_intact(folder: Path) -> bool:
    """Return whether the folder exists and its files are unchanged."""
    try:
        files = storage.read_json(folder / SUMMARY)["files"]
        return all(expected == _size_and_hash(folder / name) for name, expected in files.items())
    except (ArtifactError, OSError, KeyError, TypeError, AttributeError):
        return False
