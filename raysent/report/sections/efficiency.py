"""Scores against hours of training, and how soon each run reaches the same score."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from raysent.analysis import Efficiency
from raysent.analysis.efficiency import Curve
from raysent.report.blocks import (
    Block,
    Cell,
    Column,
    Section,
    Table,
    duration,
    fixed,
    label,
    significant,
    text_of,
    whole,
)
from raysent.report.figures import PALETTE, QUIET, RULE, drawn
from raysent.report.run import Run

_SECONDS_PER_HOUR = 3600.0
_MINUTES_PER_HOUR = 60.0
DASHES = ("solid", "dash", "dot", "dashdot")


def section(run: Run) -> Section | None:
    """Return the comparisons of training times; None where none was made."""
    found = run.analyses_of(Efficiency)
    if not found:
        return None
    lead = (
        "Score against the wall clock of training and validation. Times to a score are those of the first report that "
        "reached it, so they are as coarse as the reports; runs compare only where they had the same machine."
    )
    blocks: list[Block] = [block for one in found for block in (_figure(one), _table(one))]
    return Section("efficiency", "Score against time", lead, blocks)


def _figure(found: Efficiency) -> Block:
    # Short trainings are read in minutes.
    longest = max(curve.hours[-1] for curve in found.curves)
    scale, unit = (1.0, "hours") if longest >= 1 else (_MINUTES_PER_HOUR, "minutes")
    objectives = list(dict.fromkeys(curve.objective for curve in found.curves))
    places = dict.fromkeys(objectives, 0)
    traces = []
    for curve in found.curves:
        traces.append(_line(curve, objectives.index(curve.objective), places[curve.objective], scale))
        places[curve.objective] += 1
    return drawn(
        traces,
        height=420,
        label=f"Lines of {found.metric} against {unit} of training, one for each of {len(found.curves)} runs.",
        caption="a colour an objective, a dash a run; the horizontal line is the score whose time is compared below",
        showlegend=True,
        legend={"orientation": "h", "y": -0.2, "font": {"size": 12}},
        xaxis_title_text=f"{unit} of training",
        xaxis_rangemode="tozero",
        yaxis_title_text=label(found.metric),
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": found.target,
                "y1": found.target,
                "line": {"color": RULE, "width": 2},
                "layer": "below",
            }
        ],
    )


def _line(curve: Curve, colour: int, dash: int, scale: float) -> Any:
    name = f"{curve.run} ({curve.objective})" if curve.objective else curve.run
    return go.Scatter(
        x=[hours * scale for hours in curve.hours],
        y=list(curve.values),
        name=label(name),
        mode="lines+markers",
        line={"color": PALETTE[colour % len(PALETTE)], "width": 2, "dash": DASHES[dash % len(DASHES)]},
        marker={"size": 5, "line": {"width": 0, "color": QUIET}},
        hovertemplate="%{y:.4g} at %{x:.3g}<extra>%{fullData.name}</extra>",
    )


def _table(found: Efficiency) -> Block:
    columns = [
        Column("run"),
        Column("objective"),
        Column("parameters", "number", "numbers in the model's file"),
        Column(f"last {found.metric}", "number"),
        Column("trained", "number"),
        Column(f"time to {text_of(found.target)}", "number", "at the first report that reached it"),
        Column("sooner", "number", "times sooner than the run that reached it last"),
    ]
    rows = [_row(found, curve) for curve in found.curves]
    return Table(columns, sorted(rows, key=lambda row: (row[5].order is None, row[5].order)))


def _row(found: Efficiency, curve: Curve) -> list[Cell]:
    to_target, ratio = curve.hours_to_target, found.speed_up(curve)
    is_first = ratio is not None and ratio == max(found.speed_up(other) or 0.0 for other in found.curves)
    return [
        Cell(curve.run),
        Cell(curve.objective),
        Cell(whole(curve.num_parameters), curve.num_parameters),
        Cell(significant(curve.values[-1]), curve.values[-1]),
        Cell(_hours(curve.hours[-1]), curve.hours[-1]),
        Cell(_hours(to_target), to_target, mark="best" if is_first else ""),
        Cell(f"{fixed(ratio, 1)} ×" if ratio is not None else fixed(None), ratio),
    ]


def _hours(hours: float | None) -> str:
    return duration(None if hours is None else hours * _SECONDS_PER_HOUR)
