"""What a sweep cost: dollars as time went on, what was lost, what it would be on demand, and how the estimate did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.config import get_dotted
from raysent.cost import Bill, parse_money, verdict
from raysent.report.blocks import Block, Facts, Figure, Note, Section, counted, dollars, duration, number
from raysent.report.figures import ACCENT, BAD, BEST, QUIET, drawn
from raysent.report.run import Run

TITLE = "What it cost"
# More points than these on a line are not seen, and make the page heavy.
MAX_POINTS = 2000
NOT_INCLUDED = "Not included: disks, storage, traffic."


def section(run: Run) -> Section | None:
    """Return what was spent; one line for a sweep that cost nothing, None where nothing was swept."""
    if not run.is_sweep:
        return None
    bill = run.bill
    if bill is None:
        text = "This sweep cost nothing: its machines count as free. A price for them is cost.usd_per_hour."
        return Section("cost", TITLE, blocks=[Note(text)])
    blocks: list[Block] = [Facts(_facts(run, bill))]
    if len(bill.history) > 1:
        blocks.append(_over_time(run, bill))
    blocks.append(Note(" ".join(text for text in (_on_demand(bill), _estimate(run, bill), NOT_INCLUDED) if text)))
    return Section("cost", TITLE, _lead(bill), blocks)


def _lead(bill: Bill) -> str:
    """Say what was spent on what."""
    outside = f"{dollars(bill.outside_usd)} of it outside trials' reports: starting, waiting, judging, lost work"
    parts = [f"{dollars(bill.usd)} for {duration(bill.machine_s)} of machines, {outside}."]
    if bill.num_interruptions:
        parts.append(f"{counted(bill.num_interruptions, 'machine')} taken back by the owner.")
    if bill.refunded_usd:
        parts.append(f"{dollars(bill.refunded_usd)} came back: a machine taken in its first hour is free.")
    if bill.lost_usd:
        parts.append(f"Work that was lost with machines and done again cost about {dollars(bill.lost_usd)}.")
    if bill.num_unknown:
        parts.append(f"What was lost before {counted(bill.num_unknown, 'report')} is not known.")
    if bill.assumed_usd:
        parts.append(f"{dollars(bill.assumed_usd)} is assumed, at worst, for machines that a killed driver left.")
    return " ".join(parts)


def _facts(run: Run, bill: Bill) -> list[tuple[str, str]]:
    limit = _limit(run)
    facts = [("spent", dollars(bill.usd))]
    facts += [("of a budget of", dollars(limit))] if limit else []
    facts += [("lost work", dollars(bill.lost_usd) if not bill.num_unknown else f"≥ {dollars(bill.lost_usd)}")]
    facts += [("on demand", dollars(bill.on_demand_usd))] if bill.on_demand_usd is not None else []
    return facts


def _limit(run: Run) -> float | None:
    given = get_dotted(run.settings, "space.cost.budget")
    return None if given is None else parse_money(given)


def _on_demand(bill: Bill) -> str:
    """Say what the same machine hours would have cost on demand."""
    if bill.on_demand_usd is None:
        return "On demand: all machines were one's own, so there is no other price to hold theirs against."
    saved = 100 * (1 - bill.usd / bill.on_demand_usd) if bill.on_demand_usd else 0.0
    words = f"{abs(saved):.0f} % {'less' if saved >= 0 else 'more'}"
    again = f"; without lost work, about {dollars(bill.on_demand_usd * (1 - _lost_share(bill)))}" * bool(bill.lost_usd)
    return f"On demand the same machine hours would have cost {dollars(bill.on_demand_usd)}{again}; this is {words}."


def _lost_share(bill: Bill) -> float:
    """Return the share of trials' machine time that was done again."""
    useful = sum(share.usd for share in bill.trial_costs)
    return bill.lost_usd / (useful + bill.lost_usd) if bill.lost_usd else 0.0


def _estimate(run: Run, bill: Bill) -> str:
    """Say what was expected before the launch, and where the bill lies."""
    told = {name: value for name in ("p10", "p50", "p90") if (value := number(run.estimate.get(name))) is not None}
    if len(told) < 3:
        return "No estimate was kept from before the launch."
    range_ = f"{dollars(told['p10'])} to {dollars(told['p90'])} (P10 to P90), median {dollars(told['p50'])}"
    times = f", {bill.usd / told['p50']:.2f} times the median" if told["p50"] > 0 else ""
    return f"Before the launch it was put at {range_}: the bill is {verdict(told, spent_usd=bill.usd)}{times}."


def _over_time(run: Run, bill: Bill) -> Figure:
    """Return dollars against hours, with interruptions on the line and lost work below it."""
    begun = min(bill.history[0].time, number(run.settings.get("started")) or bill.history[0].time)
    scale, unit = (3600.0, "hours") if bill.history[-1].time - begun >= 3600 else (60.0, "minutes")
    hours = [(moment.time - begun) / scale for moment in bill.history]
    every = max(1, len(hours) // MAX_POINTS)
    kept = sorted({*range(0, len(hours), every), len(hours) - 1})
    spent = [moment.spent_usd for moment in bill.history]
    lost = [moment.lost_usd for moment in bill.history]
    taken = [place for place, moment in enumerate(bill.history) if moment.is_interruption]
    traces: list[Any] = [
        _line([hours[at] for at in kept], [spent[at] for at in kept], "spent", color=ACCENT, width=2.5),
        *([_line([hours[at] for at in kept], [lost[at] for at in kept], "lost work", color=BAD)] if lost[-1] else []),
        *([_marks([hours[at] for at in taken], [spent[at] for at in taken])] if taken else []),
    ]
    limit = _limit(run)
    expected = number(run.estimate.get("p50"))
    top = max(spent)
    lines = [(limit, f"budget {dollars(limit)}", BEST)] if limit and limit < 2 * top else []
    lines += [(expected, f"expected {dollars(expected)}", QUIET)] if expected and expected < 2 * top else []
    return drawn(
        traces,
        height=380,
        label=f"Dollars spent against {unit}: {dollars(bill.usd)} in all, {dollars(bill.lost_usd)} of it lost work.",
        title="dollars as time went on",
        caption="crosses: machines taken back by their owner, some of them with a refund" if taken else "",
        showlegend=len(traces) > 1,
        legend={"orientation": "h", "y": 1.08, "font": {"size": 12}},
        xaxis_title_text=f"{unit} since the beginning, pauses included",
        xaxis_rangemode="tozero",
        yaxis_title_text="US dollars",
        yaxis_tickprefix="$",
        yaxis_rangemode="tozero",
        shapes=[_level(value, colour) for value, _, colour in lines],
        annotations=[_name(value, text, colour) for value, text, colour in lines],
    )


def _line(x: Sequence[float], y: Sequence[float], name: str, *, color: str, width: float = 2.0) -> Any:
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=name,
        mode="lines",
        line={"color": color, "width": width, "shape": "hv"},
        hovertemplate=f"{name} $%{{y:.4f}} after %{{x:.3g}}<extra></extra>",
    )


def _marks(x: Sequence[float], y: Sequence[float]) -> Any:
    return go.Scatter(
        x=list(x),
        y=list(y),
        name="machine taken back",
        mode="markers",
        marker={"symbol": "x", "size": 9, "color": BAD},
        hovertemplate="machine taken back after %{x:.3g}<extra></extra>",
    )


def _level(value: float | None, colour: str) -> dict[str, Any]:
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": value, "y1": value}
    return {"type": "line", **ends, "line": {"color": colour, "dash": "dot", "width": 1.5}}


def _name(value: float | None, text: str, colour: str) -> dict[str, Any]:
    place = {"x": 0.01, "xref": "paper", "xanchor": "left", "y": value, "yanchor": "bottom"}
    return {**place, "showarrow": False, "text": text, "font": {"color": colour, "size": 12}}
