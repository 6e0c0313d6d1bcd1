"""YAML to strict models: lines, nearest names, overrides."""

from __future__ import annotations

from typing import Literal

import pytest

from raysent.config import (
    Document,
    StrictModel,
    get_dotted,
    parse_override,
    parse_yaml,
    set_dotted,
    validate,
)
from raysent.errors import ConfigError


class _Inner(StrictModel):
    type: Literal["inner"] = "inner"
    dropout: float = 0.0


class _Outer(StrictModel):
    inner: _Inner = _Inner()
    size: int = 3


def test_parse_yaml_numbers_follow_yaml_1_2():
    """Exponents without a decimal point are numbers, and `no` is a string."""
    values = parse_yaml("a: 5e-4\nb: no\nc: [1, 2.5, true]\n").values
    assert values == {"a": 5e-4, "b": "no", "c": [1, 2.5, True]}
    assert type(values["a"]) is float
    assert parse_yaml("a: &x true\nb: *x\n").values["b"] is True


def test_validate_wrong_type_says_what_was_given():
    """A string in place of a number is not coerced."""
    with pytest.raises(
        ConfigError, match=r"^space.yaml:1: size: must be a valid integer; given '3'$"
    ):
        validate(_Outer, parse_yaml("size: '3'\n", source="space.yaml"))


def test_validate_at_prefixes_the_path():
    """An error in a part of a document gives the full path."""
    document = Document(values={"size": 1.5}, source="a.yaml", lines={("base",): 7})
    with pytest.raises(ConfigError, match=r"^a.yaml:7: base.size: "):
        validate(_Outer, document, at=("base",))


def test_parse_override_reads_the_value_as_yaml():
    """Values of --set are numbers, lists and strings as in a file."""
    assert parse_override("a.b=1e-3") == ("a.b", 1e-3)
    assert parse_override("a=[1, 2]") == ("a", [1, 2])
    assert parse_override("path=x=y") == ("path", "x=y")


@pytest.mark.parametrize(
    "text",
    ["2024-01-01", "2026-11-29T18:00", "2026-11-29 18:00:00", "2026-11-29T18:00:00+02:00", "2026-11-29T18:00:00.5Z"],
)  # fmt: skip
def test_dates_and_times_are_the_text_that_is_written(text):
    """As the command line takes them; no setting is a date."""
    assert parse_override(f"cost.deadline={text}") == ("cost.deadline", text)
    assert parse_yaml(f"a: {{b: [{text}]}}\n{text}: 1\n").values == {"a": {"b": [text]}, text: 1}


def test_set_dotted_makes_mappings():
    """A dotted name addresses nested mappings."""
    values: dict = {"a": {"b": 1}}
    set_dotted(values, "a.c.d", 2)
    assert get_dotted(values, "a.c.d") == 2
    assert get_dotted(values, "a.x", "none") == "none"


@pytest.mark.parametrize(
    ("values", "path"),
    [({"size": "a\0b"}, "size"), ({"parts": [{"name": ["x", "\0"]}]}, "parts.0.name.1")],
)
def test_nul_in_any_text_is_refused_with_its_path(values, path):
    """No file's name holds one, and the system's own error is a traceback."""
    with pytest.raises(ConfigError, match=rf"^{path}: must hold no NUL character"):
        validate(_Outer, Document(values))
