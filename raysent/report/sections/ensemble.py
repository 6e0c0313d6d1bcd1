"""The ensemble beside its rivals and its members, with intervals, and the weights that made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Block, Cell, Column, Figure, Note, Section, Table, fixed, label
from raysent.report.figures import ACCENT, BEST, QUIET, drawn
from raysent.report.run import Run
from raysent.report.score_files import MEAN, Ensemble, Score

ENSEMBLE = "ensemble"
RIVALS = {"uniform": "equal shares", "best": "best by validation"}


def section(run: Run) -> Section:
    """Return the ensemble's plots and weights, or the command that makes them."""
    key, title = "ensemble", "Ensemble against its members"
    ensemble = run.ensemble
    if ensemble is None:
        return Section(key, title, blocks=[Note("No ensemble yet; this makes one:", f"raysent ensemble {run.folder}")])
    tasks = list(dict.fromkeys(score.task for score in ensemble.scores))
    tasks.sort(key=lambda task: (task != MEAN, task))
    plots = [_plot(run, ensemble, task) for task in tasks]
    method = f", by the rule '{ensemble.method}'" if ensemble.method else ""
    lead = (
        f"{len(ensemble.members)} members pooled{method}: test scores in percent, whiskers are 95 % intervals. "
        "The difference in the summary is paired over rows, so it can be plain where whiskers overlap."
    )
    return Section(key, title, lead, [*plots, *_weights(run, ensemble)])


def _plot(run: Run, ensemble: Ensemble, task: str) -> Figure:
    """Return dots and whiskers of one task; the ensemble at the top, members below by score."""
    scores = [score for score in ensemble.scores if score.task == task and score.test is not None]
    scores.sort(key=lambda score: (score.model not in ensemble.members, score.test or 0.0))
    scores.sort(key=lambda score: score.model == ENSEMBLE)
    is_mean = task == MEAN
    return drawn(
        [_dots(run, scores, ensemble)],
        height=72 + 28 * len(scores),
        label=f"Scores on {task}: " + ", ".join(f"{s.model} {fixed(s.test)}" for s in reversed(scores)) + ".",
        title="mean over all tasks" if is_mean else task,
        narrow=not is_mean,
        xaxis_title_text="mean test score" if is_mean else "test score",
        yaxis_type="category",
        yaxis_gridcolor="rgba(0,0,0,0)",
        yaxis_tickfont_size=12,
    )


def _dots(run: Run, scores: Sequence[Score], ensemble: Ensemble) -> Any:
    values = [score.test or 0.0 for score in scores]
    ends = [score.interval or (value, value) for score, value in zip(scores, values, strict=True)]
    colours = [_colour(score.model, ensemble) for score in scores]
    return go.Scatter(
        x=values,
        y=[label(RIVALS.get(score.model, run.title(score.model))) for score in scores],
        mode="markers",
        marker={"size": 10, "color": colours},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [end[1] - value for end, value in zip(ends, values, strict=True)],
            "arrayminus": [value - end[0] for end, value in zip(ends, values, strict=True)],
            "color": QUIET,
            "thickness": 1.6,
            "width": 5,
        },
        customdata=[f"{fixed(low)} to {fixed(high)}" if high > low else "no interval" for low, high in ends],
        hovertemplate="%{y}: %{x:.2f} (%{customdata})<extra></extra>",
    )


def _colour(model: str, ensemble: Ensemble) -> str:
    if model == ENSEMBLE:
        return BEST
    return QUIET if model in ensemble.members else ACCENT


def _weights(run: Run, ensemble: Ensemble) -> list[Block]:
    """Return the table of weights, member by task."""
    if not ensemble.weights:
        return []
    tasks = sorted(ensemble.weights)
    top = max((w for row in ensemble.weights.values() for w in row.values() if w is not None), default=1.0) or 1.0
    rows = [
        [Cell(run.title(member)), *(_weight(ensemble.weights[task].get(member), top) for task in tasks)]
        for member in ensemble.members
    ]
    columns = [Column("member"), *(Column(task, "number") for task in tasks)]
    return [Table(columns, rows, caption="weight of each member in the pool, task by task")]


def _weight(value: float | None, top: float) -> Cell:
    return Cell(fixed(value, 3), value, share=None if value is None else max(value, 0.0) / top)
