"""The one reader of files: limits on file kind, bytes, depth, digits and characters, each an error of one line."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysent.config import parse_yaml
from raysent.errors import ArtifactError, ConfigError
from raysent.reading import MAX_DEPTH, is_deeper, parse_json, read_bytes, read_json, read_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé😀"),
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


def test_read_bytes_refuses_what_is_no_file(tmp_path):
    """A pipe is not waited for, a device not read to its end."""
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "pipe", "must be a file; it is a folder, a pipe or a device"),
        (tmp_path, "must be a file; it is a folder, a pipe or a device"),
        ("/dev/zero", "must be a file; it is a folder, a pipe or a device"),
        (tmp_path / ("n" * 300), "cannot be read: File name too long"),
        (tmp_path / "a\0b", "cannot be read: embedded null byte"),
        (tmp_path / "none", "no such file"),
    ):
        with pytest.raises(ArtifactError, match=message):
            read_bytes(tmp_path / path)


def test_read_text_and_json_name_file_and_fix(tmp_path):
    """Too large, not UTF-8, not JSON; a byte order mark is no text."""
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert (read_text(path), read_json(path)) == ("{}", {})
    with pytest.raises(ConfigError, match=r"a.json: must be at most 4 bytes; is this another file\?$"):
        read_text(path, max_bytes=4, error=ConfigError)
    path.write_bytes(b"{\xff}")
    with pytest.raises(ArtifactError, match=r"^a: must be text in UTF-8; byte 1 is not; is this another file\?$"):
        read_json(path, name="a")
    path.write_text("{")
    with pytest.raises(ArtifactError, match=r"^a: truncated or not JSON \(.*\); train again$"):
        read_json(path, name="a", fix="train again")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n".join(f"k{number}: 1" for number in range(60_000)), "s.yaml: must have at most 5,000 lines and values"),
        ("a: " + "[" * 3000, "s.yaml: must not be nested deeper than 100"),
        ("a: " + "[" * 150 + "]" * 150, "s.yaml: must not be nested deeper than 100"),
        ("a: " + "9" * 5000, "s.yaml: not valid YAML: Exceeds the limit"),
        ("b: 1\na: " + "9" * 1000, "s.yaml:2: a: must have at most 300 digits"),
        ("a: {b: 2001-01-01}", "s.yaml:1: a.b: must be text, a number, true, false or null; given datetime"),
        ('a: "\\ud800"', "s.yaml:1: a: must not have half of a surrogate pair"),
        ("a: !!binary x", "s.yaml"),
    ],
)
def test_parse_yaml_gives_one_line_for_each_limit(text, message):
    """With the line, where the text could be read at all."""
    with pytest.raises(ConfigError, match=f"^{message}"):
        parse_yaml(text, source="s.yaml")
