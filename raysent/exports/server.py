"""A server of vectors with the interface of OpenAI's embeddings, as an ASGI application, and `serve`, which runs it.

POST /v1/embeddings     {"input": text or texts, "dimensions": N, "encoding_format": "float" or "base64"}
POST /v1/predict/TASK   {"input": texts, or pairs of texts}: classes and probabilities by an ensemble made on the task
GET  /v1/models         the model's name, and the tasks of an ensemble
GET  /health /metrics / the state, Prometheus metrics, a page to try it

Errors have OpenAI's form: 400 a wrong request, 401 a wrong token, 404 an unknown address or task, 413 too large a body,
429 a full queue, 503 no result in time. Vectors are those of `encode`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from raysent import __version__
from raysent.ensembles import Ensemble
from raysent.errors import ConfigError, RaysentError
from raysent.exports.batcher import Batcher, QueueFullError
from raysent.models import load
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.reading import parse_json

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PAGE = Path(__file__).parent / "server_page.html"
_JSON, _TEXT, _HTML = "application/json", "text/plain; version=0.0.4; charset=utf-8", "text/html; charset=utf-8"
# Upper bounds of the buckets of the histogram of durations, in seconds.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class ServerConfig:
    """Limits of a server.

    Attributes:
        token: What clients must send as `Authorization: Bearer TOKEN`; None for no token.
        normalize: Whether vectors get unit length.
        max_batch: Texts encoded together.
        max_waiting: Texts that may wait; a request that does not fit gets status 429.
        max_texts: Texts of one request.
        max_body_bytes: Size of a request.
        wait_s: Seconds to wait for more texts before a batch is encoded.
        timeout_s: Seconds after which a request gets status 503.
        shutdown_s: Seconds that requests have to end after a signal to stop.
    """

    token: str | None = None
    normalize: bool = False
    max_batch: int = 512
    max_waiting: int = 4096
    max_texts: int = 2048
    max_body_bytes: int = 4 << 20
    wait_s: float = 0.002
    timeout_s: float = 30.0
    shutdown_s: float = 30.0


class RequestError(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _DisconnectedError(Exception):
    """The client has closed the connection."""


class Metrics:
    """Counters of requests, in the text format of Prometheus."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._process = psutil.Process()

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        self._requests[path, status] += 1
        self._seconds += seconds
        for bound in _BUCKETS:
            self._buckets[bound] += seconds <= bound

    def text(self, batcher: Batcher) -> str:
        """Return all metrics."""
        total = sum(self._requests.values())
        lines = ["# TYPE raysent_requests_total counter"]
        lines += [
            f'raysent_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self._requests.items())
        ]
        lines.append("# TYPE raysent_request_seconds histogram")
        lines += [f'raysent_request_seconds_bucket{{le="{bound}"}} {self._buckets[bound]}' for bound in _BUCKETS]
        lines += [
            f'raysent_request_seconds_bucket{{le="+Inf"}} {total}',
            f"raysent_request_seconds_sum {self._seconds:.6f}",
            f"raysent_request_seconds_count {total}",
        ]
        values = {
            ("raysent_texts_total", "counter"): batcher.num_texts,
            ("raysent_batches_total", "counter"): batcher.num_batches,
            ("raysent_texts_waiting", "gauge"): batcher.num_waiting,
            ("process_resident_memory_bytes", "gauge"): self._process.memory_info().rss,
        }
        for (name, kind), value in values.items():
            lines += [f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"


class Application:
    """The server of one model, an ASGI application."""

    def __init__(self, encoder: SentenceEncoder, *, name: str, config: ServerConfig) -> None:
        """Prepare a server.

        Args:
            encoder: The model.
            name: Its name in answers.
            config: Limits.
        """
        self._encoder, self._name, self._config = encoder, name, config
        self.metrics = Metrics()
        self.batcher = Batcher(
            self._encode, max_batch=config.max_batch, max_waiting=config.max_waiting, wait_s=config.wait_s
        )
        self._gets: dict[str, Callable[[], tuple[str, bytes]]] = {
            "/": lambda: (_HTML, _PAGE.read_bytes()),
            "/health": lambda: (_JSON, _json(self._health())),
            "/metrics": lambda: (_TEXT, self.metrics.text(self.batcher).encode()),
            "/v1/models": lambda: (_JSON, _json({"object": "list", "data": [self._model()]})),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop with the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.batcher.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.batcher.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, path = time.perf_counter(), str(scope["path"])
        shown, status, headers = path, 200, []
        try:
            kind, body = await self._respond(scope, path, receive)
        except RequestError as error:
            status, kind = error.status, _JSON
            shown = "other" if status == 404 else path
            body = _json({"error": {"message": str(error), "type": _error_type(status), "param": None, "code": status}})
            if status == 429:
                headers.append((b"retry-after", b"1"))
            if status == 413:
                headers.append((b"connection", b"close"))
        except _DisconnectedError:
            return
        headers += [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.metrics.count(shown, status, time.perf_counter() - start)

    async def _respond(self, scope: Scope, path: str, receive: Receive) -> tuple[str, bytes]:
        """Return the content type and body of an answer."""
        if path not in ("/", "/health"):
            self._check_token(scope)
        if path in self._gets:
            if scope["method"] not in ("GET", "HEAD"):
                raise RequestError(405, f"{path}: must be asked by GET; given {scope['method']}")
            return self._gets[path]()
        prefix, _, task = path.rpartition("/")
        if path != "/v1/embeddings" and prefix != "/v1/predict":
            raise RequestError(404, f"{path}: no such address; POST /v1/embeddings")
        if scope["method"] != "POST":
            raise RequestError(405, f"{path}: must be asked by POST; given {scope['method']}")
        values = await self._values(scope, receive)
        answer = self._predict(task, values) if prefix == "/v1/predict" else self._embed(values)
        try:
            return _JSON, _json(await asyncio.wait_for(answer, self._config.timeout_s))
        except TimeoutError:
            raise RequestError(503, f"no result after {self._config.timeout_s:g} s; try again later") from None
        except QueueFullError:
            raise RequestError(429, "the queue is full; try again in a second") from None

    def _check_token(self, scope: Scope) -> None:
        if self._config.token is None:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._config.token}".encode()):
            raise RequestError(401, "Authorization: must be 'Bearer' and the server's token")

    async def _values(self, scope: Scope, receive: Receive) -> Mapping[str, Any]:
        """Return the JSON object of a request; read no more than the limit."""
        limit, body = self._config.max_body_bytes, b""
        given = dict(scope["headers"]).get(b"content-length", b"0")
        is_too_large = given.isdigit() and int(given) > limit
        while not is_too_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectedError
            body += message.get("body", b"")
            is_too_large = len(body) > limit
            if not message.get("more_body"):
                break
        if is_too_large:
            raise RequestError(413, f"the body must have at most {limit:,} bytes; send fewer texts at a time")
        try:
            values = parse_json(bytes(body), keep_surrogates=True)  # `encode` reads any text
        except ValueError as error:
            raise RequestError(400, f"the body must be JSON: {error}") from None
        if not isinstance(values, dict):
            raise RequestError(400, "the body must be a JSON object")
        return values

    async def _embed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if self._encoder.cannot_encode:
            raise RequestError(400, self._encoder.cannot_encode)
        texts = self._texts(values)
        dim, form = self._encoder.get_sentence_embedding_dimension(), values.get("encoding_format") or "float"
        size = values.get("dimensions")
        if form not in ("float", "base64"):
            raise RequestError(400, f"encoding_format: must be float or base64; given {form!r}")
        if size is not None and not (isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= dim):
            raise RequestError(400, f"dimensions: must be a whole number from 1 to {dim}; given {size!r}")
        vectors = (await self.batcher.encode(texts))[:, :size]
        if self._config.normalize and size is not None:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        rows = [_base64(vector) for vector in vectors] if form == "base64" else vectors.tolist()
        num_words = sum(len(text.split()) for text in texts)
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
            "model": self._name,
            "usage": {"prompt_tokens": num_words, "total_tokens": num_words},
        }

    def _texts(self, values: Mapping[str, Any]) -> list[str]:
        given = values.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestError(400, "input: must be a string or a list of strings, at least one; ids are not supported")
        if len(texts) > self._config.max_texts:
            raise RequestError(400, f"input: must be at most {self._config.max_texts:,} texts; given {len(texts):,}")
        return texts

    async def _predict(self, task: str, values: Mapping[str, Any]) -> dict[str, Any]:
        ensemble = self._encoder
        if not isinstance(ensemble, Ensemble):
            raise RequestError(404, f"{task}: only an ensemble predicts a task's classes; this is a single model")
        rows = values.get("input")
        if not isinstance(rows, list) or not rows or len(rows) > self._config.max_texts:
            raise RequestError(
                400, f"input: must be a list of 1 to {self._config.max_texts:,} texts, or pairs of texts"
            )
        pairs = [row if isinstance(row, list) else [row] for row in rows]
        columns = [list(column) for column in zip(*pairs, strict=False)]
        if len({len(pair) for pair in pairs}) > 1 or not all(isinstance(text, str) for pair in pairs for text in pair):
            raise RequestError(400, "input: must be texts, or pairs of texts, of one kind")
        try:
            names = ensemble.label_names(task)
        except ConfigError as error:
            raise RequestError(404, str(error)) from None
        try:
            found = await self.batcher.run(lambda: ensemble.predict_proba(task, *columns))
        except RaysentError as error:
            raise RequestError(400, str(error)) from None
        labels = [names[best] for best in found.argmax(axis=1)]
        return {"task": task, "classes": list(names), "labels": labels, "probabilities": found.tolist()}

    def _encode(self, texts: list[str]) -> Float32:
        vectors: Float32 = self._encoder.encode(texts, normalize_embeddings=self._config.normalize)
        return vectors

    def _model(self) -> dict[str, Any]:
        tasks = self._encoder.tasks if isinstance(self._encoder, Ensemble) else []
        return {"id": self._name, "object": "model", "owned_by": f"raysent {__version__}", "tasks": tasks}

    def _health(self) -> dict[str, Any]:
        waiting, needs_token = self.batcher.num_waiting, self._config.token is not None
        return {"status": "ok", "model": self._name, "waiting": waiting, "needs_token": needs_token}


def _json(values: Any) -> bytes:
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode()


def _base64(vector: Float32) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _error_type(status: int) -> str:
    return {401: "authentication_error", 429: "rate_limit_error", 503: "server_error"}.get(
        status, "invalid_request_error"
    )


def make_application(model: str | Path | SentenceEncoder, config: ServerConfig) -> Application:
    """Load a model and return its server, ready for the first request.

    Raises:
        ArtifactError: If there is no such model.
        ConfigError: If it neither encodes nor predicts.
    """
    encoder = load(model) if isinstance(model, str | Path) else model
    name = Path(str(model)).name if isinstance(model, str | Path) else type(model).__name__
    if not encoder.cannot_encode:
        encoder.encode(["A sentence that prepares what the first request would wait for."])
    elif not isinstance(encoder, Ensemble):
        raise ConfigError(encoder.cannot_encode)
    return Application(encoder, name=name, config=config)


def check_host(host: str, config: ServerConfig) -> None:
    """Refuse an address that others can reach if there is no token.

    Raises:
        ConfigError: In that case.
    """
    if host not in _LOOPBACK and not config.token:
        raise ConfigError(f"--host {host}: needs a token where others can reach it; set RAYSENT_SERVE_TOKEN")


def serve(
    model: str | Path | SentenceEncoder,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    config: ServerConfig | None = None,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve a model until a signal stops it; requests in flight are answered first.

    Args:
        model: A model or an ensemble, or its name.
        host: Address to listen on; any but loopback needs a token.
        port: Port to listen on.
        config: Limits.
        on_ready: Called when the model has been loaded.

    Raises:
        ConfigError: If uvicorn is not installed, the address is open without a token, or the model neither encodes nor
            predicts.
        ArtifactError: If there is no such model.
    """
    chosen = config or ServerConfig()
    check_host(host, chosen)
    if find_spec("uvicorn") is None:
        raise ConfigError("serve: needs uvicorn; install raysent[serve]")
    application = make_application(model, chosen)
    on_ready()
    uvicorn = import_module("uvicorn")
    uvicorn.run(
        application,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=int(chosen.shutdown_s),
    )
