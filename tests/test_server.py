"""The server: vectors of every client, limits, tokens, and an orderly end, by the real openai client over HTTP."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from raysent.errors import ConfigError
from raysent.exports.batcher import Batcher, QueueFullError
from raysent.exports.server import Application, ServerConfig, serve
from raysent.models.schemes.hash import HashEncoder

uvicorn = pytest.importorskip("uvicorn", reason="pip install raysent[serve]")
openai = pytest.importorskip("openai", reason="pip install openai")


# Closed when the server stops.
CLIENTS: list[openai.OpenAI] = []


class Slow(HashEncoder):
    """`hash:8`, after a pause."""

    def encode_texts(self, sentences, *, batch_size=512):
        """Encode."""
        time.sleep(0.2)
        return super().encode_texts(sentences, batch_size=batch_size)


@contextlib.contextmanager
def running(encoder=None, **limits) -> Iterator[tuple[str, int]]:
    """Run a server in a thread; yield its host and port."""
    application = Application(encoder or HashEncoder(8), name="hash:8", config=ServerConfig(**limits))
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    while CLIENTS:
        CLIENTS.pop().close()
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def client(address, token="none") -> openai.OpenAI:
    """Return an openai client that does not try again."""
    CLIENTS.append(openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key=token, max_retries=0))
    return CLIENTS[-1]


def send(address, method, path, body=None) -> tuple[int, str]:
    """Return the status and the body of the answer to a request."""
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=20)) as connection:
        connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def get(address, path) -> tuple[int, str]:
    """Return the status and the body of a page."""
    return send(address, "GET", path)


def test_every_client_gets_its_own_vectors() -> None:
    """32 threads at once, strings and lists, both encodings and fewer dimensions: equal to `encode`, bit for bit."""
    encoder = HashEncoder(8)
    with running() as address, ThreadPoolExecutor(32) as threads:
        api = client(address)

        def check(number: int) -> None:
            texts = [f"text {number} {index}" for index in range(1 + number % 5)]
            given = texts if number % 2 else texts[0]
            options = {"encoding_format": "float"} if number % 3 == 0 else {}
            found = api.embeddings.create(model="m", input=given, dimensions=5 if number % 4 == 0 else 8, **options)
            vectors = np.array([row.embedding for row in found.data], dtype=np.float32)
            expected = encoder.encode(texts if number % 2 else texts[:1])[:, : vectors.shape[1]]
            np.testing.assert_array_equal(vectors, expected)

        list(threads.map(check, range(200)))
        assert api.models.list().data[0].id == "hash:8"
        status, metrics = get(address, "/metrics")
        assert status == 200
        assert 'raysent_requests_total{path="/v1/embeddings",status="200"} 200' in metrics
        assert get(address, "/health") == (200, '{"status":"ok","model":"hash:8","waiting":0,"needs_token":false}')
        assert "<title>raysent serve</title>" in get(address, "/")[1]


def test_wrong_requests_get_a_status_and_one_line() -> None:
    """The server answers the next request."""
    with running(max_texts=3, max_body_bytes=10_000) as address:
        api = client(address)
        for options, message in (
            ({"input": [1, 2]}, "input: must be a string or a list of strings"),
            ({"input": []}, "input: must be a string or a list of strings"),
            ({"input": ["a"] * 4}, "input: must be at most 3 texts; given 4"),
            ({"input": "a", "dimensions": 9}, "dimensions: must be a whole number from 1 to 8; given 9"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                api.embeddings.create(model="m", **options)
        with pytest.raises(openai.APIStatusError, match="the body must have at most 10,000 bytes") as refused:
            api.embeddings.create(model="m", input="x" * 10_000_000)
        assert refused.value.status_code == 413
        assert get(address, "/v1/embeddings")[0] == 405
        assert get(address, "/nowhere")[0] == 404
        for body in ("{", "[" * 9_000, '{"input": "a", "dimensions": ' + "9" * 5_000 + "}"):
            assert send(address, "POST", "/v1/embeddings", body)[0] == 400
        assert send(address, "POST", "/v1/embeddings", '{"input": "\\ud83d", "model": "m"}')[0] == 200
        assert len(api.embeddings.create(model="m", input="a").data) == 1


def test_predictions_need_an_ensemble() -> None:
    """A single model has no classes."""
    with running() as address:
        status, body = send(address, "POST", "/v1/predict/TREC", json.dumps({"input": ["a"]}))
        assert status == 404
        assert "only an ensemble predicts" in body


def test_token_is_required_where_there_is_one() -> None:
    """By every address but the page and the health; an open address needs one."""
    with running(token="secret") as address:
        with pytest.raises(openai.AuthenticationError):
            client(address, "other").embeddings.create(model="m", input="a")
        assert get(address, "/metrics")[0] == 401
        assert get(address, "/health")[0] == 200
        assert len(client(address, "secret").embeddings.create(model="m", input="a").data) == 1
    with pytest.raises(ConfigError, match=r"^--host 0\.0\.0\.0: needs a token where others can reach it"):
        serve("hash:8", host="0.0.0.0")


def test_full_queue_refuses_at_once_and_time_ends_a_request() -> None:
    """429 and 503; a client that has gone does not stop the server."""
    with running(Slow(8), max_waiting=2, max_batch=1) as address, ThreadPoolExecutor(12) as threads:
        api = client(address)

        def status(_: int) -> int:
            try:
                api.embeddings.create(model="m", input="a")
            except openai.APIStatusError as error:
                return error.status_code
            return 200

        found = list(threads.map(status, range(12)))
        assert set(found) == {200, 429}
        gone = socket.create_connection(address)
        gone.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n" + b'{"input": "a"}')
        gone.close()
        half = socket.create_connection(address)
        half.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{")
        half.close()
        time.sleep(0.5)
        assert status(0) == 200
    with running(Slow(8), timeout_s=0.05) as address:
        api = client(address)
        with pytest.raises(openai.InternalServerError, match="no result after 0.05 s"):
            api.embeddings.create(model="m", input="a")


def test_batcher_joins_requests_and_survives_an_error() -> None:
    """Requests that wait together are one batch; an error reaches them and not the next."""
    batches: list[list[str]] = []

    def encode(texts: list[str]) -> np.ndarray:
        batches.append(texts)
        if "bad" in texts:
            raise ValueError("bad")
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    async def use() -> None:
        batcher = Batcher(encode, max_batch=8, max_waiting=8, wait_s=0.02)
        batcher.start()
        found = await asyncio.gather(batcher.encode(["a", "bb"]), batcher.encode(["ccc"]))
        assert [rows.tolist() for rows in found] == [[[1], [2]], [[3]]]
        with pytest.raises(ValueError, match="bad"):
            await batcher.encode(["bad"])
        full = asyncio.gather(batcher.encode(["x"] * 6), batcher.encode(["y"] * 3), return_exceptions=True)
        assert isinstance((await full)[1], QueueFullError)
        given_up = asyncio.ensure_future(batcher.encode(["nobody waits"]))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await batcher.encode(["z"])).tolist() == [[1]]
        assert batcher.num_waiting == 0
        await batcher.stop()

    asyncio.run(use())
    assert batches == [["a", "bb", "ccc"], ["bad"], ["x"] * 6, ["z"]]


def test_signal_to_stop_answers_requests_in_flight() -> None:
    """SIGTERM: requests that were sent get their vectors, and the process ends with code 0."""
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_server
from raysent.exports.server import ServerConfig, serve
serve(test_server.Slow(8), port=int(sys.argv[1]), config=ServerConfig(max_batch=1))
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", script, str(port)])
    address = ("127.0.0.1", port)
    while True:
        assert process.poll() is None
        with contextlib.suppress(OSError):
            if get(address, "/health")[0] == 200:
                break
        time.sleep(0.1)
    api = client(address)
    with ThreadPoolExecutor(6) as threads:
        sent = [threads.submit(api.embeddings.create, model="m", input=f"t {n}") for n in range(6)]
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        for number, result in enumerate(sent):
            np.testing.assert_array_equal(
                np.array(result.result().data[0].embedding, dtype=np.float32), HashEncoder(8).encode(f"t {number}")
            )
    CLIENTS.pop().close()
    assert process.wait(30) in (0, -signal.SIGTERM)
