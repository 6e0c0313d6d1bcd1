"""Simulated spot machines: the instance metadata service with interruption notices, and the node agent."""

from __future__ import annotations

import json
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
            is_valid = (
                self.path == "/latest/api/token"
                and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            )
            self._send(
                *(
                    (200, service.token.encode())
                    if is_valid and not service.is_failing
                    else (503, b"")
                )
            )

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
def node_agent(
    service: Metadata, *, address: str, node_id: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent of a node inside the block, in its own process."""
    command = [
        sys.executable,
        "-m",
        "raysent.preemption",
        "--address",
        address,
        "--node-id",
        node_id,
        "--poll-s",
        "1",
    ]
    agent = subprocess.Popen(
        command, env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url}
    )
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


class LocalTunnel:
    """A head on this machine, as one that was launched.

    Attributes:
        token_file: The file with the head's token.
        trouble: Why it is unknown whether it runs.
    """

    def __init__(self, dashboard: str, token_file: Path) -> None:
        self.token_file, self._dashboard = token_file, dashboard
        self.trouble = ""

    def is_running(self) -> bool | None:
        """Return that this is unknown."""
        return None

    def forget_inputs(self, sweep: str) -> None:
        """Do nothing."""

    @contextmanager
    def tunnel(self) -> Iterator[str]:
        """Yield the address of its job API."""
        yield self._dashboard
