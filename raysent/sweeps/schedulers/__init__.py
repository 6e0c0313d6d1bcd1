"""Which trials continue: a module defines `SCHEDULERS`, a table of names and classes.

Another package adds a scheduler by an entry point `raysent.schedulers` whose value is such a module.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from raysent.sweeps.components import SCHEDULERS as SCHEDULERS
from raysent.sweeps.components import build
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trial import Trial


class Decision(NamedTuple):
    """Whether a trial continues after a report, and why not."""

    should_continue: bool
    reason: str = ""


CONTINUE = Decision(should_continue=True)


class Scheduler(Protocol):
    """Decides at each report whether the trial continues.

    Calls: `on_report` for the reports of all trials in the order in which they arrive, and `complete` once for each
    trial that has ended. A resumed sweep repeats the calls of the journal and keeps the recorded decisions. Its
    decisions follow from these calls and the seed, so that a journal replays.
    """

    def on_report(self, trial: Trial, *, score: float) -> Decision:
        """Record a trial's last report and decide.

        Args:
            trial: The trial, with this report in it; after the last report there is nothing to stop.
            score: The metric's value; NaN where it is not a number.
        """

    def complete(self, trial: Trial) -> None:
        """Record that a trial has ended."""

    def next_rung(self, index: int) -> int | None:
        """Return the first report after `index` at which a trial may be stopped; None if it is never stopped.

        Under ``on_budget: finish-rung`` the money up to there is set aside.
        """


def make_scheduler(space: SearchSpace, *, seed: int) -> Scheduler:
    """Return the scheduler that `limits.scheduler` of a space names.

    Raises:
        ConfigError: With file and line, if there is none of that name, or its settings are wrong.
    """
    scheduler: Scheduler = build(
        SCHEDULERS, space, space.limits.scheduler, at="limits.scheduler", seed=seed
    )
    return scheduler
