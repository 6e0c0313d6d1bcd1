"""Score against the time to encode: members, their ensemble, baselines, and a student of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.ensembles import ENSEMBLE, FrontPoint
from raysent.report.blocks import Block, Cell, Column, Section, Table, fixed, label
from raysent.report.figures import ACCENT, BEST, INK, PALETTE, QUIET, figure, level_line, level_text
from raysent.report.run import Run

# Kind -> its name in the legend, its colour and its symbol.
_LOOKS = {
    "student": ("student", PALETTE[2], "diamond"),
    ENSEMBLE: ("ensemble", BEST, "star"),
    "member": ("members", ACCENT, "circle"),
    "baseline": ("baselines", QUIET, "square"),
}


def against_time(run: Run) -> Section | None:
    """Return scores against milliseconds per 1,000 sentences, and a table; None where no time was measured."""
    timed = [point for point in run.front if point.encode_ms]
    if len(timed) < 2:
        return None
    lead = (
        "Mean test score over tasks against the time to encode 1,000 sentences, warm, on the evaluating machine. An "
        "ensemble takes the time of all its members. No model left of the line is as good as the line."
    )
    blocks: list[Block] = [_plot(run, timed), _table(run)]
    return Section("front", "Score against time to encode", lead, blocks)


def _plot(run: Run, timed: Sequence[FrontPoint]) -> Any:
    front = [point for point in timed if point.is_on_front]
    line = go.Scatter(
        x=[point.encode_ms for point in front],
        y=[point.test for point in front],
        mode="lines",
        line={"color": INK, "width": 1.2, "shape": "hv", "dash": "dot"},
        hoverinfo="skip",
        showlegend=False,
    )
    kinds = [kind for kind in _LOOKS if any(point.kind == kind for point in timed)]
    traces = [_points(run, [point for point in timed if point.kind == kind], kind) for kind in kinds]
    untimed = [point for point in run.front if not point.encode_ms]
    best = max(untimed, key=lambda point: point.test, default=None)
    level: dict[str, Any] = {}
    if best is not None:
        level = {
            "shapes": [level_line(best.test, QUIET)],
            "annotations": [level_text(best.test, label(f"{best.name}, without vectors"), QUIET)],
        }
    named = ", ".join(f"{run.title(one.name)} {fixed(one.test)} at {fixed(one.encode_ms, 1)} ms" for one in front)
    return figure(
        [line, *traces],
        height=380,
        label=f"Score against time to encode; on the front: {named}.",
        xaxis_title_text="milliseconds per 1,000 sentences",
        xaxis_type="log",
        xaxis_dtick="D2",
        yaxis_title_text="mean test score",
        showlegend=True,
        **level,
    )


def _points(run: Run, points: Sequence[FrontPoint], kind: str) -> Any:
    title, color, symbol = _LOOKS[kind]
    return go.Scatter(
        x=[point.encode_ms for point in points],
        y=[point.test for point in points],
        mode="markers",
        name=title,
        marker={"size": 14 if kind == ENSEMBLE else 10, "color": color, "symbol": symbol},
        customdata=[label(f"{run.title(one.name)} ({_ends(one)})") for one in points],
        hovertemplate="%{customdata}: %{y:.2f} at %{x:,.1f} ms<extra></extra>",
    )


def _ends(point: FrontPoint) -> str:
    return f"{fixed(point.interval[0])} to {fixed(point.interval[1])}"


def _table(run: Run) -> Table:
    columns = [
        Column("model"),
        Column("test", "number", "mean over tasks, with its 95 % interval in the tooltip"),
        Column("ms / 1,000 sentences", "number"),
        Column("kind"),
    ]
    rows = [
        [
            Cell(run.title(point.name), mark="best" if point.is_on_front else ""),
            Cell(fixed(point.test), point.test, title=_ends(point)),
            Cell(fixed(point.encode_ms, 1), point.encode_ms),
            Cell(point.kind),
        ]
        for point in run.front
    ]
    return Table(columns, rows, caption="highlighted: no faster model scores as high")
