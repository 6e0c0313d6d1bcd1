"""An object store over HTTP that can be told to fail, to be slow, or to cut uploads off."""

from __future__ import annotations

import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import make_server

Answer = Iterable[bytes]


@dataclass
class Weather:
    """How an object store fares.

    Attributes:
        refused: Share of requests that are answered with 503, and change nothing.
        cut: Uploads of files yet to come whose connection ends in the middle; nothing of them is kept.
        slow_s: What every request takes longer.
        chance: Decides which requests are refused.
        num_asked: Requests so far; of those that were struck, `num_struck`.
    """

    refused: float = 0.0
    cut: int = 0
    slow_s: float = 0.0
    chance: random.Random = field(default_factory=random.Random)
    num_asked: int = 0
    num_struck: int = 0


class _Quiet(MotoRequestHandler):
    def log(self, *_: Any) -> None:
        """Say nothing."""


class Store:
    """moto's S3 behind weather of one's own.

    Attributes:
        url: Where it listens, on this machine alone.
        weather: What the requests from now on meet.
    """

    def __init__(self) -> None:
        self.weather = Weather()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Forget every object, and have fair weather."""
        self.weather = Weather()
        urllib.request.urlopen(f"{self.url}/moto-api/reset", data=b"").close()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        weather = self.weather
        weather.num_asked += 1
        if weather.slow_s:
            weather.num_struck += 1
            time.sleep(weather.slow_s)
        if weather.refused and weather.chance.random() < weather.refused:
            weather.num_struck += 1
            start_response(
                "503 Slow Down", [("Content-Type", "application/xml"), ("Connection", "close")]
            )
            return [
                b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            ]
        if (
            weather.cut
            and environ["REQUEST_METHOD"] == "PUT"
            and int(environ.get("CONTENT_LENGTH") or 0) > 0
        ):
            weather.cut -= 1
            weather.num_struck += 1
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]) // 2)
            raise ConnectionAbortedError("cut off")
        return self._app(environ, start_response)


@contextmanager
def object_store() -> Iterator[Store]:
    """Run a store inside the block."""
    store = Store()
    try:
        yield store
    finally:
        store.close()
