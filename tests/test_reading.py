"""The one reader of files: limits on file kind, bytes, depth, digits and characters, each an error of one line."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysent
from raysent.config import parse_yaml
from raysent.data import read_counts
from raysent.data.tables import read_table
from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.reading import MAX_DEPTH, is_deeper, parse_json, read_bytes, read_json, read_text
from raysent.storage import load_tensors, save_tensors, tensor_types
from raysent.storage.lease import _is_expired
from raysent.storage.object_store import ObjectContent
from raysent.training.checkpoint import read_progress

# Readers of what raysent itself ships or printed; and the file that is exported beside a model, which uses no raysent.
OWN_READERS = {"cost/prices.py", "exports/modeling_raysent.py"}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé😀"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab"), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_parse_json_returns_what_json_has(value):
    """Every finite value, whatever its form."""
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False, indent=1)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested deeper than 100"),
        ("[" * 300 + "]" * 300, "nested deeper than 100"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested deeper than 100"),
        ("9" * 5000, "an integer of 5,000 digits; at most 300 are read"),
        ("1e400", "1e400 is too large for a number"),
        ("9" * 400 + ".5", "9{20} is too large for a number"),
        ("[NaN]", "NaN is not a JSON value"),
        ('"\\ud800"', r"half of a surrogate pair, '\\ud800'"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
        ("{'a': 1}", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_parse_json_gives_one_line_for_each_limit(text, message):
    """No RecursionError, no number that fails later, no text that cannot be written."""
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_parse_json_accepts_what_is_at_the_limits():
    """Depth 100, 300 digits, a pair of surrogates, brackets inside text."""
    assert is_deeper(parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH), MAX_DEPTH - 1)
    assert parse_json("9" * 300) == int("9" * 300)
    assert parse_json('"\\ud83d\\ude00"') == "😀"
    assert parse_json(json.dumps("[" * 500)) == "[" * 500


def test_parse_json_takes_bytes_and_can_keep_surrogates():
    """Bytes are UTF-8, with or without a byte order mark; texts to encode may hold any character."""
    assert parse_json(b'\xef\xbb\xbf["\xc3\xa9"]') == ["é"]
    assert parse_json('["\\ud800"]', keep_surrogates=True) == ["\ud800"]
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b'"\xff"')


def test_json_is_parsed_by_the_one_reader():
    """No other module calls `json.load` or `json.loads`, which know no limits."""
    root = Path(raysent.__file__).parent
    callers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "loads")
        and ast.unparse(node.value) == "json"
    }
    assert callers - {"reading.py"} == OWN_READERS


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (1 << 60).to_bytes(8, "little") + b"{}",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        (2).to_bytes(8, "little") + b"[]",
        (62).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[1152921504606846976,9],"data_offsets":[0,4]}}',
    ],
    ids=["empty", "length", "long header", "deep header", "list", "huge shape"],
)
def test_tensors_that_are_damaged_are_one_line(tmp_path, data):
    """Values and shapes alike; neither memory nor the stack is used up."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    for read in (load_tensors, tensor_types):
        with pytest.raises(
            ArtifactError, match=r"^[^\n]*model.safetensors: truncated or not safetensors [^\n]*$"
        ):
            read(path)


def test_tensors_and_vocabularies_are_read_from_files_alone(tmp_path):
    """A pipe is not waited for; a vocabulary larger than any is not read."""
    for read, name in (
        (load_tensors, "m"),
        (tensor_types, "m"),
        (Vocabulary.load, "vocabulary.txt"),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        with pytest.raises(
            ArtifactError, match="no such file$|must be a file; it is a folder, a pipe or a device$"
        ):
            read(tmp_path / name)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)  # a sparse file
    with pytest.raises(ArtifactError, match="must be at most 268,435,456 bytes"):
        Vocabulary.load(tmp_path / "large")
    save_tensors(tmp_path / "tensors", {"a": torch.zeros(2, 3, dtype=torch.bfloat16)})
    assert tensor_types(tmp_path / "tensors") == {"a": {"dtype": "BF16", "shape": [2, 3]}}
    assert load_tensors(tmp_path / "tensors")["a"].shape == (2, 3)


def test_records_nested_too_deep_are_unreadable_and_no_traceback(tmp_path):
    """Those of a lease, of a heartbeat, of a table and of a folder of `datasets`."""
    deep = "[" * 100_000
    assert _is_expired(ObjectContent(deep.encode(), "tag", age_s=100.0))
    assert not _is_expired(ObjectContent(deep.encode(), "tag", age_s=1.0))
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/.pulse.json").write_text(deep)
    assert read_progress(tmp_path) is None
    (tmp_path / "t.jsonl").write_text(f'{{"a": {deep}')
    with pytest.raises(
        DataError, match=r"t.jsonl:1: must be one JSON object a line; nested deeper than 100$"
    ):
        read_table(str(tmp_path / "t.jsonl"))
    (tmp_path / "dataset_info.json").write_text("{}")
    for text in (deep, '{"_data_files": ["x"]}', "1"):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(DataError, match="not a folder of datasets, or incomplete"):
            read_table(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="must be a file; it is a pipe or a device$"):
        read_table(str(tmp_path / "pipe.csv"))


def test_read_bytes_refuses_what_is_no_file(tmp_path):
    """A pipe is not waited for, a device not read to its end."""
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "pipe", "must be a file; it is a folder, a pipe or a device"),
        (tmp_path, "must be a file; it is a folder, a pipe or a device"),
        ("/dev/zero", "must be a file; it is a folder, a pipe or a device"),
        (tmp_path / ("n" * 300), "cannot be read: File name too long"),
        (tmp_path / "a\0b", "cannot be read: .*embedded null"),
        (tmp_path / "none", "no such file"),
    ):
        with pytest.raises(ArtifactError, match=message):
            read_bytes(tmp_path / path)


def test_read_text_and_json_name_file_and_fix(tmp_path):
    """Too large, not UTF-8, not JSON; a byte order mark is no text."""
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert (read_text(path), read_json(path)) == ("{}", {})
    with pytest.raises(
        ConfigError, match=r"a.json: must be at most 4 bytes; is this another file\?$"
    ):
        read_text(path, max_bytes=4, error=ConfigError)
    path.write_bytes(b"{\xff}")
    with pytest.raises(
        ArtifactError, match=r"^a: must be text in UTF-8; byte 1 is not; is this another file\?$"
    ):
        read_json(path, name="a")
    path.write_text("{")
    with pytest.raises(ArtifactError, match=r"^a: truncated or not JSON \(.*\); train again$"):
        read_json(path, name="a", fix="train again")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "\n".join(f"k{number}: 1" for number in range(60_000)),
            "s.yaml: must have at most 5,000 lines and values",
        ),
        ("a: " + "[" * 3000, "s.yaml: must not be nested deeper than 100"),
        ("a: " + "[" * 150 + "]" * 150, "s.yaml: must not be nested deeper than 100"),
        ("a: " + "9" * 5000, "s.yaml: not valid YAML: Exceeds the limit"),
        ("b: 1\na: " + "9" * 1000, "s.yaml:2: a: must have at most 300 digits"),
        ('a: "\\ud800"', "s.yaml:1: a: must not have half of a surrogate pair"),
        ("a: !!binary x", "s.yaml"),
    ],
)
def test_parse_yaml_gives_one_line_for_each_limit(text, message):
    """With the line, where the text could be read at all."""
    with pytest.raises(ConfigError, match=f"^{message}"):
        parse_yaml(text, source="s.yaml")


def test_counts_are_whole_numbers_in_ordinary_digits(tmp_path):
    """A superscript is none, and the line is named."""
    (tmp_path / "counts.txt").write_text("a b 3\nx ²\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"counts\.txt:2: must be a word and a whole number; given 'x ²'"
    ):
        read_counts(tmp_path / "counts.txt")
