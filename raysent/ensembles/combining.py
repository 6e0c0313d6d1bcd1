"""Models -> an ensemble in a folder of its own: evaluate the members, choose among them, fit, score and save."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from raysent.ensembles.ensemble import Ensemble
from raysent.ensembles.measures import TaskScores, mean_scores
from raysent.ensembles.methods import ANSWER, ENSEMBLE, METHODS, check_method
from raysent.ensembles.result import (
    EnsembleResult,
    MeanOverTasks,
    MemberCost,
    member_cost,
    write_result,
)
from raysent.ensembles.task_ensemble import BASELINES, score_methods, score_model, task_ensemble
from raysent.errors import ConfigError, DataError
from raysent.evaluation.baselines import worth_elsewhere
from raysent.evaluation.bootstrap import mean_estimate
from raysent.evaluation.evaluate import Evaluator, MapJobs
from raysent.evaluation.members import Member, Model, expand, model_folder, model_key, saved_path
from raysent.evaluation.records import Record
from raysent.evaluation.task import Task
from raysent.evaluation.task_kinds import TaskRows
from raysent.models import SentenceModel
from raysent.parallel import Progress
from raysent.progress import messages
from raysent.storage import address_of, open_folder
from raysent.storage.layout import (
    EVALUATION_FOLDER,
    MEMBERS_FOLDER,
    RUN_FILE,
    SWEEP_FILE,
    TRIALS_FOLDER,
)

# In place of a method's name: score every method and keep the one of the best cross-validated score.
ALL = "all"
RUNS = Path("runs")

# Members, best first, and their records [tasks].
Members = Mapping[Member, Sequence[Record]]


def combine(  # noqa: PLR0913 - what to evaluate, and how to combine
    models: Sequence[Model],
    *,
    output: Path,
    tasks: Sequence[str | Task] | None = None,
    data_dir: Path | None = None,
    method: str = "validation",
    top: int | None = None,
    baselines: bool = False,
    pretrained: Sequence[str] = (),
    protocol: str = "fast",
    progress: Progress | None = None,
    map_jobs: MapJobs | None = None,
    lexical_s: float | None = None,
    rows: TaskRows | None = None,
) -> EnsembleResult:
    """Make an ensemble of models, score it and save it.

    Args:
        models: As for `Evaluator.evaluate`. Records in the models' own folders are used.
        output: Folder of the ensemble: gets `ensemble.json`, the members' records in `evaluation/`, and in `members/`
            those members that are in memory. It must not hold a model or a training.
        tasks: Tasks or their names; by default as for `Evaluator.records`.
        data_dir: Folder in SentEval's layout.
        method: A name in `METHODS`; or `all` to score every method and keep the one of the best cross-validated score.
        top: The number of members to keep, by mean validation score over tasks; all by default.
        baselines: Whether to also score the baselines of the members; see `baselines_of`.
        pretrained: Pretrained encoders that are scored beside the members, as arguments of `load`.
        protocol: The evaluation protocol.
        progress: Called with the progress of the evaluation.
        map_jobs: As for `Evaluator`.
        lexical_s: As for `Evaluator`.
        rows: The rows of the tasks, where another evaluator has them.

    Raises:
        ConfigError: If the method, a task, `top` or the folder is invalid, or a model cannot be saved.
        ArtifactError: If members cannot be combined.
    """
    check_method(method, others=[ALL])
    if top is not None and top < 1:
        raise ConfigError(f"top {top}: must be at least 1")
    # Loading it would return the model.
    if model_folder(output) is not None or (output / RUN_FILE).is_file():
        raise ConfigError(
            f"output {address_of(output)}: must be a folder without a model; given the folder of one; name another"
        )
    members = [_saved(member, output) for member in expand(models)]
    evaluator = Evaluator(
        output / EVALUATION_FOLDER,
        data_dir,
        protocol,
        progress=progress,
        map_jobs=map_jobs,
        other_outputs=tuple(_other_outputs(members)),
        divides=True,
        lexical_s=lexical_s,
        goes_on=True,
        rows=rows,
    )
    records = choosable(evaluator.records(members, tasks))
    # The sort is stable: of equal members, the one given first comes first.
    ranked = sorted(
        records,
        key=lambda member: -np.mean([record.validation for record in records[member]]),
    )
    best: Members = {member: records[member] for member in ranked[:top]}
    of_tasks = [list(of_task) for of_task in zip(*best.values(), strict=True)]
    if method == ALL or len(best) < len(ranked):
        _check_choice(of_tasks)
    worth = worth_elsewhere([member.path for member in best])
    methods = [method, ANSWER, *BASELINES]
    if method == ALL:
        methods = list(METHODS)
    scores = [score_methods(of_task, methods, worth=worth) for of_task in of_tasks]
    if method == ALL:
        method = max(
            METHODS,
            key=lambda name: np.mean([of_task[name].cross_fitted.value for of_task in scores]),
        )
    comparisons = _others(evaluator, list(best), tasks, baselines=baselines, pretrained=pretrained)
    ensemble = ensemble_result(
        output,
        best,
        others=comparisons,
        scores=scores,
        method=method,
        costs={member.name: member_cost(member, of_member) for member, of_member in best.items()},
        worth=worth,
    )
    write_result(output, ensemble)
    return ensemble


def choosable(records: Members) -> Members:
    """Return the members that rows can choose; says which learned all rows that would.

    Raises:
        DataError: If there is no other.
    """
    out_of_fold = {
        member: of_member
        for member, of_member in records.items()
        if all(record.about.get("out_of_fold", True) for record in of_member)
    }
    for member in records.keys() - out_of_fold.keys():
        line = f"{member.name} learned every labelled row of a task, so that none can choose it"
        if not out_of_fold:
            raise DataError(f"{line}; name another model beside it")
        messages.print(f"{line}: it is no part of the answer", soft_wrap=True)
    return out_of_fold


def _others(
    evaluator: Evaluator,
    members: Sequence[Member],
    tasks: Sequence[str | Task] | None,
    *,
    baselines: bool,
    pretrained: Sequence[str],
) -> Members:
    """Return the records of what members are compared with; of none where nothing can be fitted, with a line."""
    compared: list[Member] = []
    if baselines:
        compared += evaluator.baselines(members, tasks)
    if pretrained:
        compared += expand(pretrained)
    compared = [member for member in compared if member not in members]
    if not compared:
        return {}
    try:
        return evaluator.records(compared, tasks)
    except DataError as error:
        messages.print(f"warning: the baselines are left out: {error}", soft_wrap=True)
        return {}


def default_folder(models: Sequence[str | Path]) -> Path:
    """Return the folder for an ensemble of models: a sweep's own folder for its trials, else `runs/ensemble-DATE`."""
    if len(models) == 1:
        folder = open_folder(models[0])
        if (folder / SWEEP_FILE).is_file():
            return folder
    return RUNS / f"ensemble-{time.strftime('%Y%m%d-%H%M%S')}"


def _saved(member: Member, output: Path) -> Member:
    """Return a member that can be loaded again; saves one that is in memory, if it can be saved."""
    if member.encoder is None:
        return member
    if isinstance(member.encoder, Ensemble):
        path = member.encoder.folder
    elif isinstance(member.encoder, SentenceModel):
        path = output / MEMBERS_FOLDER / member.folder
        member.encoder.save(path)
    else:
        raise ConfigError(
            f"models: an ensemble needs models that can be loaded again; given a {member.name} in memory; name its "
            "folder or scheme instead, such as hash:50"
        )
    return replace(member, path=str(path), key=model_key(str(path)))


def _other_outputs(members: Sequence[Member]) -> Iterator[Path]:
    """Yield the folders of records that members or their sweeps have."""
    folders: dict[Path, None] = {}
    for member in members:
        path = Path(member.path)
        folders[path] = None
        if path.parent.name == TRIALS_FOLDER:
            folders[path.parent.parent] = None
    for folder in folders:
        if (folder / EVALUATION_FOLDER).is_dir():
            yield folder / EVALUATION_FOLDER


def _check_choice(records: Sequence[Sequence[Record]]) -> None:
    """Refuse a choice by rows that test it: in nested cross-validation every row does both."""
    for first, *_ in records:
        if len(first.folds) > 1:
            raise ConfigError(
                f"protocol {first.protocol}: {first.task} has no test rows under it, so nothing can be chosen by "
                "other rows; use protocol fast, or leave out top and method all"
            )


def ensemble_result(
    folder: Path,
    members: Members,
    *,
    method: str,
    costs: dict[str, MemberCost],
    others: Members | None = None,
    scores: Sequence[Mapping[str, TaskScores]] | None = None,
    worth: Sequence[float] | None = None,
) -> EnsembleResult:
    """Return the ensemble on each task and over all.

    Args:
        folder: The ensemble's folder, which the members' paths are relative to.
        members: The members by falling mean validation score.
        method: The method that makes the ensemble.
        costs: Member -> its cost.
        others: The baselines.
        scores: Of methods on each task [tasks], where they are known.
        worth: What each member is worth on other tables, for methods that lean to it.
    """
    names = [member.name for member in members]
    by_task = [list(of_task) for of_task in zip(*members.values(), strict=True)]
    baselines = {}
    for member, of_member in (others or {}).items():
        baselines[member.name] = [score_model(record) for record in of_member]
    tasks = {}
    for task_index, of_task in enumerate(by_task):
        known_scores: Mapping[str, TaskScores] = {}
        if scores:
            known_scores = scores[task_index]
        tasks[of_task[0].task] = task_ensemble(
            of_task,
            method=method,
            names=names,
            scores=known_scores,
            others={name: of_tasks[task_index] for name, of_tasks in baselines.items()},
            worth=worth,
        )
    # Correlations have no place in a mean of accuracies; they count where all are.
    counted = [task for task in tasks.values() if task.metric != "pearson"] or [*tasks.values()]
    of_all = {name: [task.scores[name] for task in counted] for name in counted[0].scores}
    differences = []
    for of_ensemble, of_best in zip(of_all[ENSEMBLE], of_all[names[0]], strict=True):
        differences.append(of_ensemble.tested.minus(of_best.tested))
    return EnsembleResult(
        paths={member.name: saved_path(member.path, folder) for member in members},
        keys={member.name: member.key for member in members},
        method=method,
        protocol=by_task[0][0].protocol,
        members=tuple(names),
        best_member=names[0],
        baselines=tuple(baselines),
        costs=costs,
        tasks=tasks,
        mean=MeanOverTasks(
            scores={name: mean_scores(of_tasks) for name, of_tasks in of_all.items()},
            difference=mean_estimate(differences),
        ),
    )
