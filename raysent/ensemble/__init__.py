"""Several encoders as one. In: models or a sweep. Out: per-task weights and scores, and `ensemble.json`.

The base rule: on each task every member fits its own probe, its weight is its validation score over the sum of all
members' scores, and log-probabilities are averaged with these weights. Equal shares and the best single member
are always reported beside it. Importing this module lets `raysent.model.load` read ensembles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysent.artifacts import write_json
from raysent.ensemble.outcomes import RIVALS, Outcome, TaskOutcome, check_mixable, task_outcome
from raysent.ensemble.pooling import METHODS, Weights, check_method, fit, pool
from raysent.ensemble.saved import EVALUATION_FOLDER, KIND, SentenceEnsemble, load_ensemble, relative_path
from raysent.errors import ConfigError
from raysent.evaluate import Load, Member, Progress, Record, records
from raysent.evaluate.members import ENSEMBLE_FILE
from raysent.model import register_loader
from raysent.probes.intervals import Interval, mean_interval

__all__ = [
    "METHODS",
    "Combined",
    "SentenceEnsemble",
    "Weights",
    "check_mixable",
    "combine",
    "fit",
    "load_ensemble",
    "pool",
    "task_outcome",
]

register_loader(ENSEMBLE_FILE, load_ensemble)


@dataclass(frozen=True)
class Combined:
    """An ensemble and what it is worth.

    Attributes:
        members: Its members, the best by mean validation score first.
        method: The rule for the weights.
        protocol: How members were judged.
        tasks: The outcome on each task.
        best_member: Place of the member whose mean validation score over tasks is highest.
        difference: Mean over tasks of the ensemble's test score minus that member's, in points of percent.
        interval: Its paired 95 % bootstrap interval.
        path: The file that was written.
    """

    members: tuple[Member, ...]
    method: str
    protocol: str
    tasks: tuple[TaskOutcome, ...]
    best_member: int
    difference: float
    interval: Interval
    path: Path


def combine(  # noqa: PLR0913 - what evaluate takes, and the rule
    models: Sequence[str | Path],
    *,
    output: Path,
    tasks: Sequence[str] | None = None,
    data_dir: Path | None = None,
    method: str = "validation",
    top: int | None = None,
    protocol: str = "fast",
    load: Load | None = None,
    progress: Progress | None = None,
) -> Combined:
    """Make an ensemble of models, judge it and save it.

    Args:
        models: As for `raysent.evaluate.evaluate`; records that are there already are not made again.
        output: Folder that gets `ensemble.json`, and `evaluation/` below it.
        tasks: Names of tasks; by default as for `evaluate`.
        data_dir: Folder in SentEval's layout.
        method: Rule for the weights, a name in `METHODS`.
        top: Members kept, by mean validation score over the tasks; all by default.
        protocol: How to judge.
        load: Path -> encoder.
        progress: Called with what is being done.

    Raises:
        ConfigError: If the method, a task or `top` is wrong.
        ArtifactError: If members cannot be mixed.
    """
    check_method(method)
    if top is not None and top < 1:
        raise ConfigError(f"--top {top}: must be at least 1")
    found = records(
        models,
        output=output / EVALUATION_FOLDER,
        tasks=tasks,
        data_dir=data_dir,
        protocol=protocol,
        load=load,
        progress=progress,
    )
    # Ties keep the order in which members were given.
    ranked = sorted(found.items(), key=lambda item: -_mean_validation(item[1]))[:top]
    outcomes = [task_outcome(of_task, method=method) for of_task in zip(*(kept for _, kept in ranked), strict=True)]
    gaps = [outcome.ensemble.right.astype(np.int8) - outcome.members[0].right for outcome in outcomes]
    combined = Combined(
        members=tuple(member for member, _ in ranked),
        method=method,
        protocol=protocol,
        tasks=tuple(outcomes),
        best_member=0,
        difference=100 * float(np.mean([gap.mean() for gap in gaps])),
        interval=mean_interval(gaps),
        path=output / ENSEMBLE_FILE,
    )
    write_json(combined.path, _plain(combined, [kept for _, kept in ranked]))
    return combined


def _mean_validation(of_member: Sequence[Record]) -> float:
    return float(np.mean([record.validation for record in of_member]))


def _plain(combined: Combined, kept: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return what `ensemble.json` holds."""
    names = [member.name for member in combined.members]
    difference = {"value": combined.difference, "interval": list(combined.interval)}
    return {
        "kind": KIND,
        "method": combined.method,
        "protocol": combined.protocol,
        "members": names,
        "paths": {m.name: relative_path(m.path, combined.path.parent) for m in combined.members},
        "keys": {member.name: member.key for member in combined.members},
        "best_member": names[combined.best_member],
        "tasks": {
            outcome.task: {
                "weights": dict(zip(names, outcome.weights.tolist(), strict=True)),
                "fold_weights": outcome.fold_weights.tolist(),
                "keys": {name: of_member[index].key for name, of_member in zip(names, kept, strict=True)},
                "row_hash": kept[0][index].row_hash,
                "label_names": list(kept[0][index].label_names),
                "scores": {name: _score([one]) for name, one in _named(outcome, names).items()},
            }
            for index, outcome in enumerate(combined.tasks)
        },
        "mean": {"scores": _mean_scores(combined, names), "difference": difference},
    }


def _named(outcome: TaskOutcome, names: Sequence[str]) -> dict[str, Outcome]:
    """Return every outcome of a task by name: the ensemble, its rivals, its members."""
    members = dict(zip(names, outcome.members, strict=True))
    return {"ensemble": outcome.ensemble, **{rival: outcome.rivals[rival] for rival in RIVALS}, **members}


def _mean_scores(combined: Combined, names: Sequence[str]) -> dict[str, Any]:
    """Return the means over tasks."""
    by_task = [_named(outcome, names) for outcome in combined.tasks]
    return {name: _score([named[name] for named in by_task]) for name in by_task[0]}


def _score(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the mean figures of one way to answer over tasks, with the interval of the test score."""
    return {
        "validation": float(np.mean([outcome.validation for outcome in outcomes])),
        "test": float(np.mean([outcome.test for outcome in outcomes])),
        "interval": list(mean_interval([outcome.right for outcome in outcomes])),
    }
