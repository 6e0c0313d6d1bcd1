"""TF-IDF with logistic regression on a task: the predictions of a model without vectors of a fixed size.

Rows are divided and C is chosen by the protocol `fast`, so that the model stands in the same tables and can be a member
of an ensemble. Features of pairs are those of encoders: [|u - v| ; u * v], and [u ; v] before them where the order
matters. Weights of words are counted on the rows that may train, held-out folds among them: their texts, not their
labels. A word that none of these rows has counts for the length of the vector of another row, and for the cosine of a
pair that shares it, as a word of a single row does, so that held-out rows and new ones are alike.

With a limit on the time, a fit on a part of the rows is timed first, and if all fits would take longer, fewer values of
C are tried, on fewer rows: see `plan_fits`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raysent.errors import DataError
from raysent.evaluation.probes.features import COSINE_SCALE
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
FEW_STRENGTHS = STRENGTHS[1:6:2]
LEAST_ROWS = 1000

Arrays = dict[str, np.ndarray]


class FitPlan(NamedTuple):
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


def plan_fits(num_rows: int, *, split: str, seconds: float, row_s: float) -> FitPlan:
    """Return a plan within a time: every C on all rows if it fits, else few, on a half, a quarter, ... of the rows.

    The last fits have all rows where these take at most half of the time.

    Args:
        num_rows: The rows that may train.
        split: How they are divided; see `TaskData`.
        seconds: The time of all fits.
        row_s: What a fit takes for each of its rows.
    """
    pairs = NUM_FOLDS * (NUM_FOLDS - 1) // 2
    each, last = {"nested": (pairs, NUM_FOLDS + 1), "train-test": (NUM_FOLDS, 1)}.get(split, (1, 0))
    all_s = row_s * num_rows * (each * len(STRENGTHS) + last)
    if all_s <= seconds or num_rows <= LEAST_ROWS:
        return FitPlan()
    rows = num_rows
    while True:
        last_rows = num_rows if row_s * last * num_rows <= seconds / 2 else rows
        if (
            rows == LEAST_ROWS
            or row_s * (each * len(FEW_STRENGTHS) * rows + last * last_rows) <= seconds
        ):
            return FitPlan(FEW_STRENGTHS, rows, last_rows, all_s)
        rows = max(LEAST_ROWS, rows // 2)


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
    fits, limited = LexicalFits(features, data), ""
    if seconds is not None and len(trainable) > LEAST_ROWS:
        left_s = seconds - (time.thread_time() - began_s)
        plan = plan_fits(
            len(trainable), split=data.split, seconds=left_s, row_s=fits.row_seconds(trainable)
        )
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
    trainable = np.arange(len(data)) if data.split == "nested" else data.train
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


def predict_lexical(
    model: LexicalModel, probe: Probe, arrays: Arrays, columns: tuple[list[str], ...], *, kind: str
) -> np.ndarray:
    """Return log-probabilities of new rows, float32 [rows, classes]."""
    is_new = np.ones(len(columns[0]), dtype=np.bool_)
    features = lexical_features(model.restored(arrays), columns, kind=kind, is_new=is_new)
    return probe.log_probabilities_of_margins(features @ probe.weights + probe.intercepts)


def lexical_similarities(model: LexicalModel, first: list[str], second: list[str]) -> np.ndarray:
    """Return the cosine of the TF-IDF vectors of each pair, float64 [rows]; words are weighted by these sentences."""
    vectorizer = model.vectorizer().fit([*first, *second])
    products = vectorizer.transform(first).multiply(vectorizer.transform(second))
    return np.asarray(products.sum(axis=1), dtype=np.float64).ravel()


def lexical_features(
    vectorizer: TfidfVectorizer, columns: Sequence[list[str]], *, kind: str, is_new: np.ndarray
) -> sparse.csr_matrix:
    """Return the features of rows, sparse float32 [rows, features].

    Args:
        vectorizer: Fitted.
        columns: The texts of rows, of each column.
        kind: What a row is; see `TaskData`.
        is_new: Whether the vectorizer has not seen a row, [rows].
    """
    vectors = [vectorizer.transform(column).astype(np.float32) for column in columns]
    # Of text without blanks, parts of a single text count for no length, so that sentences have nothing to add.
    if not is_new.any() or (vectorizer.min_df > 1 and len(columns) == 1):
        return join_columns(vectors, kind=kind)
    lengths = np.ones((len(columns), len(is_new)), dtype=np.float32)
    unknown_cosines = np.zeros(len(is_new), dtype=np.float32)
    unknown_words = _UnknownWords(vectorizer)
    for row in np.flatnonzero(is_new):
        lengths[:, row], unknown_cosines[row] = unknown_words.of_row(
            [texts[row] for texts in columns]
        )
    scaled = [
        (sparse.diags(length) @ of_column).tocsr()
        for length, of_column in zip(lengths, vectors, strict=True)
    ]
    return join_columns(scaled, kind=kind, unknown_cosines=unknown_cosines)


class _UnknownWords:
    """What the words that are in no row of a vocabulary do to a new row: as words of a single row do to that row."""

    def __init__(self, vectorizer: TfidfVectorizer) -> None:
        self._analyze = vectorizer.build_analyzer()
        self._idf = dict(
            zip(
                vectorizer.vocabulary_,
                vectorizer.idf_[[*vectorizer.vocabulary_.values()]],
                strict=True,
            )
        )
        self._rarest = float(vectorizer.idf_.max())
        # Of text without blanks a part has to be in two texts, which may be the two of one row.
        self._must_be_shared = vectorizer.min_df > 1

    def of_row(self, texts: Sequence[str]) -> tuple[list[float], float]:
        """Return the length that known words have in each text's vector, and the cosine that unknown words have."""
        counts = [Counter(self._analyze(text)) for text in texts]
        shared = set.intersection(*map(set, counts)) if len(counts) > 1 else set()
        known_lengths = []
        unit_weights: list[dict[str, float]] = []
        for of_text in counts:
            known = 0.0
            unknown: dict[str, float] = {}
            for word, count in of_text.items():
                weight = 1 + math.log(count)
                if word in self._idf:
                    known += (weight * self._idf[word]) ** 2
                elif word in shared or not self._must_be_shared:
                    unknown[word] = weight * self._rarest
            whole = known + sum(weight**2 for weight in unknown.values())
            known_lengths.append(math.sqrt(known / whole) if unknown else 1.0)
            unit_weights.append(
                {word: weight / math.sqrt(whole) for word, weight in unknown.items()}
            )
        cosine = 0.0
        if len(unit_weights) > 1:
            first, second = unit_weights
            cosine = sum(weight * second[word] for word, weight in first.items() if word in second)
        return known_lengths, cosine


def join_columns(
    vectors: Sequence[sparse.csr_matrix],
    *,
    kind: str,
    unknown_cosines: np.ndarray | None = None,
) -> sparse.csr_matrix:
    """Return the features of rows from the vectors of each column; see `task_features`.

    Args:
        vectors: Of each column, [rows, words], of length one with the words that are left out of them.
        kind: What a row is; see `TaskData`.
        unknown_cosines: What words that are left out of the vectors add to the cosine of each row's texts, [rows].
    """
    if kind == "sentence":
        return vectors[0].tocsr()
    u, v = vectors
    products = u.multiply(v)
    parts = [abs(u - v), products]
    if kind == "order":
        parts = [u, v, *parts]
    elif kind == "likeness":
        cosines = np.asarray(products.sum(axis=1), dtype=np.float32).ravel()
        if unknown_cosines is not None:
            cosines = cosines + unknown_cosines
        parts = [sparse.csr_matrix(COSINE_SCALE * cosines[:, None]), *parts]
    return sparse.hstack(parts, format="csr")


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


class LexicalSolution(NamedTuple):
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
        self, features: sparse.csr_matrix, data: TaskData, plan: FitPlan | None = None
    ) -> None:
        """Hold the features of all rows, [rows, features]."""
        self._features, self._data, self._plan = features, data, plan or FitPlan()
        self._ranks = stratified_ranks(data.labels, np.random.default_rng(FOLD_SEED))

    @property
    def strengths(self) -> tuple[float, ...]:
        """The grid of C."""
        return self._plan.strengths

    def row_seconds(self, rows: np.ndarray) -> float:
        """Return the processor time of a fit for each of its rows: of the second, as the first loads libraries."""
        some, began_s = self._first(rows, LEAST_ROWS), 0.0
        for _ in range(2):
            began_s = time.thread_time()
            self._probe(some, FEW_STRENGTHS[1])
        return (time.thread_time() - began_s) / len(some)

    def path(self, masks: Tensor) -> LexicalSolution:
        """Solve every mask [rows, masks] at every C; problem `strength * masks + mask`."""
        strengths = torch.tensor(self.strengths).repeat_interleave(masks.shape[1])
        return self._solve(masks.repeat(1, len(self.strengths)), strengths, self._plan.rows)

    def solve(self, masks: Tensor, strengths: Tensor, start: None = None) -> LexicalSolution:
        """Solve each problem, given by the rows that train it [rows, problems] and its C [problems]."""
        del start
        return self._solve(masks, strengths, self._plan.last_rows)

    def _solve(self, masks: Tensor, strengths: Tensor, most: int | None) -> LexicalSolution:
        problems = zip(masks.T.numpy(), strengths.tolist(), strict=True)
        probes = [
            self._probe(self._first(np.flatnonzero(mask), most), strength)
            for mask, strength in problems
        ]
        margins = np.stack(
            [self._features @ probe.weights + probe.intercepts for probe in probes], axis=2
        )
        return LexicalSolution(torch.from_numpy(margins), probes)

    def _first(self, rows: np.ndarray, most: int | None) -> np.ndarray:
        return (
            rows
            if most is None or len(rows) <= most
            else np.sort(rows[np.argsort(self._ranks[rows])[:most]])
        )

    def margins(self, solution: LexicalSolution) -> Tensor:
        """Return the margins of all rows."""
        return solution.margins

    def probe(self, solution: LexicalSolution, problem: int, strength: float) -> Probe:
        """Return the classifier of one problem."""
        del strength
        return solution.probes[problem]

    def _probe(self, rows: np.ndarray, strength: float) -> Probe:
        """Fit some rows; of scored pairs, the two levels beside a score share the row's weight."""
        data, num_classes = self._data, len(self._data.label_names)
        weights, trained, labels = None, self._features[rows], data.labels[rows]
        if data.is_scored:
            targets = level_targets(data.scores[rows], num_levels=num_classes)
            targets[:, 0] += 1 - targets.sum(axis=1)
            places, labels = np.nonzero(targets > 0)
            trained, weights = trained[places], targets[places, labels]
        if (labels == labels[0]).all():
            return _constant_probe(
                int(labels[0]), len(labels), trained.shape[1], num_classes, strength
            )
        classifier = fit_classifier(trained, labels, strength=strength, weights=weights)
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
