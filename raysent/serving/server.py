"""`serve`: a model over HTTP, with the interface of OpenAI's embeddings, by uvicorn; `application` has the answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import raysent
from raysent.ensembles.ensemble import load_predicting, predictor_of
from raysent.errors import ConfigError
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.models.vector_folder import VectorFolder
from raysent.platforms import trim_heap
from raysent.serving.config import LOOPBACK, ServerConfig

if TYPE_CHECKING:
    from starlette.applications import Starlette

# Modules of the extra `serve`.
_NEEDED = ("starlette", "uvicorn", "prometheus_client")
# Longer than clients and proxies keep a connection that they may use again, most of them 5 to 60 s.
_KEEP_ALIVE_S = 75
# Seconds that a thread computes at most while another one waits.
_SWITCH_S = 0.0002
# Seconds between two times at which free memory is given back to the system.
_TRIM_EACH_S = 20.0


def make_application(model: str | Path | SentenceEncoder, config: ServerConfig) -> Starlette:
    """Load a model and return its server as an ASGI application, ready for the first request.

    Raises:
        ArtifactError: If there is no such model.
        ConfigError: If a library is not installed, or the model neither encodes nor predicts.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve: needs {', '.join(missing)}; install raysent[serve]")
    index = None
    if isinstance(model, str | Path) and (
        config.model or VectorFolder(model).find_format() is not None
    ):
        index = raysent.SearchIndex(model, model=config.model)
        index.prepare()
        encoder = index.encoder
    elif isinstance(model, str | Path):
        encoder = load_predicting(model)
    else:
        encoder = model
    predictors = list(predictor_of(encoder).values())  # a record that is missing is said now
    if not encoder.cannot_encode:
        encoder.encode(["A sentence that prepares what the first request would wait for."])
    elif not predictors:
        raise ConfigError(encoder.cannot_encode)
    if encoder.source:
        name = Path(encoder.source).name
    else:
        name = type(encoder).__name__
    from raysent.serving.application import application  # noqa: PLC0415 - the extra `serve`

    return application(encoder, name=name, config=config, index=index)


def serve(
    model: str | Path | SentenceEncoder,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    config: ServerConfig | None = None,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve a model until a signal stops it, also in a notebook's cell; requests in flight are answered first.

    Where an event loop runs, `make_application` is the server for that loop.

    Args:
        model: A model or an ensemble, or its name; a sweep's folder stands for its best model. Or a folder that `index`
            wrote, whose model is served, and whose passages are searched.
        host: Address to listen on; any but loopback needs a token.
        port: Port to listen on.
        config: Limits.
        on_ready: Called when the model has been loaded and the port is open.

    Raises:
        ConfigError: If a library is not installed, the address is open without a token or cannot be listened on, or the
            model neither encodes nor predicts.
        ArtifactError: If there is no such model.
    """
    config = config or ServerConfig()
    if host not in LOOPBACK and not config.token:
        raise ConfigError(
            f"host {host}: needs a token where others can reach it; set RAYSENT_SERVE_TOKEN"
        )
    server = make_server(make_application(model, config), config)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=server.config.backlog)
    except OSError as error:
        raise ConfigError(
            f"port {port}: cannot be listened on: {error.strerror}; name another port"
        ) from None
    with listening, _short_turns_of_threads(), _frozen_objects(), _memory_given_back():
        on_ready()
        _run(server, listening)


@contextlib.contextmanager
def _short_turns_of_threads() -> Iterator[None]:
    """Let the thread that answers clients interrupt that of the model more often, which a client feels."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@contextlib.contextmanager
def _frozen_objects() -> Iterator[None]:
    """Keep what has been loaded out of the collection of garbage, which holds up all clients while it looks there."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _memory_given_back() -> Iterator[None]:
    """Give what large requests took back to the system, again and again, where the C library can (glibc)."""
    if not trim_heap():
        yield
        return
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(_TRIM_EACH_S):
            trim_heap()

    thread = threading.Thread(target=work, name="memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _run(server: Any, listening: socket.socket) -> None:
    """Run a server until a signal stops it; in a thread of its own where an event loop runs, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        server.run(sockets=[listening])
        return
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="server")
    thread.start()
    try:
        thread.join()
    finally:  # an interrupt of the cell ends the server
        server.should_exit = True
        thread.join()


def make_server(application: Starlette, config: ServerConfig) -> Any:
    """Return uvicorn's server of an application."""
    from raysent.serving.connection import Connection  # noqa: PLC0415 - the extra `serve`

    uvicorn = import_module("uvicorn")
    settings = uvicorn.Config(
        application,
        http=partial(Connection, limits=config),
        ws="none",
        lifespan="off",  # it would end with a traceback at Ctrl-C
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(config.shutdown_s),
    )
    return uvicorn.Server(settings)
