"""Which trials a budget admits: whether another one may start, and whether one may continue to its next rung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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

    def refuses_all(self, funds: Funds) -> str:
        """Return why all training has to stop now; empty where it has not."""
        return self._budget.refusal(funds)

    def refuses_trial(self, funds: Funds, *, trials: Mapping[str, Trial], running: Mapping[str, Trial]) -> str:
        """Return why no other trial is started; empty where one is."""
        return self._budget.refusal(funds, need_usd=self._needed([None, *running.values()], trials))

    def refuses_rung(
        self, funds: Funds, trial: Trial, *, trials: Mapping[str, Trial], running: Mapping[str, Trial]
    ) -> str:
        """Return why a trial at a rung does not continue to the next one; empty where it does."""
        is_rung = self._scheduler.next_rung(trial.index - 1) in (trial.index, None)
        if self._budget.on_budget != "finish-rung" or not is_rung or trial.index >= trial.num_reports:
            return ""
        return self._budget.refusal(funds, need_usd=self._needed(running.values(), trials))

    def _needed(self, ahead: Iterable[Trial | None], trials: Mapping[str, Trial]) -> float:
        """Return what trials will cost up to their next rungs; one without a pace counts as the most expensive."""
        if self._budget.on_budget != "finish-rung":
            return 0.0
        highest = max((one.usd / one.index for one in trials.values() if one.index), default=0.0)
        need = 0.0
        for one in ahead:
            pace, index = (one.usd / one.index, one.index) if one is not None and one.index else (highest, 0)
            need += MARGIN * pace * self._reports_ahead(index, trials)
        return need

    def _reports_ahead(self, index: int, trials: Mapping[str, Trial]) -> int:
        """Return the reports from one to the next rung; the end of a run is one."""
        last = max((one.num_reports for one in trials.values()), default=1) or 1
        rung = self._scheduler.next_rung(index)
        return max(0, (last if rung is None else min(rung, last)) - index)
