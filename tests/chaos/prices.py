"""Spot prices over HTTP, as EC2 tells them, from a source that can go down."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# How a source is down: it refuses, ends the connection, keeps silent, answers what is no price, or lists nothing.
WAYS = ("refused", "cut", "silent", "nonsense", "empty")
_SILENT_S = 1.0
_ENTRY = """<item><instanceType>{type}</instanceType><productDescription>Linux/UNIX</productDescription>
<spotPrice>{usd}</spotPrice><timestamp>2026-01-01T00:00:00.000Z</timestamp>
<availabilityZone>us-east-1a</availabilityZone></item>"""
ANSWER = """<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
<requestId>none</requestId><spotPriceHistorySet>{entries}</spotPriceHistorySet><nextToken/>
</DescribeSpotPriceHistoryResponse>"""


class PriceSource:
    """Tells one spot price, until it is down.

    Attributes:
        url: Where it listens, on this machine alone.
        failed_s: When it was first asked in vain, on the monotonic clock; None where that has not happened.
    """

    def __init__(self, instance_type: str, *, usd_per_hour: float) -> None:
        self.failed_s: float | None = None
        self.say(ANSWER.format(entries=_ENTRY.format(type=instance_type, usd=usd_per_hour)))
        self._chance: random.Random | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Answer this from now on."""
        self._text = text

    def go_down(self, chance: random.Random) -> None:
        """Tell no price any more; `chance` says in which way with every question."""
        self._chance = chance

    def answer(self) -> tuple[int, str] | None:
        """Return status and text of a question; None for a connection that ends."""
        if self._chance is None:
            return 200, self._text
        self.failed_s = self.failed_s or time.monotonic()
        way = self._chance.choice(WAYS)
        if way == "silent":
            time.sleep(_SILENT_S)
        answers = {
            "refused": (503, ""),
            "nonsense": (200, "<html>"),
            "empty": (200, ANSWER.format(entries="")),
        }
        return answers.get(way)

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(source: PriceSource) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = source.answer()
            if answer is None:
                return
            status, text = answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def price_source(instance_type: str, *, usd_per_hour: float) -> Iterator[PriceSource]:
    """Run a source inside the block."""
    source = PriceSource(instance_type, usd_per_hour=usd_per_hour)
    try:
        yield source
    finally:
        source.close()
