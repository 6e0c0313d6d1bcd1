"""Asynchronous successive halving: which trials go on. Plain values in and out, so a simulator can drive it.

Source: Li et al. 2020, "A system for massively parallel hyperparameter tuning", algorithm 2 (the stopping form).
"""

from __future__ import annotations

import bisect
import math
from typing import Literal


class Rung:
    """The scores that have come to a rung, kept in order: a place is found in the logarithm of their number."""

    def __init__(self) -> None:
        self._of: dict[str, float] = {}
        self._ordered: list[float] = []

    def __len__(self) -> int:
        """Return how many have come."""
        return len(self._of)

    def place(self, trial: str, score: float) -> int:
        """Take a trial's score, higher is better, in place of one it had; returns how many are better."""
        if trial in self._of:
            del self._ordered[bisect.bisect_left(self._ordered, self._of[trial])]
        self._of[trial] = score
        bisect.insort(self._ordered, score)
        return len(self._ordered) - bisect.bisect_right(self._ordered, score)


class SuccessiveHalving:
    """Decides at rungs whether a trial is among the best that have come so far.

    A rung is a report index: `grace_reports` times a power of `reduction_factor`; or as many dollars, in units of what
    the sweep's first report cost. Reports come after equal shares of
    a run's training, so trials of different batch sizes meet at a rung with the same number of sentences behind them.
    """

    def __init__(
        self, *, mode: Literal["max", "min"], reduction_factor: int = 3, grace_reports: int = 1, unit: str = "report"
    ) -> None:
        self._sign = 1.0 if mode == "max" else -1.0
        self._factor = reduction_factor
        self._grace = grace_reports
        self._unit = unit
        self.rungs: dict[int, Rung] = {}

    def is_rung(self, index: int) -> bool:
        """Return whether trials are compared after report `index`."""
        rung = self._grace
        while rung < index:
            rung *= self._factor
        return rung == index

    def level(self, progress: float) -> int:
        """Return the highest rung that a trial has come to with so much behind it; 0 for none yet."""
        rung = self._grace
        if progress < rung:
            return 0
        while rung * self._factor <= progress:
            rung *= self._factor
        return rung

    def next_rung(self, index: int) -> int:
        """Return the first report after `index` at which trials are compared."""
        rung = self._grace
        while rung <= index:
            rung *= self._factor
        return rung

    def goes_on(self, trial: str, *, index: int, score: float) -> tuple[bool, str]:
        """Record a trial's score at a report and say whether it goes on.

        Args:
            trial: The trial's name.
            index: The report's index, from 1.
            score: The metric's value; NaN never goes on.

        Returns:
            Whether the trial goes on, and why not.
        """
        if math.isnan(score):
            return False, "its score is not a number"
        if not self.is_rung(index):
            return True, ""
        rung = self.rungs.setdefault(index, Rung())
        better = rung.place(trial, self._sign * score)
        kept = math.ceil(len(rung) / self._factor)
        if better < kept:
            return True, ""
        return False, f"place {better + 1} of {len(rung)} after {self._unit} {index}; the best {kept} go on"
