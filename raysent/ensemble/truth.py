"""What is known of rows: their classes, and of scored pairs their scores; and how answers are judged by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from raysent.ensemble.answers import Answers, Float64, Int64
from raysent.errors import DataError
from raysent.probes.relatedness import pearson, predicted_scores
from raysent.tasks import NO_SCORES


@dataclass(frozen=True, eq=False)
class Truth:
    """Rows' classes, and where rows are pairs that people scored, the scores.

    Answers to rows with scores are judged by Pearson's correlation of the mean mark, sum over k of k p(k), with them;
    answers to all others by the share of right rows. NLL is of the classes in both cases.

    Attributes:
        labels: Classes from 0, int64 [rows]; of scored pairs the nearest mark, counted from 0.
        scores: float64 [rows], or empty.
    """

    labels: Int64
    scores: Float64 = field(default_factory=lambda: NO_SCORES)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    @property
    def is_scored(self) -> bool:
        """Return whether a correlation judges, and not a share of rows."""
        return len(self.scores) > 0

    def take(self, rows: np.ndarray | slice) -> Self:
        """Return what is known of some of the rows, given by number, as flags [rows] or as a slice."""
        return type(self)(self.labels[rows], self.scores[rows] if self.is_scored else self.scores)

    def values(self, log_probabilities: np.ndarray) -> Float64:
        """Return what a score is made of, float64 [rows]: 1 for a right row and 0 for a wrong one, or the mean mark."""
        if self.is_scored:
            return predicted_scores(log_probabilities)
        right: Float64 = (log_probabilities.argmax(axis=1) == self.labels).astype(np.float64)
        return right

    def score_of(self, values: Float64) -> float:
        """Return the score of answers by what it is made of [rows]: at most 1."""
        return pearson(values, self.scores) if self.is_scored else float(values.mean())

    def score(self, log_probabilities: np.ndarray) -> float:
        """Return the score of answers [rows, classes]: at most 1."""
        return self.score_of(self.values(log_probabilities))

    def member_scores(self, answers: Answers) -> Float64:
        """Return each member's score, float64 [members]; a negative correlation counts as 0."""
        values = np.empty(answers.shape[:2])
        for places, block in answers.blocks():
            part = self.take(places)
            values[:, places] = [part.values(member) for member in block]
        return np.array([max(0.0, self.score_of(of_member)) for of_member in values])


def as_truth(labels: Truth | npt.ArrayLike, answers: Answers) -> Truth:
    """Return rows' classes [rows] as `Truth`, checked against what is answered.

    Raises:
        DataError: If they are not one per row, or not among the classes.
    """
    truth = labels if isinstance(labels, Truth) else Truth(np.asarray(labels, dtype=np.int64))
    _, rows, classes = answers.shape
    if truth.labels.shape != (rows,) or len(truth.scores) not in (0, rows):
        raise DataError(f"labels: must be one per row; given {len(truth.labels)} for {answers.shape}")
    if truth.labels.min() < 0 or truth.labels.max() >= classes:
        raise DataError(f"labels: must be from 0 to {classes - 1}; given {truth.labels.min()} to {truth.labels.max()}")
    return truth
