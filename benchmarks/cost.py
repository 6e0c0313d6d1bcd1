"""Dollars to a target score, in simulated sweeps: rungs in dollars, and spot machines.

Each comparison runs two variants on the same seeds, with the real controller, sampler, scheduler, budget and ledger,
until the same budget is spent. The target is the median over seeds of the best score of the baseline (ASHA with rungs
in reports, TPE). A sweep that never reaches the target counts with its whole budget. Ratios are geometric means over
seeds with 95 % bootstrap intervals; above 1, the second variant is cheaper.

With --trials, it simulates one sweep of that many trials on a hundred machines instead, and times it.

    python -m benchmarks.cost [--sweeps 24] [--budget 4] [--json]
    python -m benchmarks.cost --trials 10000 [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.simulation import SimulatedSweep, Simulator
from benchmarks.simulation.workload import Scenario, SimulatedTrial
from raysent.config import parse_yaml
from raysent.cost import Budget, CostConfig
from raysent.sweeps import Trial, derived_seed
from raysent.sweeps.samplers import make_sampler
from raysent.sweeps.space import SearchSpace, parse_space

SPACE = """
base: {{encoder: {{type: gru, hidden_size: 300}}, objective: {{type: context_prediction}}}}
search:
  encoder.hidden_size: {{choice: [150, 300, 600, 1200]}}
  training.batch_size: {{choice: [100, 200, 400]}}
  training.learning_rate: {{loguniform: [1.0e-4, 1.0e-2]}}
limits: {{trials: 400, rung_unit: {unit}}}
cost: {{usd_per_hour: 0.526, budget: {budget}usd}}
"""

# What a doubled width adds to the final score of a trial.
GAINS = (0.02, 0.08)


def workload(seed: int, *, gain: float) -> Callable[[Trial], SimulatedTrial]:
    """Return simulated trials: cost grows with width, a doubled width gains `gain`, the learning rate matters most."""

    def model(trial: Trial) -> SimulatedTrial:
        width, batch = trial.params["encoder.hidden_size"], trial.params["training.batch_size"]
        chance = random.Random(derived_seed(seed, "trial", trial.number))
        seconds = 60 * (width / 300) ** 1.4 * (batch / 200) ** -0.4 * math.exp(chance.gauss(0, 0.1))
        off = math.log10(trial.params["training.learning_rate"]) + 3 - 0.2 * math.log2(batch / 200)
        quality = gain * math.log2(width / 150) - off**2 + chance.gauss(0, 0.03)
        noise = chance.getrandbits(62)

        def score(index: int) -> float:
            return quality - 0.6 / math.sqrt(index) + random.Random(noise + index).gauss(0, 0.02)

        return SimulatedTrial(seconds, score)

    return model


@dataclass(frozen=True)
class Way:
    """A variant of a sweep: a space with its rungs, machines, a budget, and what a doubled width gains."""

    space: SearchSpace
    scenario: Scenario
    budget: Budget
    gain: float

    def play(self, seeds: Iterable[int]) -> list[SimulatedSweep]:
        """Simulate one sweep for each seed."""
        return [self._play(seed) for seed in seeds]

    def _play(self, seed: int) -> SimulatedSweep:
        trials = workload(seed, gain=self.gain)
        sampler = partial(make_sampler, self.space, seed=seed)
        return Simulator(self.space, self.scenario, self.budget, seed=seed, workload=trials, sampler=sampler).run()


def dollars_to(swept: SimulatedSweep, target: float) -> tuple[float, bool]:
    """Return the dollars until a sweep reached a score, or all its dollars if it did not, and whether it did."""
    reached = next((usd for _, usd, best in swept.scores if best >= target), None)
    return (swept.billed_usd, False) if reached is None else (reached, True)


def ratio(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of paired ratios and its 95 % bootstrap interval."""
    logs = np.log(np.array(first) / np.array(second))
    drawn = np.random.default_rng(0).choice(logs, size=(4000, len(logs))).mean(axis=1)
    return tuple(float(np.exp(value)) for value in (logs.mean(), *np.quantile(drawn, (0.025, 0.975))))


def compare(plain: list[SimulatedSweep], other: list[SimulatedSweep]) -> dict[str, Any]:
    """Compare two variants on the same seeds."""
    target = float(np.median([swept.scores[-1][2] for swept in plain]))
    pairs = [(dollars_to(one, target), dollars_to(two, target)) for one, two in zip(plain, other, strict=True)]
    return {
        "target": round(target, 4),
        "usd_to_target_ratio": ratio([one[0] for one, _ in pairs], [two[0] for _, two in pairs]),
        "reached": [sum(one[1] for one, _ in pairs), sum(two[1] for _, two in pairs), len(pairs)],
        "usd_in_all": [round(float(np.mean([swept.billed_usd for swept in way])), 2) for way in (plain, other)],
        "trials": [round(float(np.mean([len(swept.trials) for swept in way])), 1) for way in (plain, other)],
        "best": [round(float(np.mean([swept.scores[-1][2] for swept in way])), 4) for way in (plain, other)],
    }


def play_large(num_trials: int) -> dict[str, float]:
    """Simulate one sweep of many trials and return how long that took."""
    text = SPACE.format(unit="report", budget=1_000_000)
    space = parse_space(parse_yaml(text.replace("trials: 400", f"trials: {num_trials}")), name="large")
    scenario = Scenario(0.526, 100, "spot", num_reports=27, trial_s=1800.0, cost=CostConfig(), kill_share=0.5)
    started = time.process_time()
    swept = Simulator(space, scenario, Budget(limit_usd=1_000_000.0), seed=0).run()
    return {
        "trials": len(swept.trials),
        "interruptions": swept.num_interruptions,
        "events": len(swept.events),
        "seconds": round(time.process_time() - started, 2),
    }


def main() -> None:
    """Run the comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=24)
    parser.add_argument("--budget", type=float, default=4.0)
    parser.add_argument("--trials", type=int, help="time one simulated sweep of this many trials instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.trials:
        large = play_large(options.trials)
        print(json.dumps(large) if options.json else "\n".join(f"{key:14} {value}" for key, value in large.items()))
        return
    spaces = {
        unit: parse_space(parse_yaml(SPACE.format(unit=unit, budget=options.budget)), name=unit)
        for unit in ("report", "usd")
    }
    scenario = Scenario(0.526, 4, "auto", num_reports=27, trial_s=1800.0, cost=CostConfig(), kill_share=0.0)
    budget, seeds = Budget(limit_usd=options.budget), range(options.sweeps)
    found: dict[str, dict[str, Any]] = {}
    if not options.json:
        print("| plain / other | ratio of dollars to the target, 95 % interval | reached | mean best | trials |")
        print("|---|---|---|---|---|")

    def show(name: str, first: list[SimulatedSweep], second: list[SimulatedSweep]) -> None:
        found[name] = compare(first, second)
        if not options.json:
            print_comparison(name, found[name])

    for gain in GAINS:
        ways = {way: Way(space, scenario, budget, gain) for way, space in spaces.items()}
        plain = ways["report"].play(seeds)
        if gain == GAINS[0]:
            on_demand = Way(spaces["report"], replace(scenario, market="on-demand"), budget, gain)
            show("on demand / spot with on-demand fallback", on_demand.play(seeds), plain)
        show(f"rungs in reports / in dollars; a doubled width gains {gain:g}", plain, ways["usd"].play(seeds))
    if options.json:
        print(json.dumps(found))


def print_comparison(name: str, found: Mapping[str, Any]) -> None:
    """Print one comparison as a row of the table."""
    middle, low, high = found["usd_to_target_ratio"]
    first, second, in_all = found["reached"]
    trials, best = (" and ".join(f"{value:g}" for value in found[key]) for key in ("trials", "best"))
    row = (name, f"{middle:.2f} [{low:.2f}, {high:.2f}]", f"{first} and {second} of {in_all}", best, trials)
    print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
