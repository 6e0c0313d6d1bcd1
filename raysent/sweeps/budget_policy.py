"""Which trials a budget admits: whether another one may start, and whether one may continue to its next rung."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raysent.cost import Budget, Funds
from raysent.sweeps.schedulers import Scheduler
from raysent.sweeps.trial import Trial

# A trial's next rung may cost more than its pace so far suggests.
MARGIN = 1.25


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

    def refuses_all(self, funds: Funds) -> str:
        """Return why all training has to stop now; empty where it has not."""
        return self._budget.refusal(funds)

    def refuses_trial(self, funds: Funds, *, running: Iterable[Trial], waiting: Iterable[Trial]) -> str:
        """Return why no other trial is started; empty where one is.

        Args:
            funds: The spending so far.
            running: Trials that are training.
            waiting: Trials that an earlier session began and that are not training again yet.
        """
        running = list(running)
        return self._budget.refusal(funds, need_usd=self._needed([None, *running], [*running, *waiting]))

    def refuses_rung(self, funds: Funds, trial: Trial, *, running: Iterable[Trial], waiting: Iterable[Trial]) -> str:
        """Return why a trial at a rung does not continue to the next one; empty where it does.

        Args:
            funds: The spending so far.
            trial: The trial, which is training.
            running: As for `refuses_trial`.
            waiting: As for `refuses_trial`.
        """
        is_rung = self._scheduler.next_rung(trial.index - 1) in (trial.index, None)
        if self._budget.on_budget != "finish-rung" or not is_rung or trial.index >= trial.num_reports:
            return ""
        running = list(running)
        return self._budget.refusal(funds, need_usd=self._needed(running, [*running, *waiting]))

    def _needed(self, ahead: Sequence[Trial | None], left: Sequence[Trial]) -> float:
        """Return what trials will cost up to their next rungs; one without a pace counts as the most expensive.

        Args:
            ahead: The trials; None for one that is not drawn yet.
            left: All trials that have not ended.
        """
        if self._budget.on_budget != "finish-rung":
            return 0.0
        highest = max((one.usd / one.index for one in left if one.index), default=0.0)
        highest = max(highest, self._highest_usd)
        last = max((one.num_reports for one in left), default=0)
        last = max(last, self._most_reports) or 1
        need = 0.0
        for one in ahead:
            pace, index = (one.usd / one.index, one.index) if one is not None and one.index else (highest, 0)
            need += MARGIN * pace * self._reports_ahead(index, last)
        return need

    def _reports_ahead(self, index: int, last: int) -> int:
        """Return the reports from one to the next rung; the end of a run, after report `last`, is one."""
        rung = self._scheduler.next_rung(index)
        return max(0, (last if rung is None else min(rung, last)) - index)
