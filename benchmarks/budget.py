"""Whether the budget holds in simulated sweeps: violations of the bound, the largest overshoot, every fault counted.

    python -m benchmarks.budget [--sweeps 500] [--seed 0] [--processes 1] [--json]

Each scenario simulates whole sweeps with the real controller, planner of launches, scheduler, budget and ledger, on
machines that are refused (for lack of machines, of time, and of quota), fail in their set-up, never join and are
interrupted, with the times of the shipped `cluster.yaml` and of `raysent.cost.budget`. Drivers are killed in most
sweeps, half of them with their head. Almost a third of the machines take two to ten minutes to stop, and the cloud
refuses one in five orders to end a machine. In half of the sweeps trials take so long that the budget ends them. The
bound is the larger of 2 % of the budget and ten minutes of the machines that are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from benchmarks.common import parsed, show
from benchmarks.simulation import check_cap
from benchmarks.simulation.workload import MarketChoice, scenario_for
from raysent.config import parse_yaml
from raysent.cost import Budget, price_list
from raysent.sweeps.space import parse_space

SPACE = """
base: {encoder: {type: gru, hidden_size: 64}, objective: {type: context_prediction}}
search: {training.learning_rate: {loguniform: [1e-4, 1e-2]}}
limits: {trials: 24}
cost: {usd_per_hour: 0.526, trial: 30m}
"""
# The head and the disks of the shipped cluster.yaml.
HEAD, REGION, DISK_GIB = "m5.xlarge", "us-east-1", 150
# Killed drivers, heads that die with them, machines that take this long to stop, refused orders to end one, and
# launches that are throttled or beyond the quota.
FAULTS: dict[str, Any] = {
    "kill_share": 0.7,
    "head_share": 0.5,
    "slow_share": 0.3,
    "slow_s": (120.0, 600.0),
    "refused_share": 0.2,
    "throttled_share": 0.15,
    "quota_share": 0.03,
}
# Name -> market, dollars an hour of a machine, machines at the same time, budget in dollars.
SCENARIOS: dict[str, tuple[MarketChoice, float, int, float]] = {
    "8 small machines, both markets": ("auto", 0.526, 8, 4.0),
    "8 small spot machines": ("spot", 0.526, 8, 4.0),
    "8 small on-demand machines": ("on-demand", 0.526, 8, 4.0),
    "8 machines of 32.77 usd an hour": ("auto", 32.77, 8, 200.0),
}


def measure(
    num_sweeps: int, *, seed: int, num_processes: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Check the budget in every scenario, and yield each with its result; the sweeps are divided equally among them.

    Each result has the bound as it is printed before a sweep with that many machines; a sweep that holds fewer is held
    to less.
    """
    space = parse_space(parse_yaml(SPACE), name="budget")
    for name, (market, usd_per_hour, num_machines, limit_usd) in SCENARIOS.items():
        scenario = replace(
            scenario_for(
                space, usd_per_hour=usd_per_hour, num_machines=num_machines, market=market
            ),
            head_usd_per_hour=price_list().on_demand(HEAD, REGION).usd_per_hour,
            attached_usd_per_hour=price_list().attached_usd(REGION, disk_gib=DISK_GIB),
            **FAULTS,
        )
        budget = Budget(limit_usd=limit_usd)
        each = max(2, num_sweeps // len(SCENARIOS))
        held = num_machines * usd_per_hour + scenario.head_usd_per_hour
        bound = budget.bound_sentence(held + (num_machines + 1) * scenario.attached_usd_per_hour)
        check = check_cap(
            space, scenario, budget, num_sweeps=each, seed=seed, num_processes=num_processes
        )
        yield name, {"bound": bound, **asdict(check)}


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, sweeps=500, seed=0, processes=1)
    show(dict(measure(options.sweeps, seed=options.seed, num_processes=options.processes)), options)


if __name__ == "__main__":
    main()
