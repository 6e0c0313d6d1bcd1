"""The answers of `raysent serve`, an ASGI application of Starlette for one model.

POST /v1/embeddings       {"input": text or texts, "dimensions": N, "encoding_format": "float" or "base64"}
POST /v1/predict[/TASK]   {"input": texts, or pairs of texts, "task": of several, "coverage" or "precision": 0.8}
POST /v1/search           {"input": text or texts, "k": 10, "by": "vectors", "words" or "fused", "weight": 0.4}
GET  /v1/models[/ID]      the model's name, and what it can do: its tasks, their classes, the size of its vectors
GET  /health /metrics     the state; metrics of Prometheus
GET  / /docs /openapi.json    a page to try it, and the interface, for people and as OpenAPI

Errors have OpenAI's form: 400 a wrong request, 401 a wrong token, 403 a web page of others, 404 an unknown address,
model or task, 413 too large a body, 415 no JSON, 429 a full queue, 503 no result in time.

Everything that a client sends is checked here, before the model's queue (`batching`) has it: sizes, kinds, the number
of columns, every argument. A message shows a few characters and a few names of what was sent. Large bodies are read,
and long answers are written, by two processes beside this one (`server_json_process`), so that others are served
meanwhile.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
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

from raysent import __version__
from raysent.data.same_text import is_blank
from raysent.ensembles.ensemble import predictor_of
from raysent.errors import ConfigError, RaysentError
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows
from raysent.serving.batching import Batcher, QueueFullError, Rows
from raysent.serving.config import ServerConfig
from raysent.serving.server_answer import error_answer, list_answer, numbers_answer
from raysent.serving.server_json import PLAIN
from raysent.serving.server_json_process import JsonProcess, JsonProcessError
from raysent.serving.server_request import (
    TOO_LARGE,
    BodyReader,
    RowLimits,
    SearchArguments,
    read_form,
    read_predictor,
    read_rows,
    read_search,
    read_size,
    read_texts,
    read_threshold,
)

if TYPE_CHECKING:
    from raysent.passages.index import SearchIndex


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
# Upper bounds of the buckets of the histogram of durations, in seconds.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Characters of a text for each token that the model reads, and at least.
_CHARACTERS = 64
_LEAST_CHARACTERS = 8192
_TOKENS = 512
# Characters of a request's texts above which a thread of its own looks for blank ones.
_MOST_CHARACTERS_HERE = 64 << 10
# The kind of requests for vectors in the queue; a task's name is that of predictions.
_VECTORS = None


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
        # Another object than the one above, so that its requests are counted by themselves.
        Route("/v1/predict/{task:path}", partial(service.predict), methods=["POST"]),
    ]
    server = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                _Guard, service=service, paths={route.endpoint: route.path for route in routes}
            )
        ],
        exception_handlers={
            HTTPException: _refused,
            ClientDisconnect: _gone,
            JsonProcessError: _not_in_time,
            RaysentError: _failed_with_reason,
            Exception: _failed,
        },
    )
    server.router.redirect_slashes = False
    return server


async def _file(name: str, _: Request) -> Response:
    return FileResponse(_FOLDER / name, headers=_PAGE_HEADERS)


# Handlers of errors are coroutines: Starlette runs others in threads, which takes a millisecond each.
async def _gone(_: Request, error: Exception) -> Response:
    del error
    return Response(status_code=400)


async def _not_in_time(_: Request, error: Exception) -> Response:
    del error
    return error_answer(503, "the JSON was not read or written in time; try again later")


async def _failed_with_reason(_: Request, error: Exception) -> Response:
    return error_answer(500, str(error))


async def _failed(_: Request, error: Exception) -> Response:
    del error
    return error_answer(500, "the server failed; its own output says why")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = f"{request.url.path:.100}"
    headers = error.headers or {}
    own_messages = {
        "Not Found": f"{path}: no such address; /docs lists all",
        "Method Not Allowed": f"{path}: must be asked by {headers.get('Allow')}; given {request.method}",
    }
    return error_answer(error.status_code, own_messages.get(error.detail, error.detail), headers)


class _Guard:
    """Refuses requests that may not be asked before anything reads or counts them; counts the others by route."""

    def __init__(self, app: ASGIApp, *, service: _Service, paths: Mapping[Any, str]) -> None:
        self._app = app
        self._service = service
        self._config = service.config
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(Headers(scope=scope), str(scope["path"]))
        if refused is not None:
            await refused(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500

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
        token = self._config.token
        host = headers.get("host", "")
        origin = headers.get("origin")
        if token is not None:
            kind, _, sent_token = headers.get("authorization", "").partition(" ")
            is_right = (
                hmac.compare_digest(sent_token.strip().encode("latin-1"), token.encode())
                and kind.lower() == "bearer"
            )
            if path not in _OPEN and not is_right:
                return error_answer(401, "Authorization: must be 'Bearer' and the server's token")
        elif _host_name(host) not in self._config.hosts:
            host_names = ", ".join(self._config.hosts)
            return error_answer(
                403,
                f"Host: must be one of {host_names} for a server without a token; given '{host:.100}'",
            )
        elif origin is not None and origin.partition("://")[2] != host:
            return error_answer(
                403, f"Origin: must be this server's own page; given '{origin:.100}'"
            )
        length = headers.get("content-length", "")
        limit = self._config.max_body_bytes
        is_too_large = length.isdigit() and int(length[:20]) > limit
        if is_too_large:
            return error_answer(413, TOO_LARGE.format(limit))
        return None


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
        self._encoder = encoder
        self._predictor = predictor_of(encoder)
        self._name = name
        self.config = config
        self._created = int(time.time())
        tokens = encoder.max_seq_length or _TOKENS
        max_characters = config.max_characters or max(_LEAST_CHARACTERS, _CHARACTERS * tokens)
        self._limits = RowLimits(config.max_texts, max_characters)
        self._bodies = BodyReader(
            JsonProcess(timeout_s=config.timeout_s),
            max_bytes=config.max_body_bytes,
            max_texts=config.max_texts,
        )
        self._writer = JsonProcess(timeout_s=config.timeout_s)
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="checks")
        self._turn = asyncio.Lock()  # of long lists of hits that are written
        self._normalizes = config.normalize and encoder.similarity_measure != "hamming"
        self.batcher = Batcher(
            self._compute,
            max_batch=config.max_batch,
            max_waiting=config.max_waiting,
            wait_s=config.wait_s,
            batch_s=config.batch_s,
        )
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        registry: dict[str, Any] = {"registry": self._registry}
        self.num_requests = Counter(
            "raysent_requests", "Requests by route and status.", ["path", "status"], **registry
        )
        self.seconds = Histogram(
            "raysent_request_seconds", "Their durations.", buckets=_BUCKETS, **registry
        )
        self._num_texts = Counter("raysent_texts", "Texts that the model has read.", **registry)
        self._num_batches = Counter("raysent_batches", "Batches that it has read.", **registry)
        waiting = Gauge("raysent_texts_waiting", "Texts that wait or are being read.", **registry)
        waiting.set_function(lambda: self.batcher.num_waiting)

    async def health(self, _: Request) -> Response:
        """The state."""
        waiting = self.batcher.num_waiting
        needs_token = self.config.token is not None
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
        name = request.path_params["id"]
        if name != self._name:
            raise HTTPException(404, f"{name:.100}: no such model; this server has {self._name}")
        return JSONResponse(self._about())

    async def embeddings(self, request: Request) -> Response:
        """Vectors of texts."""
        if self._encoder.cannot_encode:
            raise HTTPException(400, self._encoder.cannot_encode)
        values = await self._bodies.read(request)
        rows = read_texts(values, self._limits)
        form = read_form(values)
        size = read_size(values, self._encoder)
        computed = await self._run(request, _VECTORS, rows)
        vectors = computed[:, :-1][:, :size]
        num_tokens = int(computed[:, -1].sum())
        if size is not None and self._normalizes:
            vectors = normalize_rows(vectors)
        fields = {
            "object": "list",
            "model": self._name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            **await self._blank_rows(rows),
        }
        return await numbers_answer(fields, "data", vectors, form=form, process=self._writer)

    async def search(self, request: Request) -> Response:
        """The best passages of an index for each query."""
        if self._index is None:
            raise HTTPException(
                404, "search: needs an index; serve a folder that 'raysent index' wrote"
            )
        values = await self._bodies.read(request)
        rows = read_texts(values, self._limits)
        arguments = read_search(values, rows, self._index)
        results = await self._run(request, arguments, rows)
        by = arguments.by or self._index.by
        rows_of_hits = ([asdict(hit) for hit in hits] for hits in results)
        return await list_answer({"by": by}, "results", rows_of_hits, turn=self._turn)

    async def predict(self, request: Request) -> Response:
        """Classes and probabilities of texts, or of pairs of texts; of rated pairs their scores."""
        values = await self._bodies.read(request)
        task = request.path_params.get("task") or values.get("task")
        predictor = read_predictor(self._predictor, task)
        threshold = read_threshold(predictor, values)
        rows = read_rows(values, predictor, self._limits)
        logs = await self._run(request, predictor.task, rows)
        fields = {
            "task": predictor.task,
            "classes": list(predictor.label_values),
            "labels": predictor.answers(logs, threshold),
            **await self._blank_rows(rows),
        }
        return await numbers_answer(
            fields, "probabilities", np.exp(logs), form=PLAIN, process=self._writer
        )

    def _compute(self, kind: str | SearchArguments | None, rows: Rows) -> Any:
        columns = [list(column) for column in zip(*rows, strict=True)]
        self._num_texts.inc(len(rows))
        self._num_batches.inc()
        if kind is _VECTORS:
            vectors = self._encoder.encode(columns[0], normalize_embeddings=self._normalizes)
            num_tokens = self._encoder.num_tokens(columns[0])
            return np.column_stack([vectors, num_tokens.astype(np.float32)])
        if isinstance(kind, SearchArguments) and self._index is not None:
            results = np.empty(len(rows), dtype=object)
            for row, hits in enumerate(self._index.search(columns[0], **asdict(kind))):
                results[row] = hits
            return results
        assert isinstance(kind, str)
        return self._predictor[kind].log_probabilities(columns)

    async def _run(self, request: Request, kind: str | SearchArguments | None, rows: Rows) -> Any:
        """Return the results of rows; the work ends with the time that it may take, or when the client is gone."""
        work = asyncio.ensure_future(self.batcher.run(kind, rows))
        gone = asyncio.ensure_future(_until_gone(request))
        try:
            timeout_s = self.config.timeout_s
            await asyncio.wait((work, gone), timeout=timeout_s, return_when="FIRST_COMPLETED")
            if work.done():
                return work.result()
            if gone.done():
                raise ClientDisconnect
            raise HTTPException(503, f"no result after {timeout_s:g} s; try again later")
        except QueueFullError:
            raise HTTPException(429, "the queue is full; try again in a second") from None
        except ConfigError as error:
            raise HTTPException(400, str(error)) from None
        finally:
            work.cancel()
            gone.cancel()

    async def _blank_rows(self, rows: Rows) -> dict[str, list[int]]:
        """Return the field that marks rows in which there is nothing to read; nothing where there are none."""
        if sum(len(text) for row in rows for text in row) <= _MOST_CHARACTERS_HERE:
            blank = _blank_indices(rows)
        else:
            loop = asyncio.get_running_loop()
            blank = await loop.run_in_executor(self._checks, _blank_indices, rows)
        if not blank:
            return {}
        return {"blank": blank}

    def _about(self) -> dict[str, Any]:
        predictor = self._predictor
        encodes = not self._encoder.cannot_encode
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": f"raysent {__version__}",
            "capabilities": {
                "embeddings": encodes,
                "predict": bool(predictor),
                "search": self._index is not None,
            },
            "vectors_of": self._encoder.vectors_of,
            "dimensions": self._encoder.get_sentence_embedding_dimension() if encodes else None,
            "max_characters": self._limits.max_characters,
            "tasks": list(predictor),
            "classes": {
                task: None if of_task.is_scored else list(of_task.label_values)
                for task, of_task in predictor.items()
            },
        }


def _blank_indices(rows: Rows) -> list[int]:
    return [index for index, row in enumerate(rows) if all(map(is_blank, row))]


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
