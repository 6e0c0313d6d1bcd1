"""Estimates from many simulated sweeps: cost, time, and whether the budget holds.

An estimate is the 10th, 50th and 90th percentile of dollars and of hours. The simulated sweeps differ in everything
that is unknown before the start: how long trials take, which of them are stopped, prices, interruptions, slow
shutdowns, killed drivers.

The 90th percentile of a sample is below that of all sweeps in every second sample. An upper tolerance limit is used
instead: the lowest value of the sample that at least 90 % of all sweeps stay below, with a confidence of 99 %.

Source: Wilks 1941, "Determination of Sample Sizes for Setting Tolerance Limits".
Differs: the binomial distribution is approximated by a normal one.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from raysent.cost import NOT_COUNTED, Budget, verdict
from raysent.errors import ArtifactError
from raysent.simulation.simulator import Simulator
from raysent.simulation.workload import GUESS_SIGMA, TRIAL_SIGMA, Scenario, scenario_for
from raysent.storage import address_of, read_json
from raysent.storage.layout import ESTIMATE_FILE
from raysent.sweeps import derived_seed
from raysent.sweeps.space import SearchSpace

QUANTILES = (0.1, 0.5, 0.9)
# Quantile of the normal distribution for the confidence in the highest of them.
CONFIDENCE_SIGMAS = 2.326
# Simulated sweeps of an estimate.
NUM_SWEEPS = 400
# A second process is used from this number of sweeps on.
MIN_SHARED = 1000
# In every other sweep of a check, trials take so long that the expected cost is this many times the budget.
STRESS = (0.5, 4.0)


@dataclass(frozen=True)
class SweepCost:
    """What is kept of a simulated sweep.

    Attributes:
        billed_usd: The bill.
        over_usd: The part of the bill above the budget for training; negative below it.
        bound_usd: The most that may be, by the machines that were held.
        short_usd: The bill minus the ledger's spending.
        hours: Duration.
        is_capped: Whether the budget or the deadline ended the sweep.
        rungs: Report index -> number of trials that reached it.
        faults: Kind of fault -> how often it happened.
    """

    billed_usd: float
    over_usd: float
    bound_usd: float
    short_usd: float
    hours: float
    is_capped: bool
    rungs: dict[int, int]
    faults: dict[str, int]


@dataclass(frozen=True)
class Estimate:
    """The expected cost and time of a sweep, without evaluation.

    Attributes:
        usd: 10th, 50th and 90th percentile of dollars.
        hours: 10th, 50th and 90th percentile of hours.
        rungs: Report index -> median number of trials that reach it.
        assumptions: What the estimate assumes, in words.
        num_sweeps: Number of simulated sweeps.
    """

    usd: tuple[float, float, float]
    hours: tuple[float, float, float]
    rungs: dict[int, int]
    assumptions: tuple[str, ...]
    num_sweeps: int

    def values(self) -> dict[str, Any]:
        """Return values for JSON."""
        named = {name: dict(zip(("p10", "p50", "p90"), getattr(self, name), strict=True)) for name in ("usd", "hours")}
        return {**asdict(self), **named, "rungs": {str(index): count for index, count in self.rungs.items()}}


def read_estimate(folder: Path) -> Estimate | None:
    """Return the estimate that `estimate.json` holds; None if there is none.

    Raises:
        ArtifactError: If the file is truncated or not an estimate.
    """
    path = folder / ESTIMATE_FILE
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        usd, hours = ((found["p10"], found["p50"], found["p90"]) for found in (values["usd"], values["hours"]))
        rungs = {int(index): count for index, count in values["rungs"].items()}
        return Estimate(usd, hours, rungs, tuple(values["assumptions"]), values["num_sweeps"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{address_of(path)}: not an estimate ({type(error).__name__}: {error}); remove it"
        ) from None


@dataclass(frozen=True)
class CapCheck:
    """Whether the budget and the estimate held over many simulated sweeps.

    Attributes:
        sweeps: Number of simulated sweeps.
        violations: Sweeps whose bill exceeds the budget for training by more than the bound.
        max_overshoot_usd: The largest excess of a bill over the budget for training.
        max_overshoot_share: The largest excess as a fraction of its sweep's bound.
        max_ledger_short_usd: The largest difference between a bill and its ledger.
        num_capped: Sweeps that the budget or the deadline ended.
        p90_held: Fraction of the sweeps without stress that cost at most the estimate's 90th percentile.
        faults: Kind of simulated fault -> how often it happened.
        estimate: The estimate.
        seconds: Wall-clock time of the check.
    """

    sweeps: int
    violations: int
    max_overshoot_usd: float
    max_overshoot_share: float
    max_ledger_short_usd: float
    num_capped: int
    p90_held: float
    faults: dict[str, int]
    estimate: Estimate
    seconds: float

    def values(self) -> dict[str, Any]:
        """Return values for JSON."""
        return {**asdict(self), "estimate": self.estimate.values()}


def estimate(
    space: SearchSpace, scenario: Scenario, budget: Budget, *, num_sweeps: int = NUM_SWEEPS, seed: int = 0
) -> Estimate:
    """Return the expected cost and time of a sweep.

    Args:
        space: The search space.
        scenario: Machines, prices and estimated times.
        budget: What the sweep may spend.
        num_sweeps: Number of sweeps to simulate.
        seed: Seed of the simulations.
    """
    seeds = [derived_seed(seed, "estimate", number) for number in range(num_sweeps)]
    costs = [simulate(space, scenario, budget, seed=one) for one in seeds]
    indices = sorted({index for cost in costs for index in cost.rungs})
    return Estimate(
        usd=_quantiles([cost.billed_usd for cost in costs]),
        hours=_quantiles([cost.hours for cost in costs]),
        rungs={index: round(median(cost.rungs.get(index, 0) for cost in costs)) for index in indices},
        assumptions=assumptions(space, scenario),
        num_sweeps=num_sweeps,
    )


def assumptions(space: SearchSpace, scenario: Scenario) -> tuple[str, ...]:
    """Return what an estimate assumes, in words."""
    source = "cost.trial" if space.cost.trial is not None else "assumed; set cost.trial"
    machines = f"{scenario.num_machines} at once at {scenario.usd_per_hour:g} usd an hour each"
    kinds = {
        "own": "own, never interrupted",
        "spot": "spot, with interruptions",
        "auto": "spot, on demand if none is available",
        "on-demand": "on demand",
    }
    return (
        f"a whole trial takes {scenario.trial_s / 60:.3g} minutes on one machine ({source}), within a factor of "
        f"{math.exp(GUESS_SIGMA):.2g}; trials differ by a factor of {math.exp(TRIAL_SIGMA):.2g}",
        f"machines: {machines}, {kinds[scenario.market]}",
        f"not included: evaluation (it has the reserve), a head node; {NOT_COUNTED}",
    )


def estimate_locally(space: SearchSpace, *, num_concurrent: int) -> Estimate | None:
    """Return the estimate of a sweep on this machine; None if the machine is free.

    Args:
        space: The search space.
        num_concurrent: The number of cores.
    """
    if not space.cost.usd_per_hour:
        return None
    at_once = space.limits.concurrent or max(1, num_concurrent // space.limits.workers_per_trial)
    at_once = max(1, min(at_once, space.limits.trials))
    # Each of the trials that run at the same time costs its share of the machine.
    usd_per_hour = space.cost.usd_per_hour / at_once
    scenario = scenario_for(space, usd_per_hour=usd_per_hour, num_machines=at_once, market="own")
    return estimate(space, scenario, budget_of(space))


def budget_of(space: SearchSpace) -> Budget:
    """Return what a simulated sweep may spend; it has no deadline and no limit on dollars an hour."""
    cost = space.cost
    return Budget(cost.budget_usd, reserve=cost.reserve, window_s=cost.window_s, on_budget=cost.on_budget)


def compare_estimate(folder: Path, *, spent_usd: float) -> dict[str, Any]:
    """Return a sweep's estimate beside its bill; empty if there is no estimate.

    Args:
        folder: The run folder.
        spent_usd: The bill.
    """
    if not (folder / ESTIMATE_FILE).is_file():
        return {}
    usd = read_json(folder / ESTIMATE_FILE)["usd"]
    where = verdict(usd, spent_usd=spent_usd)
    text = f"estimate {usd['p10']:.2f} to {usd['p90']:.2f} usd, median {usd['p50']:.2f}: the bill is {where}"
    return {**usd, "is_inside": where == "inside", "verdict": text}


def check_cap(
    space: SearchSpace, scenario: Scenario, budget: Budget, *, num_sweeps: int, seed: int, num_processes: int = 2
) -> CapCheck:
    """Simulate many sweeps, and count how often the budget and the estimate hold.

    Every other sweep has the scenario of the estimate; in the others trials take so long that the budget is spent.

    Args:
        space: The search space.
        scenario: Machines, prices and times.
        budget: What each sweep may spend.
        num_sweeps: Number of sweeps.
        seed: Seed of the simulations.
        num_processes: Number of processes.
    """
    start = time.monotonic()
    expected = estimate(space, scenario, budget, num_sweeps=max(20, min(1000, num_sweeps // 4)), seed=seed)
    unlimited_usd = max(1e-6, expected.usd[1])
    jobs = [
        _job(scenario, budget, seed=seed, number=number, unlimited_usd=unlimited_usd) for number in range(num_sweeps)
    ]
    costs = list(_simulated(space, budget, jobs, num_processes=num_processes))
    ordinary = costs[::2]
    return CapCheck(
        sweeps=num_sweeps,
        violations=sum(cost.over_usd > cost.bound_usd for cost in costs),
        max_overshoot_usd=round(max(0.0, *(cost.over_usd for cost in costs)), 6),
        max_overshoot_share=round(max(0.0, *(cost.over_usd / max(1e-9, cost.bound_usd) for cost in costs)), 4),
        max_ledger_short_usd=round(max(0.0, *(cost.short_usd for cost in costs)), 6),
        num_capped=sum(cost.is_capped for cost in costs),
        p90_held=round(sum(cost.billed_usd <= expected.usd[2] for cost in ordinary) / len(ordinary), 4),
        faults=dict(sorted(sum((Counter(cost.faults) for cost in costs), Counter[str]()).items())),
        estimate=expected,
        seconds=round(time.monotonic() - start, 1),
    )


def simulate(space: SearchSpace, scenario: Scenario, budget: Budget, *, seed: int) -> SweepCost:
    """Simulate one sweep."""
    swept = Simulator(space, scenario, budget, seed=seed).run()
    return SweepCost(
        billed_usd=swept.billed_usd,
        over_usd=swept.billed_usd - budget.training_usd,
        bound_usd=budget.bound_usd(swept.held_usd_per_hour),
        short_usd=swept.billed_usd - swept.ledger_usd,
        hours=swept.seconds / 3600,
        is_capped=any(event["event"] in ("refused", "halted") for event in swept.events),
        rungs=swept.rungs,
        faults=swept.faults,
    )


Job = tuple[Scenario, int]


def _job(scenario: Scenario, budget: Budget, *, seed: int, number: int, unlimited_usd: float) -> Job:
    """Return scenario and seed of one sweep of a check."""
    own_seed = derived_seed(seed, "test", number)
    if number % 2 == 0 or budget.limit_usd is None:
        return scenario, own_seed
    wanted_usd = budget.limit_usd * random.Random(own_seed).uniform(*STRESS)
    return replace(scenario, trial_s=scenario.trial_s * wanted_usd / unlimited_usd), own_seed


def _simulated(space: SearchSpace, budget: Budget, jobs: Sequence[Job], *, num_processes: int) -> Iterable[SweepCost]:
    """Yield the cost of every job in order; several processes simulate if there are many jobs."""
    if len(jobs) < MIN_SHARED or num_processes == 1:
        yield from _simulate_all(space, budget, jobs)
        return
    size = math.ceil(len(jobs) / (8 * num_processes))
    chunks = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    # Not forked: this process may have threads.
    with ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for costs in pool.map(_simulate_all, [space] * len(chunks), [budget] * len(chunks), chunks):
            yield from costs


def _simulate_all(space: SearchSpace, budget: Budget, jobs: Sequence[Job]) -> list[SweepCost]:
    return [simulate(space, scenario, budget, seed=seed) for scenario, seed in jobs]


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the three percentiles, each one of the values; the highest as a tolerance limit."""
    ordered, num = sorted(values), len(values)
    margins = (0.0, 0.0, CONFIDENCE_SIGMAS * math.sqrt(QUANTILES[-1] * (1 - QUANTILES[-1]) * num))
    low, middle, high = (
        ordered[min(num, math.ceil(q * num + margin)) - 1] for q, margin in zip(QUANTILES, margins, strict=True)
    )
    return low, middle, high
