"""The trials of a sweep: leaderboard and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import (
    Cell,
    Column,
    Note,
    Section,
    Table,
    column_kind,
    dollars,
    duration,
    fixed,
    label,
    number,
    percent,
    significant,
    text_of,
    whole,
)
from raysent.report.figures import ACCENT, BEST, QUIET, figure, level_line, level_text, short_names
from raysent.report.run import Run
from raysent.sweeps import Trial
from raysent.sweeps.trial import BROKEN

# More lines than this hide each other, and make the page large.
MAX_LINES = 150


def leaderboard(run: Run) -> Section | None:
    """Return a table of all trials from best to worst, with their searched values; None without trials."""
    if run.sweep is None or not run.trials:
        return None
    short = short_names(run.searched)
    searched = [
        Column(short[name], column_kind([trial.params.get(name) for trial in run.trials]), name)
        for name in run.searched
    ]
    optional = _optional_columns(run)
    columns = [
        Column("trial"),
        Column("status"),
        Column(run.metric, "number", "on the validation set, which is the same for all trials"),
        *(column for column, _ in optional),
        Column("trained", "number", "fraction of a complete training"),
        Column("time", "number", "time spent training"),
        *searched,
    ]
    rows = [_row(run, trial, [cells[trial.name] for _, cells in optional]) for trial in run.ranked]
    lead = "All trials are scored on the same validation set. Select a heading to sort by it."
    if run.sweep.space.limits.seeds > 1:
        lead += " Trials with the same values and different seeds are ranked by their median."
    return Section("leaderboard", "Leaderboard", lead, [Table(columns, rows)])


def _optional_columns(run: Run) -> list[tuple[Column, Mapping[str, Cell]]]:
    ratios = {trial.name: run.chance_ratio(run.value(trial)) for trial in run.trials}
    losses = {trial.name: number(trial.metrics.get("context_nll")) for trial in run.trials}
    sizes = {trial.name: run.cost(trial.name).num_parameters for trial in run.trials}
    found: list[tuple[Column, Mapping[str, Cell]]] = []
    if any(ratio is not None for ratio in ratios.values()):
        column = Column(
            "× chance",
            "number",
            f"{run.metric} divided by its value if all answers are equally likely",
        )
        found.append(
            (column, {name: Cell(fixed(ratio, 1), ratio) for name, ratio in ratios.items()})
        )
    if run.metric == "context_accuracy":
        cells = {name: Cell(significant(loss), loss) for name, loss in losses.items()}
        found.append((Column("context_nll", "number", "nats, lower is better"), cells))
    if any(sizes.values()):
        column = Column(
            "parameters", "number", "numbers in the model's file, word vectors included"
        )
        found.append((column, {name: Cell(whole(size), size) for name, size in sizes.items()}))
    if any(trial.usd for trial in run.trials):
        found.append(
            (Column("cost", "number"), {t.name: Cell(dollars(t.usd), t.usd) for t in run.trials})
        )
    return found


def _row(run: Run, trial: Trial, optional: Sequence[Cell]) -> list[Cell]:
    value, is_best = run.value(trial), run.is_best(trial)
    trained = trial.index / run.num_reports if trial.index else None
    return [
        Cell(trial.name, mark="best" if is_best else "", title="the best trial" if is_best else ""),
        Cell(trial.status, mark=trial.status, title=trial.error or ""),
        Cell(significant(value), value, share=_bar(run, trial)),
        *optional,
        Cell(percent(trained), trained),
        Cell(duration(trial.seconds), trial.seconds),
        *(
            Cell(text_of(trial.params.get(name)), number(trial.params.get(name)))
            for name in run.searched
        ),
    ]


def _bar(run: Run, trial: Trial) -> float | None:
    value = run.value(trial)
    if value is None or not run.highest or run.mode != "max" or trial.status in BROKEN:
        return None
    return min(max(value / run.highest, 0.0), 1.0)


def learning_curves(run: Run) -> Section | None:
    """Return the metric against training progress, one line per trial; None without trials."""
    if run.kind == "evaluation" or run.trains_nothing:
        return None
    trials = [
        trial
        for trial in reversed(run.ranked)
        if any(run.value(report) is not None for report in trial.reports)
    ]
    if not trials:
        return Section("curves", "Learning curves", blocks=[Note("No trial has reported yet.")])
    shown = trials[-MAX_LINES:]
    lead = f"{run.metric} on the validation set against the fraction of a complete training."
    if run.sweep is not None:
        lead += " The thick line is the best trial. Trials that were stopped early, failed or diverged are faded."
    curves = figure(
        [_curve(run, trial) for trial in shown],
        height=420,
        label=f"{run.metric} against training progress, one line for each of {len(shown)} trials.",
        caption=f"the best {len(shown)} of {len(trials)} trials"
        if len(shown) < len(trials)
        else "",
        xaxis_title_text="fraction of training",
        xaxis_tickformat=".0%",
        xaxis_range=[0, 1.02],
        yaxis_title_text=label(run.metric),
        shapes=[] if run.chance is None else [level_line(run.chance, QUIET)],
        annotations=_annotations(run),
    )
    return Section("curves", "Learning curves", lead, [curves])


def _curve(run: Run, trial: Trial) -> Any:
    is_best, is_faded = run.is_best(trial), trial.status == "stopped" or trial.status in BROKEN
    values = [run.value(report) for report in trial.reports]
    return go.Scatter(
        x=[report.index / run.num_reports for report in trial.reports],
        y=values,
        mode="lines+markers" if is_best or len(values) == 1 else "lines",
        line={"color": BEST if is_best else ACCENT, "width": 3 if is_best else 1.5},
        marker={"size": 7 if is_best else 5},
        opacity=1.0 if is_best else 0.3 if is_faded else 0.75,
        name=label(trial.name),
        hovertemplate=f"{label(trial.name)} ({label(trial.status)})<br>%{{x:.0%}}: %{{y:.4g}}<extra></extra>",
    )


def _annotations(run: Run) -> list[dict[str, Any]]:
    chance = run.chance
    notes = (
        [] if chance is None else [level_text(chance, f"chance {significant(chance, 3)}", QUIET)]
    )
    best = run.best
    value = run.value(best.reports[-1]) if best is not None and best.reports else None
    if run.sweep is not None and best is not None and value is not None:
        place = {
            "x": best.index / run.num_reports,
            "y": value,
            "xanchor": "right",
            "yanchor": "bottom",
            "yshift": 6,
        }
        notes.append(
            {
                **place,
                "showarrow": False,
                "text": label(best.name),
                "font": {"color": BEST, "size": 13},
            }
        )
    return notes
