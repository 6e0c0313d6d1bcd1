"""A model behind HTTP with two replicas on Ray Serve, as `python serve_replicas.py runs/first/trials/0000`.

Needs raysent[ray-serve]. With RAY_ADDRESS=HOST:PORT the replicas run on that cluster, else on this machine.
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

from raysent.exports.ray_serve import serve_replicas

ADDRESS = "http://127.0.0.1:8000"


def ask(texts: list[str]) -> list[list[float]]:
    """Return the vectors of texts; any client of OpenAI's embeddings does the same."""
    body = json.dumps({"input": texts}).encode()
    request = urllib.request.Request(f"{ADDRESS}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return [row["embedding"] for row in json.load(response)["data"]]


def ask_when_ready(stop: threading.Event) -> None:
    """Ask once, then end the server."""
    for _ in range(120):
        try:
            vectors = ask(["The rain fell all night.", "It rained until morning."])
            print(f"{len(vectors)} vectors of {len(vectors[0])} numbers")
            break
        except urllib.error.URLError:
            time.sleep(1)
    stop.set()


stop = threading.Event()
threading.Thread(target=ask_when_ready, args=(stop,)).start()
serve_replicas(sys.argv[1], num_replicas=2, address=os.environ.get("RAY_ADDRESS"), stop=stop)
