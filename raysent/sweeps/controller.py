"""The sweep's mind: what to try, who goes on, what has happened. No Ray in it.

Every call takes and returns plain values and writes the journal before it returns, so that a driver can be Ray Tune,
a simulator or a test, and so that the journal alone rebuilds this object: what a killed driver knew, a new one knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from raysent.cost import Budget, Funds
from raysent.sweeps.budget_policy import BudgetPolicy
from raysent.sweeps.journal import Event, finite
from raysent.sweeps.ranking import best_trial, first_number, median_value, result_of
from raysent.sweeps.samplers import make_sampler
from raysent.sweeps.samplers.optuna_samplers import Sampler
from raysent.sweeps.schedulers.asha import SuccessiveHalving
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trial import ENDED, Status, Trial, apply_event, derived_seed, trial_name


class SweepController:
    """Proposes trials, hears their reports, decides who goes on, and remembers.

    Order of the calls for each trial: `suggest`, then `report` any number of times, then `end`.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        write: Callable[..., Any],
        past: Iterable[Event] = (),
        budget: Budget | None = None,
        proposals: Sampler | None = None,
    ) -> None:
        """Rebuild the state from past events and go on from there.

        Args:
            space: What is searched.
            seed: The sweep's seed.
            write: Called as ``write(event, **values)`` before an event takes effect.
            past: The events of the journal so far.
            budget: What the sweep may spend; None for no limit.
            proposals: What proposes parameters; None for the space's sampler.
        """
        self.space = space
        self.trials: dict[str, Trial] = {}
        self.exhausted = False
        self.closed = ""
        self._seed = seed
        self._write = write
        self._proposals: Sampler = proposals or make_sampler(space, seed=seed)
        scheduler = space.limits.scheduler
        self._halving = (
            SuccessiveHalving(
                mode=space.mode,
                reduction_factor=scheduler.reduction_factor,
                grace_reports=scheduler.grace_reports,
                unit=space.limits.rung_unit,
            )
            if scheduler.type == "asha"
            else None
        )
        self._allowance = BudgetPolicy(budget or Budget(), self._halving)
        self._running: dict[str, Trial] = {}
        for event in past:
            self._apply(event, is_past=True)
        # Whether there is money now is asked anew: the budget may have been raised.
        self.closed = ""
        self._waiting = [name for name, trial in self.trials.items() if trial.status not in ENDED]
        for name in self._waiting:
            self.trials[name].status = "waiting"

    @property
    def is_complete(self) -> bool:
        """Whether no trial is left to start or to end."""
        all_drawn = self.exhausted or bool(self.closed) or len(self.trials) >= self.space.limits.trials
        return all_drawn and all(trial.status in ENDED for trial in self.trials.values())

    @property
    def num_to_start(self) -> int:
        """Trials that wait for somebody to train them, drawn or not."""
        to_draw = 0 if self.exhausted else self.space.limits.trials - len(self.trials)
        return 0 if self.closed else to_draw + len(self._waiting)

    @property
    def best(self) -> Trial | None:
        """The best trial so far; None where none has a value."""
        return best_trial(self.space, self.trials.values())

    def median(self, trial: Trial) -> float | None:
        """Return the median metric of the last reports of all trials with this one's parameters."""
        return median_value(result_of(self.space, one) for one in self._same(trial))

    def _same(self, trial: Trial) -> list[Trial]:
        """Return the trials with this one's values that there are, one for each seed."""
        first = self._first(trial.number)
        names = (trial_name(number) for number in range(first, first + self.space.limits.seeds))
        return [self.trials[name] for name in names if name in self.trials]

    def _first(self, number: int) -> int:
        """Return the number of the first trial with the same values."""
        return first_number(number, num_seeds=self.space.limits.seeds)

    def score(self, trial: Trial) -> float | None:
        """Return the metric of a trial's last report."""
        return trial.metrics.get(self.space.metric)

    def suggest(self, funds: Funds | None = None) -> Trial | None:
        """Return the next trial to train: first those that a killed driver left, then new ones.

        Args:
            funds: Where the sweep stands; None where there is no budget.

        Returns:
            The trial; None where there are no more, or no money or time is left for another.
        """
        if self.closed or not self._admits(funds):
            return None
        if self._waiting:
            trial = self.trials[self._waiting.pop(0)]
        else:
            drawn = self._new_trial()
            if drawn is None:
                return None
            trial = drawn
        self._record("started", trial=trial.name, **_told(funds))
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
    ) -> bool:
        """Hear a report and say whether the trial goes on.

        A trial that was resumed may tell a report again; it gets the answer that it got then.

        Args:
            name: The trial.
            index: The report's, from 1.
            num_reports: Reports of a whole run.
            metrics: The figures of validation.
            seconds: Time spent training, over all resumes.
            usd: What the trial has cost so far.
            funds: Where the sweep stands; None where there is no budget.
        """
        trial = self.trials[name]
        if index in trial.decisions:
            return trial.decisions[index]
        if index > trial.index:
            seconds, usd = round(seconds, 3), round(usd, 6)
            told = {"index": index, "num_reports": num_reports, "metrics": metrics, "seconds": seconds, "usd": usd}
            self._record("report", trial=name, **told)
        should_continue, reason = self._decide(trial, index)
        if should_continue and funds is not None:
            reason = self._allowance.refuses_rung(funds, trial, trials=self.trials, running=self._running)
            should_continue = not reason
        said = "continue" if should_continue else "stop"
        self._record("decision", trial=name, index=index, decision=said, reason=reason, **_told(funds))
        return should_continue

    def is_halted(self, funds: Funds) -> bool:
        """Return whether all training has to stop now, in the middle of what it does, for want of money or time."""
        if not self.closed or self.closed.startswith("refused"):
            reason = self._allowance.refuses_all(funds)
            if reason:
                self._write("halted", reason=reason, **_told(funds))
                self.closed = f"halted: {reason}"
        return self.closed.startswith("halted")

    def abandon(self) -> None:
        """End every trial that has not ended: there is no money or time to take it up again."""
        for trial in self.trials.values():
            self.end(trial.name, status="stopped")

    def end(
        self,
        name: str,
        *,
        status: Status,
        seconds: float | None = None,
        usd: float | None = None,
        error: str | None = None,
    ) -> None:
        """Hear that a trial is over; a second word about the same trial changes nothing."""
        trial = self.trials[name]
        if trial.status in ENDED:
            return
        seconds = round(trial.seconds if seconds is None else seconds, 3)
        usd = round(trial.usd if usd is None else usd, 6)
        self._record("ended", trial=name, status=status, metrics=trial.metrics, seconds=seconds, usd=usd, error=error)

    def _admits(self, funds: Funds | None) -> bool:
        """Ask the budget for one more trial, and remember a refusal."""
        all_drawn = self.exhausted or len(self.trials) >= self.space.limits.trials
        if funds is None or (all_drawn and not self._waiting):
            return True
        reason = self._allowance.refuses_trial(funds, trials=self.trials, running=self._running)
        if reason:
            self._write("refused", reason=reason, **_told(funds))
            self.closed = f"refused: {reason}"
        return not reason

    def _new_trial(self) -> Trial | None:
        """Draw a new trial, unless there are enough or the space has been searched through."""
        number = len(self.trials)
        if self.exhausted or number >= self.space.limits.trials:
            return None
        first = self._first(number)
        if first < number:
            params, attempts = dict(self.trials[trial_name(first)].params), 0
        else:
            proposal = self._proposals.ask(number)
            if proposal is None:
                self.exhausted = True
                return None
            params, attempts = proposal
        name, seed = trial_name(number), derived_seed(self._seed, "run", number)
        self._record("suggested", trial=name, number=number, attempts=attempts, params=params, seed=seed)
        return self.trials[name]

    def _decide(self, trial: Trial, index: int) -> tuple[bool, str]:
        """Ask the trial scheduler; after the last report there is nothing left to stop."""
        if self._halving is None or index >= trial.num_reports:
            return True, ""
        told = self.score(trial)
        score = math.nan if told is None else told
        return self._halving.should_continue(trial.name, index=index, score=score, usd=trial.usd)

    def _record(self, event: str, **values: Any) -> None:
        """Write an event, then let it take effect."""
        self._write(event, **values)
        self._apply({"event": event, **finite(values)})

    def _apply(self, event: Event, *, is_past: bool = False) -> None:
        """Change the state as an event says; one of the past also tells the searcher and the halving what they did."""
        apply_event(self.trials, event)
        match event["event"]:
            case "suggested" if is_past and event["attempts"]:
                self._proposals.repeat(event["number"], dict(event["params"]), attempts=event["attempts"])
            case "report":
                trial = self.trials[event["trial"]]
                score = self.score(trial)
                # The searcher hears the first seed's reports, and the median in the end.
                if score is not None and trial.number == self._first(trial.number):
                    self._proposals.on_report(trial.number, index=trial.index, score=score, usd=trial.usd)
            case "decision" if is_past:
                self._decide(self.trials[event["trial"]], event["index"])
            case "ended":
                self._running.pop(event["trial"], None)
                self._complete(self.trials[event["trial"]])

    def _complete(self, trial: Trial) -> None:
        """Tell the searcher how a configuration ended, once all its seeds have."""
        same = self._same(trial)
        if len(same) == self.space.limits.seeds and all(one.status in ENDED for one in same):
            worst = max((one.status for one in same), key=ENDED.index)
            self._proposals.complete(self._first(trial.number), status=worst, score=self.median(trial))


def _told(funds: Funds | None) -> dict[str, Any]:
    """Return what an event says of the funds that it was decided upon; nothing where there is no budget."""
    return {} if funds is None else {"funds": funds.values()}
