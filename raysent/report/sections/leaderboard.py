"""All trials from best to worst, with their searched values."""

from __future__ import annotations

from collections.abc import Mapping

from raysent.report.blocks import (
    Cell,
    Column,
    Section,
    Table,
    dollars,
    duration,
    fixed,
    number,
    significant,
    text_of,
    whole,
)
from raysent.report.parameters import short_names
from raysent.report.run import Run, Trial
from raysent.sweeps.trial import BROKEN


def section(run: Run) -> Section | None:
    """Return the leaderboard of a sweep."""
    if not run.is_sweep or not run.trials:
        return None
    has_usd = any(trial.usd for trial in run.trials)
    has_size = any(run.cost(trial.name).num_parameters for trial in run.trials)
    has_ratio = any(run.against_chance(run.value(trial)) is not None for trial in run.trials)
    others = ["context_nll"] if run.metric == "context_accuracy" else []
    short = short_names(run.searched)
    columns = [
        Column("trial"),
        Column("status"),
        Column(run.metric, "number", "on the validation sentences that all trials share"),
        *([Column("× chance", "number", f"{run.metric} over what guessing gives")] if has_ratio else []),
        *(Column(name, "number") for name in others),
        Column("trained", "number", "share of a whole training"),
        Column("time", "number", "seconds of training"),
        *([Column("parameters", "number", "numbers in the model's file")] if has_size else []),
        *([Column("dollars", "number")] if has_usd else []),
        *(Column(short[name], "number" if _is_numeric(run, name) else "text", name) for name in run.searched),
    ]
    shown = {"ratio": has_ratio, "size": has_size, "usd": has_usd}
    rows = [_row(run, trial, others, shown) for trial in run.ranked]
    lead = "Every trial is scored on the same frozen sentences; press a heading to sort by it."
    return Section(key="leaderboard", title="Leaderboard", lead=lead, blocks=[Table(columns, rows)])


def _is_numeric(run: Run, name: str) -> bool:
    values = [trial.params[name] for trial in run.trials if trial.params.get(name) is not None]
    return bool(values) and all(number(value) is not None for value in values)


def _bar(run: Run, trial: Trial) -> float | None:
    """Return the length of the bar behind the metric: of the greatest, where more is better."""
    value = run.value(trial)
    if value is None or not run.highest or run.mode != "max" or trial.status in BROKEN:
        return None
    return min(max(value / run.highest, 0.0), 1.0)


def _row(run: Run, trial: Trial, others: list[str], shown: Mapping[str, bool]) -> list[Cell]:
    """Return a trial's cells; `shown` says which of the columns that not every sweep has are there."""
    value = run.value(trial)
    ratio = run.against_chance(value)
    is_best = run.best is not None and trial.name == run.best.name
    size = run.cost(trial.name).num_parameters
    trained = trial.points[-1].index / run.num_reports if trial.points else None
    return [
        Cell(trial.name, mark="best" if is_best else "", title="the best trial" if is_best else ""),
        Cell(trial.status, mark=trial.status, title=trial.error),
        Cell(significant(value), value, share=_bar(run, trial)),
        *([Cell(fixed(ratio, 1), ratio)] if shown["ratio"] else []),
        *(Cell(significant(trial.metrics.get(name)), trial.metrics.get(name)) for name in others),
        Cell("–" if trained is None else f"{100 * trained:.0f} %", trained),
        Cell(duration(trial.seconds), trial.seconds),
        *([Cell(whole(size), size)] if shown["size"] else []),
        *([Cell(dollars(trial.usd), trial.usd)] if shown["usd"] else []),
        *(Cell(text_of(trial.params.get(name)), number(trial.params.get(name))) for name in run.searched),
    ]
