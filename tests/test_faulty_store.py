"""A bucket that fails: what is repeated, what is refused, and that no answer of a stranger is taken for an object."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from object_store import BUCKET, CREDENTIALS

from benchmarks.faults import is_naked
from benchmarks.faulty_store import KINDS, Store, handler
from raysent.errors import ArtifactError
from raysent.storage import object_store

ADDRESS = f"s3://{BUCKET}/a/model.bin"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, object_store: str) -> Iterator[Store]:
    """Return a store with one object, which this process uses, with short waits."""
    for name, text in CREDENTIALS.items():
        monkeypatch.setenv(name, text)
    made = Store(object_store)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    _be_impatient(monkeypatch)
    assert _put(ADDRESS, CONTENT)
    made.keep()
    made.reset("", 0)
    yield made
    server.shutdown()
    server.server_close()


def _be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(object_store, "READ_S", 0.3)
    object_store._client.cache_clear()


def _put(address: str, content: bytes) -> bool:
    return object_store.conditional_put(address, content)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.endswith("once")])
def test_a_request_that_fails_once_is_repeated(store: Store, kind: str) -> None:
    """Content that ends too early too, and a put whose answer was lost."""
    store.reset(kind, 0)
    found = object_store.get_content(ADDRESS)
    assert found is not None
    assert found.data == CONTENT
    store.reset(kind, 0)
    assert _put(f"{ADDRESS}.new", b"new")
    assert not _put(f"{ADDRESS}.new", b"other")


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"late"}))
def test_a_store_that_fails_is_refused_in_one_line_with_a_cure(
    store: Store, kind: str, tmp_path
) -> None:
    """Or what it gives is right."""
    store.reset(kind, 0)
    try:
        object_store.get_file(ADDRESS, tmp_path / "file")
    except ArtifactError as error:
        line = str(error)
        assert line.startswith(f"{ADDRESS}: ")
        assert "\n" not in line
        assert not is_naked(line), line
        assert not kind.endswith("once")
    else:
        assert (tmp_path / "file").read_bytes() == CONTENT
        assert kind.endswith("once")


def test_the_page_of_a_network_is_no_object(store: Store) -> None:
    """Neither what it gives, nor what it seems to take."""
    store.reset("nonsense", 0)
    says = f"^{ADDRESS}: (what answers is no object store; see AWS_|the object store fails: 500 )"
    with pytest.raises(ArtifactError, match=says):
        object_store.get_content(ADDRESS)
    with pytest.raises(ArtifactError, match=says):
        _put(ADDRESS, b"lost")
    with pytest.raises(ArtifactError, match=says):
        object_store.exists(ADDRESS)
    with pytest.raises(ArtifactError, match=says):
        object_store.list_s3(ADDRESS, kind=ArtifactError)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("error: model/model.json: truncated or not JSON; restore it or run again", False),
        ("error: table.csv: must have two columns; given 1", False),
        ("error: [Errno 28] No space left on device", True),
        ("error: model: [Errno 5] Input/output error", True),
        ("error: 'NoneType' object has no attribute 'x'", True),
        ("error: KeyError: 'trials'", True),
        ("error: out.csv: 'trials'", True),
    ],
)
def test_a_line_has_a_place_and_a_cure(line: str, expected: bool) -> None:
    """A line that prints an exception's text alone has not."""
    assert is_naked(line) == expected
