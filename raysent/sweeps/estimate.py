"""What a sweep should take, before it starts: trials, hours and dollars, and when each report is known.

In: a checked space, its machines and the seconds of a whole trial. Out: percentiles over many sweeps, in each of which
the space's own scheduler and budget decide on trials whose times and scores are drawn at random.

The 90th percentile of a sample is below that of all sweeps in every second sample. An upper tolerance limit is used
instead: the lowest value of the sample that at least 90 % of all sweeps stay below, with a confidence of 99 %.

Source: Wilks 1941, "Determination of Sample Sizes for Setting Tolerance Limits".
Differs: the binomial distribution is approximated by a normal one.
"""

from __future__ import annotations

import datetime
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from raysent.cost import NOT_COUNTED, Budget, Funds
from raysent.progress import format_duration
from raysent.sweeps.controller import SweepController
from raysent.sweeps.layout import Machines, layout
from raysent.sweeps.samplers import RandomSampler
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.speed import TrialTime
from raysent.sweeps.trial import Trial, derived_seed

NUM_SWEEPS = 400
_P10, _P90 = 0.1, 0.9
# Quantile of the normal distribution for the confidence in the 90th percentile.
_CONFIDENCE_SIGMAS = 2.326
# Spread of the times of trials around their mean (sigma of the logarithm).
_TRIAL_SIGMA = 0.5


@dataclass(frozen=True)
class Estimate:
    """The expected time and cost of a sweep, without evaluation.

    Attributes:
        usd: 10th, 50th and 90th percentile of dollars.
        hours: 10th, 50th and 90th percentile of hours.
        reports: Report index -> medians: trials that make it, and hours until the last of them is known.
        assumptions: What the estimate assumes, in words.
    """

    usd: tuple[float, float, float]
    hours: tuple[float, float, float]
    reports: dict[int, tuple[int, float]]
    assumptions: tuple[str, ...]

    def values(self) -> dict[str, Any]:
        """Return values for JSON."""
        named = {
            name: dict(zip(("p10", "p50", "p90"), getattr(self, name), strict=True))
            for name in ("usd", "hours")
        }
        reports = {
            str(index): {"trials": num, "hours": hours}
            for index, (num, hours) in self.reports.items()
        }
        return {**asdict(self), **named, "reports": reports}


def estimate(
    space: SearchSpace, trial: TrialTime, machines: Machines, *, num_sweeps: int | None = None
) -> Estimate:
    """Return the expected time and cost of a sweep; all of its machines are paid for until its end.

    Args:
        space: The search space.
        trial: How long a whole trial takes.
        machines: What there is for trials.
        num_sweeps: Number of sweeps to play, `NUM_SWEEPS` by default.

    Raises:
        ConfigError: If one trial alone does not fit on the machines, or the deadline is over.
    """
    at_once = layout(space.limits, machines, num_trials=space.limits.trials).concurrent
    usd_per_hour = machines.num * space.cost.least_usd_per_hour
    budget = space.budget(datetime.datetime.now(datetime.UTC)).with_time_as_deadline()
    played = [
        _Play(
            space,
            budget,
            trial,
            usd_per_hour=usd_per_hour,
            seed=derived_seed(0, "estimate", number),
        ).run(at_once=at_once)
        for number in range(num_sweeps or NUM_SWEEPS)
    ]
    hours = percentiles([hours for hours, _ in played])
    low, middle, high = (usd_per_hour * value for value in hours)
    return Estimate(
        usd=(low, middle, high),
        hours=hours,
        reports=_medians([reports for _, reports in played]),
        assumptions=(
            f"a whole trial takes {format_duration(trial.seconds)} ({trial.source}), within a factor of "
            f"{math.exp(trial.sigma):.2g}; trials differ by a factor of {math.exp(_TRIAL_SIGMA):.2g}",
            f"{at_once} trials at once, on machines of {usd_per_hour:g} usd an hour together",
            f"not included: evaluation (it has the reserve), Ray starting, a head node, interruptions; {NOT_COUNTED}",
        ),
    )


class _Play:
    """One sweep: the controller decides on trials with drawn times and scores, until the budget or the trials end."""

    def __init__(
        self,
        space: SearchSpace,
        budget: Budget,
        trial: TrialTime,
        *,
        usd_per_hour: float,
        seed: int,
    ) -> None:
        self._drawn = random.Random(derived_seed(seed, "trials"))
        self._num_reports = space.config(space.first_params()).training.num_reports
        self._mean_s = (
            trial.seconds / self._num_reports * math.exp(self._drawn.gauss(0, trial.sigma))
        )
        self._space, self._budget, self._usd_per_hour = space, budget, usd_per_hour
        sampler = RandomSampler(space, seed=seed)
        self._controller = SweepController(
            space, seed=seed, write=lambda *_, **__: None, budget=budget, sampler=sampler
        )
        self._now_s = 0.0
        # When the next report of each running trial is due; how long one takes, and how good the trial is.
        self._queue: list[tuple[float, str]] = []
        self._report_s: dict[str, float] = {}
        self._quality: dict[str, float] = {}
        self._reports: dict[int, tuple[int, float]] = {}

    def run(self, *, at_once: int) -> tuple[float, dict[int, tuple[int, float]]]:
        """Play the sweep: its hours, and report index -> trials that made it and hours until the last."""
        for _ in range(at_once):
            self._start()
        while self._queue:
            at_s, name = heapq.heappop(self._queue)
            end_s = self._now_s + self._budget.seconds_left(self._funds)
            if at_s > end_s:
                return end_s / 3600, self._reports
            self._now_s = at_s
            self._report(self._controller.trials[name])
        return self._now_s / 3600, self._reports

    @property
    def _funds(self) -> Funds:
        usd_per_s = self._usd_per_hour / 3600
        return Funds(
            usd_per_s * self._now_s,
            usd_per_s * self._budget.window_s,
            self._usd_per_hour,
            self._now_s,
        )

    def _start(self) -> None:
        trial = self._controller.suggest(self._funds)
        if trial is not None:
            self._report_s[trial.name] = self._mean_s * math.exp(self._drawn.gauss(0, _TRIAL_SIGMA))
            self._quality[trial.name] = self._drawn.gauss(0, 1)
            heapq.heappush(self._queue, (self._now_s + self._report_s[trial.name], trial.name))

    def _report(self, trial: Trial) -> None:
        name, index, took_s = trial.name, trial.index + 1, self._report_s[trial.name]
        rise = self._quality[name] - 1.5 / math.sqrt(index) + self._drawn.gauss(0, 0.1)
        values: dict[str, Any] = {
            "metrics": {self._space.metric: rise if self._space.mode == "max" else -rise}
        }
        should_continue = self._controller.report(
            name,
            index=index,
            num_reports=self._num_reports,
            seconds=index * took_s,
            funds=self._funds,
            **values,
        )
        self._reports[index] = (self._reports.get(index, (0, 0.0))[0] + 1, self._now_s / 3600)
        if should_continue and index < self._num_reports:
            heapq.heappush(self._queue, (self._now_s + took_s, name))
        else:
            self._controller.end(name, status="finished" if should_continue else "stopped")
            self._start()


def _medians(played: Sequence[dict[int, tuple[int, float]]]) -> dict[int, tuple[int, float]]:
    found = {}
    for index in sorted({index for reports in played for index in reports}):
        known = [reports[index] for reports in played if index in reports]
        if 2 * len(known) >= len(played):
            found[index] = (
                round(median(num for num, _ in known)),
                median(hours for _, hours in known),
            )
    return found


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 10th, 50th and 90th percentile, each one of the values; the highest as a tolerance limit."""
    ordered, num = sorted(values), len(values)
    margin = _CONFIDENCE_SIGMAS * math.sqrt(_P90 * (1 - _P90) * num)
    low, middle, high = (
        ordered[min(num, math.ceil(rank)) - 1]
        for rank in (_P10 * num, num / 2, _P90 * num + margin)
    )
    return low, middle, high
