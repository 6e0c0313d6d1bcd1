"""Files of text -> bytes in UTF-8, text, or lines; on disk or in ``s3://``, gzipped or not.

Text is UTF-8, with or without a BOM, or UTF-16 with a BOM; lines may end in CRLF. Every error is one line that names
the file.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from raysent.errors import DataError
from raysent.reading import parse_json
from raysent.storage import is_remote, s3_errors

_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}
_BLOCK_BYTES = 1 << 20


def parse_object(where: str, line: str) -> dict[str, Any]:
    """Return the JSON object that a line of a file holds.

    Raises:
        DataError: If it is another value, or damaged.
    """
    try:
        value = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: must be one JSON object a line; {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: must be a JSON object; given {type(value).__name__}")
    return value


@contextlib.contextmanager
def reading_errors(name: str) -> Iterator[None]:
    """Turn errors of reading into one line about `name`.

    Raises:
        DataError: If the file is missing, a folder, not readable or truncated.
    """
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{name}: must be a file of lines; given a folder") from None
    except PermissionError:
        raise DataError(f"{name}: cannot be read; change its permissions") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: truncated or not gzip ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def open_bytes(name: str) -> Iterator[IO[bytes]]:
    """Open a local or remote file for reading, decompressed if its name ends in ``.gz``."""
    with contextlib.ExitStack() as stack:
        if is_remote(name):
            import smart_open  # noqa: PLC0415 - a third of a second that only a remote path needs

            stack.enter_context(s3_errors(name, kind=DataError))
            raw = cast(IO[bytes], stack.enter_context(smart_open.open(name, "rb", compression="disable")))
        else:
            path = Path(name).expanduser()
            if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe waits for its writer
                raise DataError(f"{name}: must be a file; it is a pipe or a device")
            raw = stack.enter_context(path.open("rb"))
        if name.endswith(".gz"):
            raw = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
        yield raw


def read_bytes(name: str) -> bytes:
    """Return the content of a local or remote file, decompressed if its name ends in ``.gz``.

    Raises:
        DataError: If it cannot be read.
    """
    with reading_errors(name), open_bytes(name) as stream:
        return bytes(stream.read())


def decode(data: bytes, *, source: str) -> str:
    """Return text as a file stores it: UTF-8, or UTF-16 with a BOM.

    Raises:
        DataError: If it is neither, or holds NUL characters.
    """
    encoding = next((name for bom, name in _BOMS.items() if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _not_text(source, line, encoding, data[error.start : error.start + 1]) from None
    if (nul := text.find("\0")) >= 0:
        raise _has_nul(source, text.count("\n", 0, nul) + 1)
    return text


def _not_text(source: str, line: int, encoding: str, byte: bytes) -> DataError:
    given = f"byte 0x{byte[0]:02x}" if byte else "no more bytes"
    required = encoding.removesuffix("-sig").upper()
    return DataError(f"{source}:{line}: must be {required}; given {given}; convert it with iconv")


def _has_nul(source: str, line: int) -> DataError:
    return DataError(f"{source}:{line}: must be plain text; given a NUL byte: is this a binary file?")


def check_utf8(data: bytes, *, source: str, line: int) -> str:
    """Return the text of a part of a file in UTF-8.

    Args:
        data: Whole characters.
        source: The file, for messages.
        line: Number of the first line in the file.

    Raises:
        DataError: If it is not UTF-8, or holds NUL bytes.
    """
    if (nul := data.find(b"\0")) >= 0:
        raise _has_nul(source, line + data.count(b"\n", 0, nul))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = line + data.count(b"\n", 0, error.start)
        raise _not_text(source, place, "utf-8", data[error.start : error.start + 1]) from None


def utf8_blocks(stream: IO[bytes], *, source: str) -> Iterator[bytes]:
    """Yield a stream in blocks of about a megabyte, in UTF-8; UTF-16 with a BOM is converted, other bytes are kept.

    Raises:
        DataError: If a file that begins with the BOM of UTF-16 is not UTF-16.
    """
    data = stream.read(_BLOCK_BYTES)
    if not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        while data:
            yield data
            data = stream.read(_BLOCK_BYTES)
        return
    decoder = codecs.getincrementaldecoder("utf-16")()
    line = 1
    while True:
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise _not_text(source, line, "utf-16", error.object[error.start : error.start + 1]) from None
        line += text.count("\n")
        if text:
            yield text.encode("utf-8")
        if not data:
            return
        data = stream.read(_BLOCK_BYTES)


class Utf8Stream(io.RawIOBase):
    """A file of text as a stream of UTF-8 without a BOM, for libraries that read streams.

    Reading raises `DataError` where the text is not what `check_utf8` accepts.
    """

    def __init__(self, stream: IO[bytes], *, source: str) -> None:
        self._blocks = utf8_blocks(stream, source=source)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._source = source
        self._line = 1
        self._rest = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, all of them if it is negative; none at the end."""
        parts, num_bytes = [self._rest], len(self._rest)
        while size < 0 or num_bytes < size:
            block = self._next_block()
            if block is None:
                break
            parts.append(block)
            num_bytes += len(block)
        data = b"".join(parts)
        cut = len(data) if size < 0 else size
        self._rest = data[cut:]
        return data[:cut]

    def _next_block(self) -> bytes | None:
        block = next(self._blocks, None)
        try:
            text = self._decoder.decode(block or b"", final=block is None)
        except UnicodeDecodeError as error:
            line = self._line + error.object.count(b"\n", 0, error.start)
            raise _not_text(self._source, line, "utf-8", error.object[error.start : error.start + 1]) from None
        if (nul := text.find("\0")) >= 0:
            raise _has_nul(self._source, self._line + text.count("\n", 0, nul))
        self._line += text.count("\n")
        return None if block is None else text.encode("utf-8")


def iterate_lines(name: str) -> Iterator[str]:
    """Yield the lines of a local or remote file, which may be gzipped; memory holds about a megabyte.

    Raises:
        DataError: If the file is missing, unreadable or not text.
    """
    with reading_errors(name), open_bytes(name) as stream:
        text, rest = Utf8Stream(stream, source=name), b""
        while data := text.read(_BLOCK_BYTES):
            complete, end, rest = (rest + data).rpartition(b"\n")
            if end:
                yield from (line.removesuffix("\r") for line in complete.decode("utf-8").split("\n"))
        if rest:
            yield rest.decode("utf-8").removesuffix("\r")


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield items in lists of `size`; the last may be shorter."""
    block: list[Any] = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block


def read_lines(file: Path | str | None) -> list[str]:
    r"""Return the lines of a file, which may be gzipped, or of standard input, split on "\n" only.

    Raises:
        DataError: If the file is missing, unreadable or not text.
    """
    name = "standard input" if file is None else str(file)
    lines = decode(sys.stdin.buffer.read() if file is None else read_bytes(name), source=name).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{name}: must hold one sentence a line; it is empty")
    return [line.rstrip("\r") for line in lines]


def read_counts(file: Path) -> dict[str, int]:
    """Return word counts from lines of a word and a number.

    Raises:
        DataError: With the line that is not such a pair.
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(read_lines(file), start=1):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdigit():
            raise DataError(f"{file}:{number}: must be a word and a whole number; given '{line[:40]}'")
        counts[word] = counts.get(word, 0) + int(count)
    return counts
