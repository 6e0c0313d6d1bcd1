"""The protocol `kiros`: that of the Skip-Thoughts paper, also used for Quick-Thoughts.

LIBLINEAR's logistic regression, with a penalty on the intercept too, one against the rest for more than two classes; C
from 2^0 to 2^8, ties to the smallest. How rows are divided:

- nested (MR, CR, SUBJ, MPQA): rows in a random order, ten contiguous folds, and within each ten contiguous inner folds
  whose mean accuracy chooses C. Empty sentences are left out.
- train-test (TREC): ten contiguous folds of train in a random order choose; a fit on train is tested.
- train-test of pairs (MRPC): ten random folds, chosen by F1.
- scored pairs (SICK-R, STS-B): one softmax layer over five rating levels, cross-entropy, 100 epochs a round, stopped by
  the first round that does not improve validation's correlation.
- train-validation-test (SST, SICK-E, which the paper does not cover): validation chooses C; a fit on train is tested.

The configuration `features` appends what the paper calls additional features: for MRPC six features of the pair's words
and numbers, for binary tasks of one sentence the naive-Bayes log-ratios of its words and word pairs.

Source: Kiros et al., 2015, sections 3.2 to 3.4, and their released code; Socher et al., 2011, section 4.3 (features of
pairs); Wang and Manning, 2012, section 2 (naive Bayes).
Differs: words are split at white space, because the published files are tokenized. Log-probabilities of more than two
classes are the softmax of the one-against-the-rest margins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import sparse

from raysent.evaluation.probes.early_stopping import single_thread
from raysent.evaluation.probes.relatedness import Predictions, SoftmaxLayer, cross_entropy, scored_result
from raysent.evaluation.probes.results import (
    FoldResult,
    Probe,
    ProbeResult,
    accuracy,
    class_measures,
    f1,
    log_probabilities,
    pearson,
    predicted_scores,
)
from raysent.evaluation.task import TaskData

STRENGTHS = tuple(2.0**exponent for exponent in range(9))
NUM_FOLDS = 10
SEED = 1234
EPOCHS_PER_ROUND = 100
MAX_ROUNDS = 100
# Added to the counts of words before their log-ratios are taken.
SMOOTHING = 1.0

Fold = tuple[np.ndarray, np.ndarray]
# Log-probabilities [rows, classes] and labels [rows] -> the score, from 0 to 1.
ScoreFunction = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Kiros:
    """The protocol of the Skip-Thoughts and Quick-Thoughts papers.

    Attributes:
        has_extra_features: Whether the papers' additional features are appended.
    """

    has_extra_features: bool = False

    @property
    def summary(self) -> str:
        """What the configuration is."""
        extra = ", with their additional features" if self.has_extra_features else ""
        return f"The protocol of the Skip-Thoughts and Quick-Thoughts papers{extra}"

    def settings(self) -> dict[str, object]:
        """Return what scores depend on."""
        return {
            "version": 1,
            "configuration": "features" if self.has_extra_features else "default",
            "strengths": list(STRENGTHS),
            "num_folds": NUM_FOLDS,
            "seed": SEED,
            "epochs_of_a_round": EPOCHS_PER_ROUND,
        }

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score a task's probe; see `EvaluationProtocol`."""
        if data.is_scored:
            with single_thread():
                return _fit_scored_pairs(features, data)
        task = _Task(features, data, has_extra_features=self.has_extra_features)
        match data.split:
            case "nested":
                return _fit_nested(task)
            case "train-test":
                return _fit_train_test(task)
            case "train-validation-test":
                return _fit_given_splits(task)


PROTOCOLS = {"kiros": Kiros(), "kiros/features": Kiros(has_extra_features=True)}


@dataclass(frozen=True)
class _Classifier:
    """A fitted classifier: its margins of all rows [rows, outputs], and its probe for new ones."""

    margins: np.ndarray
    probe: Probe

    def log_probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Return log-probabilities of rows, float32 [rows, classes]."""
        return log_probabilities(torch.from_numpy(self.margins[rows].astype(np.float32))).numpy()


class _Task:
    """A task's features and labels, and the fits on them."""

    def __init__(self, features: np.ndarray, data: TaskData, *, has_extra_features: bool) -> None:
        self.data, self.labels = data, data.labels
        self.is_binary = len(data.label_names) == 2
        self.has_ratios = has_extra_features and self.is_binary and data.kind == "sentence"
        dense = features.astype(np.float64)
        self.features = dense
        if has_extra_features and data.kind != "sentence":
            self.features = np.hstack([dense, pair_features(*data.sentences)])
        self.dim = features.shape[1]

    @cached_property
    def words(self) -> NaiveBayes:
        """The words of the sentences, counted once."""
        return NaiveBayes(self.data.sentences[0])

    def fit(self, train: np.ndarray, strength: float) -> _Classifier:
        """Return the classifier for training rows and a C."""
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - seconds that `fast` does without
        from sklearn.multiclass import OneVsRestClassifier  # noqa: PLC0415 - as above

        inputs: Any = self.features
        if self.has_ratios:
            inputs = sparse.hstack([sparse.csr_matrix(inputs), self.words.features(train, self.labels)], format="csr")
        one = LogisticRegression(solver="liblinear", C=strength)
        classifier = one if self.is_binary else OneVsRestClassifier(one)
        classifier.fit(inputs[train], self.labels[train])
        margins = classifier.decision_function(inputs)
        return _Classifier(margins.reshape(len(self.labels), -1), self._probe(classifier, strength))

    def _probe(self, classifier: Any, strength: float) -> Probe:
        """Return the classifier for new sentences, of which only the vectors are known."""
        parts = [classifier] if self.is_binary else classifier.estimators_
        weights = np.concatenate([part.coef_[:, : self.dim] for part in parts]).T.astype(np.float32)
        intercepts = np.concatenate([part.intercept_ for part in parts]).astype(np.float32)
        return Probe(weights, intercepts, strength)

    def choose(self, folds: Sequence[Fold], score: ScoreFunction) -> tuple[float, float, np.ndarray]:
        """Return the C with the best mean score over folds, that mean, and its held-out predictions, concatenated."""
        means, predictions = [], []
        jobs = list(product(STRENGTHS, folds))
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # LIBLINEAR releases the GIL
            fitted = list(threads.map(lambda job: self._held_out(job[0], job[1]), jobs))
        for place in range(len(STRENGTHS)):
            of_strength = fitted[place * len(folds) : (place + 1) * len(folds)]
            scores = [score(one, self.labels[out]) for one, (_, out) in zip(of_strength, folds, strict=True)]
            means.append(float(np.mean(scores)))
            predictions.append(np.concatenate(of_strength))
        best = int(np.argmax(means))
        return STRENGTHS[best], means[best], predictions[best]

    def _held_out(self, strength: float, fold: Fold) -> np.ndarray:
        train, held_out = fold
        return self.fit(train, strength).log_probabilities(held_out)


def _fit_nested(task: _Task) -> ProbeResult:
    rows = np.array([row for row, sentence in enumerate(task.data.sentences[0]) if sentence.strip()])
    rows = _shuffled(rows)
    chosen, means, results = [], [], []
    for train, test in _folds(rows):
        inner = _folds(train)
        strength, mean, validated = task.choose(inner, accuracy)
        chosen.append(strength)
        means.append(mean)
        tested = task.fit(train, strength).log_probabilities(test)
        results.append(FoldResult(np.concatenate([out for _, out in inner]), validated, test, tested, strength))
    tests = [accuracy(fold.test_log_probabilities, task.labels[fold.test_rows]) for fold in results]
    last = task.fit(rows, float(np.median(chosen)))
    return ProbeResult(100 * float(np.mean(means)), 100 * float(np.mean(tests)), tuple(results), last.probe)


def _fit_train_test(task: _Task) -> ProbeResult:
    data, train = task.data, task.data.train
    by_f1 = data.kind != "sentence" and task.is_binary
    if by_f1:
        folds = _folds(train, shuffle=True)
    else:
        train = _shuffled(train)
        folds = _folds(train)
    strength, mean, validated = task.choose(folds, f1 if by_f1 else accuracy)
    fitted = task.fit(train, strength)
    tested = fitted.log_probabilities(data.test)
    labels = task.labels[data.test]
    measures = class_measures(data, tested, data.test)
    result = FoldResult(np.concatenate([out for _, out in folds]), validated, data.test, tested, strength)
    return ProbeResult(100 * mean, 100 * accuracy(tested, labels), (result,), fitted.probe, measures=measures)


def _fit_given_splits(task: _Task) -> ProbeResult:
    data = task.data
    strength, mean, validated = task.choose([(data.train, data.validation)], accuracy)
    fitted = task.fit(data.train, strength)
    tested = fitted.log_probabilities(data.test)
    result = FoldResult(data.validation, validated, data.test, tested, strength)
    return ProbeResult(100 * mean, 100 * accuracy(tested, task.labels[data.test]), (result,), fitted.probe)


def _fit_scored_pairs(features: np.ndarray, data: TaskData) -> ProbeResult:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layer = torch.nn.Linear(features.shape[1], len(data.label_names))
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    softmax = SoftmaxLayer(features, data.scores, layer=layer, order=np.arange)
    train, scores = _shuffled(data.train), data.scores[data.validation]
    best, snapshot = -1.0, softmax.snapshot()
    for _ in range(MAX_ROUNDS):
        softmax.train(train, num_epochs=EPOCHS_PER_ROUND, batch_size=128, loss=cross_entropy)
        reached = pearson(predicted_scores(softmax.log_probabilities(data.validation)), scores)
        if reached <= best:
            break
        best, snapshot = reached, softmax.snapshot()
    softmax.restore(snapshot)
    validated, tested = (Predictions(rows, softmax.log_probabilities(rows)) for rows in (data.validation, data.test))
    return scored_result(data, validated, tested, probe=softmax.probe())


def _shuffled(rows: np.ndarray) -> np.ndarray:
    """Return rows in the protocol's random order."""
    shuffled = rows.copy()
    np.random.RandomState(SEED).shuffle(shuffled)
    return shuffled


def _folds(rows: np.ndarray, *, shuffle: bool = False) -> list[Fold]:
    """Return the training and the held-out rows of every fold, contiguous or random."""
    from sklearn.model_selection import KFold  # noqa: PLC0415 - as above

    folds = KFold(NUM_FOLDS, shuffle=shuffle, random_state=SEED if shuffle else None)
    return [(rows[train], rows[held_out]) for train, held_out in folds.split(rows)]


def pair_features(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return six features of pairs, float32 [rows, 6].

    Whether both sentences have the same numbers; the same and at least one; the numbers of one among those of the
    other; the fraction of the first's words that the second has, and of the second's that the first has; and the mean
    of the two ratios of their lengths.
    """
    return np.array(
        [_features_of_pair(a.split(), b.split()) for a, b in zip(first, second, strict=True)], dtype=np.float32
    )


def _features_of_pair(first: list[str], second: list[str]) -> list[float]:
    one, other = set(first), set(second)
    numbers, others = ({word for word in words if _is_number(word)} for words in (one, other))
    num_shared = len(one & other)
    ratio = (len(first) / len(second) + len(second) / len(first)) / 2 if first and second else 0.0
    return [
        float(numbers == others),
        float(numbers == others and bool(numbers)),
        float(numbers <= others or others <= numbers),
        num_shared / len(one) if one else 0.0,
        num_shared / len(other) if other else 0.0,
        ratio,
    ]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class NaiveBayes:
    """Words and word pairs of sentences, weighted by how strongly they indicate a class."""

    def __init__(self, sentences: Sequence[str]) -> None:
        """Count words and pairs of neighboring words in sentences [rows]."""
        from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - as above

        counter = CountVectorizer(ngram_range=(1, 2), tokenizer=str.split, token_pattern=None, lowercase=False)
        self.counts = counter.fit_transform(sentences).tocsr().astype(np.float64)
        self.present = (self.counts > 0).astype(np.float64)

    def features(self, train: np.ndarray, labels: np.ndarray) -> sparse.csr_matrix:
        """Return ln(p / q) where a word or pair is present and 0 elsewhere, [rows, words and pairs].

        p and q are the smoothed fractions of a word among those of the second and of the first class, counted in
        training rows; a word that occurs in none of them gets 0.

        Args:
            train: The rows that train, int64 [train rows].
            labels: All rows' classes, 0 or 1, [rows].
        """
        sums = [self.counts[train[labels[train] == label]].sum(axis=0).A1 for label in (0, 1)]
        known = (sums[0] + sums[1]) > 0
        fractions = [(total + SMOOTHING) / (total + SMOOTHING)[known].sum() for total in sums]
        ratios = np.where(known, np.log(fractions[1] / fractions[0]), 0.0)
        return self.present.multiply(ratios).tocsr()
