"""Asynchronous successive halving, and a scheduler that never stops a trial.

Source: Li et al. 2020, "A system for massively parallel hyperparameter tuning", algorithm 2 (the stopping form).
Differs: a rung may be divided by dollars, see `ASHA`.
"""

from __future__ import annotations

import bisect
import math
from typing import ClassVar

import pydantic

from raysent.config import StrictModel
from raysent.sweeps.components import NoSettings
from raysent.sweeps.schedulers import CONTINUE, Decision
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trial import Trial


class Rung:
    """The scores of the trials that have reached a rung, in order, each with a weight."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, float]] = {}
        self._scores: list[float] = []
        self._weights: list[float] = []

    def __len__(self) -> int:
        """Return how many trials have reached the rung."""
        return len(self._of)

    def weight(self, best: int | None = None) -> float:
        """Return the weight of the `best` trials; of all if None."""
        return sum(self._weights[len(self) - best :] if best is not None else self._weights)

    def __contains__(self, trial: str) -> bool:
        """Return whether a trial has reached the rung."""
        return trial in self._of

    def better(self, trial: str) -> int:
        """Return how many trials are better than this one."""
        return len(self) - bisect.bisect_right(self._scores, self._of[trial][0])

    def place(self, trial: str, score: float, *, weight: float = 1.0) -> None:
        """Add a trial's score, higher is better; it replaces an earlier one."""
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


class ASHASettings(StrictModel):
    """Settings of `asha`.

    Attributes:
        reduction_factor: Of the trials that reach a rung, one in this many continues.
        grace_reports: No trial is stopped before this many reports.
    """

    reduction_factor: int = pydantic.Field(default=3, ge=2)
    grace_reports: int = pydantic.Field(default=1, ge=1)


class ASHA:
    """Asynchronous successive halving: at a rung the best of the trials that have reached it continue.

    A rung is a report index: `grace_reports` times a power of `reduction_factor`. Reports follow equal shares of a
    run's training, so trials of different batch sizes meet at a rung after the same number of sentences.

    With ``limits.rung_unit: report`` the best third of the trials continues (where the factor is 3). With `usd` the
    best ones continue on which a third of the rung's dollars was spent, decided again at every later report: a wide
    encoder takes as much of the third as it cost. Where all trials cost the same, both are the same.
    """

    Config: ClassVar[type[StrictModel]] = ASHASettings

    def __init__(self, space: SearchSpace, config: ASHASettings, *, seed: int = 0) -> None:  # noqa: ARG002
        self._sign = 1.0 if space.mode == "max" else -1.0
        self._factor, self._grace = config.reduction_factor, config.grace_reports
        self._by_usd = space.limits.rung_unit == "usd"
        self._rungs: dict[int, Rung] = {}

    def on_report(self, trial: Trial, *, score: float) -> Decision:
        """Record a trial's score if it is at a rung, and decide; NaN never continues."""
        if trial.index >= trial.num_reports:
            return CONTINUE
        if math.isnan(score):
            return Decision(False, "its score is not a number")
        is_rung = self.next_rung(trial.index - 1) == trial.index
        if is_rung:
            rung = self._rungs.setdefault(trial.index, Rung())
            rung.place(trial.name, self._sign * score, weight=max(trial.usd, 1e-9))
        if self._by_usd:
            return self._by_dollars(trial.name)
        return self._by_place(trial.name, trial.index) if is_rung else CONTINUE

    def complete(self, trial: Trial) -> None:
        """Keep its scores: they count at the rungs that it reached."""

    def next_rung(self, index: int) -> int:
        """Return the first report after `index` at which trials are compared."""
        rung = self._grace
        while rung <= index:
            rung *= self._factor
        return rung

    def _by_place(self, trial: str, index: int) -> Decision:
        rung = self._rungs[index]
        better = rung.better(trial)
        kept = math.ceil(len(rung) / self._factor)
        if better < kept:
            return CONTINUE
        return Decision(False, f"place {better + 1} of {len(rung)} after report {index}; the best {kept} continue")

    def _by_dollars(self, trial: str) -> Decision:
        for index, rung in self._rungs.items():
            if trial in rung:
                better_usd, all_usd = rung.weight(rung.better(trial)), rung.weight()
                if better_usd * self._factor >= all_usd:
                    spent = f"{better_usd:.2g} of {all_usd:.2g} usd up to report {index} were spent on better trials"
                    return Decision(False, f"{spent}; one part in {self._factor} continues")
        return CONTINUE


class NoScheduler:
    """Never stops a trial."""

    Config: ClassVar[type[StrictModel]] = NoSettings

    def __init__(self, space: SearchSpace, config: NoSettings, *, seed: int = 0) -> None:
        """Keep nothing."""

    def on_report(self, trial: Trial, *, score: float) -> Decision:  # noqa: ARG002
        """Continue."""
        return CONTINUE

    def complete(self, trial: Trial) -> None:
        """Keep nothing."""

    def next_rung(self, index: int) -> None:
        """Return None: a trial always continues to its end."""


SCHEDULERS = {"asha": ASHA, "none": NoScheduler}
