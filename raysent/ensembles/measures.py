"""Scores and further measures of predictions with bootstrap intervals, and how an ensemble's members differ.

Bootstrap: a task's rows are drawn with replacement once, as counts [resamples, rows], and every measure of the task is
recomputed from the same counts. So differences between predictions are paired, and draws of several tasks can be
averaged.

Measures: accuracy, NLL, Brier score and calibration error. Diversity: ambiguity, which needs no labels, correlations
between members' errors, and the contribution of each member.

Source: Efron and Tibshirani, 1993, chapter 13 (percentile intervals); Brier, 1950; Nguyen and O'Connor, 2015
(calibration error over bins of equal mass); Heskes, 1998, equation 6: the NLL of a logarithmic pool is the weighted
mean of its members' NLL minus the ambiguity, the weighted mean of the divergences KL(pool || member).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from raysent.ensembles.combination import LOG_ZERO, checked_weights, pool
from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.methods import fit
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.probes.results import PERCENTILES, Interval
from raysent.evaluation.targets import Float64, Int64, Targets

NUM_RESAMPLES = 1000
NUM_BINS = 15
# Resamples weighted at once: bounds the memory of counts in floating point.
_CHUNK = 100


@dataclass(frozen=True, eq=False)
class BootstrapEstimate:
    """A measure and its values on resampled rows.

    Attributes:
        value: On the original rows.
        draws: On resampled rows, float64 [resamples].
    """

    value: float
    draws: Float64

    @property
    def interval(self) -> Interval:
        """The 95 % percentile interval."""
        low, high = np.percentile(self.draws, PERCENTILES)
        return float(low), float(high)

    def minus(self, other: BootstrapEstimate) -> BootstrapEstimate:
        """Return the difference; paired if both are of the same rows."""
        return BootstrapEstimate(self.value - other.value, self.draws - other.draws)


def mean_estimate(estimates: Sequence[BootstrapEstimate]) -> BootstrapEstimate:
    """Return the mean of estimates of several tasks, or of one task's folds."""
    return BootstrapEstimate(
        float(np.mean([estimate.value for estimate in estimates])),
        np.mean([estimate.draws for estimate in estimates], axis=0),
    )


class Resamples:
    """How often each of a task's rows occurs in each resample."""

    def __init__(self, task: str, num_rows: int) -> None:
        """Draw the resamples; the task's name is the seed, so tasks are drawn independently."""
        self._counts = _counts(zlib.crc32(task.encode()), num_rows)

    def means(self, parts: Sequence[tuple[Int64, Float64]]) -> list[Float64]:
        """Return the mean of values over the drawn rows of each part, float64 [resamples, columns] per part.

        Args:
            parts: Rows of the task, [rows], and their values, [rows, columns].
        """
        widths = [values.shape[1] + 1 for _, values in parts]
        columns = np.zeros((self._counts.shape[1], sum(widths)))
        ends = np.cumsum(widths)
        for (rows, values), end, width in zip(parts, ends, widths, strict=True):
            columns[rows, end - width : end - 1] = values
            columns[rows, end - 1] = 1  # sums to the number of drawn rows
        sums = np.concatenate(
            [
                self._counts[first : first + _CHUNK].astype(np.float64) @ columns
                for first in range(0, NUM_RESAMPLES, _CHUNK)
            ]
        )
        # A resample may hold none of very few rows; their mean is then 0.
        return [part[:, :-1] / np.maximum(part[:, -1:], 1) for part in np.split(sums, ends[:-1], axis=1)]

    def scores(self, parts: Sequence[tuple[Int64, Targets, Float64]]) -> list[BootstrapEstimate]:
        """Return the score of each part in percent.

        Args:
            parts: Rows of the task [rows], their targets, and log-probabilities [rows, classes].
        """
        values = [targets.values(predicted) for _, targets, predicted in parts]
        found = [100 * targets.score_of(value) for (_, targets, _), value in zip(parts, values, strict=True)]
        columns = [targets.columns(value) for (_, targets, _), value in zip(parts, values, strict=True)]
        drawn = self.means([(rows, column) for (rows, _, _), column in zip(parts, columns, strict=True)])
        return [
            BootstrapEstimate(value, 100 * targets.scores_of_means(means))
            for (_, targets, _), value, means in zip(parts, found, drawn, strict=True)
        ]


@lru_cache(maxsize=2)
def _counts(seed: int, num_rows: int) -> np.ndarray:
    """Return how often each row is drawn, uint8 [resamples, rows]."""
    generator = np.random.default_rng(seed)
    counts = np.empty((NUM_RESAMPLES, num_rows), dtype=np.uint8)
    for resample in counts:
        resample[:] = np.bincount(generator.integers(0, num_rows, num_rows), minlength=num_rows)
    return counts


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


@dataclass(frozen=True)
class Measures:
    """Measures of predictions besides the score.

    Attributes:
        estimates: By name: `accuracy` in percent; `nll` in nats per row, where a right class of probability zero
            counts `LOG_ZERO`; `brier`, the mean over rows of the sum over classes of squared errors, from 0 to 2;
            `ece` in percentage points, the mean distance between confidence and accuracy over bins.
        bins: Of the calibration error, by rising confidence.
    """

    estimates: Mapping[str, BootstrapEstimate]
    bins: tuple[CalibrationBin, ...]


def measure(log_probabilities: Float64, labels: np.ndarray, *, rows: Int64, resamples: Resamples) -> Measures:
    """Return all measures of predictions.

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
        name: BootstrapEstimate(float(values[column]), drawn[:, column])
        for column, name in enumerate(("accuracy", "nll", "brier"))
    }
    estimates["ece"] = BootstrapEstimate(float(np.abs(values[3:]).sum()), np.abs(drawn[:, 3:]).sum(axis=1))
    return Measures(estimates, _calibration_bins(right, confidence, bins))


def equal_mass_bins(confidence: Float64) -> Float64:
    """Return one-hot bins of equally many rows, float64 [rows, bins]; rows of equal confidence keep their order."""
    order = np.argsort(confidence, kind="stable")
    bins = np.zeros((len(confidence), min(NUM_BINS, len(confidence))))
    for number, rows in enumerate(np.array_split(order, bins.shape[1])):
        bins[rows, number] = 1
    return bins


def _calibration_bins(right: Float64, confidence: Float64, bins: Float64) -> tuple[CalibrationBin, ...]:
    sizes = bins.sum(axis=0)
    found = zip(confidence @ bins / sizes, right @ bins / sizes, sizes, strict=True)
    return tuple(CalibrationBin(float(mean), float(accuracy), int(size)) for mean, accuracy, size in found)


@dataclass(frozen=True)
class Diversity:
    """How the members of an ensemble differ on a task.

    Attributes:
        ambiguity: Nats per row, at least 0; infinite if a member excludes a class that the pool does not.
        error_correlations: Between members' errors, float64 [members, members]; NaN if one of the two members makes
            no errors, or only errors.
        contributions: Points of the cross-validated score that are lost without a member, float64 [members]; empty
            for a single member.
    """

    ambiguity: float
    error_correlations: Float64
    contributions: Float64


def diversity(predictions: MemberPredictions, targets: Targets, *, method: str) -> Diversity:
    """Return how members differ on labelled rows that trained no member's probe."""
    weights = fit(predictions, targets, method=method).weights
    return Diversity(
        ambiguity(predictions, weights),
        error_correlations(predictions, targets),
        contributions(predictions, targets, method=method),
    )


def ambiguity(predictions: MemberPredictions, weights: Float64) -> float:
    """Return the mean over rows of sum over members of w_m KL(pool || member).

    Args:
        predictions: Members' log-probabilities; the rows need no labels.
        weights: [members], with sum 1.
    """
    weights = checked_weights(weights, predictions)
    pooled = pool(predictions, weights)
    probabilities = np.exp(pooled)
    total = 0.0
    for member, weight in zip(predictions.members(), weights, strict=True):
        if weight > 0:
            # A class that the pool excludes adds nothing, whatever the member predicts.
            gap = np.subtract(pooled, member, out=np.zeros_like(pooled), where=probabilities > 0)
            total += weight * float((probabilities * gap).sum(axis=1).mean())
    return total


def error_correlations(predictions: MemberPredictions, targets: Targets) -> Float64:
    """Return the correlations between members' errors on labelled rows, float64 [members, members]."""
    wrong = np.stack([member.argmax(axis=1) != targets.labels for member in predictions.members()]).astype(np.float64)
    centred = wrong - wrong.mean(axis=1, keepdims=True)
    lengths = np.sqrt((centred**2).sum(axis=1))
    products = np.outer(lengths, lengths)
    unknown = np.full_like(products, np.nan)
    correlations: Float64 = np.divide(centred @ centred.T, products, out=unknown, where=products > 0)
    return correlations


def contributions(predictions: MemberPredictions, targets: Targets, *, method: str) -> Float64:
    """Return the points of the cross-validated score, in percent, that the method loses without each member."""
    members = range(predictions.shape[0])
    if len(members) == 1:
        return np.empty(0)
    whole = targets.score(held_out(predictions, targets, method=method))
    without = [
        targets.score(held_out(predictions.select([m for m in members if m != left_out]), targets, method=method))
        for left_out in members
    ]
    return 100 * (whole - np.array(without))
