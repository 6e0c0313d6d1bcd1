"""A model behind HTTP with two replicas on Ray Serve, as `python serve_replicas.py runs/first/trials/0000`.

Needs raysent[ray-serve]. With RAY_ADDRESS=HOST:PORT the replicas run on that cluster, else on this machine. `serve.run`
with `blocking=True` would serve until Ctrl-C.
"""

import json
import sys
import urllib.request

from ray import serve

from raysent.exports.ray_serve import deployment

ADDRESS = "http://127.0.0.1:8000"


def ask(texts: list[str]) -> list[list[float]]:
    """Return the vectors of texts; any client of OpenAI's embeddings does the same."""
    body = json.dumps({"input": texts}).encode()
    request = urllib.request.Request(f"{ADDRESS}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return [row["embedding"] for row in json.load(response)["data"]]


serve.run(deployment(sys.argv[1], num_replicas=2), name="raysent", route_prefix="/")
vectors = ask(["The rain fell all night.", "It rained until morning."])
print(f"{len(vectors)} vectors of {len(vectors[0])} numbers")
serve.shutdown()
