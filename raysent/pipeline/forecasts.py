"""Forecasts: pilots of a space trained and evaluated, and what sweeps within several limits are expected to score."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from raysent.cost import parse_duration, parse_money
from raysent.ensembles.combine import combine
from raysent.ensembles.result import ENSEMBLE
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.tasks import Task
from raysent.pipeline.results import write_report
from raysent.progress import ProgressLines
from raysent.simulation.forecast import (
    Forecast,
    Limits,
    forecast_cells,
    make_setup,
    planned_limits,
    write_forecast,
)
from raysent.storage import address_of
from raysent.storage.layout import EVALUATION_FOLDER, FORECAST_FILE, PILOTS_FOLDER
from raysent.sweeps.machines import layout, this_machine
from raysent.sweeps.pilots import HALF_REPORT, HALF_SUFFIX, WANTED_PART, Pilot, run_pilots
from raysent.sweeps.space import SearchSpace

# The part of the time of pilots that their evaluation on tasks may take.
_EVALUATION_PART = 0.5
# As many pilots are evaluated whatever time it takes.
_MIN_SCORED = 2
# Below this multiple of chance the curves of pilots have not begun to rise.
_FAR_FROM_CHANCE = 4.0
# Of a single given limit, also these multiples are forecast.
_MULTIPLES = (0.5, 2.0)


def parse_pilot_time(text: str) -> float:
    """Return the seconds of `--pilot-time`.

    Raises:
        ConfigError: If it is not a duration above 0.
    """
    seconds = _parsed("--pilot-time", text, parse_duration)
    if seconds <= 0:
        raise ConfigError(f"--pilot-time {text}: must be above 0; 'raysent sweep --dry-run' plans without pilots")
    return seconds


def check_unforecast(folder: Path) -> None:
    """Refuse a run folder that has a forecast.

    Raises:
        ArtifactError: If it has one.
    """
    if (folder / FORECAST_FILE).exists() or (folder / PILOTS_FOLDER).exists():
        raise ArtifactError(f"{address_of(folder)}: holds a forecast already; name another --run or remove it")


def limits_grid(
    space: SearchSpace, *, budgets: Sequence[str] = (), deadlines: Sequence[str] = (), machines: Sequence[int] = ()
) -> list[Limits]:
    """Return the limits to forecast: first those of the space, then all combinations of those that are listed.

    Args:
        space: A checked space.
        budgets: Amounts; if none is listed, half of the space's budget and twice as much.
        deadlines: Durations; if none is listed, half of the space's time and twice as much.
        machines: Numbers of machines; 1 by default.

    Raises:
        ConfigError: If an amount or a duration is wrong, or a budget is given for machines without a price.
    """
    own = planned_limits(space)
    if (budgets or own.budget_usd is not None) and not space.cost.is_priced:
        raise ConfigError(
            "--budget: must be used with machines that have a price; given none; --set cost.usd_per_hour=0.5 sets one"
        )
    usd = [_parsed("--budget", text, parse_money) for text in budgets] or _multiples(own.budget_usd)
    seconds = [_parsed("--deadline", text, parse_duration) for text in deadlines] or _multiples(own.deadline_s)
    if any(number < 1 for number in machines):
        raise ConfigError(f"--machines {min(machines)}: must be at least 1")
    usd_given = sorted({*usd, own.budget_usd}, key=_order)
    seconds_given = sorted({*seconds, own.deadline_s}, key=_order)
    combined = itertools.product(usd_given, seconds_given, machines or [1])
    return list(dict.fromkeys([own, *(Limits(*one) for one in combined)]))


def _parsed(option: str, text: str, parse: Callable[[str], float]) -> float:
    """Return an option's value; an error names the option.

    Raises:
        ConfigError: If the text is wrong.
    """
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def _multiples(value: float | None) -> list[float]:
    return [] if value is None else [times * value for times in _MULTIPLES]


def _order(value: float | None) -> float:
    return float("inf") if value is None else value


def forecast_space(  # noqa: PLR0913 - what it needs of `plan`
    space: SearchSpace,
    folder: Path,
    *,
    tasks: Sequence[Task],
    data: Path | None,
    pilot_s: float,
    limits: Sequence[Limits],
    chance: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Forecast:
    """Train and evaluate pilots, forecast a sweep's score, and write forecast and report into the run folder.

    Args:
        space: A checked space whose `fit` names have values.
        folder: The run folder.
        tasks: Tasks that the sweep is evaluated on.
        data: Folder of task files.
        pilot_s: Seconds for pilots and their evaluation.
        limits: What to forecast; the first are those of the sweep.
        chance: The metric if all candidates are equally likely; None if unknown.
        seed: Seed of pilots and simulations.
        progress: Whether to show progress.

    Raises:
        RaysentError: If no pilot reports twice, or a run cannot be trained on its text.
    """
    started = time.monotonic()
    end = started + pilot_s
    training_s = pilot_s * (1 - _EVALUATION_PART) if tasks else pilot_s
    with ProgressLines(is_quiet=not progress) as bar:
        pilots = run_pilots(space, folder, seconds=training_s, seed=seed, progress=bar)
    gain = None
    if tasks:
        with ProgressLines(prefix="evaluating pilots ", is_quiet=not progress) as bar:
            evaluation = _PilotEvaluation(folder / PILOTS_FOLDER, tasks, data, progress=bar)
            pilots, gain = evaluation.run(pilots, end=end)
    trial_s = fmean(pilot.trial_s for pilot in pilots)
    at_once = layout(space.limits, this_machine(), num_trials=space.limits.trials).concurrent
    setups = [make_setup(space, one, trial_s=trial_s, at_once=at_once) for one in limits]
    cells = forecast_cells(space, pilots, setups, ensemble_gain=gain, seed=seed)
    is_at_chance = chance is not None and max(pilot.metric[-1][1] for pilot in pilots) < _FAR_FROM_CHANCE * chance
    if is_at_chance:
        cells = tuple(replace(cell, best=None) for cell in cells)
    made = Forecast(
        metric=space.metric,
        mode=space.mode,
        tasks=tuple(task.name for task in tasks),
        cells=cells,
        pilots=tuple(pilots),
        pilot_s=round(time.monotonic() - started, 1),
        ensemble_gain=gain,
        assumptions=_assumptions(pilots, trial_s=trial_s, at_once=at_once, is_at_chance=is_at_chance),
    )
    write_forecast(folder, made)
    write_report(folder)
    return made


def _assumptions(pilots: Sequence[Pilot], *, trial_s: float, at_once: int, is_at_chance: bool) -> tuple[str, ...]:
    """Return what a forecast assumes, in words."""
    parts = [pilot.metric[-1][0] for pilot in pilots]
    short = (
        f"forecasts were checked with pilots of {100 * WANTED_PART:g} % of a trial's steps; these are shorter and tend "
        "to promise too little: give more --pilot-time",
    )
    at_chance = (
        "no pilot is far above chance, so their metric cannot be forecast, and scores on tasks may come out higher: "
        "give more --pilot-time",
    )
    return (
        *(at_chance if is_at_chance else ()),
        *(short if fmean(parts) < WANTED_PART / 2 else ()),
        f"{len(pilots)} pilots, trained for {100 * min(parts):.2g} to {100 * max(parts):.2g} % of a trial's steps; a "
        f"whole trial takes {trial_s / 60:.3g} minutes, {at_once} at once on a machine",
        "settings stay as they were fitted for the space's own limits; proposals are random, a sampler may do better",
        "the curves' exponents are those of other sweeps; time to start Ray and to evaluate is not counted",
    )


class _PilotEvaluation:
    """Evaluates pilots on tasks within a time, each at its end and at half of its steps, as a curve needs both."""

    def __init__(self, folder: Path, tasks: Sequence[Task], data: Path | None, *, progress: ProgressLines) -> None:
        self._folder, self._tasks, self._data, self._progress = folder, tasks, data, progress
        self._evaluator = Evaluator(folder / EVALUATION_FOLDER, data, progress=progress, divides=True)

    def run(self, pilots: Sequence[Pilot], *, end: float) -> tuple[list[Pilot], float | None]:
        """Return the pilots with their scores, and the gain of an ensemble of them over the best one, in points.

        Args:
            pilots: The pilots.
            end: When no other evaluation starts, by the monotonic clock.
        """
        ends, halves = dict[str, float](), dict[str, float]()
        for pilot in pilots:
            if len(ends) >= _MIN_SCORED and time.monotonic() >= end:
                break
            ends[pilot.name] = self._score(pilot.name)
            # A slow pilot may have ended at the report of its half.
            if len(pilot.metric) > HALF_REPORT and (self._folder / (pilot.name + HALF_SUFFIX)).is_dir():
                halves[pilot.name] = self._score(pilot.name + HALF_SUFFIX)
        return [self._scored(pilot, ends, halves) for pilot in pilots], self._gain(list(ends))

    def _score(self, name: str) -> float:
        """Return the mean test score of a model over the tasks."""
        (records,) = self._evaluator.records(expand([self._folder / name]), self._tasks).values()
        return fmean(record.score.test for record in records)

    def _scored(self, pilot: Pilot, ends: Mapping[str, float], halves: Mapping[str, float]) -> Pilot:
        points = [(pilot.metric[HALF_REPORT - 1][0], halves[pilot.name])] if pilot.name in halves else []
        points += [(pilot.metric[-1][0], ends[pilot.name])] if pilot.name in ends else []
        return replace(pilot, score=tuple(points))

    def _gain(self, names: Sequence[str]) -> float | None:
        if len(names) < 2:
            return None
        result = combine(
            [self._folder / name for name in names],
            output=self._folder,
            tasks=self._tasks,
            data_dir=self._data,
            progress=self._progress,
        )
        scores = result.mean.scores
        return scores[ENSEMBLE].test - max(scores[name].test for name in result.members)
