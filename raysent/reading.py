"""Read files that others may have written or damaged: bytes, text, JSON and JSON lines, within limits.

Every reader of raysent comes here, so that a pipe, a device, a huge file, deep nesting, an integer of a million digits
or half a character is one line and never a hang or a traceback. Limits are far above what raysent writes.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, NoReturn

from raysent.errors import ArtifactError, RaysentError

MAX_BYTES = 1 << 30
MAX_DEPTH = 100
# More than any float has; larger integers fail where they are converted to one.
MAX_DIGITS = 300

# What `git clone` writes in place of a large file where Git LFS is not installed, and how errors say so.
LFS_POINTER = "version https://git-lfs.github.com/spec/"
LFS_REASON = "a pointer of Git LFS, not the file; get the file by 'git lfs pull'"
# A string, also one without an end, or what stands between values. Nothing of it is tried twice.
_PARTS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,:]', re.DOTALL)
# What escapes of surrogates begin with.
_SURROGATES = ("\\ud", "\\uD")


def read_bytes(
    path: Path,
    *,
    name: str = "",
    max_bytes: int = MAX_BYTES,
    error: type[RaysentError] = ArtifactError,
) -> bytes:
    """Return a file's content.

    Args:
        path: The file. A pipe or a device is refused instead of waited for.
        name: Its name in messages; by default the path.
        max_bytes: The largest size that is read.
        error: Class of the errors.

    Raises:
        RaysentError: If it is missing, no regular file, too large, or cannot be read.
    """
    name = name or str(path)
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        file = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with os.fdopen(file, "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise error(f"{name}: must be a file; it is a folder, a pipe or a device")
            if found.st_size > max_bytes:
                raise error(f"{name}: must be at most {max_bytes:,} bytes; is this another file?")
            return stream.read(max_bytes + 1)[:max_bytes]
    except FileNotFoundError:
        raise error(f"{name}: no such file") from None
    except IsADirectoryError:
        raise error(f"{name}: must be a file; it is a folder, a pipe or a device") from None
    except OSError as failure:
        raise error(
            f"{name}: cannot be read: {failure.strerror}; check the file and its permissions"
        ) from None
    except ValueError as failure:  # a NUL in the path
        raise error(f"{name!r}: cannot be read: {failure}") from None


def read_text(
    path: Path,
    *,
    name: str = "",
    max_bytes: int = MAX_BYTES,
    error: type[RaysentError] = ArtifactError,
) -> str:
    """Return a UTF-8 file's text, without a byte order mark.

    Args:
        path: The file.
        name: Its name in messages; by default the path.
        max_bytes: The largest size that is read.
        error: Class of the errors.

    Raises:
        RaysentError: As `read_bytes`, or if the file is not UTF-8.
    """
    data = read_bytes(path, name=name, max_bytes=max_bytes, error=error)
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as failure:
        raise error(
            f"{name or path}: must be text in UTF-8; byte {failure.start} is not; is this another file?"
        ) from None


def parse_json(
    text: str | bytes, *, keep_surrogates: bool = False, max_values: int | None = None
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text; bytes must be UTF-8.
        keep_surrogates: Whether text of the value may have half of a surrogate pair, which cannot be written as UTF-8.
        max_values: Values, brackets, commas and colons that it may have, which take far longer to read than long text.

    Raises:
        ValueError: With one line that says why: not JSON, nested deeper than `MAX_DEPTH`, an integer of more than
            `MAX_DIGITS` digits, a number that is not finite, or half a surrogate pair. The caller adds file and fix.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    if max_values is not None:
        _check_num_values(text, max_values)
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from None
    if _has_many_brackets(text) and is_deeper(value, MAX_DEPTH):
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if not keep_surrogates and "\\" in text and any(start in text for start in _SURROGATES):
        _refuse_surrogates(value)
    return value


def read_json(path: Path, *, name: str = "", fix: str = "restore it or run again") -> Any:
    """Return the value of a JSON file.

    Args:
        path: The file.
        name: Its name in messages; by default the path.
        fix: What to do if it is damaged, for the message.

    Raises:
        ArtifactError: As `read_text`, or with the reason of `parse_json`.
    """
    text = read_text(path, name=name)
    try:
        return parse_json(text)
    except ValueError as error:
        if text.startswith(LFS_POINTER):
            raise ArtifactError(f"{name or path}: {LFS_REASON}") from None
        raise ArtifactError(f"{name or path}: truncated or not JSON ({error}); {fix}") from None


def is_deeper(value: Any, depth: int) -> bool:
    """Return whether lists and mappings are nested deeper than `depth`."""
    level: list[Any] = [value]
    for _ in range(depth):
        lists = [
            one if isinstance(one, list) else one.values()
            for one in level
            if isinstance(one, (list, dict))
        ]
        level = [inner for one in lists for inner in one]
    return any(isinstance(one, (list, dict)) for one in level)


def _check_num_values(text: str, most: int) -> None:
    """Raise ValueError for a text of more parts, without reading it further than these."""
    for number, _ in enumerate(_PARTS.finditer(text), 1):
        if number > most:
            raise ValueError(f"it has more than {most:,} values, brackets, commas and colons")


def _has_many_brackets(text: str) -> bool:
    """Return whether a text has as many opening brackets as a value deeper than `MAX_DEPTH`."""
    num = 0
    for bracket in "[{":
        at = text.find(bracket)
        while at >= 0 and num <= MAX_DEPTH:  # much faster than `count` where a text has few
            num, at = num + 1, text.find(bracket, at + 1)
    return num > MAX_DEPTH


def _checked_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits; at most {MAX_DIGITS} are read")
    return int(digits)


def _checked_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


# The checks of numbers cost text nothing, and one decoder is faster than one for each line of a corpus.
_DECODER = json.JSONDecoder(
    parse_int=_checked_int, parse_float=_checked_float, parse_constant=_refuse_constant
)


def _refuse_surrogates(value: Any) -> None:
    """Raise ValueError for text with half of a surrogate pair, which cannot be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair, {error.object[error.start]!r}") from None
