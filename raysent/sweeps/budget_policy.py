"""What a budget says to a sweep's trials: whether another one may start, and whether one may go on to its next rung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raysent.cost import Budget, Funds
from raysent.sweeps.schedulers.asha import SuccessiveHalving
from raysent.sweeps.trial import Trial

# A trial's next rung may cost more than its pace so far says.
MARGIN = 1.25


class BudgetPolicy:
    """Admits trials, and ways to rungs, by reservation.

    Under `stop` a trial needs no more than the commitment: it is stopped wherever the money ends. Under `finish-rung`
    what it and all that run need to reach their next rungs is set aside first, so that no paid work is cut off.
    """

    def __init__(self, budget: Budget, halving: SuccessiveHalving | None) -> None:
        self._budget = budget
        self._halving = halving

    def refuses_all(self, funds: Funds) -> str:
        """Return why all training has to stop now, empty where it has not."""
        return self._budget.refusal(funds)

    def refuses_trial(self, funds: Funds, *, trials: Mapping[str, Trial], running: Mapping[str, Trial]) -> str:
        """Return why no other trial is started, empty where one is."""
        return self._budget.refusal(funds, need_usd=self._needed([None, *running.values()], trials))

    def refuses_rung(
        self, funds: Funds, trial: Trial, *, trials: Mapping[str, Trial], running: Mapping[str, Trial]
    ) -> str:
        """Return why a trial that has come to a rung does not go on to its next, empty where it does."""
        is_rung = self._halving is None or self._halving.is_rung(trial.index)
        if self._budget.on_budget != "finish-rung" or not is_rung or trial.index >= trial.num_reports:
            return ""
        return self._budget.refusal(funds, need_usd=self._needed(running.values(), trials))

    def _needed(self, ahead: Iterable[Trial | None], trials: Mapping[str, Trial]) -> float:
        """Return what trials are bound to cost to their next rungs; one of no pace yet counts as the dearest."""
        if self._budget.on_budget != "finish-rung":
            return 0.0
        most_expensive = max((one.usd / one.index for one in trials.values() if one.index), default=0.0)
        need = 0.0
        for one in ahead:
            pace, index = (one.usd / one.index, one.index) if one is not None and one.index else (most_expensive, 0)
            need += MARGIN * pace * self._reports_ahead(index, trials)
        return need

    def _reports_ahead(self, index: int, trials: Mapping[str, Trial]) -> int:
        """Return the reports from one to the next rung; the end of a run is one."""
        last = max((one.num_reports for one in trials.values()), default=1) or 1
        rung = last if self._halving is None else min(self._halving.next_rung(index), last)
        return max(0, rung - index)
