"""What every evaluated model scores on every task; one table a protocol, since protocols are never mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysent.evaluation.members import Costs
from raysent.evaluation.tasks import TASKS
from raysent.report.blocks import Block, Cell, Column, Note, Section, Table, duration, fixed, whole
from raysent.report.run import Run
from raysent.report.score_files import SIMILARITY, Score

_SECONDS_PER_HOUR = 3600.0
EVALUATE = "raysent evaluate"
CAPTIONS = {SIMILARITY: "the models' own similarity, nothing trained: Pearson's correlation with people's scores × 100"}


def section(run: Run) -> Section:
    """Return the table of scores, or the command that makes them."""
    key, title = "tasks", "Scores on tasks"
    if not run.scores:
        return Section(key, title, blocks=[Note("Not evaluated yet; this does it:", f"{EVALUATE} {run.folder}")])
    protocols = sorted({score.protocol for score in run.scores})
    lead = "Test scores of probes fitted on frozen vectors, in percent; the best of each task is marked."
    return Section(key, title, lead, [_table(run, protocol) for protocol in protocols])


def _table(run: Run, protocol: str) -> Block:
    chosen = {(score.model, score.task): score for score in run.scores if score.protocol == protocol}
    tasks = sorted({task for _, task in chosen}, key=lambda task: (_is_apart(task), task))
    averaged = [task for task in tasks if not _is_apart(task)]
    means = {model: mean_over(chosen, model, averaged) for model in sorted({model for model, _ in chosen})}
    best = {task: _best([score.test for (_, name), score in chosen.items() if name == task]) for task in tasks}
    best_mean = _best(list(means.values()))
    models = sorted(means, key=lambda model: -(means[model] if means[model] is not None else -1e9))  # type: ignore[operator]
    has_costs = any(run.cost(model) != Costs() for model in models)
    columns = [
        Column("model"),
        *([Column("parameters", "number"), Column("trained", "number", "validation included")] if has_costs else []),
        *(Column(task, "number") for task in averaged),
        *([Column("mean", "number", "over the tasks to its left")] if averaged else []),
        *(Column(f"{task} r", "number", "Pearson's correlation × 100") for task in tasks if task not in averaged),
    ]
    rows = [
        [
            Cell(run.title(model)),
            *(_costs(run.cost(model)) if has_costs else []),
            *(_cell(chosen.get((model, task)), best[task]) for task in averaged),
            *([Cell(fixed(means[model]), means[model], mark=_mark(means[model], best_mean))] if averaged else []),
            *(_cell(chosen.get((model, task)), best[task]) for task in tasks if task not in averaged),
        ]
        for model in models
    ]
    return Table(columns, rows, caption=CAPTIONS.get(protocol, f"protocol {protocol}" if protocol else ""))


def _is_apart(task: str) -> bool:
    """Return whether a task's probe is judged by correlation, which has no place in a mean of percentages."""
    known = TASKS.get(task)
    return known is not None and known.scoring == "correlation"


def _costs(costs: Costs) -> list[Cell]:
    """Return the cells of a model's parameters and its time of training."""
    seconds = None if costs.training_hours is None else _SECONDS_PER_HOUR * costs.training_hours
    return [
        Cell(whole(costs.num_parameters), costs.num_parameters),
        Cell(duration(seconds), seconds),
    ]


def mean_over(scores: Mapping[tuple[str, str], Score], model: str, tasks: Sequence[str]) -> float | None:
    """Return a model's mean test score, or None where a task's is missing."""
    values = [scores[model, task].test if (model, task) in scores else None for task in tasks]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _best(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mark(value: float | None, best: float | None) -> str:
    return "best" if value is not None and best is not None and value >= best else ""


def _cell(score: Score | None, best: float | None) -> Cell:
    if score is None:
        return Cell(fixed(None))
    ends = "" if score.interval is None else f", 95 % interval {fixed(score.interval[0])} to {fixed(score.interval[1])}"
    text = fixed(score.test) if score.f1 is None else f"{fixed(score.test)}/{fixed(score.f1)}"
    return Cell(
        text,
        score.test,
        mark=_mark(score.test, best),
        title=f"validation {fixed(score.validation)}{ends}",
    )
