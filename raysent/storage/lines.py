"""Append-only files of JSON lines: written line by line to disk, each with a checksum of its own.

A line of a journal, a ledger or the reports of a run ends with two keys that readers check and leave out:

    {"event": "started", "trial": "0000", "line": 3, "checksum": "5f0c2f7b1d3a9e64"}

`line` counts from 0, and `checksum` is the start of the SHA-256 of what stands before it in the line. So a line that
was changed, moved or doubled, or follows one that is gone, is found. Lines that are gone from the end of a file are as
of a writer that was killed before them; only other files can say that there were some. A line may also be a batch,
`{"entries": [...], "line": ...}`, which readers take apart.

Version 0.2.0 wrote `seen`, which is left out, and in place of `checksum` a `hash`: the start of the SHA-256 of all that
stands before it in the file. Its reports had neither.

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
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from raysent import reading
from raysent.errors import ArtifactError
from raysent.storage.disk import storage_errors
from raysent.storage.files import write_text
from raysent.storage.mirror import address_of, line_address, line_object, locked
from raysent.storage.object_store import conditional_put, get_content, is_remote, list_s3

_CHECKSUM_DIGITS = 16
_NUM_CONNECTIONS = 16
# The end of a line with a checksum: its name, which a flipped bit may have changed, and its digits.
_END = re.compile(rb', "([^"]*)": "([0-9a-f]{16})"\}$')
# All of a line was written, but perhaps its newline.
_HAS_END = re.compile(rb'"(?:checksum|hash)": "[0-9a-f]{16}"\}')


class Lines:
    """An append-only file of JSON lines with one writer.

    Attributes:
        path: The file.
        num_lines: Lines so far.
    """

    def __init__(self, path: Path) -> None:
        """Open a file after its last complete line; the folder must exist.

        Raises:
            ArtifactError: If it cannot be written.
        """
        self.path = path
        with storage_errors(address_of(path)):
            _end_with_newline(path)
            path.touch()
            data = path.read_bytes()
        self.num_lines = data.count(b"\n")
        self._num_bytes = len(data)
        self._behind = ""  # the line that the bucket has and the disk refused
        self._writer = uuid.uuid4().hex

    def append(self, *entries: Any) -> None:
        """Append one line: an entry, or a batch of several; to the bucket first, if the file is in one.

        A line that the bucket took is written, also where the disk refuses it: it is added before the next one.

        Raises:
            ArtifactError: If the disk or the object store refuses, or another process has written the line. Nothing of
                it is written then, unless the object store did not answer: then it may be, also later on. Another call
                with the same entries completes it; one with others is refused if it was written.
        """
        values = entries[0] if len(entries) == 1 else {"entries": entries}
        line = _line(values, number=self.num_lines)
        address = line_address(self.path, self.num_lines)
        with contextlib.nullcontext() if address is None else locked(self.path.parent):
            self._write_here("")
            if address is not None and not conditional_put(
                address, line.encode(), writer=self._writer
            ):
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

    def _write_here(self, line: str) -> None:
        """Write a line to the disk, after the one that it has refused so far."""
        text = self._behind + line
        if not text:
            return
        with storage_errors(address_of(self.path)), self.path.open("a", encoding="utf-8") as stream:
            try:
                _write(stream, text)
            except OSError:
                # The next line must not follow half of this one.
                os.ftruncate(stream.fileno(), self._num_bytes)
                raise
        self._num_bytes += len(text.encode())
        self._behind = ""


class NewLines:
    """The entries of a growing file of lines that were not read yet; nothing is read twice.

    On disk the bytes after the last whole line are read, in a bucket the objects after the last one are listed.
    """

    def __init__(self, name: str | Path) -> None:
        """Begin before the first line.

        Args:
            name: The file, or its ``s3://`` address; it need not exist.
        """
        self._name = str(name)
        self._num_lines = self._num_bytes = 0
        self._before = hashlib.sha256()

    def read(self) -> list[Any]:
        """Return the entries of the lines that are new.

        Raises:
            ArtifactError: If a line is not as it was written, or the object store refuses; it is read again.
        """
        entries: list[Any] = []
        lines: Iterable[bytes]
        if is_remote(self._name):
            lines = self._new_objects()
        else:
            lines = self._new_bytes()
        for line in lines:
            try:
                entries += _entries(line, number=self._num_lines, before=self._before)
            except ValueError as error:
                if entries:  # those before it first
                    return entries
                raise ArtifactError(f"{self._name}:{self._num_lines + 1}: {error}") from None
            self._before.update(line + b"\n")
            self._num_bytes += len(line) + 1
            self._num_lines += 1
        return entries

    def _new_bytes(self) -> list[bytes]:
        path = Path(self._name)
        with storage_errors(self._name):
            if not path.exists():
                return []
            with path.open("rb") as stream:
                stream.seek(self._num_bytes)
                *lines, _ = stream.read().split(b"\n")
        return lines

    def _new_objects(self) -> Iterator[bytes]:
        after = ""
        if self._num_lines != 0:
            after = line_object(self._name, self._num_lines - 1)
        objects = list_s3(f"{self._name}/", kind=ArtifactError, after=after)
        for number, line_file in enumerate(objects, start=self._num_lines):
            if line_file.address != line_object(self._name, number):
                raise ArtifactError(
                    f"{line_object(self._name, number)}: no such object, but later lines exist; restore it"
                )
        with ThreadPoolExecutor(_NUM_CONNECTIONS) as pool:
            for content in pool.map(get_content, [line_file.address for line_file in objects]):
                if content is None:
                    return
                yield content.data.removesuffix(b"\n")


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Write a short file of lines atomically; NaN raises a ValueError."""
    lines = [_line(line_values, number=number) for number, line_values in enumerate(values)]
    write_text(path, "".join(lines))


def append_json_line(path: Path, value: Any) -> None:
    """Append a line to a short file with one writer; the file is rewritten atomically."""
    before = []
    if path.exists():
        before = read_json_lines(path, is_plain=True)
    write_json_lines(path, [*before, value])


def read_json_lines(path: Path, *, is_plain: bool = False) -> list[Any]:
    """Return the entries of a file of lines, each checked; an incomplete last line is dropped.

    Args:
        path: The file.
        is_plain: Whether lines may have no checksum, as those of reports that version 0.2.0 wrote.

    Raises:
        ArtifactError: If it is missing, or a line is not as it was written.
    """
    name = address_of(path)
    *lines, last_line = reading.read_bytes(path, name=name).split(b"\n")
    if _HAS_END.search(last_line):
        lines.append(last_line)
    entries: list[Any] = []
    before = hashlib.sha256()
    for number, line in enumerate(lines):
        try:
            entries += _entries(line, number=number, before=before, is_plain=is_plain)
        except ValueError as error:
            raise ArtifactError(f"{name}:{number + 1}: {error}") from None
        before.update(line + b"\n")
    return entries


def _line(values: Any, *, number: int) -> str:
    """Return values as a line with its number and its checksum; NaN raises a ValueError."""
    text = json.dumps({**values, "line": number}, ensure_ascii=False, allow_nan=False)
    body = text.removesuffix("}")
    checksum = hashlib.sha256(body.encode()).hexdigest()[:_CHECKSUM_DIGITS]
    return f'{body}, "checksum": "{checksum}"}}\n'


def _entries(line: bytes, *, number: int, before: Any, is_plain: bool = False) -> list[Any]:
    """Return the entries of a line, one unless it is a batch.

    Args:
        line: The line, without its newline.
        number: Its place in the file, from 0.
        before: The SHA-256 of the file before it.
        is_plain: Whether it may have no checksum.

    Raises:
        ValueError: With what is wrong and what to do.
    """
    end = _END.search(line)
    digests = {b"checksum": hashlib.sha256(), b"hash": before.copy()}
    if end is None or end[1] not in digests:
        values = _parsed(line)
        has_none = isinstance(values, dict) and values.keys().isdisjoint(("line", "checksum"))
        if is_plain and end is None and has_none:
            return [values]
        raise ValueError(
            "has no checksum; raysent 0.1 wrote the file, or another program changed it: start again, or restore it"
        )
    digest = digests[end[1]]
    digest.update(line[: end.start()])
    if digest.hexdigest()[:_CHECKSUM_DIGITS] != end[2].decode():
        raise ValueError(
            "its checksum is not that of what was written; another program changed the file: restore it"
        )
    values = _parsed(line)
    for name in ("checksum", "hash", "seen"):
        values.pop(name, None)
    written_number = values.pop("line", None)
    if written_number != number:
        raise ValueError(
            f"its number is {written_number}, not {number}; another program changed the file: restore it"
        )
    if values.keys() != {"entries"}:
        return [values]
    if not isinstance(values["entries"], list):
        raise ValueError("entries: must be a list; another program changed the file: restore it")
    return values["entries"]


def _parsed(line: bytes) -> Any:
    try:
        return reading.parse_json(line.decode("utf-8", errors="replace"))
    except ValueError as error:
        raise ValueError(f"not JSON ({error}); another program changed the file") from None


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
