"""Replicas on Ray Serve: what is passed to it, and the application that each replica builds. Ray Serve is not started."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

import raysent
from raysent.errors import ConfigError
from raysent.exports import ray_serve as module


class FakeServe:
    """Keeps what Ray Serve receives; a replica's application is built from a pickled copy, as in its process."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def ingress(self, builder: Any) -> Any:
        """Keep what builds the application."""
        return lambda: cloudpickle.loads(cloudpickle.dumps(builder))

    def deployment(self, builder: Any, **options: Any) -> Any:
        """Keep the options; `bind` returns the builder."""
        self.options = options
        return SimpleNamespace(bind=lambda: builder)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    """Return what takes the place of Ray Serve."""
    fake = FakeServe()
    monkeypatch.setattr(module, "_ray_serve", lambda: fake)
    return fake


async def post(application: Any, values: dict[str, Any], *, token: str = "") -> tuple[int, Any]:
    """Send one request to an application; return status and answer."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(values).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    known = {"host": "localhost", "content-type": "application/json", "authorization": f"Bearer {token}"}
    headers = [(name.encode(), value.encode()) for name, value in known.items()]
    await application(
        {"type": "http", "path": "/v1/embeddings", "method": "POST", "query_string": b"", "headers": headers},
        receive,
        send,
    )
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_deployment_builds_the_server_in_each_replica(serve) -> None:
    """With the vectors of the model, and the replicas and cores that are asked for."""
    application = module.deployment("hash:8", num_replicas=3, num_cpus=2)()
    assert (serve.options["num_replicas"], serve.options["ray_actor_options"]) == (3, {"num_cpus": 2})
    status, answer = asyncio.run(post(application, {"input": ["a cat", ""]}))
    vectors = np.array([row["embedding"] for row in answer["data"]], np.float32)
    assert (status, answer["model"]) == (200, "hash:8")
    expected = raysent.load("hash:8").encode(["a cat", ""], normalize_embeddings=True)
    np.testing.assert_array_equal(vectors, expected)


def test_build_reads_text_and_the_token(serve, monkeypatch) -> None:
    """As `serve run` passes arguments; a request without the token is refused."""
    monkeypatch.setenv("RAYSENT_SERVE_TOKEN", "secret")
    application = module.build({"model": "hash:8", "replicas": "4", "normalize": "false"})()
    assert serve.options["num_replicas"] == 4
    assert asyncio.run(post(application, {"input": "a"}))[0] == 401
    status, answer = asyncio.run(post(application, {"input": "a cat"}, token="secret"))
    assert status == 200
    found = np.array(answer["data"][0]["embedding"], dtype=np.float32)
    np.testing.assert_array_equal(found, raysent.load("hash:8").encode("a cat"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "model: is required and is not given"),
        ({"model": "hash:8", "replica": 2}, "replica: unknown name; did you mean 'replicas'"),
        ({"model": "hash:8", "replicas": 0}, "replicas and cpus: must be above 0; given 0 and 1"),
    ],
)
def test_build_refuses_in_one_line(serve, arguments, message) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError, match=message):
        module.build(arguments)


def test_deployment_needs_ray_serve(monkeypatch) -> None:
    """A machine without its packages is told the extra."""
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"Ray Serve: needs packages of its own; install raysent\[ray-serve\]"):
        module.deployment("hash:8")
