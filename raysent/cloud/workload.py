"""What made-up trials take and score, and the world around a simulated sweep."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raysent.cost import CostConfig
from raysent.search_space import SearchSpace
from raysent.sweep import Trial, derived_seed

MarketChoice = Literal["own", "spot", "on-demand", "auto"]
# What a whole trial is taken to need where nobody says.
ASSUMED_TRIAL_S = 1800.0
# How far a guess of a trial's time, and one trial from another, may be off (of the logarithm).
GUESS_SIGMA, TRIAL_SIGMA = 0.35, 0.5


@dataclass(frozen=True)
class TrialModel:
    """How one trial behaves.

    Attributes:
        report_s: Seconds from one report to the next.
        score: Report index -> the metric.
    """

    report_s: float
    score: Callable[[int], float]


@dataclass(frozen=True)
class World:
    """What a simulated sweep meets.

    Attributes:
        usd_per_hour: Of a machine, on demand.
        num_machines: At most so many at once.
        market: `own` machines are always there; `auto` takes spot, and on demand where no spot machine is to be had.
        num_reports: Of a whole trial.
        trial_s: Seconds of a whole trial, as far as anybody knows before.
        cost: Sets the times of stopping.
        num_zones: Pools of spot machines.
        kill_share: Share of sweeps whose driver is killed and taken up again.
        save_s: Seconds of saving a checkpoint.
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


def make_workload(world: World, *, seed: int, mode: str) -> Callable[[Trial], TrialModel]:
    """Return what a trial's behaviour is drawn from: how long, how good, how noisy, the same for the same seed.

    All trials of a sweep share how far the guess of their time was off.
    """
    sign = 1.0 if mode == "max" else -1.0
    common = math.exp(random.Random(derived_seed(seed, "speed")).gauss(0, GUESS_SIGMA))
    report_s = common * world.trial_s / world.num_reports

    def model(trial: Trial) -> TrialModel:
        chance = random.Random(derived_seed(seed, "trial", trial.number))
        seconds = report_s * math.exp(chance.gauss(0, TRIAL_SIGMA))
        quality, noise_seed = chance.gauss(0, 1), chance.getrandbits(62)

        def score(index: int) -> float:
            noise = random.Random(noise_seed + index).gauss(0, 0.1)
            return sign * (quality - 1.5 / math.sqrt(index) + noise)

        return TrialModel(max(1.0, seconds), score)

    return model


def world_of(space: SearchSpace, *, usd_per_hour: float, num_machines: int, market: MarketChoice) -> World:
    """Return the world that a sweep of a space would meet."""
    training = space.config(space.first_params()).training
    trial_s = ASSUMED_TRIAL_S if space.cost.trial_s is None else space.cost.trial_s
    return World(usd_per_hour, num_machines, market, training.num_reports, trial_s, space.cost)
