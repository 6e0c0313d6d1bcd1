"""The values of a searched name over trials -> coordinates on an axis: linear, logarithmic, or one per category."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raysent.report.blocks import DASH, number, text_of
from raysent.report.run import Run
from raysent.sweeps import Trial
from raysent.sweeps.space import Choice, Domain

# Fewer trials than this say nothing of what matters.
MIN_TRIALS = 4
MAX_TICKS = 6
# Without a domain, numbers that differ by this factor are on a logarithmic axis.
_LOG_RATIO = 50

Scale = Literal["linear", "log", "category"]


@dataclass(frozen=True)
class Parameter:
    """A searched name and its values.

    Attributes:
        name: The dotted name.
        scale: The scale of its axis; a choice of numbers is "category" too.
        values: One for each trial; None where the name does not apply.
        short: The name without the parts that no other name needs.
    """

    name: str
    scale: Scale
    values: tuple[Any, ...]
    short: str = ""

    @property
    def categories(self) -> list[str]:
        """The distinct values as text: numbers sorted, a dash for "does not apply" last."""
        given = {text_of(value): value for value in self.values if value is not None}
        if all(number(value) is not None for value in given.values()):
            texts = sorted(given, key=lambda text: float(given[text]))
        else:
            texts = sorted(given)
        return texts + [DASH] * (None in self.values)

    @property
    def is_varied(self) -> bool:
        """Whether there is more than one distinct value."""
        return len(self.categories) > 1

    def coordinates(self) -> np.ndarray:
        """Return positions on the axis, float64 [trials]; "does not apply" is below all others."""
        if self.scale == "category":
            places = {text: place for place, text in enumerate(self.categories)}
            return np.array([places[text_of(value)] for value in self.values], dtype=float)
        numbers = [None if value is None else self._place(value) for value in self.values]
        known = [value for value in numbers if value is not None]
        below = min(known) - 0.12 * ((max(known) - min(known)) or 1.0)
        return np.array([below if value is None else value for value in numbers])

    def ticks(self) -> tuple[list[float], list[str]]:
        """Return positions of tick marks on the axis, and their texts."""
        if self.scale == "category":
            return [float(place) for place in range(len(self.categories))], self.categories
        places = self.coordinates()
        known = sorted(
            {(float(at), float(value)) for at, value in zip(places, self.values, strict=True) if value is not None}
        )
        if len(known) > MAX_TICKS or _is_crowded([at for at, _ in known]):
            known = self._round_ticks(known[0][1], known[-1][1])
        ticks, texts = [at for at, _ in known], [_short(value) for _, value in known]
        if None in self.values:
            return [float(places.min()), *ticks], [DASH, *texts]
        return ticks, texts

    def _round_ticks(self, low: float, high: float) -> list[tuple[float, float]]:
        for mantissas in ((1, 2, 5), (1, 3), (1,)) if self.scale == "log" else ():
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            values = [mantissa * 10.0**power for power in powers for mantissa in mantissas]
            values = [value for value in values if low <= value <= high]
            if 2 <= len(values) <= MAX_TICKS:
                return [(self._place(value), value) for value in values]
        if self.scale == "log":
            return [(float(at), 10.0**at) for at in np.linspace(math.log10(low), math.log10(high), MAX_TICKS)]
        rough = (high - low) / (MAX_TICKS - 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
        first = math.ceil(low / step - 1e-9)
        values = [(first + count) * step for count in range(MAX_TICKS) if (first + count) * step <= high]
        return [(value, value) for value in values]

    def _place(self, value: Any) -> float:
        return math.log10(value) if self.scale == "log" else float(value)


def _is_crowded(places: Sequence[float]) -> bool:
    gaps = np.diff(places)
    return len(gaps) > 0 and bool(gaps.min() < 0.12 * (places[-1] - places[0]))


def varied_parameters(run: Run, trials: Sequence[Trial]) -> list[Parameter]:
    """Return the searched names that have several values in these trials, in the order of the search space."""
    found, short = [], short_names(run.searched)
    for name in run.searched:
        values = tuple(trial.params.get(name) for trial in trials)
        if any(value is not None for value in values):
            domain = None if run.sweep is None else run.sweep.space.domains.get(name)
            found.append(Parameter(name, scale_of(values, domain), values, short[name]))
    return [parameter for parameter in found if parameter.is_varied]


def scale_of(values: Sequence[Any], domain: Domain | None = None) -> Scale:
    """Return the scale of an axis of values: that of the domain, or without one what suits the values."""
    known = [found for value in values if (found := number(value)) is not None]
    if isinstance(domain, Choice) or not known or len(known) < sum(value is not None for value in values):
        return "category"
    is_log = min(known) > 0 and (max(known) / min(known) >= _LOG_RATIO if domain is None else domain.is_log)
    return "log" if is_log else "linear"


def _short(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the last part of each dotted name, or as many parts as make it unique."""
    short = {}
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            tail = ".".join(parts[-depth:])
            if sum(other == tail or other.endswith("." + tail) for other in names) == 1:
                break
        short[name] = tail
    return short
