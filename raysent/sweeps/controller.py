"""The controller of a sweep: what to try, which trials continue, what has happened. No Ray in it.

Every call takes and returns plain values and writes its events to the journal before they take effect. So Ray Tune, a
simulator or a test can drive it, and a new controller reaches the same state from the journal alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from raysent.cost import Budget, Funds
from raysent.errors import ConfigError
from raysent.sweeps.journal import Event, finite
from raysent.sweeps.ranking import first_number, median_value, result_of
from raysent.sweeps.samplers import Sampler, make_sampler
from raysent.sweeps.schedulers import Scheduler, make_scheduler
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trial import ENDED, Status, Trial, apply_event, derived_seed, trial_name

# A trial -> the metrics of the report whose model it has; None without a model.
MetricsOfModel = Callable[[Trial], Mapping[str, float | None] | None]
# The way to the next rung may cost more than its pace so far suggests.
MARGIN = 1.25
_WITHOUT_MODEL = "the budget ended before its model was saved"


class BudgetPolicy:
    """Admits trials, and their way to the next rung, by reservation.

    Under ``on_budget: stop`` a trial needs no more than the cost of stopping: it is stopped wherever the money ends.
    Under `finish-rung` the money that all running trials need to reach their next rungs is set aside first, so that no
    paid work is lost.
    """

    def __init__(self, budget: Budget, scheduler: Scheduler) -> None:
        self._budget = budget
        self._scheduler = scheduler
        # Of the trials that have ended: the highest cost of a report, and the most reports of a run.
        self._highest_usd, self._most_reports = 0.0, 0

    def complete(self, trial: Trial) -> None:
        """Remember a trial that has ended: what it cost stays as it is."""
        self._most_reports = max(self._most_reports, trial.num_reports)
        if trial.index:
            self._highest_usd = max(self._highest_usd, trial.usd / trial.index)

    def refuses_trial(
        self, funds: Funds, *, running: Iterable[Trial], waiting: Iterable[Trial]
    ) -> str:
        """Return why no other trial is started; empty where one is.

        Args:
            funds: The spending so far.
            running: Trials that are training.
            waiting: Trials that an earlier session began and that are not training again yet.
        """
        running = list(running)
        return self._budget.refusal(
            funds, need_usd=self._needed([None, *running], [*running, *waiting])
        )

    def refuses_rung(
        self, funds: Funds, trial: Trial, *, running: Iterable[Trial], waiting: Iterable[Trial]
    ) -> str:
        """Return why a trial at a rung does not continue to the next one; empty where it does.

        Args:
            funds: The spending so far.
            trial: The trial, which is training.
            running: As for `refuses_trial`.
            waiting: As for `refuses_trial`.
        """
        is_rung = self._scheduler.next_rung(trial.index - 1) in (trial.index, None)
        if (
            self._budget.on_budget != "finish-rung"
            or not is_rung
            or trial.index >= trial.num_reports
        ):
            return ""
        running = list(running)
        return self._budget.refusal(funds, need_usd=self._needed(running, [*running, *waiting]))

    def _needed(self, ahead: Sequence[Trial | None], left: Sequence[Trial]) -> float:
        """Return what trials, None for one that is not drawn yet, will cost up to their next rungs.

        One without a pace counts as the most expensive, of those that have ended and of those that are left.
        """
        if self._budget.on_budget != "finish-rung":
            return 0.0
        highest = max((one.usd / one.index for one in left if one.index), default=0.0)
        highest = max(highest, self._highest_usd)
        last = max((one.num_reports for one in left), default=0)
        last = max(last, self._most_reports) or 1
        need = 0.0
        for one in ahead:
            pace, index = (
                (one.usd / one.index, one.index) if one is not None and one.index else (highest, 0)
            )
            rung = self._scheduler.next_rung(index)  # the end of a run is one too
            need += MARGIN * pace * max(0, (last if rung is None else min(rung, last)) - index)
        return need


class SweepController:
    """Asks the sampler for trials, and the scheduler and the budget whether they continue.

    Calls for each trial: `suggest`, then `report` any number of times, then `end`.

    Attributes:
        space: What is searched.
        trials: Every trial by name, in the order in which they were drawn.
        exhausted: Whether the sampler has nothing left to try.
        closed: Why the budget ended the sweep; empty while it has not.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        write: Callable[..., Any],
        past: Iterable[Event] = (),
        budget: Budget | None = None,
        sampler: Sampler | None = None,
        one_line: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Rebuild the state from past events.

        Args:
            space: What is searched.
            seed: The sweep's seed.
            write: Called as ``write(event, **values)`` before an event takes effect.
            past: The events of the journal so far.
            budget: What the sweep may spend; None for no limit.
            sampler: What proposes parameters; None for the space's own.
            one_line: Makes a context whose events are written together when it ends: those of one call, which takes
                effect only when it returns.
        """
        self.space = space
        self.trials: dict[str, Trial] = {}
        self.exhausted = False
        self.closed = ""
        self._seed = seed
        self._write, self._one_line = write, one_line
        self._sampler = sampler or make_sampler(space, seed=seed)
        self._scheduler: Scheduler = make_scheduler(space, seed=seed)
        self._budget = budget or Budget()
        self._policy = BudgetPolicy(self._budget, self._scheduler)
        self._running: dict[str, Trial] = {}
        for event in past:
            self._apply(event, is_past=True)
        # The budget may have been raised since it ended the last session, so `closed` starts empty.
        self._waiting = [name for name, trial in self.trials.items() if trial.status not in ENDED]
        for name in self._waiting:
            self.trials[name].status = "waiting"

    @property
    def why_ended(self) -> str:
        """Why the sweep ended before `limits.trials` were started; empty if it did not."""
        limits = self.space.limits
        if self.exhausted and not self.closed:
            return f"the space has no other trial than these {len(self.trials)}"
        is_short = len(self.trials) < limits.trials and limits.time is not None
        return self.closed or (f"the time of {limits.time} was over" if is_short else "")

    @property
    def is_complete(self) -> bool:
        """Whether no trial is left to start or to end."""
        all_drawn = (
            self.exhausted or bool(self.closed) or len(self.trials) >= self.space.limits.trials
        )
        return all_drawn and all(trial.status in ENDED for trial in self.trials.values())

    @property
    def num_to_start(self) -> int:
        """Trials that wait for a machine, drawn or not."""
        to_draw = 0 if self.exhausted else self.space.limits.trials - len(self.trials)
        return 0 if self.closed else to_draw + len(self._waiting)

    def median(self, trial: Trial) -> float | None:
        """Return the median metric of the last reports of all trials with this one's parameters."""
        return median_value(result_of(self.space, one) for one in self._configuration(trial))

    def score(self, trial: Trial) -> float | None:
        """Return the metric of a trial's last report."""
        return trial.metrics.get(self.space.metric)

    def suggest(self, funds: Funds | None = None) -> Trial | None:
        """Return the next trial to train: first those that a killed driver left, then new ones.

        Args:
            funds: What the sweep has spent; None where there is no budget.

        Returns:
            The trial; None where there are no more, or the budget or the deadline does not cover another.
        """
        if self.closed or not self._admits(funds):
            return None
        with self._one_line():
            trial = self.trials[self._waiting.pop(0)] if self._waiting else self._new_trial()
            if trial is None:
                return None
            self._record("started", trial=trial.name, **_with_funds(funds))
        self._running[trial.name] = trial
        return trial

    def report(
        self,
        name: str,
        *,
        index: int,
        num_reports: int,
        metrics: dict[str, float],
        seconds: float,
        usd: float = 0.0,
        funds: Funds | None = None,
        memory_bytes: int | None = None,
    ) -> bool:
        """Record a report and return whether the trial continues.

        A resumed trial may repeat a report; the decision is the one that was made then.

        Args:
            name: The trial.
            index: The report's, from 1.
            num_reports: Reports of a whole run.
            metrics: The figures of validation.
            seconds: Time spent training, over all resumes.
            usd: What the trial has cost so far.
            funds: What the sweep has spent; None where there is no budget.
            memory_bytes: Physical memory of the trial's process; None if it is not known.
        """
        trial = self.trials[name]
        if index in trial.decisions:
            return trial.decisions[index]
        with self._one_line():
            if index > trial.index:
                values: dict[str, Any] = {
                    "index": index,
                    "num_reports": num_reports,
                    "metrics": metrics,
                }
                values |= {"seconds": round(seconds, 3), "usd": round(usd, 6)}
                values |= {} if memory_bytes is None else {"memory_bytes": memory_bytes}
                self._record("report", trial=name, **values)
            should_continue, reason = self._decide(trial)
            values = _with_funds(funds)
            if should_continue and funds is not None:
                reason = self._policy.refuses_rung(funds, trial, **self._left())
                should_continue = not reason
                values |= {"by": "budget"} if reason else {}
            decision = "continue" if should_continue else "stop"
            self._record(
                "decision", trial=name, index=index, decision=decision, reason=reason, **values
            )
        return should_continue

    def is_halted(self, funds: Funds) -> bool:
        """Return whether all training has to stop now, between reports too, because the money or the time is over."""
        if not self.closed or self.closed.startswith("refused"):
            reason = self._budget.refusal(funds)
            if reason:
                self._write("halted", reason=reason, **_with_funds(funds))
                self.closed = f"halted: {reason}"
        return self.closed.startswith("halted")

    def halt(self, reason: str, funds: Funds) -> None:
        """Stop all training at the next look of `is_halted`: no machine will ever come.

        Args:
            reason: Why.
            funds: What the sweep has spent.
        """
        if not self.closed.startswith("halted"):
            self._write("halted", reason=reason, by="machines", **_with_funds(funds))
            self.closed = f"halted: {reason}"

    def abandon(self, metrics_of_model: MetricsOfModel = lambda trial: trial.metrics) -> None:
        """End every trial that has not ended: the budget does not let it continue.

        Args:
            metrics_of_model: Returns the metrics of the report whose model a trial has, its last or an earlier one.
                None without a model, as where all reports were made before the sweep had a budget: it has failed.
        """
        for trial in self.trials.values():
            if trial.status in ENDED:
                continue
            metrics = metrics_of_model(trial) if trial.index else trial.metrics
            if metrics is None:
                self.end(trial.name, status="failed", error=_WITHOUT_MODEL)
            else:
                self.end(trial.name, status="stopped", metrics=metrics)

    def end(
        self,
        name: str,
        *,
        status: Status,
        seconds: float | None = None,
        usd: float | None = None,
        error: str | None = None,
        metrics: Mapping[str, float | None] | None = None,
    ) -> None:
        """Record that a trial has ended; a second call for the same trial changes nothing.

        Args:
            name: The trial.
            status: How it ended.
            seconds: Time spent training; None for that of its last report.
            usd: What that time cost; None for that of its last report.
            error: One line, where it failed.
            metrics: Those of its model; None for those of its last report.
        """
        trial = self.trials[name]
        if trial.status in ENDED:
            return
        seconds = round(trial.seconds if seconds is None else seconds, 3)
        usd = round(trial.usd if usd is None else usd, 6)
        metrics = trial.metrics if metrics is None else metrics
        self._record(
            "ended",
            trial=name,
            status=status,
            metrics=metrics,
            seconds=seconds,
            usd=usd,
            error=error,
        )

    def _admits(self, funds: Funds | None) -> bool:
        """Return whether the budget covers one more trial; a refusal closes the sweep."""
        all_drawn = self.exhausted or len(self.trials) >= self.space.limits.trials
        if funds is None or (all_drawn and not self._waiting):
            return True
        reason = self._policy.refuses_trial(funds, **self._left())
        if reason:
            self._write("refused", reason=reason, **_with_funds(funds))
            self.closed = f"refused: {reason}"
        return not reason

    def _left(self) -> dict[str, Iterable[Trial]]:
        return {
            "running": self._running.values(),
            "waiting": [self.trials[name] for name in self._waiting],
        }

    def _new_trial(self) -> Trial | None:
        number = len(self.trials)
        if self.exhausted or number >= self.space.limits.trials:
            return None
        first = self._first(number)
        # The other seeds of a configuration have the first one's parameters, which took no attempt.
        drawn = (
            self._sampler.ask(number)
            if first == number
            else (dict(self.trials[trial_name(first)].params), 0)
        )
        if drawn is None:
            self.exhausted = True
            return None
        proposed, attempts = drawn
        # NumPy's numbers become plain ones.
        params = {
            name: value.item() if hasattr(value, "item") else value
            for name, value in proposed.items()
        }
        try:  # what the journal has, every later session reads
            self.space.config(params)
        except (KeyError, TypeError) as error:
            sampler = f"limits.sampler: must propose searched names with their values; {self.space.limits.sampler.type}"
            raise ConfigError(f"{sampler} proposed {params}: {error}") from None
        name, seed = trial_name(number), derived_seed(self._seed, "run", number)
        self._record(
            "suggested", trial=name, number=number, attempts=attempts, params=params, seed=seed
        )
        return self.trials[name]

    def _decide(self, trial: Trial) -> tuple[bool, str]:
        """Ask the scheduler about a trial's last report; after the last one of a run there is nothing to stop."""
        score = self.score(trial)
        decision = self._scheduler.on_report(trial, score=math.nan if score is None else score)
        return (True, "") if trial.index >= trial.num_reports else decision

    def _record(self, event: str, **values: Any) -> None:
        self._write(event, **values)
        self._apply({"event": event, **finite(values)})

    def _apply(self, event: Event, *, is_past: bool = False) -> None:
        """Change the state as an event says; past events also replay what sampler and scheduler did for them."""
        apply_event(self.trials, event)
        match event["event"]:
            case "suggested" if is_past and event["attempts"]:
                self._sampler.replay(
                    event["number"], dict(event["params"]), attempts=event["attempts"]
                )
            case "report":
                trial = self.trials[event["trial"]]
                score = self.score(trial)
                # The sampler sees the reports of a configuration's first trial, and the median in the end.
                if score is not None and trial.number == self._first(trial.number):
                    self._sampler.on_report(
                        trial.number, index=trial.index, score=score, usd=trial.usd
                    )
            case "decision" if is_past:
                self._decide(self.trials[event["trial"]])
            case "ended":
                self._running.pop(event["trial"], None)
                self._complete(self.trials[event["trial"]])

    def _complete(self, trial: Trial) -> None:
        """Report a trial's end to the scheduler; once all seeds of its configuration have ended, to the sampler too."""
        self._scheduler.complete(trial)
        self._policy.complete(trial)
        configuration = self._configuration(trial)
        is_whole = len(configuration) == self.space.limits.seeds
        if is_whole and all(one.status in ENDED for one in configuration):
            worst = max((one.status for one in configuration), key=ENDED.index)
            self._sampler.complete(
                self._first(trial.number), status=worst, score=self.median(trial)
            )

    def _configuration(self, trial: Trial) -> list[Trial]:
        first = self._first(trial.number)
        names = (trial_name(number) for number in range(first, first + self.space.limits.seeds))
        return [self.trials[name] for name in names if name in self.trials]

    def _first(self, number: int) -> int:
        return first_number(number, num_seeds=self.space.limits.seeds)


def _with_funds(funds: Funds | None) -> dict[str, Any]:
    return {} if funds is None else {"funds": funds.values()}
