"""What the sweep was expected to score before it started, within several limits, and what it scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import DASH, Block, Cell, Column, Figure, Note, Section, Table, dollars, duration, whole
from raysent.report.figures import BEST, PALETTE, figure, level_line, level_text
from raysent.report.run import Run
from raysent.simulation.forecast import Band, Forecast, ForecastCell, show


def expected_score(run: Run) -> Section | None:
    """Return the forecast as a plot and a table, with the outcome; None without a forecast."""
    made = run.forecast
    if made is None:
        return None
    cells = [cell for cell in made.cells if cell.score is not None]
    blocks: list[Block] = [Note(f"{one.sentence[0].upper()}{one.sentence[1:]}.") for one in run.scored_forecast]
    if run.sweep is not None and not blocks:
        blocks.append(Note("The forecast was made for other limits than those of the sweep, so it is not scored."))
    blocks += [_plot(run, made, cells)] if cells else []
    blocks += [_table(made), Note(" ".join(f"{text[0].upper()}{text[1:]}." for text in made.assumptions))]
    lead = (
        f"{made.sentence} From {len(made.pilots)} pilots, which took {duration(made.pilot_s)}, and {made.num_sweeps} "
        "simulated sweeps for each row."
    )
    return Section("forecast", "Forecast", lead, blocks)


def _plot(run: Run, made: Forecast, cells: Sequence[ForecastCell]) -> Figure:
    """Return the expected score against the deadline, one line for each budget and number of machines."""
    groups: dict[tuple[float | None, int], list[ForecastCell]] = {}
    for cell in sorted(cells, key=lambda one: one.deadline_s or one.hours * 3600):
        groups.setdefault((cell.budget_usd, cell.machines), []).append(cell)
    outcome = next(iter(run.scored_forecast), None)
    traces = [_line(group, PALETTE[place % len(PALETTE)]) for place, group in enumerate(groups.values())]
    return figure(
        traces,
        height=380 + 22 * len(groups),
        label=f"Expected {made.what} against the time, with the 10th and 90th percentile.",
        title="expected score",
        caption="Points: expected values. Bars: from the 10th to the 90th percentile.",
        showlegend=len(groups) > 1,
        legend_orientation="v",
        xaxis_title_text="hours",
        xaxis_type="log",
        yaxis_title_text=made.what,
        shapes=[] if outcome is None else [level_line(outcome.outcome, BEST)],
        annotations=[] if outcome is None else [level_text(outcome.outcome, f"outcome {show(outcome.outcome)}", BEST)],
    )


def _line(cells: Sequence[ForecastCell], color: str) -> Any:
    bands = [cell.score for cell in cells if cell.score is not None]
    machines = f"{cells[0].machines} machine" + ("s" if cells[0].machines > 1 else "")
    name = machines if cells[0].budget_usd is None else f"{dollars(cells[0].budget_usd)}, {machines}"
    return go.Scatter(
        x=[(cell.deadline_s or cell.hours * 3600) / 3600 for cell in cells],
        y=[band.expected for band in bands],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [band.p90 - band.expected for band in bands],
            "arrayminus": [band.expected - band.p10 for band in bands],
            "thickness": 1.5,
            "width": 4,
        },
        mode="lines+markers",
        line={"color": color, "width": 2},
        name=name,
        hovertemplate=f"{name}<br>%{{x:.3g}} h: %{{y:.4g}}<extra></extra>",
    )


def _table(made: Forecast) -> Table:
    """Return every cell of the forecast."""
    has_both = any(cell.ensemble is not None for cell in made.cells)
    heads = [*(["ensemble"] if has_both else []), f"best {made.metric}"]
    columns = [
        Column("budget", "number"),
        Column("deadline", "number"),
        Column("machines", "number"),
        Column("trials", "number", "that report, the median"),
        Column("hours", "number", "the mean"),
        Column("bill", "number", "the mean"),
        *(Column(f"{head}, {name}", "number") for head in heads for name in ("P10", "expected", "P90")),
    ]
    rows = [
        [
            Cell(dollars(cell.budget_usd), cell.budget_usd),
            Cell(duration(cell.deadline_s), cell.deadline_s),
            Cell(whole(cell.machines), cell.machines),
            Cell(whole(cell.trials), cell.trials),
            Cell(f"{cell.hours:.2f}", cell.hours),
            Cell(dollars(cell.usd), cell.usd),
            *(_cells(cell.ensemble) if has_both else []),
            *_cells(cell.best),
        ]
        for cell in made.cells
    ]
    return Table(columns, rows, "The first row is the sweep as it was planned.")


def _cells(band: Band | None) -> list[Cell]:
    return [Cell(DASH)] * 3 if band is None else [Cell(show(value), value) for value in band]
