"""The scenario of a simulated sweep, and the times and scores of its trials."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raysent.cost import CostConfig
from raysent.sweeps import Trial, derived_seed
from raysent.sweeps.space import SearchSpace

MarketChoice = Literal["own", "spot", "on-demand", "auto"]
# Time of a whole trial if the space does not estimate it.
ASSUMED_TRIAL_S = 1800.0
# Error of that estimate, and spread of trial times around their mean (sigmas of the logarithm).
GUESS_SIGMA, TRIAL_SIGMA = 0.35, 0.5


@dataclass(frozen=True)
class SimulatedTrial:
    """How one trial behaves.

    Attributes:
        report_s: Seconds from one report to the next.
        score: Report index -> the metric.
    """

    report_s: float
    score: Callable[[int], float]


@dataclass(frozen=True)
class Scenario:
    """The machines, prices and times of a simulated sweep.

    Attributes:
        usd_per_hour: On-demand price of a machine.
        num_machines: The most machines at once.
        market: `own` machines are always available; `auto` uses spot, and on demand if no spot machine is available.
        num_reports: Reports of a whole trial.
        trial_s: Estimated seconds of a whole trial.
        cost: Defines the times that stopping takes.
        num_zones: Pools of spot machines.
        kill_share: Fraction of sweeps whose driver is killed and resumes.
        save_s: Seconds to save a checkpoint.
        attached_usd_per_hour: Price of the disk and the address of each machine.
        head_usd_per_hour: On-demand price of the head of a cloud's cluster; 0 to simulate none.
        head_share: Fraction of the killed drivers whose head dies too.
        slow_share: Fraction of machines that take long to stop.
        slow_s: The shortest and the longest time that those take, in seconds.
        refused_share: Fraction of the orders to end a machine that the cloud refuses.
        throttled_share: Fraction of the launches for which the cloud has no time.
        quota_share: Fraction of the launches that the account's quota does not allow.
    """

    usd_per_hour: float
    num_machines: int
    market: MarketChoice
    num_reports: int
    trial_s: float
    cost: CostConfig
    num_zones: int = 3
    kill_share: float = 0.3
    save_s: float = 5.0
    attached_usd_per_hour: float = 0.0
    head_usd_per_hour: float = 0.0
    head_share: float = 0.0
    slow_share: float = 0.02
    slow_s: tuple[float, float] = (60.0, 300.0)
    refused_share: float = 0.0
    throttled_share: float = 0.0
    quota_share: float = 0.0


def scenario_for(
    space: SearchSpace, *, usd_per_hour: float, num_machines: int, market: MarketChoice
) -> Scenario:
    """Return the scenario of a sweep of a space."""
    training = space.config(space.first_params()).training
    trial_s = ASSUMED_TRIAL_S if space.cost.trial_s is None else space.cost.trial_s
    return Scenario(usd_per_hour, num_machines, market, training.num_reports, trial_s, space.cost)


def make_workload(scenario: Scenario, *, seed: int, mode: str) -> Callable[[Trial], SimulatedTrial]:
    """Return a function from a trial to its time, quality and noise, deterministic in the seed.

    The error of the estimated time is the same for all trials of a sweep.
    """
    sign = 1.0 if mode == "max" else -1.0
    common = math.exp(random.Random(derived_seed(seed, "speed")).gauss(0, GUESS_SIGMA))
    report_s = common * scenario.trial_s / scenario.num_reports

    def model(trial: Trial) -> SimulatedTrial:
        generator = random.Random(derived_seed(seed, "trial", trial.number))
        seconds = report_s * math.exp(generator.gauss(0, TRIAL_SIGMA))
        quality, noise_seed = generator.gauss(0, 1), generator.getrandbits(62)

        def score(index: int) -> float:
            noise = random.Random(noise_seed + index).gauss(0, 0.1)
            return sign * (quality - 1.5 / math.sqrt(index) + noise)

        return SimulatedTrial(max(1.0, seconds), score)

    return model
