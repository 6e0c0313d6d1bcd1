"""Who may read what is written: whom the user's mask allows, and of a file that is replaced, whoever could before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from object_store import BUCKET

from raysent.data.vocabulary import WordVectors
from raysent.exports import export
from raysent.models import average_of_words
from raysent.storage import (
    Lines,
    append_json_line,
    atomic_write,
    create_shared,
    open_folder,
    save_arrays,
    save_tensors,
    write_json,
    write_text,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs the modes of POSIX")

WRITERS = {
    "text": lambda path: write_text(path, "a"),
    "JSON": lambda path: write_json(path, {"a": 1}),
    "lines": lambda path: append_json_line(path, {"a": 1}),
    "tensors": lambda path: save_tensors(path, {"a": torch.ones(2)}),
    "arrays": lambda path: save_arrays(path, {"a": np.ones(2)}),
    "journal": lambda path: Lines(path).append({"a": 1}),
}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o077], ids=oct)
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The user's mask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path, mask: int, kind: str) -> None:
    """Its folder too."""
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    WRITERS[kind](path)
    assert oct(_mode(path)) == oct(0o666 & ~mask)


def test_a_new_folder_has_the_mode_of_any_new_folder(tmp_path: Path, mask: int) -> None:
    """It is made with the first file in it."""
    write_text(tmp_path / "new" / "file", "a")
    assert oct(_mode(tmp_path / "new")) == oct(0o777 & ~mask)


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_is_replaced_keeps_its_mode(
    tmp_path: Path, mask: int, kind: str, mode: int
) -> None:
    """Also where the mask would allow more, or less."""
    if kind == "journal" and mode == 0o444 and os.geteuid():
        pytest.skip("a file that is appended to must be writable")
    path = tmp_path / "file"
    WRITERS[kind](path)
    path.chmod(mode)
    WRITERS[kind](path)
    assert oct(_mode(path)) == oct(mode)


def test_a_file_of_a_link_keeps_its_mode(tmp_path: Path) -> None:
    """The link stays a link."""
    write_text(tmp_path / "file", "a")
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "b")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "b"
    assert _mode(tmp_path / "file") == 0o600


def test_what_is_being_written_is_read_by_nobody_else(tmp_path: Path) -> None:
    """The temporary file has the mode of the one that it will replace, and is gone after an error."""
    path = tmp_path / "file"
    write_text(path, "a")
    path.chmod(0o600)
    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        assert _mode(temporary) == 0o600
        raise RuntimeError
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_machines_share_has_the_mode_of_any_new_file(tmp_path: Path, mask: int) -> None:
    """It is made once."""
    assert create_shared(str(tmp_path / "shared"), b"a")
    assert oct(_mode(tmp_path / "shared")) == oct(0o666 & ~mask)


def test_a_working_copy_of_a_bucket_has_the_modes_of_any_new_file(
    bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int
) -> None:
    """Files and lines that are downloaded; a file that is downloaded again keeps its own."""
    del bucket
    run = f"s3://{BUCKET}/a/run"
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "here"))
    folder = open_folder(run)
    write_json(folder / "a.json", {"a": 1})
    Lines(folder / "journal.jsonl").append({"a": 1})
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "there"))
    copy = open_folder(run)
    for name in ("a.json", "journal.jsonl"):
        assert oct(_mode(copy / name)) == oct(0o666 & ~mask)
        (copy / name).chmod(0o600)
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "here"))
    write_json(folder / "a.json", {"a": 2})
    Lines(folder / "journal.jsonl").append({"a": 2})
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "there"))
    copy = open_folder(run)
    assert [_mode(copy / name) for name in ("a.json", "journal.jsonl")] == [0o600, 0o600]


def test_an_export_has_the_mode_of_any_new_folder(tmp_path: Path, mask: int) -> None:
    """One into an empty folder keeps the folder's."""
    pytest.importorskip("sentence_transformers", reason="pip install raysent[export]")
    vectors = WordVectors(["red", "blue"], np.eye(2, dtype=np.float32))
    model = average_of_words(vectors)
    export(model, tmp_path / "new", to="static")
    assert oct(_mode(tmp_path / "new")) == oct(0o777 & ~mask)
    assert {_mode(path) for path in (tmp_path / "new").iterdir() if path.is_file()} == {
        0o666 & ~mask
    }
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(0o700)
    export(model, tmp_path / "empty", to="static")
    assert oct(_mode(tmp_path / "empty")) == oct(0o700)
