"""Whether probabilities can be believed: every method's figures, and reliability plots of the ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Block, Cell, Column, Figure, Section, Table, fixed, label
from raysent.report.ensemble_files import Bin, Details, Honest
from raysent.report.figures import ACCENT, BEST, QUIET, drawn
from raysent.report.run import Run
from raysent.report.score_files import Ensemble

ENSEMBLE, RIVAL = "ensemble", "best"
# Name in the file, heading, decimals, what it means.
MEASURES = (
    ("nll", "NLL", 3, "nats per row"),
    ("brier", "Brier", 3, "sum over classes of squared errors, 0 to 2"),
    ("ece", "ECE %", 1, "distance of confidence and accuracy over bins of equally many rows"),
)


def section(run: Run) -> Section | None:
    """Return the methods' table and the plots; None where nothing was combined."""
    ensemble = run.ensemble
    if ensemble is None or not ensemble.details.honest:
        return None
    lead = (
        "Every method is scored on rows that it did not see (cross-fitted); optimism is what it gains on those it saw. "
        "Dots on the diagonal mean that probabilities can be taken at their word; below it they are too sure. "
        "The ensemble is orange, the best member by validation grey."
    )
    plots = [_plot(task, ensemble.details) for task in sorted(ensemble.details.reliability)]
    return Section("calibration", "Honest scores and calibration", lead, [_methods(run, ensemble), *plots])


def _methods(run: Run, ensemble: Ensemble) -> Block:
    """Return the table of methods and members, means over tasks."""
    columns = [
        Column("mean over tasks"),
        Column("cross-fitted", "number", "score of rows answered by fits on others, with its 95 % interval"),
        Column("optimism", "number", "points that the rows fitted on would have added"),
        *(Column(heading, "number", meaning) for _, heading, _, meaning in MEASURES),
    ]
    rows = [
        [Cell(_title(run, ensemble, name)), *_honest(found)]
        for name, found in sorted(ensemble.details.honest.items(), key=lambda item: -(item[1].cross_fitted or 0.0))
    ]
    return Table(columns, rows, caption="NLL, Brier score and calibration error are of test rows; lower is better")


def _title(run: Run, ensemble: Ensemble, name: str) -> str:
    if name == ENSEMBLE:
        return f"ensemble ({ensemble.method})"
    return run.title(name) if name in ensemble.members else name


def _honest(found: Honest) -> list[Cell]:
    cells = [
        Cell(f"{fixed(found.cross_fitted)}{_ends(found.interval, 2)}", found.cross_fitted),
        Cell(fixed(found.optimism, sign=True), found.optimism),
    ]
    for name, _, decimals, _ in MEASURES:
        value, ends = found.measures.get(name, (None, None))
        cells.append(Cell(fixed(value, decimals), value, title=f"95 % interval{_ends(ends, decimals)}"))
    return cells


def _ends(interval: tuple[float, float] | None, decimals: int) -> str:
    return "" if interval is None else f" [{fixed(interval[0], decimals)}, {fixed(interval[1], decimals)}]"


def _plot(task: str, details: Details) -> Figure:
    """Return the reliability plot of a task: the ensemble's bins, and the best member's behind them."""
    found = details.reliability[task]
    shown = [(RIVAL, "best by validation", QUIET), (ENSEMBLE, ENSEMBLE, BEST)]
    lines = [_line(title, found[name], colour) for name, title, colour in shown if found.get(name)]
    diagonal = go.Scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": ACCENT, "width": 1, "dash": "dot"}, hoverinfo="skip"
    )
    bins = found.get(ENSEMBLE, ())
    return drawn(
        [diagonal, *lines],
        height=260,
        label=f"Reliability on {task}: " + ", ".join(f"{fixed(mean)} {fixed(share)}" for mean, share, _ in bins) + ".",
        title=task,
        narrow=True,
        xaxis_title_text="confidence",
        yaxis_title_text="share right",
        xaxis_range=[0, 1.02],
        yaxis_range=[0, 1.02],
    )


def _line(title: str, bins: Sequence[Bin], colour: str) -> Any:
    return go.Scatter(
        x=[mean for mean, _, _ in bins],
        y=[share for _, share, _ in bins],
        mode="lines+markers",
        name=label(title),
        line={"color": colour, "width": 1.6},
        marker={"size": 7, "color": colour},
        customdata=[rows for _, _, rows in bins],
        hovertemplate=f"{label(title)}: %{{y:.2f}} right at %{{x:.2f}} (%{{customdata}} rows)<extra></extra>",
    )
