"""The best configurations of a sweep trained on when the search has ended: which ones, and what the budget admits.

Plain values in and out; no clock, no Ray. Each trial that is trained on keeps its weights and gets a folder of its own
beside it. The journal records the decisions (`retrain`) and the ends (`retrained`), so that a resumed sweep continues
where it stopped, and `raysent replay` derives the decisions again.

Calls in each session: `next` until it returns None, and `complete` for each trial that it admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysent.cost import Budget, Funds
from raysent.storage.layout import RETRAINED_SUFFIX, TRIALS_FOLDER
from raysent.sweeps.journal import Event
from raysent.sweeps.ranking import Mode, rank_trials, result_of
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trial import Status, Trial, trial_name

# What is left of a training may cost and take more than its pace so far suggests.
MARGIN = 1.25
# How a training ends that is not repeated in a later session.
_DONE: tuple[Status, ...] = ("finished", "failed", "nan")


@dataclass(frozen=True)
class Retrained:
    """A trial that was trained on.

    Attributes:
        trial: The trial's name.
        status: `waiting` (admitted, not ended), `finished`, `stopped` by the budget, `failed`, or `nan` (diverged).
        metrics: Those of the last report.
        seconds: Time spent training on, over all resumes.
        usd: What that time cost.
        error: One line, where it failed or was stopped.
    """

    trial: str
    status: Status = "waiting"
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    usd: float = 0.0
    error: str | None = None

    @property
    def name(self) -> str:
        """The name of its folder beside the trials."""
        return f"{self.trial}{RETRAINED_SUFFIX}"


def retrained_folder(folder: Path, number: int) -> Path:
    """Return the folder of a trial that was trained on."""
    return folder / TRIALS_FOLDER / f"{trial_name(number)}{RETRAINED_SUFFIX}"


def retrained_of(events: Iterable[Event]) -> dict[str, Retrained]:
    """Return what was trained on by the name of the trial, as a journal's events describe it."""
    found: dict[str, Retrained] = {}
    for event in events:
        if event["event"] == "retrain" and event["decision"] == "train":
            found[event["trial"]] = Retrained(event["trial"])
        elif event["event"] == "retrained":
            values = {key: event[key] for key in ("status", "metrics", "seconds", "usd", "error")}
            found[event["trial"]] = Retrained(event["trial"], **values)
    return found


def is_better(value: float | None, than: float | None, *, mode: Mode) -> bool:
    """Return whether a metric is at least as good as another one; one that is missing is worse."""
    if value is None or than is None:
        return value is not None
    return value >= than if mode == "max" else value <= than


class Retraining:
    """Chooses the trials that are trained on, in the order of the ranking, and asks the budget.

    Attributes:
        retrained: What was admitted so far, by the name of the trial.
        budget: What the sweep may spend.
    """

    def __init__(self, space: SearchSpace, *, write: Callable[..., Any], budget: Budget) -> None:
        self._space, self._write, self.budget = space, write, budget
        self.retrained: dict[str, Retrained] = {}
        # Trials that this session has decided on, and those of them that train now.
        self._decided: set[str] = set()
        self._running: set[str] = set()

    @property
    def num_running(self) -> int:
        """Trials that are trained on now."""
        return len(self._running)

    def apply(self, event: Event) -> None:
        """Take an event of an earlier session."""
        self.retrained |= retrained_of([event])

    def to_do(self, trials: Mapping[str, Trial]) -> list[Trial]:
        """Return the trials that this session has not decided on, best first: one of each of the best configurations.

        A trial that diverged, or trained a code, has no weights to continue with.
        """
        chosen: dict[int, Trial] = {}
        for trial in rank_trials(self._space, trials.values()):
            result = result_of(self._space, trial)
            is_usable = result.has_value and trial.status in ("finished", "stopped")
            if is_usable and not self._space.config(trial.params).objective.trains_code:
                first = trial.number - trial.number % self._space.limits.seeds
                chosen.setdefault(first, trial)
        # First what is done, so that a sweep of a version with another ranking trains no more than it was asked to.
        best = sorted(chosen.values(), key=lambda one: not self._is_done(one.name))[: self._space.evaluation.retrain]
        return [one for one in best if one.name not in self._decided and not self._is_done(one.name)]

    def _is_done(self, name: str) -> bool:
        return name in self.retrained and self.retrained[name].status in _DONE

    def next(self, trials: Mapping[str, Trial], funds: Funds | None) -> Trial | None:
        """Return the next trial that the budget admits, and record the decisions; None if there is none.

        Args:
            trials: All trials of the sweep.
            funds: What the sweep has spent; None where there is no budget.
        """
        for trial in self.to_do(trials):
            if self.decide(trial, trials, funds):
                return trial
        return None

    def decide(self, trial: Trial, trials: Mapping[str, Trial], funds: Funds | None) -> bool:
        """Record whether a trial is trained on, and return it."""
        reason = "" if funds is None else self._refusal(trial, trials, funds)
        decision = "skip" if reason else "train"
        values: dict[str, Any] = {} if funds is None else {"funds": funds.values()}
        value = result_of(self._space, trial).value
        self._write("retrain", trial=trial.name, value=value, decision=decision, reason=reason, **values)
        self._decided.add(trial.name)
        if not reason:
            self._running.add(trial.name)
            self.retrained[trial.name] = Retrained(trial.name)
        return not reason

    def complete(self, name: str, **values: Any) -> None:
        """Record how a training ended; `values` are the fields of `Retrained`."""
        self._running.discard(name)
        self.retrained[name] = Retrained(name, **values)
        ended = self.retrained[name]
        self._write(
            "retrained", trial=name, status=ended.status, metrics=dict(ended.metrics), seconds=ended.seconds,
            usd=ended.usd, error=ended.error,
        )  # fmt: skip

    def _refusal(self, trial: Trial, trials: Mapping[str, Trial], funds: Funds) -> str:
        ahead = [trial, *(trials[name] for name in sorted(self._running))]
        reason = self.budget.refusal(funds, need_usd=sum(MARGIN * one.usd * self._times(one) for one in ahead))
        left_s = None if self.budget.deadline_s is None else self.budget.deadline_s - funds.elapsed_s
        need_s = MARGIN * trial.seconds * self._times(trial) + self.budget.window_s
        if not reason and left_s is not None and need_s > left_s:
            return f"it would take about {need_s:.0f} s, and the deadline is {max(0.0, left_s):.0f} s away"
        return reason

    def _times(self, trial: Trial) -> float:
        """Return how many times as long as the trial's own training its next one takes."""
        whole = trial.num_reports / trial.index if trial.index else 1.0
        epochs, own = self._space.evaluation.retrain_epochs, self._space.config(trial.params).training
        is_limited = own.max_steps is not None
        return whole if epochs is None or is_limited else whole * epochs / own.epochs
