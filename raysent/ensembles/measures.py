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
    tested = mean_estimate([one.tested for one in scores])
    return MeanScores(
        validation=float(np.mean([one.validation for one in scores])),
        cross_fitted=mean_estimate([one.cross_fitted for one in scores]),
        optimism=float(np.mean([one.optimism for one in scores])),
        test=tested.value,
        interval=tested.interval,
        measures={
            name: mean_estimate([one.measures[name] for one in scores])
            for name in scores[0].measures
        },
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
    probabilities, places = np.exp(log_probabilities), np.arange(len(labels))
    predicted = log_probabilities.argmax(axis=1)
    right, confidence = (predicted == labels).astype(np.float64), probabilities[places, predicted]
    nll = -np.maximum(log_probabilities[places, labels], LOG_ZERO)
    brier = (probabilities**2).sum(axis=1) + 1 - 2 * probabilities[places, labels]
    bins = equal_mass_bins(confidence)
    columns = np.column_stack([100 * right, nll, brier, 100 * (right - confidence)[:, None] * bins])
    values, (drawn,) = columns.mean(axis=0), resamples.means([(rows, columns)])
    estimates = {
        name: BootstrapEstimate.of(float(values[column]), drawn[:, column])
        for column, name in enumerate(("accuracy", "nll", "brier"))
    }
    estimates["ece"] = BootstrapEstimate.of(
        float(np.abs(values[3:]).sum()), np.abs(drawn[:, 3:]).sum(axis=1)
    )
    return estimates, reliability(log_probabilities, labels)


def reliability(log_probabilities: Float64, labels: np.ndarray) -> tuple[CalibrationBin, ...]:
    """Return bins of rows of similar confidence, by rising confidence, of predictions [rows, classes]."""
    confidence, right = (
        np.exp(log_probabilities.max(axis=1)),
        log_probabilities.argmax(axis=1) == labels,
    )
    bins = equal_mass_bins(confidence)
    sizes = bins.sum(axis=0)
    found = zip(confidence @ bins / sizes, right @ bins / sizes, sizes, strict=True)
    return tuple(CalibrationBin(float(mean), float(part), int(size)) for mean, part, size in found)


def equal_mass_bins(confidence: Float64) -> Float64:
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
    whole = targets.score(held_out(predictions, targets, method=method))
    without = [
        targets.score(
            held_out(
                predictions.select([m for m in members if m != left_out]), targets, method=method
            )
        )
        for left_out in members
    ]
    return {name: 100 * (whole - score) for name, score in zip(names, without, strict=True)}
