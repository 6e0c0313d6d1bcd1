"""A server under attack: how long others wait, whether their answers are equal, and what memory is left.

    python -m benchmarks.attacks [--minutes 5] [--rounds 5] [--clients 200] [--checkout FOLDER] [--json]

A server of a small ensemble answers clients that predict and encode a few texts at a time, with pauses. It does so for
some minutes alone, and for as many with attacks in between, from a process of their own; a part of both in every round,
since other work of the machine would fall on one of them alone:

    wide rows       one row of 800,000 columns, and rows of 400 columns
    slow readers    a dozen requests of 2,048 texts on one connection, of whose answers nothing is read
    slow senders    a head or a body, a byte at a time
    huge ids        a task and a model of a megabyte, ids of tokens, integers of many digits
    bad JSON        lists of a million lists, brackets, an unfinished text, bytes that are no text
    long requests   2,048 texts of 200 characters, which are right

Every attacker waits a second after each attack, and gives way on the processor to the server and its clients: its own
work would be another machine's. Waits are those of clients, from the first byte sent to the last one
received. Each request has been answered once before, and every later answer must be equal to that one. Memory is that
of the server's processes: before the clients, at its highest, and when all have left. `--checkout` serves another
version, `--only` takes some of the attacks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import functools
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent
WORDS = [f"word{number}" for number in range(400)]
NUM_REQUESTS = 200
# Seconds between two requests of a client, drawn between these.
PAUSE_S = (1.0, 3.0)
# Seconds after which a client gives a request up.
GIVE_UP_S = 60
# Seconds after the last client until memory is measured: longer than an unread answer is kept.
REST_S = 45.0
TOLERANCE = 1e-6


@dataclass
class Phase:
    """What clients met in some minutes.

    Attributes:
        waits: Seconds of each answer.
        failures: Reason -> requests without an answer.
        num_other: Answers that differ from the first one.
        peak_mib: The server's memory at its highest.
    """

    waits: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    num_other: int = 0
    peak_mib: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Return the figures."""
        waits = np.array(self.waits) * 1000
        return {
            "answers": len(waits),
            "p50_ms": float(np.percentile(waits, 50)),
            "p99_ms": float(np.percentile(waits, 99)),
            "max_ms": float(waits.max()),
            "without_an_answer": dict(self.failures),
            "other_answers": self.num_other,
            "peak_mib": self.peak_mib,
        }


def texts(draw: random.Random, number: int) -> list[str]:
    """Return texts to send."""
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 20))) for _ in range(number)]


def make_model(folder: Path, checkout: Path) -> Path:
    """Return the folder of an ensemble that predicts and encodes, made by the version that serves it."""
    draw = random.Random(0)
    table = folder / "made_up.csv"
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for text in texts(draw, 400):
            is_good = draw.random() < 0.5
            writer.writerow([f"{text} {'good' if is_good else 'bad'}", "yes" if is_good else "no"])
    model = folder / "model"
    arguments = ["ensemble", "hash:64", "hash:32", "--task", str(table), "--method", "pool"]
    command = [sys.executable, "-m", "raysent", *arguments, "-o", str(model)]
    subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    return model


@contextlib.contextmanager
def serving(model: Path, checkout: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Serve a model; yield the port and the process."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "raysent", "serve", str(model), "--port", str(port)]
    process = subprocess.Popen(command, cwd=checkout)
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit("the server ended")
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                break
            time.sleep(0.2)
        yield port, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def request_of(path: str, body: bytes, *, length: int | None = None) -> bytes:
    """Return the bytes of a request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


def made_requests() -> list[bytes]:
    """Return the requests of the clients."""
    draw = random.Random(1)
    made = []
    for number in range(NUM_REQUESTS):
        path = "/v1/embeddings" if number % 3 == 0 else "/v1/predict"
        body = {"input": texts(draw, draw.randint(1, 8))}
        made.append(request_of(path, json.dumps(body).encode()))
    return made


class Client:
    """One connection that is used again and again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(HOST, self._port)
            reader, writer = self._streams
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            fields = head.decode("latin-1").lower().split("\r\n")
            length = next(int(line[15:]) for line in fields if line.startswith("content-length:"))
            return int(fields[0].split()[1]), await reader.readexactly(length)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def is_equal(answer: Any, expected: Any) -> bool:
    """Return whether two answers are equal; numbers up to the rounding of sums of another order."""
    if isinstance(answer, dict) and isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(
            is_equal(answer[name], expected[name]) for name in answer
        )
    if isinstance(answer, list) and isinstance(expected, list):
        return len(answer) == len(expected) and all(map(is_equal, answer, expected))
    if isinstance(answer, float) and isinstance(expected, float):
        return abs(answer - expected) <= TOLERANCE
    return bool(answer == expected)


async def meet(
    port: int,
    server: psutil.Process,
    expected: dict[bytes, Any],
    phase: Phase,
    *,
    clients: int,
    seconds: float,
) -> None:
    """Let clients ask for some time, and add what they met to a phase."""
    end = time.monotonic() + seconds

    async def use(number: int) -> None:
        draw = random.Random(number)
        client = Client(port)
        await asyncio.sleep(draw.uniform(0, PAUSE_S[1]))
        while time.monotonic() < end:
            request = draw.choice(list(expected))
            started = time.perf_counter()
            try:
                status, body = await asyncio.wait_for(client.ask(request), GIVE_UP_S)
            except (OSError, EOFError, TimeoutError) as error:
                phase.failures[type(error).__name__] += 1
            else:
                phase.waits.append(time.perf_counter() - started)
                if status != 200:
                    phase.failures[str(status)] += 1
                elif not is_equal(json.loads(body), expected[request]):
                    phase.num_other += 1
            await asyncio.sleep(draw.uniform(*PAUSE_S))
        await client.close()

    async def watch() -> None:
        while True:
            phase.peak_mib = max(phase.peak_mib, mib(server))
            await asyncio.sleep(0.5)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*map(use, range(clients)))
    watching.cancel()


def mib(process: psutil.Process) -> float:
    """Return the memory that a process and those that it started hold, in MiB."""
    num_bytes = 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            num_bytes += one.memory_info().rss
    return num_bytes / (1 << 20)


def read_all(port: int, request: bytes, *, seconds: float = 30) -> None:
    """Send a request and read what comes, for some seconds at most."""
    with socket.create_connection((HOST, port), timeout=seconds) as stream:
        stream.sendall(request)
        stream.settimeout(seconds)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = stream.recv(1 << 16)
            if not part:
                return
            answer += part


@functools.cache
def attack_requests() -> dict[str, list[bytes]]:
    """Return the requests of attacks, made before they begin: they cost the machine nothing but their sending."""
    draw = random.Random(2)
    wide = [[["x"] * 800_000], [["x"] * 400] * 2000]
    ids = [
        {"input": "a", "task": "t" * 3_000_000},
        {"input": [[7] * 900_000]},
        {"input": list(range(500_000))},
    ]
    no_json = [
        b'{"input":[' + b"[]," * 1_300_000 + b"[]]}",
        b"[" * 4_000_000,
        b'{"input":["' + b'\\"' * 1_900_000,
        bytes(range(256)) * 10_000,
        b"{" + b",".join(b'"%d":1' % key for key in range(300_000)) + b"}",
    ]
    digits = b'{"input": "a", "dimensions": ' + b"9" * 3_000_000 + b"}"
    long = json.dumps({"input": texts(draw, 2048)}).encode()
    predict = "/v1/predict"
    return {
        "wide": [request_of(predict, json.dumps({"input": rows}).encode()) for rows in wide],
        "ids": [
            *(request_of(predict, json.dumps(body).encode()) for body in ids),
            request_of("/v1/embeddings", digits),
            f"GET /v1/models/{'m' * 60_000} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(),
        ],
        "no JSON": [request_of(predict, body) for body in no_json],
        "long": [request_of(predict, long)],
        "unread": [request_of("/v1/embeddings", json.dumps({"input": ["a"] * 2048}).encode()) * 12],
        "slow": [request_of(predict, b'{"input": "a"}', length=4_000_000)],
    }


def send_next(port: int, kind: str, number: int) -> None:
    """Send a request of a kind and read its answer."""
    requests = attack_requests()[kind]
    read_all(port, requests[number % len(requests)], seconds=60)


def slow_readers(port: int, number: int) -> None:
    """A client that leaves its answers."""
    del number
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    stream.settimeout(5)
    stream.connect((HOST, port))
    STUCK.append(stream)
    if len(STUCK) > 60:
        STUCK.pop(0).close()
    with contextlib.suppress(OSError):
        stream.sendall(attack_requests()["unread"][0])


def slow_senders(port: int, number: int) -> None:
    """A head or a body that comes a byte at a time."""
    (request,) = attack_requests()["slow"]
    with socket.create_connection((HOST, port), timeout=30) as stream:
        stream.sendall(request[: 20 if number % 2 else len(request)])
        for _ in range(20):
            stream.sendall(b" ")
            time.sleep(0.5)


STUCK: list[socket.socket] = []
ATTACKS: dict[str, Callable[[int, int], None]] = {
    "wide rows": lambda port, number: send_next(port, "wide", number),
    "slow readers": slow_readers,
    "slow senders": slow_senders,
    "huge ids": lambda port, number: send_next(port, "ids", number),
    "bad JSON": lambda port, number: send_next(port, "no JSON", number),
    "long requests": lambda port, number: send_next(port, "long", number),
}


def attack_for(port: int, name: str, seconds: float, counts: Any, start: Any) -> None:
    """Attack again and again, for some seconds, and count how often."""
    attack_requests()
    os.nice(19)
    start.wait()
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            ATTACKS[name](port, number)
        number += 1
        counts[name] = number
        time.sleep(1)


def first_answers(port: int) -> dict[bytes, Any]:
    """Return the answer of each request of the clients, asked alone."""

    async def ask() -> dict[bytes, Any]:
        client = Client(port)
        answers = {}
        for request in made_requests():
            status, body = await client.ask(request)
            assert status == 200, body
            answers[request] = json.loads(body)
        await client.close()
        return answers

    return asyncio.run(ask())


def attack_meanwhile(
    port: int,
    names: Sequence[str],
    seconds: float,
    num_attacks: Counter[str],
    meeting: Callable[[], None],
) -> None:
    """Attack for some seconds while clients meet the server, and add how often to the counts."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        counts = manager.dict()
        start = context.Barrier(len(names) + 1)
        attackers = [
            context.Process(target=attack_for, args=(port, name, seconds, counts, start))
            for name in names
        ]
        for attacker in attackers:
            attacker.start()
        start.wait()
        meeting()
        for attacker in attackers:
            attacker.join(90)
            if attacker.is_alive():
                attacker.terminate()
        num_attacks.update(dict(counts))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a server without and with attacks, a part of the minutes of each in every round."""
    seconds = 60 * options.minutes / options.rounds
    calm, attacked = Phase(), Phase()
    num_attacks = Counter[str]()
    checkout = options.checkout.resolve()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), checkout)
        with serving(model, checkout) as (port, server):
            expected = first_answers(port)

            def let_meet(phase: Phase, seconds: float) -> None:
                """Let clients meet the server."""
                asyncio.run(
                    meet(port, server, expected, phase, clients=options.clients, seconds=seconds)
                )

            let_meet(Phase(), 5)
            before = mib(server)
            for _ in range(options.rounds):
                let_meet(calm, seconds)
                meeting = functools.partial(let_meet, attacked, seconds)
                attack_meanwhile(port, options.only, seconds, num_attacks, meeting)
            time.sleep(REST_S)
            after = mib(server)
    without, beside = calm.summary(), attacked.summary()
    return {
        "minutes": options.minutes,
        "rounds": options.rounds,
        "clients": options.clients,
        "attacks": dict(num_attacks),
        "without": without,
        "with": beside,
        "ratio_p99": beside["p99_ms"] / without["p99_ms"],
        "mib": {"before": before, "after": after},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = measured(given)
    if given.json:
        print(json.dumps(figures))
        return
    print(
        f"{given.clients} clients, {given.minutes:g} minutes each, in {given.rounds} rounds; "
        f"attacks: {figures['attacks']}\n"
    )
    print("| | answers | p50 | p99 | longest | no answer | other answers | memory at most |")
    print("|---|---:|---:|---:|---:|---|---:|---:|")
    for name in ("without", "with"):
        part = figures[name]
        print(
            f"| {name} attacks | {part['answers']:,} | {part['p50_ms']:.0f} ms "
            f"| {part['p99_ms']:.0f} ms | {part['max_ms']:.0f} ms "
            f"| {part['without_an_answer'] or 'none'} | {part['other_answers']} "
            f"| {part['peak_mib']:.0f} MiB |"
        )
    memory = figures["mib"]
    print(f"\np99 with attacks is {figures['ratio_p99']:.2f} times that without.")
    print(f"Memory: {memory['before']:.0f} MiB before, {memory['after']:.0f} MiB after.")


if __name__ == "__main__":
    main()
