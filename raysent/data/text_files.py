"""Files of text -> bytes in UTF-8, text, or lines; on disk or in ``s3://``, gzipped or not.

Text is UTF-8, with or without a BOM, or UTF-16 or UTF-32 with a BOM; lines may end in CRLF. Every error is one
line that names the file.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from raysent.data.unicode_form import OF_NEW, in_form
from raysent.errors import DataError
from raysent.platforms import expanded
from raysent.reading import parse_json
from raysent.storage import is_remote, s3_errors

# That of UTF-32 begins with that of UTF-16.
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
_BLOCK_BYTES = 1 << 20

Item = TypeVar("Item")


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
        raise DataError(
            f"{where}: must be a JSON object; given {type(value).__name__}; write one object a line"
        )
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
            raw = cast(
                IO[bytes], stack.enter_context(smart_open.open(name, "rb", compression="disable"))
            )
        else:
            if "\0" in name:
                raise DataError(f"{name}: must be the name of a file; given a NUL character in it")
            path = expanded(name)
            # Opening a pipe would wait for its writer.
            if path.exists() and not path.is_file() and not path.is_dir():
                raise DataError(f"{name}: must be a file; it is a pipe or a device")
            raw = stack.enter_context(path.open("rb"))
        if name.endswith(".gz"):
            raw = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
        yield raw


def text_blocks(stream: IO[bytes], *, source: str) -> Iterator[str]:
    """Yield a file's text in blocks of about a megabyte.

    Args:
        stream: The file.
        source: Its name, for messages.

    Raises:
        DataError: If it is neither UTF-8 nor UTF-16 or UTF-32 with a BOM, or holds NUL characters.
    """
    block = stream.read(_BLOCK_BYTES)
    line = 1
    is_read = False
    encoding = next((name for bom, name in _BOMS.items() if block.startswith(bom)), "utf-8")
    decoder = codecs.getincrementaldecoder(encoding)()
    while not is_read:
        is_read = not block
        try:
            text = decoder.decode(block, final=is_read)
        except UnicodeDecodeError as error:
            error_line = line + _num_line_ends(error.object[: error.start].decode("latin-1"))
            byte = f"byte 0x{error.object[error.start]:02x}"
            required = encoding.removesuffix("-sig").upper()
            raise DataError(
                f"{source}:{error_line}: must be {required}; given {byte}; convert it with iconv"
            ) from None
        nul_position = text.find("\0")
        if nul_position >= 0:
            error_line = line + _num_line_ends(text[:nul_position])
            raise DataError(
                f"{source}:{error_line}: must be plain text; given a NUL byte: is this a binary file, or UTF-16 "
                "without a BOM? Convert it with iconv"
            )
        line += _num_line_ends(text)
        if text:
            yield text
        block = stream.read(_BLOCK_BYTES)


def _num_line_ends(text: str) -> int:
    """Return the number of line ends; a carriage return is one where no line feed is."""
    return text.count("\n") or text.count("\r")


def iterate_lines(name: str | None) -> Iterator[str]:
    """Yield the lines of a local or remote file, which may be gzipped, or of standard input; memory holds a megabyte.

    Raises:
        DataError: If the file is missing, unreadable or not text.
    """
    if name is None:
        yield from _split_lines(sys.stdin.buffer, "standard input")
        return
    with reading_errors(name), open_bytes(name) as stream:
        yield from _split_lines(stream, name)


def _split_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    for complete in complete_lines(text_blocks(stream, source=name)):
        yield from lines_of(complete)


def complete_lines(texts: Iterable[str], *, splits_lines: bool = False) -> Iterator[str]:
    """Yield texts, one after the other, cut after their last line feed; what follows it begins the next one.

    A line that is longer than a text is joined once, when it has ended.

    Args:
        texts: The texts.
        splits_lines: Whether a text without a line feed is cut after its last blank.
    """
    unfinished: list[str] = []
    for text in texts:
        cut = text.rfind("\n") + 1
        if not cut and splits_lines:
            cut = text.rfind(" ") + 1
        if cut:
            yield "".join([*unfinished, text[:cut]])
            unfinished = [text[cut:]]
            continue
        # Only what follows a line feed can have a blank here.
        blank = 0
        if splits_lines and unfinished:
            blank = unfinished[0].rfind(" ") + 1
        if blank:
            yield unfinished[0][:blank]
            unfinished[0] = unfinished[0][blank:]
        unfinished.append(text)
    last_text = "".join(unfinished)
    if last_text:
        yield last_text


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without their ends, which a line feed alone makes."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    yield from iter(lambda: list(islice(iterator, size)), [])


def grouped(
    items: Iterable[Item], size: Callable[[Item], int], *, at_least: int
) -> Iterator[list[Item]]:
    """Yield items in lists whose sizes add up to at least a number, except those of the last."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= at_least:
            yield group
            group = []
            total = 0
    if group:
        yield group


def read_lines(file: Path | str | None) -> list[str]:
    r"""Return the lines of a file, which may be gzipped, or of standard input, split on "\n" only.

    Raises:
        DataError: If the file is missing, unreadable or not text.
    """
    lines = list(iterate_lines(None if file is None else str(file)))
    if not lines:
        raise DataError(f"{file or 'standard input'}: must hold one sentence a line; it is empty")
    return lines


def read_counts(file: Path) -> dict[str, int]:
    """Return word counts from lines of a word and a number; words are read as new vocabularies read them.

    Raises:
        DataError: With the line that is not such a pair.
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(read_lines(file), start=1):
        written, _, count = line.rpartition(" ")
        word = in_form(written, OF_NEW)
        if not word or not count.isdecimal():
            raise DataError(
                f"{file}:{number}: must be a word and a whole number; given '{line[:40]}'"
            )
        counts[word] = counts.get(word, 0) + int(count)
    return counts
