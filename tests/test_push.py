"""Uploading an export: the hub's own client against a stand-in hub, and a hub that does not answer."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from raysent.errors import ArtifactError, ConfigError
from raysent.exports import folder as module
from raysent.exports import push

pytest.importorskip("huggingface_hub", reason="pip install raysent[sentence-transformers]")


class Hub:
    """What a hub received: the request that created a model, and the files of a commit."""

    def __init__(self) -> None:
        self.created: dict = {}
        self.files: dict[str, bytes] = {}
        self.status = 200


@pytest.fixture
def hub() -> Iterator[tuple[Hub, str]]:
    """Return a hub and its address; it takes every file within the commit."""
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"sha": "0" * 40, "id": "me/model", "siblings": []})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/repos/create":
                found.created = json.loads(body)
                self._answer({"url": f"{address}/me/model", "id": "me/model", "name": "me/model"})
            elif "/preupload/" in self.path:
                files = json.loads(body)["files"]
                self._answer(
                    {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]}
                )
            elif "/commit/" not in self.path:
                self._answer({"errors": [], "warnings": []})  # of the model card's metadata
            else:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        found.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                self._answer({"commitUrl": f"{address}/me/model/commit/1", "commitOid": "1", "success": True})

        def _answer(self, values: object) -> None:
            text = json.dumps(values if found.status == 200 else {"error": "no token"}).encode()
            self.send_response(found.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found, address
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the files of a small export."""
    (tmp_path / "export").mkdir()
    (tmp_path / "export/README.md").write_text("---\nlibrary_name: onnx\n---\n# A model\n")
    (tmp_path / "export/model.onnx").write_bytes(b"graph")
    return tmp_path / "export"


def test_push_uploads_every_file(hub, folder, monkeypatch):
    """Into a private model, unless it is to be public."""
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    found, address = hub
    assert push(folder, "me/model", endpoint=address).startswith(f"{address}/me/model")
    assert found.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert (found.created["name"], found.created["visibility"]) == ("model", "private")
    push(folder, "me/model", endpoint=address, is_public=True)
    assert found.created["visibility"] == "public"


def test_push_is_refused_in_one_line(hub, folder, monkeypatch):
    """By the hub, by a hub that is not there, without the client, and for another folder."""
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    found, address = hub
    found.status = 401
    complete = r".*export is complete, 'hf upload me/model .*export' pushes it$"
    with pytest.raises(ArtifactError, match=rf"^push me/model: \w+: [^\n]*401[^\n]*; {complete}"):
        push(folder, "me/model", endpoint=address)
    with pytest.raises(ArtifactError, match=rf"^push me/model: Connect\w+: [^\n]*; {complete}"):
        push(folder, "me/model", endpoint="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^push: must push the folder of an export; found no README\.md in "):
        push(folder.parent, "me/model", endpoint=address)
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^push: needs huggingface_hub; install raysent\[sentence-transformers\]$"):
        push(folder, "me/model", endpoint=address)
