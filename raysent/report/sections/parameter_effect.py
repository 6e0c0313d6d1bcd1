"""A metric against one setting: its mean and spread for each value, one line a series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.analysis import ParameterEffect
from raysent.analysis.parameter_effect import SettingGroup
from raysent.report.blocks import (
    Block,
    Cell,
    Column,
    Note,
    Section,
    Table,
    duration,
    label,
    number,
    significant,
    text_of,
    whole,
)
from raysent.report.figures import PALETTE, drawn
from raysent.report.parameters import Parameter, scale_of
from raysent.report.run import Run

_SECONDS_PER_HOUR = 3600.0


def section(run: Run) -> Section | None:
    """Return the comparisons of settings; None where none was made."""
    found = run.analyses_of(ParameterEffect)
    if not found:
        return None
    lead = (
        "Dots are runs, lines their means for each value; whiskers are one standard deviation of a run, where a value "
        "has several, as by several seeds."
    )
    return Section("settings", "One setting at a time", lead, [block for one in found for block in _blocks(one)])


def _blocks(found: ParameterEffect) -> list[Block]:
    groups = found.groups()
    blocks: list[Block] = [_figure(found, groups), _table(found, groups)]
    if found.also_varied:
        blocks.append(Note(f"The runs also differ in {', '.join(found.also_varied)}; that is mixed into the means."))
    return blocks


def _figure(found: ParameterEffect, groups: Sequence[SettingGroup]) -> Block:
    values = tuple(setting.value for setting in found.settings)
    axis = Parameter(found.parameter, scale_of(values), values)
    at = dict(zip(map(text_of, values), axis.coordinates().tolist(), strict=True))
    ticks, texts = axis.ticks()
    traces = []
    for place, series in enumerate(dict.fromkeys(group.series for group in groups)):
        colour = PALETTE[place % len(PALETTE)]
        traces.append(_runs(found, series, at, colour))
        traces.append(
            _means(
                [group for group in groups if group.series == series], at, colour, is_ordered=axis.scale != "category"
            )
        )
    return drawn(
        traces,
        height=380,
        label=f"{found.metric} against {found.parameter} over {len(found.settings)} runs.",
        title=f"{found.metric} against {found.parameter}",
        caption=f"a line for each {found.by}" if found.by else "",
        showlegend=bool(found.by),
        legend={"orientation": "h", "y": -0.22, "font": {"size": 12}},
        xaxis_title_text=label(found.parameter),
        xaxis_tickvals=ticks,
        xaxis_ticktext=[label(text) for text in texts],
        yaxis_title_text=label(found.metric),
    )


def _runs(found: ParameterEffect, series: str, at: dict[str, float], colour: str) -> Any:
    chosen = [setting for setting in found.settings if setting.series == series]
    return go.Scatter(
        x=[at[text_of(setting.value)] for setting in chosen],
        y=[setting.score for setting in chosen],
        text=[label(setting.run) for setting in chosen],
        mode="markers",
        marker={"size": 6, "color": colour, "opacity": 0.45},
        showlegend=False,
        hovertemplate="%{text}: %{y:.4g}<extra></extra>",
    )


def _means(groups: Sequence[SettingGroup], at: dict[str, float], colour: str, *, is_ordered: bool) -> Any:
    """Return the means of a series; a line joins them where values have an order."""
    return go.Scatter(
        x=[at[text_of(group.value)] for group in groups],
        y=[group.mean for group in groups],
        name=label(groups[0].series),
        mode="lines+markers" if is_ordered else "markers",
        marker={"size": 11, "color": colour, "symbol": "line-ew-open", "line": {"width": 2}},
        line={"color": colour, "width": 2},
        error_y={"type": "data", "array": [group.spread or 0.0 for group in groups], "color": colour, "width": 5},
        customdata=[group.num_runs for group in groups],
        hovertemplate="mean %{y:.4g} of %{customdata}<extra></extra>",
    )


def _table(found: ParameterEffect, groups: Sequence[SettingGroup]) -> Block:
    best = (max if found.mode == "max" else min)(group.mean for group in groups)
    has_hours = any(group.training_hours is not None for group in groups)
    columns = [
        *([Column(found.by)] if found.by else []),
        Column(found.parameter, "number" if all(number(group.value) is not None for group in groups) else "text"),
        Column("runs", "number"),
        Column("mean", "number", found.metric),
        Column("spread", "number", "standard deviation of one run"),
        Column("parameters", "number", "numbers in the model's file"),
        *([Column("trained", "number")] if has_hours else []),
    ]
    rows = [
        [
            *([Cell(group.series)] if found.by else []),
            Cell(text_of(group.value), number(group.value)),
            Cell(str(group.num_runs), group.num_runs),
            Cell(significant(group.mean), group.mean, mark="best" if group.mean == best else ""),
            Cell(significant(group.spread, 2), group.spread),
            Cell(whole(group.num_parameters), group.num_parameters),
            *([_hours(group)] if has_hours else []),
        ]
        for group in groups
    ]
    return Table(columns, rows)


def _hours(group: SettingGroup) -> Cell:
    hours = group.training_hours
    return Cell(duration(None if hours is None else hours * _SECONDS_PER_HOUR), hours)
