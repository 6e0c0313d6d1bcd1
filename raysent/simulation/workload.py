"""What made-up trials take and score, and the world around a simulated sweep.

How far made-up trials are on the way to their next report, and what an interruption takes from them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raysent.cost import CostConfig
from raysent.simulation.market import Zone
from raysent.sweeps import Trial, derived_seed
from raysent.sweeps.space import SearchSpace

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


class Training:
    """What trials have saved of the way to their next report, and what they do again.

    Attributes:
        lost_s: Training that had to be done again, of all trials.
    """

    def __init__(self, workload: Callable[[Trial], TrialModel], *, save_s: float) -> None:
        """Let no trial have begun.

        Args:
            workload: What trials take and score.
            save_s: What a checkpoint takes.
        """
        self.lost_s = 0.0
        self._workload, self._save_s = workload, save_s
        self._models: dict[str, TrialModel] = {}
        self._saved_s: dict[str, float] = {}
        self._redone_s: dict[str, float] = {}

    def seconds_left(self, trial: Trial) -> float:
        """Return the seconds to a trial's next report, its checkpoint included."""
        if trial.name not in self._models:
            self._models[trial.name] = self._workload(trial)
        left_s = self._models[trial.name].report_s - self._saved_s.get(trial.name, 0.0)
        return max(0.0, left_s) + self._save_s

    def interrupt(self, trial: Trial, *, done_s: float, zone: Zone | None, is_told: bool) -> None:
        """Take a trial's machine: it keeps what was saved last, after a notice almost everything."""
        every_s = math.sqrt(2 * self._save_s * zone.median_life_s) if zone else math.inf
        kept_s = max(0.0, done_s - self._save_s) if is_told else done_s - done_s % every_s
        self._saved_s[trial.name] = self._saved_s.get(trial.name, 0.0) + kept_s
        self._redone_s[trial.name] = self._redone_s.get(trial.name, 0.0) + done_s - kept_s
        self.lost_s += done_s - kept_s

    def finish_share(self, trial: Trial, *, done_s: float) -> tuple[float, float]:
        """Return the seconds that the way to a report took, and those that were done again.

        What was saved on machines that went counts as the trial's time too; what was lost does not.
        """
        return done_s + self._saved_s.pop(trial.name, 0.0), self._redone_s.pop(trial.name, 0.0)

    def score(self, trial: Trial, index: int) -> float:
        """Return what a trial scores at a report."""
        return self._models[trial.name].score(index)

    def forget_saved(self) -> None:
        """Let the ways to the next reports begin anew, as after a driver's death."""
        self._saved_s.clear()
