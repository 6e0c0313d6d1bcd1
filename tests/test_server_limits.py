"""The server's limits, by a real socket: what clients send, what they do not read, and how requests share the model."""

import asyncio
import gc
import json
import select
import socket
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from test_server import CLIENTS, get, running, send

from raysent.data.same_text import is_blank
from raysent.ensembles.calibration import Answered, Calibration
from raysent.ensembles.pools import LogarithmicPool
from raysent.ensembles.predictor import Predictor
from raysent.ensembles.task_predictor import TaskPredictor
from raysent.errors import ConfigError
from raysent.models.schemes.hash import HashEncoder
from raysent.reading import parse_json
from raysent.serving import server as server_module
from raysent.serving.batching import Batcher, QueueFullError
from raysent.serving.server import serve
from raysent.serving.server_json_process import JsonProcess
from raysent.serving.server_request import BodyReader

pytest.importorskip("uvicorn", reason="pip install raysent[serve]")

CALIBRATION = Calibration(1.0, 10, (Answered(0.9, 5, 5), Answered(0.6, 10, 9)))


class ToyPredictor(TaskPredictor):
    """Predicts `long` for texts of more than three characters, and is never surer than 0.55."""

    def log_probabilities(self, columns: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the log-probabilities."""
        is_long = np.array([len(text) > 3 for text in columns[0]])
        return np.log(
            np.column_stack([np.where(is_long, 0.45, 0.55), np.where(is_long, 0.55, 0.45)])
        )


def toy_record(task: str, kind: str) -> SimpleNamespace:
    """Return what a predictor asks its record for."""
    return SimpleNamespace(
        task=task,
        label_names=("short", "long"),
        label_kind="text",
        kind=kind,
        targets=SimpleNamespace(is_scored=False),
    )


class Predicting(HashEncoder):
    """`hash:8` that predicts a task of texts and one of pairs; notes how many texts it has read."""

    def __init__(self, *tasks: str) -> None:
        super().__init__(8)
        kinds = {task: "pair" if task.startswith("pairs") else "sentence" for task in tasks}
        pool = LogarithmicPool(np.ones(1))
        makers = {
            task: partial(ToyPredictor, (self,), (toy_record(task, kind),), pool, CALIBRATION)
            for task, kind in kinds.items()
        }
        self.predictors = Predictor(self, lambda: makers)


def predict(address, body, path="/v1/predict/reviews") -> tuple[int, dict]:
    """Return the status and the answer of a request for predictions."""
    status, text = send(address, "POST", path, json.dumps(body))
    return status, json.loads(text)


def message_of(address, body, path="/v1/predict/reviews") -> str:
    """Return the message of a request that is refused."""
    status, answer = predict(address, body, path)
    assert status == 400, answer
    return answer["error"]["message"]


@pytest.fixture(scope="module")
def address():
    """Return the address of a server of two tasks."""
    with running(Predicting("reviews", "pairs")) as place:
        yield place


def test_rows_of_another_width_are_refused_before_the_queue_in_a_short_line(address) -> None:
    """A row of 800,000 columns, many rows of many columns, one column for a pair."""
    wide = message_of(address, {"input": [["x"] * 700_000]})
    assert "values, brackets, commas and colons" in wide
    assert len(wide) < 200
    for width, number in ((400, 10), (2, 2000), (0, 1)):
        refused = message_of(address, {"input": [["x"] * width] * number})
        assert refused == f"input[0]: must be one text, as reviews needs; given {width}"
    refused = message_of(address, {"input": ["a", "b"]}, "/v1/predict/pairs")
    assert refused == "input[0]: must be a list of two texts, as pairs needs; given 1"
    assert predict(address, {"input": [["a", "b"]]}, "/v1/predict/pairs")[0] == 200
    assert predict(address, {"input": [["a"], "bcde"]})[1]["labels"] == ["short", "long"]
    texts = send(address, "POST", "/v1/embeddings", json.dumps({"input": ["a", ["b"] * 9]}))
    assert "input[1] is a list of 9" in texts[1]


@pytest.mark.parametrize(
    "body",
    [
        '{"input":[' + "[]," * 1_300_000 + "[]]}",
        '{"input":[' + "1," * 2_000_000 + "1]}",
        "{" + ",".join(f'"{number}":1' for number in range(300_000)) + "}",
        '{"input":["' + '\\"' * 1_900_000,
        "[" * 4_000_000,
        '{"input":"a","dimensions":' + "9" * 4_000_000 + "}",
        '"' * 4_000_000,
    ],
    ids=["lists", "numbers", "names", "escapes", "brackets", "digits", "quotes"],
)
def test_bad_json_is_refused_at_the_cost_of_a_good_one(address, body) -> None:
    """In far less than the seconds that reading all of its values takes."""
    started = time.process_time()
    with pytest.raises(ValueError, match=r".") as refused:
        parse_json(body, max_values=17_000)
    assert time.process_time() - started < 1
    assert len(str(refused.value)) < 200
    status, text = send(address, "POST", "/v1/embeddings", body)
    assert status == 400
    assert len(text) < 400


def test_what_may_be_long_is_cut_in_messages() -> None:
    """A task, a model, an argument; and of many tasks a few are listed."""
    encoder = Predicting(*(f"task {number}" for number in range(300)))
    with running(encoder) as address:
        for path, body in (
            ("/v1/predict", {"input": "a", "task": "x" * 1_000_000}),
            ("/v1/predict", {"input": "a"}),
            ("/v1/predict", {"input": "a", "task": ["x"] * 1000}),
            ("/v1/predict/" + "y" * 20_000, {"input": "a"}),
            ("/v1/embeddings", {"input": "a", "dimensions": ["x"] * 1000}),
            ("/v1/embeddings", {"input": "a", "encoding_format": "z" * 1_000_000}),
        ):
            status, text = send(address, "POST", path, json.dumps(body))
            assert status in (400, 404)
            assert len(text) < 1000
        assert len(get(address, "/v1/models/" + "n" * 20_000)[1]) < 400


def test_coverage_of_one_answers_every_row_and_true_is_no_number(address) -> None:
    """Also rows that are less sure than any validation row."""
    rows = {"input": ["a", "bcde"]}
    assert predict(address, {**rows, "coverage": 1})[1]["labels"] == ["short", "long"]
    assert predict(address, {**rows, "coverage": 1.0})[1]["labels"] == ["short", "long"]
    assert predict(address, {**rows, "coverage": 0.99})[1]["labels"] == [None, None]
    for name in ("coverage", "precision"):
        for value in (True, "1", [1] * 1000):
            refused = message_of(address, {**rows, name: value})
            assert refused.startswith(f"{name}: must be a number above 0 and at most 1; given ")
            assert len(refused) < 150
        assert "must be above 0" in message_of(address, {**rows, name: 10**290})
    assert CALIBRATION.for_coverage(1).threshold == 0
    assert CALIBRATION.for_coverage(1).num_rows == 10
    with pytest.raises(ConfigError, match="coverage: must be a number above 0"):
        CALIBRATION.for_coverage(True)


def test_texts_in_which_there_is_nothing_to_read_are_marked(address) -> None:
    """By their places, in predictions and embeddings; others have no such field."""
    texts = ["a", "", " \u200b\n", ".", "&nbsp;"]
    assert predict(address, {"input": texts})[1]["blank"] == [1, 2, 4]
    answer = json.loads(send(address, "POST", "/v1/embeddings", json.dumps({"input": texts}))[1])
    assert answer["blank"] == [1, 2, 4]
    assert "blank" not in predict(address, {"input": "a"})[1]
    assert [is_blank(text) for text in texts] == [False, True, True, False, True]


def test_model_says_what_it_can_do(address) -> None:
    """Vectors, predictions, search; its tasks and their classes."""
    about = json.loads(get(address, "/v1/models")[1])["data"][0]
    assert about["capabilities"] == {"embeddings": True, "predict": True, "search": False}
    assert about["dimensions"] == 8
    assert about["tasks"] == ["reviews", "pairs"]
    assert about["classes"] == {"reviews": ["short", "long"], "pairs": ["short", "long"]}


def unread(address, *, num_requests: int) -> socket.socket:
    """Return the socket of a client that asks for large answers and reads nothing."""
    body = json.dumps({"input": ["a"] * 2000}).encode()
    head = (
        "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    client = socket.socket()
    CLIENTS.append(client)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(address)
    client.sendall((head.encode() + body) * num_requests)
    return client


def is_ended(client: socket.socket, *, seconds: float = 60) -> bool:
    """Return whether the server ends a connection whose answers are not read, within some time."""
    poll = select.poll()
    poll.register(client, select.POLLHUP | select.POLLERR)
    return bool(poll.poll(1000 * seconds))


def test_client_that_does_not_read_its_answer_is_ended_and_others_are_served() -> None:
    """After a time; what it did not read is forgotten."""
    encoder = HashEncoder(256)
    with running(encoder, write_s=0.5, max_waiting=50_000) as address:
        clients = [unread(address, num_requests=3) for _ in range(3)]
        assert send(address, "POST", "/v1/embeddings", '{"input": "a"}')[0] == 200
        assert all(map(is_ended, clients))


def test_client_that_reads_slowly_gets_its_whole_answer() -> None:
    """As long as it reads all within the time."""
    with running(HashEncoder(256), write_s=30) as address:
        client = unread(address, num_requests=1)
        received = b""
        while not received.endswith(b"]}]}"):
            received += client.recv(1 << 18)
            time.sleep(0.001)
    assert len(json.loads(received.partition(b"\r\n\r\n")[2])["data"]) == 2000


def test_unread_answers_are_bounded_together() -> None:
    """The client that has not read for the longest time is ended first."""
    with running(HashEncoder(256), write_s=600, max_unread_bytes=10 << 20) as address:
        first = unread(address, num_requests=1)
        assert not is_ended(first, seconds=0.5)
        others = [unread(address, num_requests=2) for _ in range(4)]
        assert is_ended(first)
        assert not is_ended(others[-1], seconds=0.5)


def test_large_answer_lets_others_be_served_while_it_is_written() -> None:
    """It is written in pieces."""
    from raysent.serving.server_answer import list_answer

    async def use() -> int:
        num_turns = 0

        async def other() -> None:
            nonlocal num_turns
            while True:
                await asyncio.sleep(0)
                num_turns += 1

        counting = asyncio.ensure_future(other())
        rows = ([0.1] * 20_000 for _ in range(40))
        answer = await list_answer({"object": "list"}, "data", rows, turn=asyncio.Lock())
        counting.cancel()
        assert json.loads(bytes(answer.body)) == {"object": "list", "data": [[0.1] * 20_000] * 40}
        return num_turns

    assert asyncio.run(use()) >= 5


def test_batches_of_a_slow_model_become_small_and_those_of_a_quick_one_large() -> None:
    """So that a request of many texts lets others in between."""
    sizes: list[int] = []

    def compute(kind: float, rows: Sequence[tuple[str]]) -> np.ndarray:
        sizes.append(len(rows))
        time.sleep(kind * len(rows))
        return np.zeros((len(rows), 1))

    async def use() -> None:
        slow = Batcher(compute, max_batch=512, max_waiting=9999, wait_s=0, batch_s=0.02)
        await slow.run(0.002, [("a",)] * 60)
        quick = Batcher(compute, max_batch=512, max_waiting=9999, wait_s=0, batch_s=5)
        await quick.run(0.0, [("a",)] * 1000)

    asyncio.run(use())
    at = sizes.index(32, 1)
    assert sizes[0] == 32
    assert max(sizes[1:at]) <= 24
    assert sizes[at:] == [32, 64, 128, 256, 512, 8]


def test_long_requests_leave_half_of_the_queue_to_short_ones() -> None:
    """One of any length fits where no other long one waits."""

    async def use() -> None:
        batcher = Batcher(
            lambda _, rows: np.zeros((len(rows), 1)), max_batch=4, max_waiting=40, wait_s=0
        )
        longs = [asyncio.ensure_future(batcher.run(None, [("a",)] * 15)) for _ in range(2)]
        await asyncio.sleep(0)
        short = asyncio.ensure_future(batcher.run(None, [("a",)] * 4))
        results = await asyncio.gather(*longs, short, return_exceptions=True)
        assert [isinstance(one, QueueFullError) for one in results] == [False, True, False]
        assert len(await batcher.run(None, [("a",)] * 100)) == 100

    asyncio.run(use())


def test_work_of_a_client_that_has_gone_is_not_done() -> None:
    """The rest of a long request."""
    read: list[int] = []

    class Noting(HashEncoder):
        def encode_texts(self, sentences, *, batch_size=512):
            if sentences[0] == "a":
                read.append(len(sentences))
                time.sleep(0.05)
            return super().encode_texts(sentences, batch_size=batch_size)

    with running(Noting(8), max_batch=8) as address:
        client = unread(address, num_requests=1)
        while not read:
            time.sleep(0.01)
        client.close()
        time.sleep(0.3)
        done = sum(read)
        assert send(address, "POST", "/v1/embeddings", '{"input": "b"}')[0] == 200
        time.sleep(0.2)
        assert sum(read) == done < 2000


def test_bodies_that_are_being_read_are_bounded_together() -> None:
    """A client that sends slowly holds memory, and many of them would hold much."""

    async def use() -> None:
        reader = BodyReader(JsonProcess(timeout_s=60), max_bytes=10, max_texts=10)

        def request(*chunks: bytes) -> SimpleNamespace:
            async def stream():
                for chunk in chunks:
                    yield chunk
                    await asyncio.sleep(0)

            return SimpleNamespace(headers={"content-type": "application/json"}, stream=stream)

        sent = (b'{"a":', b" ", b" ", b"1}")
        results = await asyncio.gather(
            *(reader.read(request(*sent)) for _ in range(60)), return_exceptions=True
        )
        statuses = [getattr(one, "status_code", 200) for one in results]
        assert set(statuses) == {200, 429}
        assert await reader.read(request(*sent)) == {"a": 1}

    asyncio.run(use())


def test_usage_counts_the_tokens_of_the_models_tokenizer() -> None:
    """As the model has them; of a class without a tokenizer what stands between blanks."""

    class Letters(HashEncoder):
        def num_tokens(self, sentences):
            return np.array([len(text) for text in sentences])

    with running(Letters(8)) as address:
        answer = json.loads(
            send(address, "POST", "/v1/embeddings", '{"input": ["a b", "", "abc"]}')[1]
        )
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert HashEncoder(8).num_tokens(["two words", ""]).tolist() == [2, 1]


def test_server_starts_where_an_event_loop_runs(monkeypatch) -> None:
    """As in a notebook: it answers from a thread of its own, and ends when the cell is interrupted."""
    servers = []
    make = server_module.make_server

    def noted(*arguments):
        servers.append(make(*arguments))
        return servers[-1]

    monkeypatch.setattr(server_module, "make_server", noted)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = []
    num_frozen = []

    def ask() -> None:
        while not servers or not servers[0].started:
            time.sleep(0.01)
        num_frozen.append(gc.get_freeze_count())
        answers.append(get(("127.0.0.1", port), "/health")[0])
        servers[0].should_exit = True

    async def cell() -> None:
        asking = threading.Thread(target=ask)
        asking.start()
        serve(HashEncoder(8), port=port)
        asking.join()

    interval = sys.getswitchinterval()
    asyncio.run(cell())
    assert answers == [200]
    assert sys.getswitchinterval() == interval
    # What has been loaded is not searched for garbage while the server runs, and is afterwards.
    assert num_frozen[0] > 0
    assert gc.get_freeze_count() == 0
