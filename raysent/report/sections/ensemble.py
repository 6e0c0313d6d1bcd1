"""The ensemble: its scores beside members and other methods, calibration, what members cost and add."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.ensembles import ENSEMBLE, EnsembleResult
from raysent.ensembles.measures import CalibrationBin, MeanScores
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.report.blocks import Cell, Column, Figure, Note, Section, Table, duration, fixed, label
from raysent.report.figures import ACCENT, BEST, NAMES_AXIS, QUIET, figure, whiskers
from raysent.report.run import Run
from raysent.storage import address_of

# Another method of the ensemble -> its name on the page.
OTHER_METHODS = {"uniform": "equal weights", "best": "best by validation"}
# The measure's name, its heading, decimals, what it means.
MEASURES = (
    ("nll", "NLL", 3, "negative log-likelihood, nats per row"),
    ("brier", "Brier", 3, "sum over classes of squared errors, 0 to 2"),
    ("ece", "ECE %", 1, "expected calibration error, over bins with equal numbers of rows"),
)


def method_scores(run: Run) -> Section | None:
    """Return the ensemble's scores and weights, or the command that makes one; None where it makes none."""
    key, title, ensemble = "ensemble", "Ensemble and its members", run.ensemble
    if ensemble is None and (
        run.answers or run.kind == "evaluation"
    ):  # a fusion of rankings, or no models of a folder
        return None
    if ensemble is None:
        note = Note(
            "There is no ensemble yet. To make one:",
            f"raysent ensemble {shlex.quote(address_of(run.folder))}",
        )
        return Section(key, title, blocks=[note])
    lead = (
        f"{len(ensemble.members)} members, combined by the method '{ensemble.method}'. Test scores in percent, with "
        "95 % intervals. The difference in the summary is paired over rows, so it can be significant although "
        "intervals overlap."
    )
    plots, is_one = [], len(ensemble.tasks) == 1
    if not is_one:
        plots.append(_plot(run, ensemble, "mean over tasks", ensemble.mean.scores, is_narrow=False))
    for task, found in sorted(ensemble.tasks.items()):
        plots.append(_plot(run, ensemble, task, found.scores, is_narrow=not is_one))
    return Section(key, title, lead, [*plots, _weights(run, ensemble)])


def _plot(
    run: Run,
    ensemble: EnsembleResult,
    title: str,
    scores: Mapping[str, MeanScores],
    *,
    is_narrow: bool,
) -> Figure:
    """Return points with whiskers: the ensemble at the top, then other methods, then the members by score."""
    names = sorted(
        scores, key=lambda name: (name == ENSEMBLE, name not in ensemble.members, scores[name].test)
    )
    return figure(
        [_points(run, ensemble, names, scores)],
        height=72 + 28 * len(names),
        label=f"Scores, {title}: "
        + ", ".join(f"{name} {fixed(scores[name].test)}" for name in reversed(names))
        + ".",
        title=title,
        is_narrow=is_narrow,
        xaxis_title_text="test score",
        **NAMES_AXIS,
    )


def _points(
    run: Run, ensemble: EnsembleResult, names: Sequence[str], scores: Mapping[str, MeanScores]
) -> Any:
    values = [scores[name].test for name in names]
    ends = [scores[name].interval for name in names]
    return go.Scatter(
        x=values,
        y=[label(OTHER_METHODS.get(name, run.title(name))) for name in names],
        mode="markers",
        marker={"size": 10, "color": [_color(name, ensemble) for name in names]},
        error_x=whiskers(values, ends),
        customdata=[f"{fixed(low)} to {fixed(high)}" for low, high in ends],
        hovertemplate="%{y}: %{x:.2f} (%{customdata})<extra></extra>",
    )


def _color(name: str, ensemble: EnsembleResult) -> str:
    if name == ENSEMBLE:
        return BEST
    return QUIET if name in ensemble.members else ACCENT


def _weights(run: Run, ensemble: EnsembleResult) -> Table:
    tasks = sorted(ensemble.tasks)
    top = max((max(ensemble.tasks[task].weights.values()) for task in tasks), default=1.0) or 1.0
    rows = [
        [
            Cell(run.title(member)),
            *(_weight(ensemble.tasks[task].weights.get(member), top) for task in tasks),
        ]
        for member in ensemble.members
    ]
    columns = [Column("member"), *(Column(task, "number") for task in tasks)]
    return Table(columns, rows, caption="weight of each member on each task")


def _weight(value: float | None, top: float) -> Cell:
    return Cell(fixed(value, 3), value, share=None if value is None else max(value, 0.0) / top)


def calibration(run: Run) -> Section | None:
    """Return cross-validated scores, measures of probabilities and reliability plots; None without an ensemble."""
    ensemble = run.ensemble
    if ensemble is None:
        return None
    lead = (
        "Cross-validated scores are of rows that a method was not fitted on; the optimism is how much higher it "
        "scores on rows that it was fitted on. In the plots, points below the diagonal mean overconfident predictions. "
        "Orange: the ensemble. Grey: the best member by validation."
    )
    plots = [_reliability(ensemble, task) for task in sorted(ensemble.tasks)]
    return Section(
        "calibration",
        "Cross-validated scores and calibration",
        lead,
        [_methods(run, ensemble), *plots],
    )


def _methods(run: Run, ensemble: EnsembleResult) -> Table:
    columns = [
        Column("mean over tasks"),
        Column(
            "cross-validated",
            "number",
            "score on rows that it was not fitted on, with its 95 % interval",
        ),
        Column(
            "optimism", "number", "points by which the score on the rows it was fitted on is higher"
        ),
        *(Column(heading, "number", meaning) for _, heading, _, meaning in MEASURES),
    ]
    methods = {
        name: one for name, one in ensemble.mean.scores.items() if name not in ensemble.baselines
    }
    found = sorted(methods.items(), key=lambda item: -item[1].cross_fitted.value)
    rows = [[Cell(_title(run, ensemble, name)), *_measures(one)] for name, one in found]
    return Table(
        columns, rows, caption="NLL, Brier score and ECE are of test rows; lower is better"
    )


def _title(run: Run, ensemble: EnsembleResult, name: str) -> str:
    if name == ENSEMBLE:
        return f"ensemble ({ensemble.method})"
    return run.title(name) if name in ensemble.members else OTHER_METHODS.get(name, name)


def _measures(found: MeanScores) -> list[Cell]:
    score = found.cross_fitted
    cells = [
        Cell(f"{fixed(score.value)} {_interval(score, 2)}", score.value),
        Cell(fixed(found.optimism, sign=True), found.optimism),
    ]
    for name, _, decimals, _ in MEASURES:
        one = found.measures.get(name)
        # Resamples of a sum of absolute values lie above it.
        tooltip = (
            "" if one is None or name == "ece" else f"95 % interval {_interval(one, decimals)}"
        )
        value = None if one is None else one.value
        cells.append(Cell(fixed(value, decimals), value, title=tooltip))
    return cells


def _interval(estimate: BootstrapEstimate, decimals: int) -> str:
    low, high = estimate.interval
    return f"[{fixed(low, decimals)}, {fixed(high, decimals)}]"


def _reliability(ensemble: EnsembleResult, task: str) -> Figure:
    found = ensemble.tasks[task].scores
    shown = [("best", OTHER_METHODS["best"], QUIET), (ENSEMBLE, ENSEMBLE, BEST)]
    lines = [
        _bins(title, found[name].reliability, color)
        for name, title, color in shown
        if name in found
    ]
    calibration = ensemble.tasks[task].calibration
    if calibration is not None and calibration.reliability:
        lines.append(_bins("as it predicts, calibrated", calibration.reliability, ACCENT))
    diagonal = go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        line={"color": ACCENT, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    points = (
        f"{fixed(one.confidence)} {fixed(one.accuracy)}" for one in found[ENSEMBLE].reliability
    )
    return figure(
        [diagonal, *lines],
        height=260,
        label=f"Reliability on {task}, confidence and accuracy of each bin: {', '.join(points)}.",
        title=task,
        is_narrow=True,
        xaxis_title_text="confidence",
        yaxis_title_text="accuracy",
        xaxis_range=[0, 1.02],
        yaxis_range=[0, 1.02],
    )


def _bins(title: str, bins: Sequence[CalibrationBin], color: str) -> Any:
    return go.Scatter(
        x=[one.confidence for one in bins],
        y=[one.accuracy for one in bins],
        mode="lines+markers",
        name=label(title),
        line={"color": color, "width": 1.6},
        marker={"size": 7, "color": color},
        customdata=[one.num_rows for one in bins],
        hovertemplate=f"{label(title)}: accuracy %{{y:.2f}} at %{{x:.2f}}, %{{customdata}} rows<extra></extra>",
    )


def members(run: Run) -> Section | None:
    """Return what members cost and add."""
    ensemble = run.ensemble
    if ensemble is None:
        return None
    lead = "A member that adds nothing and costs much can be left out."
    return Section("members", "What members cost and add", lead, [_members(run, ensemble)])


def _members(run: Run, ensemble: EnsembleResult) -> Table:
    columns = [
        Column("member"),
        Column(
            "adds",
            "number",
            "points of the cross-validated score that are lost without it, mean over tasks",
        ),
        Column("ms / 1,000 sentences", "number", "on the machine that evaluated it"),
        Column("MiB", "number", "size of the model's files"),
        Column("training", "number", "time of training and validation"),
    ]
    return Table(columns, [_member(run, ensemble, name) for name in ensemble.members])


def _member(run: Run, ensemble: EnsembleResult, name: str) -> list[Cell]:
    cost = ensemble.costs[name]
    adds = _mean([found.diversity.contributions.get(name) for found in ensemble.tasks.values()])
    return [
        Cell(run.title(name)),
        Cell(fixed(adds, sign=True), adds),
        Cell(fixed(cost.encode_ms, 1), cost.encode_ms),
        Cell(fixed(cost.num_bytes / 2**20, 1), cost.num_bytes),
        Cell(duration(cost.training_s), cost.training_s),
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
