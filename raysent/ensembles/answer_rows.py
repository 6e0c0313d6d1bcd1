"""What an answer predicts of each labelled row that did not fit it, beside its `ensemble.json`.

In: the answer's log-probabilities, of hold-out rows and out of fold of the others, as they were scored. Out:
`predicted.npz`, from which a report shows which classes it confuses, its worst mistakes, and labels that may be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysent.evaluation.probes.results import FoldResult
from raysent.storage import load_arrays, save_arrays
from raysent.storage.layout import ANSWER_ROWS_FILE

_NAMES = ("rows", "labels", "predicted", "probability", "of_label", "is_test")


@dataclass(frozen=True)
class AnswerRows:
    """Predictions of rows.

    Attributes:
        rows: The rows' numbers among those of the task, int64 [rows].
        labels: Their classes, int64 [rows].
        predicted: The classes that are predicted, int64 [rows].
        probability: The probabilities of these, float32 [rows].
        of_label: The probabilities of the rows' own classes, float32 [rows].
        is_test: Which rows were held out; the others are predicted by fits without them, bool [rows].
    """

    rows: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    probability: np.ndarray
    of_label: np.ndarray
    is_test: np.ndarray

    @classmethod
    def of(cls, fold: FoldResult, labels: np.ndarray) -> AnswerRows:
        """Return the predictions of a fold.

        Args:
            fold: The answer's predictions.
            labels: The classes of all rows of the task, int64 [rows].
        """
        log_probabilities = np.concatenate(
            [fold.test_log_probabilities, fold.validation_log_probabilities]
        )
        rows = np.concatenate([fold.test_rows, fold.validation_rows])
        probabilities = np.exp(log_probabilities.astype(np.float64))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        indices = np.arange(len(rows))
        predicted = probabilities.argmax(axis=1)
        return cls(
            rows=rows,
            labels=labels[rows],
            predicted=predicted,
            probability=probabilities[indices, predicted].astype(np.float32),
            of_label=probabilities[indices, labels[rows]].astype(np.float32),
            is_test=indices < len(fold.test_rows),
        )

    def held_out(self) -> AnswerRows:
        """Return the hold-out rows alone."""
        return self._take(np.flatnonzero(self.is_test))

    def cross_validated(self) -> AnswerRows:
        """Return the rows that are predicted by fits without them."""
        return self._take(np.flatnonzero(~self.is_test))

    def worst(self, count: int) -> AnswerRows:
        """Return the rows whose predicted class is another than their own, surest first, at most so many."""
        wrong = np.flatnonzero(self.predicted != self.labels)
        order = np.lexsort((self.rows[wrong], self.of_label[wrong]))
        return self._take(wrong[order[:count]])

    def unlikely(self, most: float) -> AnswerRows:
        """Return the rows whose own class has less than this probability."""
        return self._take(np.flatnonzero(self.of_label < most))

    def confusion(self, num_classes: int) -> np.ndarray:
        """Return how many rows of each class are predicted as each class, int64 [classes, predicted classes]."""
        counts = np.zeros((num_classes, num_classes), dtype=np.int64)
        np.add.at(counts, (self.labels, self.predicted), 1)
        return counts

    def _take(self, indices: np.ndarray) -> AnswerRows:
        return AnswerRows(*(getattr(self, name)[indices] for name in _NAMES))


def write_answer_rows(folder: Path, rows: AnswerRows) -> None:
    """Write the predictions beside an answer.

    Raises:
        ArtifactError: If the file cannot be written.
    """
    save_arrays(folder / ANSWER_ROWS_FILE, {name: getattr(rows, name) for name in _NAMES})


def read_answer_rows(folder: Path) -> AnswerRows | None:
    """Return the predictions beside an answer; None where there are none, as of ratings, queries and earlier versions.

    Raises:
        ArtifactError: If the file is damaged.
    """
    path = folder / ANSWER_ROWS_FILE
    if not path.is_file():
        return None
    arrays = load_arrays(path)
    return AnswerRows(*(arrays[name] for name in _NAMES))
