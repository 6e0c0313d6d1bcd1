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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typed import RAYSENT

import raysent
from raysent.ensembles.predictor import Predictor
from raysent.errors import ArtifactError, ConfigError
from raysent.models.schemes.hash import HashEncoder
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.serving.batching import Batcher, QueueFullError
from raysent.serving.connection import Connection
from raysent.serving.server import ServerConfig, make_application, make_server, serve

uvicorn = pytest.importorskip("uvicorn", reason="pip install raysent[serve]")
pytest.importorskip("starlette", reason="pip install raysent[serve]")


# Closed when the server stops.
CLIENTS: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def openai() -> Any:
    """Return the package, which takes three seconds, where these tests run and not where they are collected."""
    return pytest.importorskip("openai", reason="pip install openai")


class Slow(HashEncoder):
    """`hash:8`, after a pause."""

    def encode_texts(self, sentences, *, batch_size=512):
        """Encode."""
        time.sleep(0.2)
        return super().encode_texts(sentences, batch_size=batch_size)


class Whitened(HashEncoder):
    """`hash:8`, whose first numbers are a vector too."""

    @property
    def cut_sizes(self):
        """All."""
        return range(1, 9)


class Words(SentenceEncoder):
    """The number of words; reads five, and notes the characters that it was given."""

    max_seq_length = 5

    def __init__(self) -> None:
        self.most = 0

    def encode_texts(self, sentences, *, batch_size=512):
        """Encode."""
        self.most = max(self.most, *map(len, sentences))
        return np.array([[len(text.split()), 1] for text in sentences], dtype=np.float32)

    def get_sentence_embedding_dimension(self):
        """Return 2."""
        return 2


class Held(HashEncoder):
    """`hash:8`, which reads the texts of clients once a file is there."""

    def __init__(self, file: str) -> None:
        super().__init__(8)
        self._file = Path(file)

    def encode_texts(self, sentences, *, batch_size=512):
        """Encode."""
        while any(one.startswith("t ") for one in sentences) and not self._file.exists():
            time.sleep(0.01)
        return super().encode_texts(sentences, batch_size=batch_size)


@contextlib.contextmanager
def running(encoder=None, **limits) -> Iterator[tuple[str, int]]:
    """Run a server in a thread, as `serve` does; yield its host and port."""
    config = ServerConfig(**limits)
    server = make_server(make_application(encoder or "hash:8", config), config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()
    while CLIENTS:
        CLIENTS.pop().close()
    server.should_exit = True
    thread.join(600)
    assert not thread.is_alive()


def client(address, token="none") -> Any:
    """Return an openai client that does not try again."""
    import openai  # late, as above

    CLIENTS.append(
        openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key=token, max_retries=0)
    )
    return CLIENTS[-1]


def ask(address, method, path, body=None, **headers) -> tuple[int, str, dict[str, str]]:
    """Return status, body and headers of the answer to a request."""
    given = {
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=600)) as connection:
        connection.request(method, path, body=body, headers=given)
        response = connection.getresponse()
        return response.status, response.read().decode(), dict(response.getheaders())


def send(address, method, path, body=None, **headers) -> tuple[int, str]:
    """Return status and body of the answer to a request."""
    return ask(address, method, path, body, **headers)[:2]


def get(address, path, **headers) -> tuple[int, str]:
    """Return the status and the body of a page."""
    return send(address, "GET", path, **headers)


def test_every_client_gets_its_own_vectors() -> None:
    """32 threads at once, strings and lists, both encodings: equal to `encode` with unit length, bit for bit."""
    encoder = HashEncoder(8)
    with running() as address, ThreadPoolExecutor(32) as threads:
        api = client(address)

        def check(number: int) -> None:
            texts = [f"text {number} {index}" for index in range(1 + number % 5)]
            given = texts if number % 2 else texts[0]
            options = {"encoding_format": "float"} if number % 3 == 0 else {}
            found = api.embeddings.create(model="m", input=given, dimensions=8, **options)
            vectors = np.array([row.embedding for row in found.data], dtype=np.float32)
            expected = encoder.encode(texts if number % 2 else texts[:1], normalize_embeddings=True)
            np.testing.assert_array_equal(vectors, expected)

        list(threads.map(check, range(200)))
        assert api.models.list().data[0].id == "hash:8"
        status, metrics = get(address, "/metrics")
        assert status == 200
        assert 'raysent_requests_total{path="/v1/embeddings",status="200"} 200.0' in metrics
        assert get(address, "/health") == (
            200,
            '{"status":"ok","model":"hash:8","waiting":0,"needs_token":false}',
        )
        assert "<title>raysent serve</title>" in get(address, "/")[1]


def test_wrong_requests_get_a_status_and_one_line(openai) -> None:
    """The server answers the next request."""
    with running(max_texts=3, max_body_bytes=10_000) as address:
        api = client(address)
        for options, message in (
            (
                {"input": [1, 2]},
                "ids of tokens are not read: with LangChain set check_embedding_ctx_length=False",
            ),
            (
                {"input": [[1, 2]]},
                "ids of tokens are not read: with LangChain set check_embedding_ctx_length=False",
            ),
            ({"input": ["a", 2]}, r"input\[1\]: must be text; ids of tokens"),
            ({"input": [["a", "b"]]}, "input: must be a string or a list of strings"),
            ({"input": []}, "input: must be a string or a list of 1 to 3 strings; given 0"),
            ({"input": ["a"] * 4}, "input: must be a string or a list of 1 to 3 strings; given 4"),
            (
                {"input": "a", "dimensions": 4},
                "dimensions: must be 8: this model's vectors must not be cut",
            ),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                api.embeddings.create(model="m", **options)
        with pytest.raises(
            openai.APIStatusError, match="the body must have at most 10,000 bytes"
        ) as refused:
            api.embeddings.create(model="m", input="x" * 10_000_000)
        assert refused.value.status_code == 413
        assert api.embeddings.create(model="m", input="a", dimensions=8).data
        assert ask(address, "GET", "/v1/embeddings")[2]["allow"] == "POST"
        assert "must be asked by POST; given GET" in get(address, "/v1/embeddings")[1]
        assert get(address, "/nowhere")[0] == 404
        for body in ("{", "[" * 9_000, '{"input": "a", "dimensions": ' + "9" * 5_000 + "}"):
            assert send(address, "POST", "/v1/embeddings", body)[0] == 400
        assert (
            send(address, "POST", "/v1/embeddings", '{"input": "\\ud83d", "model": "m"}')[0] == 200
        )
        assert len(api.embeddings.create(model="m", input="a").data) == 1


def test_predictions_need_a_task() -> None:
    """A model that was evaluated on none has no classes, and says what gives it some."""
    with running() as address:
        for path in ("/v1/predict", "/v1/predict/TREC"):
            status, body = send(address, "POST", path, json.dumps({"input": ["a"]}))
            assert status == 404
            assert "hash:8: predicts no task; 'raysent ensemble hash:8 --task FILE" in body


def test_half_a_character_of_a_request_is_escaped_in_the_error() -> None:
    """UTF-8 has no bytes for it."""
    encoder = HashEncoder(8)
    encoder.predictors = Predictor(encoder, lambda: {"MR": lambda: None})
    with running(encoder) as address:
        status, body = send(address, "POST", "/v1/predict", '{"input": "a", "task": "\\ud800"}')
    assert status == 404
    assert json.loads(body)["error"]["message"].startswith(
        r"\ud800: HashEncoder was not made on this task"
    )


def test_index_is_searched_beside_its_models_vectors(tmp_path) -> None:
    """Each query gets the passages that the library returns; without an index the address says what to serve."""
    (tmp_path / "a.txt").write_text("the cat sat\na dog ran\nrain fell\n")
    raysent.index("hash:8", tmp_path / "a.txt", tmp_path / "index", progress=False)
    expected = raysent.search(tmp_path / "index", ["a cat", "dog"], k=2, by="words")
    weighed = raysent.search(tmp_path / "index", "a cat", k=3, by="fused", weight=0.4)
    with running(str(tmp_path / "index")) as address:
        body = json.dumps({"input": "a cat", "k": 3, "by": "fused", "weight": 0.4})
        assert json.loads(send(address, "POST", "/v1/search", body)[1])["results"][0] == [
            *map(asdict, weighed[0])
        ]
        body = json.dumps({"input": ["a cat", "dog"], "k": 2, "by": "words"})
        assert json.loads(send(address, "POST", "/v1/search", body)[1])["results"] == [
            [asdict(hit) for hit in hits] for hits in expected
        ]
        assert (
            len(
                json.loads(send(address, "POST", "/v1/search", '{"input": "rain"}')[1])["results"][
                    0
                ]
            )
            == 3
        )
        assert len(client(address).embeddings.create(model="x", input="cat").data[0].embedding) == 8
        for body, error in (
            ('{"input": ["cat", " "]}', "none of which is empty"),
            ('{"input": "cat", "k": 0}', "k: must be a whole number from 1 to 1,000; given 0"),
            ('{"input": "cat", "by": "x"}', "by: must be vectors, words, fused"),
            (
                '{"input": "cat", "by": "fused", "weight": true}',
                "weight: must be from 0 to 1; given True",
            ),
            (
                '{"input": "cat", "by": "fused", "weight": 2}',
                "weight: must be from 0 to 1; given 2",
            ),
            (
                '{"input": "cat", "weight": 0.4}',
                "weight: must be given with by=fused; given by=vectors",
            ),
        ):
            status, text = send(address, "POST", "/v1/search", body)
            assert (status, error in text) == (400, True)
    with pytest.raises(ArtifactError, match="is of hash:8, not of hash:4; name that"):
        make_application(str(tmp_path / "index"), ServerConfig(model="hash:4"))
    with running() as address:
        assert (
            "serve a folder that 'raysent index' wrote"
            in send(address, "POST", "/v1/search", '{"input": "a"}')[1]
        )


def test_token_is_required_where_there_is_one(openai) -> None:
    """By every address but those without secrets; an open address needs one."""
    with running(token="secret") as address:
        with pytest.raises(openai.AuthenticationError):
            client(address, "other").embeddings.create(model="m", input="a")
        for path in ("/metrics", "/v1/models", "/nowhere"):
            status, _, headers = ask(address, "GET", path)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
        for given in (
            "secret",
            "Basic secret",
            "Bearer",
            "Bearer other",
            "Bearer secret x",
            "Bearer \u00e9",
        ):
            assert get(address, "/metrics", Authorization=given)[0] == 401
        for given in ("Bearer secret", "bearer secret", "BEARER  secret"):
            assert get(address, "/metrics", Authorization=given)[0] == 200
        for path in ("/", "/docs", "/health", "/openapi.json"):
            assert get(address, path)[0] == 200
        assert len(client(address, "secret").embeddings.create(model="m", input="a").data) == 1
    with pytest.raises(
        ConfigError, match=r"^host 0\.0\.0\.0: needs a token where others can reach it"
    ):
        serve("hash:8", host="0.0.0.0")


@pytest.mark.parametrize("token", [None, "secret"])
def test_metrics_hold_no_text_of_clients_and_a_fixed_number_of_series(token) -> None:
    """Whatever addresses are asked for; of requests without the token, none is counted."""
    given = {} if token is None else {"Authorization": f"Bearer {token}"}
    paths = [
        "/x%22%7D%201%0Afake_total%7Ba=%22b",
        "/v1/predict/a%22%7D%205%0Afake_total%7Bz=%22y",
        "/v1/predict",
        "/v1/models/%0Afake 1",
    ]
    with running(token=token) as address:
        pages = []
        for number in range(2):
            for path in (
                *paths,
                *(
                    f"/{text}{number}"
                    for text in ("nowhere/", "v1/predict/", "v1/models/")
                    for _ in "ab"
                ),
            ):
                get(address, path.replace(" ", "%20"))
            pages.append(get(address, "/metrics", **given)[1])
    assert "fake" not in pages[1]
    series = [
        {line.rpartition(" ")[0] for line in page.splitlines() if 'path="' in line}
        for page in pages
    ]
    labels = {line.split('"')[1] for line in series[1]}
    assert labels == {"/metrics"} | (
        {"other", "/v1/predict", "/v1/predict/{task:path}", "/v1/models/{id:path}"}
        if token is None
        else set()
    )
    assert series[0] == {line for line in series[1] if "/metrics" not in line}


def test_text_is_bounded_before_the_model_reads_it(openai) -> None:
    """64 characters for each token that it reads, at least 8,192; or as the server's settings say."""
    encoder = Words()
    with running(encoder) as address:
        api = client(address)
        assert api.embeddings.create(model="m", input=["a", "b " * 4096]).data[1].embedding
        with pytest.raises(
            openai.BadRequestError,
            match=r"input\[1\]: must have at most 8,192 characters; given 8,194",
        ):
            api.embeddings.create(model="m", input=["a", "b " * 4097])
        assert encoder.most == 8192
    with running(Words(), max_characters=10) as address:
        body = json.dumps({"input": "a" * 11})
        assert "must have at most 10 characters" in send(address, "POST", "/v1/embeddings", body)[1]
    with running() as address:  # reads all of a text
        assert (
            send(address, "POST", "/v1/embeddings", json.dumps({"input": "a" * 32_768}))[0] == 200
        )
        assert (
            send(address, "POST", "/v1/embeddings", json.dumps({"input": "a" * 32_769}))[0] == 400
        )


def test_vectors_have_unit_length_and_are_cut_only_where_that_has_a_meaning() -> None:
    """As OpenAI's; `normalize=False` gives those of the model."""
    for limits in ({}, {"normalize": False}):
        with running(Whitened(8), **limits) as address:
            for size in (None, 5, 8):
                options = {} if size is None else {"dimensions": size}
                found = client(address).embeddings.create(
                    model="m", input=["a cat", "dogs"], **options
                )
                vectors = np.array([row.embedding for row in found.data], dtype=np.float32)
                expected = HashEncoder(8).encode(
                    ["a cat", "dogs"], truncate_dim=size, normalize_embeddings=not limits
                )
                np.testing.assert_allclose(vectors, expected, atol=1e-6)
            status, body = send(
                address, "POST", "/v1/embeddings", '{"input": "a", "dimensions": 9}'
            )
            assert status == 400
            assert "dimensions: must be a whole number from 1 to 8; given 9" in body


def test_model_is_listed_and_found_by_its_name(openai) -> None:
    """As by openai's client."""
    with running() as address:
        api = client(address)
        found = api.models.retrieve("hash:8")
        assert found == api.models.list().data[0]
        assert found.created > 1.7e9
        with pytest.raises(
            openai.NotFoundError, match="gpt: no such model; this server has hash:8"
        ):
            api.models.retrieve("gpt")


def test_interface_is_described_without_scripts_of_others() -> None:
    """OpenAPI names every address and field that is answered, and /docs shows it."""
    with running() as address:
        about = json.loads(get(address, "/openapi.json")[1])
        page, start = get(address, "/docs")[1], get(address, "/")[1]
        paths = {
            (path.replace("{task}", "T").replace("{id}", "hash:8"), one)
            for path, ways in about["paths"].items()
            for one in ways
        }
        for path, method in paths:
            assert send(address, method.upper(), path, "{}" if method == "post" else None)[0] in (
                200,
                400,
                404,
            )
            assert (
                "no such address"
                not in send(address, method.upper(), path, "{}" if method == "post" else None)[1]
            )
    routes = {route.path for route in make_application("hash:8", ServerConfig()).routes}
    assert {
        path.replace("{task}", "{task:path}").replace("{id}", "{id:path}")
        for path in about["paths"]
    } == routes - {
        "/",
        "/docs",
        "/openapi.json",
    }
    for text in (page, start):
        assert "//" not in text.replace("// ", "")
        assert "<script src" not in text


def test_no_web_page_of_others_can_use_a_server_without_a_token() -> None:
    """It can send neither JSON without being asked for, nor its own name or origin."""
    with running() as address:
        own, body = f"{address[0]}:{address[1]}", '{"input": "a"}'

        def status(**headers: str) -> int:
            return send(address, "POST", "/v1/embeddings", body, **headers)[0]

        assert status(Content_Type="text/plain") == 415
        assert status(Content_Type="application/json; charset=utf-8") == 200
        assert status(Host=f"localhost:{address[1]}") == 200
        assert status(Host="[::1]:8000") == 200
        for host in (
            "evil.example",
            f"evil.example:{address[1]}",
            "127.0.0.1.evil.example",
            "[",
            "",
        ):
            assert status(Host=host) == 403
        assert status(Origin=f"http://{own}") == 200
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            assert status(Origin=origin) == 403
        assert send(address, "OPTIONS", "/v1/embeddings", Origin="http://evil.example")[0] == 403
    with running(token="secret") as address:  # it does not know the token
        assert (
            send(
                address,
                "POST",
                "/v1/embeddings",
                body,
                Host="a.example",
                Authorization="Bearer secret",
            )[0]
            == 200
        )


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HT",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
    ],
    ids=["nothing", "half a head", "half a body", "an unread half of a body", "half a second head"],
)
def test_client_that_does_not_send_its_request_loses_the_connection(sent) -> None:
    """A head or a body, also byte after byte."""
    with running(read_s=1.0) as address, socket.create_connection(address, timeout=600) as slow:
        if sent.startswith(b"GET /health HTTP"):  # the second half follows the answer
            head, end, rest = sent.partition(b"\r\n\r\n")
            slow.sendall(head + end)
            assert slow.recv(10)
            sent = rest
        slow.sendall(sent)
        with contextlib.suppress(ConnectionError):
            slow.setblocking(False)
            while True:
                with contextlib.suppress(BlockingIOError):
                    if not slow.recv(10_000):
                        break
                time.sleep(0.05)
                if sent:
                    slow.send(b"x")
        assert get(address, "/health")[0] == 200


def test_connections_are_bounded_and_kept_for_the_next_request() -> None:
    """More are closed at once; a connection is kept longer than clients keep it, 5 s in httpx."""
    with running(max_connections=3) as address:
        held = [socket.create_connection(address, timeout=600) for _ in range(3)]
        while True:
            with (
                socket.create_connection(address, timeout=1) as more,
                contextlib.suppress(TimeoutError),
            ):
                if more.recv(1) == b"":
                    break
        for one in held:
            one.close()
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if get(address, "/health")[0] == 200:
                    break
    server = make_server(make_application("hash:8", ServerConfig()), ServerConfig())
    assert server.config.timeout_keep_alive > 60


def test_parts_of_an_answer_are_sent_at_once(monkeypatch) -> None:
    """Not when the client has acknowledged the part before, which takes it 40 ms."""
    found, received = [], Connection.data_received

    def noted(self: Connection, data: bytes) -> None:
        found.append(
            self.transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY
            )
        )
        received(self, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    with running() as address:
        assert get(address, "/health")[0] == 200
    assert found
    assert all(found)


def test_port_in_use_is_refused_in_one_line() -> None:
    """And a library that is missing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^port {port}: cannot be listened on: Address already in use"
        ):
            serve("hash:8", port=port)


def test_missing_library_is_named(monkeypatch) -> None:
    """With the extra that installs it."""
    monkeypatch.setattr(
        "raysent.serving.server.find_spec", lambda name: None if name == "starlette" else name
    )
    with pytest.raises(ConfigError, match=r"^serve: needs starlette; install raysent\[serve\]$"):
        serve("hash:8")


def test_full_queue_refuses_at_once_and_time_ends_a_request(openai) -> None:
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
        gone.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
            + b'{"input": "a"}'
        )
        gone.close()
        half = socket.create_connection(address)
        half.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"
        )
        half.close()
        time.sleep(0.5)
        assert status(0) == 200
    with running(Slow(8), timeout_s=0.05) as address:
        api = client(address)
        with pytest.raises(openai.InternalServerError, match="no result after 0.05 s"):
            api.embeddings.create(model="m", input="a")


def test_batcher_joins_requests_and_survives_an_error() -> None:
    """Requests that wait together are one batch; an error reaches its request alone."""
    batches: list[tuple[str, list[str]]] = []

    def compute(kind: str, rows: list[tuple[str]]) -> np.ndarray:
        batches.append((kind, [text for (text,) in rows]))
        if ("bad",) in rows:
            raise ValueError("bad")
        return np.array([[len(text)] for (text,) in rows], dtype=np.float32)

    def rows(*texts: str) -> list[tuple[str]]:
        return [(text,) for text in texts]

    async def use() -> None:
        batcher = Batcher(compute, max_batch=8, max_waiting=8, wait_s=0.02)
        found = await asyncio.gather(
            batcher.run("k", rows("a", "bb")), batcher.run("k", rows("ccc"))
        )
        assert [one.tolist() for one in found] == [[[1], [2]], [[3]]]
        bad, good = await asyncio.gather(
            batcher.run("k", rows("bad")), batcher.run("k", rows("good")), return_exceptions=True
        )
        assert (str(bad), good.tolist()) == ("bad", [[4]])
        other = await asyncio.gather(batcher.run("k", rows("x")), batcher.run("l", rows("y")))
        assert [one.tolist() for one in other] == [[[1]], [[1]]]
        full = asyncio.gather(
            batcher.run("k", rows(*"xxxxxx")),
            batcher.run("k", rows(*"yyy")),
            return_exceptions=True,
        )
        assert isinstance((await full)[1], QueueFullError)
        given_up = [
            asyncio.ensure_future(batcher.run("k", rows(text)))
            for text in ("nobody waits", "nor here")
        ]
        await asyncio.sleep(0)
        for one in given_up:
            one.cancel()
        assert (await batcher.run("k", rows("z"))).tolist() == [[1]]
        assert batcher.num_waiting == 0

    asyncio.run(use())
    assert batches == [
        ("k", ["a", "bb", "ccc"]),
        *(("k", texts) for texts in (["bad", "good"], ["bad"], ["good"])),
        *(("k", ["x"]), ("l", ["y"])),
        ("k", ["x"] * 6),
        ("k", ["z"]),
    ]


def test_batch_answers_others_when_its_first_request_is_gone() -> None:
    """Those that were taken with it get their rows, and a later one is computed after them."""
    batches: list[int] = []
    is_free = threading.Event()

    def compute(_: None, rows: list[tuple[str]]) -> np.ndarray:
        batches.append(len(rows))
        is_free.wait(5)
        return np.array([[len(text)] for (text,) in rows])

    async def use() -> None:
        batcher = Batcher(compute, max_batch=8, max_waiting=8, wait_s=0)
        leaving, other = (
            asyncio.ensure_future(batcher.run(None, [(text,)])) for text in ("a", "bb")
        )
        while not batches:
            await asyncio.sleep(0.001)
        leaving.cancel()
        await asyncio.sleep(0.01)
        later = asyncio.ensure_future(batcher.run(None, [("ccc",)]))
        await asyncio.sleep(0.01)
        is_free.set()
        assert [one.tolist() for one in await asyncio.gather(other, later)] == [[[2]], [[3]]]

    asyncio.run(use())
    assert batches == [2, 1]


def test_batcher_waits_for_others_only_after_a_shared_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that is alone waits for no time."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    async def use() -> None:
        batcher = Batcher(
            lambda _, rows: np.zeros((len(rows), 1)), max_batch=8, max_waiting=8, wait_s=0.5
        )
        await batcher.run(None, [("a",)])
        await asyncio.gather(batcher.run(None, [("b",)]), batcher.run(None, [("c",)]))
        await batcher.run(None, [("d",)])
        await batcher.run(None, [("e",)])

    monkeypatch.setattr(asyncio, "sleep", noted)
    asyncio.run(use())
    assert waits == [0, 0, 0.5, 0]


def test_long_requests_take_turns_with_others() -> None:
    """In parts, by rows and by characters, each alone; a client that leaves takes no results from the others."""
    batches: list[list[int]] = []

    def compute(_: None, rows: list[tuple[str]]) -> np.ndarray:
        batches.append([len(text) for (text,) in rows])
        time.sleep(0.02)
        return np.array([[len(text)] for (text,) in rows])

    async def use() -> None:
        batcher = Batcher(compute, max_batch=4, max_waiting=100, wait_s=0)
        long, leaving, short = (
            asyncio.ensure_future(batcher.run(None, [("x" * size,) for size in sizes]))
            for sizes in ([1] * 6 + [1000, 600, 5000, 1], [2, 2], [3, 3])
        )
        while not batches:
            await asyncio.sleep(0.001)
        leaving.cancel()
        assert (await short).tolist() == [[3], [3]]
        assert (await long).ravel().tolist() == [1] * 6 + [1000, 600, 5000, 1]

    asyncio.run(use())
    assert batches == [[1] * 4, [3, 3], [1, 1], [1000], [600], [5000], [1]]


def test_signal_to_stop_answers_requests_in_flight(tmp_path) -> None:
    """SIGTERM: requests that were received get their vectors, and the process ends with code 0."""
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_server
from raysent.serving.server import ServerConfig, make_application, make_server, serve
serve(test_server.Held(sys.argv[2]), port=int(sys.argv[1]), config=ServerConfig(max_batch=1))
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", script, str(port), str(tmp_path / "go")])
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
        while "raysent_texts_waiting 6.0" not in get(address, "/metrics")[1]:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        for number, result in enumerate(sent):
            np.testing.assert_array_equal(
                np.array(result.result().data[0].embedding, dtype=np.float32),
                HashEncoder(8).encode([f"t {number}"], normalize_embeddings=True)[0],
            )
    CLIENTS.pop().close()
    assert process.wait(600) in (0, -signal.SIGTERM)


def test_ctrl_c_ends_a_server_without_a_traceback(hangups: None) -> None:
    """As it is typed, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*RAYSENT, "serve", "hash:8", "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while True:
        assert process.poll() is None
        with contextlib.suppress(OSError):
            if get(("127.0.0.1", port), "/health")[0] == 200:
                break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
