"""What predictions score besides: calibration and other measures with bootstrap intervals, and what each member adds.

Source: Brier, 1950; Nguyen and O'Connor, 2015 (calibration error over bins of equal mass).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.pools import LOG_ZERO
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.bootstrap import BootstrapEstimate, Interval, Resamples, mean_estimate
from raysent.evaluation.targets import Float64, Int64, Targets

NUM_BINS = 15


class CalibrationBin(NamedTuple):
    """Rows of similar confidence.

    Attributes:
        confidence: Mean probability of the predicted class.
        accuracy: Fraction of rows predicted right.
        num_rows: The number of rows.
    """

    confidence: float
    accuracy: float
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class MeanScores:
    """Scores of a method, or of a single model, in percent: the means over tasks. Files keep no draws.

    Attributes:
        validation: Score on the rows it was fitted on, the mean over outer folds.
        cross_fitted: The cross-validated score of the same rows, each predicted out of fold.
        optimism: `validation` minus `cross_fitted`.
        test: Score on all test rows together.
        interval: 95 % bootstrap interval of `test`.
        measures: Further measures of the test rows by name: `accuracy` in percent; `nll` in nats per row, where a right
            class of probability zero counts `LOG_ZERO`; `brier`, the mean over rows of the sum over classes of squared
            errors, from 0 to 2; `ece` in percentage points, the mean distance between confidence and accuracy over
            bins.
        draws: Of `test`; see `BootstrapEstimate`.
    """

    validation: float
    cross_fitted: BootstrapEstimate
    optimism: float
    test: float
    interval: Interval
    measures: Mapping[str, BootstrapEstimate]
    draws: Annotated[Any, pydantic.Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )

    @property
    def tested(self) -> BootstrapEstimate:
        """The score on test rows."""
        return BootstrapEstimate(self.test, self.interval, self.draws)


@dataclass(frozen=True, kw_only=True)
class TaskScores(MeanScores):
    """The same on one task.

    Attributes:
        reliability: Bins of the calibration error, by rising confidence.
    """

    reliability: tuple[CalibrationBin, ...]


def mean_scores(scores: Sequence[MeanScores]) -> MeanScores:
    """Return the means over tasks of the scores on each."""
    tested = mean_estimate([of_task.tested for of_task in scores])
    measures = {}
    for name in scores[0].measures:
        measures[name] = mean_estimate([of_task.measures[name] for of_task in scores])
    return MeanScores(
        validation=float(np.mean([of_task.validation for of_task in scores])),
        cross_fitted=mean_estimate([of_task.cross_fitted for of_task in scores]),
        optimism=float(np.mean([of_task.optimism for of_task in scores])),
        test=tested.value,
        interval=tested.interval,
        measures=measures,
        draws=tested.draws,
    )


def measure(
    log_probabilities: Float64, labels: np.ndarray, *, rows: Int64, resamples: Resamples
) -> tuple[dict[str, BootstrapEstimate], tuple[CalibrationBin, ...]]:
    """Return all measures of predictions by name, see `MeanScores`, and the bins of the calibration error.

    Args:
        log_probabilities: [rows, classes].
        labels: The rows' classes, [rows].
        rows: Which of the task's rows they are, [rows].
        resamples: The task's.
    """
    probabilities = np.exp(log_probabilities)
    indices = np.arange(len(labels))
    predicted = log_probabilities.argmax(axis=1)
    right = (predicted == labels).astype(np.float64)
    confidence = probabilities[indices, predicted]
    nll = -np.maximum(log_probabilities[indices, labels], LOG_ZERO)
    brier = (probabilities**2).sum(axis=1) + 1 - 2 * probabilities[indices, labels]
    # A column for each bin: the absolute values of their means sum to the calibration error.
    errors = 100 * (right - confidence)[:, None] * _equal_mass_bins(confidence)
    columns = np.column_stack([100 * right, nll, brier, errors])
    means = columns.mean(axis=0)
    (drawn_means,) = resamples.means([(rows, columns)])
    estimates = {}
    for column, name in enumerate(("accuracy", "nll", "brier")):
        estimates[name] = BootstrapEstimate.of(float(means[column]), drawn_means[:, column])
    error = float(np.abs(means[3:]).sum())
    estimates["ece"] = BootstrapEstimate.of(error, np.abs(drawn_means[:, 3:]).sum(axis=1))
    return estimates, reliability(log_probabilities, labels)


def reliability(log_probabilities: Float64, labels: np.ndarray) -> tuple[CalibrationBin, ...]:
    """Return bins of rows of similar confidence, by rising confidence, of predictions [rows, classes]."""
    confidence = np.exp(log_probabilities.max(axis=1))
    is_right = log_probabilities.argmax(axis=1) == labels
    bins = _equal_mass_bins(confidence)
    sizes = bins.sum(axis=0)
    mean_confidences = confidence @ bins / sizes
    accuracies = is_right @ bins / sizes
    return tuple(
        CalibrationBin(float(mean_confidence), float(accuracy), int(size))
        for mean_confidence, accuracy, size in zip(mean_confidences, accuracies, sizes, strict=True)
    )


def _equal_mass_bins(confidence: Float64) -> Float64:
    """Return one-hot bins of equally many rows, float64 [rows, bins]; rows of equal confidence keep their order."""
    order = np.argsort(confidence, kind="stable")
    bins = np.zeros((len(confidence), min(NUM_BINS, len(confidence))))
    for number, rows in enumerate(np.array_split(order, bins.shape[1])):
        bins[rows, number] = 1
    return bins


@dataclass(frozen=True)
class Diversity:
    """How the members of an ensemble differ on a task.

    Attributes:
        contributions: Member -> points of the cross-validated score that are lost without it; empty for one member.
    """

    contributions: Mapping[str, float]


def contributions(
    predictions: MemberPredictions, targets: Targets, *, method: str, names: Sequence[str]
) -> dict[str, float]:
    """Return the points of the cross-validated score, in percent, that the method loses without each member.

    Empty for one member; `names` are the members'. The rows trained no member's probe.
    """
    members = range(predictions.shape[0])
    if len(members) == 1:
        return {}
    score_of_all = targets.score(held_out(predictions, targets, method=method))
    lost_points = {}
    for left_out, name in zip(members, names, strict=True):
        without = predictions.select([member for member in members if member != left_out])
        score = targets.score(held_out(without, targets, method=method))
        lost_points[name] = 100 * (score_of_all - score)
    return lost_points
