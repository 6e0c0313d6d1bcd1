"""Answers of the server as JSON: errors in OpenAI's form, and long lists in pieces between which others are served."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

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
_PIECE_S = 0.002


def error_answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in OpenAI's form."""
    text = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…"
    error = {
        "message": text.encode(errors="backslashreplace").decode(),
        "type": _ERROR_TYPES.get(status, "invalid_request_error"),
        "param": None,
        "code": status,
    }
    more_headers = _ERROR_HEADERS.get(status, {})
    return JSONResponse({"error": error}, status, headers={**(headers or {}), **more_headers})


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
    start = f"{_as_json(fields)[:-1]},{_as_json(name)}:["
    return Response(f"{start}{','.join(pieces)}]}}", media_type="application/json")


def _next_piece(rows: Iterator[Any]) -> list[str]:
    """Return the JSON of the next rows, as many as are written in a moment; of none at the end."""
    piece = []
    started = time.perf_counter()
    for row in rows:
        piece.append(_as_json(row))
        if time.perf_counter() - started > _PIECE_S:
            break
    return piece


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
