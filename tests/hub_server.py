"""A hub on 127.0.0.1 that gives models of local folders, by the paths of the real one, and the faults that it can have."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_LARGE = (".safetensors", ".bin", ".h5", ".onnx")
_API = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")
_FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Hub:
    """A hub, with what goes wrong on it.

    Attributes:
        url: Its address.
        models: Name -> folder of the files; those of `main` and of its commit.
        license: The licence that each card names.
        cut: Path -> bytes after which the connection is cut off.
        is_gone: Whether it accepts nothing any more after a cut.
        altered: Path -> content that comes in place of the file's; what is listed stays.
        sizes: Path -> size that is listed in place of the file's.
        hangs: Whether it accepts connections and says nothing.
        requests: What was asked for.
    """

    url: str = ""
    models: dict[str, Path] = field(default_factory=dict)
    license: str | None = "mit"
    cut: dict[str, int] = field(default_factory=dict)
    is_gone: bool = False
    altered: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    hangs: bool = False
    requests: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def commit(self, name: str) -> str:
        """Return the commit of a model: a digest of its files."""
        folder = self.models[name]
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        digests = [hashlib.sha1(path.read_bytes()).hexdigest() for path in paths]
        return hashlib.sha1("".join([name, *digests]).encode()).hexdigest()

    def downloaded(self) -> list[str]:
        """Return the files whose content was asked for, in order."""
        paths = [request.removeprefix("GET ") for request in self.requests]
        matches = [_FILE.fullmatch(urlsplit(path).path) for path in paths]
        return [match["path"] for match in matches if match is not None]


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _etag(path: str, content: bytes) -> str:
    is_large = path.endswith(_LARGE)
    return hashlib.sha256(content).hexdigest() if is_large else _blob(content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._answer()

    def do_GET(self) -> None:
        """Answer with a body."""
        self._answer()

    def _answer(self) -> None:
        hub = self.hub
        hub.requests.append(f"{self.command} {self.path}")
        if hub.hangs:
            hub._over.wait()
        if hub.hangs or hub.is_gone:
            self.close_connection = True
            return
        path = unquote(urlsplit(self.path).path)
        of_model, of_file = _API.fullmatch(path), _FILE.fullmatch(path)
        if path == "/":
            self._send(b"a hub")
        elif of_model is not None:
            self._send_model(of_model["name"], of_model["revision"])
        elif of_file is not None:
            self._send_file(of_file["name"], of_file["revision"], of_file["path"])
        else:
            self._refuse("EntryNotFound")

    def _send_model(self, name: str, revision: str | None) -> None:
        hub = self.hub
        if name not in hub.models:
            self._refuse("RepoNotFound")
            return
        if revision not in (None, "main", hub.commit(name)):
            self._refuse("RevisionNotFound")
            return
        siblings = []
        folder = hub.models[name]
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            file_name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            size = hub.sizes.get(file_name, len(content))
            sibling: dict[str, Any] = {
                "rfilename": file_name,
                "size": size,
                "blobId": _blob(content),
            }
            if file_name.endswith(_LARGE):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": size, "pointerSize": 130}
            siblings.append(sibling)
        about = {"id": name, "modelId": name, "sha": hub.commit(name), "siblings": siblings}
        card = {} if hub.license is None else {"cardData": {"license": hub.license}}
        self._send(json.dumps({**about, **card, "tags": [], "private": False}).encode())

    def _send_file(self, name: str, revision: str, path: str) -> None:
        hub = self.hub
        if name not in hub.models:
            self._refuse("RepoNotFound")
            return
        file = hub.models[name] / path
        if revision not in ("main", hub.commit(name)) or not file.is_file():
            self._refuse("EntryNotFound")
            return
        content = file.read_bytes()
        headers = {
            "ETag": f'"{_etag(path, content)}"',
            "X-Repo-Commit": hub.commit(name),
            "Accept-Ranges": "bytes",
        }
        sent = hub.altered.get(path, content)
        start = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted is not None:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(sent) - 1}/{len(sent)}"
        cut = hub.cut.get(path) if self.command == "GET" else None
        self._send(sent[start:], headers=headers, code=206 if start else 200, cut=cut)

    def _refuse(self, code: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": "none here"}
        self._send(b"", headers=headers, code=404)

    def _send(
        self,
        content: bytes,
        *,
        headers: dict[str, str] | None = None,
        code: int = 200,
        cut: int | None = None,
    ) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is None:
            self.wfile.write(content)
            return
        self.wfile.write(content[:cut])
        self.wfile.flush()
        self.close_connection = True
        self.hub.is_gone = True


@contextmanager
def hub_server(**models: Path) -> Iterator[Hub]:
    """Run a hub of models; `owner__name` is `owner/name`."""
    hub = Hub(models={name.replace("__", "/"): folder for name, folder in models.items()})
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub._over.set()
        server.shutdown()
        server.server_close()
        thread.join()
