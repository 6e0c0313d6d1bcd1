"""Constraints: the grammar, its values, and that nothing else is parsed, hangs or needs memory."""

from __future__ import annotations

import ast
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysent.config import parse_yaml
from raysent.errors import ConfigError, RaysentError
from raysent.sweeps.space import parse_space
from raysent.sweeps.space.constraints import evaluate_constraint, parse_constraint

VALUES = {
    "training": {"batch_size": 24, "learning_rate": 0.5},
    "encoder": {
        "type": "gru",
        "hidden_size": 300,
        "bidirectional": True,
        "members": {"a": {"dim": 3}},
        "vectors": None,
    },
    "layers": [10, 20],
}


def _holds(text: str) -> bool:
    return evaluate_constraint(parse_constraint(text), VALUES)


@pytest.mark.parametrize(
    "text",
    [
        "training.batch_size == 24",
        "training.batch_size > 2 * 10 and training.learning_rate < 1",
        "encoder.type == 'lstm' or encoder.hidden_size <= 300",
        "not encoder.type != 'gru'",
        "encoder.type in ['gru', 'lstm'] and encoder.type not in ('bag',)",
        "100 < encoder.hidden_size < 400",
        "encoder.hidden_size <= (300 if encoder.bidirectional else 100)",
        "encoder.bidirectional",
        "encoder.bidirectional == true and encoder.vectors == null and not false",
        "training.batch_size % 5 == 4 and training.batch_size // 5 == 4 and training.batch_size / 5 == 4.8",
        "-training.batch_size + 30 == 6 and encoder.members.a.dim == 3",
        "encoder.type == 'gru' or nothing.like.it > 3",
    ],
)
def test_constraint_holds_as_python_would_have_it(text):
    """Comparisons, logic, arithmetic and names; and its contrary does not hold."""
    assert _holds(text)
    assert not _holds(f"not ({text})")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.batch_size = 24", "must be one expression: invalid syntax"),
        ("1; 2", "must be one expression: invalid syntax"),
        ("", "must be one expression: invalid syntax"),
        ("rand() > 0.5", "must not contain a call"),
        ("[x for x in layers]", "must not contain"),
        ("f'{layers}' == ''", "must not contain formatted text"),
        ("(x := 3) > 2", "must not contain ':='"),
        ("(lambda: 1)() > 2", "must not contain a call"),
        ("1 << -1", "must not contain '1 << -1'"),
        ("training.batch_size + 1", "must be true or false"),
        ("24", "must be true or false"),
        ("'%0999999999d' % 1 == ''", "'%0999999999d' is not a number"),
        ("'a' * 100000000 == ''", "'a' is not a number"),
        ("2**8 > 1", r"must not contain '2 \*\* 8'"),
        ("encoder.vectors is None", "must not contain"),
        ("layers[0] > 1", r"must not contain 'layers\[0\]'"),
        ("-" * 5000 + "1 > 0", "must have at most 1000 characters; it has 5,005"),
        ("-" * 900 + "1 > 0", "must not be nested deeper than 50|must be one expression"),
        ("(" * 300 + "1" + ")" * 300 + " > 0", "must be one expression: too many nested parentheses"),
        ("encoder.type.a == 3", "there is no such value"),
        ("training.bach_size > 2", r"no value is called 'training.bach_size'; did you mean 'batch_size'\?"),
        ("training.batch_size > 'a'", "24 and 'a' cannot be compared"),
        ("3 in training.batch_size", "3 and 24 cannot be compared"),
        ("training.batch_size / 0 > 1", "division by zero"),
        ("training.__class__ == 1", "no value is called 'training.__class__'"),
    ],
)
def test_constraint_that_is_wrong_is_one_line(text, message):
    """Whatever it is: a reason, and nothing is computed that takes long."""
    with pytest.raises(ConfigError, match=message) as raised:
        _holds(text)
    assert "\n" not in str(raised.value)


TOKENS = ["training", ".", "batch_size", "layers", "[", "]", "(", ")", "1", "9e99", "**", "*", "%", "-", "not ", "<", "==",
          " if ", " else ", " in ", "'a'", "=", ";", "lambda", ":", "rand", ",", " and ", "{", "}", "\\", "\n", "\0", "é"]  # fmt: skip


@given(st.lists(st.sampled_from(TOKENS), max_size=30).map("".join) | st.text(max_size=40))
def test_constraint_of_any_text_is_parsed_or_refused(text):
    """No other error than ours."""
    with contextlib.suppress(RaysentError):
        assert isinstance(_holds(text), bool)
        ast.parse(text.strip(), mode="eval")


def test_space_with_a_wrong_constraint_names_its_line():
    """File, line of the constraints, and the place of the one."""
    text = """
base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}
search: {training.batch_size: {choice: [10, 20]}}
constraints:
  - training.batch_size > 1
  - training.batch_size = 10
"""
    with pytest.raises(
        ConfigError, match=r"^s.yaml:4: constraints.1: 'training.batch_size = 10' cannot be evaluated: must be one expr"
    ):
        parse_space(parse_yaml(text, source="s.yaml"), name="toy")
