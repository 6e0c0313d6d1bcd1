"""What one client of the server costs the others: long requests in parts, JSON in a process of its own, memory."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from test_server import running, send
from test_server_limits import unread

from raysent.data.same_text import is_blank
from raysent.models.schemes import hash as hash_scheme
from raysent.models.schemes.hash import HashEncoder
from raysent.serving import batching, server_answer, server_json_process, server_request
from raysent.serving.batching import Batcher
from raysent.serving.server import _memory_given_back
from raysent.serving.server_json import JOBS
from raysent.serving.server_json_process import JsonProcess, JsonProcessError

pytest.importorskip("uvicorn", reason="pip install raysent[serve]")

# More bytes than the server reads itself, and more numbers than it writes itself.
LARGE = {"input": ["word " * 30] * 1000}
SMALL = '{"input": "a"}'


class Clock:
    """Seconds that pass only where a model computes: a millisecond a row."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        """Return the time."""
        return self.seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Let the queue go by such a clock."""
    made = Clock()
    monkeypatch.setattr(batching, "time", made)
    return made


def rows_of(text: str, number: int) -> list[tuple[str]]:
    """Return a request of equal rows."""
    return [(text,)] * number


def test_short_request_goes_before_the_parts_of_long_ones(clock) -> None:
    """Also where it comes last: what is being computed ends, then it is computed."""
    texts: list[str] = []
    turns = threading.Semaphore(0)

    def compute(_: None, rows: list[tuple[str]]) -> np.ndarray:
        texts.append(rows[0][0])
        turns.acquire()
        clock.seconds += 0.001 * len(rows)
        return np.array([[len(text)] for (text,) in rows])

    async def until(number: int) -> None:
        while len(texts) < number:
            await asyncio.sleep(0.001)

    async def use() -> None:
        batcher = Batcher(compute, max_batch=512, max_waiting=9999, wait_s=0)
        turns.release()
        await batcher.run(None, rows_of("before", 1))
        longs = [asyncio.ensure_future(batcher.run(None, rows_of(name, 200))) for name in "ab"]
        for number in range(2, 6):  # four parts of them
            await until(number)
            turns.release()
        await until(6)
        short = asyncio.ensure_future(batcher.run(None, rows_of("short", 2)))
        await asyncio.sleep(0)
        turns.release(100)
        assert (await short).tolist() == [[5], [5]]
        num_before = len(texts)
        assert [len(await long) for long in longs] == [200, 200]
        assert texts[6] == "short"
        assert len(texts) > num_before

    asyncio.run(use())
    assert set(texts[1:6]) == {"a", "b"}


def test_long_request_ends_however_many_short_ones_come(clock) -> None:
    """They go first for some time, and no longer."""
    is_ended = False

    def compute(_: None, rows: list[tuple[str]]) -> np.ndarray:
        clock.seconds += 0.001 * len(rows)
        return np.zeros((len(rows), 1))

    async def use() -> None:
        nonlocal is_ended
        batcher = Batcher(compute, max_batch=64, max_waiting=9999, wait_s=0)

        async def ask_again() -> None:
            while not is_ended:
                await batcher.run(None, rows_of("short", 3))

        others = [asyncio.ensure_future(ask_again()) for _ in range(30)]
        await asyncio.sleep(0.01)
        assert len(await batcher.run(None, rows_of("long", 500))) == 500
        is_ended = True
        await asyncio.gather(*others)

    asyncio.run(use())


def test_parts_are_small_only_where_others_ask_and_change_no_bit(clock) -> None:
    """A client that is alone has batches of the whole size."""
    encoder = HashEncoder(8)
    texts = [f"word{number} and {'more ' * (number % 7)}" for number in range(700)]
    sizes: list[int] = []

    def compute(_: None, rows: list[tuple[str]]) -> np.ndarray:
        sizes.append(len(rows))
        clock.seconds += 0.0001 * len(rows)
        return encoder.encode([text for (text,) in rows])

    async def use() -> list[np.ndarray]:
        batcher = Batcher(compute, max_batch=512, max_waiting=9999, wait_s=0)
        rows = [(text,) for text in texts]
        alone = await batcher.run(None, rows)
        await batcher.run(None, rows[:1])
        sizes.append(0)
        return [alone, await batcher.run(None, rows)]

    results = asyncio.run(use())
    at = sizes.index(0)
    assert max(sizes[:at]) >= 256
    assert max(sizes[at:]) <= 64
    for vectors in results:
        np.testing.assert_array_equal(vectors, encoder.encode(texts))


@pytest.fixture(scope="module")
def process() -> Iterator[JsonProcess]:
    """Return a process that does JSON."""
    return JsonProcess(timeout_s=600)


def done(process: JsonProcess, name: str, content: bytes, **arguments):
    """Return the result of a job, or the reason why there is none."""

    async def use():
        return await process.do(name, content, **arguments)

    try:
        return asyncio.run(use())
    except ValueError as error:
        return f"ValueError: {error}"


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": ["a", "\\ud83d", "\xc3\xa9"], "k": 12345678901234567890123, "b": [1.5, true, null]}',
        b"null",
        b'"text"',
        b"\xef\xbb\xbf{}",
        b"[1,",
        b"\xff",
        b"[" * 4000,
        b'{"a": 1e999}',
        b'{"a": NaN}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" + b"[]," * 5000 + b"[]]",
    ],
)
def test_body_is_read_alike_in_either_process(process, body) -> None:
    """Its value, or the reason of refusing it."""
    try:
        expected = JOBS["read"](body, max_values=5000)
    except ValueError as error:
        expected = f"ValueError: {error}"
    assert done(process, "read", body, max_values=5000) == expected


@pytest.mark.parametrize("number_type", ["f", "d"])
def test_numbers_are_written_as_json_writes_them(process, number_type) -> None:
    """In every form, by either process; what is no number is refused."""
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(number_type)
    objects = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in enumerate(rows.tolist(), 7)
    ]
    expected = {"plain": rows.tolist(), "float": objects}
    for form, values in expected.items():
        arguments = {"width": 3, "type_code": number_type, "form": form, "first": 7}
        written = done(process, "write", rows.tobytes(), **arguments)
        assert written == JOBS["write"](rows.tobytes(), **arguments)
        assert written.decode() == json.dumps(values, separators=(",", ":"))[1:-1]
    no_numbers = np.full((1, 1), np.nan, number_type).tobytes()
    arguments = {"width": 1, "type_code": number_type, "form": "plain", "first": 0}
    assert "not JSON compliant" in done(process, "write", no_numbers, **arguments)


@pytest.mark.parametrize("form", ["float", "base64"])
def test_long_answers_are_those_of_short_ones(form) -> None:
    """Their parts are joined in their order."""
    texts = [f"word{number}" for number in range(1500)]
    encoder = HashEncoder(64)
    with running(encoder) as address:
        body = json.dumps({"input": texts, "encoding_format": form})
        answer = json.loads(send(address, "POST", "/v1/embeddings", body)[1])["data"]
    assert [row["index"] for row in answer] == list(range(1500))
    vectors = [row["embedding"] for row in answer]
    if form == "base64":
        vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
    expected = encoder.encode(texts, normalize_embeddings=True)
    np.testing.assert_array_equal(np.array(vectors, dtype=np.float32), expected)


def test_server_reads_no_large_body_and_writes_no_long_answer_itself(monkeypatch) -> None:
    """A wide row, a huge task and many texts are read beside it; and what it does itself is small."""
    num_bytes: list[int] = []
    num_numbers: list[int] = []

    def noted_read(body, **arguments):
        num_bytes.append(len(body))
        return JOBS["read"](body, **arguments)

    def noted_write(numbers, **arguments):
        num_numbers.append(len(numbers) // 4)
        return JOBS["write"](numbers, **arguments)

    monkeypatch.setattr(server_request, "read_body", noted_read)
    monkeypatch.setattr(server_answer, "write_rows", noted_write)
    with running(HashEncoder(8)) as address:
        wide = json.dumps({"input": [["x"] * 700_000]})
        status, text = send(address, "POST", "/v1/embeddings", wide)
        assert status == 400
        assert "it has more than 17,384 values, brackets, commas and colons" in text
        huge = json.dumps({"input": "a", "dimensions": "t" * 3_000_000})
        assert send(address, "POST", "/v1/embeddings", huge)[0] == 400
        assert send(address, "POST", "/v1/embeddings", json.dumps(LARGE))[0] == 200
        assert send(address, "POST", "/v1/embeddings", SMALL)[0] == 200
    assert num_bytes == [len(SMALL)]
    assert num_numbers == [8]


def json_processes() -> list[psutil.Process]:
    """Return the processes beside the servers of this one."""
    return [
        child
        for child in psutil.Process().children()
        if child.is_running() and any("server_json.py" in part for part in child.cmdline())
    ]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signal on this system")
def test_short_requests_are_answered_while_a_large_body_is_read() -> None:
    """And while a long answer is written; a process that hangs is ended, and started again."""
    earlier = {process.pid for process in json_processes()}
    with running(HashEncoder(8)) as address, ThreadPoolExecutor(1) as threads:
        body = json.dumps(LARGE)
        first = send(address, "POST", "/v1/embeddings", body)
        assert first[0] == 200
        beside = [process.pid for process in json_processes() if process.pid not in earlier]
        assert len(beside) == 2
        for pid in beside:
            os.kill(pid, signal.SIGSTOP)
            long = threads.submit(send, address, "POST", "/v1/embeddings", body)
            for _ in range(3):
                assert send(address, "POST", "/v1/embeddings", SMALL)[0] == 200
            assert not long.done()
            os.kill(pid, signal.SIGCONT)
            assert long.result() == first
        for pid in beside:
            os.kill(pid, signal.SIGKILL)
        assert send(address, "POST", "/v1/embeddings", body) == first
    with running(HashEncoder(8), timeout_s=2) as address:
        before = {process.pid for process in json_processes()}
        assert send(address, "POST", "/v1/embeddings", body)[0] in (200, 503)
        for process in json_processes():
            if process.pid not in before:
                process.suspend()
        assert send(address, "POST", "/v1/embeddings", body)[0] == 503


def test_jobs_are_done_where_no_process_can_be_started(monkeypatch) -> None:
    """By this one."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(
        server_json_process, "subprocess", SimpleNamespace(Popen=refuse, PIPE=subprocess.PIPE)
    )
    assert done(JsonProcess(timeout_s=600), "read", b"[1]", max_values=9) == [1]


def test_process_that_ends_in_every_job_is_said(monkeypatch) -> None:
    """It is tried twice; the client may try again later."""
    monkeypatch.setattr(server_json_process, "_START", "import sys; sys.stdin.buffer.read(1)")
    with pytest.raises(JsonProcessError):
        done(JsonProcess(timeout_s=600), "read", b"[1]", max_values=9)
    with running(HashEncoder(8)) as address:
        status, text = send(address, "POST", "/v1/embeddings", json.dumps(LARGE))
        assert status == 503
        assert "the JSON was not read or written in time" in text
        assert send(address, "POST", "/v1/embeddings", SMALL)[0] == 200


def test_next_request_of_a_client_is_computed_when_it_has_read_the_answer() -> None:
    """Many requests on one connection, of whose answers nothing is read, cost as much as one."""
    num_texts: list[int] = []

    class Noting(HashEncoder):
        def encode_texts(self, sentences, *, batch_size=512):
            num_texts.append(len(sentences))
            return super().encode_texts(sentences, batch_size=batch_size)

    with running(Noting(256)) as address:
        num_texts.clear()
        client = unread(address, num_requests=3)
        while sum(num_texts) < 2000:
            time.sleep(0.01)
        time.sleep(0.5)
        assert sum(num_texts) == 2000
        received = 0
        while received < 3 * 2000 * 256:
            received += len(client.recv(1 << 18))
        while sum(num_texts) < 6000:
            received += len(client.recv(1 << 18))
        assert sum(num_texts) == 6000


def test_free_memory_is_given_back_while_the_server_runs(monkeypatch) -> None:
    """By the C library, where it can; and no longer when the server has ended."""
    from raysent.serving import server as server_module

    is_called = threading.Event()
    calls = []

    def trim() -> bool:
        calls.append("trim")
        if len(calls) > 1:
            is_called.set()
        return True

    monkeypatch.setattr(server_module, "trim_heap", trim)
    monkeypatch.setattr(server_module, "_TRIM_EACH_S", 0.01)
    num_threads = threading.active_count()
    with _memory_given_back():
        assert is_called.wait(600)
    assert threading.active_count() == num_threads
    monkeypatch.setattr(server_module, "trim_heap", lambda: False)
    with _memory_given_back():
        assert threading.active_count() == num_threads


def retained(encoder: HashEncoder, texts: list[str]) -> int:
    """Return the bytes that an encoder keeps of texts that it has encoded."""
    tracemalloc.start()
    encoder.encode(texts)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


def test_words_that_are_kept_are_bounded_by_what_they_take(monkeypatch) -> None:
    """With all that is around their vectors; and words of many characters are not kept."""
    monkeypatch.setattr(hash_scheme, "_CACHE_BYTES", 1 << 20)
    words = [f"word{number}" for number in range(8_000)]
    assert retained(HashEncoder(2), words) < 1.5 * (1 << 20)
    long_words = [f"{number}{'x' * 5000}" for number in range(200)]
    assert retained(HashEncoder(2), long_words) < 250_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (" \u200b", True),
        ("&nbsp;", True),
        ("&#x200b; &nbsp;", True),
        ("&amp;nbsp;", True),
        ("&", False),
        ("&lt;", False),
        ("a&nbsp;", False),
        ("&nbsp;a", False),
    ],
)
def test_blank_texts_are_those_of_marks_alone(text, expected) -> None:
    """Whatever they begin with."""
    assert is_blank(text) is expected
