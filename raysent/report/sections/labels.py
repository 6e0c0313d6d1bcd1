"""Scores against the number of labels: members, ensembles and baselines, with intervals and the level of chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.ensembles.label_curves import Curve, LabelCurve
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.report.blocks import DASH, Block, Cell, Column, Figure, Section, Table, fixed, label
from raysent.report.figures import BEST, PALETTE, QUIET, figure, level_line, level_text
from raysent.report.run import Run

CHANCE = "chance"


def against_labels(run: Run) -> Section | None:
    """Return a plot and tables for each task; None if no scores against the number of labels were taken."""
    if not run.label_curves:
        return None
    lead = (
        "Test scores in percent, with probes and weights of ensembles fitted on so many labels; means over draws of "
        "labels. Thick lines are ensembles, thin lines members, dashed lines baselines. Intervals are 95 %."
    )
    blocks: list[Block] = []
    for found in run.label_curves:
        blocks += [_plot(run, found), _table(run, found)]
        blocks += [_gains(run, found)] if found.comparisons else []
    return Section("labels", "Scores against the number of labels", lead, blocks)


def _ordered(found: LabelCurve) -> list[tuple[str, Curve]]:
    """Return the models from best to worst by the mean of their scores."""
    return sorted(found.curves.items(), key=lambda item: -sum(point.value for point in item[1].points))


def _plot(run: Run, found: LabelCurve) -> Figure:
    models = [(name, curve) for name, curve in _ordered(found) if name != CHANCE]
    sizes = list(found.sizes)
    return figure(
        [_line(run, name, curve, sizes, color=_color(curve, place)) for place, (name, curve) in enumerate(models)],
        height=380 + 22 * len(models),
        label=f"Test scores on {found.task} of {len(models)} models against the number of labels.",
        title=found.task,
        caption=f"{found.sentence}. {found.num_test:,} test rows.",
        showlegend=True,
        legend_orientation="v",
        xaxis_type="log",
        xaxis_title_text="labels",
        xaxis_tickvals=sizes,
        xaxis_ticktext=[f"{size:,}" for size in sizes],
        yaxis_title_text="test score",
        shapes=[level_line(found.chance, QUIET)],
        annotations=[level_text(found.chance, f"chance {fixed(found.chance)}", QUIET)],
    )


def _color(curve: Curve, place: int) -> str:
    if curve.kind == "ensemble":
        return BEST
    return QUIET if curve.kind == "baseline" else PALETTE[place % len(PALETTE)]


def _line(run: Run, name: str, curve: Curve, sizes: Sequence[int], *, color: str) -> Any:
    values = [point.value for point in curve.points]
    return go.Scatter(
        x=sizes,
        y=values,
        error_y={
            "type": "data",
            "array": [point.interval[1] - point.value for point in curve.points],
            "arrayminus": [point.value - point.interval[0] for point in curve.points],
            "thickness": 1,
            "width": 3,
        },
        mode="lines+markers",
        line={
            "color": color,
            "width": 3 if curve.kind == "ensemble" else 1.5,
            "dash": "dash" if curve.kind == "baseline" or "+" in name else "solid",
        },
        marker={"size": 6, "symbol": ["circle", "square", "diamond", "x", "cross"][sum(map(ord, name)) % 5]},
        name=label(run.title(name)),
        hovertemplate=f"{label(run.title(name))}<br>%{{x:,}} labels: %{{y:.1f}}<extra></extra>",
    )


def _table(run: Run, found: LabelCurve) -> Table:
    best = [max(curve.points[place].value for curve in found.curves.values()) for place in range(len(found.sizes))]
    draws = [f"{count} {'draw' if count == 1 else 'draws'}" for count in found.num_draws]
    columns = [
        Column("model"),
        Column("kind"),
        *(Column(f"{size:,}", "number", text) for size, text in zip(found.sizes, draws, strict=True)),
    ]
    rows = [
        [
            Cell(run.title(name)),
            Cell(curve.kind),
            *(_cell(point, is_best=point.value >= top) for point, top in zip(curve.points, best, strict=True)),
        ]
        for name, curve in _ordered(found)
    ]
    return Table(columns, rows, f"{found.task}: test score by number of labels")


def _cell(point: BootstrapEstimate, *, is_best: bool) -> Cell:
    title = f"95 % interval {fixed(point.interval[0])} to {fixed(point.interval[1])}"
    return Cell(fixed(point.value), point.value, mark="best" if is_best else "", title=title)


def _gains(run: Run, found: LabelCurve) -> Table:
    """Return what the models gain over the best baseline, both chosen by validation."""
    columns = [
        Column("labels", "number"),
        Column("model"),
        Column("best baseline"),
        Column("difference", "number", "in points, paired over draws and test rows"),
        Column("95 % interval", "number"),
    ]
    rows = []
    for one in found.comparisons:
        low, high = one.difference.interval
        ends = f"{fixed(low, sign=True)} to {fixed(high, sign=True)}" if low <= high else DASH
        value = one.difference.value
        rows.append(
            [
                Cell(f"{one.size:,}", one.size),
                Cell(run.title(one.model)),
                Cell(run.title(one.baseline)),
                Cell(fixed(value, sign=True), value, mark="best" if one.is_ahead else ""),
                Cell(ends, low),
            ]
        )
    return Table(columns, rows, f"{found.task}: what training and combining gain over the best baseline")
