"""`raysent evaluate`, `report`, and what follows a sweep: what is typed, and what is seen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
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
from raysent.evaluation.evaluate import Score, SimilarityScore, evaluate_similarity, expand
from raysent.evaluation.evaluate import evaluate as evaluate_models
from raysent.evaluation.inventory import check_data as check_tasks
from raysent.evaluation.members import Costs, costs_of
from raysent.evaluation.protocols import PROTOCOLS, protocol_name
from raysent.evaluation.records import library_versions
from raysent.evaluation.tasks import absent_tasks, default_tasks, find_task, known_tasks
from raysent.evaluation.tasks.similarity import SIMILARITY_TASKS
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
        ensemble = None if self.combined is None else ensemble_values(self.combined)
        return {"ensemble": ensemble, "judging_stopped": self.stopped, "report": address_of(self.report)}


def task_names(
    tasks: str | None, *, data: Path | None, configured: Sequence[str] | None = None, scored: bool = False
) -> list[str]:
    """Return the tasks to judge on: those named, else those whose files are there; every name is checked.

    Tasks of scored pairs are among the latter only where `scored` says so.

    Raises:
        RaysentError: If a name is unknown, or its files are missing.
    """
    named = configured if tasks is None else [name.strip() for name in tasks.split(",") if name.strip()]
    if named is None:
        return default_tasks(data, scored=scored)
    if tasks is not None and not named:
        raise ConfigError(f"--tasks '{tasks}': must name a task; known: {', '.join(known_tasks())}")
    found = list(dict.fromkeys(find_task(name).name for name in named))
    for name in found:
        task = known_tasks()[name]
        if task.needs_data and (data is None or not task.is_present(data)):
            task.load(data)  # raises, saying what to put where
    return found


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
        if one.status != "whole":
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
    """Judge models and print their scores, and where asked what papers report on the same tasks."""
    full_name = protocol_name(protocol, configuration)
    probed, compared = _divided(tasks)
    names = [] if compared and not probed else task_names(probed, data=data, scored=True)
    output = home(models) / EVALUATION_FOLDER
    with ProgressLines(prefix="judging ", is_quiet=as_json) as progress:
        scores = (
            evaluate_models(
                models,
                output=output,
                tasks=names,
                data_dir=data,
                protocol=full_name,
                progress=progress,
                spread=over.spread(),
            )
            if names
            else []
        )
        similarities = evaluate_similarity(models, output=output, tasks=compared, data_dir=data, progress=progress)
    judged = list(dict.fromkeys([*(score.task for score in scores), *(score.task for score in similarities)]))
    if as_json:
        print_json(
            {
                "protocol": protocol,
                "config": configuration or "default",
                "settings": PROTOCOLS[full_name].settings(),
                "versions": library_versions(),
                "results": [asdict(score) for score in scores],
                "similarity": [asdict(score) for score in similarities],
                **({"reported": reported_values(judged)} if is_reported else {}),
            }
        )
        return 0
    _say_absent(tasks, data)
    if scores:
        _print_scores(scores, {member.name: costs_of(Path(member.path)) for member in expand(models)})
    if similarities:
        results.print()
        _print_similarities(similarities)
    if is_reported:
        print_reported(judged)
    return 0


def _divided(tasks: str | None) -> tuple[str | None, list[str] | None]:
    """Return the named tasks that a probe is trained for, and those whose pairs are compared; None for all at hand."""
    if tasks is None:
        return None, None
    by_plain = {name.lower(): name for name in SIMILARITY_TASKS}
    named = [name.strip() for name in tasks.split(",")]
    compared = [by_plain[name.lower()] for name in named if name.lower() in by_plain]
    probed = [name for name in named if name.lower() not in by_plain]
    return ",".join(probed), list(dict.fromkeys(compared))


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
        with ProgressLines(prefix="judging ", is_quiet=is_quiet) as progress:

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


def _print_scores(scores: Sequence[Score], costs: Mapping[str, Costs]) -> None:
    """Print test scores, a row a model and a column a task; correlations stand behind the mean of accuracies.

    Parameters and hours of training come first, where any model tells them.
    """
    has_costs = any(cost != Costs() for cost in costs.values())
    tasks = list(dict.fromkeys(score.task for score in scores))
    by_model: dict[str, dict[str, Score]] = {}
    for score in scores:
        by_model.setdefault(score.model, {})[score.task] = score
    accuracies = [task for task in tasks if not known_tasks()[task].is_scored]
    correlations = [task for task in tasks if task not in accuracies]
    rows = []
    for model, found in by_model.items():
        mean = [f"{np.mean([found[task].test for task in accuracies]):.2f}"] if accuracies else []
        rows.append(
            (
                model,
                *(_cost_texts(costs[model]) if has_costs else []),
                *(_shown(found[task]) for task in accuracies),
                *mean,
                *(_shown(found[task]) for task in correlations),
            )
        )
    headings = [*accuracies, *(["mean"] if accuracies else []), *(f"{task} r" for task in correlations)]
    told = ["parameters", "hours"] if has_costs else []
    print_table([f"test, protocol {scores[0].protocol}", *told, *headings], rows)


def _cost_texts(costs: Costs) -> list[str]:
    size, hours = costs.num_parameters, costs.training_hours
    return ["–" if size is None else f"{size:,}", "–" if hours is None else f"{hours:.3g}"]


def _shown(score: Score) -> str:
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
        (model, *(_likeness_shown(found[task]) for task in tasks), found[tasks[0]].measure)
        for model, found in by_model.items()
    ]
    print_table(["Pearson x 100, nothing trained", *tasks, "by"], rows)


def _likeness_shown(score: SimilarityScore) -> str:
    measures = score.measures
    return f"{measures['accuracy']:.2f}/{measures['f1']:.2f}" if measures else f"{score.pearson:.2f}"


def _say_absent(tasks: str | None, data: Path | None) -> None:
    """Name the tasks that were left out because their files are not there."""
    if tasks is not None or data is None:
        return
    absent = absent_tasks(data) + [task.name for task in SIMILARITY_TASKS.values() if not task.is_present(data)]
    if absent:
        messages.print(f"not in {data}: {', '.join(absent)}", soft_wrap=True)
