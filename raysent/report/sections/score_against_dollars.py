"""What dollars bought: each trial's score against its cost with the Pareto front, and the best score as money went."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.cost import Bill
from raysent.report.blocks import Block, Cell, Column, Figure, Section, Table, dollars, duration, label, significant
from raysent.report.figures import ACCENT, BEST, FAINT, drawn
from raysent.report.run import Run, Trial
from raysent.sweeps.trial import BROKEN

# The best score as money went is drawn with so many steps at most.
MAX_POINTS = 1000


def section(run: Run) -> Section | None:
    """Return both plots and the front as a table; None where no trial has both a cost and a score."""
    trials = [trial for trial in run.trials if trial.status not in BROKEN and run.value(trial) is not None]
    trials = [trial for trial in trials if (trial.usd or 0.0) > 0]
    if run.bill is None or not trials:
        return None
    front = pareto(run, trials)
    lead = (
        f"A trial is on the front where none is both cheaper and better in {run.metric}: {len(front)} of "
        f"{len(trials)}. Take the cheapest of them that is good enough."
    )
    blocks: list[Block] = [_front_figure(run, trials, front)]
    so_far = _best_so_far(run, run.bill)
    blocks += [_so_far_figure(run, so_far)] if len(so_far) > 1 else []
    return Section("score-cost", "Score against dollars", lead, [*blocks, _table(run, front)])


def pareto(run: Run, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that none equals for less money, cheapest first."""
    sign = 1.0 if run.mode == "max" else -1.0

    def place(trial: Trial) -> tuple[float, float]:
        return trial.usd or 0.0, -sign * (run.value(trial) or 0.0)

    front: list[Trial] = []
    for trial in sorted(trials, key=place):
        if not front or place(trial)[1] < place(front[-1])[1]:
            front.append(trial)
    return front


def _front_figure(run: Run, trials: Sequence[Trial], front: Sequence[Trial]) -> Figure:
    finished = [trial for trial in trials if trial.status == "finished"]
    others = [trial for trial in trials if trial.status != "finished"]
    line = _dots(run, front, name="front", mode="lines+markers", marker={"size": 10, "color": BEST})
    line.update(line={"color": BEST, "width": 1.6, "shape": "hv"})
    powers = [10.0**power for power in range(*_decades([trial.usd or 0.0 for trial in trials]))]
    return drawn(
        [
            _dots(run, others, name="stopped early", mode="markers", marker={"size": 7, "color": FAINT}),
            _dots(run, finished, name="finished", mode="markers", marker={"size": 8, "color": ACCENT}),
            line,
        ],
        height=380,
        label=f"{run.metric} of {len(trials)} trials against their dollars; {len(front)} on the front.",
        title="trials and the Pareto front",
        caption="the dollars are each trial's own, as far as it went",
        narrow=True,
        **_axes(run, "US dollars of the trial, log scale"),
        xaxis_type="log",
        xaxis_tickvals=powers,
        xaxis_ticktext=[dollars(power) for power in powers],
        showlegend=True,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "font": {"size": 12}},
    )


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten that hold all values, the last one exclusive."""
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1


def _axes(run: Run, x: str) -> dict[str, Any]:
    return {"xaxis_title_text": x, "xaxis_tickprefix": "$", "yaxis_title_text": label(run.metric)}


def _dots(run: Run, trials: Sequence[Trial], **look: Any) -> Any:
    return go.Scatter(
        x=[trial.usd for trial in trials],
        y=[run.value(trial) for trial in trials],
        customdata=[label(run.title(trial.name)) for trial in trials],
        hovertemplate="%{customdata}: %{y:.4g} for $%{x:.4g}<extra></extra>",
        **look,
    )


def _best_so_far(run: Run, bill: Bill) -> list[tuple[float, float]]:
    """Return dollars spent by the whole sweep, and the best score that was known by then."""
    times = [moment.time for moment in bill.history]
    points = sorted(
        (point.time, value)
        for trial in run.trials
        for point in trial.points
        if point.time is not None and (value := point.metrics.get(run.metric)) is not None
    )
    better = max if run.mode == "max" else min
    found: list[tuple[float, float]] = []
    for time, value in points:
        at = bisect.bisect_right(times, time) - 1
        best = better(value, found[-1][1]) if found else value
        if at >= 0 and (not found or best != found[-1][1]):
            found.append((bill.history[at].spent_usd, best))
    if found and times:
        found.append((bill.usd, found[-1][1]))
    return found[: MAX_POINTS - 1] + found[-1:] if len(found) > MAX_POINTS else found


def _so_far_figure(run: Run, found: Sequence[tuple[float, float]]) -> Figure:
    line = go.Scatter(
        x=[usd for usd, _ in found],
        y=[best for _, best in found],
        mode="lines",
        line={"color": ACCENT, "width": 2.5, "shape": "hv"},
        hovertemplate="%{y:.4g} when $%{x:.4g} were spent<extra></extra>",
    )
    return drawn(
        [line],
        height=380,
        label=f"Best {run.metric} against the sweep's dollars, {significant(found[-1][1])} in the end.",
        title="the best score as money went",
        caption="all machines' dollars; a long flat end says that less money would have done",
        narrow=True,
        **_axes(run, "US dollars of the whole sweep"),
        xaxis_rangemode="tozero",
    )


def _table(run: Run, front: Sequence[Trial]) -> Table:
    columns = [
        Column("on the front"),
        Column("dollars", "number"),
        Column(run.metric, "number"),
        Column("trained", "number"),
        Column("status"),
    ]
    rows = [
        [
            Cell(run.title(trial.name)),
            Cell(dollars(trial.usd), trial.usd),
            Cell(significant(run.value(trial)), run.value(trial)),
            Cell(duration(trial.seconds), trial.seconds),
            Cell(trial.status, mark=trial.status),
        ]
        for trial in front
    ]
    return Table(columns, rows, is_tall=len(front) > 12)
