"""Members' records of one task -> an ensemble on that task, scored beside other methods and each member alone.

Members can be combined only if their log-probabilities mean the same: same task, protocol, classes, rows and folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from raysent.ensembles.calibration import Calibration, calibrate, calibrated_reliability
from raysent.ensembles.cross_fitting import CrossFitted, cross_fit, held_out
from raysent.ensembles.measures import Diversity, TaskScores, contributions, measure
from raysent.ensembles.methods import ANSWER, ENSEMBLE
from raysent.ensembles.predictions import MemberPredictions
from raysent.errors import ArtifactError
from raysent.evaluation.bootstrap import Resamples, mean_estimate
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.records import Record
from raysent.evaluation.targets import Int64, Targets
from raysent.evaluation.task import Metric

# Methods that are scored beside every other one: the base rule as published first.
BASELINES = ("validation", "uniform", "best")
# Attributes that must be equal, in the order of checking, and their names in messages.
_EQUAL = {
    "task": "task",
    "metric": "metric",
    "protocol": "protocol",
    "label_names": "classes",
    "row_hash": "rows",
    "kind": "kind of row",
}


@dataclass(frozen=True, kw_only=True)
class TaskEnsemble:
    """An ensemble on a task.

    Attributes:
        weights: Member -> how much it counts for new sentences; the sum is 1.
        fold_weights: The same in every outer fold [folds][members].
        diagnostics: What the method reports about its fit.
        diversity: How the members differ.
        scores: Of the ensemble (`ENSEMBLE`), of other methods, of each member alone, and of each baseline.
        combination: What predicts new sentences, fitted on every row with a validation prediction; see
            `read_combination`.
        keys: Member -> key of the record that it was fitted on.
        row_hash: Of the task's rows.
        metric: What the scores are.
        label_names: The classes' names [classes].
        calibration: What makes probabilities true, and thresholds; None for ratings, and in files of earlier versions.
        learned: Members that were trained on labels of the task's training rows.
    """

    weights: Mapping[str, float]
    fold_weights: tuple[tuple[float, ...], ...]
    diagnostics: Mapping[str, float]
    diversity: Diversity
    scores: Mapping[str, TaskScores]
    combination: Mapping[str, Any]
    keys: Mapping[str, str]
    row_hash: str
    metric: Metric | Literal["pearson"]
    label_names: tuple[str, ...]
    calibration: Calibration | None = None
    learned: tuple[str, ...] = ()

    def is_learned(self, name: str) -> bool:
        """Return whether a score is of a model that was trained on the task's labels, or of a combination with one."""
        if name in self.learned:
            return True
        is_combination = name in (ENSEMBLE, ANSWER, *BASELINES)
        return is_combination and len(self.learned) > 0


def task_ensemble(
    records: Sequence[Record],
    *,
    method: str,
    names: Sequence[str] = (),
    scores: Mapping[str, TaskScores] | None = None,
    others: Mapping[str, TaskScores] | None = None,
    worth: Sequence[float] | None = None,
) -> TaskEnsemble:
    """Return the ensemble of members on one task.

    Args:
        records: The members' records of the task, in the members' order.
        method: A name in `METHODS`.
        names: The members' names; by default those in their records.
        scores: Of other methods on the same records, if known, and of what else stands before the members.
        others: Scores of what stands after the members, such as baselines.
        worth: What each member is worth on other tables, for methods that lean to it; see `worth_elsewhere`.

    Raises:
        ArtifactError: If the records cannot be combined.
        ConfigError: If the method is unknown.
    """
    records = compatible(records)
    names = names or [record.model for record in records]
    folds = fitted_folds(records, method=method, worth=worth)
    by_method = {method: score_folds(records, folds), **(scores or {})}
    unscored = [baseline for baseline in BASELINES if baseline not in by_method]
    by_method |= score_methods(records, unscored)
    all_scores = {ENSEMBLE: by_method.pop(method), **by_method}
    keys = {}
    learned = []
    for name, record in zip(names, records, strict=True):
        all_scores[name] = score_model(record)
        keys[name] = record.key
        if record.score.learned:
            learned.append(name)
    predictions, targets = _validation_predictions(records, worth=worth)
    final = cross_fit(predictions, targets, method=method)
    metric: Metric | Literal["pearson"] = "pearson"
    calibration = None
    if not targets.is_scored:
        metric = records[0].metric
        bins = calibrated_reliability(records, folds)
        calibration = calibrate(final.held_out, targets, bins)
    return TaskEnsemble(
        weights=dict(zip(names, final.fitted.weights.tolist(), strict=True)),
        fold_weights=tuple(tuple(fold.fitted.weights.tolist()) for fold in folds),
        diagnostics=dict(final.fitted.diagnostics),
        diversity=Diversity(contributions(predictions, targets, method=method, names=names)),
        scores={**all_scores, **(others or {})},
        learned=tuple(learned),
        combination=final.fitted.combination.plain(),
        keys=keys,
        row_hash=records[0].row_hash,
        metric=metric,
        label_names=records[0].label_names,
        calibration=calibration,
    )


def calibration_of(records: Sequence[Record], *, method: str) -> Calibration | None:
    """Return the calibration of members' records on one task, of a method; None for ratings."""
    predictions, targets = _validation_predictions(compatible(records))
    if targets.is_scored:
        return None
    return calibrate(held_out(predictions, targets, method=method), targets)


def score_methods(
    records: Sequence[Record],
    methods: Sequence[str],
    *,
    worth: Sequence[float] | None = None,
) -> dict[str, TaskScores]:
    """Return the scores of each method on one task.

    In every outer fold, a method is fitted on the fold's validation rows and then scored on its test rows.

    Args:
        records: The members' records of the task, in the members' order.
        methods: Names in `METHODS`.
        worth: As for `task_ensemble`.

    Raises:
        ArtifactError: If the records cannot be combined.
        ConfigError: If a method is unknown.
    """
    records = compatible(records)
    scores = {}
    for method in dict.fromkeys(methods):
        fitted = fitted_folds(records, method=method, worth=worth)
        scores[method] = score_folds(records, fitted)
    return scores


def score_model(record: Record) -> TaskScores:
    """Return the scores of one model alone."""
    return score_folds([record], fitted_folds([record], method="uniform"))


def fitted_folds(
    records: Sequence[Record], *, method: str, worth: Sequence[float] | None = None
) -> list[CrossFitted]:
    """Return a method's fit on the validation rows of every outer fold."""
    return [
        cross_fit(*fold_predictions(records, fold, worth=worth), method=method)
        for fold in range(len(records[0].folds))
    ]


def fold_predictions(
    records: Sequence[Record], fold: int, *, worth: Sequence[float] | None = None
) -> tuple[MemberPredictions, Targets]:
    """Return members' predictions of the validation rows of an outer fold, and their targets.

    Args:
        records: The members' records.
        fold: The number of the outer fold.
        worth: What each member is worth on other tables; None or zeros where nothing is known.
    """
    folds = [record.folds[fold] for record in records]
    predictions = MemberPredictions([of_member.validation_log_probabilities for of_member in folds])
    return _leaning(predictions, worth), records[0].targets.take(folds[0].validation_rows)


def _leaning(predictions: MemberPredictions, worth: Sequence[float] | None) -> MemberPredictions:
    """Return predictions with what each member is worth elsewhere, where something is known of it."""
    if worth is None or not any(worth):
        return predictions
    return predictions.with_prior(worth)


def num_fitted(records: Sequence[Record]) -> int:
    """Return the number of rows that fit the weights of an ensemble in an outer fold."""
    return len(records[0].folds[0].validation_rows)


def _validation_predictions(
    records: Sequence[Record], *, worth: Sequence[float] | None = None
) -> tuple[MemberPredictions, Targets]:
    """Return members' predictions of every row that has a validation prediction, each row once, and their targets.

    In nested cross-validation a row has such a prediction in every outer fold but its own; the first one counts.
    """
    parts: list[list[np.ndarray]] = [[] for _ in records]
    predicted_rows: Int64 = np.empty(0, dtype=np.int64)
    for folds in zip(*(record.folds for record in records), strict=True):
        is_new = ~np.isin(folds[0].validation_rows, predicted_rows)
        predicted_rows = np.concatenate([predicted_rows, folds[0].validation_rows[is_new]])
        for part, fold in zip(parts, folds, strict=True):
            part.append(fold.validation_log_probabilities[is_new])
    predictions = MemberPredictions([np.concatenate(part) for part in parts])
    return _leaning(predictions, worth), records[0].targets.take(predicted_rows)


def score_folds(records: Sequence[Record], fitted: Sequence[CrossFitted]) -> TaskScores:
    """Return the scores of a method from its fits in the outer folds."""
    targets = records[0].targets
    resamples = Resamples.of(records[0].task, len(targets))
    in_sample = []
    out_of_fold = []
    tested = []
    for fold_index, of_fold in enumerate(fitted):
        member_folds = [record.folds[fold_index] for record in records]
        rows = member_folds[0].validation_rows
        in_sample.append(100 * targets.take(rows).score(of_fold.in_sample))
        out_of_fold.append((rows, targets.take(rows), of_fold.held_out))
        tested.append(of_fold.predict([fold.test_log_probabilities for fold in member_folds]))
    validation = float(np.mean(in_sample))
    cross_fitted = mean_estimate(resamples.estimates(out_of_fold))
    test_rows = np.concatenate([fold.test_rows for fold in records[0].folds])
    test_labels = targets.labels[test_rows]
    predicted = np.concatenate(tested)
    test = resamples.estimates([(test_rows, targets.take(test_rows), predicted)])[0]
    measures, bins = measure(predicted, test_labels, rows=test_rows, resamples=resamples)
    return TaskScores(
        validation=validation,
        cross_fitted=cross_fitted,
        optimism=validation - cross_fitted.value,
        test=test.value,
        interval=test.interval,
        measures=measures,
        draws=test.draws,
        reliability=bins,
    )


def compatible(records: Sequence[Record]) -> Sequence[Record]:
    """Return records of members that were evaluated alike on one task, row by row, at the validation rows of all.

    A model that learned labels of a task whose validation rows were drawn has these rows alone; the others have those
    of train too.

    Raises:
        ArtifactError: If they were not, naming the first two members that differ and how; or if a member's protocol
            keeps no log-probabilities.
    """
    first = records[0]
    for record in records[1:]:
        for attribute, word in _EQUAL.items():
            pair = (getattr(first, attribute), getattr(record, attribute))
            _check_equal(first, record, word, pair)
    for record in records:
        _check_complete(record)
    for record in records[1:]:
        _check_equal(first, record, "number of folds", (len(first.folds), len(record.folds)))
    fewest = min(records, key=lambda record: len(record.folds[0].validation_rows))
    agree = _have_equal_rows
    if fewest.score.learned:
        agree = _has_rows
    for record in records:
        if not all(map(agree, record.folds, fewest.folds)):
            raise ArtifactError(
                f"{first.task}: members must be evaluated on the same folds; '{fewest.model}' and '{record.model}' "
                "differ; evaluate them together"
            )
    return [_at_rows_of(record, fewest) for record in records]


def _at_rows_of(record: Record, fewest: Record) -> Record:
    """Return a record at the validation rows of another one, which has no others."""
    folds = []
    for fold, with_fewest in zip(record.folds, fewest.folds, strict=True):
        folds.append(fold.at(with_fewest.validation_rows))
    return replace(record, folds=tuple(folds))


def _check_equal(first: Record, second: Record, word: str, pair: tuple[object, object]) -> None:
    if pair[0] != pair[1]:
        raise ArtifactError(
            f"{first.task}: members must be evaluated on the same {word}; '{first.model}' has {_short(pair[0])}, "
            f"'{second.model}' has {_short(pair[1])}; evaluate them together"
        )


def _check_complete(record: Record) -> None:
    """Check that every row has log-probabilities; some protocols keep scores alone."""
    num_classes = len(record.label_names)
    is_complete = len(record.folds) > 0
    for fold in record.folds:
        validation_shape = (len(fold.validation_rows), num_classes)
        test_shape = (len(fold.test_rows), num_classes)
        is_complete &= np.shape(fold.validation_log_probabilities) == validation_shape
        is_complete &= np.shape(fold.test_log_probabilities) == test_shape
    if not is_complete:
        raise ArtifactError(
            f"{record.task}: an ensemble needs log-probabilities of every row; '{record.model}', evaluated with "
            f"protocol {record.protocol}, has none; evaluate it with protocol fast"
        )


def _have_equal_rows(fold: FoldResult, fewest: FoldResult) -> bool:
    have_equal_validation = np.array_equal(fold.validation_rows, fewest.validation_rows)
    return have_equal_validation and np.array_equal(fold.test_rows, fewest.test_rows)


def _has_rows(fold: FoldResult, fewest: FoldResult) -> bool:
    has_all = bool(np.isin(fewest.validation_rows, fold.validation_rows).all())
    return has_all and np.array_equal(fold.test_rows, fewest.test_rows)


def _short(attribute: object) -> str:
    """Return an attribute as text of at most 40 characters, for an error."""
    text = str(attribute)
    if isinstance(attribute, tuple):
        text = ", ".join(attribute)
    if len(text) > 40:
        return text[:37] + "..."
    return text
