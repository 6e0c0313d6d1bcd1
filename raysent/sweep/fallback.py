"""When a sweep on spot machines has to ask for machines on demand, so that its deadline holds.

Spot machines cost less as long as there is slack. When what is left to train would just fit into what is left of the
deadline, nothing may be taken any more: from then on machines on demand come first.

Source: Wu et al. 2024, "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI (the safety net).
Differs: what is left to train is an estimate here, for trials are stopped early; a margin stands for its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raysent.cost import Budget, Funds
from raysent.sweep.trial import ENDED, Trial

# What is left may take longer than it looks.
MARGIN = 1.25


def training_left_s(trials: Iterable[Trial], *, num_to_draw: int, num_slots: int) -> float | None:
    """Return the seconds that all training left takes when nothing is interrupted; None while nothing has reported.

    Args:
        trials: Those that are known.
        num_to_draw: Trials that are still to be drawn; they fare as those that have ended, else they go to the end.
        num_slots: Trials at once.
    """
    known = list(trials)
    reports = sum(trial.index for trial in known)
    if not reports:
        return None
    report_s = sum(trial.seconds for trial in known) / reports
    whole = max(trial.num_reports for trial in known)
    ended = [trial.index for trial in known if trial.status in ENDED]
    mean = sum(ended) / len(ended) if ended else whole
    left = [whole - trial.index for trial in known if trial.status not in ENDED]
    total = (sum(left) + num_to_draw * mean) / num_slots
    # However many run at once, the longest one has to come to its end.
    return report_s * max(total, max(left, default=0))


class Fallback:
    """Looks, now and then, whether the deadline allows for machines that may be taken, and says so once it changes."""

    def __init__(self, budget: Budget, *, boot_s: float, tell: Callable[[bool], object]) -> None:
        """Begin with slack.

        Args:
            budget: Knows the deadline.
            boot_s: How long a machine takes to come.
            tell: Hears whether machines on demand come first from now on.
        """
        self._budget, self._boot_s, self._tell = budget, boot_s, tell
        self.is_urgent = False

    def look(self, funds: Funds, *, left_s: float | None) -> None:
        """Decide anew.

        Args:
            funds: Know how long ago the sweep was begun.
            left_s: Seconds of training that are left; None where nobody knows yet.
        """
        if self._budget.deadline_s is None or left_s is None:
            return
        slack_s = self._budget.deadline_s - self._budget.window_s - funds.elapsed_s
        is_urgent = slack_s < MARGIN * left_s + 2 * self._boot_s
        if is_urgent != self.is_urgent:
            self.is_urgent = is_urgent
            self._tell(is_urgent)
