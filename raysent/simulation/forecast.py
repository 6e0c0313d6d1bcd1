"""What score a sweep is expected to reach within budgets and deadlines, from pilots and many simulated sweeps.

In: pilots (`raysent.sweeps.pilots`), a space, and budgets, deadlines and numbers of machines. Out: for each combination
the mean and the 10th and 90th percentile of the best trial's metric and, where tasks are evaluated, of the ensemble's
mean test score over tasks, with trials, hours and dollars.

Which trials a budget buys, which of them are stopped early, which is best and which are members is decided as in a
sweep: by the controller, the scheduler, the budget and the ranking, in `Simulator`. The trials' curves come from
`curves.py`. The ensemble scores as much above its best member as an ensemble of the pilots does above theirs.

Differs: Proposals are random; what a sampler learns during a sweep is not counted.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from raysent.cost import Budget
from raysent.errors import ArtifactError
from raysent.progress import format_duration
from raysent.simulation.curves import PRIORS, CurveModel, DrawnCurve, Priors
from raysent.simulation.estimate import budget_of
from raysent.simulation.simulator import SimulatedSweep, Simulator
from raysent.simulation.workload import MarketChoice, Scenario, SimulatedTrial, scenario_for
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import FORECAST_FILE
from raysent.sweeps import Trial, derived_seed
from raysent.sweeps.pilots import Pilot, family_of
from raysent.sweeps.ranking import best_trial, select_members
from raysent.sweeps.space import SearchSpace

NUM_SWEEPS = 100
# Error of the measured time of a trial, the same for all trials of a sweep, and spread around it (of the logarithm).
_SPEED_SIGMA, _TRIAL_SIGMA = 0.2, 0.1
# Deadlines that differ by this fraction count as the same: one that is a time of day comes nearer.
_SAME = 0.05


class Band(NamedTuple):
    """A forecast: the 10th percentile, the mean and the 90th percentile."""

    p10: float
    expected: float
    p90: float


@dataclass(frozen=True)
class ForecastCell:
    """What is expected of a sweep with one budget, deadline and number of machines.

    Attributes:
        budget_usd: The budget; None for none.
        deadline_s: Seconds to the deadline, or the limit on time; None for none.
        machines: Machines.
        trials: Median number of trials that report.
        hours: Mean duration.
        usd: Mean bill.
        best: Metric of the best trial; None if fewer than half of the sweeps have one, or the pilots are at chance.
        ensemble: Mean test score of the ensemble over tasks, in percent; None without tasks.
    """

    budget_usd: float | None
    deadline_s: float | None
    machines: int
    trials: int
    hours: float
    usd: float
    best: Band | None
    ensemble: Band | None = None

    @property
    def score(self) -> Band | None:
        """The ensemble's score, else the best trial's metric."""
        return self.ensemble or self.best


@dataclass(frozen=True)
class Forecast:
    """What a sweep is expected to score.

    Attributes:
        metric: The metric that trials are ranked by.
        mode: Whether a greater (`max`) or a smaller (`min`) value of it is better.
        tasks: The tasks whose mean test score the ensemble is forecast for; empty if none is evaluated.
        cells: One for each budget, deadline and number of machines; the first is the sweep as it is planned.
        pilots: What it was made from.
        pilot_s: Seconds that the pilots took, with their evaluation.
        ensemble_gain: Points that an ensemble of the pilots has over their best; None if it was not measured.
        assumptions: What it assumes, in words.
        num_sweeps: Number of simulated sweeps of each cell.
    """

    metric: str
    mode: str
    tasks: tuple[str, ...]
    cells: tuple[ForecastCell, ...]
    pilots: tuple[Pilot, ...]
    pilot_s: float
    ensemble_gain: float | None = None
    assumptions: tuple[str, ...] = ()
    num_sweeps: int = NUM_SWEEPS

    def values(self) -> dict[str, Any]:
        """Return values for JSON."""
        return {**asdict(self), "cells": [_cell_values(cell) for cell in self.cells], "sentence": self.sentence}

    @property
    def trial_s(self) -> float:
        """Mean seconds of a whole trial, as the pilots show."""
        return fmean(pilot.trial_s for pilot in self.pilots)

    @property
    def what(self) -> str:
        """What is forecast, in words."""
        if any(cell.ensemble is not None for cell in self.cells):
            return f"mean test score of the ensemble on {', '.join(self.tasks)}, in percent"
        return f"{self.metric} of the best trial"

    @property
    def sentence(self) -> str:
        """The planned sweep's forecast in plain words."""
        own = self.cells[0]
        if own.score is None and own.trials:
            return "The score cannot be forecast: the pilots' curves have not begun to rise."
        if own.score is None:
            return "No trial is expected to report in this time: raise the budget or the deadline."
        low, expected, high = (show(value) for value in own.score)
        text = f"Expected {self.what}: {expected}; 8 of 10 such sweeps should end between {low} and {high}."
        others = [cell for cell in self.cells[1:] if cell.score is not None]
        better = max if self.mode == "max" or own.ensemble is not None else min
        if not others:
            return text
        best = better(others, key=lambda cell: cell.score.expected if cell.score else math.nan)
        assert best.score is not None
        return f"{text} The best in the table is {show(best.score.expected)}, with {limits_text(best)}."


def show(value: float) -> str:
    """Return a score as text: points with two decimals, small values with three digits."""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"


def limits_text(cell: ForecastCell) -> str:
    """Return budget, deadline and machines of a cell in words."""
    parts = [] if cell.budget_usd is None else [f"{cell.budget_usd:g} usd"]
    parts += [] if cell.deadline_s is None else [format_duration(cell.deadline_s)]
    parts += [f"{cell.machines} machine" + ("s" if cell.machines > 1 else "")]
    return ", ".join(parts)


def _cell_values(cell: ForecastCell) -> dict[str, Any]:
    bands = {
        name: None if band is None else band._asdict()
        for name, band in (("best", cell.best), ("ensemble", cell.ensemble))
    }
    return {**asdict(cell), **bands}


# -- making it --------------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """What a sweep may use.

    Attributes:
        budget_usd: Dollars; None for no limit.
        deadline_s: Seconds until all training has stopped; None for no limit.
        machines: Machines like the one at hand.
    """

    budget_usd: float | None
    deadline_s: float | None
    machines: int = 1


@dataclass(frozen=True)
class Setup:
    """Limits, and the machines, prices and times that a sweep has within them."""

    limits: Limits
    scenario: Scenario
    budget: Budget


def planned_limits(space: SearchSpace) -> Limits:
    """Return the limits of a space itself; its deadline is the earlier one of `cost.deadline` and `limits.time`."""
    deadlines = [space.cost.for_sweep(datetime.datetime.now(datetime.UTC)).deadline_s, space.limits.time_s]
    return Limits(space.cost.budget_usd, min((one for one in deadlines if one is not None), default=None))


def make_setup(space: SearchSpace, limits: Limits, *, trial_s: float, at_once: int) -> Setup:
    """Return what a sweep has within limits.

    Args:
        space: The search space; gives prices and the market.
        limits: Other limits than its own.
        trial_s: Mean seconds of a whole trial.
        at_once: Trials that one machine trains at the same time.
    """
    cost = space.cost
    price = cost.usd_per_hour or min(cost.machines.values(), default=0.0)
    slots = max(1, min(limits.machines * at_once, space.limits.trials))
    # Each of the trials that run at the same time costs its share of the machines, of which all are paid.
    usd_per_hour = price * limits.machines / slots
    market: MarketChoice = cost.market if cost.machines else "own"
    scenario = scenario_for(space, usd_per_hour=usd_per_hour, num_machines=slots, market=market)
    budget = replace(budget_of(space), limit_usd=limits.budget_usd, max_hourly_usd=cost.max_hourly_usd)
    if limits.deadline_s is not None:
        # A limit on time alone is no deadline: training stops at it, not the time of stopping machines before it.
        is_deadline = cost.deadline is not None
        budget = replace(budget, deadline_s=limits.deadline_s + (0.0 if is_deadline else budget.window_s))
    return Setup(limits, replace(scenario, trial_s=trial_s), budget)


def forecast_cells(
    space: SearchSpace,
    pilots: Sequence[Pilot],
    setups: Sequence[Setup],
    *,
    ensemble_gain: float | None = None,
    num_sweeps: int | None = None,
    seed: int = 0,
) -> tuple[ForecastCell, ...]:
    """Return what is expected of a sweep in each setup.

    Args:
        space: The search space.
        pilots: Its pilots.
        setups: Machines, times and budgets.
        ensemble_gain: Points that an ensemble of the pilots has over their best member; None if unknown.
        num_sweeps: Number of sweeps to simulate for each, `NUM_SWEEPS` by default; all setups have the same curves.
        seed: Seed of the simulations.
    """
    model = TrialModel(pilots, mode=space.mode, ensemble_gain=ensemble_gain)
    seeds = [derived_seed(seed, "forecast", number) for number in range(num_sweeps or NUM_SWEEPS)]
    return tuple(_cell(setup, [_simulated(space, setup, model, one) for one in seeds]) for setup in setups)


class _Outcome(NamedTuple):
    best: float | None
    ensemble: float | None
    num_trials: int
    swept: SimulatedSweep


def _simulated(space: SearchSpace, setup: Setup, model: TrialModel, seed: int) -> _Outcome:
    """Simulate one sweep, and rank and combine its trials as a sweep does."""
    drawn = model.sweep(seed)
    num_reports = setup.scenario.num_reports

    def workload(trial: Trial) -> SimulatedTrial:
        return drawn.trial(trial.name, family_of(space, trial.params), num_reports=num_reports)

    swept = Simulator(space, setup.scenario, setup.budget, seed=seed, workload=workload).run()
    best = best_trial(space, swept.trials)
    value = None if best is None else best.metrics.get(space.metric)
    members = [(one.name, one.index / num_reports) for one in select_members(space, swept.trials)]
    num_trials = sum(trial.index > 0 for trial in swept.trials)
    return _Outcome(value, drawn.ensemble(members), num_trials, swept)


def _cell(setup: Setup, outcomes: Sequence[_Outcome]) -> ForecastCell:
    return ForecastCell(
        **setup.limits._asdict(),
        trials=round(median(one.num_trials for one in outcomes)),
        hours=fmean(one.swept.seconds for one in outcomes) / 3600,
        usd=fmean(one.swept.billed_usd for one in outcomes),
        best=band_of(one.best for one in outcomes),
        ensemble=band_of(one.ensemble for one in outcomes),
    )


def band_of(values: Iterable[float | None]) -> Band | None:
    """Return the band of simulated scores; None if fewer than half are known."""
    given = list(values)
    known = [value for value in given if value is not None and math.isfinite(value)]
    if not known or 2 * len(known) < len(given):
        return None
    low, high = np.quantile(known, (0.1, 0.9))
    return Band(float(low), fmean(known), float(high))


class TrialModel:
    """The trials of a space: curves of metric and score, and times, fitted to pilots."""

    def __init__(
        self, pilots: Sequence[Pilot], *, mode: str, ensemble_gain: float | None = None, priors: Priors = PRIORS
    ) -> None:
        """Fit the model.

        Args:
            pilots: The pilots, at least one.
            mode: Whether a greater (`max`) or a smaller (`min`) value of the metric is better.
            ensemble_gain: As for `forecast_cells`.
            priors: What finished sweeps say.
        """
        self.priors = priors
        self.pilots = list(pilots)
        families = [pilot.family for pilot in pilots]
        self.of_family = {
            family: [place for place, one in enumerate(families) if one == family] for family in dict.fromkeys(families)
        }
        self.metric = CurveModel([pilot.metric for pilot in pilots], families, priors.metric)
        self.scored = [place for place, pilot in enumerate(pilots) if pilot.score]
        self.score = (
            CurveModel([pilots[one].score for one in self.scored], [families[one] for one in self.scored], priors.score)
            if self.scored
            else None
        )
        self.sign = 1.0 if mode == "max" else -1.0
        weight = priors.gain_weight
        self.gain = priors.gain if ensemble_gain is None else (weight * priors.gain + ensemble_gain) / (weight + 1)

    def sweep(self, seed: int) -> DrawnSweep:
        """Return a source of the trials of one simulated sweep."""
        return DrawnSweep(self, np.random.default_rng(seed))


class DrawnSweep:
    """The trials of one simulated sweep, which share what is uncertain of all of them."""

    def __init__(self, model: TrialModel, generator: np.random.Generator) -> None:
        self._model, self._random = model, generator
        self._weights = generator.exponential(size=len(model.pilots))  # a Bayesian bootstrap, up to their sum
        self._metric = model.metric.sweep(generator)
        self._score = None if model.score is None else model.score.sweep(generator)
        self._speed = math.exp(generator.normal(0, _SPEED_SIGMA))
        self._gain = generator.normal(model.gain, model.priors.gain_sigma)
        self._scores: dict[str, DrawnCurve] = {}

    def trial(self, name: str, family: str, *, num_reports: int) -> SimulatedTrial:
        """Draw a trial of a family."""
        metric, trial_s = self.curve(name, family)
        return SimulatedTrial(max(1e-3, trial_s / num_reports), lambda index: metric(index / num_reports))

    def curve(self, name: str, family: str) -> tuple[DrawnCurve, float]:
        """Return the metric's curve of a new trial, and its seconds; its score is kept by its name."""
        model, known = self._model, self._model.of_family.get(family)
        pilot = self._choose(known or range(len(model.pilots)))
        noises = self._random.normal(size=2)
        metric = self._metric(pilot, is_other_family=known is None, noise=noises[0])
        if self._score is not None:
            alike = [one for one in model.scored if one == pilot] or [
                one for one in model.scored if one in (known or ())
            ]
            of = model.scored.index(self._choose(alike or model.scored))
            rho = model.sign * model.priors.noise_correlation
            noise = rho * noises[0] + math.sqrt(1 - rho * rho) * noises[1]
            self._scores[name] = self._score(of, is_other_family=not alike, noise=noise)
        seconds = model.pilots[pilot].trial_s * self._speed * math.exp(self._random.normal(0, _TRIAL_SIGMA))
        return metric, seconds

    def _choose(self, places: Sequence[int]) -> int:
        ends = np.cumsum(self._weights[list(places)])
        return int(places[min(len(places) - 1, int(np.searchsorted(ends, self._random.random() * ends[-1])))])

    def ensemble(self, members: Sequence[tuple[str, float]]) -> float | None:
        """Return the score of an ensemble; None if scores are unknown or there is no member.

        Args:
            members: The members' names, and the part of the training that each has done.
        """
        if self._score is None or not members:
            return None
        best = max(self._scores[name](part) for name, part in members)
        return best + (self._gain if len(members) > 1 else 0.0)


# -- in a folder, and beside what came --------------------------------------------------------------------------------


def write_forecast(folder: Path, forecast: Forecast) -> None:
    """Write `forecast.json` into a run folder."""
    write_json(folder / FORECAST_FILE, forecast.values())


def read_forecast(folder: Path) -> Forecast | None:
    """Return the forecast that `forecast.json` holds; None if there is none.

    Raises:
        ArtifactError: If the file is truncated or not a forecast.
    """
    path = folder / FORECAST_FILE
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        given = {key: value for key, value in values.items() if key != "sentence"}
        given["cells"] = tuple(_cell_from(cell) for cell in values["cells"])
        given["pilots"] = tuple(Pilot.from_values(pilot) for pilot in values["pilots"])
        return Forecast(**{**given, "tasks": tuple(values["tasks"]), "assumptions": tuple(values["assumptions"])})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{address_of(path)}: not a forecast ({type(error).__name__}: {error}); remove it"
        ) from None


def _cell_from(values: Mapping[str, Any]) -> ForecastCell:
    bands = {name: None if values[name] is None else Band(**values[name]) for name in ("best", "ensemble")}
    return ForecastCell(**{**values, **bands})


@dataclass(frozen=True)
class ScoredBand:
    """A forecast beside what came.

    Attributes:
        what: What was forecast, in words.
        band: The forecast.
        outcome: What came.
        where: Whether that is `inside` the band, `below` or `above` it.
    """

    what: str
    band: Band
    outcome: float
    where: str

    @property
    def sentence(self) -> str:
        """Forecast and outcome in words."""
        low, expected, high = (show(value) for value in self.band)
        expectation = f"forecast of the {self.what}: {low} to {high}, expected {expected}"
        return f"{expectation}; it is {show(self.outcome)}: {self.where}"


def score_forecast(
    forecast: Forecast, space: SearchSpace, *, best: float | None, ensemble: float | None
) -> list[ScoredBand]:
    """Return the forecast of a sweep beside its outcome; empty if it was made for other limits.

    Args:
        forecast: The forecast.
        space: The sweep's space.
        best: The metric of its best trial; None if there is none.
        ensemble: The mean test score of its ensemble, in percent; None if there is none.
    """
    own = next((cell for cell in forecast.cells if _is_of(cell, space)), None)
    if own is None:
        return []
    pairs = [
        (f"mean test score of the ensemble on {', '.join(forecast.tasks)}", own.ensemble, ensemble),
        (f"{forecast.metric} of the best trial", own.best, best),
    ]
    return [
        ScoredBand(what, band, outcome, _where(band, outcome))
        for what, band, outcome in pairs
        if band is not None and outcome is not None
    ]


def _where(band: Band, outcome: float) -> str:
    if band.p10 <= outcome <= band.p90:
        return "inside"
    return "below" if outcome < band.p10 else "above"


def _is_of(cell: ForecastCell, space: SearchSpace) -> bool:
    """Return whether a cell has the limits of a space, and its machines."""
    planned = planned_limits(space)
    pairs = ((cell.budget_usd, planned.budget_usd), (cell.deadline_s, planned.deadline_s))
    return cell.machines == 1 and all(
        given == found or (given is not None and found is not None and math.isclose(given, found, rel_tol=_SAME))
        for given, found in pairs
    )
