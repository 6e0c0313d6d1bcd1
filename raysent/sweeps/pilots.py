"""Pilots: a few trials of a space, trained for a small part of their steps, before a sweep starts.

In: a checked space and a time. Out: for each pilot its metric at several parts of a whole training, and how long the
whole would take. A pilot is an ordinary run in a folder of its own, whose configuration differs from a trial's in the
number of reports alone: learning rates, batches and steps are those of the first part of a whole trial. It trains in
this process, with the cores that a trial of the sweep has.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from raysent.errors import TrainingError
from raysent.parallel import Progress
from raysent.storage.layout import CHECKPOINT_FOLDER, PILOTS_FOLDER
from raysent.sweeps.machines import layout, this_machine
from raysent.sweeps.random_draws import RandomSampler
from raysent.sweeps.space import Choice, Params, SearchSpace
from raysent.sweeps.space.space import FAMILY
from raysent.sweeps.trial import derived_seed, trial_name
from raysent.training.data import open_training_data
from raysent.training.duration import guess_epoch_s, guess_steps, measure_run_s
from raysent.training.interruptions import Interruptions
from raysent.training.loop import fit
from raysent.training.outcome import Report, load_reports
from raysent.training.run import RunConfig

Curve = tuple[tuple[float, float], ...]
"""A measure at parts of a whole training: (part, value), by rising part; a whole training is part 1."""

# Reports of a pilot, after equal parts of its steps. The second one has half of them: the last octave of its curve.
NUM_REPORTS = 4
HALF_REPORT, HALF_SUFFIX = NUM_REPORTS // 2, "-half"
# A pilot that is slower than was measured ends after this many times its time, once it has two reports; and it has at
# least this part of a trial's steps.
_MOST_TIME, _LEAST_PART = 1.5, 0.01
# How many pilots there are: as many as reach this part of a trial's steps in the time, at least one of each family.
# It is the part that forecasts were checked with on finished sweeps (`benchmarks/forecast.py`).
WANTED_PART = 0.25
_MIN_PILOTS, _MAX_PILOTS = 4, 12
# Draws among which pilots are chosen, for each pilot.
_DRAWS = 20


@dataclass(frozen=True)
class Pilot:
    """What is known of a trial that was trained in part.

    Attributes:
        name: Its name, that of its folder.
        family: The label of what it trains, such as an encoder; see `family_of`.
        metric: The metric that trials are ranked by, at each report.
        trial_s: Seconds that the whole trial would take.
        score: The mean test score over tasks, in percent, at each report at which it was taken.
    """

    name: str
    family: str
    metric: Curve
    trial_s: float
    score: Curve = ()

    def values(self) -> dict[str, Any]:
        """Return values for JSON."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Pilot:
        """Return the pilot that `values` describes."""
        curves = {name: tuple((float(at), float(value)) for at, value in values[name]) for name in ("metric", "score")}
        return cls(**{**values, **curves})


def family_name(space: SearchSpace) -> str | None:
    """Return the searched name whose values are the families of a space; None if it has none.

    It is `evaluation.stratify_by`, else `family`, else the first choice among whole parts of a run, such as encoders.
    """
    if space.evaluation.stratify_by is not None:
        return space.evaluation.stratify_by
    parts = (
        name
        for name, domain in space.domains.items()
        if isinstance(domain, Choice) and any(isinstance(value, Mapping) for value in domain.options.values())
    )
    return FAMILY if FAMILY in space.domains else next(parts, None)


def family_of(space: SearchSpace, params: Params) -> str:
    """Return the family of a trial; empty if its space has none."""
    name = family_name(space)
    return "" if name is None else str(params.get(name, ""))


def draw_pilots(space: SearchSpace, *, seed: int) -> list[Params]:
    """Return the parameters of as many pilots as there may be: random ones, the families in turn.

    Args:
        space: The space.
        seed: Seed of the draws.
    """
    sampler = RandomSampler(space, seed=derived_seed(seed, "pilots"))
    drawn = (sampler.ask(number) for number in range(_DRAWS * _MAX_PILOTS))
    by_family: dict[str, list[Params]] = {}
    for params in (one[0] for one in drawn if one is not None):
        by_family.setdefault(family_of(space, params), []).append(params)
    turns = [params for turn in range(_MAX_PILOTS) for of in by_family.values() for params in of[turn : turn + 1]]
    return turns[:_MAX_PILOTS]


def run_pilots(
    space: SearchSpace, folder: Path, *, seconds: float, seed: int = 0, progress: Progress | None = None
) -> list[Pilot]:
    """Train pilots of a space, one after another, for a time in all.

    Args:
        space: A checked space.
        folder: The run folder; pilots are in ``pilots/`` below it.
        seconds: Time for all pilots on this machine, in seconds.
        seed: Seed of the draws and of training.
        progress: Called with the progress.

    Returns:
        The pilots with at least two reports; a pilot that diverges or fails is left out, as such a trial is no member.

    Raises:
        TrainingError: If none is left.
        RaysentError: If a run cannot be trained on its text.
    """
    end = time.monotonic() + seconds
    drawn = draw_pilots(space, seed=seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(layout(space.limits, this_machine(), num_trials=space.limits.trials).cpus_per_worker)
    speed, found = _Speed(), list[Pilot]()
    try:
        wanted = _num_pilots(space, drawn, seconds=seconds, speed=speed)
        for number, params in enumerate(drawn[:wanted]):
            if progress is not None:
                progress("training pilots", number + 1, wanted)
            config = space.config(params).model_copy(update={"seed": derived_seed(seed, "pilot", number)})
            family = family_of(space, params)
            known = speed.of(config, family)
            left_s = (end - time.monotonic()) / (wanted - number)
            run = _PilotRun(config, folder / PILOTS_FOLDER / trial_name(number), left_s)
            num_steps = guess_steps(config, open_training_data(config).facts())
            pilot = run(family, space.metric, speed=known, num_steps=num_steps)
            found += [] if pilot is None else [pilot]
    finally:
        torch.set_num_threads(threads)
    if not found:
        raise TrainingError(
            f"pilots: at least one must make two reports; each of {wanted} diverged or has too few steps; raise "
            "training.epochs or lower training.learning_rate"
        )
    return found


def _num_pilots(space: SearchSpace, drawn: Sequence[Params], *, seconds: float, speed: _Speed) -> int:
    """Return how many pilots reach the wanted part of their steps in a time."""
    configs = [space.config(params) for params in drawn]
    families = [family_of(space, params) for params in drawn]
    # The speed of the first one is measured, that of the others guessed from it.
    epoch_s, report_s = speed.of(configs[0], families[0])
    guesses = [guess_epoch_s(config, open_training_data(config).facts()) for config in configs]
    trial_s = sum(one.training.epochs * guess for one, guess in zip(configs, guesses, strict=True)) / len(configs)
    pilot_s = WANTED_PART * trial_s * epoch_s / guesses[0] + NUM_REPORTS * report_s
    num_fitting = int(seconds / pilot_s)
    return min(len(drawn), max(num_fitting, _MIN_PILOTS, len(set(families))))


class _Speed:
    """Seconds of a pass over the text and of a validation: measured once for each family, scaled for its others."""

    def __init__(self) -> None:
        self._ratios: dict[str, tuple[float, float]] = {}

    def of(self, config: RunConfig, family: str) -> tuple[float, float]:
        """Return the seconds of one pass and of one validation of a run."""
        training_data = open_training_data(config)
        guess_s = guess_epoch_s(config, training_data.facts())
        if family not in self._ratios:
            epoch_s, report_s = measure_run_s(config, training_data)
            self._ratios[family] = (epoch_s / guess_s, report_s)
        ratio, report_s = self._ratios[family]
        return ratio * guess_s, report_s


@dataclass(frozen=True)
class _PilotRun:
    """One pilot: its run, its folder, and the seconds that it may take."""

    config: RunConfig
    folder: Path
    seconds: float

    def __call__(self, family: str, metric: str, *, speed: tuple[float, float], num_steps: int) -> Pilot | None:
        """Train it, and return what is known of it; None if it diverged or made fewer than two reports.

        Args:
            family: Its family.
            metric: The metric that trials are ranked by.
            speed: Seconds of one pass over the text, and of one validation.
            num_steps: Steps of the whole trial, about.
        """
        epoch_s, report_s = speed
        training = self.config.training
        part = (self.seconds - NUM_REPORTS * report_s) / max(1e-9, training.epochs * epoch_s)
        num_reports = math.ceil(NUM_REPORTS / min(1.0, max(_LEAST_PART, part)))
        # With fewer steps than reports there would be a report at every step.
        num_reports = max(NUM_REPORTS, min(num_reports, num_steps))
        config = self.config.model_copy(
            update={"training": training.model_copy(update={"num_reports": num_reports})},
        )
        interruptions = Interruptions(models="all")
        outcome = fit(config, self.folder, report=self._on_report, interruptions=interruptions)
        reports = load_reports(self.folder)
        if outcome.status == "nan" or len(reports) < 2:
            return None
        last = reports[-1]
        training_s = max(0.0, last.seconds - len(reports) * report_s) * last.num_steps / last.step
        curve = tuple((one.step / one.num_steps, one.metrics[metric]) for one in reports)
        return Pilot(self.folder.name, family, curve, training_s + training.num_reports * report_s)

    def _on_report(self, report: Report) -> bool:
        """Keep the model of half of the steps; return whether the pilot continues."""
        num_reports = len(load_reports(self.folder))
        if num_reports == HALF_REPORT:
            half = self.folder.with_name(self.folder.name + HALF_SUFFIX)
            shutil.copytree(
                self.folder, half, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CHECKPOINT_FOLDER, ".*")
            )
        is_late = report.seconds > _MOST_TIME * self.seconds
        return num_reports < NUM_REPORTS and not (is_late and num_reports >= 2)
