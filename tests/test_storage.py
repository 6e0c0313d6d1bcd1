"""Files are written atomically, and damaged ones raise one clear error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch

from raysent.errors import ArtifactError
from raysent.evaluation import records
from raysent.storage import (
    atomic_write,
    content_key,
    file_sha256,
    load_arrays,
    load_tensors,
    read_json,
    read_json_lines,
    remove,
    save_arrays,
    save_tensors,
    storage_errors,
    write_json,
)


def test_atomic_write_keeps_the_old_file_when_the_writer_fails(tmp_path):
    """A writer that fails half-way changes nothing and leaves no temporary file."""
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_storage_errors_names_a_full_disk():
    """A full disk raises one clear error."""
    with pytest.raises(ArtifactError, match="^/x: the disk is full"), storage_errors("/x"):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EIO, "^x: the disk does not answer as it should .*; check it"),
        (errno.ESTALE, "^x: the disk does not answer as it should .*; check it"),
        (errno.EMFILE, "^x: too many files are open; raise the limit by 'ulimit -n'"),
        (errno.EROFS, "^x: cannot be written; name another folder$"),
    ],
)
def test_storage_errors_says_what_a_disk_that_fails_needs(number, expected):
    """One line with the place and what to do about it."""
    with pytest.raises(ArtifactError, match=expected), storage_errors("x"):
        raise OSError(number, os.strerror(number), "x")


def test_storage_errors_says_what_the_system_said_of_no_file():
    """A semaphore that may not be made is no cache that cannot be written; a file of ours is."""
    with (
        pytest.raises(ArtifactError, match=r"^/x: the system refused .*: \[Errno 13\]"),
        storage_errors("/x"),
    ):
        raise OSError(errno.EACCES, "Permission denied")
    with pytest.raises(ArtifactError, match="^/x: cannot be written"), storage_errors("/x"):
        raise OSError(errno.EACCES, "Permission denied", "/x/y")


def test_file_that_cannot_be_removed_is_one_line(tmp_path):
    """As of an evaluation in a folder that is a file, or on a disk that is read-only."""
    (tmp_path / "file").touch()
    with pytest.raises(
        ArtifactError, match=r"file/x.json: a file exists where a folder is needed, or the reverse$"
    ):
        remove(tmp_path / "file" / "x.json")


def test_sealed_json_is_read_as_it_was_written_or_refused(tmp_path):
    """With any bit flipped, and without any line, it has all the same values, or there is one line."""
    path = tmp_path / "a.json"
    values = {"name": "é", "score": 76.25, "parts": [1, {"on": True, "none": None}], "small": 1e-7}
    write_json(path, values | {"parts": (1, {"on": True, "none": None})}, sealed=True)
    whole = path.read_bytes()
    assert read_json(path) == values
    lines = whole.splitlines(keepends=True)
    damaged = [b"".join(lines[:number] + lines[number + 1 :]) for number in range(len(lines))]
    for at in range(len(whole)):
        damaged += [
            whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for bit in range(8)
        ]
    num_refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            found = read_json(path)
        except ArtifactError:
            num_refused += 1
        else:
            # Only the seal itself may be called otherwise, or be gone.
            assert {name: found.get(name) for name in values} == values
    assert len(damaged) > num_refused > len(damaged) - 200
    write_json(path, values, sealed=False)
    assert read_json(path) == values
    with pytest.raises(
        ArtifactError, match=r"a.json: changed since it was written; restore it or run again$"
    ):
        read_json(path, sealed=True)


def test_write_json_refuses_nan(tmp_path):
    """NaN is never written, nor replaced by another value."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})


def test_read_json_lines_drops_only_an_incomplete_last_line(tmp_path):
    """An incomplete last line is dropped; any other damage is an error."""
    path = tmp_path / "journal.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert read_json_lines(path, is_plain=True) == [{"a": 1}]
    path.write_text('{"a"\n{"a": 3}\n')
    for is_plain in (False, True):
        with pytest.raises(ArtifactError, match=r"journal.jsonl:1: not JSON"):
            read_json_lines(path, is_plain=is_plain)


def test_tensors_and_arrays_round_trip_and_refuse_truncated_files(tmp_path):
    """Tensors and arrays are read back; a truncated file is an error."""
    save_tensors(tmp_path / "t", {"w": torch.arange(6.0).view(2, 3)})
    save_arrays(tmp_path / "a", {"x": np.arange(3)})
    assert load_tensors(tmp_path / "t")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert load_arrays(tmp_path / "a")["x"].tolist() == [0, 1, 2]
    for name, load in (("t", load_tensors), ("a", load_arrays)):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(ArtifactError, match="truncated or not"):
            load(tmp_path / name)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.EFBIG, "the disk is full; free some space"),
        (errno.ENOSPC, "the disk is full; free some space"),
        (errno.EROFS, "cannot be written; name another folder"),
        (errno.EIO, "the disk does not answer as it should"),
        (errno.EMFILE, "too many files are open"),
    ],
)
def test_tensors_that_the_disk_refuses_are_one_line(tmp_path, monkeypatch, code, message):
    """The library of safetensors has an error of its own, with the system's number in its text."""

    def refuse(*_: object, **__: object) -> None:
        text = f"Error while serializing: I/O error: {os.strerror(code)} (os error {code})"
        raise safetensors.SafetensorError(text)

    monkeypatch.setattr("safetensors.torch.save_file", refuse)
    with pytest.raises(ArtifactError, match=f"^{tmp_path}/model.safetensors: {message}"):
        save_tensors(tmp_path / "model.safetensors", {"a": torch.ones(2)})
    assert list(tmp_path.iterdir()) == []


def test_sealed_tensors_are_read_as_they_were_written_or_refused(tmp_path):
    """With any bit of their values flipped there is one line; others have no hash."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"w": torch.arange(6.0).view(2, 3)}, sealed=True)
    assert load_tensors(path)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    whole = path.read_bytes()
    for place in range(len(whole) - 24, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ArtifactError, match="a.safetensors: changed since it was written; res"):
            load_tensors(path)
    save_tensors(path, {"w": torch.arange(6.0)})
    assert load_tensors(path)["w"].tolist() == [0, 1, 2, 3, 4, 5]


def test_json_is_sealed_unless_other_programs_read_it(tmp_path):
    """A mapping; a list has no place for a hash."""
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    assert read_json(path, sealed=True) == {"a": 1}
    path.write_text(path.read_text().replace('"a": 1', '"a": 3'))
    with pytest.raises(ArtifactError, match=r"a.json: changed since it was written"):
        read_json(path)
    write_json(path, {"a": 1}, sealed=False)
    assert path.read_text() == '{\n  "a": 1\n}\n'
    write_json(path, [1])
    assert read_json(path) == [1]


def test_only_wanted_arrays_are_read_and_none_that_is_too_large_for_its_file(tmp_path):
    """Zeros are packed a thousand times smaller; small arrays may be of zeros."""
    path = tmp_path / "a.npz"
    zeros = np.zeros(1 << 27, dtype=np.int8)
    save_arrays(path, {"x": np.arange(3), "z": zeros})
    assert load_arrays(path, is_wanted="x".__eq__)["x"].tolist() == [0, 1, 2]
    with pytest.raises(
        ArtifactError,
        match=r"a.npz: must unpack to at most 67,108,864 bytes; its arrays have 134,218,\d+; is ",
    ):
        load_arrays(path)
    save_arrays(path, {"z": zeros[: 1 << 20], "f": np.asfortranarray(np.ones((2, 3)))})
    arrays = load_arrays(path)
    assert arrays["z"].shape == (1 << 20,)
    assert arrays["f"].tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(ArtifactError, match="truncated or not .npz"):
        save_arrays(path, {"o": np.array([{}], dtype=object)})
        load_arrays(path)


def test_content_key_depends_on_the_parts_and_their_boundaries():
    """Parts that join to the same bytes have different keys."""
    assert content_key(b"ab", b"c") != content_key(b"a", b"bc")
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})


def test_hash_of_a_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    """A command may remove a folder between two looks of another one at it."""
    with pytest.raises(ArtifactError, match=r"gone\.npz: no such file; if another command makes"):
        file_sha256(tmp_path / "gone.npz")


def test_record_whose_arrays_go_while_they_are_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resume` makes `RUN/best` again while `predict` reads it."""
    path = tmp_path / "reviews.npz"
    save_arrays(path, {"scores": np.zeros(3)})

    def load_and_lose(file: Path, **_: object) -> dict[str, np.ndarray]:
        arrays = load_arrays(file)
        file.unlink()
        return arrays

    monkeypatch.setattr(records, "load_arrays", load_and_lose)
    about = {records.ARRAYS_KEY: "0"}
    with pytest.raises(ArtifactError, match=r"reviews\.npz: no such file"):
        records.read_arrays(tmp_path, "reviews", about, is_wanted=lambda _: True)
