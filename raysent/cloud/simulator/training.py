"""How far made-up trials are on the way to their next report, and what an interruption takes from them."""

from __future__ import annotations

import math
from collections.abc import Callable

from raysent.cloud.market import Zone
from raysent.cloud.workload import TrialModel
from raysent.sweep import Trial


class Training:
    """What trials have saved of the way to their next report, and what they do again.

    Attributes:
        lost_s: Training that had to be done again, of all trials.
    """

    def __init__(self, workload: Callable[[Trial], TrialModel], *, save_s: float) -> None:
        """Let no trial have begun.

        Args:
            workload: What trials take and score.
            save_s: What a checkpoint takes.
        """
        self.lost_s = 0.0
        self._workload, self._save_s = workload, save_s
        self._models: dict[str, TrialModel] = {}
        self._saved_s: dict[str, float] = {}
        self._redone_s: dict[str, float] = {}

    def seconds_left(self, trial: Trial) -> float:
        """Return the seconds to a trial's next report, its checkpoint included."""
        if trial.name not in self._models:
            self._models[trial.name] = self._workload(trial)
        left_s = self._models[trial.name].report_s - self._saved_s.get(trial.name, 0.0)
        return max(0.0, left_s) + self._save_s

    def interrupt(self, trial: Trial, *, done_s: float, zone: Zone | None, is_told: bool) -> None:
        """Take a trial's machine: it keeps what was saved last, after a notice almost everything."""
        every_s = math.sqrt(2 * self._save_s * zone.median_life_s) if zone else math.inf
        kept_s = max(0.0, done_s - self._save_s) if is_told else done_s - done_s % every_s
        self._saved_s[trial.name] = self._saved_s.get(trial.name, 0.0) + kept_s
        self._redone_s[trial.name] = self._redone_s.get(trial.name, 0.0) + done_s - kept_s
        self.lost_s += done_s - kept_s

    def finish_share(self, trial: Trial, *, done_s: float) -> tuple[float, float]:
        """Return the seconds that the way to a report took, and those that were done again.

        What was saved on machines that went counts as the trial's time too; what was lost does not.
        """
        return done_s + self._saved_s.pop(trial.name, 0.0), self._redone_s.pop(trial.name, 0.0)

    def score(self, trial: Trial, index: int) -> float:
        """Return what a trial scores at a report."""
        return self._models[trial.name].score(index)

    def forget_saved(self) -> None:
        """Let the ways to the next reports begin anew, as after a driver's death."""
        self._saved_s.clear()
