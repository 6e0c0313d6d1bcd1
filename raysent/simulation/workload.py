"""The scenario of a simulated sweep, and the times and scores of its trials."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from raysent.cost import CostConfig
from raysent.models.config import towers
from raysent.models.encoders import count_parameters
from raysent.sweeps import Trial, derived_seed
from raysent.sweeps.space import SearchSpace
from raysent.training.plan import count_steps
from raysent.training.run import RunConfig

MarketChoice = Literal["own", "spot", "on-demand", "auto"]
MARKETS: tuple[MarketChoice, ...] = ("auto", "spot", "on-demand", "own")
# Time of a whole trial if the space does not estimate it.
ASSUMED_TRIAL_S = 1800.0
# Error of that estimate, and spread of trial times around their mean (sigmas of the logarithm).
GUESS_SIGMA, TRIAL_SIGMA = 0.35, 0.5
# Words of a sentence if they are not counted; operations of a core in a second; seconds of each step besides.
_WORDS = 12.0
_OPERATIONS_PER_S = 15e9
_STEP_S = 0.01


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


def scenario_for(space: SearchSpace, *, usd_per_hour: float, num_machines: int, market: MarketChoice) -> Scenario:
    """Return the scenario of a sweep of a space."""
    training = space.config(space.first_params()).training
    trial_s = ASSUMED_TRIAL_S if space.cost.trial_s is None else space.cost.trial_s
    return Scenario(usd_per_hour, num_machines, market, training.num_reports, trial_s, space.cost)


def guess_trial_s(config: RunConfig, facts: Mapping[str, Any]) -> float:
    """Return roughly how many seconds one core of a common processor trains a run, within a factor of about two.

    A step has six operations for each parameter of the encoders that is not a word vector and each token read: two
    forward, four backward. Parameters of the objective, validation and the start of processes are not counted. Speed
    is not measured, because a measurement of milliseconds says little on a busy machine.

    Args:
        config: The run.
        facts: Sizes of its text, as `TrainingData.facts` returns them.
    """
    configs = towers(config.encoder, config.second_encoder, config.objective)
    of_few, of_more = (sum(count_parameters(configs, words)) for words in (2, 3))
    num_computed = max(1, of_few - 2 * (of_more - of_few))
    num_train = facts.get("num_train", 0)
    batch_size = config.training.batch_size
    steps = count_steps(config.training, steps_per_epoch=max(1, num_train // batch_size))
    words = facts.get("num_tokens", 0) / max(1, facts.get("num_sentences", 0)) or _WORDS
    tokens = steps * batch_size * config.objective.batches.num_encoded * words
    return _STEP_S * steps + 6.0 * num_computed * tokens / _OPERATIONS_PER_S


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
