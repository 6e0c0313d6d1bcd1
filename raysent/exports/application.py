"""The answers of `raysent serve`, an ASGI application of Starlette for one model.

POST /v1/embeddings       {"input": text or texts, "dimensions": N, "encoding_format": "float" or "base64"}
POST /v1/predict[/TASK]   {"input": texts, or pairs of texts, "task": of several, "coverage" or "precision": 0.8}
POST /v1/search           {"input": text or texts, "k": 10, "by": "vectors", "words" or "fused", "weight": 0.4}
GET  /v1/models[/ID]      the model's name, and the tasks that it predicts
GET  /health /metrics     the state; metrics of Prometheus
GET  / /docs /openapi.json    a page to try it, and the interface, for people and as OpenAPI

Errors have OpenAI's form: 400 a wrong request, 401 a wrong token, 403 a web page of others, 404 an unknown address,
model or task, 413 too large a body, 415 no JSON, 429 a full queue, 503 no result in time.

uvicorn itself waits for a request as long as its client likes, and takes any number of connections; `Connection` bounds
both.

One queue stands before the model: rows of many requests are computed together, and long requests take turns. Of the
requests that wait, the oldest computes its rows and those of others, up to a size, after a moment for more if the batch
before was of several. Only one does at a time, in one thread, so a model needs no lock. A long request waits in parts,
each behind what came before it, so it does not hold up others. A request that does not fit into the queue is refused at
once.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
import numpy as np
import numpy.typing as npt
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from raysent import __version__
from raysent.ensembles.predictor import Predictor, find_predictor
from raysent.errors import ConfigError, RaysentError
from raysent.exports.search import SearchIndex
from raysent.exports.server import ServerConfig
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows
from raysent.reading import parse_json

_FOLDER = Path(__file__).parent
_FILES = {
    "/": "server_page.html",
    "/docs": "server_docs.html",
    "/openapi.json": "server_openapi.json",
}
# Addresses without secrets, which need no token: a browser sends none.
_OPEN = (*_FILES, "/health")
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data:; frame-ancestors 'none'"
}
_ERROR_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_TOO_LARGE = "the body must have at most {:,} bytes; send fewer texts at a time"
_ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
# Upper bounds of the buckets of the histogram of durations, in seconds.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Characters of a text for each token that the model reads, and at least.
_CHARACTERS, _LEAST_CHARACTERS, _TOKENS = 64, 8192, 512
# The kind of requests for vectors in the queue; other kinds are tasks and numbers of columns.
_VECTORS = None
# Passages of one request for each query, at most.
_MOST_HITS = 1000
# Each so many characters of a row count as one more row.
_ROW_CHARACTERS = 256

Rows = Sequence[Sequence[str]]
Results = npt.NDArray[Any]


@dataclass(frozen=True)
class _Search:
    """The kind of requests for passages."""

    k: int
    by: str | None
    weight: float | None


def application(
    encoder: SentenceEncoder, *, name: str, config: ServerConfig, index: SearchIndex | None = None
) -> Starlette:
    """Return the server of a model.

    Args:
        encoder: The model.
        name: Its name in answers.
        config: Limits.
        index: Passages that the model encoded, which are searched.
    """
    service = _Service(encoder, name=name, config=config, index=index)
    routes = [
        *(Route(path, partial(_file, name)) for path, name in _FILES.items()),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
        Route("/v1/models", service.models),
        Route("/v1/models/{id:path}", service.model),
        Route("/v1/embeddings", service.embeddings, methods=["POST"]),
        Route("/v1/search", service.search, methods=["POST"]),
        Route("/v1/predict", service.predict, methods=["POST"]),
        Route(
            "/v1/predict/{task:path}", partial(service.predict), methods=["POST"]
        ),  # counted by itself
    ]
    made = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                _Guard, service=service, paths={route.endpoint: route.path for route in routes}
            )
        ],
        exception_handlers={
            HTTPException: _refused,
            ClientDisconnect: lambda *_: Response(status_code=400),  # the client is gone
            RaysentError: lambda _, error: _error(500, str(error)),
            Exception: lambda *_: _error(500, "the server failed; its own output says why"),
        },
    )
    made.router.redirect_slashes = False
    return made


async def _file(name: str, _: Request) -> Response:
    return FileResponse(_FOLDER / name, headers=_PAGE_HEADERS)


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    kind, text = (
        _ERROR_TYPES.get(status, "invalid_request_error"),
        message.encode(errors="backslashreplace").decode(),
    )
    body = {"error": {"message": text, "type": kind, "param": None, "code": status}}
    return JSONResponse(body, status, headers={**(headers or {}), **_ERROR_HEADERS.get(status, {})})


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, headers = f"{request.url.path:.100}", error.headers or {}
    own = {
        "Not Found": f"{path}: no such address; /docs lists all",
        "Method Not Allowed": f"{path}: must be asked by {headers.get('Allow')}; given {request.method}",
    }
    return _error(error.status_code, own.get(error.detail, error.detail), headers)


class Connection(H11Protocol):
    """Closes itself if there are too many, or if a request, its head and its body, has not arrived in time."""

    def __init__(self, *args: Any, limits: ServerConfig, **options: Any) -> None:
        """Prepare; uvicorn calls this."""
        super().__init__(*args, **options)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take a connection; the first request has to follow."""
        super().connection_made(transport)
        # An answer is sent in parts, of which the second would wait 40 ms for the client's word that it has the first.
        # asyncio sees to that only where a socket names its protocol, which `socket.create_server` does not.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = self.loop.call_later(self._limits.read_s, transport.abort)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read data; the first bytes of a request begin its time, the last ones end it."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.read_s, self.transport.abort)
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._end_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time."""
        self._end_time()
        super().connection_lost(exc)

    def _end_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Guard:
    """Refuses requests that may not be asked before anything reads or counts them; counts the others by route."""

    def __init__(self, app: ASGIApp, *, service: _Service, paths: Mapping[Any, str]) -> None:
        self._app, self._service, self._config, self._paths = app, service, service.config, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(Headers(scope=scope), str(scope["path"]))
        if refused is not None:
            await refused(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            path = self._paths.get(scope.get("endpoint"), "other")
            self._service.num_requests.labels(path, status).inc()
            self._service.seconds.observe(time.perf_counter() - start)

    def _refusal(self, headers: Headers, path: str) -> Response | None:
        token, host, origin = self._config.token, headers.get("host", ""), headers.get("origin")
        if token is not None:
            kind, _, given = headers.get("authorization", "").partition(" ")
            is_right = (
                hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
                and kind.lower() == "bearer"
            )
            if path not in _OPEN and not is_right:
                return _error(401, "Authorization: must be 'Bearer' and the server's token")
        elif _host_name(host) not in self._config.hosts:
            known = ", ".join(self._config.hosts)
            return _error(
                403,
                f"Host: must be one of {known} for a server without a token; given '{host:.100}'",
            )
        elif origin is not None and origin.partition("://")[2] != host:
            return _error(403, f"Origin: must be this server's own page; given '{origin:.100}'")
        length, limit = headers.get("content-length", ""), self._config.max_body_bytes
        is_too_large = length.isdigit() and int(length[:20]) > limit
        return _error(413, _TOO_LARGE.format(limit)) if is_too_large else None


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class _Service:
    """What one model answers, within limits, from its queue; requests are counted by route and status."""

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        name: str,
        config: ServerConfig,
        index: SearchIndex | None = None,
    ) -> None:
        self._index = index
        self._encoder, self._name, self.config, self._created = (
            encoder,
            name,
            config,
            int(time.time()),
        )
        tokens = encoder.max_seq_length or _TOKENS
        self._max_characters = config.max_characters or max(_LEAST_CHARACTERS, _CHARACTERS * tokens)
        self._normalizes = config.normalize and encoder.similarity_measure != "hamming"
        self.batcher = Batcher(
            self._compute,
            max_batch=config.max_batch,
            max_waiting=config.max_waiting,
            wait_s=config.wait_s,
        )
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        known: dict[str, Any] = {"registry": self._registry}
        self.num_requests = Counter(
            "raysent_requests", "Requests by route and status.", ["path", "status"], **known
        )
        self.seconds = Histogram(
            "raysent_request_seconds", "Their durations.", buckets=_BUCKETS, **known
        )
        self._num_texts = Counter("raysent_texts", "Texts that the model has read.", **known)
        self._num_batches = Counter("raysent_batches", "Batches that it has read.", **known)
        waiting = Gauge("raysent_texts_waiting", "Texts that wait or are being read.", **known)
        waiting.set_function(lambda: self.batcher.num_waiting)

    async def health(self, _: Request) -> Response:
        """The state."""
        waiting, needs_token = self.batcher.num_waiting, self.config.token is not None
        return JSONResponse(
            {"status": "ok", "model": self._name, "waiting": waiting, "needs_token": needs_token}
        )

    async def metrics(self, _: Request) -> Response:
        """Metrics of Prometheus."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def models(self, _: Request) -> Response:
        """The list of one model."""
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def model(self, request: Request) -> Response:
        """The model of a name."""
        given = request.path_params["id"]
        if given != self._name:
            raise HTTPException(404, f"{given:.100}: no such model; this server has {self._name}")
        return JSONResponse(self._about())

    async def embeddings(self, request: Request) -> Response:
        """Vectors of texts."""
        if self._encoder.cannot_encode:
            raise HTTPException(400, self._encoder.cannot_encode)
        values = await self._values(request)
        rows, form = self._rows(values), values.get("encoding_format") or "float"
        if any(len(row) > 1 for row in rows):
            raise HTTPException(400, "input: must be a string or a list of strings")
        if form not in ("float", "base64"):
            raise HTTPException(
                400, f"encoding_format: must be float or base64; given {form!r:.60}"
            )
        size = self._dimensions(values.get("dimensions"))
        vectors = (await self._run(_VECTORS, rows))[:, :size]
        if size is not None and self._normalizes:
            vectors = normalize_rows(vectors)
        is_text = form == "base64"
        found = (
            [base64.b64encode(row.astype("<f4")).decode() for row in vectors]
            if is_text
            else vectors.tolist()
        )
        num_words = sum(len(text.split()) for (text,) in rows)
        return JSONResponse(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": row}
                    for index, row in enumerate(found)
                ],
                "model": self._name,
                "usage": {"prompt_tokens": num_words, "total_tokens": num_words},
            }
        )

    async def search(self, request: Request) -> Response:
        """The best passages of an index for each query."""
        if self._index is None:
            raise HTTPException(
                404, "search: needs an index; serve a folder that 'raysent index' wrote"
            )
        values = await self._values(request)
        rows, k, by, weight = (
            self._rows(values),
            values.get("k", 10),
            values.get("by"),
            values.get("weight"),
        )
        if any(len(row) > 1 or not row[0].strip() for row in rows):
            raise HTTPException(
                400, "input: must be a string or a list of strings, none of which is empty"
            )
        if type(k) is not int or not 1 <= k <= _MOST_HITS:
            raise HTTPException(
                400, f"k: must be a whole number from 1 to {_MOST_HITS:,}; given {k!r:.60}"
            )
        if type(weight) not in (type(None), int, float):
            raise HTTPException(400, f"weight: must be from 0 to 1; given {weight!r:.60}")
        found = await self._run(_Search(k, by, weight), rows)
        return JSONResponse({"results": [[asdict(hit) for hit in hits] for hits in found]})

    async def predict(self, request: Request) -> Response:
        """Classes and probabilities of texts, or of pairs of texts; of rated pairs their scores."""
        values = await self._values(request)
        task = request.path_params.get("task") or values.get("task")
        try:
            predictor = find_predictor(self._encoder, task)
        except ConfigError as error:
            raise HTTPException(404, str(error)) from None
        threshold, rows = _threshold(predictor, values), self._rows(values)
        if len({len(row) for row in rows}) > 1:
            raise HTTPException(400, "input: must be texts, or pairs of texts, of one kind")
        found = await self._run((predictor.task, len(rows[0])), rows)
        return JSONResponse(
            {
                "task": predictor.task,
                "classes": list(predictor.label_values),
                "labels": predictor.answers(found, threshold),
                "probabilities": np.exp(found).tolist(),
            }
        )

    def _compute(self, kind: tuple[str, int] | _Search | None, rows: Rows) -> Any:
        columns = [list(column) for column in zip(*rows, strict=True)]
        self._num_texts.inc(len(rows))
        self._num_batches.inc()
        if kind is _VECTORS:
            return self._encoder.encode(columns[0], normalize_embeddings=self._normalizes)
        if isinstance(kind, _Search) and self._index is not None:
            found = np.empty(len(rows), dtype=object)
            for place, hits in enumerate(self._index.search(columns[0], **asdict(kind))):
                found[place] = hits
            return found
        assert isinstance(kind, tuple)
        return self._encoder.predictors[kind[0]].log_probabilities(columns)

    async def _run(self, kind: tuple[str, int] | _Search | None, rows: Rows) -> Any:
        try:
            return await asyncio.wait_for(self.batcher.run(kind, rows), self.config.timeout_s)
        except TimeoutError:
            raise HTTPException(
                503, f"no result after {self.config.timeout_s:g} s; try again later"
            ) from None
        except QueueFullError:
            raise HTTPException(429, "the queue is full; try again in a second") from None
        except ConfigError as error:
            raise HTTPException(400, str(error)) from None

    async def _values(self, request: Request) -> Mapping[str, Any]:
        """Return the JSON object of a request; read no more than the limit."""
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, f"Content-Type: must be application/json; given '{kind:.100}'")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.config.max_body_bytes:
                raise HTTPException(413, _TOO_LARGE.format(self.config.max_body_bytes))
        try:
            values = parse_json(bytes(body), keep_surrogates=True)  # `encode` reads any text
        except ValueError as error:
            raise HTTPException(400, f"the body must be JSON: {error}") from None
        if not isinstance(values, dict):
            raise HTTPException(400, "the body must be a JSON object")
        return values

    def _rows(self, values: Mapping[str, Any]) -> list[tuple[str, ...]]:
        given, limit = values.get("input"), self.config.max_texts
        rows = [given] if isinstance(given, str) else given
        if not isinstance(rows, list) or not 1 <= len(rows) <= limit:
            number = f"; given {len(rows):,}" if isinstance(rows, list) else ""
            raise HTTPException(
                400, f"input: must be a string or a list of 1 to {limit:,} strings{number}"
            )
        columns = [tuple(row) if isinstance(row, list) and row else (row,) for row in rows]
        for index, row in enumerate(columns):
            if not all(isinstance(text, str) for text in row):
                hint = "ids of tokens are not read: with LangChain set check_embedding_ctx_length=False"
                raise HTTPException(400, f"input[{index}]: must be text; {hint}")
            length, limit = max(map(len, row)), self._max_characters
            if length > limit:
                raise HTTPException(
                    400,
                    f"input[{index}]: must have at most {limit:,} characters; given {length:,}; send parts of it",
                )
        return columns

    def _dimensions(self, given: Any) -> int | None:
        sizes = self._encoder.cut_sizes
        if given is None or (type(given) is int and given in sizes):
            return None if given == sizes[-1] else given
        known = f"{sizes[-1]}: this model's vectors must not be cut"
        if len(sizes) > 1:
            is_any = isinstance(sizes, range)
            known = (
                f"a whole number from 1 to {sizes[-1]}"
                if is_any
                else f"one of {', '.join(map(str, sizes))}"
            )
        raise HTTPException(400, f"dimensions: must be {known}; given {given!r:.60}")

    def _about(self) -> dict[str, Any]:
        about = {"id": self._name, "object": "model", "created": self._created}
        return {**about, "owned_by": f"raysent {__version__}", "tasks": self._encoder.tasks}


def _threshold(predictor: Predictor, values: Mapping[str, Any]) -> float:
    """Return the threshold that a request asks for by a coverage or a precision; 0 without one."""
    asked = {
        name: values[name] for name in ("coverage", "precision") if values.get(name) is not None
    }
    wrong = next(
        (name for name, value in asked.items() if not isinstance(value, int | float)), None
    )
    if wrong is not None:
        raise HTTPException(400, f"{wrong}: must be a number; given {asked[wrong]!r:.60}")
    try:
        return predictor.promise(**asked).level.threshold if asked else 0.0
    except ConfigError as error:
        raise HTTPException(400, str(error)) from None


class QueueFullError(Exception):
    """As many rows wait as may wait."""


@dataclass(eq=False)
class _Part:
    """Rows of one request, and where their results go."""

    kind: Hashable
    rows: Rows
    size: int
    result: asyncio.Future[Results] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Computes the rows of concurrent requests in batches.

    Attributes:
        num_waiting: Rows that wait or are being computed.
    """

    def __init__(
        self,
        compute: Callable[[Any, Rows], Results],
        *,
        max_batch: int,
        max_waiting: int,
        wait_s: float,
    ) -> None:
        """Prepare.

        Args:
            compute: Kind and rows -> one result for each row [rows, …]; never called twice at once.
            max_batch: Rows computed together.
            max_waiting: Rows that may wait.
            wait_s: Seconds to wait for more rows after the first, where the batch before was of several requests.
        """
        self._compute, self._max_batch, self._max_waiting, self._wait_s = (
            compute,
            max_batch,
            max_waiting,
            wait_s,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._queue: deque[_Part] = deque()
        self._turn = (
            asyncio.Lock()
        )  # those that wait get it in their order, which is that of the queue
        self._is_shared = False  # whether the batch before was of several requests
        self.num_waiting = 0

    async def run(self, kind: Hashable, rows: Rows) -> Results:
        """Return the results of rows [rows, …]; those of one kind are computed together.

        Raises:
            QueueFullError: If they do not fit into the queue.
        """
        if self.num_waiting and self.num_waiting + len(rows) > self._max_waiting:
            raise QueueFullError
        self.num_waiting += len(rows)
        try:
            return np.concatenate([await self._result(part) for part in self._parts(kind, rows)])
        finally:
            self.num_waiting -= len(rows)

    def _parts(self, kind: Hashable, rows: Rows) -> Iterator[_Part]:
        sizes = [1 + sum(map(len, row)) // _ROW_CHARACTERS for row in rows]
        numbers = (np.cumsum(sizes) - 1) // self._max_batch
        for _, found in groupby(zip(numbers, sizes, rows, strict=True), key=lambda one: one[0]):
            part = list(found)
            yield _Part(kind, [row for *_, row in part], sum(size for _, size, _ in part))

    async def _result(self, part: _Part) -> Results:
        self._queue.append(part)
        try:
            async with self._turn:
                if (
                    part in self._queue
                ):  # it is the oldest, and no batch whose first request is gone has it
                    if sum(one.size for one in self._queue) < self._max_batch:
                        # A client that is alone waits for no other.
                        await asyncio.sleep(self._wait_s if self._is_shared else 0)
                    # A request that is cancelled meanwhile does not end the work of the others.
                    await asyncio.shield(self._finish(self._take()))
            return await part.result
        finally:
            part.result.cancel()

    def _take(self) -> list[_Part]:
        """Return the next parts of one kind; those that have no caller any more are dropped."""
        batch: list[_Part] = []
        size = 0
        while self._queue:
            part = self._queue[0]
            if batch and (part.kind != batch[0].kind or size + part.size > self._max_batch):
                break
            self._queue.popleft()
            if not part.result.done():
                batch.append(part)
                size += part.size
        self._is_shared = len(batch) > 1
        return batch

    async def _finish(self, batch: list[_Part]) -> None:
        """Compute a batch; if that fails, compute its parts alone, so that no request harms another."""
        rows, loop = [row for part in batch for row in part.rows], asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._compute, batch[0].kind, rows)
        except Exception as error:  # its request gets it
            if len(batch) == 1 and not batch[0].result.done():
                batch[0].result.set_exception(error)
            for part in batch if len(batch) > 1 else ():
                await self._finish([part])
            return
        for part in batch:
            if not part.result.done():
                part.result.set_result(found[: len(part.rows)])
            found = found[len(part.rows) :]
