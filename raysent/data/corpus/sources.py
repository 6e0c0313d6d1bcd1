"""Where text comes from. In: a path, several, a folder, a glob, ``s3://``. Out: files, then blocks of decoded lines.

Nothing here holds more than a block of a file in memory. Every mistake in a file is one line with its name.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import smart_open

from raysent import storage
from raysent.errors import DataError

# What a folder is searched for; a file that is named or matched by a glob may end in anything.
SUFFIXES = (".txt", ".text", ".jsonl")
_BLOCK_BYTES = 1 << 20
_S3 = "s3://"


@dataclass(frozen=True)
class Source:
    """One file of text.

    Attributes:
        path: Local path or ``s3://`` address.
        etag: What names the content of a remote file; empty for a local one.
    """

    path: str
    etag: str = ""

    @property
    def is_json(self) -> bool:
        """Whether each line is a JSON object."""
        return self.path.removesuffix(".gz").endswith(".jsonl")

    def fingerprint(self) -> str:
        """Return what names the content, wherever the file lies."""
        if self.etag:
            return self.etag
        with _reading(self.path), Path(self.path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open for reading, unpacked."""
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(_open_raw(self.path))
            if self.path.endswith(".gz"):
                raw = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
            yield raw

    def blocks(self) -> Iterator[list[str]]:
        """Yield the lines in blocks of about a megabyte, without their ends; only a line feed ends a line.

        A line longer than a block is cut at white space, unless the file is JSON.

        Raises:
            DataError: If the file cannot be read, is not UTF-8 or holds NUL bytes.
        """
        number, rest = 1, b""
        with _reading(self.path), self.open() as stream:
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
    """Open the packed bytes of a local or remote file."""
    if path.startswith(_S3):
        with storage.s3_errors(path), smart_open.open(path, "rb", compression="disable") as stream:
            yield stream
    else:
        with Path(path).open("rb") as stream:
            yield stream


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn what can go wrong while reading into one line about `path`."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read; change its permissions") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or not gzip ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def find_sources(path: str | list[str]) -> list[Source]:
    """Return the files that a path stands for: in the order given, and by name inside a folder or glob.

    Raises:
        DataError: If one of the paths stands for nothing.
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
        # What can be read only once, such as a pipe, cannot be named by its content.
        raise DataError(f"corpus.path: {path}: must be a file or a folder; given a pipe or a device; save it as a file")
    if not glob.has_magic(path):
        raise DataError(f"corpus.path: {path}: no such file or folder{_nearest(local)}")
    # The pattern may be absolute, which `Path.glob` refuses.
    matches = sorted(
        match
        for match in glob.glob(  # noqa: PTH207
            str(local), recursive=True
        )
        if Path(match).is_file()
    )
    if not matches:
        raise DataError(f"corpus.path: {path}: no file matches; a glob is read from the folder you stand in")
    return [Source(match) for match in matches]


def _nearest(path: Path) -> str:
    """Return how far the path exists, where that helps."""
    existing = next((parent for parent in path.parents if parent.exists()), None)
    return f"; {existing} exists" if existing and existing not in (Path(), path.parent) else ""


def _find_in_folder(folder: Path) -> list[Source]:
    try:
        files = sorted(file for file in folder.rglob("*") if _is_text(file.relative_to(folder)) and file.is_file())
    except PermissionError as error:
        raise DataError(f"corpus.path: {error.filename}: may not be read; change its permissions") from None
    if not files:
        kinds = ", ".join(SUFFIXES)
        raise DataError(f"corpus.path: {folder}: holds no file of {kinds} (or these with .gz); name others by a glob")
    return [Source(str(file)) for file in files]


def _is_text(path: Path) -> bool:
    """Whether the name is that of a text that a folder was meant to offer; hidden files and folders are not."""
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and path.name.removesuffix(".gz").endswith(SUFFIXES)


def _find_remote(address: str) -> list[Source]:
    objects = storage.list_s3(address)
    exact = [item for item in objects if item.address == address]
    inside = [item for item in objects if _is_text(Path(item.address.removeprefix(_S3)))]
    if not exact and not inside:
        raise DataError(f"corpus.path: {address}: no such object, and none of {', '.join(SUFFIXES)} below it")
    return [Source(item.address, etag=f"{item.etag}-{item.num_bytes}") for item in exact or inside]
