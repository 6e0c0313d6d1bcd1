"""The protocol `kiros`: that of the Skip-Thoughts paper, also used for Quick-Thoughts.

LIBLINEAR's logistic regression, with a penalty on the intercept too, one against the rest for more than two classes; C
from 2^0 to 2^8, ties to the smallest. All fits of a task are solved together (`probes.logistic`), closer to the optimum
than LIBLINEAR, which solves the sparse features of words. How rows are divided:

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
from itertools import product

import numpy as np
import torch
from scipy import sparse

from raysent.evaluation.probes.early_stopping import single_thread
from raysent.evaluation.probes.logistic import Fits, class_targets
from raysent.evaluation.probes.relatedness import SoftmaxLayer, Stop, cross_entropy
from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult, accuracy, class_measures, f1
from raysent.evaluation.task import TaskData

STRENGTHS = tuple(2.0**exponent for exponent in range(9))
NUM_FOLDS = 10
SEED = 1234
EPOCHS_PER_ROUND = 100
STOP = Stop(tenacity=0, max_rounds=100)
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
            "version": 3,
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
    """A fitted classifier: its margins of all rows, float32 [rows, outputs], and its probe for new ones."""

    margins: np.ndarray
    probe: Probe


class _Together:
    """All fits at once, on dense features.

    Attributes:
        num_unfinished: The fits that stopped at the maximum number of iterations.
    """

    def __init__(self, features: np.ndarray, data: TaskData, *, num_vector_dims: int) -> None:
        targets = class_targets(data.labels, num_classes=len(data.label_names))
        trainable = np.arange(len(data.labels)) if data.split == "nested" else data.train
        first = Fits(features, targets[:, :1], trainable=trainable, strengths=STRENGTHS, has_free_intercept=False)
        # One against the rest: every class is a task of its own.
        self._fits = [first, *(first.with_targets(targets[:, place, None]) for place in range(1, targets.shape[1]))]
        self._num_rows, self._num_vector_dims = len(features), num_vector_dims

    def path(self, trains: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return for each C the margins of all rows, float32 [rows, outputs, trains], fitted on each set of rows."""
        masks = self._masks(trains)
        margins = torch.cat([fits.margins(fits.path(masks)) for fits in self._fits], dim=1).numpy()
        return np.split(margins, len(STRENGTHS), axis=2)

    def fit(self, trains: Sequence[np.ndarray], strengths: Sequence[float]) -> list[_Classifier]:
        """Return the classifier of each set of rows at its C."""
        masks, costs = self._masks(trains), torch.tensor(strengths)
        solved = [fits.solve(masks, costs) for fits in self._fits]
        pairs = list(zip(self._fits, solved, strict=True))
        margins = torch.cat([fits.margins(one) for fits, one in pairs], dim=1).numpy()
        found = []
        for place, strength in enumerate(strengths):
            probes = [fits.probe(one, place, strength) for fits, one in pairs]
            # For new sentences, of which only the vectors are known.
            weights = np.concatenate([probe.weights[: self._num_vector_dims] for probe in probes], axis=1)
            intercepts = np.concatenate([probe.intercepts for probe in probes])
            found.append(_Classifier(margins[..., place], Probe(weights, intercepts, strength)))
        return found

    @property
    def num_unfinished(self) -> int:
        return sum(fits.num_unfinished for fits in self._fits)

    def _masks(self, trains: Sequence[np.ndarray]) -> torch.Tensor:
        masks = torch.zeros(self._num_rows, len(trains), dtype=torch.bool)
        for place, rows in enumerate(trains):
            masks[torch.from_numpy(rows), place] = True
        return masks


class _OneByOne:
    """As `_Together`, fit by fit with LIBLINEAR, on dense features beside the sparse ones of the words."""

    def __init__(self, features: np.ndarray, data: TaskData) -> None:
        self.num_unfinished = 0
        self._dense, self._labels = features.astype(np.float64), data.labels
        self._words = NaiveBayes(data.sentences[0])

    def path(self, trains: Sequence[np.ndarray]) -> list[np.ndarray]:
        jobs = list(product(STRENGTHS, trains))
        fitted = self.fit([train for _, train in jobs], [strength for strength, _ in jobs])
        of_all = np.stack([one.margins for one in fitted], axis=2)
        return np.split(of_all, len(STRENGTHS), axis=2)

    def fit(self, trains: Sequence[np.ndarray], strengths: Sequence[float]) -> list[_Classifier]:
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # LIBLINEAR releases the GIL
            fitted = list(threads.map(self._fit_one, trains, strengths))
        self.num_unfinished += sum(not is_finished for _, is_finished in fitted)
        return [classifier for classifier, _ in fitted]

    def _fit_one(self, train: np.ndarray, strength: float) -> tuple[_Classifier, bool]:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - seconds that `fast` does without

        words = self._words.features(train, self._labels)
        inputs = sparse.hstack([sparse.csr_matrix(self._dense), words], format="csr")
        fitted = LogisticRegression(solver="liblinear", C=strength).fit(inputs[train], self._labels[train])
        margins = fitted.decision_function(inputs).astype(np.float32)[:, None]
        # As above.
        weights = fitted.coef_[:, : self._dense.shape[1]].T.astype(np.float32)
        classifier = _Classifier(margins, Probe(weights, fitted.intercept_.astype(np.float32), strength))
        return classifier, bool(fitted.n_iter_.max() < fitted.max_iter)


@dataclass(frozen=True)
class _Choice:
    """The C with the best mean score over folds, that mean, and its held-out predictions, concatenated."""

    strength: float
    mean: float
    log_probabilities: np.ndarray


class _Task:
    """A task's rows, labels, and the fits on its features."""

    def __init__(self, features: np.ndarray, data: TaskData, *, has_extra_features: bool) -> None:
        self.data, self.labels, num_dims = data, data.labels, features.shape[1]
        self.is_binary = len(data.label_names) == 2
        self.solver: _Together | _OneByOne
        if has_extra_features and self.is_binary and data.kind == "sentence":
            self.solver = _OneByOne(features, data)
        else:
            if has_extra_features and data.kind != "sentence":
                features = np.hstack([features, pair_features(*data.sentences)])
            self.solver = _Together(features, data, num_vector_dims=num_dims)

    def choose(self, sets: Sequence[Sequence[Fold]], score: ScoreFunction) -> list[_Choice]:
        """Return the choice of each set of folds."""
        by_strength = self.solver.path([train for folds in sets for train, _ in folds])
        found, begin = [], 0
        for folds in sets:
            candidates = []
            for strength, margins in zip(STRENGTHS, by_strength, strict=True):
                held_out = [
                    Probe.log_probabilities_of_margins(margins[out, :, begin + place])
                    for place, (_, out) in enumerate(folds)
                ]
                scores = [score(one, self.labels[out]) for one, (_, out) in zip(held_out, folds, strict=True)]
                candidates.append(_Choice(strength, float(np.mean(scores)), np.concatenate(held_out)))
            found.append(max(candidates, key=lambda one: one.mean))  # the first, the smallest C, in a tie
            begin += len(folds)
        return found


def _fit_nested(task: _Task) -> ProbeResult:
    rows = np.array([row for row, sentence in enumerate(task.data.sentences[0]) if sentence.strip()])
    outer = _folds(_shuffled(rows))
    inner = [_folds(train) for train, _ in outer]
    choices = task.choose(inner, accuracy)
    strengths = [choice.strength for choice in choices]
    *fitted, last = task.solver.fit([*(train for train, _ in outer), rows], [*strengths, float(np.median(strengths))])
    results = []
    for (_, test), folds, choice, classifier in zip(outer, inner, choices, fitted, strict=True):
        validated = np.concatenate([out for _, out in folds])
        tested = Probe.log_probabilities_of_margins(classifier.margins[test])
        results.append(FoldResult(validated, choice.log_probabilities, test, tested, choice.strength))
    tests = [accuracy(fold.test_log_probabilities, task.labels[fold.test_rows]) for fold in results]
    validation = float(np.mean([choice.mean for choice in choices]))
    return ProbeResult(
        100 * validation, 100 * float(np.mean(tests)), tuple(results), last.probe, task.solver.num_unfinished
    )


def _fit_train_test(task: _Task) -> ProbeResult:
    data, train = task.data, task.data.train
    by_f1 = data.kind != "sentence" and task.is_binary
    if by_f1:
        folds = _folds(train, shuffle=True)
    else:
        train = _shuffled(train)
        folds = _folds(train)
    return _fit_chosen(task, folds, f1 if by_f1 else accuracy, train=train)


def _fit_given_splits(task: _Task) -> ProbeResult:
    data = task.data
    return _fit_chosen(task, [(data.train, data.validation)], accuracy, train=data.train)


def _fit_chosen(task: _Task, folds: Sequence[Fold], score: ScoreFunction, *, train: np.ndarray) -> ProbeResult:
    data = task.data
    (choice,) = task.choose([folds], score)
    (fitted,) = task.solver.fit([train], [choice.strength])
    tested = Probe.log_probabilities_of_margins(fitted.margins[data.test])
    validated = np.concatenate([out for _, out in folds])
    result = FoldResult(validated, choice.log_probabilities, data.test, tested, choice.strength)
    test = 100 * accuracy(tested, task.labels[data.test])
    measures = class_measures(data, tested, data.test)
    return ProbeResult(100 * choice.mean, test, (result,), fitted.probe, task.solver.num_unfinished, measures)


def _fit_scored_pairs(features: np.ndarray, data: TaskData) -> ProbeResult:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layer = torch.nn.Linear(features.shape[1], len(data.label_names))
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    softmax = SoftmaxLayer(features, data.scores, layer=layer, order=np.arange)
    splits = (_shuffled(data.train), data.validation, data.test)
    return softmax.fit(data, splits, num_epochs=EPOCHS_PER_ROUND, batch_size=128, loss=cross_entropy, stop=STOP)


def _shuffled(rows: np.ndarray) -> np.ndarray:
    shuffled = rows.copy()
    np.random.RandomState(SEED).shuffle(shuffled)
    return shuffled


def _folds(rows: np.ndarray, *, shuffle: bool = False) -> list[Fold]:
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
