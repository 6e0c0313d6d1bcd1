"""The sweep's mind: what to try, who goes on, what has happened. No Ray in it.

Every call takes and returns plain values and writes the journal before it returns, so that a driver can be Ray Tune,
a simulator or a test, and so that the journal alone rebuilds this object: what a killed driver knew, a new one knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from raysent.search_space import Params, SearchSpace
from raysent.sweep.halving import SuccessiveHalving
from raysent.sweep.journal import Event
from raysent.sweep.proposals import Proposals, derived_seed

Status = Literal["waiting", "running", "finished", "stopped", "failed", "nan"]
ENDED: tuple[Status, ...] = ("finished", "stopped", "failed", "nan")


@dataclass
class Trial:
    """One trial as far as it is known.

    Attributes:
        name: Four digits, the trial's folder.
        number: Counted from 0.
        params: What was drawn.
        seed: Seed of its run.
        status: Where it stands.
        index: Its last report, 0 for none.
        num_reports: Reports of a whole run, 0 while unknown.
        metrics: Those of the last report.
        seconds: Time spent training, over all resumes.
        decisions: Report index -> whether it went on.
        error: One line, where it failed.
    """

    name: str
    number: int
    params: Params
    seed: int
    status: Status = "waiting"
    index: int = 0
    num_reports: int = 0
    metrics: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    decisions: dict[int, bool] = field(default_factory=dict)
    error: str | None = None


def trial_name(number: int) -> str:
    """Return the name of the trial with this number."""
    return f"{number:04d}"


class Conductor:
    """Proposes trials, hears their reports, decides who goes on, and remembers.

    Order of the calls for each trial: `suggest`, then `report` any number of times, then `end`.
    """

    def __init__(self, space: SearchSpace, *, seed: int, write: Callable[..., Any], past: Iterable[Event] = ()) -> None:
        """Rebuild the state from past events and go on from there.

        Args:
            space: What is searched.
            seed: The sweep's seed.
            write: Called as ``write(event, **values)`` before an event takes effect.
            past: The events of the journal so far.
        """
        self.space = space
        self.trials: dict[str, Trial] = {}
        self.exhausted = False
        self._seed = seed
        self._write = write
        self._proposals = Proposals(space, seed=seed)
        scheduler = space.limits.scheduler
        self._halving = (
            SuccessiveHalving(
                mode=space.mode, reduction_factor=scheduler.reduction_factor, grace_reports=scheduler.grace_reports
            )
            if scheduler.type == "asha"
            else None
        )
        for event in past:
            self._replay(event)
        self._waiting = [name for name, trial in self.trials.items() if trial.status not in ENDED]
        for name in self._waiting:
            self.trials[name].status = "waiting"

    @property
    def is_complete(self) -> bool:
        """Whether no trial is left to start or to end."""
        all_drawn = self.exhausted or len(self.trials) >= self.space.limits.trials
        return all_drawn and all(trial.status in ENDED for trial in self.trials.values())

    @property
    def best(self) -> Trial | None:
        """The trial with the best last report so far; with several seeds, the median one of the best values."""
        sign = 1 if self.space.mode == "max" else -1

        def place(trial: Trial) -> tuple[bool, float, float]:
            value = self.median(trial) or 0.0
            is_whole = all(one.status == "finished" for one in self._same(trial))
            return is_whole, sign * value, -abs((self.score(trial) or 0.0) - value)

        scored = [trial for trial in self.trials.values() if self.score(trial) is not None]
        return max(scored, key=place, default=None)

    def median(self, trial: Trial) -> float | None:
        """Return the median metric of the last reports of all trials with this one's values."""
        scores = [score for one in self._same(trial) if (score := self.score(one)) is not None]
        return median(scores) if scores else None

    def _same(self, trial: Trial) -> list[Trial]:
        """Return the trials with this one's values that there are, one for each seed."""
        first = self._first(trial.number)
        names = (trial_name(number) for number in range(first, first + self.space.limits.seeds))
        return [self.trials[name] for name in names if name in self.trials]

    def _first(self, number: int) -> int:
        """Return the number of the first trial with the same values."""
        return number - number % self.space.limits.seeds

    def score(self, trial: Trial) -> float | None:
        """Return the metric of a trial's last report."""
        return trial.metrics.get(self.space.metric)

    def suggest(self) -> Trial | None:
        """Return the next trial to train: first those that a killed driver left, then new ones; None for no more."""
        if self._waiting:
            trial = self.trials[self._waiting.pop(0)]
        else:
            drawn = self._new_trial()
            if drawn is None:
                return None
            trial = drawn
        self._write("started", trial=trial.name)
        trial.status = "running"
        return trial

    def report(self, name: str, *, index: int, num_reports: int, metrics: dict[str, float], seconds: float) -> bool:
        """Hear a report and say whether the trial goes on.

        A trial that was resumed may tell a report again; it gets the answer that it got then.
        """
        trial = self.trials[name]
        if index in trial.decisions:
            return trial.decisions[index]
        if index > trial.index:
            self._write(
                "report", trial=name, index=index, num_reports=num_reports, metrics=metrics, seconds=round(seconds, 3)
            )
            self._hear(trial, index=index, num_reports=num_reports, metrics=metrics, seconds=seconds)
        goes_on, reason = self._decide(trial, index)
        self._write("decision", trial=name, index=index, decision="continue" if goes_on else "stop", reason=reason)
        trial.decisions[index] = goes_on
        return goes_on

    def end(self, name: str, *, status: Status, seconds: float | None = None, error: str | None = None) -> None:
        """Hear that a trial is over; a second word about the same trial changes nothing."""
        trial = self.trials[name]
        if trial.status in ENDED:
            return
        seconds = trial.seconds if seconds is None else seconds
        self._write("ended", trial=name, status=status, metrics=trial.metrics, seconds=round(seconds, 3), error=error)
        self._settle(trial, status=status, seconds=seconds, error=error)

    def _new_trial(self) -> Trial | None:
        """Draw a new trial, unless there are enough or the space has been searched through."""
        number = len(self.trials)
        if self.exhausted or number >= self.space.limits.trials:
            return None
        first = self._first(number)
        if first < number:
            params, attempts = dict(self.trials[trial_name(first)].params), 0
        else:
            proposal = self._proposals.propose(number)
            if proposal is None:
                self.exhausted = True
                return None
            params, attempts = proposal
        trial = Trial(trial_name(number), number, params, derived_seed(self._seed, "run", number))
        self._write("suggested", trial=trial.name, number=number, attempts=attempts, params=params, seed=trial.seed)
        self.trials[trial.name] = trial
        return trial

    def _decide(self, trial: Trial, index: int) -> tuple[bool, str]:
        """Ask the trial scheduler; after the last report there is nothing left to stop."""
        score = self.score(trial)
        if self._halving is None or index >= trial.num_reports:
            return True, ""
        return self._halving.goes_on(trial.name, index=index, score=math.nan if score is None else score)

    def _hear(
        self,
        trial: Trial,
        *,
        index: int,
        num_reports: int,
        metrics: dict[str, float | None] | dict[str, float],
        seconds: float,
    ) -> None:
        """Take a report into the state."""
        trial.index, trial.num_reports, trial.metrics, trial.seconds = index, num_reports, dict(metrics), seconds
        score = self.score(trial)
        # The searcher hears the first seed's reports, and the median in the end.
        if score is not None and not math.isnan(score) and trial.number == self._first(trial.number):
            self._proposals.observe(trial.number, index=index, score=score)

    def _settle(self, trial: Trial, *, status: Status, seconds: float, error: str | None) -> None:
        """Take an ending into the state."""
        trial.status, trial.seconds, trial.error = status, seconds, error
        same = self._same(trial)
        if len(same) == self.space.limits.seeds and all(one.status in ENDED for one in same):
            worst = max((one.status for one in same), key=ENDED.index)
            self._proposals.settle(self._first(trial.number), status=worst, score=self.median(trial))

    def _replay(self, event: Event) -> None:
        """Take one event of the journal into the state, without deciding anything anew."""
        match event["event"]:
            case "suggested":
                params = dict(event["params"])
                if event["attempts"]:
                    self._proposals.repeat(event["number"], params, attempts=event["attempts"])
                self.trials[event["trial"]] = Trial(event["trial"], event["number"], params, event["seed"])
            case "report":
                self._hear(
                    self.trials[event["trial"]],
                    index=event["index"],
                    num_reports=event["num_reports"],
                    metrics=event["metrics"],
                    seconds=event["seconds"],
                )
            case "decision":
                trial = self.trials[event["trial"]]
                self._decide(trial, event["index"])
                trial.decisions[event["index"]] = event["decision"] == "continue"
            case "ended":
                trial = self.trials[event["trial"]]
                self._settle(trial, status=event["status"], seconds=event["seconds"], error=event["error"])
