"""Scores of the evaluated models on tasks, and scores that papers report, one table per protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raysent.analysis import ReportedModel, notes_on, reported_for
from raysent.analysis.reported import COSTS, F1
from raysent.evaluation.costs import Costs
from raysent.evaluation.records import MTEB, SIMILARITY, AnyScore
from raysent.report.blocks import DASH, Block, Cell, Column, Note, Section, Table, fixed, hours_cell, whole
from raysent.report.run import Run


def task_scores(run: Run) -> Section:
    """Return a table of models by tasks for each protocol, or the command that evaluates."""
    key, title = "tasks", "Scores on tasks"
    if not run.scores:
        return Section(key, title, blocks=[Note("Not evaluated yet. To evaluate:", f"raysent evaluate {run.folder}")])
    lead = (
        "Test scores of linear probes on frozen sentence vectors, in percent. The best model of each task is "
        "highlighted. Validation scores and intervals are in the tooltips."
    )
    if any(score.f1 is not None for score in run.scores):
        lead += " A second figure after a slash is F1."
    protocols = sorted({score.protocol for score in run.scores})
    return Section(key, title, lead, [_table(run, protocol) for protocol in protocols])


def _table(run: Run, protocol: str) -> Table:
    """Return models by tasks; correlations among percentages are right of the mean, which does not include them."""
    scores = {(score.model, score.task): score for score in run.scores if score.protocol == protocol}
    is_mixed = protocol != SIMILARITY
    correlations = sorted({task for (_, task), score in scores.items() if is_mixed and score.is_correlation})
    tasks = sorted({task for _, task in scores} - set(correlations))
    means = {model: _mean(scores.get((model, task)) for task in tasks) for model in sorted({m for m, _ in scores})}
    best = {task: _best(score.test for (_, name), score in scores.items() if name == task) for _, task in scores}
    best_mean = _best(means.values())
    has_costs = any(run.cost(model) != Costs() for model in means)
    columns = [
        Column("model"),
        *([Column("parameters", "number"), Column("trained", "number", "validation included")] if has_costs else []),
        *(Column(task, "number") for task in tasks),
        *([Column("mean", "number", "over the tasks left of it")] if tasks else []),
        *(Column(f"{task} r", "number", "Pearson's correlation × 100") for task in correlations),
    ]
    rows = [
        [
            Cell(run.title(model)),
            *(_costs(run.cost(model)) if has_costs else []),
            *(_cell(scores.get((model, task)), best[task]) for task in tasks),
            *([Cell(fixed(mean), mean, mark=_mark(mean, best_mean))] if tasks else []),
            *(_cell(scores.get((model, task)), best[task]) for task in correlations),
        ]
        for model, mean in sorted(means.items(), key=lambda item: (item[1] is None, -(item[1] or 0.0)))
    ]
    return Table(columns, rows, _caption(protocol))


def _caption(protocol: str) -> str:
    if protocol == SIMILARITY:
        return "similarity of the vectors, nothing trained: Pearson's correlation with human ratings × 100"
    if protocol == MTEB:
        return "main scores of MTEB's tasks × 100"
    return f"protocol {protocol}"


def _costs(costs: Costs) -> list[Cell]:
    return [Cell(whole(costs.num_parameters), costs.num_parameters), hours_cell(costs.training_hours)]


def _mean(scores: Iterable[AnyScore | None]) -> float | None:
    """Return the mean test score; None if one is missing or there are none."""
    values = [None if score is None else score.test for score in scores]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _best(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mark(value: float | None, best: float | None) -> str:
    return "best" if value is not None and best is not None and value >= best else ""


def _cell(score: AnyScore | None, best: float | None) -> Cell:
    if score is None:
        return Cell(DASH)
    ends = "" if score.interval is None else f", 95 % interval {fixed(score.interval[0])} to {fixed(score.interval[1])}"
    text = fixed(score.test) if score.f1 is None else f"{fixed(score.test)}/{fixed(score.f1)}"
    return Cell(text, score.test, mark=_mark(score.test, best), title=f"validation {fixed(score.validation)}{ends}")


def reported_scores(run: Run) -> Section | None:
    """Return the scores that papers report on the evaluated tasks; None if there are none."""
    models = reported_for(sorted({score.task for score in run.scores}))
    if not models:
        return None
    lead = (
        "Scores as the papers print them: correlations × 100, hours on the hardware of their time. Corpora and "
        "machines differ, and so do protocols of different names, so compare with care."
    )
    protocols = dict.fromkeys(model.protocol for model in models)
    tables: list[Block] = [_reported(name, [model for model in models if model.protocol == name]) for name in protocols]
    notes = [Note(f"{where}: {note}") for where, note in notes_on(models)]
    return Section("reported", "Scores reported in papers", lead, [*tables, *notes])


def _reported(protocol: str, models: Sequence[ReportedModel]) -> Table:
    found = {name for model in models for name in model.figures if not name.endswith(F1)}
    names = [*(name for name in COSTS if name in found), *sorted(found - set(COSTS))]
    columns = [Column("model"), Column("source"), *(Column(name, "number") for name in names)]
    rows = [
        [
            Cell(model.model),
            Cell(model.where),
            *(Cell(model.text_of(name, missing=DASH), model.figures.get(name)) for name in names),
        ]
        for model in sorted(models, key=lambda model: -len(model.figures))
    ]
    return Table(columns, rows, _caption(protocol), is_tall=True)
