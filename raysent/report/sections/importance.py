"""How much of the metric's spread each searched name explains.

A random forest learns the metric from the searched values; a name's importance is its total share of the forest's
variance: half the mean square by which the forest's answer changes when that name alone is drawn anew.

Source: Hutter, Hoos, Leyton-Brown 2014 (importance by a forest over hyperparameters); Jansen 1999 (the estimator).
Differs: shares are taken over the values that were tried, not over the whole search space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from sklearn.ensemble import RandomForestRegressor

from raysent.report.blocks import Figure, Note, Section, fixed, label
from raysent.report.figures import ACCENT, QUIET, drawn
from raysent.report.parameters import parameters_of, short_names
from raysent.report.run import Run, Trial
from raysent.sweeps.trial import BROKEN

MIN_TRIALS = 4
NUM_RESAMPLES = 40
NUM_TREES = 16
MAX_DRAWN = 2000


@dataclass(frozen=True)
class Importance:
    """Shares of variance [parameters], their 95 % intervals, and how far the forest can be believed.

    Attributes:
        shares: Median over the resamples; total effects, so that they may sum to more than one.
        low: 2.5th percentile over the resamples.
        high: 97.5th percentile.
        explained: Share of the metric's variance explained on trials the forest did not see; may be negative.
    """

    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    explained: float


def section(run: Run) -> Section | None:
    """Return the importance of the searched names, measured where most trials can be compared."""
    if not run.is_sweep:
        return None
    key, title = "importance", "Which searched names matter"
    trials, metric, share = comparable(run)
    parameters = [parameter for parameter in parameters_of(run, trials) if parameter.is_varied]
    if len(trials) < MIN_TRIALS or not parameters:
        text = f"Too few trials: {len(trials)} can be compared with each other, {MIN_TRIALS} are needed."
        return Section(key, title, blocks=[Note(text)])
    if np.ptp(metric) == 0:
        return Section(key, title, blocks=[Note(f"All trials have the same {run.metric}; nothing is to be explained.")])
    found = importance(np.stack([p.coordinates() for p in parameters], axis=1), metric, seed=0)
    when = "at the end of training" if share >= 1 else f"after {100 * share:.0f} % of training"
    lead = (
        f"Share of the spread of {run.metric} that goes with each name, {when}, over the {len(trials)} trials that "
        f"got there. Whiskers are 95 % bootstrap intervals over trials."
    )
    names = short_names(run.searched)
    of = "share of the metric's spread"
    return Section(key, title, lead, [bars_of(found, [names[p.name] for p in parameters], of=of), trust(found)])


def comparable(run: Run) -> tuple[list[Trial], np.ndarray, float]:
    """Return trials whose metric was taken after the same share of training, the metric [trials], and that share.

    It is the end of training, unless fewer than half of the trials (or fewer than four) got so far: then the latest
    report that so many did reach.
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
    """Return the metric at a report, or at the end for a trial that finished without one there."""
    for point in trial.points:
        if point.index == index:
            return point.metrics.get(run.metric)
    return run.value(trial) if index == run.num_reports and trial.status == "finished" else None


def importance(values: np.ndarray, metric: np.ndarray, *, seed: int) -> Importance:
    """Return total shares of variance with bootstrap intervals over trials.

    Args:
        values: [trials, parameters] coordinates of the searched values.
        metric: [trials] what is explained.
        seed: Of the resamples and the forests.
    """
    generator = np.random.default_rng(seed)
    shares, explained = [], []
    for _ in range(NUM_RESAMPLES):
        rows = generator.integers(len(metric), size=len(metric))
        unseen = np.setdiff1d(np.arange(len(metric)), rows)
        if np.ptp(metric[rows]) == 0:
            continue
        forest = RandomForestRegressor(n_estimators=NUM_TREES, random_state=int(generator.integers(2**31)), n_jobs=1)
        forest.fit(values[rows], metric[rows])
        shares.append(_total_shares(forest, values, generator))
        if len(unseen) > 0:
            explained.append((np.square(metric[unseen] - forest.predict(values[unseen])), unseen))
    low, middle, high = np.percentile(np.array(shares), [2.5, 50, 97.5], axis=0)
    errors = np.concatenate([error for error, _ in explained])
    return Importance(middle, low, high, float(1.0 - errors.mean() / metric.var()))


def _total_shares(forest: RandomForestRegressor, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return [parameters] total effects: half the mean square change under a fresh draw, over the variance."""
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


def bars_of(found: Importance, names: Sequence[str], *, of: str) -> Figure:
    """Return the shares as bars with whiskers, under an axis that says what they are shares of."""
    order = np.argsort(found.shares)
    shares = found.shares[order]
    bars = go.Bar(
        x=shares,
        y=[label(names[index]) for index in order],
        orientation="h",
        marker={"color": ACCENT, "opacity": 0.85 if found.explained > 0 else 0.35},
        width=0.55,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": found.high[order] - shares,
            "arrayminus": shares - found.low[order],
            "color": QUIET,
            "thickness": 1.5,
            "width": 4,
        },
        hovertemplate="%{y}: %{x:.0%}<extra></extra>",
    )
    return drawn(
        [bars],
        height=70 + 34 * len(names),
        label="Bars of importance: " + ", ".join(f"{names[i]} {found.shares[i]:.0%}" for i in order[::-1]) + ".",
        xaxis_title_text=of,
        xaxis_tickformat=".0%",
        xaxis_rangemode="tozero",
        yaxis_type="category",
        yaxis_gridcolor="rgba(0,0,0,0)",
    )


def trust(found: Importance) -> Note:
    """Say how far the bars can be believed."""
    told = f"On trials that it did not see, the forest explains {100 * found.explained:.0f} % of the spread"
    if found.explained <= 0:
        share = fixed(100 * found.explained, 0)
        return Note(
            f"On trials that it did not see, the forest does worse than the mean ({share} %): these trials are too "
            f"few or too alike to tell what matters; read nothing into the bars."
        )
    return Note(f"{told}; the nearer to 100 %, the more the bars can be believed.")
