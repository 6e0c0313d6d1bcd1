"""The time of a request of one sentence to `raysent serve`, beside `encode` of the sentence alone, in milliseconds.

OMP_NUM_THREADS=1 python -m benchmarks.latency MODEL
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np

import raysent
from benchmarks.server import free_port

SENTENCES = [f"Sentence {number} tells of {'many ' * (number % 17)}things." for number in range(200)]
SECONDS = 6.0


def ask(port: int, number: int, end: float, durations: list[float]) -> None:
    """Send requests over one connection until the end."""
    connection, headers = http.client.HTTPConnection("127.0.0.1", port), {"Content-Type": "application/json"}
    while time.monotonic() < end:
        number += 1
        body = json.dumps({"input": SENTENCES[number % len(SENTENCES)], "encoding_format": "base64"})
        began = time.perf_counter()
        connection.request("POST", "/v1/embeddings", body, headers)
        connection.getresponse().read()
        durations.append(time.perf_counter() - began)


def main() -> None:
    """Print the median of `encode`, and the median and the last percentile of requests by number of clients."""
    model, alone = raysent.load(sys.argv[1]), []
    model.encode(SENTENCES)
    for text in SENTENCES * 3:
        began = time.perf_counter()
        model.encode([text], normalize_embeddings=True)
        alone.append(time.perf_counter() - began)
    found: dict[str, object] = {"encode": round(1e3 * float(np.median(alone)), 2)}
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "raysent", "serve", sys.argv[1], "--port", str(port)])
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
            break
        except OSError:
            time.sleep(0.2)
    for clients in (1, 8, 64):
        durations: list[float] = []
        end = time.monotonic() + SECONDS
        threads = [threading.Thread(target=ask, args=(port, one, end, durations)) for one in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found[f"{clients} clients"] = [round(1e3 * float(np.percentile(durations, part)), 1) for part in (50, 99)]
    server.terminate()
    server.wait()
    print(found)


if __name__ == "__main__":
    main()
