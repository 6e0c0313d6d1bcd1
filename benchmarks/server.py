"""`raysent serve` under load: the openai client in many threads, every vector compared with `encode`.

The server is a process of its own; clients and server share this machine's processors. Memory is what the server's
/metrics reports. Requires `pip install openai raysent[serve]`.

    python -m benchmarks.server MODEL [--seconds 120] [--clients 64] [--texts 4] [--json]
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.common import show
from raysent.models import load

SENTENCES = [
    f"Sentence {number} tells of {'many ' * (number % 17)}things." for number in range(2000)
]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int, path: str) -> str:
    """Return a page of the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return str(response.read().decode())


def memory(port: int) -> int:
    """Return the server's resident memory in bytes."""
    found = re.search(
        r"^process_resident_memory_bytes (\S+)$", page(port, "/metrics"), re.MULTILINE
    )
    assert found
    return int(float(found[1]))


def load_server(model: str, *, seconds: float, num_clients: int, num_texts: int) -> dict[str, Any]:
    """Return requests a second, durations and memory of a server under load; fail on a wrong vector."""
    openai, port = import_module("openai"), free_port()
    expected = load(model).encode(SENTENCES, normalize_embeddings=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "raysent", "serve", model, "--port", str(port)]
    )
    try:
        while True:
            assert server.poll() is None, "the server has ended"
            try:
                page(port, "/health")
                break
            except urllib.error.URLError:
                time.sleep(0.2)
        durations: list[float] = []
        wrong: list[int] = []
        before, end = 0, time.monotonic() + seconds
        threads = [
            threading.Thread(
                target=_ask, args=(openai, port, expected, number, num_texts, end, durations, wrong)
            )
            for number in range(num_clients)
        ]
        for thread in threads:
            thread.start()
        time.sleep(min(5.0, seconds / 4))
        before = memory(port)
        for thread in threads:
            thread.join()
        after = memory(port)
    finally:
        server.terminate()
        server.wait(60)
    times = np.array(durations) * 1000
    return {
        "requests": len(durations),
        "wrong_vectors": len(wrong),
        "requests_per_second": len(durations) / seconds,
        "p50_ms": float(np.percentile(times, 50)),
        "p99_ms": float(np.percentile(times, 99)),
        "megabytes_at_start": before / 1e6,
        "megabytes_at_end": after / 1e6,
        "exit_code": server.returncode,
    }


def _ask(
    openai: Any,
    port: int,
    expected: Any,
    number: int,
    num_texts: int,
    end: float,
    durations: list[float],
    wrong: list[int],
) -> None:
    """Send requests until the end."""
    draw = np.random.default_rng(number)
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
    ) as client:
        while time.monotonic() < end:
            rows = draw.integers(0, len(SENTENCES), size=num_texts)
            start = time.perf_counter()
            found = client.embeddings.create(model="m", input=[SENTENCES[row] for row in rows])
            durations.append(time.perf_counter() - start)
            vectors = np.array([one.embedding for one in found.data], dtype=np.float32)
            if not np.array_equal(vectors, expected[rows]):
                wrong.append(number)


def main() -> None:
    """Run the server and print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model or an ensemble")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--texts", type=int, default=4, help="texts of a request")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = load_server(
        options.model, seconds=options.seconds, num_clients=options.clients, num_texts=options.texts
    )
    show(found, options)


if __name__ == "__main__":
    main()
