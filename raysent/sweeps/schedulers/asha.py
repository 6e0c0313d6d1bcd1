"""Asynchronous successive halving, and a scheduler that never stops a trial.

Source: Li et al. 2020, "A system for massively parallel hyperparameter tuning", algorithm 2 (the stopping form).
"""

from __future__ import annotations

import bisect
import math
from typing import Any, ClassVar

import pydantic

from raysent.config import StrictModel
from raysent.sweeps.components import NoSettings
from raysent.sweeps.schedulers import CONTINUE, Decision
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trial import Trial


class Rung:
    """The scores of the trials that have reached a rung, in order."""

    def __init__(self) -> None:
        self._of: dict[str, float] = {}
        self._scores: list[float] = []

    def __len__(self) -> int:
        """Return how many trials have reached the rung."""
        return len(self._of)

    def better(self, trial: str) -> int:
        """Return how many trials are better than this one."""
        return len(self) - bisect.bisect_right(self._scores, self._of[trial])

    def place(self, trial: str, score: float) -> None:
        """Add a trial's score, higher is better; it replaces an earlier one."""
        if trial in self._of:
            del self._scores[bisect.bisect_left(self._scores, self._of[trial])]
        self._of[trial] = score
        bisect.insort(self._scores, score)


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
    run's training, so trials of different batch sizes meet at a rung after the same number of sentences. Of those that
    have reached it, the best third continues (where the factor is 3).

    Where the space has kinds of encoders of which one each is kept, a trial is compared with those of its kind alone:
    the best of each kind comes to its end.
    """

    Config: ClassVar[type[StrictModel]] = ASHASettings

    def __init__(self, space: SearchSpace, config: ASHASettings, *, seed: int = 0) -> None:  # noqa: ARG002
        self._sign = 1.0 if space.mode == "max" else -1.0
        self._factor, self._grace = config.reduction_factor, config.grace_reports
        self._space = space
        self._rungs: dict[tuple[Any, int], Rung] = {}

    def on_report(self, trial: Trial, *, score: float) -> Decision:
        """Record a trial's score if it is at a rung, and decide; NaN never continues."""
        if trial.index >= trial.num_reports:
            return CONTINUE
        if math.isnan(score):
            return Decision(False, "its score is not a number")
        if self.next_rung(trial.index - 1) != trial.index:
            return CONTINUE
        kind = self._space.kind_of(trial.params)
        rung = self._rungs.setdefault((kind, trial.index), Rung())
        rung.place(trial.name, self._sign * score)
        better, kept = rung.better(trial.name), math.ceil(len(rung) / self._factor)
        if better < kept:
            return CONTINUE
        of_kind = "" if kind is None else f" {kind}"
        place = f"place {better + 1} of {len(rung)}{of_kind} after report {trial.index}"
        return Decision(False, f"{place}; the best {kept} continue")

    def complete(self, trial: Trial) -> None:
        """Keep its scores: they count at the rungs that it reached."""

    def next_rung(self, index: int) -> int:
        """Return the first report after `index` at which trials are compared."""
        rung = self._grace
        while rung <= index:
            rung *= self._factor
        return rung


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
