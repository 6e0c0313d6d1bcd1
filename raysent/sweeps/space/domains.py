"""What one entry of `search` allows: one of several values, or a number between two bounds."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysent.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Choice:
    """One of several values, each known by its label.

    Attributes:
        options: Label -> value; a value may be a whole mapping, such as an encoder.
    """

    options: Mapping[str | int | float | bool, Any]

    def edges(self) -> list[Any]:
        """Return every label."""
        return list(self.options)

    def value(self, drawn: Any) -> Any:
        """Return what a label stands for."""
        return copy.deepcopy(self.options[drawn])


@dataclass(frozen=True)
class Interval:
    """A number between two bounds, both included.

    Attributes:
        low: The least value.
        high: The greatest value.
        step: Distance between neighbouring values; None for every value between.
        is_integer: Whether values are whole numbers.
        is_log: Whether values are spread evenly over their logarithm.
    """

    low: float
    high: float
    step: float | None = None
    is_integer: bool = False
    is_log: bool = False

    def edges(self) -> list[Any]:
        """Return the two bounds."""
        return [self.low, self.high]

    def value(self, drawn: Any) -> Any:
        """Return the number itself."""
        return drawn


Domain = Choice | Interval
FORMS = {
    "choice": "choice: [a, b, …] or choice: {label: value, …}",
    "uniform": "uniform: [low, high]",
    "loguniform": "loguniform: [low, high] with 0 < low",
    "randint": "randint: [low, high], whole numbers, both included",
    "quniform": "quniform: [low, high, step]",
}


def parse_domain(written: Any) -> Domain:
    """Return the domain that one entry of `search` describes.

    Raises:
        ConfigError: With what must hold; the caller adds where.
    """
    if not isinstance(written, Mapping) or len(written) != 1:
        raise ConfigError(f"must be one of {{{' | '.join(FORMS)}}}; given {written!r}")
    ((form, values),) = written.items()
    if form not in FORMS:
        raise ConfigError(f"unknown kind of domain '{form}'{did_you_mean(str(form), FORMS)}")
    if form == "choice":
        return _parse_choice(values)
    num_values = 3 if form == "quniform" else 2
    numbers_given = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if not numbers_given or len(values) != num_values or not all(math.isfinite(value) for value in values):
        raise ConfigError(f"must be {FORMS[form]}; given {values!r}")
    return _parse_interval(form, values)


def _parse_choice(values: Any) -> Choice:
    if isinstance(values, Mapping) and values:
        return Choice(dict(values))
    scalars = isinstance(values, list) and all(isinstance(value, str | int | float | bool) for value in values)
    if not scalars or not values or len(set(map(repr, values))) < len(values):
        raise ConfigError(f"must be {FORMS['choice']} with distinct values; given {values!r}")
    return Choice({value: value for value in values})


def _parse_interval(form: str, values: Sequence[float]) -> Interval:
    low, high, *rest = values
    is_integer = form == "randint"
    if is_integer and not (isinstance(low, int) and isinstance(high, int)):
        raise ConfigError(f"must be {FORMS[form]}; given {list(values)!r}")
    if low > high or (form == "loguniform" and low <= 0) or (rest and rest[0] <= 0):
        raise ConfigError(f"must be {FORMS[form]} with low <= high; given {list(values)!r}")
    if form == "quniform":
        is_integer = all(isinstance(value, int) for value in values)
        high = low + math.floor((high - low) / rest[0] + 1e-9) * rest[0]
    kind = int if is_integer else float
    return Interval(kind(low), kind(high), kind(rest[0]) if rest else None, is_integer, form == "loguniform")
