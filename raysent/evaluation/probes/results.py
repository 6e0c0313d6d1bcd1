"""What a protocol returns: log-probabilities per fold, and a probe for new sentences; and measures of predictions.

`evaluation.bootstrap` has the intervals of their scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raysent.evaluation.task import TaskData

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FoldResult:
    """The predictions for one fold; no probe saw the labels of the rows that it predicts.

    Attributes:
        validation_rows: Rows that chose the strength, int64 [validation rows].
        validation_log_probabilities: From probes that did not train on the row, float32 [validation rows, classes].
        test_rows: Rows that are scored and chose nothing, int64 [test rows].
        test_log_probabilities: From the chosen probe, float32 [test rows, classes].
        strength: The inverse regularization strength C, chosen on the validation rows; None without a penalty.
    """

    validation_rows: np.ndarray
    validation_log_probabilities: np.ndarray
    test_rows: np.ndarray
    test_log_probabilities: np.ndarray
    strength: float | None

    def at(self, rows: np.ndarray) -> FoldResult:
        """Return the predictions with some of the validation rows alone, int64 [rows], in their order."""
        if np.array_equal(rows, self.validation_rows):
            return self
        order = np.argsort(self.validation_rows)
        positions = order[np.searchsorted(self.validation_rows, rows, sorter=order)]
        predicted = self.validation_log_probabilities[positions]
        return replace(self, validation_rows=rows, validation_log_probabilities=predicted)


@dataclass(frozen=True)
class Probe:
    """A fitted linear classifier. Two classes have one output, that of the second class.

    Attributes:
        weights: float32 [dim, outputs].
        intercepts: float32 [outputs].
        strength: Its inverse regularization strength C; None without a penalty.
    """

    weights: np.ndarray
    intercepts: np.ndarray
    strength: float | None

    def log_probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return log-probabilities [rows, classes] of features [rows, dim]."""
        margins = np.asarray(features, dtype=np.float32) @ self.weights + self.intercepts
        return self.log_probabilities_of_margins(margins)

    @staticmethod
    def log_probabilities_of_margins(margins: np.ndarray) -> np.ndarray:
        """Return log-probabilities, float32 [rows, classes], of margins [rows, outputs].

        One output stands for two classes. `probes.logistic.log_probabilities` does the same on tensors.
        """
        margins = np.asarray(margins, dtype=np.float32)
        if margins.shape[1] == 1:
            margins = np.hstack([np.zeros_like(margins), margins])
        margins = margins - margins.max(axis=1, keepdims=True)
        logs: np.ndarray = margins - np.log(np.exp(margins).sum(axis=1, keepdims=True))
        return logs


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe on a task.

    Attributes:
        validation: Accuracy on validation rows in percent, the mean over folds; for scored pairs Pearson's
            correlation times 100.
        test: The same for the test rows of all folds together.
        folds: One per outer fold; one in total where the test rows are given.
        probe: Fitted on all rows that may train, for new sentences.
        num_unfinished: Fits that stopped at the maximum number of iterations before reaching the tolerance.
        measures: Other measures of the test rows by name, such as ``f1`` in percent.
        limited: What its fits left out to end in time, in words; empty for nothing.
    """

    validation: float
    test: float
    folds: tuple[FoldResult, ...]
    probe: Probe
    num_unfinished: int = 0
    measures: Mapping[str, float] = field(default_factory=dict)
    limited: str = ""


def accuracy(log_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of rows [rows, classes] whose most probable class is the label [rows]."""
    return float((log_probabilities.argmax(axis=1) == labels).mean())


def f1(log_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the F1, from 0 to 1, of the second of two classes, from predictions [rows, 2] and labels [rows]."""
    predictions = log_probabilities.argmax(axis=1)
    num_true_positives = int((predictions * labels).sum())
    return 2 * num_true_positives / max(1, int(predictions.sum() + labels.sum()))


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean F1, from 0 to 1, over the classes that occur in predictions or labels, both int64 [rows]."""
    num_classes = int(max(predictions.max(), labels.max())) + 1
    num_right = np.bincount(labels[predictions == labels], minlength=num_classes)
    num_predicted = np.bincount(predictions, minlength=num_classes)
    num_labelled = np.bincount(labels, minlength=num_classes)
    total = num_predicted + num_labelled
    occurs = total > 0
    return float(np.mean(2 * num_right[occurs] / total[occurs]))


def auroc(log_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the area under the ROC curve, from 0 to 1: the mean over classes of each against the rest.

    It is NaN if all rows are of one class.

    Args:
        log_probabilities: [rows, classes].
        labels: The rows' classes, int64 [rows].
    """
    classes = range(log_probabilities.shape[1])
    if len(classes) == 2:
        # The first class against the second has the same area.
        classes = classes[1:]
    areas = []
    for label in classes:
        is_class = labels == label
        num_class = int(is_class.sum())
        num_others = int((~is_class).sum())
        if num_class and num_others:
            # The mean rank of the class's rows, as in the Mann-Whitney statistic; ties share their mean rank.
            ranked = ranks(log_probabilities[:, label])
            num_above = ranked[is_class].sum() - num_class * (num_class + 1) / 2
            areas.append(num_above / (num_class * num_others))
    if not areas:
        return float("nan")
    return float(np.mean(areas))


def balance_measures(data: TaskData, result: ProbeResult) -> dict[str, float]:
    """Return measures in percent that do not depend on how frequent classes are: `macro_f1` and `auroc`."""
    if data.is_scored:
        return {}
    rows = np.concatenate([fold.test_rows for fold in result.folds])
    predicted = np.concatenate([fold.test_log_probabilities for fold in result.folds])
    labels = data.labels[rows]
    measures = {}
    if data.metric != "accuracy":
        measures["accuracy"] = accuracy(predicted, labels)
    measures["macro_f1"] = macro_f1(predicted.argmax(axis=1), labels)
    measures["auroc"] = auroc(predicted, labels)
    return {name: 100 * share for name, share in measures.items() if np.isfinite(share)}


def class_measures(
    data: TaskData, log_probabilities: np.ndarray, rows: np.ndarray
) -> dict[str, float]:
    """Return other measures of test rows: the F1 in percent for pairs with two classes, such as paraphrases."""
    if data.kind == "sentence" or len(data.label_names) != 2:
        return {}
    return {"f1": 100 * f1(log_probabilities, data.labels[rows])}


def predicted_scores(log_probabilities: np.ndarray) -> Float64:
    """Return the mean rating of log-probabilities of the rating levels 1, 2, … [rows, levels], float64 [rows]."""
    levels = np.arange(1, log_probabilities.shape[1] + 1)
    means: Float64 = np.exp(log_probabilities.astype(np.float64)) @ levels
    return means


def pearson(predicted: np.ndarray, scores: np.ndarray) -> float:
    """Return Pearson's correlation of two arrays [rows]; 0 if one of them is constant."""
    if np.ptp(predicted) == 0 or np.ptp(scores) == 0:
        return 0.0
    return float(np.corrcoef(predicted, scores)[0, 1])


def spearman(predicted: np.ndarray, scores: np.ndarray) -> float:
    """Return Spearman's correlation of two arrays [rows]; 0 if one of them is constant."""
    return pearson(ranks(predicted), ranks(scores))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values [rows], from 1; equal values share their mean rank."""
    from scipy.stats import rankdata  # noqa: PLC0415 - a second at the start of every process that trains

    ranked: np.ndarray = rankdata(values)
    return ranked
