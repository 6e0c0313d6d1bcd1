"""The configuration of a corpus, and its files: paths, folders, globs or ``s3://`` -> files -> blocks of decoded lines.

Memory holds one block of a file at a time. Every error in a file is one line with the file's name.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from pydantic import Field

from raysent import storage
from raysent.config import StrictModel
from raysent.data.text_files import reading_errors
from raysent.errors import DataError

# Suffixes of the files that a folder contributes; a file that is named or matched by a glob may have any suffix.
SUFFIXES = (".txt", ".text", ".jsonl")
_BLOCK_BYTES = 1 << 20
_S3 = "s3://"


class CorpusConfig(StrictModel):
    """Which text to train on and how to read it.

    Attributes:
        path: ``docs`` for the embedded corpus; else files, folders, globs, ``.gz``, ``.jsonl(.gz)`` or ``s3://``.
        format: ``sentences``: one sentence per line, blank lines between documents. ``text``: running text or one
            paragraph per line, one document per file. ``auto`` decides for each file by its first lines.
        text_field: Field of a ``.jsonl`` object that contains running text; the fields ``sentences`` and
            ``paragraphs`` are read as well.
        across_documents: Whether windows may cross the boundary between two documents.
        max_sentences: Maximum number of sentences to read.
        validation_fraction: Fraction of the sentences to hold out, in whole documents.
        max_length: Maximum number of tokens of a sentence; longer ones are truncated.
        cache_dir: Folder of prepared corpora; default ``$RAYSENT_CACHE``, else the user's cache folder.
        seed: Seed of the choice of validation documents.
        num_processes: Number of processes that read the text; by default chosen by cores, memory and size of the text.
            The result does not depend on it.
    """

    path: str | list[str] = "docs"
    format: Literal["auto", "sentences", "text"] = "auto"
    text_field: str = "text"
    across_documents: bool = False
    max_sentences: int | None = Field(default=None, ge=4)
    validation_fraction: float = Field(default=0.05, gt=0, le=0.5)
    max_length: int = Field(default=50, ge=1)
    cache_dir: str | None = None
    seed: int = Field(default=0, ge=0)
    num_processes: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Source:
    """One file of text.

    Attributes:
        path: Local path or ``s3://`` address.
        etag: ETag and size of a remote file, which identify its content; empty for a local file.
    """

    path: str
    etag: str = ""

    @property
    def is_json(self) -> bool:
        """Whether each line is a JSON object."""
        return self.path.removesuffix(".gz").endswith(".jsonl")

    def fingerprint(self) -> str:
        """Return an identifier of the content, independent of the path."""
        if self.etag:
            return self.etag
        with reading_errors(self.path), Path(self.path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file for reading, decompressed if it is gzipped."""
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(_open_raw(self.path))
            if self.path.endswith(".gz"):
                raw = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
            yield raw

    def blocks(self) -> Iterator[list[str]]:
        """Yield the lines in blocks of about a megabyte, without line breaks; only a line feed ends a line.

        A line longer than a block is split at white space, unless the file is JSON.

        Raises:
            DataError: If the file cannot be read, is not UTF-8 or holds NUL bytes.
        """
        number, rest = 1, b""
        with reading_errors(self.path), self.open() as stream:
            while data := stream.read(_BLOCK_BYTES):
                data = rest + data
                cut = data.rfind(b"\n") + 1 or (0 if self.is_json else data.rfind(b" ") + 1)
                complete, rest = data[:cut], data[cut:]
                if complete:
                    yield self._lines(complete, number)
                    number += complete.count(b"\n")
            if rest:
                yield self._lines(rest, number)

    def _lines(self, data: bytes, number: int) -> list[str]:
        """Return the decoded lines of a block whose first line is line `number` of the file."""
        if number == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        if (nul := data.find(b"\0")) >= 0:
            line = number + data.count(b"\n", 0, nul)
            raise DataError(f"{self.path}:{line}: must be plain text; given a NUL byte: is this a binary file?")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = number + data.count(b"\n", 0, error.start)
            byte = f"0x{data[error.start]:02x}"
            raise DataError(f"{self.path}:{line}: must be UTF-8; given byte {byte}; convert it with iconv") from None
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        return [line.removesuffix("\r") for line in lines]


@contextlib.contextmanager
def _open_raw(path: str) -> Iterator[IO[bytes]]:
    """Open a local or remote file without decompression."""
    if path.startswith(_S3):
        import smart_open  # noqa: PLC0415 - a third of a second that only a remote path needs

        with storage.s3_errors(path), smart_open.open(path, "rb", compression="disable") as stream:
            yield stream
    else:
        with Path(path).open("rb") as stream:
            yield stream


def find_sources(path: str | list[str]) -> list[Source]:
    """Return the files of a path or of several: in the given order, and sorted inside a folder or glob.

    Raises:
        DataError: If a path matches no file.
    """
    paths = [path] if isinstance(path, str) else path
    found = [source for one in paths for source in _find(one)]
    if not found:
        raise DataError("corpus.path: must name at least one file; given an empty list")
    return found


def _find(path: str) -> list[Source]:
    if not path.strip():
        raise DataError("corpus.path: must name a file, a folder or a glob; given an empty name")
    if path.startswith(_S3):
        return _find_remote(path)
    local = Path(path).expanduser()
    if local.is_dir():
        return _find_in_folder(local)
    if local.is_file():
        return [Source(str(local))]
    if local.exists():
        # A pipe can be read only once, so its content cannot be hashed first.
        raise DataError(f"corpus.path: {path}: must be a file or a folder; given a pipe or a device; save it as a file")
    if not glob.has_magic(path):
        raise DataError(f"corpus.path: {path}: no such file or folder{_nearest(local)}")
    # `Path.glob` does not accept absolute patterns.
    matches = sorted(
        match
        for match in glob.glob(  # noqa: PTH207
            str(local), recursive=True
        )
        if Path(match).is_file()
    )
    if not matches:
        raise DataError(f"corpus.path: {path}: no file matches; a glob is relative to the current folder")
    return [Source(match) for match in matches]


def _nearest(path: Path) -> str:
    """Return a hint with the nearest existing parent folder, or an empty string."""
    existing = next((parent for parent in path.parents if parent.exists()), None)
    return f"; {existing} exists" if existing and existing not in (Path(), path.parent) else ""


def _find_in_folder(folder: Path) -> list[Source]:
    try:
        files = sorted(file for file in folder.rglob("*") if _is_text(file.relative_to(folder)) and file.is_file())
    except PermissionError as error:
        raise DataError(f"corpus.path: {error.filename}: cannot be read; change its permissions") from None
    if not files:
        suffixes = ", ".join(SUFFIXES)
        raise DataError(f"corpus.path: {folder}: contains no {suffixes} file (or .gz of these); name others by a glob")
    return [Source(str(file)) for file in files]


def _is_text(path: Path) -> bool:
    """Return whether a file has one of the suffixes of text and is not hidden."""
    is_hidden = any(part.startswith(".") for part in path.parts)
    return not is_hidden and path.name.removesuffix(".gz").endswith(SUFFIXES)


def _find_remote(address: str) -> list[Source]:
    objects = storage.list_s3(address)
    exact = [item for item in objects if item.address == address]
    inside = [item for item in objects if _is_text(Path(item.address.removeprefix(_S3)))]
    if not exact and not inside:
        raise DataError(f"corpus.path: {address}: no such object, and none of {', '.join(SUFFIXES)} below it")
    return [Source(item.address, etag=f"{item.etag}-{item.num_bytes}") for item in exact or inside]
