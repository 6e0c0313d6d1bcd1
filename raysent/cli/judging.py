"""`raysent evaluate`, `report`, and what follows a sweep: what is typed, and what is seen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysent.cli.console import ProgressLines, messages, print_json, print_table, results
from raysent.cli.ensembles import ensemble_values, print_ensemble
from raysent.cli.reporting import print_reported, reported_values
from raysent.cli.spreading import Over
from raysent.ensembles import EnsembleResult, combine
from raysent.errors import BudgetError, ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Costs
from raysent.evaluation.protocols import PROTOCOLS, protocol_name
from raysent.evaluation.records import Score, SimilarityScore, library_versions
from raysent.evaluation.tasks import PROBED, TASKS, absent_tasks, resolve_tasks
from raysent.evaluation.tasks import check_data as check_tasks
from raysent.report import write as write_report
from raysent.storage import address_of
from raysent.storage.layout import EVALUATION_FOLDER
from raysent.sweeps import CheckBudget, SweepRecord, SweepResult, trial_folder
from raysent.sweeps.ranking import select_members

ELSEWHERE = Path("runs") / "judged"


@dataclass(frozen=True)
class SweepEvaluation:
    """What was found after a sweep: scores of its members, their ensemble, and the page about it all."""

    combined: EnsembleResult | None
    report: Path
    stopped: str = ""

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        ensemble = None if self.combined is None else ensemble_values(self.combined, self.report.parent)
        return {"ensemble": ensemble, "judging_stopped": self.stopped, "report": address_of(self.report)}


def split_names(tasks: str | None) -> list[str] | None:
    """Return the names that `--tasks` lists; None if the option is absent.

    Raises:
        ConfigError: If it lists none.
    """
    names = None if tasks is None else [name.strip() for name in tasks.split(",") if name.strip()]
    if names == []:
        raise ConfigError(f"--tasks '{tasks}': must name a task; known: {', '.join(TASKS)}")
    return names


def task_names(tasks: str | None, *, data: Path | None, configured: Sequence[str] | None = None) -> list[str]:
    """Return the names of the tasks of an ensemble: those of `--tasks`, else those configured, else the default.

    Raises:
        RaysentError: If a name is unknown, or its files are missing.
    """
    named = split_names(tasks)
    chosen = resolve_tasks(configured if named is None else named, data, scorings=PROBED, default={"accuracy"})
    return [task.name for task in chosen]


def check_data(folder: Path, *, as_json: bool) -> int:
    """Print what a data folder holds of every task."""
    found = check_tasks(folder)
    status = 2 if any(one.status == "wrong" for one in found) else 0
    if as_json:
        print_json({"folder": str(folder), "tasks": [asdict(one) for one in found]})
        return status
    rows = [(one.task, one.status, f"{one.num_rows:,}" if one.num_rows else "") for one in found]
    print_table(["task", "files", "rows"], rows, num_text=2)
    for one in found:
        if one.status != "complete":
            results.print(f"{one.task}: {one.problem}; published at {one.source}", soft_wrap=True)
    return status


def evaluate(
    models: Sequence[str],
    *,
    data: Path | None,
    tasks: str | None,
    protocol: str,
    configuration: str | None,
    is_reported: bool,
    over: Over,
    as_json: bool,
) -> int:
    """Evaluate models and print their scores, and if asked what papers report on the same tasks."""
    full_name = protocol_name(protocol, configuration)
    output = home(models) / EVALUATION_FOLDER
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        evaluator = Evaluator(output, data, full_name, progress=progress, map_jobs=over.map_jobs())
        found = evaluator.evaluate(models, split_names(tasks))
    scores = [score for score in found if isinstance(score, Score)]
    similarities = [score for score in found if isinstance(score, SimilarityScore)]
    evaluated = list(dict.fromkeys([*(score.task for score in scores), *(score.task for score in similarities)]))
    if as_json:
        print_json(
            {
                "protocol": protocol,
                "config": configuration or "default",
                "settings": PROTOCOLS[full_name].settings(),
                "versions": library_versions(),
                "results": [asdict(score) for score in scores],
                "similarity": [asdict(score) for score in similarities],
                **({"reported": reported_values(evaluated)} if is_reported else {}),
            }
        )
        return 0
    if tasks is None and data is not None and (absent := absent_tasks(data)):
        messages.print(f"not in {data}: {', '.join(absent)}", soft_wrap=True)
    if scores:
        _print_scores(scores)
    if similarities:
        results.print()
        _print_similarities(similarities)
    if is_reported:
        print_reported(evaluated)
    return 0


def report(run: Path) -> int:
    """Write a run's page and say where it is."""
    results.print(address_of(write_report(run)), soft_wrap=True)
    return 0


def evaluate_sweep(
    result: SweepResult, record: SweepRecord, *, check_budget: CheckBudget, is_quiet: bool
) -> SweepEvaluation:
    """Evaluate a sweep's best trials, combine them and write its report; where the money ends, what is done is kept."""
    space, options = record.space, record.evaluation or {}
    members = select_members(space, result.trials)
    data = None if options.get("data") is None else Path(options["data"])
    combined, stopped = None, ""
    if members and options.get("tasks") != []:
        with ProgressLines(prefix="evaluating ", is_quiet=is_quiet) as progress:

            def hear(what: str, done: int, of: int) -> None:
                check_budget()
                progress(what, done, of)

            try:
                combined = combine(
                    [trial_folder(result.folder, trial.number) for trial in members],
                    output=result.folder,
                    tasks=options.get("tasks"),
                    data_dir=data,
                    progress=hear,
                )
            except BudgetError as error:
                run = shlex.quote(address_of(result.folder))
                stopped = f"{error}; 'raysent resume {run} --budget …' raises it and goes on"
    return SweepEvaluation(combined, write_report(result.folder), stopped)


def print_judgement(judgement: SweepEvaluation) -> None:
    """Print an ensemble beside its members, and where the page is."""
    if judgement.stopped:
        messages.print(judgement.stopped, soft_wrap=True)
    elif judgement.combined is None:
        messages.print("nothing was evaluated: no trial has a model, or no task is wanted")
    else:
        results.print()
        print_ensemble(judgement.combined)
    results.print(f"\nreport: {address_of(judgement.report)}", soft_wrap=True)


def home(models: Sequence[str]) -> Path:
    """Return the folder that keeps what is found about models: the first that is a folder of its own."""
    folders = [Path(model) for model in models if Path(model).is_dir()]
    return folders[0] if folders else ELSEWHERE


def _print_scores(scores: Sequence[Score]) -> None:
    """Print test scores, a row per model and a column per task; correlations come after the mean of accuracies.

    Parameters and hours of training come first, if any model has them.
    """
    costs = {score.model: score.costs for score in scores}
    has_costs = any(cost != Costs() for cost in costs.values())
    by_model: dict[str, dict[str, Score]] = {}
    for score in scores:
        by_model.setdefault(score.model, {})[score.task] = score
    accuracies = list(dict.fromkeys(score.task for score in scores if not score.is_correlation))
    correlations = list(dict.fromkeys(score.task for score in scores if score.is_correlation))
    rows = []
    for model, found in by_model.items():
        mean = [f"{np.mean([found[task].test for task in accuracies]):.2f}"] if accuracies else []
        rows.append(
            (
                model,
                *(_cost_texts(costs[model]) if has_costs else []),
                *(_score_text(found[task]) for task in accuracies),
                *mean,
                *(_score_text(found[task]) for task in correlations),
            )
        )
    headings = [*accuracies, *(["mean"] if accuracies else []), *(f"{task} r" for task in correlations)]
    cost_headings = ["parameters", "hours"] if has_costs else []
    print_table([f"test, protocol {scores[0].protocol}", *cost_headings, *headings], rows)


def _cost_texts(costs: Costs) -> list[str]:
    size, hours = costs.num_parameters, costs.training_hours
    return ["–" if size is None else f"{size:,}", "–" if hours is None else f"{hours:.3g}"]


def _score_text(score: Score) -> str:
    """Return a score as a table shows it: an F1 stands beside its accuracy."""
    return f"{score.test:.2f}" + (f"/{score.measures['f1']:.2f}" if "f1" in score.measures else "")


def _print_similarities(scores: Sequence[SimilarityScore]) -> None:
    """Print correlations, a row a model and a column a task: the plain mean over a task's sets.

    Of a task whose scores are classes, accuracy and F1 by a threshold are printed instead.
    """
    tasks = list(dict.fromkeys(score.task for score in scores))
    by_model: dict[str, dict[str, SimilarityScore]] = {}
    for score in scores:
        by_model.setdefault(score.model, {})[score.task] = score
    rows = [
        (model, *(_similarity_text(found[task]) for task in tasks), found[tasks[0]].measure)
        for model, found in by_model.items()
    ]
    print_table(["Pearson x 100, nothing trained", *tasks, "by"], rows)


def _similarity_text(score: SimilarityScore) -> str:
    measures = score.measures
    return f"{measures['accuracy']:.2f}/{measures['f1']:.2f}" if measures else f"{score.pearson:.2f}"
