"""What a sweep cost over time, and what the dollars bought."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.cost import Bill
from raysent.report.blocks import (
    Block,
    Facts,
    Figure,
    Note,
    Section,
    counted,
    dollars,
    duration,
    label,
    significant,
)
from raysent.report.figures import ACCENT, BAD, BEST, FAINT, figure, level_line, level_text
from raysent.report.run import Run
from raysent.sweeps import Trial

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
    blocks: list[Block] = [Facts(_facts(run, bill))]
    if len(bill.history) > 1:
        blocks.append(_over_time(run, bill))
    blocks.append(Note(" ".join([_on_demand(bill), NOT_INCLUDED])))
    return Section(key, title, _spent(bill), blocks)


def _spent(bill: Bill) -> str:
    outside = f"{dollars(bill.outside_usd)} of it outside trials: start-up, idle time, evaluation, lost work"
    parts = [f"{dollars(bill.usd)} for {duration(bill.machine_s)} of machine time, {outside}."]
    if bill.num_interruptions:
        parts.append(f"{counted(bill.num_interruptions, 'spot interruption')}.")
    if bill.refunded_usd:
        parts.append(f"{dollars(bill.refunded_usd)} refunded: an interruption in the first hour is free of charge.")
    if bill.lost_usd:
        parts.append(f"Work that was lost in interruptions and repeated cost about {dollars(bill.lost_usd)}.")
    if bill.num_unknown:
        parts.append(f"The work lost before {counted(bill.num_unknown, 'report')} is unknown.")
    if bill.assumed_usd:
        parts.append(f"{dollars(bill.assumed_usd)} is the most that machines of a killed driver can have cost.")
    return " ".join(parts)


def _facts(run: Run, bill: Bill) -> list[tuple[str, str]]:
    facts = [("spent", dollars(bill.usd))]
    budget_usd = _budget_usd(run)
    facts += [("budget", dollars(budget_usd))] if budget_usd is not None else []
    facts += [("lost work", dollars(bill.lost_usd) if not bill.num_unknown else f"≥ {dollars(bill.lost_usd)}")]
    facts += [("on demand", dollars(bill.on_demand_usd))] if bill.on_demand_usd is not None else []
    return facts


def _budget_usd(run: Run) -> float | None:
    return None if run.sweep is None else run.sweep.space.cost.budget_usd


def _on_demand(bill: Bill) -> str:
    if bill.on_demand_usd is None:
        return "On demand: no price, because all machines are your own."
    saved = 100 * (1 - bill.usd / bill.on_demand_usd) if bill.on_demand_usd else 0.0
    compared = f"the bill is {abs(saved):.0f} % {'lower' if saved >= 0 else 'higher'}"
    without = f" (without lost work, about {dollars(bill.on_demand_usd * (1 - _lost(bill)))})" if bill.lost_usd else ""
    return f"On demand, the same machine time would have cost {dollars(bill.on_demand_usd)}{without}: {compared}."


def _lost(bill: Bill) -> float:
    useful = sum(cost.usd for cost in bill.trial_costs)
    return bill.lost_usd / (useful + bill.lost_usd) if bill.lost_usd else 0.0


def _over_time(run: Run, bill: Bill) -> Figure:
    begun = bill.history[0].time
    if run.sweep is not None and run.sweep.record.started:
        begun = min(begun, run.sweep.record.started)
    scale, unit = (3600.0, "hours") if bill.history[-1].time - begun >= 3600 else (60.0, "minutes")
    times = [(point.time - begun) / scale for point in bill.history]
    spent, lost = [point.spent_usd for point in bill.history], [point.lost_usd for point in bill.history]
    step = max(1, len(times) // MAX_POINTS)
    kept = sorted({*range(0, len(times), step), len(times) - 1})
    taken = [place for place, point in enumerate(bill.history) if point.is_interruption]
    traces = [_steps("spent", [(times[at], spent[at]) for at in kept], ACCENT, width=2.5)]
    if lost[-1]:
        traces.append(_steps("lost work", [(times[at], lost[at]) for at in kept], BAD))
    if taken:
        traces.append(_crosses([(times[at], spent[at]) for at in taken]))
    levels = _levels(run, top=max(spent))
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
        shapes=[level_line(usd, color) for usd, _, color in levels],
        annotations=[level_text(usd, text, color) for usd, text, color in levels],
    )


def _levels(run: Run, *, top: float) -> list[tuple[float, str, str]]:
    """Return dollars, text and colour of the budget, unless it is far above the plot."""
    usd = _budget_usd(run)
    return [] if usd is None or usd >= 2 * top else [(usd, f"budget {dollars(usd)}", BEST)]


def _steps(name: str, points: Sequence[tuple[float, float]], color: str, *, width: float = 2.0) -> Any:
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


def score_against_cost(run: Run) -> Section | None:
    """Return each trial's metric against its cost, and the best so far against spending; None if nothing was spent."""
    trials = [trial for trial in run.trials if run.is_comparable(trial) and trial.usd > 0]
    if run.bill is None or not trials:
        return None
    front = pareto_front(run, trials)
    lead = (
        f"A trial is on the Pareto front if no other trial is both cheaper and better in {run.metric}: {len(front)} of "
        f"{len(trials)} trials."
    )
    best_so_far = _best_so_far(run, run.bill)
    figures = [_front(run, trials, front)] + ([_so_far(run, best_so_far)] if len(best_so_far) > 1 else [])
    return Section("score-cost", "Score against cost", lead, figures)


def pareto_front(run: Run, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials for which no other one is as good for less dollars, cheapest first."""
    sign = 1.0 if run.mode == "max" else -1.0

    def order(trial: Trial) -> tuple[float, float]:
        return trial.usd, -sign * (run.value(trial) or 0.0)

    front: list[Trial] = []
    for trial in sorted(trials, key=order):
        if not front or order(trial)[1] < order(front[-1])[1]:
            front.append(trial)
    return front


def _front(run: Run, trials: Sequence[Trial], front: Sequence[Trial]) -> Figure:
    finished = [trial for trial in trials if trial.status == "finished"]
    others = [trial for trial in trials if trial.status != "finished"]
    line = _points(run, front, name="Pareto front", mode="lines+markers", marker={"size": 10, "color": BEST})
    line.update(line={"color": BEST, "width": 1.6, "shape": "hv"})
    powers = _powers_of_ten([trial.usd for trial in trials])
    return figure(
        [
            _points(run, others, name="stopped early", mode="markers", marker={"size": 7, "color": FAINT}),
            _points(run, finished, name="finished", mode="markers", marker={"size": 8, "color": ACCENT}),
            line,
        ],
        height=380,
        label=f"{run.metric} of {len(trials)} trials against their dollars; {len(front)} on the Pareto front.",
        title="trials and the Pareto front",
        caption="Each trial's own dollars, as far as it was trained.",
        is_narrow=True,
        **_axes(run, "US dollars of the trial, log scale"),
        xaxis_type="log",
        xaxis_tickvals=powers,
        xaxis_ticktext=[dollars(power) for power in powers],
        showlegend=True,
    )


def _powers_of_ten(values: Sequence[float]) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)]


def _axes(run: Run, x: str) -> dict[str, Any]:
    return {"xaxis_title_text": x, "xaxis_tickprefix": "$", "yaxis_title_text": label(run.metric)}


def _points(run: Run, trials: Sequence[Trial], **look: Any) -> Any:
    return go.Scatter(
        x=[trial.usd for trial in trials],
        y=[run.value(trial) for trial in trials],
        customdata=[label(run.title(trial.name)) for trial in trials],
        hovertemplate="%{customdata}: %{y:.4g} for $%{x:.4g}<extra></extra>",
        **look,
    )


def _best_so_far(run: Run, bill: Bill) -> list[tuple[float, float]]:
    times = [point.time for point in bill.history]
    reports = sorted(
        (report.time, value)
        for trial in run.trials
        for report in trial.reports
        if report.time is not None and (value := run.value(report)) is not None
    )
    better = max if run.mode == "max" else min
    found: list[tuple[float, float]] = []
    for time, value in reports:
        at = bisect.bisect_right(times, time) - 1
        best = better(value, found[-1][1]) if found else value
        if at >= 0 and (not found or best != found[-1][1]):
            found.append((bill.history[at].spent_usd, best))
    if found:
        found.append((bill.usd, found[-1][1]))
    return found[: MAX_POINTS - 1] + found[-1:] if len(found) > MAX_POINTS else found


def _so_far(run: Run, points: Sequence[tuple[float, float]]) -> Figure:
    line = go.Scatter(
        x=[usd for usd, _ in points],
        y=[best for _, best in points],
        mode="lines",
        line={"color": ACCENT, "width": 2.5, "shape": "hv"},
        hovertemplate="%{y:.4g} when $%{x:.4g} were spent<extra></extra>",
    )
    return figure(
        [line],
        height=380,
        label=f"Best {run.metric} against the dollars of the sweep, {significant(points[-1][1])} at the end.",
        title="best value so far",
        caption="Dollars of all machines. If the line is flat at the end, a smaller budget would have been enough.",
        is_narrow=True,
        **_axes(run, "US dollars of the whole sweep"),
        xaxis_rangemode="tozero",
    )
