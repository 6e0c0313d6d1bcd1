"""Many simulated sweeps: what a sweep will cost, how long it will take, and whether its cap holds.

An estimate is three quantiles of dollars and of hours over sweeps that differ in everything that is not known before:
how fast trials are, which of them are stopped, prices, machines that are taken back, slow stops, killed drivers.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from raysent.cost import Budget
from raysent.simulation import Simulator
from raysent.simulation.workload import GUESS_SIGMA, TRIAL_SIGMA, Scenario
from raysent.sweeps import derived_seed
from raysent.sweeps.space import SearchSpace

QUANTILES = (0.1, 0.5, 0.9)
# Fewer sweeps than this are not worth a second process.
MIN_SHARED = 1000
# In every other sweep of a test trials are made so long that money runs out: up to so many times the budget is needed.
STRESS = (0.5, 4.0)


@dataclass(frozen=True)
class Outcome:
    """What is kept of a simulated sweep.

    Attributes:
        billed_usd: What was billed.
        over_usd: What of that was above what was meant for training.
        short_usd: By how much the ledger was below the bill.
        hours: How long it took.
        is_capped: Whether money or time ended it.
        rungs: Report index -> trials that came to it.
    """

    billed_usd: float
    over_usd: float
    short_usd: float
    hours: float
    is_capped: bool
    rungs: dict[int, int]


@dataclass(frozen=True)
class Estimate:
    """What a sweep is expected to cost, judging left aside.

    Attributes:
        usd: The 10th, 50th and 90th percentile of dollars.
        hours: The same of hours.
        rungs: Report index -> trials that come to it, the median.
        assumptions: What all of this rests on, in words.
        num_sweeps: Simulated sweeps that were asked.
    """

    usd: tuple[float, float, float]
    hours: tuple[float, float, float]
    rungs: dict[int, int]
    assumptions: tuple[str, ...]
    num_sweeps: int

    def values(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        named = {name: dict(zip(("p10", "p50", "p90"), getattr(self, name), strict=True)) for name in ("usd", "hours")}
        return {**asdict(self), **named, "rungs": {str(index): count for index, count in self.rungs.items()}}


@dataclass(frozen=True)
class CapCheck:
    """Whether cap and estimate held over many sweeps.

    Attributes:
        sweeps: Simulated sweeps.
        violations: Those that were billed more than the published bound above their training's money.
        max_overshoot_usd: The most that any was billed above it.
        max_ledger_short_usd: The most that any ledger was below the bill.
        num_capped: Sweeps that money or time ended.
        p90_held: Share of the sweeps in the estimated world that cost at most the estimate's 90th percentile.
        estimate: The estimate.
        seconds: Wall-clock of the test.
    """

    sweeps: int
    violations: int
    max_overshoot_usd: float
    max_ledger_short_usd: float
    num_capped: int
    p90_held: float
    estimate: Estimate
    seconds: float

    def values(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "estimate": self.estimate.values()}


def estimate(
    space: SearchSpace, scenario: Scenario, budget: Budget, *, num_sweeps: int = 200, seed: int = 0
) -> Estimate:
    """Return what a sweep is expected to cost.

    Args:
        space: What is searched.
        scenario: Machines, prices and times as they are known.
        budget: What the sweep may spend.
        num_sweeps: Simulated sweeps to ask.
        seed: Of all that happens in them.
    """
    seeds = [derived_seed(seed, "estimate", number) for number in range(num_sweeps)]
    outcomes = [play(space, scenario, budget, seed=one) for one in seeds]
    indices = sorted({index for outcome in outcomes for index in outcome.rungs})
    return Estimate(
        usd=_quantiles([outcome.billed_usd for outcome in outcomes]),
        hours=_quantiles([outcome.hours for outcome in outcomes]),
        rungs={index: round(median(outcome.rungs.get(index, 0) for outcome in outcomes)) for index in indices},
        assumptions=assumptions(space, scenario),
        num_sweeps=num_sweeps,
    )


def assumptions(space: SearchSpace, scenario: Scenario) -> tuple[str, ...]:
    """Return what an estimate rests on, in words."""
    whence = "cost.trial" if space.cost.trial is not None else "assumed; set cost.trial"
    machines = f"{scenario.num_machines} at once at {scenario.usd_per_hour:g} usd an hour each"
    kinds = {
        "own": "own, never taken back",
        "spot": "spot, taken back now and then",
        "auto": "spot, on demand where none is to be had",
        "on-demand": "on demand",
    }
    return (
        f"a whole trial takes {scenario.trial_s / 60:.3g} minutes on one ({whence}), within "
        f"{math.exp(GUESS_SIGMA):.2g} times; one trial differs from another {math.exp(TRIAL_SIGMA):.2g} times",
        f"machines: {machines}, {kinds[scenario.market]}",
        "not included: judging (it has the budget's reserve), a head node, disks, storage, traffic",
    )


def check_cap(
    space: SearchSpace, scenario: Scenario, budget: Budget, *, num_sweeps: int, seed: int, num_processes: int = 2
) -> CapCheck:
    """Play many sweeps and count how often the cap is broken and the estimate holds.

    Every other sweep is in the world of the estimate; in the rest trials take so long that the money runs out.

    Args:
        space: What is searched.
        scenario: Machines, prices and times.
        budget: What each sweep may spend.
        num_sweeps: Sweeps in all.
        seed: Of all that happens.
        num_processes: Processes that play them.
    """
    begun = time.monotonic()
    expected = estimate(space, scenario, budget, num_sweeps=max(20, min(1000, num_sweeps // 4)), seed=seed)
    unlimited_usd = max(1e-6, expected.usd[1])
    jobs = [
        _job(scenario, budget, seed=seed, number=number, unlimited_usd=unlimited_usd) for number in range(num_sweeps)
    ]
    outcomes = list(_played(space, budget, jobs, num_processes=num_processes))
    ordinary = outcomes[::2]
    return CapCheck(
        sweeps=num_sweeps,
        violations=sum(outcome.over_usd > budget.allowed_overshoot_usd for outcome in outcomes),
        max_overshoot_usd=round(max(0.0, *(outcome.over_usd for outcome in outcomes)), 6),
        max_ledger_short_usd=round(max(0.0, *(outcome.short_usd for outcome in outcomes)), 6),
        num_capped=sum(outcome.is_capped for outcome in outcomes),
        p90_held=round(sum(outcome.billed_usd <= expected.usd[2] for outcome in ordinary) / len(ordinary), 4),
        estimate=expected,
        seconds=round(time.monotonic() - begun, 1),
    )


def play(space: SearchSpace, scenario: Scenario, budget: Budget, *, seed: int) -> Outcome:
    """Play one sweep through and keep what counts."""
    swept = Simulator(space, scenario, budget, seed=seed).run()
    return Outcome(
        billed_usd=swept.billed_usd,
        over_usd=swept.billed_usd - budget.training_usd,
        short_usd=swept.billed_usd - swept.ledger_usd,
        hours=swept.seconds / 3600,
        is_capped=any(event["event"] in ("refused", "halted") for event in swept.events),
        rungs=swept.rungs,
    )


Job = tuple[Scenario, int]


def _job(scenario: Scenario, budget: Budget, *, seed: int, number: int, unlimited_usd: float) -> Job:
    """Return the world and the seed of one sweep of a test."""
    own_seed = derived_seed(seed, "test", number)
    if number % 2 == 0 or budget.limit_usd is None:
        return scenario, own_seed
    wanted_usd = budget.limit_usd * random.Random(own_seed).uniform(*STRESS)
    return replace(scenario, trial_s=scenario.trial_s * wanted_usd / unlimited_usd), own_seed


def _played(space: SearchSpace, budget: Budget, jobs: Sequence[Job], *, num_processes: int) -> Iterable[Outcome]:
    """Yield every job's outcome in order, from several processes where there are many."""
    if len(jobs) < MIN_SHARED or num_processes == 1:
        yield from _play_all(space, budget, jobs)
        return
    size = math.ceil(len(jobs) / (8 * num_processes))
    chunks = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    # Processes of their own, not copies of this one: it may have threads.
    with ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for outcomes in pool.map(_play_all, [space] * len(chunks), [budget] * len(chunks), chunks):
            yield from outcomes


def _play_all(space: SearchSpace, budget: Budget, jobs: Sequence[Job]) -> list[Outcome]:
    return [play(space, scenario, budget, seed=seed) for scenario, seed in jobs]


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the three percentiles, each a value that occurred."""
    ordered = sorted(values)
    low, middle, high = (ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)] for q in QUANTILES)
    return low, middle, high
