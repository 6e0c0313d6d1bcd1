"""Simulated spot machines: the instance metadata service with interruption notices, and the node agent."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

INSTANCE_ID = "i-0a1b2c"


class Metadata:
    """An instance metadata service, version 2: it requires a token, and answers 404 until a notice is set.

    Attributes:
        url: Its address, on the loopback.
        num_requests: Number of requests for a notice with a valid token.
        is_failing: Whether it answers with an error.
    """

    def __init__(self) -> None:
        self.num_requests, self.is_failing = 0, False
        self.token = "first"
        self._notice: bytes | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def arm(self, seconds: float) -> None:
        """Answer with a notice from now on."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self.say(json.dumps({"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}))

    def say(self, text: str | None) -> None:
        """Answer with this text; None for 404."""
        self._notice = None if text is None else text.encode()

    def answer(self, path: str, token: str | None) -> tuple[int, bytes]:
        """Return status and text for a request."""
        if self.is_failing:
            return 503, b""
        if token != self.token:
            return 401, b""
        if path == "/latest/meta-data/instance-id":
            return 200, INSTANCE_ID.encode()
        if path != "/latest/meta-data/spot/instance-action":
            return 404, b""
        self.num_requests += 1
        return (404, b"") if self._notice is None else (200, self._notice)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(service: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_valid = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            self._send(*((200, service.token.encode()) if is_valid and not service.is_failing else (503, b"")))

        def do_GET(self) -> None:
            self._send(*service.answer(self.path, self.headers["X-aws-ec2-metadata-token"]))

        def _send(self, status: int, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


@contextmanager
def metadata_service() -> Iterator[Metadata]:
    """Run a metadata service inside the block."""
    service = Metadata()
    try:
        yield service
    finally:
        service.close()


@contextmanager
def node_agent(service: Metadata, *, address: str, node_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent of a node inside the block, in its own process."""
    command = [sys.executable, "-m", "raysent.preemption", "--address", address, "--node-id", node_id, "--poll-s", "1"]
    agent = subprocess.Popen(command, env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url})
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()


def free_ports(number: int) -> list[int]:
    """Return free ports of the loopback."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class CutTunnel:
    """A tunnel to a head that breaks: the stream of a job's output is cut, each time after some more bytes.

    Attributes:
        token_file: The file with the head's token.
        num_cuts: How often it is still cut.
        is_reachable: Whether this computer has what a tunnel needs.
    """

    is_reachable = True

    def __init__(self, port: int, token_file: Path, *, num_cuts: int, bytes_between: int = 400) -> None:
        self.token_file, self.num_cuts = token_file, num_cuts
        self._port, self._limit, self._between = port, bytes_between, bytes_between

    def is_running(self) -> bool | None:
        """Return that this is unknown."""
        return None

    def forget_inputs(self, sweep: str) -> None:
        """Do nothing."""

    @contextmanager
    def tunnel(self) -> Iterator[str]:
        """Yield an address that is forwarded to the head; after a cut nothing answers there."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
            # Wakes the thread, which holds the socket open.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = server.accept()
                threading.Thread(target=self._serve, args=(server, here), daemon=True).start()

    def _serve(self, server: socket.socket, here: socket.socket) -> None:
        """Forward one connection; if it is cut, the tunnel breaks."""
        with here, socket.create_connection(("127.0.0.1", self._port)) as there:
            request = here.recv(65536)
            there.sendall(request)
            is_cut = b"/logs/tail" in request.partition(b"\r\n")[0] and self.num_cuts > 0
            sender = threading.Thread(target=_relay, args=(here, there), daemon=True)
            sender.start()
            _relay(there, here, limit=self._limit if is_cut else math.inf)
            if is_cut:
                self.num_cuts -= 1
                self._limit += self._between
                with contextlib.suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
            sender.join()


def _relay(source: socket.socket, target: socket.socket, *, limit: float = math.inf) -> None:
    """Pass bytes on until one side closes or a limit is reached; then shut both down."""
    with contextlib.suppress(OSError):
        while limit > 0 and (data := source.recv(int(min(65536, limit)))):
            target.sendall(data)
            limit -= len(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
