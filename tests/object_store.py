"""A local object store for tests: moto's S3 over HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "runs"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def moto_server() -> Iterator[str]:
    """Run a server and yield its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def empty_bucket(url: str) -> Iterator[Any]:
    """Empty the server that the environment names, create the bucket, and yield a client."""
    # moto keeps its state per process, not per server.
    urllib.request.urlopen(f"{url}/moto-api/reset", data=b"").close()
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()


def keys(client: Any) -> list[str]:
    """Return the names of all objects of the bucket."""
    return [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
