"""What clients of the server sent, checked: the body, its rows of text and its arguments.

Everything is checked before the model's queue has it, the cheap checks first, and nothing is done that takes longer for
a wrong request than for a right one. A message shows the first characters of what was sent and never all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from raysent.ensembles.predictor import Predictor
from raysent.ensembles.task_predictor import TaskPredictor
from raysent.errors import ConfigError
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.serving.server_json import read_body
from raysent.serving.server_json_process import JsonProcess

if TYPE_CHECKING:
    from raysent.passages.index import SearchIndex

TOO_LARGE = "the body must have at most {:,} bytes; send fewer texts at a time"
# JSON values of a body: for each text, and for the arguments.
_VALUES_OF_TEXT = 8
_MORE_VALUES = 1000
# Passages of one query at most, and of all queries of a request.
_MOST_HITS = 1000
_MOST_HITS_OF_ALL = 100_000
# Characters of what was sent that a message shows, at most.
_SHOWN = 60
# Bytes of a body above which it is read by the process beside the server: below, that takes less than a millisecond.
_MOST_BYTES_HERE = 64 << 10
# Bytes of bodies that are being read, of all connections, for each byte of the largest one.
_BODIES_AT_ONCE = 32
_TOKENS_HINT = "ids of tokens are not read: with LangChain set check_embedding_ctx_length=False"


@dataclass(frozen=True)
class RowLimits:
    """Limits of the texts of one request.

    Attributes:
        max_texts: Rows.
        max_characters: Characters of one text.
    """

    max_texts: int
    max_characters: int


@dataclass(frozen=True)
class SearchArguments:
    """How passages are searched: the arguments of `SearchIndex.search`."""

    k: int
    by: str | None
    weight: float | None


class BodyReader:
    """Reads JSON objects out of the bodies of requests, within a limit for each and one for all together."""

    def __init__(self, process: JsonProcess, *, max_bytes: int, max_texts: int) -> None:
        """Prepare.

        Args:
            process: What reads large bodies.
            max_bytes: Of one body.
            max_texts: Texts of one request.
        """
        self._process = process
        self._max_bytes = max_bytes
        self._max_values = _VALUES_OF_TEXT * max_texts + _MORE_VALUES
        self._num_bytes = 0

    async def read(self, request: Request) -> Mapping[str, Any]:
        """Return the JSON object of a request."""
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, f"Content-Type: must be application/json; given '{kind:.100}'")
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self._num_bytes += len(chunk)
                self._check_sizes(len(body))
            return await self._parsed(body)
        finally:
            self._num_bytes -= len(body)

    def _check_sizes(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise HTTPException(413, TOO_LARGE.format(self._max_bytes))
        if self._num_bytes > _BODIES_AT_ONCE * self._max_bytes:
            raise HTTPException(429, "too many requests are being read; try again in a second")

    async def _parsed(self, body: bytearray) -> Mapping[str, Any]:
        max_values = self._max_values
        try:
            if len(body) <= _MOST_BYTES_HERE:
                values = read_body(body, max_values=max_values)
            else:
                values = await self._process.do("read", body, max_values=max_values)
        except ValueError as error:
            raise HTTPException(400, f"the body must be JSON: {error}") from None
        if not isinstance(values, dict):
            raise HTTPException(400, "the body must be a JSON object")
        return values


def read_texts(values: Mapping[str, Any], limits: RowLimits) -> list[tuple[str]]:
    """Return the texts of a request, each a row of one column."""
    rows = _listed(values, limits)
    for index, row in enumerate(rows):
        if isinstance(row, list) and len(row) != 1 and not _is_tokens(row):
            raise HTTPException(
                400,
                "input: must be a string or a list of strings; "
                f"input[{index}] is a list of {len(row):,}",
            )
    return [(_checked_text(_first(row), index, limits),) for index, row in enumerate(rows)]


def read_rows(
    values: Mapping[str, Any], predictor: TaskPredictor, limits: RowLimits
) -> list[tuple[str, ...]]:
    """Return the rows of a request for predictions: texts, or pairs of texts where the task is of pairs."""
    if predictor.num_columns == 1:
        needed = f"input[{{}}]: must be one text, as {predictor.task:.{_SHOWN}} needs"
    else:
        needed = f"input[{{}}]: must be a list of two texts, as {predictor.task:.{_SHOWN}} needs"
    rows = _listed(values, limits)
    for index, row in enumerate(rows):
        num_columns = 1
        if isinstance(row, list):
            num_columns = len(row)
        if num_columns != predictor.num_columns and not _is_tokens(row):
            raise HTTPException(400, f"{needed.format(index)}; given {num_columns:,}")
    columns = [row if isinstance(row, list) else [row] for row in rows]
    return [
        tuple(_checked_text(text, index, limits) for text in row[: predictor.num_columns])
        for index, row in enumerate(columns)
    ]


def _listed(values: Mapping[str, Any], limits: RowLimits) -> list[Any]:
    texts = values.get("input")
    rows = [texts] if isinstance(texts, str) else texts
    most = limits.max_texts
    if isinstance(rows, list) and 1 <= len(rows) <= most:
        return rows
    number = ""
    if isinstance(rows, list):
        number = f"; given {len(rows):,}"
    raise HTTPException(400, f"input: must be a string or a list of 1 to {most:,} strings{number}")


def _is_tokens(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and isinstance(row[0], int)


def _first(row: Any) -> Any:
    return row[0] if isinstance(row, list) else row


def _checked_text(text: Any, index: int, limits: RowLimits) -> str:
    if not isinstance(text, str):
        raise HTTPException(400, f"input[{index}]: must be text; {_TOKENS_HINT}")
    most = limits.max_characters
    if len(text) > most:
        raise HTTPException(
            400,
            f"input[{index}]: must have at most {most:,} characters; given {len(text):,}; "
            "send parts of it",
        )
    return text


def read_predictor(predictor: Predictor, task: Any) -> TaskPredictor:
    """Return what predicts the task that a request names; None for the only one."""
    try:
        return predictor.find(task)
    except ConfigError as error:
        raise HTTPException(404, str(error)) from None


def read_threshold(predictor: TaskPredictor, values: Mapping[str, Any]) -> float:
    """Return the threshold that a request asks for by a coverage or a precision; 0 without one."""
    names = ("coverage", "precision")
    wanted_levels = {name: values[name] for name in names if values.get(name) is not None}
    if not wanted_levels:
        return 0.0
    try:
        return predictor.promise(**wanted_levels).level.threshold
    except ConfigError as error:
        raise HTTPException(400, str(error)) from None


def read_search(
    values: Mapping[str, Any], rows: Sequence[tuple[str]], index: SearchIndex
) -> SearchArguments:
    """Return how a request wants the passages of an index to be searched for its queries."""
    if any(not text.strip() for (text,) in rows):
        raise HTTPException(
            400, "input: must be a string or a list of strings, none of which is empty"
        )
    k = values.get("k", 10)
    if type(k) is not int or not 1 <= k <= _MOST_HITS:
        raise HTTPException(
            400, f"k: must be a whole number from 1 to {_MOST_HITS:,}; given {shown(k)}"
        )
    if k * len(rows) > _MOST_HITS_OF_ALL:
        raise HTTPException(
            400,
            f"k: must be at most {_MOST_HITS_OF_ALL // len(rows):,} for {len(rows):,} queries; "
            f"given {k:,}; send fewer queries at a time",
        )
    by = values.get("by")
    weight = values.get("weight")
    try:
        index.check_ranking(by=by, weight=weight)
    except ConfigError as error:
        raise HTTPException(400, str(error)) from None
    return SearchArguments(k, by, weight)


def read_size(values: Mapping[str, Any], encoder: SentenceEncoder) -> int | None:
    """Return the numbers to keep of each vector; None for all."""
    size = values.get("dimensions")
    sizes = encoder.cut_sizes
    if size is None or (type(size) is int and size in sizes):
        if size == sizes[-1]:
            return None
        return size
    if len(sizes) == 1:
        allowed = f"{sizes[-1]}: this model's vectors must not be cut"
    elif isinstance(sizes, range):
        allowed = f"a whole number from 1 to {sizes[-1]}"
    else:
        allowed = f"one of {', '.join(map(str, sizes))}"
    raise HTTPException(400, f"dimensions: must be {allowed}; given {shown(size)}")


def read_form(values: Mapping[str, Any]) -> str:
    """Return how vectors are written: `float` or `base64`."""
    form = values.get("encoding_format")
    if form is None:
        return "float"
    if form not in ("float", "base64"):
        raise HTTPException(400, f"encoding_format: must be float or base64; given {shown(form)}")
    return str(form)


def shown(value: Any) -> str:
    """Return the first characters of a value that a client sent, for a message."""
    if isinstance(value, (list, dict)):
        return f"{type(value).__name__} of {len(value):,}"
    if isinstance(value, str) and len(value) > _SHOWN:
        return f"{value[:_SHOWN]!r} and more"
    return f"{value!r:.{_SHOWN}}"
