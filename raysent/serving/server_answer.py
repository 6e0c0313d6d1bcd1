"""Answers of the server as JSON: errors in OpenAI's form, and long lists in pieces between which others are served."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.responses import JSONResponse, Response

from raysent.serving.server_json import EMBEDDINGS, EMBEDDINGS_BASE64, PLAIN, as_json, write_rows
from raysent.serving.server_json_process import JsonProcess

_ERROR_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
# Characters of a message at most: what it is about may come from a client.
_MAX_MESSAGE = 1000
# Seconds of writing after which others are served.
_PIECE_S = 0.0005
# Numbers of an answer above which the process beside the server writes it: below, that takes about a millisecond.
_MOST_NUMBERS_HERE = {PLAIN: 2048, EMBEDDINGS: 2048, EMBEDDINGS_BASE64: 65_536}
# Numbers that are written before those of another answer.
_NUMBERS_A_TURN = 16_384


def error_answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in OpenAI's form."""
    if len(message) <= _MAX_MESSAGE:
        text = message
    else:
        text = f"{message[:_MAX_MESSAGE]}…"
    error = {
        "message": text.encode(errors="backslashreplace").decode(),
        "type": _ERROR_TYPES.get(status, "invalid_request_error"),
        "param": None,
        "code": status,
    }
    more_headers = _ERROR_HEADERS.get(status, {})
    return JSONResponse({"error": error}, status, headers={**(headers or {}), **more_headers})


async def numbers_answer(
    fields: Mapping[str, Any],
    name: str,
    rows: npt.NDArray[np.floating[Any]],
    *,
    form: str,
    process: JsonProcess,
) -> Response:
    """Return a JSON object of fields and of a list of rows of numbers.

    Args:
        fields: At least one field of the object.
        name: The list's name.
        rows: The numbers [rows, columns].
        form: How each row is written: a form of `server_json`.
        process: What writes long answers.

    Raises:
        ValueError: If a number is not finite.
    """
    is_double = rows.dtype == np.float64 and form != EMBEDDINGS_BASE64
    number_type = np.float64 if is_double else np.float32
    width = rows.shape[1]
    num_rows = max(1, _NUMBERS_A_TURN // width)
    parts: list[bytes] = []
    for first in range(0, len(rows), num_rows):
        numbers = rows[first : first + num_rows].astype(number_type)
        if form == EMBEDDINGS_BASE64:
            numbers = numbers.astype("<f4")  # the interface has little-endian numbers
        content = numbers.tobytes()
        arguments: dict[str, Any] = {
            "width": width,
            "type_code": "d" if is_double else "f",
            "form": form,
            "first": first,
        }
        if rows.size > _MOST_NUMBERS_HERE[form]:
            part = await process.do("write", content, **arguments)
        else:
            part = write_rows(content, **arguments)
        parts.append(part)
    return _object(fields, name, parts)


async def list_answer(
    fields: Mapping[str, Any], name: str, rows: Iterable[Any], *, turn: asyncio.Lock
) -> Response:
    """Return a JSON object of fields, and of a list that is written piece by piece.

    Args:
        fields: At least one field of the object.
        name: The list's name.
        rows: Its values, made one at a time.
        turn: What answers share that need several pieces: of all of them one piece is written at a time.
    """
    values = iter(rows)
    pieces = _next_piece(values)
    is_whole = not pieces
    while not is_whole:
        await asyncio.sleep(0)
        async with turn:
            piece = _next_piece(values)
        pieces += piece
        is_whole = not piece
    return _object(fields, name, [piece.encode() for piece in pieces])


def _object(fields: Mapping[str, Any], name: str, parts: Sequence[bytes]) -> Response:
    start = f"{as_json(fields)[:-1]},{as_json(name)}:[".encode()
    # Joined once: copies of long answers take milliseconds.
    separated = [*itertools.chain.from_iterable((b",", part) for part in parts)][1:]
    return Response(b"".join([start, *separated, b"]}"]), media_type="application/json")


def _next_piece(rows: Iterator[Any]) -> list[str]:
    """Return the JSON of the next rows, as many as are written in a moment; of none at the end."""
    piece = []
    started = time.perf_counter()
    for row in rows:
        piece.append(as_json(row))
        if time.perf_counter() - started > _PIECE_S:
            break
    return piece
