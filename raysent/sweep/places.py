"""Where searched values lie: coordinates about as wide as 1 for models to learn from, and draws near a place."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from raysent.search_space import Choice, Domain
from raysent.sweep.blind import drawn

# How far a near draw goes, in units of a domain's width, and how often it is any value at all.
NEAR, ANEW = 0.1, 0.2


@dataclass(frozen=True)
class Axis:
    """How a domain's values become coordinates.

    Attributes:
        domain: The domain.
        labels: Of a choice, unless they are all positive numbers: each has a coordinate of its own.
        low: The least number.
        high: The greatest number.
        is_log: Whether ratios count, as in a choice of sizes.
    """

    domain: Domain
    labels: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False

    def coordinates(self, value: Any) -> list[float]:
        """Return a value's place, from 0 to 1; labels stand apart from each other, what is not searched at 0."""
        if self.labels:
            return [0.5 * (label == value) for label in self.labels]
        if value is None or self.high <= self.low:
            return [0.0]
        if self.is_log:
            return [math.log(value / self.low) / math.log(self.high / self.low)]
        return [(value - self.low) / (self.high - self.low)]

    def near(self, value: Any, chance: random.Random) -> Any:
        """Return a value near another one, now and then any."""
        fresh = drawn(self.domain, chance)
        if value is None or chance.random() < ANEW:
            return fresh
        if isinstance(self.domain, Choice):
            return value
        share = min(1.0, max(0.0, self.coordinates(value)[0] + chance.gauss(0, NEAR)))
        low, high = self.low, self.high
        number = low * (high / low) ** share if self.is_log else low + share * (high - low)
        step = 1.0 if self.domain.is_integer and not self.domain.step else self.domain.step
        if step:
            number = low + step * round((number - low) / step)
        return round(number) if isinstance(fresh, int) else min(high, max(low, number))


def axis_of(domain: Domain) -> Axis:
    """Return how a domain's values become coordinates."""
    if not isinstance(domain, Choice):
        return Axis(domain, low=domain.low, high=domain.high, is_log=domain.is_log)
    labels = tuple(domain.options)
    sizes = [label for label in labels if isinstance(label, int | float) and not isinstance(label, bool) and label > 0]
    if len(sizes) < len(labels):
        return Axis(domain, labels)
    return Axis(domain, low=min(sizes), high=max(sizes), is_log=True)
