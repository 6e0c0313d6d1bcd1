"""The cache of prepared corpora: folders that appear whole or not at all, built by one process of a machine."""

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
# Files up to this size are compared with their hash when a folder is opened; larger ones with their size.
_HASHED_BYTES = 32 << 20


@contextlib.contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Let one process of the machine at a time build the part `name` of the cache."""
    lock = cache / "locks" / (name.replace("/", "-") + ".lock")
    with storage.storage_errors(cache):
        lock.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock):
            yield


def build_once(cache: Path, name: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Return the folder `name` of the cache, building it if it is missing or damaged.

    Args:
        cache: The cache.
        name: The folder's path inside it.
        build: Fills an empty folder and returns the summary to keep with it.
    """
    folder = cache / name
    if _is_intact(folder):
        return folder
    with locked(cache, name):
        if _is_intact(folder):
            return folder
        # Whoever holds the lock is the only builder: what lies here was left by one that was killed.
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
    """Return the size and, for the smaller ones, the hash of each file that was written."""
    return {file.name: _mark(file) for file in sorted(folder.iterdir()) if file.name != SUMMARY}


def _mark(file: Path) -> list[Any]:
    """Return what tells a whole file from a damaged one."""
    num_bytes = file.stat().st_size
    return [num_bytes, hashlib.sha256(file.read_bytes()).hexdigest() if num_bytes <= _HASHED_BYTES else None]


def _is_intact(folder: Path) -> bool:
    """Whether the folder is there and its files are those that were written."""
    try:
        files = storage.read_json(folder / SUMMARY)["files"]
        return all(mark == _mark(folder / name) for name, mark in files.items())
    except (ArtifactError, OSError, KeyError, TypeError, AttributeError):
        return False
