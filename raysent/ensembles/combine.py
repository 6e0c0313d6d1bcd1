"""Models -> an ensemble: judge them, choose members, fit, judge the whole, save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from raysent.ensembles.combined import EnsembleResult
from raysent.ensembles.compatibility import check_compatible
from raysent.ensembles.cost import PRICES, Choice, Cost, best_within, choices, member_cost
from raysent.ensembles.cross_fitting import mean_figure
from raysent.ensembles.methods import METHODS, check_method
from raysent.ensembles.outcomes import RIVALS, Outcome, task_outcome, task_outcomes, validation_answers
from raysent.ensembles.representations import judged_together
from raysent.ensembles.saved import write_ensemble
from raysent.errors import ConfigError
from raysent.evaluation.evaluate import Evaluator, Load, Progress
from raysent.evaluation.members import Member, expand
from raysent.evaluation.records import Record
from raysent.models import load as load_model
from raysent.storage.layout import ENSEMBLE_FILE, EVALUATION_FOLDER

# Stands for every method: all are judged, and the best of them under cross-fitting makes the ensemble.
ALL = "all"


def combine(  # noqa: PLR0913 - what evaluate takes, and the rule
    models: Sequence[str | Path],
    *,
    output: Path,
    tasks: Sequence[str] | None = None,
    data_dir: Path | None = None,
    method: str = "validation",
    top: int | None = None,
    limits: Mapping[str, float | None] | None = None,
    joins_vectors: bool = False,
    protocol: str = "fast",
    load: Load | None = None,
    progress: Progress | None = None,
) -> EnsembleResult:
    """Make an ensemble of models, judge it and save it.

    Args:
        models: As for `Evaluator.evaluate`; records that are there already are not made again.
        output: Folder that gets `ensemble.json`, and `evaluation/` below it.
        tasks: Names of tasks; by default as for `Evaluator.records`.
        data_dir: Folder in SentEval's layout.
        method: A name in `METHODS`; or `all` to judge every method and keep the best under cross-fitting.
        top: Members kept, by mean validation score over the tasks; all by default.
        limits: `--max-ms` and `--max-bytes`: the most that all members together may cost; the best set within.
        joins_vectors: Whether probes on members' joined vectors are judged beside it.
        protocol: How to judge.
        load: Path -> encoder.
        progress: Called with what is being done.

    Raises:
        ConfigError: If the method, a task, `top` or a limit is wrong.
        ArtifactError: If members cannot be mixed.
    """
    check_method(method, others=[ALL])
    _check_numbers(top, limits or {})
    evaluator = Evaluator(output / EVALUATION_FOLDER, data_dir, protocol, load or load_model, progress)
    found = evaluator.records(expand(models), tasks)
    # Ties keep the order in which members were given.
    ranked = sorted(found.items(), key=lambda item: -_mean_validation(item[1]))[:top]
    by_task = [list(of_task) for of_task in zip(*(kept for _, kept in ranked), strict=True)]
    for of_task in by_task:
        check_compatible(of_task)
    costs = [member_cost(member, kept) for member, kept in ranked]
    options = choices([validation_answers(of_task) for of_task in by_task], costs)
    if limits and any(limit is not None for limit in limits.values()):
        best = best_within(options, [member.name for member, _ in ranked], limits)
        places = sorted(best.members)
        ranked, costs = [ranked[place] for place in places], [costs[place] for place in places]
        by_task = [[of_task[place] for place in places] for of_task in by_task]
        options = choices([validation_answers(of_task) for of_task in by_task], costs)
    joined: Mapping[str, Sequence[Outcome]] = {}
    if joins_vectors:
        joined = judged_together(
            [member for member, _ in ranked],
            load=evaluator.load,
            judge=lambda member, encoder: replace(evaluator, load=lambda _: encoder).records([member], tasks)[member],
        )
    return _judged(ranked, by_task, method, (costs, options, joined), output / ENSEMBLE_FILE)


def _judged(
    ranked: Sequence[tuple[Member, list[Record]]],
    by_task: Sequence[Sequence[Record]],
    method: str,
    beside: tuple[Sequence[Cost], Sequence[Choice], Mapping[str, Sequence[Outcome]]],
    path: Path,
) -> EnsembleResult:
    """Fit, judge and save; beside the ensemble stand its costs, other choices of members, and joined vectors."""
    methods = list(METHODS) if method == ALL else [method, *RIVALS]
    judged = [task_outcomes(of_task, methods) for of_task in by_task]
    chosen = _best_method(judged) if method == ALL else method
    outcomes = [
        task_outcome(of_task, method=chosen, outcomes=known) for of_task, known in zip(by_task, judged, strict=True)
    ]
    combined = EnsembleResult(
        members=tuple(member for member, _ in ranked),
        method=chosen,
        protocol=by_task[0][0].protocol,
        tasks=tuple(outcomes),
        costs=tuple(beside[0]),
        choices=tuple(beside[1]),
        difference=mean_figure([task.ensemble.test.minus(task.members[0].test) for task in outcomes]),
        path=path,
        representations=beside[2],
    )
    write_ensemble(combined, by_task)
    return combined


def _best_method(judged: Sequence[Mapping[str, Outcome]]) -> str:
    """Return the method of the highest mean score under cross-fitting, the first of equals."""
    return max(METHODS, key=lambda name: np.mean([outcomes[name].cross_fitted.value for outcomes in judged]))


def _mean_validation(of_member: Sequence[Record]) -> float:
    return float(np.mean([record.validation for record in of_member]))


def _check_numbers(top: int | None, limits: Mapping[str, float | None]) -> None:
    if top is not None and top < 1:
        raise ConfigError(f"--top {top}: must be at least 1")
    for option, limit in limits.items():
        if option not in PRICES:
            raise ConfigError(f"limits: must be of {' or '.join(PRICES)}; given '{option}'")
        if limit is not None and not limit >= 0:
            raise ConfigError(f"{option} {limit:g}: must be at least 0")
