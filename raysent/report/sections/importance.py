"""How much each searched name matters for the metric.

A random forest predicts the metric from the searched values. The importance of a name is its total effect: half of the
part of the variance that the forest no longer explains when the values of this name alone are permuted.

Source: Breiman, 2001 (permutations); Jansen, 1999 (the half of them as a total effect).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from raysent.report.blocks import Block, Figure, Note, Section, fixed, label, percent
from raysent.report.figures import ACCENT, QUIET, category_axis, figure
from raysent.report.parameters import MIN_TRIALS, Parameter, varied_parameters
from raysent.report.run import Run
from raysent.sweeps import Trial
from raysent.sweeps.trial import BROKEN

NUM_TREES = 100
NUM_PERMUTATIONS = 30


@dataclass(frozen=True)
class Importance:
    """Total effects [parameters]; they may sum to more than one.

    Attributes:
        effects: Mean over the permutations.
        spread: Standard deviation over the permutations.
        explained: Fraction of variance that the forest explains on trials it was not fitted on; may be negative.
    """

    effects: np.ndarray
    spread: np.ndarray
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
        "trials that reached this point. Whiskers are one standard deviation over permutations."
    )
    return Section(key, title, lead, _blocks(parameters, metric, of=f"fraction of the variance of {run.metric}"))


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


def importance(values: np.ndarray, target: np.ndarray, *, seed: int) -> Importance:
    """Return what each searched name explains.

    Args:
        values: Coordinates of the searched values, [trials, parameters].
        target: What is explained, [trials].
        seed: Seed of the forest and of the permutations.
    """
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - it takes seconds to import, and most commands do without
    from sklearn.inspection import permutation_importance  # noqa: PLC0415 - as above

    forest = RandomForestRegressor(NUM_TREES, oob_score=True, random_state=seed, n_jobs=1).fit(values, target)
    found = permutation_importance(forest, values, target, n_repeats=NUM_PERMUTATIONS, random_state=seed)
    return Importance(found.importances_mean / 2, found.importances_std / 2, float(forest.oob_score_))


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
            "array": found.spread[order],
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
