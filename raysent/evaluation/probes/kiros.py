"""The protocol `kiros`: how Skip-Thoughts was judged, and after it Quick-Thoughts.

LIBLINEAR's logistic regression, its intercept penalised like its weights, one class against the others where there are
more than two; C from 2^0 to 2^8, the smallest of equals. Where rows are divided:

- nested (MR, CR, SUBJ, MPQA): rows in a drawn order, ten contiguous folds, and within each ten contiguous inner ones
  whose mean accuracy chooses C. Empty sentences are left out.
- train-test (TREC): ten contiguous folds of train in a drawn order choose; a fit on train is tested.
- train-test of pairs (MRPC): ten drawn folds, chosen by F1.
- scored pairs (SICK-R, STS-B): one softmax layer over five marks, cross-entropy, 100 epochs a round; the first round
  that validation's correlation does not like better ends it.
- train-validation-test (SST, SICK-E, of which the protocol does not speak): validation chooses C; train is fitted.

The configuration `features` appends what the paper calls additional features: to MRPC six figures of the pair's words
and numbers, to binary tasks of one sentence the naive-Bayes log-ratios of its words and pairs of words.

Source: Kiros et al., 2015, sections 3.2 to 3.4, and their released code.
Differs: words are what stands between blanks, for the published files are tokenised already. Log-probabilities of more
than two classes are the softmax of the one-against-the-others margins.
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
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier

from raysent.evaluation.probes.features import NaiveBayes, pair_features
from raysent.evaluation.probes.logistic import log_probabilities
from raysent.evaluation.probes.relatedness import (
    Predictions,
    SoftmaxLayer,
    cross_entropy,
    pearson,
    predicted_scores,
    scored_result,
)
from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult, accuracy, class_measures, f1
from raysent.evaluation.probes.senteval import single_thread
from raysent.evaluation.tasks import TaskData

STRENGTHS = tuple(2.0**exponent for exponent in range(9))
NUM_FOLDS = 10
SEED = 1234
EPOCHS_OF_A_ROUND = 100
MAX_ROUNDS = 100

Fold = tuple[np.ndarray, np.ndarray]
Score = Callable[[np.ndarray, np.ndarray], float]


def settings(configuration: str) -> dict[str, object]:
    """Return what the figures depend on."""
    return {
        "version": 1,
        "configuration": configuration,
        "strengths": list(STRENGTHS),
        "num_folds": NUM_FOLDS,
        "seed": SEED,
        "epochs_of_a_round": EPOCHS_OF_A_ROUND,
    }


def fit(features: np.ndarray, data: TaskData, *, configuration: str) -> ProbeResult:
    """Fit and score a task's probe; features [rows, dim] are finite and hold at least two training classes."""
    if data.is_scored:
        with single_thread():
            return _scored_pairs(features, data)
    task = _Task(features, data, has_extras=configuration == "features")
    match data.split:
        case "nested":
            return _nested(task)
        case "train-test":
            return _train_test(task)
        case "train-validation-test":
            return _given(task)


@dataclass(frozen=True)
class _Answers:
    """A fitted classifier: its margins of all rows [rows, outputs], and itself for new ones."""

    margins: np.ndarray
    probe: Probe

    def log_probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Return the answers to rows, float32 [rows, classes]."""
        return log_probabilities(torch.from_numpy(self.margins[rows].astype(np.float32))).numpy()


class _Task:
    """A task's features and labels, and the fits on them."""

    def __init__(self, features: np.ndarray, data: TaskData, *, has_extras: bool) -> None:
        self.data, self.labels = data, data.labels
        self.is_binary = len(data.label_names) == 2
        self.has_ratios = has_extras and self.is_binary and data.kind == "sentence"
        dense = features.astype(np.float64)
        self.features = dense
        if has_extras and data.kind != "sentence":
            self.features = np.hstack([dense, pair_features(*data.sentences)])
        self.dim = features.shape[1]

    @cached_property
    def words(self) -> NaiveBayes:
        """The words of the sentences, counted once."""
        return NaiveBayes(self.data.sentences[0])

    def fit(self, train: np.ndarray, strength: float) -> _Answers:
        """Return the classifier of training rows and a C."""
        inputs: Any = self.features
        if self.has_ratios:
            inputs = sparse.hstack([sparse.csr_matrix(inputs), self.words.features(train, self.labels)], format="csr")
        one = LogisticRegression(solver="liblinear", C=strength)
        classifier = one if self.is_binary else OneVsRestClassifier(one)
        classifier.fit(inputs[train], self.labels[train])
        margins = classifier.decision_function(inputs)
        return _Answers(margins.reshape(len(self.labels), -1), self._probe(classifier, strength))

    def _probe(self, classifier: Any, strength: float) -> Probe:
        """Return the classifier for new sentences, of which only the vectors are known."""
        parts = [classifier] if self.is_binary else classifier.estimators_
        weights = np.concatenate([part.coef_[:, : self.dim] for part in parts]).T.astype(np.float32)
        intercepts = np.concatenate([part.intercept_ for part in parts]).astype(np.float32)
        return Probe(weights, intercepts, strength)

    def choose(self, folds: Sequence[Fold], score: Score) -> tuple[float, float, np.ndarray]:
        """Return the C whose mean score over folds is best, that mean, and its held-out answers, fold after fold."""
        means, answers = [], []
        jobs = list(product(STRENGTHS, folds))
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # LIBLINEAR lets go of Python's lock
            fitted = list(threads.map(lambda job: self._held_out(job[0], job[1]), jobs))
        for place in range(len(STRENGTHS)):
            of_strength = fitted[place * len(folds) : (place + 1) * len(folds)]
            means.append(
                float(np.mean([score(one, self.labels[out]) for one, (_, out) in zip(of_strength, folds, strict=True)]))
            )
            answers.append(np.concatenate(of_strength))
        best = int(np.argmax(means))
        return STRENGTHS[best], means[best], answers[best]

    def _held_out(self, strength: float, fold: Fold) -> np.ndarray:
        train, held_out = fold
        return self.fit(train, strength).log_probabilities(held_out)


def _nested(task: _Task) -> ProbeResult:
    rows = np.array([row for row, sentence in enumerate(task.data.sentences[0]) if sentence.strip()])
    rows = _shuffled(rows)
    chosen, means, results = [], [], []
    for train, test in _folds(rows):
        inner = _folds(train)
        strength, mean, answers = task.choose(inner, accuracy)
        chosen.append(strength)
        means.append(mean)
        tested = task.fit(train, strength).log_probabilities(test)
        results.append(FoldResult(np.concatenate([out for _, out in inner]), answers, test, tested, strength))
    tests = [accuracy(fold.test_log_probabilities, task.labels[fold.test_rows]) for fold in results]
    last = task.fit(rows, float(np.median(chosen)))
    return ProbeResult(100 * float(np.mean(means)), 100 * float(np.mean(tests)), tuple(results), last.probe)


def _train_test(task: _Task) -> ProbeResult:
    data, train = task.data, task.data.train
    by_f1 = data.kind != "sentence" and task.is_binary
    if by_f1:
        folds = _folds(train, shuffle=True)
    else:
        train = _shuffled(train)
        folds = _folds(train)
    strength, mean, answers = task.choose(folds, f1 if by_f1 else accuracy)
    fitted = task.fit(train, strength)
    tested = fitted.log_probabilities(data.test)
    labels = task.labels[data.test]
    measures = class_measures(data, tested, data.test)
    result = FoldResult(np.concatenate([out for _, out in folds]), answers, data.test, tested, strength)
    return ProbeResult(100 * mean, 100 * accuracy(tested, labels), (result,), fitted.probe, measures=measures)


def _given(task: _Task) -> ProbeResult:
    data = task.data
    strength, mean, answers = task.choose([(data.train, data.validation)], accuracy)
    fitted = task.fit(data.train, strength)
    tested = fitted.log_probabilities(data.test)
    result = FoldResult(data.validation, answers, data.test, tested, strength)
    return ProbeResult(100 * mean, 100 * accuracy(tested, task.labels[data.test]), (result,), fitted.probe)


def _scored_pairs(features: np.ndarray, data: TaskData) -> ProbeResult:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layer = torch.nn.Linear(features.shape[1], len(data.label_names))
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    softmax = SoftmaxLayer(features, data.scores, layer=layer, order=np.arange)
    train, scores = _shuffled(data.train), data.scores[data.validation]
    best, kept = -1.0, softmax.copy()
    for _ in range(MAX_ROUNDS):
        softmax.train(train, num_epochs=EPOCHS_OF_A_ROUND, batch_size=128, loss=cross_entropy)
        reached = pearson(predicted_scores(softmax.log_probabilities(data.validation)), scores)
        if reached <= best:
            break
        best, kept = reached, softmax.copy()
    softmax.go_back(kept)
    answers = [Predictions(rows, softmax.log_probabilities(rows)) for rows in (data.validation, data.test)]
    return scored_result(data, *answers, probe=softmax.probe())


def _shuffled(rows: np.ndarray) -> np.ndarray:
    """Return rows in the protocol's one drawn order."""
    shuffled = rows.copy()
    np.random.RandomState(SEED).shuffle(shuffled)
    return shuffled


def _folds(rows: np.ndarray, *, shuffle: bool = False) -> list[Fold]:
    """Return the training and the held-out rows of every fold, contiguous unless they are drawn."""
    folds = KFold(NUM_FOLDS, shuffle=shuffle, random_state=SEED if shuffle else None)
    return [(rows[train], rows[held_out]) for train, held_out in folds.split(rows)]
