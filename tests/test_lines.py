"""Append-only files: numbers and checksums of lines, batches, what is torn, what is damaged, what 0.2.0 wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysent.errors import ArtifactError
from raysent.storage import (
    Lines,
    NewLines,
    append_json_line,
    open_folder,
    read_json_lines,
    write_json_lines,
)
from raysent.storage import lines as lines_module

ENTRIES = [{"event": "started", "trial": f"{number:04d}", "text": "é\n{"} for number in range(6)]
DATA = Path(__file__).parent / "data" / "version_2"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    """The content of a file with six lines."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    lines = Lines(path)
    for entry in ENTRIES:
        lines.append(entry)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    """A file that tests of many damages write again."""
    return tmp_path_factory.mktemp("scratch") / "a.jsonl"


def _flipped(data: bytes, drawn) -> bytes:
    place = drawn.draw(st.integers(0, len(data) - 1))
    bit = drawn.draw(st.integers(0, 7))
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_lines_are_read_as_they_were_appended(tmp_path, data):
    """Number and checksum are left out; a batch is taken apart."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    Lines(path).append({"a": 1}, {"b": 2})
    assert read_json_lines(path) == [*ENTRIES, {"a": 1}, {"b": 2}]
    last = path.read_text().splitlines()[-1]
    body, _, checksum = last.partition(', "checksum": ')
    assert json.loads(last)["line"] == 6
    assert checksum == f'"{hashlib.sha256(body.encode()).hexdigest()[:16]}"}}'


def test_lines_drop_what_a_killed_writer_left_and_keep_a_line_without_its_newline(tmp_path, data):
    """At every byte of the last line; a writer continues after the last whole line."""
    path = tmp_path / "a.jsonl"
    start = data.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(start, len(data) + 1):
        path.write_bytes(data[:end])
        num_whole = 6 if end >= len(data) - 1 else 5
        assert read_json_lines(path) == ENTRIES[:num_whole]
        Lines(path).append({"a": 1})
        assert read_json_lines(path) == [*ENTRIES[:num_whole], {"a": 1}]


@given(st.data())
def test_lines_find_every_flipped_bit(data, scratch, drawn):
    """Whatever bit of whatever line, the file is refused in one line that names it."""
    scratch.write_bytes(_flipped(data, drawn))
    with pytest.raises(ArtifactError, match=r"a\.jsonl:\d: .*(restore it|changed the file)$"):
        read_json_lines(scratch)


@given(st.data())
def test_a_flipped_bit_of_the_only_line_is_found(data, scratch, drawn):
    """No other line says that lines have checksums."""
    first = data.splitlines(keepends=True)[0]
    scratch.write_bytes(_flipped(first, drawn))
    for is_plain in (False, True):
        with pytest.raises(ArtifactError, match=r"a\.jsonl:1: "):
            read_json_lines(scratch, is_plain=is_plain)


@pytest.mark.parametrize("file", ["journal.jsonl", "ledger.jsonl"])
@given(st.data())
def test_a_flipped_bit_of_a_file_that_version_2_wrote_is_found(scratch, file, drawn):
    """The hash of a line is of all before it."""
    scratch.write_bytes(_flipped((DATA / "finished" / file).read_bytes(), drawn))
    with pytest.raises(ArtifactError, match=r"a\.jsonl:\d+: "):
        read_json_lines(scratch)


@pytest.mark.parametrize("file", ["journal.jsonl", "ledger.jsonl"])
def test_a_file_that_version_2_wrote_is_read_and_continued(tmp_path, file):
    """What its lines say of the other file is left out; the next line has a checksum of its own."""
    path = tmp_path / file
    path.write_bytes((DATA / "finished" / file).read_bytes())
    before = read_json_lines(path)
    batches = [json.loads(line) for line in path.read_text().splitlines()]
    entries = [entry for batch in batches for entry in batch.get("entries", [batch])]
    assert before == [
        {key: entry[key] for key in entry if key not in ("line", "seen", "hash")}
        for entry in entries
    ]
    Lines(path).append({"a": 1})
    assert read_json_lines(path) == [*before, {"a": 1}]
    whole = path.read_bytes()
    for place in (whole.rindex(b'"a"') + 1, 200):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ArtifactError, match="its checksum is not that of what was written"):
            read_json_lines(path)


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
def test_lines_find_what_is_doubled_moved_or_removed(scratch, data, order):
    """At the first line that is not where it was written."""
    lines = data.splitlines(keepends=True)
    scratch.write_bytes(b"".join(lines[number] for number in order))
    first = next(number for number, line in enumerate(order) if number != line)
    with pytest.raises(ArtifactError, match=rf"a\.jsonl:{first + 1}: its number is"):
        read_json_lines(scratch)


@pytest.mark.parametrize("before", [b"", b'{"event": "session"}\n', None])
def test_line_without_a_checksum_is_refused(tmp_path, data, before):
    """Of version 0.1, whose runs are made again, or of another program."""
    path = tmp_path / "a.jsonl"
    path.write_bytes((data if before is None else before) + b'{"event": "ended"}\n')
    number = 7 if before is None else 1
    with pytest.raises(
        ArtifactError,
        match=rf"a.jsonl:{number}: has no checksum; raysent 0.1 wrote the file, .*: start again, or ",
    ):
        read_json_lines(path)


def test_short_files_are_read_without_checksums_where_version_2_wrote_none(tmp_path):
    """Reports; the next one gives all lines their checksums."""
    path = tmp_path / "reports.jsonl"
    path.write_text('{"index": 1}\n{"index": 2}\n{"ind')
    assert read_json_lines(path, is_plain=True) == [{"index": 1}, {"index": 2}]
    append_json_line(path, {"index": 3})
    assert read_json_lines(path) == [{"index": 1}, {"index": 2}, {"index": 3}]
    write_json_lines(path, [{"index": 4}])
    assert read_json_lines(path) == [{"index": 4}]


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


# -- followed while they grow -----------------------------------------------------------------------------------------


def test_new_lines_are_read_once_and_nothing_before_them(tmp_path, monkeypatch):
    """Of a file on disk only the bytes after the last whole line are read; a torn one is read when it is whole."""
    path = tmp_path / "journal.jsonl"
    reader = NewLines(path)
    assert reader.read() == []
    lines = Lines(path)
    lines.append({"number": 0})
    lines.append({"number": 1}, {"number": 2})
    assert [entry["number"] for entry in reader.read()] == [0, 1, 2]
    assert reader.read() == []
    data = path.read_bytes()
    lines.append({"number": 3})
    whole = path.read_bytes()
    path.write_bytes(b"?" * len(data) + whole[len(data) :][:-5])  # what was read is not read again
    assert reader.read() == []
    path.write_bytes(b"?" * len(data) + whole[len(data) :])
    assert [entry["number"] for entry in reader.read()] == [3]
    with path.open("ab") as stream:
        stream.write(b'{"number": 9, "line": 3, "checksum": "0000000000000000"}\n')
    with pytest.raises(ArtifactError, match="journal.jsonl:4: its checksum is not"):
        reader.read()


def test_new_lines_of_a_bucket_are_listed_after_the_last_one(bucket, monkeypatch):
    """One request for each look, whatever was read before; a gap is refused."""
    folder = open_folder("s3://runs/followed")
    folder.mkdir(parents=True)
    lines, reader = Lines(folder / "journal.jsonl"), NewLines("s3://runs/followed/journal.jsonl")
    begins, listed = [], lines_module.list_s3
    monkeypatch.setattr(
        lines_module,
        "list_s3",
        lambda name, **given: (begins.append(given["after"]), listed(name, **given))[1],
    )
    for number in range(3):
        lines.append({"number": number})
    assert [entry["number"] for entry in reader.read()] == [0, 1, 2]
    lines.append({"number": 3})
    assert [entry["number"] for entry in reader.read()] == [3]
    assert reader.read() == []
    assert [begin.rpartition("/")[2] for begin in begins] == [
        "",
        "000000002.json",
        "000000003.json",
    ]
    bucket.put_object(Bucket="runs", Key="followed/journal.jsonl/000000005.json", Body=b"{}")
    with pytest.raises(
        ArtifactError, match="000000004.json: no such object, but later lines exist"
    ):
        reader.read()
