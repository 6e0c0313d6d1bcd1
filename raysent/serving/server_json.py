"""JSON of the server: what large bodies say and what long answers are, in this process or in one beside it.

Functions of one job, bytes -> a value of plain types. A long job holds up every thread of a process, so jobs of many
bytes are done by a process beside the server (`server_json_process`), which runs this file: it reads jobs from its
standard input until that ends, and writes their results to its standard output.

    a job or a result    the lengths of both parts, 4 and 8 bytes; its description by `marshal`; its bytes
"""

from __future__ import annotations

import base64
import contextlib
import json
import marshal
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Literal

from raysent.reading import parse_json

Bytes = bytes | bytearray | memoryview

# Forms of rows of numbers in an answer.
PLAIN = "plain"
EMBEDDINGS = "float"
EMBEDDINGS_BASE64 = "base64"
_LENGTHS = struct.Struct("<IQ")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
# How far the process beside the server lets others go first.
_NICENESS = 5


def as_json(value: Any) -> str:
    """Return a value as JSON without blanks."""
    return _ENCODER.encode(value)


def read_body(body: Bytes, *, max_values: int) -> Any:
    """Return the value of a JSON text, as `parse_json` does.

    Raises:
        ValueError: As `parse_json`.
    """
    # `encode` reads any text.
    return parse_json(bytes(body), keep_surrogates=True, max_values=max_values)


def write_rows(
    numbers: Bytes, *, width: int, type_code: Literal["f", "d"], form: str, first: int
) -> bytes:
    """Return rows of numbers as the values of a JSON list, without its brackets.

    Args:
        numbers: The numbers, row by row; for `EMBEDDINGS_BASE64` little-endian.
        width: Numbers of a row.
        type_code: Their type, `f` or `d`.
        form: `PLAIN` for lists, `EMBEDDINGS` and `EMBEDDINGS_BASE64` for objects of OpenAI's interface.
        first: Index of the first row.

    Raises:
        ValueError: If a number is not finite.
    """
    values = memoryview(numbers).cast("B").cast(type_code)
    rows = [values[start : start + width] for start in range(0, len(values), width)]
    if form == PLAIN:
        return as_json([row.tolist() for row in rows])[1:-1].encode()
    objects = [
        {
            "object": "embedding",
            "index": index,
            "embedding": row.tolist() if form == EMBEDDINGS else base64.b64encode(row).decode(),
        }
        for index, row in enumerate(rows, first)
    ]
    return as_json(objects)[1:-1].encode()


JOBS: dict[str, Callable[..., Any]] = {"read": read_body, "write": write_rows}


def send(stream: BinaryIO, description: Any, content: Bytes = b"") -> None:
    """Write a job or a result."""
    packed = marshal.dumps(description)
    stream.write(_LENGTHS.pack(len(packed), len(content)))
    stream.write(packed)
    stream.write(content)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[Any, bytes]:
    """Read a job or a result.

    Raises:
        EOFError: If there is none any more.
    """
    num_packed, num_content = _LENGTHS.unpack(_read(stream, _LENGTHS.size))
    packed = _read(stream, num_packed)
    return marshal.loads(packed), _read(stream, num_content)


def _read(stream: BinaryIO, number: int) -> bytes:
    content = stream.read(number)
    if len(content) < number:
        raise EOFError
    return content


def _work(jobs: BinaryIO, results: BinaryIO) -> None:
    while True:
        (name, arguments), content = receive(jobs)
        try:
            made = JOBS[name](content, **arguments)
        except ValueError as error:
            send(results, (str(error), None))
            continue
        if isinstance(made, bytes):
            send(results, None, made)
        else:
            send(results, (None, made))


def main() -> None:
    """Do jobs until there are no more."""
    # What interrupts the server does not end this process, which the last requests need.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError, OSError):  # not on every system
        os.nice(_NICENESS)
    with contextlib.suppress(EOFError, BrokenPipeError):
        _work(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
