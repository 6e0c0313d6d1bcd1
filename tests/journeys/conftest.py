"""What a journey begins with: the wheel, installed with the extras that the docs name, and somebody's own files."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from installed import User, install
from material import write_books, write_reviews, write_sentences

# Where a journey waits for something, it waits this long at most.
PATIENCE_S = 600.0


@pytest.fixture(scope="session")
def environment_with_extras(
    archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a virtual environment with the wheel, its dependencies and the extras of the docs' how-to pages."""
    base = tmp_path_factory.getbasetemp()
    folder = (
        base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    ) / "environment-with-extras"
    with FileLock(folder.with_suffix(".lock")):
        extras = ("serve", "onnx", "search", "pretrained")
        return folder if folder.exists() else install(archives[1], folder, extras=extras)


@pytest.fixture
def user(environment_with_extras: Path, tmp_path: Path) -> User:
    """Return somebody with books, a table of reviews and a file of sentences."""
    made = User(environment_with_extras, tmp_path, RAYSENT_CACHE=str(tmp_path / "cache"))
    write_books(made.folder / "books")
    write_reviews(made.folder / "reviews.csv")
    write_sentences(made.folder / "sentences.txt")
    return made


@pytest.fixture
def until(user: User) -> Callable[[Callable[[], object], subprocess.Popen[str]], None]:
    """Return a function that waits until something holds, while a process lives."""

    def wait(holds: Callable[[], object], process: subprocess.Popen[str]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            said = (user.folder / "started.txt").read_text()
            assert process.poll() is None, (
                f"the command ended before, with exit code {process.returncode}: {said}"
            )
            assert time.monotonic() < end, f"nothing came: {said}"
            time.sleep(0.02)

    return wait


def answers(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return what the server of a port answers, and nothing before it listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}", data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from error
    except urllib.error.URLError:
        return None


@pytest.fixture
def serving(
    user: User, until: Callable[..., None]
) -> Callable[[str], AbstractContextManager[Callable[..., Any]]]:
    """Return a context in which a folder is served: a function of a path and a body to what the server answers."""

    @contextmanager
    def serve(folder: str) -> Iterator[Callable[..., Any]]:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        served = user.start("serve", folder, "--port", str(port))
        try:
            until(lambda: answers(port, "health"), served)
            yield lambda path, body: answers(port, path, body)
        finally:
            os.killpg(served.pid, signal.SIGTERM)
            served.wait()

    return serve


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """Return the environment of somebody with a bucket `store`, at an S3 server of this machine."""
    lines = (
        "import threading\nfrom moto.server import ThreadedMotoServer\n"
        "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)\nserver.start()\n"
        "print(*server.get_host_and_port(), flush=True)\nthreading.Event().wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", lines], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            host, port = server.stdout.readline().split()
            yield {
                "AWS_ENDPOINT_URL": f"http://{host}:{port}",
                "AWS_ACCESS_KEY_ID": "somebody",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
        finally:
            server.kill()
