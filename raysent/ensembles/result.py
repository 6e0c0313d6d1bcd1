"""What an ensemble is and what it scores: the contents of `ensemble.json`.

`summarize` makes an `EnsembleResult` of computed scores, `write_result` and `read_result` store it. The models below
have the form of the file, so the two cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pydantic

from raysent.config import StrictModel
from raysent.ensembles.measures import BootstrapEstimate, CalibrationBin, Diversity, mean_estimate
from raysent.ensembles.methods import BY_LOG_LOSS, lexical_method
from raysent.ensembles.subsets import MemberCost, MemberSubset
from raysent.ensembles.task_ensemble import TaskEnsemble, TaskScores
from raysent.errors import ArtifactError
from raysent.evaluation.baselines import below_start, is_baseline
from raysent.evaluation.members import Member, saved_path
from raysent.evaluation.records import Record
from raysent.evaluation.task import Metric
from raysent.models.schemes import is_scheme_name
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import ENSEMBLE_FILE

KIND: Final = "raysent ensemble"
# The name of the method that makes the ensemble, among the names of other methods and of members.
ENSEMBLE = "ensemble"

Interval = tuple[float, float]


def name_with_lexical(members: Sequence[str], lexical: str) -> str:
    """Return the name of the ensemble of members and a lexical model, such as `ensemble + tfidf`."""
    return f"{ENSEMBLE if len(members) > 1 else members[0]} + {lexical}"


class IntervalEstimate(StrictModel):
    """A value and its 95 % bootstrap interval."""

    value: float
    interval: Interval


class MeanScores(StrictModel):
    """Scores of a method, or of a single model, in percent: the means over tasks.

    Attributes:
        validation: Score on the rows it was fitted on.
        cross_fitted: The cross-validated score of the same rows, each predicted out of fold.
        optimism: `validation` minus `cross_fitted`.
        test: Score on test rows.
        interval: 95 % bootstrap interval of `test`.
        measures: Further measures of the test rows by name; see `Measures`.
    """

    validation: float
    cross_fitted: IntervalEstimate
    optimism: float
    test: float
    interval: Interval
    measures: dict[str, IntervalEstimate]


class ScoresOnTask(MeanScores):
    """The same on one task.

    Attributes:
        num_replaced: Outer folds in which method `guarded` is the best member; 0 for any other method.
        reliability: Bins of the calibration error, by rising confidence.
    """

    num_replaced: int
    reliability: tuple[CalibrationBin, ...]


class DiversityOnTask(StrictModel):
    """How the members differ on a task.

    Attributes:
        ambiguity: Nats by which the pool is better than the mean of its members; None if infinite.
        error_correlations: Between members' errors [members][members]; None where undefined.
        contributions: Member -> points of the cross-validated score that are lost without it; empty for one member.
    """

    ambiguity: float | None
    error_correlations: tuple[tuple[float | None, ...], ...]
    contributions: dict[str, float]


class EnsembleOnTask(StrictModel):
    """The ensemble on a task.

    Attributes:
        weights: Member -> how much it counts for new sentences; the sum is 1.
        fold_weights: The same in every outer fold [folds][members].
        is_replaced: Whether the best member predicts new sentences; only method `guarded` replaces its rule.
        diagnostics: What the method reports about its fit.
        diversity: How the members differ.
        scores: Of the ensemble (`ENSEMBLE`), of other methods, of probes on joined vectors, of each member alone, and
            of each baseline.
        combination: What predicts new sentences; see `read_combination`.
        keys: Member -> key of the record that it was fitted on.
        row_hash: Of the task's rows.
        metric: What the scores are.
        label_names: The classes' names [classes].
    """

    weights: dict[str, float]
    fold_weights: tuple[tuple[float, ...], ...]
    is_replaced: bool
    diagnostics: dict[str, float]
    diversity: DiversityOnTask
    scores: dict[str, ScoresOnTask]
    combination: dict[str, Any]
    keys: dict[str, str]
    row_hash: str
    metric: Metric | Literal["pearson"]
    label_names: tuple[str, ...]


class OverBaseline(StrictModel):
    """What training and combining gain over the baseline that is best on validation, in points of test score; paired.

    Attributes:
        baseline: Its name; a member may be one.
        model: The best member that is no baseline; None if all are.
        is_trained: Whether raysent trained it.
        best_model: Its score minus the baseline's.
        ensemble: The ensemble's score minus the baseline's.
        lexical: The lexical baseline that is best on validation; None if there is none, or a member is one.
        lexical_method: How the members are weighted with it; see `lexical_method`.
        with_lexical: Their score minus the baseline's.
    """

    baseline: str
    model: str | None
    is_trained: bool
    best_model: IntervalEstimate | None
    ensemble: IntervalEstimate
    lexical: str | None = None
    lexical_method: str = ""
    with_lexical: IntervalEstimate | None = None

    def sentence(self, title: Callable[[str], str] = str) -> str:
        """Return what is gained in words; `title` returns how a model's name is shown."""
        gains = [f"combining {_gain(self.ensemble)}"]
        if self.model is not None and self.best_model is not None:
            name = title(self.model)
            gains.insert(0, f"{f'training ({name})' if self.is_trained else name} {_gain(self.best_model)}")
        if self.with_lexical is not None:
            gains.append(f"combining with {self.lexical} too (method {self.lexical_method}) {_gain(self.with_lexical)}")
        return f"Against {title(self.baseline)}, the best baseline on validation: {', '.join(gains)}"


def _gain(estimate: IntervalEstimate) -> str:
    """Return a difference in words; a loss has no sign, as the word says it."""
    low, high = estimate.interval
    if high < 0:
        return f"loses {-estimate.value:.2f} points [{-high:.2f}, {-low:.2f}]"
    verb = "gains" if low > 0 else "buys nothing that the interval shows,"
    return f"{verb} {estimate.value:+.2f} points [{low:+.2f}, {high:+.2f}]"


class MeanOverTasks(StrictModel):
    """The ensemble over all tasks.

    Attributes:
        scores: As those of each task.
        difference: The ensemble's test score minus that of the best member, in points; paired.
        over_baseline: Gains over the best baseline; None if no baseline was evaluated.
    """

    scores: dict[str, MeanScores]
    difference: IntervalEstimate
    over_baseline: OverBaseline | None = None


class EnsembleResult(StrictModel):
    """An ensemble and its scores.

    Attributes:
        kind: Identifies the file.
        paths: Member -> its path, relative to the ensemble's folder or absolute; or a scheme's name.
        keys: Member -> key of its content.
        method: The method that makes the ensemble.
        protocol: The protocol that evaluated the members.
        members: Names, by falling mean validation score.
        best_member: The first of them.
        baselines: Names of the baselines that were evaluated beside the members.
        replaced: Tasks on which the best member predicts new sentences; empty unless the method is `guarded`.
        costs: Member -> its cost.
        choices: Subsets of the members, with costs and scores, by rising time to encode.
        tasks: Task -> the ensemble on it.
        mean: Over all tasks.
    """

    kind: Literal["raysent ensemble"] = KIND
    paths: dict[str, str]
    keys: dict[str, str]
    method: str
    protocol: str
    members: tuple[str, ...]
    best_member: str
    baselines: tuple[str, ...] = ()
    replaced: tuple[str, ...]
    costs: dict[str, MemberCost]
    choices: tuple[MemberSubset, ...]
    tasks: dict[str, EnsembleOnTask]
    mean: MeanOverTasks

    def remarks(self) -> list[str]:
        """Return a line for each task whose metric the method cannot fit."""
        if self.method not in BY_LOG_LOSS:
            return []
        return [
            f"{task}: {self.method} fits the log loss, as it cannot fit {found.metric}; scores are {found.metric}"
            for task, found in self.tasks.items()
            if found.metric != "accuracy"
        ]

    def below_start(self) -> dict[str, float]:
        """Return the points that a member loses against itself before training, by name, if it does."""
        lost = below_start({name: score.test for name, score in self.mean.scores.items()})
        return {name: points for name, points in lost.items() if name in self.members}

    def values(self) -> dict[str, Any]:
        """Return what it is worth as plain values, without what only loading needs."""
        needed = {"combination", "keys", "row_hash", "label_names"}
        return self.model_dump(
            mode="json", exclude={"kind": True, "paths": True, "keys": True, "tasks": {"__all__": needed}}
        )


def write_result(folder: Path, result: EnsembleResult) -> Path:
    """Write `ensemble.json` and return its path.

    Raises:
        ArtifactError: If it cannot be written.
    """
    path = folder / ENSEMBLE_FILE
    write_json(path, result.model_dump(mode="json"))
    return path


def read_result(folder: Path) -> EnsembleResult:
    """Read `ensemble.json`.

    Raises:
        ArtifactError: If it is missing, truncated, of another kind, or of another version, or was scored on rows that
            chose its members.
    """
    path = folder / ENSEMBLE_FILE
    try:
        # JSON has lists in place of tuples.
        result = EnsembleResult.model_validate(read_json(path), strict=False)
    except pydantic.ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        about = f" ({where}: {error.errors()[0]['msg']})" if where else ""
        raise ArtifactError(
            f"{address_of(path)}: not an ensemble of this version of raysent{about}; make it again"
        ) from None
    nested = [task for task, found in result.tasks.items() if len(found.fold_weights) > 1]
    if result.protocol == "fast" and nested:
        raise ArtifactError(
            f"{address_of(path)}: an older version scored it on rows of {', '.join(nested)} that may have chosen its "
            "members; make it again"
        )
    return result


def summarize(
    folder: Path,
    *,
    members: Mapping[Member, Sequence[Record]],
    costs: Mapping[str, MemberCost],
    subsets: Sequence[MemberSubset],
    tasks: Sequence[TaskEnsemble],
    joined: Mapping[str, Sequence[TaskScores]],
    baselines: Mapping[str, Sequence[TaskScores]],
    with_lexical: Mapping[str, Sequence[TaskScores]],
) -> EnsembleResult:
    """Return an ensemble and its scores.

    Args:
        folder: The ensemble's folder, which the members' paths are relative to.
        members: The members by falling mean validation score, with the records that it was fitted on [tasks].
        costs: Member -> its cost.
        subsets: Subsets of the members.
        tasks: The ensemble on each task.
        joined: Scores on each task of probes on joined vectors, by name.
        baselines: Scores on each task of baselines, by name.
        with_lexical: The lexical baseline that is best on validation -> scores on each task of the members with it;
            empty where there is none, or a member is one.
    """
    names = tuple(member.name for member in members)
    by_task = list(zip(*members.values(), strict=True))
    scores = {**_scores_by_name(names, tasks, joined), **baselines}
    scores |= {name_with_lexical(names, lexical): found for lexical, found in with_lexical.items()}
    difference = mean_estimate([task.ensemble.test.minus(task.members[0].test) for task in tasks])
    return EnsembleResult(
        paths={member.name: saved_path(member.path, folder) for member in members},
        keys={member.name: member.key for member in members},
        method=tasks[0].method,
        protocol=by_task[0][0].protocol,
        members=names,
        best_member=names[0],
        baselines=tuple(baselines),
        replaced=tuple(task.task for task in tasks if task.is_replaced),
        costs=dict(costs),
        choices=tuple(subsets),
        tasks={
            task.task: _on_task(task, of_task, {name: found[place] for name, found in scores.items()}, names)
            for place, (task, of_task) in enumerate(zip(tasks, by_task, strict=True))
        },
        mean=MeanOverTasks(
            scores={name: MeanScores(**_means(found)) for name, found in scores.items()},
            difference=_interval_estimate(difference),
            over_baseline=_over_baseline(tasks, list(members), baselines, with_lexical) if baselines else None,
        ),
    )


def _over_baseline(
    tasks: Sequence[TaskEnsemble],
    members: Sequence[Member],
    others: Mapping[str, Sequence[TaskScores]],
    with_lexical: Mapping[str, Sequence[TaskScores]],
) -> OverBaseline:
    """Return what is gained over the baseline of the highest mean validation score, members among them."""
    of_members = {one: [task.members[place] for task in tasks] for place, one in enumerate(members)}
    baselines = {**{one.name: found for one, found in of_members.items() if is_baseline(one.path)}, **others}
    best = max(baselines, key=lambda name: float(np.mean([one.validation for one in baselines[name]])))

    def gain(scores: Sequence[TaskScores]) -> IntervalEstimate:
        pairs = zip(scores, baselines[best], strict=True)
        return _interval_estimate(mean_estimate([one.test.minus(other.test) for one, other in pairs]))

    model = next((one for one in members if not is_baseline(one.path)), None)
    return OverBaseline(
        baseline=best,
        model=None if model is None else model.name,
        is_trained=model is not None and not is_scheme_name(model.path),
        best_model=None if model is None else gain(of_members[model]),
        ensemble=gain([task.ensemble for task in tasks]),
        lexical=next(iter(with_lexical), None),
        lexical_method=" or ".join(dict.fromkeys(lexical_method(task.num_fitted) for task in tasks)),
        with_lexical=next((gain(scores) for scores in with_lexical.values()), None),
    )


def _scores_by_name(
    names: Sequence[str], tasks: Sequence[TaskEnsemble], joined: Mapping[str, Sequence[TaskScores]]
) -> dict[str, list[TaskScores]]:
    """Return scores on every task by name: the ensemble, other methods, joined vectors, members."""
    others = [method for method in tasks[0].scores if method != tasks[0].method]
    return {
        ENSEMBLE: [task.ensemble for task in tasks],
        **{method: [task.scores[method] for task in tasks] for method in others},
        **{name: list(scores) for name, scores in joined.items()},
        **{name: [task.members[place] for task in tasks] for place, name in enumerate(names)},
    }


def _on_task(
    task: TaskEnsemble, records: Sequence[Record], scores: Mapping[str, TaskScores], names: Sequence[str]
) -> EnsembleOnTask:
    return EnsembleOnTask(
        weights=dict(zip(names, task.final.weights.tolist(), strict=True)),
        fold_weights=tuple(map(tuple, task.fold_weights.tolist())),
        is_replaced=task.is_replaced,
        diagnostics=dict(task.final.diagnostics),
        diversity=_diversity(task.diversity, names),
        scores={
            name: ScoresOnTask(**_means([found]), num_replaced=found.num_replaced, reliability=found.measures.bins)
            for name, found in scores.items()
        },
        combination=task.final.combination.plain(),
        keys={name: record.key for name, record in zip(names, records, strict=True)},
        row_hash=records[0].row_hash,
        metric="pearson" if records[0].targets.is_scored else records[0].metric,
        label_names=records[0].label_names,
    )


def _means(scores: Sequence[TaskScores]) -> dict[str, Any]:
    """Return the fields of `MeanScores`."""
    test = mean_estimate([one.test for one in scores])
    return {
        "validation": float(np.mean([one.validation for one in scores])),
        "cross_fitted": _interval_estimate(mean_estimate([one.cross_fitted for one in scores])),
        "optimism": float(np.mean([one.optimism for one in scores])),
        "test": test.value,
        "interval": test.interval,
        "measures": {
            name: _interval_estimate(mean_estimate([one.measures.estimates[name] for one in scores]))
            for name in scores[0].measures.estimates
        },
    }


def _interval_estimate(estimate: BootstrapEstimate) -> IntervalEstimate:
    return IntervalEstimate(value=estimate.value, interval=estimate.interval)


def _diversity(diversity: Diversity, names: Sequence[str]) -> DiversityOnTask:
    return DiversityOnTask(
        ambiguity=_finite(diversity.ambiguity),
        error_correlations=tuple(tuple(map(_finite, row)) for row in diversity.error_correlations.tolist()),
        # A single member has none.
        contributions=dict(zip(names, diversity.contributions.tolist(), strict=False)),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
