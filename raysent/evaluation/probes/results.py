"""What a protocol hands back: per fold log-probabilities, the scores, and a probe for new sentences.

Bootstrap intervals over rows. In: which rows were right. Out: 95 % intervals in percent.

Drawing rows with replacement and counting those that were right is a binomial draw, and for a difference of two
classifiers on the same rows (won, drawn, lost) a multinomial one; so the counts are drawn, never the rows.

Source: Efron and Tibshirani, 1993, chapter 13 (percentile intervals).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from raysent.evaluation.probes.logistic import log_probabilities
from raysent.evaluation.tasks import TaskData


@dataclass(frozen=True)
class FoldResult:
    """The predictions of one fold of rows, none made by a probe that saw their labels.

    Attributes:
        validation_rows: Rows used to choose, int64 [validation rows].
        validation_log_probabilities: Of probes that did not train on the row, float32 [validation rows, classes].
        test_rows: Rows scored, int64 [test rows]; no choice saw them.
        test_log_probabilities: Of the probe chosen, float32 [test rows, classes].
        strength: The C chosen on the validation rows; None where nothing is penalised.
    """

    validation_rows: np.ndarray
    validation_log_probabilities: np.ndarray
    test_rows: np.ndarray
    test_log_probabilities: np.ndarray
    strength: float | None


@dataclass(frozen=True)
class Probe:
    """A fitted linear classifier; with two classes there is one output, the second class's.

    Attributes:
        weights: float32 [dim, outputs].
        intercepts: float32 [outputs].
        strength: Its C; None where nothing is penalised.
    """

    weights: np.ndarray
    intercepts: np.ndarray
    strength: float | None

    def log_probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return log-probabilities [rows, classes] of features [rows, dim]."""
        margins = np.asarray(features, dtype=np.float32) @ self.weights + self.intercepts
        return log_probabilities(torch.from_numpy(margins)).numpy()


@dataclass(frozen=True)
class ProbeResult:
    """A task's outcome.

    Attributes:
        validation: Percent of validation rows right, the mean over folds.
        test: Percent of test rows right, over the rows of all folds together.
        folds: One per outer fold; a single one where the test rows are given.
        probe: Fitted on all rows that may train, for new sentences.
        num_unfinished: Fits that ended at the limit of iterations instead of the tolerance.
        measures: Further figures of the test rows by name, as ``f1`` in percent.
    """

    validation: float
    test: float
    folds: tuple[FoldResult, ...]
    probe: Probe
    num_unfinished: int = 0
    measures: Mapping[str, float] = field(default_factory=dict)


def f1(log_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the F1 of the second of two classes, from 0 to 1; answers are [rows, classes]."""
    answers = log_probabilities.argmax(axis=1)
    num_right = int((answers * labels).sum())
    return 2 * num_right / max(1, int(answers.sum() + labels.sum()))


def class_measures(data: TaskData, log_probabilities: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Return the further figures of a task's test rows: F1 in percent of pairs with two classes, as of paraphrases."""
    if data.kind == "sentence" or len(data.label_names) != 2:
        return {}
    return {"f1": 100 * f1(log_probabilities, data.labels[rows])}


def accuracy(log_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of rows [rows, classes] whose likeliest class is the label, from 0 to 1."""
    return float((log_probabilities.argmax(axis=1) == labels).mean())
