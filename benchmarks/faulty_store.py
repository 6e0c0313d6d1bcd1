"""An object store that fails as it is asked to: moto's S3 behind a proxy, in a process of its own.

    python -m benchmarks.faulty_store FILE    # writes its port into FILE, then serves until it is ended

Requests below ``/faulty/`` steer it: ``keep`` remembers all objects, ``reset?kind=KIND&after=N`` brings them back and
lets each request after the Nth meet a fault of that kind, by default none, and ``heal`` ends that. Kinds:

    refused      each request is answered by 503 SlowDown
    error once   one request is answered by 500
    reset        the connection ends without an answer
    reset once   one connection does
    lost once    one request is carried out, and its answer is lost
    cut once     half of an object's content is sent
    cut          of every object
    flipped      one bit of every object's content is another one
    forbidden    each request is answered by 403
    nonsense     each answer is no XML
    hangs        no request is answered
    late         each answer takes half a second
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

BUCKET = "runs"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_DEFAULT_REGION": "us-east-1",
}
KINDS = (
    "refused", "error once", "reset", "reset once", "lost once", "cut once", "cut", "flipped", "forbidden",
    "nonsense", "hangs", "late",
)  # fmt: skip
HANG_S, LATE_S = 600.0, 0.5
_OWN_HEADERS = ("content-length", "transfer-encoding", "connection", "server", "date")
_ERRORS = {
    "refused": (503, b"<Error><Code>SlowDown</Code><Message>Please slow down</Message></Error>"),
    "error once": (500, b"<Error><Code>InternalError</Code><Message>x</Message></Error>"),
    "forbidden": (403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"),
    "nonsense": (200, b"<html>a captive portal"),
}


class Store:
    """The objects, and which requests fail."""

    def __init__(self, url: str) -> None:
        """Stand before the store at an address."""
        address = urlsplit(url)
        self.host, self.port = str(address.hostname), int(address.port or 0)
        self.kind, self.after, self.num_requests, self.num_failed = "", 0, 0, 0
        self.lock = threading.Lock()
        self._kept: list[tuple[str, bytes, dict[str, str]]] = []
        self.reset("", 0)

    def _client(self) -> Any:
        import boto3  # noqa: PLC0415 - as above

        return boto3.client("s3", endpoint_url=f"http://{self.host}:{self.port}")

    def keep(self) -> None:
        """Remember all objects."""
        client = self._client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        names = [listed["Key"] for page in pages for listed in page.get("Contents", [])]
        self._kept = []
        for name in names:
            answer = client.get_object(Bucket=BUCKET, Key=name)
            self._kept.append((name, answer["Body"].read(), answer["Metadata"]))

    def reset(self, kind: str, after: int) -> None:
        """Bring back what was kept, and fail from a request on."""
        with self.lock:
            self.kind, self.after, self.num_requests, self.num_failed = "", 0, 0, 0
        client = self._client()
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request("POST", "/moto-api/reset", b"")
        connection.getresponse().read()
        client.create_bucket(Bucket=BUCKET)
        for name, content, metadata in self._kept:
            client.put_object(Bucket=BUCKET, Key=name, Body=content, Metadata=metadata)
        with self.lock:
            self.kind, self.after = kind, after

    def heal(self) -> None:
        """Let no more request fail."""
        with self.lock:
            self.kind = ""

    def fault(self, *, is_content: bool) -> str:
        """Return the fault that a request meets, if any."""
        with self.lock:
            self.num_requests += 1
            needs_content = self.kind in ("cut", "cut once", "flipped")
            is_over = self.kind.endswith("once") and self.num_failed > 0
            if self.num_requests <= self.after or is_over or (needs_content and not is_content):
                return ""
            self.num_failed += bool(self.kind)
            return self.kind

    def pass_on(self, command: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        """Return the status, the headers and the content that moto answers."""
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request(command, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()


def handler(store: Store) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _end(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()

        def _answer(self, status: int, headers: Any, content: bytes, *, is_cut: bool) -> None:
            self.send_response(status)
            length = str(len(content))
            for name, text in headers:
                if name.lower() not in _OWN_HEADERS:
                    self.send_header(name, text)
                elif name.lower() == "content-length" and self.command == "HEAD":
                    length = text
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if is_cut else content)
            if is_cut:
                self._end()

        def _steer(self) -> None:
            address = urlsplit(self.path)
            options = parse_qs(address.query)
            if address.path.endswith("keep"):
                store.keep()
            elif address.path.endswith("heal"):
                store.heal()
            elif address.path.endswith("reset"):
                store.reset(options.get("kind", [""])[0], int(options.get("after", ["0"])[0]))
            count = f"{store.num_requests} {store.num_failed}".encode()
            self._answer(200, [], count, is_cut=False)

        def answer(self) -> None:
            body = self._body()
            if self.path.startswith("/faulty/"):
                self._steer()
                return
            is_content = self.command == "GET" and "list-type" not in self.path
            fault = store.fault(is_content=is_content)
            if fault in _ERRORS:
                self._answer(*_with_type(_ERRORS[fault]), is_cut=False)
                return
            if fault == "hangs":
                time.sleep(HANG_S)
            if fault in ("reset", "reset once", "hangs"):
                self._end()
                return
            if fault == "late":
                time.sleep(LATE_S)
            skipped = ("transfer-encoding", "connection", "expect", "content-length")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
            status, answered, content = store.pass_on(self.command, self.path, body, headers)
            if fault == "lost once":
                self._end()
                return
            if fault == "flipped" and content:
                middle = len(content) // 2
                content = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
            self._answer(status, answered, content, is_cut=fault.startswith("cut"))

    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler


def _with_type(error: tuple[int, bytes]) -> tuple[int, list[tuple[str, str]], bytes]:
    status, content = error
    return status, [("Content-Type", "application/xml")], content


def main() -> None:
    """Serve."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - in this process alone

    os.environ.update(CREDENTIALS)
    os.environ.pop("AWS_ENDPOINT_URL", None)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(Store(f"http://{host}:{port}")))
    server.daemon_threads = True
    port_file = Path(sys.argv[1])
    unfinished = port_file.with_suffix(".part")
    unfinished.write_text(str(server.server_address[1]))
    unfinished.rename(port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
