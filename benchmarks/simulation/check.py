"""Many simulated sweeps under a budget: how often their bills exceed it, and by how much."""

from __future__ import annotations

import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import median_low

from benchmarks.simulation.simulator import Simulator
from benchmarks.simulation.workload import Scenario
from raysent.cost import Budget
from raysent.sweeps import derived_seed
from raysent.sweeps.space import SearchSpace

# A second process is used from this number of sweeps on.
MIN_SHARED = 1000
# In every other sweep of a check, trials take so long that the expected cost is this many times the budget.
STRESS = (0.5, 4.0)

Job = tuple[Scenario, int]


@dataclass(frozen=True)
class SweepCost:
    """What is kept of a simulated sweep.

    Attributes:
        billed_usd: The bill.
        over_usd: The part of the bill above the budget for training; negative below it.
        bound_usd: The most that may be, by the machines that were held.
        short_usd: The bill minus the ledger's spending.
        is_capped: Whether the budget or the deadline ended the sweep.
        faults: Kind of fault -> how often it happened.
    """

    billed_usd: float
    over_usd: float
    bound_usd: float
    short_usd: float
    is_capped: bool
    faults: dict[str, int]


@dataclass(frozen=True)
class CapCheck:
    """Whether the budget held over many simulated sweeps.

    Attributes:
        sweeps: Number of simulated sweeps.
        violations: Sweeps whose bill exceeds the budget for training by more than the bound.
        max_overshoot_usd: The largest excess of a bill over the budget for training.
        max_overshoot_share: The largest excess as a fraction of its sweep's bound.
        max_ledger_short_usd: The largest difference between a bill and its ledger.
        num_capped: Sweeps that the budget or the deadline ended.
        faults: Kind of simulated fault -> how often it happened.
        seconds: Wall-clock time of the check.
    """

    sweeps: int
    violations: int
    max_overshoot_usd: float
    max_overshoot_share: float
    max_ledger_short_usd: float
    num_capped: int
    faults: dict[str, int]
    seconds: float


def check_cap(
    space: SearchSpace,
    scenario: Scenario,
    budget: Budget,
    *,
    num_sweeps: int,
    seed: int,
    num_processes: int = 2,
) -> CapCheck:
    """Simulate many sweeps, and count how often the budget holds.

    Every other sweep has the scenario as it is; in the others trials take so long that the budget is spent.

    Args:
        space: The search space.
        scenario: Machines, prices and times.
        budget: What each sweep may spend.
        num_sweeps: Number of sweeps.
        seed: Seed of the simulations.
        num_processes: Number of processes.
    """
    start = time.monotonic()
    seeds = [
        derived_seed(seed, "estimate", number)
        for number in range(max(20, min(1000, num_sweeps // 4)))
    ]
    ordinary = [simulate(space, scenario, budget, seed=one).billed_usd for one in seeds]
    expected_usd = max(1e-6, median_low(ordinary))
    jobs = [
        _job(scenario, budget, seed=seed, number=number, expected_usd=expected_usd)
        for number in range(num_sweeps)
    ]
    costs = list(_simulated(space, budget, jobs, num_processes=num_processes))
    return CapCheck(
        sweeps=num_sweeps,
        violations=sum(cost.over_usd > cost.bound_usd for cost in costs),
        max_overshoot_usd=round(max(0.0, *(cost.over_usd for cost in costs)), 6),
        max_overshoot_share=round(
            max(0.0, *(cost.over_usd / max(1e-9, cost.bound_usd) for cost in costs)), 4
        ),
        max_ledger_short_usd=round(max(0.0, *(cost.short_usd for cost in costs)), 6),
        num_capped=sum(cost.is_capped for cost in costs),
        faults=dict(sorted(sum((Counter(cost.faults) for cost in costs), Counter[str]()).items())),
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
        is_capped=any(event["event"] in ("refused", "halted") for event in swept.events),
        faults=swept.faults,
    )


def _job(scenario: Scenario, budget: Budget, *, seed: int, number: int, expected_usd: float) -> Job:
    """Return scenario and seed of one sweep of a check."""
    own_seed = derived_seed(seed, "test", number)
    if number % 2 == 0 or budget.limit_usd is None:
        return scenario, own_seed
    wanted_usd = budget.limit_usd * random.Random(own_seed).uniform(*STRESS)
    return replace(scenario, trial_s=scenario.trial_s * wanted_usd / expected_usd), own_seed


def _simulated(
    space: SearchSpace, budget: Budget, jobs: Sequence[Job], *, num_processes: int
) -> Iterable[SweepCost]:
    """Yield the cost of every job in order; several processes simulate if there are many jobs."""
    if len(jobs) < MIN_SHARED or num_processes == 1:
        yield from _simulate_all(space, budget, jobs)
        return
    size = math.ceil(len(jobs) / (8 * num_processes))
    chunks = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    # Not forked: this process may have threads.
    with ProcessPoolExecutor(
        num_processes, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for costs in pool.map(_simulate_all, [space] * len(chunks), [budget] * len(chunks), chunks):
            yield from costs


def _simulate_all(space: SearchSpace, budget: Budget, jobs: Sequence[Job]) -> list[SweepCost]:
    return [simulate(space, scenario, budget, seed=seed) for scenario, seed in jobs]
