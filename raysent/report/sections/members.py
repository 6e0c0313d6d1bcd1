"""What members cost, what each adds, whose errors go together, and which sets of them are worth their price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Block, Cell, Column, Figure, Section, Table, duration, fixed, label
from raysent.report.ensemble_files import Choice, Member
from raysent.report.figures import ACCENT, BEST, FAINT, drawn
from raysent.report.run import Run
from raysent.report.score_files import Ensemble

TIME, SIZE = "encode_ms", "num_bytes"


def section(run: Run) -> Section | None:
    """Return tables of members and the front of score against cost; None where nothing was combined."""
    ensemble = run.ensemble
    if ensemble is None or not ensemble.details.choices:
        return None
    ambiguities = [value for value in ensemble.details.ambiguity.values() if value is not None]
    gain = sum(ambiguities) / len(ambiguities) if ambiguities else None
    lead = (
        f"Because members differ, the pool's NLL is {fixed(gain, 3)} nats below their weighted mean (ambiguity, which "
        "needs no labels). A member whose errors are its own adds more than one whose errors the others share."
    )
    blocks: list[Block] = [_members(run, ensemble)]
    if len(ensemble.members) > 1:
        blocks += [_correlations(run, ensemble), _front(run, ensemble, TIME), _front(run, ensemble, SIZE)]
    return Section("members", "Members: cost and difference", lead, blocks)


def _members(run: Run, ensemble: Ensemble) -> Table:
    columns = [
        Column("member"),
        Column("adds", "number", "points of cross-fitted score lost without it, mean over tasks"),
        Column("ms / 1,000 sentences", "number", "on the machine that judged it"),
        Column("MiB", "number", "of the model's files"),
        Column("training", "number"),
    ]
    rows = [_member(run.title(name), ensemble.details.members[name]) for name in ensemble.members]
    return Table(columns, rows)


def _member(title: str, member: Member) -> list[Cell]:
    return [
        Cell(title),
        Cell(fixed(member.contribution, sign=True), member.contribution),
        Cell(fixed(member.encode_ms, 1), member.encode_ms),
        Cell(fixed(_mebibytes(member.num_bytes), 1), member.num_bytes),
        Cell(duration(member.training_s), member.training_s),
    ]


def _mebibytes(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / 2**20


def _correlations(run: Run, ensemble: Ensemble) -> Table:
    """Return the correlations of members' errors, the mean over tasks."""
    members = range(len(ensemble.members))
    tables = [table for table in ensemble.details.correlations.values() if table]
    means = [[_mean([table[row][column] for table in tables]) for column in members] for row in members]
    titles = [run.title(name) for name in ensemble.members]
    rows = [
        [Cell(titles[row])]
        + [Cell(fixed(means[row][column]), means[row][column], share=_share(means, row, column)) for column in members]
        for row in members
    ]
    columns = [Column("errors of"), *(Column(title, "number") for title in titles)]
    return Table(columns, rows, caption="correlation of members' errors on validation rows, mean over tasks")


def _share(means: Sequence[Sequence[float | None]], row: int, column: int) -> float | None:
    value = means[row][column]
    return None if value is None or row == column else max(value, 0.0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _front(run: Run, ensemble: Ensemble, price: str) -> Figure:
    """Return the plot of score against one price: all sets as dots, the front as a line."""
    choices = [choice for choice in ensemble.details.choices if _paid(choice, price) is not None]
    front = sorted((choice for choice in choices if price in choice.fronts), key=lambda one: _paid(one, price) or 0.0)
    title = {TIME: "milliseconds per 1,000 sentences", SIZE: "MiB of members' files"}[price]
    line = _dots(run, front, price, mode="lines+markers", marker={"size": 10, "color": BEST})
    line.update(line={"color": BEST, "width": 1.6, "shape": "hv"})
    best = front[-1] if front else None
    return drawn(
        [_dots(run, choices, price, mode="markers", marker={"size": 7, "color": ACCENT}), line],
        height=300,
        label=f"Score against {title}; on the front {len(front)} sets, the best {fixed(best.score if best else None)}.",
        title=f"score against {title}",
        caption="sets of members by the base rule, cross-fitted; the line joins those that none equals for less",
        narrow=True,
        xaxis_title_text=title,
        yaxis_title_text="mean validation score",
        yaxis_gridcolor=FAINT,
    )


def _paid(choice: Choice, price: str) -> float | None:
    return choice.encode_ms if price == TIME else _mebibytes(choice.num_bytes)


def _dots(run: Run, choices: Sequence[Choice], price: str, **look: Any) -> Any:
    return go.Scatter(
        x=[_paid(choice, price) for choice in choices],
        y=[choice.score for choice in choices],
        customdata=[label(" + ".join(run.title(name) for name in choice.members)) for choice in choices],
        hovertemplate="%{customdata}: %{y:.2f} for %{x:,.1f}<extra></extra>",
        **look,
    )
