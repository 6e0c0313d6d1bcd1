"""Where searched values lie: coordinates about as wide as 1 for models to learn from, and draws near a place."""

from __future__ import annotations

import math
import random

from raysent.search_space import Choice, Domain
from raysent.sweep.blind import drawn

# How far a near draw goes, in units of a domain's width, and how often it is any value at all.
NEAR, ANEW = 0.1, 0.2


def coordinates(domain: Domain, value: object) -> list[float]:
    """Return a value's place in its domain, from 0 to 1; a choice of labels has a coordinate for each."""
    if isinstance(domain, Choice) and not _is_ordered(domain):
        return [0.5 * (label == value) for label in domain.options]
    low, high, is_log = _ends(domain)
    if value is None or high <= low:
        return [0.0]
    number = float(value)  # type: ignore[arg-type]
    if is_log:
        return [math.log(number / low) / math.log(high / low)]
    return [(number - low) / (high - low)]


def _ends(domain: Domain) -> tuple[float, float, bool]:
    """Return the lowest and the highest value of a domain of numbers, and whether ratios count in it."""
    if isinstance(domain, Choice):
        numbers = [float(label) for label in domain.options]
        return min(numbers), max(numbers), True
    return domain.low, domain.high, domain.is_log


def near(domain: Domain, value: object, chance: random.Random) -> object:
    """Return a value near another one, now and then any."""
    fresh = drawn(domain, chance)
    if value is None or chance.random() < ANEW:
        return fresh
    if isinstance(domain, Choice):
        return value
    low, high, is_log = _ends(domain)
    share = min(1.0, max(0.0, coordinates(domain, value)[0] + chance.gauss(0, NEAR)))
    number = low * (high / low) ** share if is_log else low + share * (high - low)
    if domain.step:
        return type(fresh)(low + domain.step * round((number - low) / domain.step))  # type: ignore[call-arg]
    return round(number) if domain.is_integer else number


def _is_ordered(domain: Domain) -> bool:
    """Return whether a domain's values are numbers, a choice of positive ones included."""
    if not isinstance(domain, Choice):
        return True
    return all(isinstance(label, int | float) and not isinstance(label, bool) and label > 0 for label in domain.options)
