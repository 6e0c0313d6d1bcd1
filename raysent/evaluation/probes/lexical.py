"""TF-IDF with logistic regression on a task: the predictions of a model without vectors of a fixed size.

Rows are divided and C is chosen by the protocol `fast`, so that the model stands in the same tables and can be a member
of an ensemble. `lexical_features.py` has the features. Weights of words are counted on the rows that may train,
held-out folds among them: their texts, not their labels.

With a limit on the time, a fit on a part of the rows is timed first, and if all fits would take longer, fewer values of
C are tried, on fewer rows: see `plan_fits`.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raysent.errors import DataError
from raysent.evaluation.probes.lexical_features import Arrays, lexical_features
from raysent.evaluation.probes.relatedness import level_targets
from raysent.evaluation.probes.results import Probe, ProbeResult
from raysent.evaluation.protocols.fast import (
    FOLD_SEED,
    NUM_FOLDS,
    STRENGTHS,
    fit_rows,
    stratified_ranks,
)
from raysent.evaluation.task import TaskData
from raysent.models.schemes.tfidf import LexicalModel
from raysent.progress import format_duration

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

MAX_STEPS = 100
# With a limit on the time: the values of C that are tried where all take longer, and the least rows that train a fit.
_FEW_STRENGTHS = STRENGTHS[1:6:2]
LEAST_ROWS = 1000


class _FitPlan(NamedTuple):
    """What fits of a task try.

    Attributes:
        strengths: The values of C.
        rows: The rows that train a fit that chooses C, at most.
        last_rows: Those of a fit at the C that was chosen.
        all_s: The seconds that all fits on all rows would take.
    """

    strengths: tuple[float, ...] = STRENGTHS
    rows: int | None = None
    last_rows: int | None = None
    all_s: float = 0.0


def plan_fits(num_rows: int, *, split: str, seconds: float, row_s: float) -> _FitPlan:
    """Return a plan within a time: every C on all rows if it fits, else few, on a half, a quarter, ... of the rows.

    The last fits have all rows where these take at most half of the time.

    Args:
        num_rows: The rows that may train.
        split: How they are divided; see `TaskData`.
        seconds: The time of all fits.
        row_s: What a fit takes for each of its rows.
    """
    num_choosing, num_last = _num_fits(split)
    all_s = row_s * num_rows * (num_choosing * len(STRENGTHS) + num_last)
    if all_s <= seconds or num_rows <= LEAST_ROWS:
        return _FitPlan()
    last_has_all = row_s * num_last * num_rows <= seconds / 2
    rows = num_rows
    while True:
        last_rows = rows
        if last_has_all:
            last_rows = num_rows
        planned_rows = num_choosing * len(_FEW_STRENGTHS) * rows + num_last * last_rows
        if rows == LEAST_ROWS or row_s * planned_rows <= seconds:
            return _FitPlan(_FEW_STRENGTHS, rows, last_rows, all_s)
        rows = max(LEAST_ROWS, rows // 2)


def _num_fits(split: str) -> tuple[int, int]:
    """Return the fits at each C that choose it, and those at the C that was chosen, of rows that are divided so."""
    if split == "nested":
        # Every two of the outer folds are left out together once, and then each alone and none.
        return NUM_FOLDS * (NUM_FOLDS - 1) // 2, NUM_FOLDS + 1
    if split == "train-test":
        return NUM_FOLDS, 1
    return 1, 0


def fit_lexical(
    model: LexicalModel, data: TaskData, *, seconds: float | None = None
) -> tuple[ProbeResult, Arrays]:
    """Fit and score TF-IDF with logistic regression on a task.

    Args:
        model: Words or characters.
        data: The task's rows.
        seconds: Processor time in which all fits should end; None for no limit.

    Returns:
        The result, and the vocabulary that its probe needs for new sentences.

    Raises:
        DataError: If no training text has a word.
    """
    began_s = time.thread_time()
    vectorizer, features, trainable = _counted(model, data)
    fits = LexicalFits(features, data)
    limited = ""
    if seconds is not None and len(trainable) > LEAST_ROWS:
        remaining_s = seconds - (time.thread_time() - began_s)
        row_s = fits.row_seconds(trainable)
        plan = plan_fits(len(trainable), split=data.split, seconds=remaining_s, row_s=row_s)
        if plan.rows is not None:
            fits = LexicalFits(features, data, plan)
            limited = (
                f"{len(plan.strengths)} of {len(STRENGTHS)} values of C, each on {plan.rows:,} of {len(trainable):,} "
                f"rows, as all would take {format_duration(plan.all_s)} of the {format_duration(seconds)} there are"
            )
    return replace(fit_rows(fits, data), limited=limited), _arrays(vectorizer, model)


def lexical_fits(model: LexicalModel, data: TaskData) -> tuple[LexicalFits, Arrays]:
    """Return what fits TF-IDF to a task's rows, and the vocabulary that its probes need for new sentences.

    Raises:
        DataError: If no training text has a word.
    """
    vectorizer, features, _ = _counted(model, data)
    return LexicalFits(features, data), _arrays(vectorizer, model)


def _counted(
    model: LexicalModel, data: TaskData
) -> tuple[TfidfVectorizer, sparse.csr_matrix, np.ndarray]:
    """Return the words of the rows that may train with their weights, the features of all rows, and these rows."""
    trainable = data.train
    if data.split == "nested":
        trainable = np.arange(len(data))
    vectorizer = model.of(data.sentences[0]).vectorizer()
    try:
        vectorizer.fit([column[row] for column in data.sentences for row in trainable])
    except ValueError:
        raise DataError(
            f"{data.task}: tfidf needs words in the training texts; found none"
        ) from None
    is_new = ~np.isin(np.arange(len(data)), trainable)
    features = lexical_features(vectorizer, data.sentences, kind=data.kind, is_new=is_new)
    return vectorizer, features, trainable


def lexical_similarities(model: LexicalModel, first: list[str], second: list[str]) -> np.ndarray:
    """Return the cosine of the TF-IDF vectors of each pair, float64 [rows]; words are weighted by these sentences."""
    vectorizer = model.vectorizer().fit([*first, *second])
    products = vectorizer.transform(first).multiply(vectorizer.transform(second))
    return np.asarray(products.sum(axis=1), dtype=np.float64).ravel()


def _arrays(vectorizer: TfidfVectorizer, model: LexicalModel) -> Arrays:
    """Return what predicting needs: the words, one a line, their weights, and how text is read."""
    words = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.get)
    arrays = {
        "words": np.frombuffer("\n".join(words).encode(), dtype=np.uint8),
        "idf": vectorizer.idf_.astype(np.float32),
    }
    if vectorizer.min_df > 1:
        arrays["is_unspaced"] = np.ones(1, dtype=np.bool_)
    if model.unicode_form == "NFC":
        arrays["reads_nfc"] = np.ones(1, dtype=np.bool_)
    return arrays


class _LexicalSolution(NamedTuple):
    """Fits of several problems: margins of all rows, float32 [rows, outputs, problems], and each problem's probe."""

    margins: Tensor
    probes: list[Probe]

    def start(self, problems: Tensor) -> None:
        """Return nothing: these fits start from zero."""
        del problems


class LexicalFits:
    """The fits of a task, one after another; see `protocols.fast.Solver`."""

    num_unfinished = 0

    def __init__(
        self, features: sparse.csr_matrix, data: TaskData, plan: _FitPlan | None = None
    ) -> None:
        """Hold the features of all rows, [rows, features]."""
        self._features = features
        self._data = data
        self._plan = plan or _FitPlan()
        # By rising ranks classes alternate, so that the first rows of a fit on few have each class in its share.
        self._ranks = stratified_ranks(data.labels, np.random.default_rng(FOLD_SEED))

    @property
    def strengths(self) -> tuple[float, ...]:
        """The grid of C."""
        return self._plan.strengths

    def row_seconds(self, rows: np.ndarray) -> float:
        """Return the processor time that a fit takes for each of its rows."""
        timed_rows = self._first(rows, LEAST_ROWS)
        # The first fit loads libraries, and is not timed.
        self._probe(timed_rows, _FEW_STRENGTHS[1])
        began_s = time.thread_time()
        self._probe(timed_rows, _FEW_STRENGTHS[1])
        return (time.thread_time() - began_s) / len(timed_rows)

    def path(self, masks: Tensor) -> _LexicalSolution:
        """Solve every mask [rows, masks] at every C; problem `strength * masks + mask`."""
        strengths = torch.tensor(self.strengths).repeat_interleave(masks.shape[1])
        return self._solve(masks.repeat(1, len(self.strengths)), strengths, self._plan.rows)

    def solve(self, masks: Tensor, strengths: Tensor, start: None = None) -> _LexicalSolution:
        """Solve each problem, given by the rows that train it [rows, problems] and its C [problems]."""
        del start
        return self._solve(masks, strengths, self._plan.last_rows)

    def _solve(self, masks: Tensor, strengths: Tensor, max_rows: int | None) -> _LexicalSolution:
        probes = []
        margins = []
        for mask, strength in zip(masks.T.numpy(), strengths.tolist(), strict=True):
            probe = self._probe(self._first(np.flatnonzero(mask), max_rows), strength)
            probes.append(probe)
            margins.append(self._features @ probe.weights + probe.intercepts)
        return _LexicalSolution(torch.from_numpy(np.stack(margins, axis=2)), probes)

    def _first(self, rows: np.ndarray, max_rows: int | None) -> np.ndarray:
        """Return so many of the rows, with each class in its share, in their order."""
        if max_rows is None or len(rows) <= max_rows:
            return rows
        by_rank = rows[np.argsort(self._ranks[rows])]
        return np.sort(by_rank[:max_rows])

    def margins(self, solution: _LexicalSolution) -> Tensor:
        """Return the margins of all rows."""
        return solution.margins

    def probe(self, solution: _LexicalSolution, problem: int, strength: float) -> Probe:
        """Return the classifier of one problem."""
        del strength
        return solution.probes[problem]

    def _probe(self, rows: np.ndarray, strength: float) -> Probe:
        """Fit some rows; of scored pairs, the two levels beside a score share the row's weight."""
        num_classes = len(self._data.label_names)
        features = self._features[rows]
        labels = self._data.labels[rows]
        weights = None
        if self._data.is_scored:
            targets = level_targets(self._data.scores[rows], num_levels=num_classes)
            # What a score below 1 loses to a level 0 belongs to level 1.
            targets[:, 0] += 1 - targets.sum(axis=1)
            row_indices, labels = np.nonzero(targets > 0)
            features = features[row_indices]
            weights = targets[row_indices, labels]
        if (labels == labels[0]).all():
            return _constant_probe(
                int(labels[0]), len(labels), features.shape[1], num_classes, strength
            )
        classifier = fit_classifier(features, labels, strength=strength, weights=weights)
        return full_probe(classifier, num_classes, strength)


def fit_classifier(
    features: sparse.csr_matrix,
    labels: np.ndarray,
    *,
    strength: float,
    weights: np.ndarray | None = None,
) -> LogisticRegression:
    """Return a fitted logistic regression.

    Newton steps converge in a few passes over the rows. The default solver of scikit-learn takes ten times as many, and
    with a loose tolerance it stops far from the optimum, which costs six points of accuracy on TREC.
    """
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - it takes seconds to import, and most commands do without
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - as above

    classifier = LogisticRegression(C=strength, solver="newton-cg", max_iter=MAX_STEPS, tol=1e-4)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        classifier.fit(features, labels, weights)
        # Beside the large feature of a pair's cosine the search for a step may fail in single precision.
        if any("line search" in str(warning.message).lower() for warning in raised):
            classifier.fit(features.astype(np.float64), labels, weights)
    for warning in raised:
        is_expected = issubclass(warning.category, ConvergenceWarning)
        if not is_expected and "line search" not in str(warning.message).lower():
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return classifier


def _constant_probe(
    label: int, num_rows: int, num_features: int, num_classes: int, strength: float
) -> Probe:
    """Return the probe of rows of one class, as in a fold of whole groups: surer of it, the more rows there are."""
    odds = np.float32(np.log1p(num_rows))
    intercepts = np.where(np.arange(num_classes) == label, odds, 0).astype(np.float32)
    if num_classes == 2:
        # Two classes have one output, that of the second.
        intercepts = intercepts[1:] - intercepts[0]
    return Probe(np.zeros((num_features, len(intercepts)), dtype=np.float32), intercepts, strength)


def full_probe(classifier: LogisticRegression, num_classes: int, strength: float) -> Probe:
    """Return a classifier as a probe of all classes; one that no row trained has the lowest margin."""
    weights = np.asarray(classifier.coef_.T, dtype=np.float32)
    intercepts = np.asarray(classifier.intercept_, dtype=np.float32)
    present = classifier.classes_
    if num_classes == 2:
        return Probe(weights, intercepts, strength)
    if len(present) == 2:
        # Of two classes scikit-learn has one output: the difference of the two that they have here.
        weights = np.hstack([-weights / 2, weights / 2])
        intercepts = np.concatenate([-intercepts / 2, intercepts / 2])
    all_weights = np.zeros((len(weights), num_classes), dtype=np.float32)
    all_weights[:, present] = weights
    all_intercepts = np.full(num_classes, -20.0, dtype=np.float32)
    all_intercepts[present] = intercepts
    return Probe(all_weights, all_intercepts, strength)
