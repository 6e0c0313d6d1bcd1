"""Constraints of a search space: expressions in a small grammar of their own, parsed once and evaluated for each trial.

    training.batch_size > 2 * objective.context_size
    encoder.type == 'gru' or encoder.hidden_size <= 300
    encoder.hidden_size <= (1024 if encoder.bidirectional else 2048)
    encoder.type in ['gru', 'lstm']

The grammar: comparisons (also `in` and `not in`), `and`, `or`, `not`, `if`-`else`, `+ - * / // %` of numbers, numbers,
text, lists, and the dotted names of a run. The value is true or false. Nothing else is parsed: no call, no assignment,
no comprehension, no index, no power. So a constraint is a function of the run alone, ends at once and needs little
memory.
"""

from __future__ import annotations

import ast
import functools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysent.errors import ConfigError, did_you_mean

MAX_CHARACTERS = 1_000
MAX_DEPTH = 50

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, values: value in values,
    ast.NotIn: lambda value, values: value not in values,
}
_SIGNS: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
# Names for the constants of YAML beside those of Python.
_CONSTANTS = {"true": True, "false": False, "null": None}


@functools.lru_cache(maxsize=256)
def parse_constraint(text: str) -> ast.expr:
    """Return the checked syntax tree of a constraint.

    Raises:
        ConfigError: With what must hold; the caller adds where.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"must have at most {MAX_CHARACTERS} characters; it has {len(text):,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as: "is" with a literal
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deeply"
        raise ConfigError(f"must be one expression: {reason}") from None
    _check(tree, depth=0)
    match tree:
        case ast.Compare() | ast.BoolOp() | ast.IfExp() | ast.Name() | ast.Attribute():
            return tree
        case ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
            return tree
    raise ConfigError("must be true or false, such as a comparison")


def evaluate_constraint(tree: ast.expr, values: Mapping[str, Any]) -> bool:
    """Return whether a constraint holds for a run's values.

    Args:
        tree: What `parse_constraint` returned.
        values: The run, as nested plain values.

    Raises:
        ConfigError: If a name is not the run's, or values of different kinds are compared or combined.
    """
    return bool(_evaluate(tree, values))


def _check(node: ast.AST, *, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"must not be nested deeper than {MAX_DEPTH}")
    match node:
        case ast.BoolOp() | ast.IfExp() | ast.List() | ast.Tuple() | ast.Name() | ast.Attribute():
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd()):
            pass
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            pass
        case ast.Compare(ops=ops) if all(type(op) in _COMPARISONS for op in ops):
            pass
        case ast.Constant(value=bool() | int() | float() | str() | None):
            pass
        case _:
            raise ConfigError(f"must not contain {_words(node)}; see the grammar of constraints in the docs")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, depth=depth + 1)


def _words(node: ast.AST) -> str:
    names = {ast.Call: "a call", ast.Lambda: "a function", ast.JoinedStr: "formatted text", ast.NamedExpr: "':='"}
    return names.get(type(node), f"'{ast.unparse(node)[:40]}'")


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return _look_up(node, values)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_evaluate(part, values) for part in parts]
        case ast.BoolOp(op=op, values=parts):
            return _combine(op, parts, values)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, values) else orelse, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.UnaryOp(op=op, operand=operand):
            return _SIGNS[type(op)](_number(_evaluate(operand, values)))
        case ast.BinOp(left=left, op=op, right=right):
            return _calculate(op, _evaluate(left, values), _evaluate(right, values))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compare(left, ops, comparators, values)
    raise ConfigError(f"must not contain {_words(node)}")


def _combine(op: ast.boolop, parts: Sequence[ast.expr], values: Mapping[str, Any]) -> Any:
    """Return the value of `and` or `or`, which end at the first part that decides."""
    found: Any = None
    for part in parts:
        found = _evaluate(part, values)
        if bool(found) is isinstance(op, ast.Or):
            return found
    return found


def _compare(
    left: ast.expr, ops: Sequence[ast.cmpop], comparators: Sequence[ast.expr], values: Mapping[str, Any]
) -> bool:
    first = _evaluate(left, values)
    for op, comparator in zip(ops, comparators, strict=True):
        second = _evaluate(comparator, values)
        try:
            holds = _COMPARISONS[type(op)](first, second)
        except TypeError:
            raise ConfigError(f"{first!r} and {second!r} cannot be compared") from None
        if not holds:
            return False
        first = second
    return True


def _calculate(op: ast.operator, left: Any, right: Any) -> Any:
    try:
        return _ARITHMETIC[type(op)](_number(left), _number(right))
    except (ZeroDivisionError, OverflowError) as error:
        raise ConfigError(str(error)) from None


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise ConfigError(f"{value!r} is not a number")
    return value


def _look_up(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return the run's value of a dotted name."""
    if isinstance(node, ast.Name):
        if node.id in _CONSTANTS and node.id not in values:
            return _CONSTANTS[node.id]
        return _part(values, node.id, node.id)
    assert isinstance(node, ast.Attribute)
    return _part(_evaluate(node.value, values), node.attr, ast.unparse(node))


def _part(values: Any, key: str, name: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name}: there is no such value; what is above it is {values!r}"[:200])
    if key not in values:
        raise ConfigError(f"no value is called '{name}'{did_you_mean(key, map(str, values))}")
    return values[key]
