"""What a sweep cost over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.cost import Bill
from raysent.report.blocks import Block, Facts, Figure, Note, Section, counted, dollars, duration
from raysent.report.figures import ACCENT, BAD, BEST, figure, level_line, level_text
from raysent.report.run import Run

# More points of a line than these cannot be distinguished, and make the page large.
MAX_POINTS = 1000
NOT_INCLUDED = "Not included: storage in buckets, network traffic."


def spending(run: Run) -> Section | None:
    """Return what was spent; one line for a sweep that cost nothing, None without a sweep."""
    if run.sweep is None:
        return None
    key, title, bill = "cost", "Cost", run.bill
    if bill is None:
        text = "This sweep cost nothing, because its machines have no price. cost.usd_per_hour sets one."
        return Section(key, title, blocks=[Note(text)])
    budget_usd = run.sweep.space.cost.budget_usd
    blocks: list[Block] = [Facts(_facts(bill, budget_usd))]
    if len(bill.history) > 1:
        blocks.append(_over_time(bill, budget_usd, started=run.sweep.record.started or math.inf))
    blocks.append(Note(" ".join([_on_demand(bill), NOT_INCLUDED])))
    return Section(key, title, _spent(bill), blocks)


def _spent(bill: Bill) -> str:
    outside = f"{dollars(bill.outside_usd)} of it outside trials: start-up, idle time, evaluation, lost work"
    parts = [f"{dollars(bill.usd)} for {duration(bill.machine_s)} of machine time, {outside}."]
    if bill.num_interruptions:
        parts.append(f"{counted(bill.num_interruptions, 'spot interruption')}.")
    if bill.refunded_usd:
        parts.append(
            f"{dollars(bill.refunded_usd)} refunded: an interruption in the first hour is free of charge."
        )
    if bill.lost_usd:
        parts.append(
            f"Work that was lost in interruptions and repeated cost about {dollars(bill.lost_usd)}."
        )
    if bill.num_unknown:
        parts.append(f"The work lost before {counted(bill.num_unknown, 'report')} is unknown.")
    if bill.assumed_usd:
        parts.append(
            f"{dollars(bill.assumed_usd)} is the most that machines of a killed driver can have cost."
        )
    return " ".join(parts)


def _facts(bill: Bill, budget_usd: float | None) -> list[tuple[str, str]]:
    facts = [("spent", dollars(bill.usd))]
    facts += [("budget", dollars(budget_usd))] if budget_usd is not None else []
    facts += [
        (
            "lost work",
            dollars(bill.lost_usd) if not bill.num_unknown else f"≥ {dollars(bill.lost_usd)}",
        )
    ]
    facts += [("on demand", dollars(bill.on_demand_usd))] if bill.on_demand_usd is not None else []
    return facts


def _on_demand(bill: Bill) -> str:
    if bill.on_demand_usd is None:
        return "On demand: no price, because all machines are your own."
    saved = 100 * (1 - bill.usd / bill.on_demand_usd) if bill.on_demand_usd else 0.0
    compared = f"the bill is {abs(saved):.0f} % {'lower' if saved >= 0 else 'higher'}"
    return f"On demand, the same machine time would have cost {dollars(bill.on_demand_usd)}: {compared}."


def _over_time(bill: Bill, budget_usd: float | None, *, started: float) -> Figure:
    begun = min(bill.history[0].time, started)
    scale, unit = (3600.0, "hours") if bill.history[-1].time - begun >= 3600 else (60.0, "minutes")
    times = [(point.time - begun) / scale for point in bill.history]
    spent, lost = (
        [point.spent_usd for point in bill.history],
        [point.lost_usd for point in bill.history],
    )
    step = max(1, len(times) // MAX_POINTS)
    kept = sorted({*range(0, len(times), step), len(times) - 1})
    taken = [place for place, point in enumerate(bill.history) if point.is_interruption]
    traces = [_steps("spent", [(times[at], spent[at]) for at in kept], ACCENT, width=2.5)]
    if lost[-1]:
        traces.append(_steps("lost work", [(times[at], lost[at]) for at in kept], BAD))
    if taken:
        traces.append(_crosses([(times[at], spent[at]) for at in taken]))
    levels = (
        [] if budget_usd is None or budget_usd >= 2 * max(spent) else [budget_usd]
    )  # else far above the plot
    return figure(
        traces,
        height=380,
        label=f"Dollars spent against {unit}: {dollars(bill.usd)} in total, {dollars(bill.lost_usd)} of it lost work.",
        title="dollars over time",
        caption="Crosses: spot interruptions, some with a refund." if taken else "",
        showlegend=len(traces) > 1,
        xaxis_title_text=f"{unit} since the start, pauses included",
        xaxis_rangemode="tozero",
        yaxis_title_text="US dollars",
        yaxis_tickprefix="$",
        yaxis_rangemode="tozero",
        shapes=[level_line(usd, BEST) for usd in levels],
        annotations=[level_text(usd, f"budget {dollars(usd)}", BEST) for usd in levels],
    )


def _steps(
    name: str, points: Sequence[tuple[float, float]], color: str, *, width: float = 2.0
) -> Any:
    return go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        name=name,
        mode="lines",
        line={"color": color, "width": width, "shape": "hv"},
        hovertemplate=f"{name} $%{{y:.4f}} after %{{x:.3g}}<extra></extra>",
    )


def _crosses(points: Sequence[tuple[float, float]]) -> Any:
    return go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        name="interruption",
        mode="markers",
        marker={"symbol": "x", "size": 9, "color": BAD},
        hovertemplate="interruption after %{x:.3g}<extra></extra>",
    )
