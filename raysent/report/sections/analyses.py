"""The analyses: nearest sentences, score against time, effects of settings, maps, examples and disagreements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from raysent.analysis import Disagreements, Efficiency, Examples, ParameterEffect, Projection
from raysent.analysis.efficiency import Curve
from raysent.analysis.neighbours import Comparison, Neighbour
from raysent.analysis.parameter_effect import SettingGroup
from raysent.analysis.predictions import Disagreement, Example
from raysent.report.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Kind,
    Note,
    Section,
    Table,
    column_kind,
    counted,
    fixed,
    hours_cell,
    label,
    number,
    significant,
    text_of,
    whole,
)
from raysent.report.figures import PALETTE, QUIET, RULE, figure, level_line
from raysent.report.parameters import Parameter, scale_of
from raysent.report.run import Run

_MINUTES_PER_HOUR = 60.0
_DASHES = ("solid", "dash", "dot", "dashdot")
_MEASURES = {"cosine": "cosine similarity, higher is nearer", "hamming": "differing bits, lower is nearer"}
_SIGNIFICANT = 0.05
_MAP_COLORS = "Viridis"
# About square where three maps are side by side.
_MAP_HEIGHT = 400


def nearest_sentences(run: Run) -> Section | None:
    """Return a table per query with a column per model: the last answer of `raysent neighbours`; None without one."""
    found = run.neighbours
    if found is None:
        return None
    lead = (
        f"The nearest of {found.num_sentences:,} sentences of {found.corpus} to "
        f"{counted(len(found.queries), 'query', 'queries')}, by exact search. Equal sentences are shown once."
    )
    tables = [_neighbours(found, query) for query in range(len(found.queries))]
    return Section("neighbours", "Nearest sentences", lead, tables)


def _neighbours(found: Comparison, query: int) -> Table:
    columns = [Column("", "number", "rank")]
    for column in found.columns:
        columns += [Column(column.model), Column(column.measure, "number", _MEASURES[column.measure])]
    answers = [column.neighbours[query] for column in found.columns]
    rows = [
        [Cell(str(rank + 1), rank + 1), *(cell for answer in answers for cell in _neighbour(answer, rank))]
        for rank in range(max(map(len, answers)))
    ]
    return Table(columns, rows, caption=found.queries[query])


def _neighbour(answer: Sequence[Neighbour], rank: int) -> tuple[Cell, Cell]:
    """Return a neighbour's sentence and score; empty cells if fewer were found."""
    if rank >= len(answer):
        return Cell(""), Cell("")
    one = answer[rank]
    text = str(one.score) if isinstance(one.score, int) else fixed(one.score, 4)
    return Cell(one.sentence), Cell(text, one.score)


def efficiency(run: Run) -> Section | None:
    """Return score against training time for several runs; None without such an analysis."""
    found = run.analyses_of(Efficiency)
    if not found:
        return None
    lead = (
        "Score against the wall-clock time of training and validation. The time to a score is that of the first report "
        "that reached it. Compare only runs on the same machine."
    )
    blocks: list[Block] = [block for one in found for block in (_curves(one), _times(one))]
    return Section("efficiency", "Score against training time", lead, blocks)


def _curves(found: Efficiency) -> Figure:
    longest = max(curve.hours[-1] for curve in found.curves)
    scale, unit = (1.0, "hours") if longest >= 1 else (_MINUTES_PER_HOUR, "minutes")
    objectives = list(dict.fromkeys(curve.objective for curve in found.curves))
    of_objective = dict.fromkeys(objectives, 0)
    traces = []
    for curve in found.curves:
        color, dash = objectives.index(curve.objective), of_objective[curve.objective]
        traces.append(_curve(curve, PALETTE[color % len(PALETTE)], _DASHES[dash % len(_DASHES)], scale))
        of_objective[curve.objective] += 1
    return figure(
        traces,
        height=420,
        label=f"{found.metric} against {unit} of training, one line for each of {len(found.curves)} runs.",
        caption="One colour per objective. The horizontal line is the score whose times are compared below.",
        showlegend=True,
        xaxis_title_text=f"{unit} of training",
        xaxis_rangemode="tozero",
        yaxis_title_text=label(found.metric),
        shapes=[level_line(found.target, RULE, dash="solid", width=2)],
    )


def _curve(curve: Curve, color: str, dash: str, scale: float) -> Any:
    name = f"{curve.run} ({curve.objective})" if curve.objective else curve.run
    return go.Scatter(
        x=[hours * scale for hours in curve.hours],
        y=list(curve.values),
        name=label(name),
        mode="lines+markers",
        line={"color": color, "width": 2, "dash": dash},
        marker={"size": 5, "line": {"width": 0, "color": QUIET}},
        hovertemplate="%{y:.4g} at %{x:.3g}<extra>%{fullData.name}</extra>",
    )


def _times(found: Efficiency) -> Table:
    columns = [
        Column("run"),
        Column("objective"),
        Column("parameters", "number", "numbers in the model's file, word vectors included"),
        Column(f"last {found.metric}", "number"),
        Column("trained", "number"),
        Column(f"time to {text_of(found.target)}", "number", "at the first report that reached it"),
        Column("speed-up", "number", "relative to the run that reached it last"),
    ]
    rows = [_time(found, curve) for curve in found.curves]
    return Table(columns, sorted(rows, key=lambda row: (row[5].order is None, row[5].order)))


def _time(found: Efficiency, curve: Curve) -> list[Cell]:
    ratio = found.speed_up(curve)
    is_first = ratio is not None and ratio == max(found.speed_up(other) or 0.0 for other in found.curves)
    return [
        Cell(curve.run),
        Cell(curve.objective),
        Cell(whole(curve.num_parameters), curve.num_parameters),
        Cell(significant(curve.values[-1]), curve.values[-1]),
        hours_cell(curve.hours[-1]),
        hours_cell(curve.hours_to_target, mark="best" if is_first else ""),
        Cell(f"{fixed(ratio, 1)} ×" if ratio is not None else fixed(None), ratio),
    ]


def parameter_effects(run: Run) -> Section | None:
    """Return metrics against settings, with means per value; None without such an analysis."""
    found = run.analyses_of(ParameterEffect)
    if not found:
        return None
    lead = (
        "Points are runs, lines join the means of each value. Whiskers are the standard deviation over the runs of a "
        "value, for example over seeds."
    )
    return Section("settings", "Effect of a setting", lead, [block for one in found for block in _effect(one)])


def _effect(found: ParameterEffect) -> list[Block]:
    groups = found.groups()
    blocks: list[Block] = [_values(found, groups), _groups(found, groups)]
    if found.also_varied:
        blocks.append(Note(f"The runs also differ in {', '.join(found.also_varied)}, which affects the means."))
    return blocks


def _values(found: ParameterEffect, groups: Sequence[SettingGroup]) -> Figure:
    values = tuple(setting.value for setting in found.settings)
    axis = Parameter(found.parameter, scale_of(values), values)
    at = dict(zip(map(text_of, values), axis.coordinates().tolist(), strict=True))
    ticks, texts = axis.ticks()
    traces = []
    for place, series in enumerate(dict.fromkeys(group.series for group in groups)):
        color = PALETTE[place % len(PALETTE)]
        means = [group for group in groups if group.series == series]
        traces += [_runs(found, series, at, color), _means(means, at, color, is_ordered=axis.scale != "category")]
    return figure(
        traces,
        height=380,
        label=f"{found.metric} against {found.parameter} over {len(found.settings)} runs.",
        title=f"{found.metric} against {found.parameter}",
        caption=f"One line per {found.by}." if found.by else "",
        showlegend=bool(found.by),
        xaxis_title_text=label(found.parameter),
        xaxis_tickvals=ticks,
        xaxis_ticktext=[label(text) for text in texts],
        yaxis_title_text=label(found.metric),
    )


def _runs(found: ParameterEffect, series: str, at: Mapping[str, float], color: str) -> Any:
    settings = [setting for setting in found.settings if setting.series == series]
    return go.Scatter(
        x=[at[text_of(setting.value)] for setting in settings],
        y=[setting.score for setting in settings],
        text=[label(setting.run) for setting in settings],
        mode="markers",
        marker={"size": 6, "color": color, "opacity": 0.45},
        showlegend=False,
        hovertemplate="%{text}: %{y:.4g}<extra></extra>",
    )


def _means(groups: Sequence[SettingGroup], at: Mapping[str, float], color: str, *, is_ordered: bool) -> Any:
    """Return the means of a series; a line joins them if the values have an order."""
    return go.Scatter(
        x=[at[text_of(group.value)] for group in groups],
        y=[group.mean for group in groups],
        name=label(groups[0].series),
        mode="lines+markers" if is_ordered else "markers",
        marker={"size": 11, "color": color, "symbol": "line-ew-open", "line": {"width": 2}},
        line={"color": color, "width": 2},
        error_y={"type": "data", "array": [group.spread or 0.0 for group in groups], "color": color, "width": 5},
        customdata=[group.num_runs for group in groups],
        hovertemplate="mean %{y:.4g} of %{customdata}<extra></extra>",
    )


def _groups(found: ParameterEffect, groups: Sequence[SettingGroup]) -> Table:
    best = (max if found.mode == "max" else min)(group.mean for group in groups)
    has_hours = any(group.training_hours is not None for group in groups)
    columns = [
        *([Column(found.by)] if found.by else []),
        Column(found.parameter, column_kind([group.value for group in groups])),
        Column("runs", "number"),
        Column("mean", "number", found.metric),
        Column("std", "number", "standard deviation over runs"),
        Column("parameters", "number", "numbers in the model's file, word vectors included"),
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
            *([hours_cell(group.training_hours)] if has_hours else []),
        ]
        for group in groups
    ]
    return Table(columns, rows)


def maps(run: Run) -> Section | None:
    """Return maps of sentences, coloured by class or human rating; None without such an analysis."""
    found = run.analyses_of(Projection)
    if not found:
        return None
    lead = (
        "Each point is a sentence, or a pair as [u * v ; |u − v|], placed by t-SNE without labels. Points that are "
        "close have similar vectors. Sizes of groups and distances between distant groups have no meaning."
    )
    return Section("maps", "Maps of sentences", lead, [_map(one) for one in found])


def _map(found: Projection) -> Figure:
    shown = f"{len(found.x):,} of {found.num_rows:,} rows" if len(found.x) < found.num_rows else "all rows"
    hidden = {"visible": False, "showgrid": False}
    return figure(
        list(_classes(found)) if found.label_names else [_ratings(found)],
        height=_MAP_HEIGHT,
        label=f"A map of {shown} of {found.task} by the vectors of {found.model}.",
        title=f"{found.task}, {found.model}",
        caption=f"{shown}, perplexity {found.perplexity:g}, seed {found.seed}",
        is_narrow=True,
        xaxis=hidden,
        yaxis={**hidden, "scaleanchor": "x"},
        showlegend=bool(found.label_names),
        legend_itemsizing="constant",
    )


def _classes(found: Projection) -> Iterator[Any]:
    classes = np.array(found.colours).astype(int)
    for place, name in enumerate(found.label_names):
        yield _points(
            found, np.flatnonzero(classes == place), name=label(name), marker={"color": PALETTE[place % len(PALETTE)]}
        )


def _ratings(found: Projection) -> Any:
    ratings = np.array(found.colours)
    bar = {"thickness": 8, "len": 0.5, "outlinewidth": 0, "tickfont": {"size": 11, "color": QUIET}}
    order = np.random.default_rng(0).permutation(len(ratings))  # no rating is on top of all others
    color = {"color": ratings[order].round(2).tolist(), "colorscale": _MAP_COLORS, "showscale": True, "colorbar": bar}
    return _points(found, order, name="", marker=color)


def _points(found: Projection, places: np.ndarray, *, name: str, marker: Mapping[str, Any]) -> Any:
    return go.Scatter(
        x=[found.x[place] for place in places],
        y=[found.y[place] for place in places],
        text=[label(found.texts[place]) for place in places],
        name=name,
        mode="markers",
        marker={"size": 3.5, "opacity": 0.75, **marker},
        hovertemplate="%{text}<extra>" + ("%{marker.color}" if "showscale" in marker else name) + "</extra>",
    )


def examples(run: Run) -> Section | None:
    """Return predictions beside the right values: a sample, and those with the largest error; None without them."""
    found = run.analyses_of(Examples)
    if not found:
        return None
    lead = (
        "Rows of tasks with the right value and the model's prediction: a random sample, then the largest errors. The "
        "error of a rating is the distance in points, that of a class is −log p of the right class in nats."
    )
    tables = [
        _examples(one, rows, title)
        for one in found
        for rows, title in ((one.sample, "a sample"), (one.worst, "the largest errors"))
    ]
    return Section("examples", "Example predictions", lead, tables)


def _examples(found: Examples, rows: Sequence[Example], title: str) -> Table:
    kind = _value_kind(found.unit)
    columns = [
        *_sentence_columns(rows[0].sentences if rows else ("",)),
        Column("right", kind),
        Column("predicted", kind),
        Column("error", "number", f"in {found.unit}"),
    ]
    cells = [
        [
            *map(Cell, row.sentences),
            _value(row.gold, found.unit),
            _value(row.answer, found.unit),
            Cell(fixed(row.error), row.error),
        ]
        for row in rows
    ]
    return Table(columns, cells, caption=f"{found.task}, {found.model}: {title} of {found.num_rows:,} rows")


def _sentence_columns(sentences: Sequence[str]) -> list[Column]:
    return [Column("sentence")] if len(sentences) == 1 else [Column("first sentence"), Column("second sentence")]


def _value_kind(unit: str) -> Kind:
    return "number" if unit == "points" else "text"


def _value(text: str, unit: str, *, mark: str = "") -> Cell:
    return Cell(text, number(text) if unit == "points" else None, mark=mark)


def disagreements(run: Run) -> Section | None:
    """Return the rows on which two models differ most; None without such an analysis."""
    found = run.analyses_of(Disagreements)
    if not found:
        return None
    lead = (
        "Rows on which one model is much better than the other. Of classes, one prediction is right and the other "
        "wrong, sorted by the difference of log p of the right class; of ratings, sorted by the difference of the "
        "errors. The better prediction is highlighted."
    )
    blocks: list[Block] = [block for one in found for block in (_comparison(one), _differences(one))]
    return Section("errors", "Where two models differ", lead, blocks)


def _comparison(found: Disagreements) -> Note:
    first, second = found.models
    verdict = "significant" if found.p_value < _SIGNIFICANT else "not significant"
    return Note(
        f"{found.task}: of {found.num_rows:,} rows, {first} is better on {found.num_first:,} and {second} on "
        f"{found.num_second:,}; the difference is {verdict} (sign test, p = {found.p_value:.2g})."
    )


def _differences(found: Disagreements) -> Table:
    kind = _value_kind(found.unit)
    columns = [
        *_sentence_columns(found.rows[0].sentences if found.rows else ("",)),
        Column("right", kind),
        *(Column(model, kind) for model in found.models),
        Column("difference", "number", f"how much smaller the error of {found.models[0]} is, in {found.unit}"),
    ]
    return Table(columns, [_difference(found, row) for row in found.rows], f"{found.task}, protocol {found.protocol}")


def _difference(found: Disagreements, row: Disagreement) -> list[Cell]:
    answers = ((row.first, row.gap > 0), (row.second, row.gap < 0))
    return [
        *map(Cell, row.sentences),
        _value(row.gold, found.unit),
        *(_value(answer, found.unit, mark="best" if is_better else "") for answer, is_better in answers),
        Cell(fixed(row.gap, sign=True), row.gap),
    ]
