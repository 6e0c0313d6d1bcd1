"""The score of predictions in a task's own metric: one owner for choices, weights, comparisons and reports.

Accuracy, the mean over classes of their F1 (`metric: macro_f1`), the share of what there is to know about the class
(`information`: 1 + mean log p(label) / log(classes), 0 for one who knows nothing; Xu et al., 2020, of uniform classes),
or for pairs with human ratings Pearson's correlation.
A score is computed from one value for each row. On resampled rows it follows from means of a few columns, so that a
bootstrap is one product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from raysent.evaluation.probes.results import macro_f1, pearson, predicted_scores
from raysent.evaluation.task import NO_SCORES, Metric, TaskData
from raysent.evaluation.units import EACH_ROW

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# With fewer rows the highest of several scores is mostly chance, and the log loss says more.
MIN_SCORED_ROWS = 100
# C of probes on vectors of unit length and on TF-IDF that is good on nearly every table.
USUAL_STRENGTH = 16.0
# Of a paired difference: so many standard errors are within chance.
_NUM_ERRORS = 2.0
# A log-probability below this counts as this, so that one row that is surely wrong does not decide alone.
_LEAST_LOG = -20.0
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Targets:
    """What predictions of rows are scored against, and the metric.

    Attributes:
        labels: Classes from 0, int64 [rows]; for rated pairs the nearest rating level, counted from 0.
        scores: Ratings, float64 [rows]; empty for other tasks. The expected rating, sum over k of k p(k), is correlated
            with them.
        metric: What counts, for tasks with classes.
        units: Which rows belong together, int64 [rows], see `units`; empty where each row is one of its own.
    """

    labels: Int64
    scores: Float64 = field(default_factory=lambda: NO_SCORES)
    metric: Metric = "accuracy"
    units: Int64 = field(default_factory=lambda: EACH_ROW)

    @classmethod
    def of(cls, data: TaskData) -> Self:
        """Return the targets of all rows of a task."""
        return cls(data.labels, data.scores, data.metric, data.units)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    @property
    def is_scored(self) -> bool:
        """Whether the score is a correlation with ratings."""
        return len(self.scores) > 0

    def take(self, rows: np.ndarray | slice) -> Self:
        """Return the targets of some rows, given as indices, a mask [rows] or a slice."""
        scores = self.scores
        if self.is_scored:
            scores = scores[rows]
        units = self.units
        if len(units):
            units = units[rows]
        return type(self)(self.labels[rows], scores, self.metric, units)

    def values(self, log_probabilities: np.ndarray) -> Float64:
        """Return what a score is computed from, float64 [rows].

        For accuracy 1 if right and 0 if wrong, for macro F1 the predicted class, for information that of the row, for
        ratings the expected one.
        """
        if self.is_scored:
            return predicted_scores(log_probabilities)
        if self.metric == "information":
            of_label = log_probabilities[np.arange(len(self)), self.labels].astype(np.float64)
            return 1 + of_label / math.log(log_probabilities.shape[1])
        predicted: Int64 = log_probabilities.argmax(axis=1)
        if self.metric == "macro_f1":
            return predicted.astype(np.float64)
        is_right: Float64 = (predicted == self.labels).astype(np.float64)
        return is_right

    def score_of(self, values: Float64) -> float:
        """Return the score, at most 1, that follows from what the method `values` returned, [rows]."""
        if self.is_scored:
            return pearson(values, self.scores)
        if self.metric == "macro_f1":
            return macro_f1(values.astype(np.int64), self.labels)
        return float(values.mean())

    def score(self, log_probabilities: np.ndarray) -> float:
        """Return the score of log-probabilities [rows, classes], at most 1."""
        return self.score_of(self.values(log_probabilities))

    def columns(self, values: Float64) -> Float64:
        """Return columns whose means determine the score, float64 [rows, columns].

        Args:
            values: What the method `values` returned, [rows].
        """
        if self.is_scored:
            # Centered, so that the differences of means in `scores_of_means` keep their digits.
            x = values - values.mean()
            y = self.scores - self.scores.mean()
            return np.stack([x, y, x * x, y * y, x * y], axis=1)
        if self.metric == "macro_f1":
            classes = np.arange(max(self.labels.max(), values.max()) + 1)
            is_class = self.labels[:, None] == classes
            is_predicted = values[:, None] == classes
            counts = [is_class & is_predicted, is_class.astype(np.int64) + is_predicted]
            return np.concatenate(counts, axis=1).astype(np.float64)
        return values[:, None]

    def scores_of_means(self, means: Float64) -> Float64:
        """Return the scores that means of `columns` [resamples, columns] determine, float64 [resamples].

        A correlation is 0 where a side is constant; classes that occur neither in labels nor in predictions have no F1.
        """
        if self.is_scored:
            x, y, xx, yy, xy = means.T
            spread = np.sqrt(np.maximum((xx - x * x) * (yy - y * y), 0))
            correlations: Float64 = np.divide(
                xy - x * y, spread, out=np.zeros_like(spread), where=spread > 0
            )
            return correlations
        if self.metric == "macro_f1":
            right, total = np.split(means, 2, axis=1)
            f1 = np.divide(2 * right, total, out=np.zeros_like(total), where=total > 0)
            scores: Float64 = f1.sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1)
            return scores
        return means[:, 0]

    def measure(self, candidates: Sequence[np.ndarray]) -> Float64:
        """Return the score and the negative log loss of each candidate [rows, classes], float64 [candidates, 2]."""
        rows = np.arange(len(self))
        mean_logs = [
            candidate[rows, self.labels].mean(dtype=np.float64) for candidate in candidates
        ]
        scores = [self.score(candidate) for candidate in candidates]
        return np.column_stack([scores, mean_logs])

    def best(self, candidates: Sequence[np.ndarray], strengths: Sequence[float]) -> int:
        """Return the index of the best of candidates [rows, classes], fits of rising inverse strengths.

        Few rows have few different scores, and which is highest is chance. There the log loss decides: of the
        candidates whose loss is above the lowest one by no more than chance, the one whose strength is nearest to
        `USUAL_STRENGTH` is taken.

        Args:
            candidates: The log-probabilities of each [candidates][rows, classes].
            strengths: C of each candidate.
        """
        if self.is_scored or len(self) >= MIN_SCORED_ROWS:
            return best_of(self.measure(candidates))
        rows = np.arange(len(self))
        label_logs = np.array(
            [candidate[rows, self.labels] for candidate in candidates], np.float64
        )
        label_logs = np.maximum(label_logs, _LEAST_LOG)
        mean_logs = np.round(label_logs.mean(axis=1), 12)
        # Paired with the best candidate row by row: what two candidates share is no part of the chance.
        losses = label_logs[int(mean_logs.argmax())] - label_logs
        chance = _NUM_ERRORS * losses.std(axis=1) / np.sqrt(len(self))
        near = np.flatnonzero(losses.mean(axis=1) <= chance + _ROUNDING)
        distances = np.abs(np.log(strengths) - np.log(USUAL_STRENGTH))
        return int(near[np.argmin(distances[near])])


def best_of(measured: Float64) -> int:
    """Return the index of the best candidate: the highest score, of equals the lowest log loss.

    Args:
        measured: What `Targets.measure` returned, or a sum of such, [candidates, 2].
    """
    # Sums in another order differ in their last bits.
    scores, mean_logs = np.round(measured, 12).T
    return int(np.lexsort((-mean_logs, -scores))[0])
