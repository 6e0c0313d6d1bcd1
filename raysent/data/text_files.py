"""Small text files -> lines: sentences to encode, questions, word counts."""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from raysent.errors import DataError


def read_lines(file: Path | None) -> list[str]:
    r"""Return the lines of a file, which may be gzipped, or of standard input, split on "\n" only.

    Raises:
        DataError: If the file is missing, unreadable or not text.
    """
    name = "standard input" if file is None else str(file)
    with reading_errors(name):
        data = sys.stdin.buffer.read() if file is None else _unpacked(file)
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: must be UTF-8 text; byte {error.start} is not; convert it with iconv") from None
    if lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{name}: must hold one sentence a line; it is empty")
    return [line.rstrip("\r") for line in lines]


@contextlib.contextmanager
def reading_errors(name: str) -> Iterator[None]:
    """Turn errors of reading into one line about the file `name`.

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


def _unpacked(file: Path) -> bytes:
    data = file.read_bytes()
    return gzip.decompress(data) if file.suffix == ".gz" else data


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
