"""Append-only files: numbers and hashes of lines, batches, what is torn, what is damaged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysent.errors import ArtifactError
from raysent.storage import Lines, check_lines, read_json_lines

ENTRIES = [{"event": "started", "trial": f"{number:04d}", "text": "é\n{"} for number in range(6)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    """The content of a file with six lines."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    lines = Lines(path)
    for entry in ENTRIES:
        lines.append(entry)
    return path.read_bytes()


def test_lines_are_read_as_they_were_appended(tmp_path, data):
    """Number, what was seen of another file, and hash are left out; a batch is taken apart."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    lines = Lines(path)
    lines.seen = lambda: {"ledger": [3, 0.5]}
    lines.append({"a": 1}, {"b": 2})
    assert read_json_lines(path) == [*ENTRIES, {"a": 1}, {"b": 2}]
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["line"], last["seen"], len(last["hash"])) == (6, {"ledger": [3, 0.5]}, 16)
    assert check_lines(path.read_bytes()).lines[-1].seen == {"ledger": [3, 0.5]}


def test_lines_drop_what_a_killed_writer_left_and_keep_a_line_without_its_newline(tmp_path, data):
    """At every byte of the last line; a writer continues after the last whole line."""
    path = tmp_path / "a.jsonl"
    start = data.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(start, len(data) + 1):
        whole = 6 if end >= len(data) - 1 else 5
        checked = check_lines(data[:end])
        if checked.damage is None:
            assert checked.entries == ENTRIES[:whole]
            path.write_bytes(data[:end])
            Lines(path).append({"a": 1})
            assert read_json_lines(path) == [*ENTRIES[:whole], {"a": 1}]


@given(st.data())
def test_lines_find_every_flipped_bit(data, drawn):
    """Whatever bit: it is found, and the lines before it are read."""
    place = drawn.draw(st.integers(0, len(data) - 1))
    bit = drawn.draw(st.integers(0, 7))
    flipped = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
    checked = check_lines(flipped)
    assert checked.damage is not None
    assert checked.entries == ENTRIES[: len(checked.entries)]


@pytest.mark.parametrize(
    "order",
    [
        (0, 0, 1, 2, 3, 4, 5),
        (0, 1, 2, 2, 2, 3, 4, 5),
        (0, 2, 1, 3, 4, 5),
        (5, 4, 3, 2, 1, 0),
        (0, 1, 3, 4, 5),
        (1, 2, 3, 4, 5),
    ],
)
def test_lines_find_what_is_doubled_moved_or_removed(data, order):
    """At the first line that is not where it was written."""
    lines = data.splitlines(keepends=True)
    damaged = b"".join(lines[number] for number in order)
    first = next(number for number, line in enumerate(order) if number != line)
    assert check_lines(damaged).damage.line == first + 1


def test_line_without_hash_after_one_with_a_hash_is_damage(tmp_path, data):
    """Another program wrote it."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data + b'{"event": "ended"}\n')
    with pytest.raises(
        ArtifactError,
        match=r"a.jsonl:7: has no hash, but earlier lines have; another program changed",
    ):
        read_json_lines(path)


def test_line_that_the_disk_refuses_leaves_no_half(tmp_path, data, monkeypatch):
    """The next line continues after the last whole one."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    lines = Lines(path)

    def refuse(stream, line):
        stream.write(line[:20])
        stream.flush()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(ArtifactError, match="the disk is full"):
        patched.setattr("raysent.storage.lines._write", refuse)
        lines.append({"a": 1})
    lines.append({"a": 2})
    assert read_json_lines(path) == [*ENTRIES, {"a": 2}]
