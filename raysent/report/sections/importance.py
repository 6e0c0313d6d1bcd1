"""How much of the variance of the metric, and of the cost, each searched name explains.

A random forest predicts the quantity from the searched values. The importance of a name is its total effect: half the
mean squared change of the prediction when this name alone is drawn again, divided by the variance of the predictions.

Source: Hutter, Hoos and Leyton-Brown, 2014 (importance of hyperparameters by a forest); Jansen, 1999 (the estimator).
Differs: values are drawn from those that were tried, not from the whole search space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from raysent.report.blocks import Block, Figure, Note, Section, fixed, label, percent
from raysent.report.figures import ACCENT, QUIET, category_axis, figure
from raysent.report.parameters import MIN_TRIALS, Parameter, varied_parameters
from raysent.report.run import Run
from raysent.sweeps import Trial
from raysent.sweeps.trial import BROKEN

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

NUM_RESAMPLES = 40
NUM_TREES = 16
MAX_DRAWN = 2000


@dataclass(frozen=True)
class Importance:
    """Total effects [parameters] with 95 % intervals; as total effects, they may sum to more than one.

    Attributes:
        effects: Median over the resamples.
        low: 2.5th percentile over the resamples.
        high: 97.5th percentile over the resamples.
        explained: Fraction of variance that the forest explains on trials it was not fitted on; may be negative.
    """

    effects: np.ndarray
    low: np.ndarray
    high: np.ndarray
    explained: float


def for_metric(run: Run) -> Section | None:
    """Return the importance of the searched names for the metric; None where too few trials can tell it."""
    if run.sweep is None:
        return None
    key, title = "importance", "Importance for the metric"
    trials, metric, progress = comparable(run)
    parameters = varied_parameters(run, trials)
    if len(trials) < MIN_TRIALS or len(parameters) < 2 or np.ptp(metric) == 0:
        return None
    when = "at the end of training" if progress >= 1 else f"after {percent(progress)} of training"
    lead = (
        f"Fraction of the variance of {run.metric} that each searched name explains, {when}, over the {len(trials)} "
        "trials that reached this point. Whiskers are 95 % bootstrap intervals over trials."
    )
    return Section(key, title, lead, _blocks(parameters, metric, of=f"fraction of the variance of {run.metric}"))


def for_cost(run: Run) -> Section | None:
    """Return the importance of the searched names for dollars per report; None where too few trials can tell it."""
    if run.bill is None or not run.searched:
        return None
    key, title = "importance-cost", "Importance for the cost"
    found = [(trial, usd) for trial in run.trials if (usd := _log_usd_per_report(trial)) is not None]
    trials, costs = [trial for trial, _ in found], np.array([usd for _, usd in found])
    parameters = varied_parameters(run, trials)
    if len(trials) < MIN_TRIALS or len(parameters) < 2 or np.ptp(costs) == 0:
        return None
    low, middle, high = (math.exp(value) for value in np.percentile(costs, [10, 50, 90]))
    lead = (
        "Fraction of the variance of log dollars per report that each searched name explains, over "
        f"{len(trials)} trials. The most expensive tenth of the trials costs more than {high / middle:.1f} times the "
        f"median, the cheapest tenth less than {low / middle:.2g} times. If a name matters for the cost and not for "
        "the metric, fix it at a cheap value."
    )
    return Section(
        key, title, lead, _blocks(parameters, costs, of="fraction of the variance of log dollars per report")
    )


def comparable(run: Run) -> tuple[list[Trial], np.ndarray, float]:
    """Return trials with their metric at the same point of training [trials], and that point as a fraction of training.

    The point is the end of training, or the latest report that at least half of the trials (and at least four) reached.
    """
    trials = [trial for trial in run.trials if trial.status not in BROKEN]
    wanted = max(MIN_TRIALS, (len(trials) + 1) // 2)
    for index in range(run.num_reports, 0, -1):
        found = [(trial, value) for trial in trials if (value := _value_at(run, trial, index)) is not None]
        if len(found) >= wanted:
            return [t for t, _ in found], np.array([v for _, v in found]), index / run.num_reports
    found = [(t, v) for t in trials if t.status == "finished" and (v := run.value(t)) is not None]
    return [t for t, _ in found], np.array([v for _, v in found]), 1.0


def _value_at(run: Run, trial: Trial, index: int) -> float | None:
    """Return the metric at a report; at the last report, that of a finished trial without one there."""
    for report in trial.reports:
        if report.index == index:
            return run.value(report)
    return run.value(trial) if index == run.num_reports and trial.status == "finished" else None


def _log_usd_per_report(trial: Trial) -> float | None:
    """Return the logarithm of a trial's dollars per report; None if it has no cost, failed or diverged."""
    if trial.status in BROKEN:
        return None
    last = next((report for report in reversed(trial.reports) if report.usd > 0), None)
    return None if last is None else math.log(last.usd / last.index)


def importance(values: np.ndarray, target: np.ndarray, *, seed: int) -> Importance:
    """Return total effects with bootstrap intervals over trials.

    Args:
        values: Coordinates of the searched values, [trials, parameters].
        target: What is explained, [trials].
        seed: Seed of the resamples and forests.
    """
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - it takes seconds to import, and most commands do without

    generator = np.random.default_rng(seed)
    effects, errors = [], []
    for _ in range(NUM_RESAMPLES):
        rows = generator.integers(len(target), size=len(target))
        unseen = np.setdiff1d(np.arange(len(target)), rows)
        if np.ptp(target[rows]) == 0:
            continue
        forest = RandomForestRegressor(n_estimators=NUM_TREES, random_state=int(generator.integers(2**31)), n_jobs=1)
        forest.fit(values[rows], target[rows])
        effects.append(_total_effects(forest, values, generator))
        if len(unseen) > 0:
            errors.append(np.square(target[unseen] - forest.predict(values[unseen])))
    low, middle, high = np.percentile(np.array(effects), [2.5, 50, 97.5], axis=0)
    return Importance(middle, low, high, float(1.0 - np.concatenate(errors).mean() / target.var()))


def _total_effects(forest: RandomForestRegressor, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return total effects [parameters]: half the mean squared change under a new draw, divided by the variance."""
    rows, num_parameters = values.shape
    num_draws = max(1, min(8, MAX_DRAWN // rows))
    changed = np.tile(values, (num_parameters, num_draws, 1, 1))  # [parameters, draws, rows, parameters]
    for column in range(num_parameters):
        drawn_rows = generator.integers(rows, size=(num_draws, rows))
        changed[column, :, :, column] = values[drawn_rows, column]
    before = forest.predict(values)
    after = forest.predict(changed.reshape(-1, num_parameters)).reshape(num_parameters, num_draws, rows)
    variance = before.var()
    if variance == 0:
        return np.zeros(num_parameters)
    return np.asarray(np.square(after - before).mean(axis=(1, 2)) / (2 * variance))


def _blocks(parameters: Sequence[Parameter], target: np.ndarray, *, of: str) -> list[Block]:
    found = importance(np.stack([parameter.coordinates() for parameter in parameters], axis=1), target, seed=0)
    return [_bars(found, [parameter.short for parameter in parameters], of=of), _reliability(found)]


def _bars(found: Importance, names: Sequence[str], *, of: str) -> Figure:
    order = np.argsort(found.effects)
    effects = found.effects[order]
    bars = go.Bar(
        x=effects,
        y=[label(names[index]) for index in order],
        orientation="h",
        marker={"color": ACCENT, "opacity": 0.85 if found.explained > 0 else 0.35},
        width=0.55,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": found.high[order] - effects,
            "arrayminus": effects - found.low[order],
            "color": QUIET,
            "thickness": 1.5,
            "width": 4,
        },
        hovertemplate="%{y}: %{x:.0%}<extra></extra>",
    )
    return figure(
        [bars],
        height=70 + 34 * len(names),
        label="Importance: " + ", ".join(f"{names[i]} {found.effects[i]:.0%}" for i in order[::-1]) + ".",
        xaxis_title_text=of,
        xaxis_tickformat=".0%",
        xaxis_rangemode="tozero",
        **category_axis("yaxis"),
    )


def _reliability(found: Importance) -> Note:
    explained = fixed(100 * found.explained, 0)
    if found.explained <= 0:
        return Note(
            f"Not reliable: on trials that it was not fitted on, the forest predicts worse than the mean ({explained} "
            "% of the variance explained). There are too few trials, or they are too similar."
        )
    return Note(
        f"On trials that it was not fitted on, the forest explains {explained} % of the variance. The closer this is "
        "to 100 %, the more reliable are the bars."
    )
