"""Append-only files of JSON lines: written line by line to disk, numbered and hashed, and verified when they are read.

A line of a journal or a ledger ends with three keys that readers check and leave out:

    {"event": "started", "trial": "0000", "line": 3, "seen": {"ledger": [7, 0.25]}, "hash": "5f0c2f7b1d3a9e64"}

`line` counts from 0. `hash` is the start of the SHA-256 of all bytes of the file up to it, so that no line can be
changed, removed, doubled or moved unnoticed. `seen` is how much of another file existed when the line was written;
`raysent.sweeps.integrity` compares both, which finds lines that are missing at an end. A line may also be a batch,
`{"entries": [...], "line": ...}`, which readers take apart. The lines of short files, such as a run's reports, have no
hashes.

On disk, each line is flushed before the caller acts on it, and a reader drops an incomplete last line, left by a killed
writer. In a bucket, each line is an object of its own that is only created, never replaced: of two writers of the same
file, one gets an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from raysent import reading
from raysent.errors import ArtifactError
from raysent.storage.disk import storage_errors
from raysent.storage.files import write_text
from raysent.storage.mirror import address_of, line_address, locked
from raysent.storage.object_store import conditional_put

_HASH_DIGITS = 16
# The keys that a line has beside its entries.
_FRAME = frozenset({"line", "seen", "hash"})
_END = re.compile(rb', "hash": "([0-9a-f]{16})"\}$')
_HAS_END = re.compile(rb'"hash": "[0-9a-f]{16}"')


@dataclass(frozen=True)
class Line:
    """A verified line: its entries, one unless it is a batch, and what `seen` of it says; empty without a hash."""

    entries: tuple[Any, ...]
    seen: Mapping[str, Any]


@dataclass(frozen=True)
class Damage:
    """The first line of a file that is not as it was written: its number, counted from 1, and what is wrong."""

    line: int
    reason: str


@dataclass(frozen=True)
class Checked:
    """What a file of lines holds.

    Attributes:
        lines: The lines before the first damage, without an incomplete last one, which is no damage.
        damage: The first damage; None if there is none.
    """

    lines: tuple[Line, ...]
    damage: Damage | None = None

    @property
    def entries(self) -> list[Any]:
        """The entries of all lines."""
        return [entry for line in self.lines for entry in line.entries]


def check_lines(data: bytes) -> Checked:
    """Return the lines of a file's content, up to the first damage.

    An incomplete last line is dropped. In a file without hashes, a last line that is not JSON is too.
    """
    digest, found, is_hashed = hashlib.sha256(), list[Line](), False
    *lines, rest = data.split(b"\n")
    if _HAS_END.search(rest):  # all of the line was written: only its newline may be missing
        lines.append(rest)
    for line in lines:
        try:
            found.append(_read_line(line, digest, number=len(found), is_hashed=is_hashed))
        except ValueError as error:
            is_last = len(found) + 1 == len(lines) and not rest
            if is_last and not is_hashed and _HAS_END.search(line) is None:
                break
            return Checked(tuple(found), Damage(len(found) + 1, str(error)))
        digest.update(line + b"\n")
        is_hashed = is_hashed or _END.search(line) is not None
    return Checked(tuple(found))


def _read_line(data: bytes, digest: Any, *, number: int, is_hashed: bool) -> Line:
    """Return a line, given the digest of all bytes before it, its number, and whether a line before it has a hash."""
    end = _END.search(data)
    if end is None:
        if is_hashed:
            raise ValueError("has no hash, but earlier lines have")
        try:
            value = reading.parse_json(data.decode("utf-8", errors="replace"))
        except ValueError as error:
            raise ValueError(f"not JSON ({error})") from None
        if isinstance(value, dict) and not _FRAME.isdisjoint(value):
            raise ValueError("its hash is not at its end")
        return Line((value,), {})
    digest = digest.copy()
    digest.update(data[: end.start()])
    if digest.hexdigest()[:_HASH_DIGITS] != end[1].decode():
        raise ValueError("its hash is not that of the file up to here")
    values = reading.parse_json(data.decode("utf-8"))
    line, seen = values.pop("line", None), values.pop("seen", {})
    del values["hash"]
    if line != number:
        raise ValueError(f"its number is {line}, not {number}")
    return Line(tuple(values["entries"] if values.keys() == {"entries"} else [values]), seen)


class Lines:
    """An append-only file of hashed JSON lines with one writer.

    Attributes:
        path: The file.
        seen: Returns what a line says of another file; called for each line.
    """

    def __init__(self, path: Path) -> None:
        """Open a file after its last complete line; the folder must exist.

        Raises:
            ArtifactError: If it cannot be written.
        """
        self.path = path
        self.seen: Callable[[], Mapping[str, Any]] = dict
        with storage_errors(address_of(path)):
            _end_with_newline(path)
            path.touch()
            data = path.read_bytes()
        self.num_lines, self._num_bytes = data.count(b"\n"), len(data)
        self._behind = ""  # the line that the bucket has and the disk refused
        self._digest = hashlib.sha256(data)

    def append(self, *entries: Any) -> None:
        """Append one line: an entry, or a batch of several; to the bucket first, if the file is in one.

        A line that the bucket took is written, also where the disk refuses it: it is added before the next one.

        Raises:
            ArtifactError: If the disk or the object store refuses, or another process has written the line. Nothing of
                it is written then.
        """
        values = entries[0] if len(entries) == 1 else {"entries": entries}
        line, digest = self._hashed({**values, "line": self.num_lines, "seen": dict(self.seen())})
        address = line_address(self.path, self.num_lines)
        with contextlib.nullcontext() if address is None else locked(self.path.parent):
            self._write_here("")
            if address is not None and not conditional_put(address, line.encode()):
                raise ArtifactError(
                    f"{address_of(self.path)}: another process has continued this run since; let that one finish"
                )
            try:
                self._write_here(line)
            except ArtifactError:
                if address is None:
                    raise
                self._behind = line
        self.num_lines += 1
        self._digest = digest

    def _write_here(self, line: str) -> None:
        """Write a line to the disk, after the one that it has refused so far."""
        text = self._behind + line
        if not text:
            return
        with storage_errors(address_of(self.path)), self.path.open("a", encoding="utf-8") as stream:
            try:
                _write(stream, text)
            except OSError:
                os.ftruncate(
                    stream.fileno(), self._num_bytes
                )  # the next line must not follow half of this one
                raise
        self._num_bytes += len(text.encode())
        self._behind = ""

    def _hashed(self, values: Mapping[str, Any]) -> tuple[str, Any]:
        body = json_line(values)[: -len("}\n")]
        digest = self._digest.copy()
        digest.update(body.encode())
        line = f'{body}, "hash": "{digest.hexdigest()[:_HASH_DIGITS]}"}}\n'
        digest.update(line[len(body) :].encode())
        return line, digest


def json_line(value: Any) -> str:
    """Return a value as one line of JSON; NaN raises a ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def append_json_line(path: Path, value: Any) -> None:
    """Append a line without a hash to a short file with one writer; the file is rewritten atomically."""
    lines = "".join(map(json_line, read_json_lines(path))) if path.exists() else ""
    write_text(path, lines + json_line(value))


def read_json_lines(path: Path) -> list[Any]:
    """Return the entries of an append-only file, verified; an incomplete last line is dropped.

    Raises:
        ArtifactError: If it is missing, or a line is not as it was written.
    """
    name = address_of(path)
    checked = check_lines(reading.read_bytes(path, name=name))
    if checked.damage is not None:
        raise ArtifactError(
            f"{name}:{checked.damage.line}: {checked.damage.reason}; another program changed the file"
        )
    return checked.entries


def num_lines(path: Path) -> int:
    """Return the complete lines of a file; 0 if it is missing."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _write(stream: IO[str], line: str) -> None:
    stream.write(line)
    stream.flush()
    os.fsync(stream.fileno())


def _end_with_newline(path: Path) -> None:
    """Truncate the file after its last complete line; a line that lacks only its newline gets it."""
    if not path.exists():
        return
    data = path.read_bytes()
    start = data.rfind(b"\n") + 1
    if start == len(data):
        return
    with path.open("r+b") as stream:
        if _END.search(data[start:]) is None:
            stream.truncate(start)
        else:
            stream.seek(0, os.SEEK_END)
            stream.write(b"\n")
