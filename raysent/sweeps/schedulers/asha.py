"""Asynchronous successive halving: which trials go on. Plain values in and out, so a simulator can drive it.

Source: Li et al. 2020, "A system for massively parallel hyperparameter tuning", algorithm 2 (the stopping form).
"""

from __future__ import annotations

import bisect
import math
from typing import Literal


class Rung:
    """The scores that have come to a rung, kept in order, each with its weight."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, float]] = {}
        self._scores: list[float] = []
        self._weights: list[float] = []

    def __len__(self) -> int:
        """Return how many have come."""
        return len(self._of)

    def weight(self, best: int | None = None) -> float:
        """Return the weight of so many of the best; None for all."""
        return sum(self._weights[len(self) - best :] if best is not None else self._weights)

    def __contains__(self, trial: str) -> bool:
        """Return whether a trial has come."""
        return trial in self._of

    def better(self, trial: str) -> int:
        """Return how many are better than a trial."""
        return len(self) - bisect.bisect_right(self._scores, self._of[trial][0])

    def place(self, trial: str, score: float, *, weight: float = 1.0) -> None:
        """Take a trial's score, higher is better, in place of one it had."""
        if trial in self._of:
            old = self._of[trial]
            at = next(
                place
                for place in range(bisect.bisect_left(self._scores, old[0]), len(self._scores))
                if self._weights[place] == old[1]
            )
            del self._scores[at], self._weights[at]
        self._of[trial] = score, weight
        at = bisect.bisect_right(self._scores, score)
        self._scores.insert(at, score)
        self._weights.insert(at, weight)


class SuccessiveHalving:
    """Decides at rungs whether a trial is among the best that have come so far.

    A rung is a report index: `grace_reports` times a power of `reduction_factor`. Reports come after equal shares of
    a run's training, so trials of different batch sizes meet at a rung with the same number of sentences behind them.

    By `report`, the best third of the trials goes on (where the factor is 3); by `usd`, the best ones that a third of
    the rung's dollars was spent on: a wide encoder takes as much of the third as it cost. Where all trials cost the
    same, both are the same.
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

    def next_rung(self, index: int) -> int:
        """Return the first report after `index` at which trials are compared."""
        rung = self._grace
        while rung <= index:
            rung *= self._factor
        return rung

    def should_continue(self, trial: str, *, index: int, score: float, usd: float = 0.0) -> tuple[bool, str]:
        """Record a trial's score at a report and say whether it goes on.

        Args:
            trial: The trial's name.
            index: The report's index, from 1.
            score: The metric's value; NaN never goes on.
            usd: What the trial has cost by now; counts by `usd` alone.

        Returns:
            Whether the trial goes on, and why not.
        """
        if math.isnan(score):
            return False, "its score is not a number"
        if self.is_rung(index):
            rung = self.rungs.setdefault(index, Rung())
            rung.place(trial, self._sign * score, weight=max(usd, 1e-9))
        if self._unit == "usd":
            return self._by_dollars(trial)
        return self._by_place(trial, index) if self.is_rung(index) else (True, "")

    def _by_place(self, trial: str, index: int) -> tuple[bool, str]:
        """Ask whether a trial is among the best of a rung."""
        rung = self.rungs[index]
        better = rung.better(trial)
        kept = math.ceil(len(rung) / self._factor)
        if better < kept:
            return True, ""
        return False, f"place {better + 1} of {len(rung)} after report {index}; the best {kept} go on"

    def _by_dollars(self, trial: str) -> tuple[bool, str]:
        """Ask whether a trial is within its part of the dollars of every rung that it has passed."""
        for index, rung in self.rungs.items():
            if trial in rung:
                better_usd, all_usd = rung.weight(rung.better(trial)), rung.weight()
                if better_usd * self._factor >= all_usd:
                    told = f"{better_usd:.2g} of {all_usd:.2g} usd up to report {index} went to better ones"
                    return False, f"{told}; one part in {self._factor} goes on"
        return True, ""
