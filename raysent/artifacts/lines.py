"""Append-only files: JSON, one value a line.

On a disk each line is flushed before anything acts on it, and a torn last line, left by a killed writer, is dropped.
In a bucket each line is an object of its own, created only where none is: of two writers that think the file theirs,
one is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import IO, Any

from raysent.artifacts.disk import storage_errors
from raysent.artifacts.files import write_text
from raysent.artifacts.mirror import address_of, line_address, locked
from raysent.artifacts.object_store import create
from raysent.errors import ArtifactError


class Lines:
    """An append-only file that one process writes."""

    def __init__(self, path: Path) -> None:
        """Open a file where its last whole line ends; the folder must be there.

        Raises:
            ArtifactError: If it cannot be written.
        """
        self.path = path
        with storage_errors(address_of(path)):
            cut_torn_line(path)
            path.touch()
            self._num_lines = path.read_bytes().count(b"\n")

    def append(self, value: Any) -> None:
        """Add one line, in its bucket first.

        Raises:
            ArtifactError: If the disk or the object store refuses, or another writer was there first.
        """
        address = line_address(self.path, self._num_lines)
        with contextlib.nullcontext() if address is None else locked(self.path.parent):
            if address is not None and not create(address, json_line(value).encode()):
                raise ArtifactError(
                    f"{address_of(self.path)}: another process has gone on with this run since; leave it to that one"
                )
            with storage_errors(address_of(self.path)), self.path.open("a", encoding="utf-8") as stream:
                append_json_line(stream, value)
        self._num_lines += 1


def json_line(value: Any) -> str:
    """Return a value as one line; NaN is refused."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def append_json_line(stream: IO[str], value: Any) -> None:
    """Append one event to an open journal and push it to the disk before anything acts on it."""
    stream.write(json_line(value))
    stream.flush()
    os.fsync(stream.fileno())


def add_json_line(path: Path, value: Any) -> None:
    """Add a line to a short file that one process writes, whole and in one step."""
    before = "".join(map(json_line, read_json_lines(path))) if path.exists() else ""
    write_text(path, before + json_line(value))


def read_json_lines(path: Path) -> list[Any]:
    """Read an append-only file; a torn last line, left by a killed writer, is dropped.

    Raises:
        ArtifactError: If it is missing or a line before the last is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        raise ArtifactError(f"{address_of(path)}: no such file") from None
    values = []
    complete, torn = lines[:-1], lines[-1]
    for number, line in enumerate(complete, start=1):
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            is_last = number == len(complete) and not torn
            if is_last:
                break
            raise ArtifactError(
                f"{address_of(path)}:{number}: not JSON; the file was changed by something else"
            ) from None
    return values


def cut_torn_line(path: Path) -> None:
    """Cut what a killed writer left after the last whole line, so that the next one starts a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)
