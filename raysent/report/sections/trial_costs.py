"""Where the money went: by trial, and by the way from rung to rung."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.config import get_dotted
from raysent.cost import Bill
from raysent.report.blocks import Cell, Column, Figure, Section, Table, dollars, duration, label, number, whole
from raysent.report.figures import ACCENT, BAD, drawn
from raysent.report.run import Run

# More bars than these are not read.
MAX_BARS = 40


def section(run: Run) -> Section | None:
    """Return bars by trial and a table by rung; None where nothing was spent."""
    bill = run.bill
    if bill is None or not bill.trial_costs:
        return None
    rungs = rungs_of(run)
    lead = (
        "Each bar is a trial, cut where trials are compared; what is dark was spent late. Money in the light parts of "
        "many short bars bought the comparison, money in the dark parts of few bought the models."
    )
    return Section("cost-by-trial", "Cost by trial and rung", lead, [_bars(run, bill, rungs), _table(run, bill, rungs)])


def rungs_of(run: Run) -> list[int]:
    """Return the reports after which trials are compared, the last one included; every report where they are few."""
    last = run.num_reports
    if last <= 4 or get_dotted(run.settings, "space.limits.scheduler.type") == "none":
        step = max(1, -(-last // 4))
        return [*range(step, last, step), last]
    rung = int(number(get_dotted(run.settings, "space.limits.scheduler.grace_reports")) or 1)
    factor = int(number(get_dotted(run.settings, "space.limits.scheduler.reduction_factor")) or 3)
    rungs = []
    while rung < last:
        rungs.append(rung)
        rung *= max(2, factor)
    return [*rungs, last]


def _way(index: int, rungs: Sequence[int]) -> int:
    """Return the place of the rung that a report is on the way to."""
    return next((place for place, rung in enumerate(rungs) if index <= rung), len(rungs) - 1)


def _name(rungs: Sequence[int], place: int) -> str:
    begin = rungs[place - 1] + 1 if place else 1
    return f"report {begin}" if begin == rungs[place] else f"reports {begin} to {rungs[place]}"


def _bars(run: Run, bill: Bill, rungs: Sequence[int]) -> Figure:
    """Return a stacked bar for each of the dearest trials."""
    costs: dict[str, list[float]] = {}
    lost: dict[str, float] = {}
    for share in bill.trial_costs:
        costs.setdefault(share.trial, [0.0] * len(rungs))[_way(share.rung, rungs)] += share.usd
        lost[share.trial] = lost.get(share.trial, 0.0) + (share.lost_usd or 0.0)
    dearest = sorted(costs, key=lambda name: sum(costs[name]) + lost[name])[-MAX_BARS:]
    names = [label(run.title(name)) for name in dearest]
    traces: list[Any] = [
        _bar([costs[name][place] for name in dearest], names, _name(rungs, place), ACCENT, _shade(place, len(rungs)))
        for place in range(len(rungs))
    ]
    if any(lost[name] for name in dearest):
        traces.append(_bar([lost[name] for name in dearest], names, "lost and done again", BAD, 0.85))
    few = f"the {len(dearest)} dearest of {len(costs)} trials; " if len(dearest) < len(costs) else ""
    return drawn(
        traces,
        height=110 + 18 * len(dearest),
        label=f"Bars of dollars, one for each of {len(dearest)} trials, cut at rungs.",
        title="dollars by trial",
        caption=f"{few}time in which no trial trained is in no bar",
        barmode="stack",
        showlegend=True,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "font": {"size": 12}, "traceorder": "normal"},
        xaxis_title_text="US dollars",
        xaxis_tickprefix="$",
        yaxis_type="category",
        yaxis_gridcolor="rgba(0,0,0,0)",
        yaxis_tickfont_size=11,
    )


def _shade(place: int, count: int) -> float:
    return 0.25 + 0.7 * (place / (count - 1) if count > 1 else 1.0)


def _bar(values: Sequence[float], names: Sequence[str], title: str, colour: str, opacity: float) -> Any:
    return go.Bar(
        x=list(values),
        y=list(names),
        name=title,
        orientation="h",
        opacity=opacity,
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate=f"%{{y}}, {title}: $%{{x:.4f}}<extra></extra>",
    )


def _table(run: Run, bill: Bill, rungs: Sequence[int]) -> Table:
    """Return what each way between rungs cost, over all trials."""
    columns = [
        Column("way"),
        Column("trials", "number", "that came to its end"),
        Column("dollars", "number"),
        Column("share", "number", "of what trials' reports cost"),
        Column("a trial", "number", "dollars of the way, the mean over trials that trained on it"),
        Column("time", "number", "of all trials"),
        Column("lost", "number", "dollars for steps that were done again"),
    ]
    total = sum(share.usd for share in bill.trial_costs)
    return Table(columns, [_row(run, bill, rungs, place, total) for place in range(len(rungs))])


def _row(run: Run, bill: Bill, rungs: Sequence[int], place: int, total: float) -> list[Cell]:
    shares = [share for share in bill.trial_costs if _way(share.rung, rungs) == place]
    usd, seconds = sum(share.usd for share in shares), sum(share.seconds for share in shares)
    lost = sum(share.lost_usd or 0.0 for share in shares)
    trained = len({share.trial for share in shares})
    came = sum(any(point.index >= rungs[place] for point in trial.points) for trial in run.trials)
    return [
        Cell(_name(rungs, place), place),
        Cell(whole(came), came),
        Cell(dollars(usd), usd, share=usd / total if total else None),
        Cell(f"{100 * usd / total:.0f} %" if total else "–", usd),
        Cell(dollars(usd / trained) if trained else "–", usd / trained if trained else None),
        Cell(duration(seconds), seconds),
        Cell(dollars(lost), lost),
    ]
