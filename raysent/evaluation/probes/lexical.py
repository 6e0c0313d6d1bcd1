"""TF-IDF with logistic regression on a task: the predictions of a model without vectors of a fixed size.

Rows are divided, and log-probabilities kept, exactly as by the protocol `fast`, so that the model stands in the same
tables and can be a member of an ensemble; C is chosen by the same rule from the same grid. Features of pairs are those
of encoders: [|u - v| ; u * v], and [u ; v] before them where the order matters. Weights of words are counted on the
rows that may train, held-out folds among them: their texts, not their labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from raysent.errors import DataError
from raysent.evaluation.probes.relatedness import Predictions, level_targets, scored_result
from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult
from raysent.evaluation.protocols.fast import STRENGTHS, fold_numbers, result_of_folds
from raysent.evaluation.targets import Targets, best_of
from raysent.evaluation.task import TaskData
from raysent.models.schemes.tfidf import LexicalModel

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

MAX_STEPS = 100

Arrays = dict[str, np.ndarray]
# Rows that train, and C -> margins of all rows [rows, outputs], and the classifier.
Fit = Callable[[np.ndarray, float], tuple[np.ndarray, Probe]]


def fit_lexical(model: LexicalModel, data: TaskData) -> tuple[ProbeResult, Arrays]:
    """Fit and score TF-IDF with logistic regression on a task.

    Returns:
        The result, and the vocabulary that its probe needs for new sentences.

    Raises:
        DataError: If no training text has a word.
    """
    trainable = np.arange(len(data)) if data.split == "nested" else data.train
    vectorizer = model.vectorizer()
    try:
        vectorizer.fit([column[row] for column in data.sentences for row in trainable])
    except ValueError:
        raise DataError(f"{data.task}: tfidf needs words in the training texts; found none") from None
    features = lexical_features(vectorizer, data.sentences, kind=data.kind)
    fit = _fitter(features, data)
    if data.is_scored:
        result = _scored(fit, data)
    elif data.split == "nested":
        result = _nested(fit, data)
    elif data.split == "train-test":
        result = _train_test(fit, data)
    else:
        result = _given_splits(fit, data)
    return result, _arrays(vectorizer)


def predict_lexical(
    model: LexicalModel, probe: Probe, arrays: Arrays, columns: tuple[list[str], ...], *, kind: str
) -> np.ndarray:
    """Return log-probabilities of new rows, float32 [rows, classes]."""
    features = lexical_features(model.restored(arrays), columns, kind=kind)
    return probe.log_probabilities_of_margins(features @ probe.weights + probe.intercepts)


def lexical_similarities(model: LexicalModel, first: list[str], second: list[str]) -> np.ndarray:
    """Return the cosine of the TF-IDF vectors of each pair, float64 [rows]; words are weighted by these sentences."""
    vectorizer = model.vectorizer().fit([*first, *second])
    products = vectorizer.transform(first).multiply(vectorizer.transform(second))
    return np.asarray(products.sum(axis=1), dtype=np.float64).ravel()


def lexical_features(vectorizer: TfidfVectorizer, columns: Sequence[list[str]], *, kind: str) -> sparse.csr_matrix:
    """Return the features of rows, sparse float32 [rows, features]."""
    vectors = [vectorizer.transform(column).astype(np.float32) for column in columns]
    if kind == "sentence":
        return vectors[0].tocsr()
    u, v = vectors
    parts = [abs(u - v), u.multiply(v)]
    return sparse.hstack([u, v, *parts] if kind == "order" else parts, format="csr")


def _arrays(vectorizer: TfidfVectorizer) -> Arrays:
    """Return what predicting needs: the words, one a line, and their weights."""
    words = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.get)
    return {
        "words": np.frombuffer("\n".join(words).encode(), dtype=np.uint8),
        "idf": vectorizer.idf_.astype(np.float32),
    }


def _fitter(features: sparse.csr_matrix, data: TaskData) -> Fit:
    """Return a function that fits some rows; of scored pairs, the two levels beside a score share the row's weight."""
    num_classes = len(data.label_names)

    def fit(rows: np.ndarray, strength: float) -> tuple[np.ndarray, Probe]:
        weights = None
        trained, labels = features[rows], data.labels[rows]
        if data.is_scored:
            targets = level_targets(data.scores[rows], num_levels=num_classes)
            targets[:, 0] += 1 - targets.sum(axis=1)
            places, labels = np.nonzero(targets > 0)
            trained, weights = trained[places], targets[places, labels]
        if (labels == labels[0]).all():
            probe = _constant_probe(int(labels[0]), len(labels), features.shape[1], num_classes, strength)
        else:
            classifier = fit_classifier(trained, labels, strength=strength, weights=weights)
            probe = full_probe(classifier, num_classes, strength)
        return features @ probe.weights + probe.intercepts, probe

    return fit


def fit_classifier(
    features: sparse.csr_matrix, labels: np.ndarray, *, strength: float, weights: np.ndarray | None = None
) -> LogisticRegression:
    """Return a fitted logistic regression.

    Newton steps converge in a few passes over the rows. The default solver of scikit-learn takes ten times as many, and
    with a loose tolerance it stops far from the optimum, which costs six points of accuracy on TREC.
    """
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - it takes seconds to import, and most commands do without
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - as above

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, solver="newton-cg", max_iter=MAX_STEPS, tol=1e-4).fit(
            features, labels, weights
        )


def _constant_probe(label: int, num_rows: int, num_features: int, num_classes: int, strength: float) -> Probe:
    """Return the probe of rows of one class, as in a fold of whole groups: surer of it, the more rows there are."""
    odds = np.float32(np.log1p(num_rows))
    intercepts = np.where(np.arange(num_classes) == label, odds, 0).astype(np.float32)
    intercepts = intercepts[1:] - intercepts[0] if num_classes == 2 else intercepts
    return Probe(np.zeros((num_features, len(intercepts)), dtype=np.float32), intercepts, strength)


def full_probe(classifier: LogisticRegression, num_classes: int, strength: float) -> Probe:
    """Return a classifier as a probe of all classes; one that no row trained has the lowest margin."""
    weights = np.asarray(classifier.coef_.T, dtype=np.float32)
    intercepts = np.asarray(classifier.intercept_, dtype=np.float32)
    present = classifier.classes_
    if num_classes == 2:
        return Probe(weights, intercepts, strength)
    if len(present) == 2:
        weights = np.hstack([-weights / 2, weights / 2])
        intercepts = np.concatenate([-intercepts / 2, intercepts / 2])
    full = np.zeros((len(weights), num_classes), dtype=np.float32)
    lowest = np.full(num_classes, -20.0, dtype=np.float32)
    full[:, present], lowest[present] = weights, intercepts
    return Probe(full, lowest, strength)


def _nested(fit: Fit, data: TaskData) -> ProbeResult:
    folds, num_folds = fold_numbers(data, np.arange(len(data)))
    pairs = list(combinations(range(num_folds), 2))
    # The fit without folds o and i predicts both: i within outer fold o, and o within i.
    inner: dict[tuple[int, int], list[np.ndarray]] = {}
    for first, second in pairs:
        rows = np.flatnonzero((folds != first) & (folds != second))
        fitted = [fit(rows, strength)[0] for strength in STRENGTHS]
        for outer, held_out in ((first, second), (second, first)):
            inner[outer, held_out] = [one[folds == held_out] for one in fitted]
    results, totals = [], np.zeros((len(STRENGTHS), 2))
    for outer in range(num_folds):
        rows = np.flatnonzero(folds != outer)
        candidates = []
        for place in range(len(STRENGTHS)):
            margins = np.empty((len(data), inner[outer, (outer + 1) % num_folds][place].shape[1]), dtype=np.float32)
            for held_out in range(num_folds):
                if held_out != outer:
                    margins[folds == held_out] = inner[outer, held_out][place]
            candidates.append(_logs(margins[rows]))
        measured = Targets.of(data).take(rows).measure(candidates)
        totals += measured
        best, test = best_of(measured), np.flatnonzero(folds == outer)
        tested = _logs(fit(rows, STRENGTHS[best])[0][test])
        results.append(FoldResult(rows, candidates[best], test, tested, STRENGTHS[best]))
    _, probe = fit(np.arange(len(data)), STRENGTHS[best_of(totals)])
    return result_of_folds(results, data, probe, 0)


def _train_test(fit: Fit, data: TaskData) -> ProbeResult:
    folds, num_folds = fold_numbers(data, data.train)
    candidates: list[list[np.ndarray]] = [[] for _ in STRENGTHS]
    order = np.argsort(folds, kind="stable")
    for fold in range(num_folds):
        for place, strength in enumerate(STRENGTHS):
            candidates[place].append(_logs(fit(data.train[folds != fold], strength)[0][data.train[folds == fold]]))
    joined = [np.concatenate(one)[np.argsort(order, kind="stable")] for one in candidates]
    best = best_of(Targets.of(data).take(data.train).measure(joined))
    margins, probe = fit(data.train, STRENGTHS[best])
    found = FoldResult(data.train, joined[best], data.test, _logs(margins[data.test]), STRENGTHS[best])
    return result_of_folds([found], data, probe, 0)


def _given_splits(fit: Fit, data: TaskData) -> ProbeResult:
    fits = [fit(data.train, strength) for strength in STRENGTHS]
    candidates = [_logs(margins[data.validation]) for margins, _ in fits]
    best = best_of(Targets.of(data).take(data.validation).measure(candidates))
    margins, probe = fits[best]
    found = FoldResult(data.validation, candidates[best], data.test, _logs(margins[data.test]), STRENGTHS[best])
    return result_of_folds([found], data, probe, 0)


def _scored(fit: Fit, data: TaskData) -> ProbeResult:
    fits = [fit(data.train, strength) for strength in STRENGTHS]
    validated = [_logs(margins[data.validation]) for margins, _ in fits]
    best = best_of(Targets.of(data).take(data.validation).measure(validated))
    margins, probe = fits[best]
    tested = Predictions(data.test, _logs(margins[data.test]))
    return scored_result(data, Predictions(data.validation, validated[best]), tested, probe=probe)


def _logs(margins: np.ndarray) -> np.ndarray:
    return Probe.log_probabilities_of_margins(margins)
