"""The protocol `kiros`: that of the Skip-Thoughts paper, also used for Quick-Thoughts.

LIBLINEAR's logistic regression, with a penalty on the intercept too, one against the rest for more than two classes; C
from 2^0 to 2^8, ties to the smallest. All fits of a task are solved together (`probes.logistic`), closer to the optimum
than LIBLINEAR. How rows are divided:

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

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raysent.data.vocabulary.vectors import is_number
from raysent.evaluation.probes.logistic import Fits, ScaledFeatures, Spectrum, class_targets
from raysent.evaluation.probes.relatedness import SoftmaxLayer, Stop, cross_entropy
from raysent.evaluation.probes.results import (
    FoldResult,
    Probe,
    ProbeResult,
    accuracy,
    class_measures,
    f1,
)
from raysent.evaluation.task import TaskData
from raysent.kernels.devices import torch_threads

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
            "version": 4 if self.has_extra_features else 3,
            "configuration": "features" if self.has_extra_features else "default",
            "strengths": list(STRENGTHS),
            "num_folds": NUM_FOLDS,
            "seed": SEED,
            "epochs_of_a_round": EPOCHS_PER_ROUND,
        }

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score a task's probe; see `EvaluationProtocol`."""
        if data.is_scored:
            with torch_threads(1):  # with more, small products are slower
                return _fit_scored_pairs(features, data)
        task = _Task(features, data, has_extra_features=self.has_extra_features)
        fits = {
            "nested": _fit_nested,
            "train-test": _fit_train_test,
            "train-validation-test": _fit_given_splits,
        }
        return fits[data.split](task)


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

    def __init__(
        self, features: np.ndarray, data: TaskData, *, num_vector_dims: int, has_words: bool
    ) -> None:
        targets = class_targets(data.labels, num_classes=len(data.label_names))
        trainable = (
            np.arange(len(data.labels)) if data.split == "nested" or has_words else data.train
        )
        scaled = (
            partial(NaiveBayes, data.sentences[0], data.labels) if has_words else ScaledFeatures
        )
        first = Fits(
            features,
            targets[:, :1],
            trainable=trainable,
            strengths=STRENGTHS,
            has_free_intercept=False,
            scaled=scaled,
        )
        # Weights of words are many: those of all folds at every C would not fit in memory.
        self._masks_at_once = NUM_FOLDS if has_words else NUM_FOLDS**2
        # One against the rest: every class is a task of its own.
        self._fits = [
            first,
            *(first.with_targets(targets[:, place, None]) for place in range(1, targets.shape[1])),
        ]
        self._num_rows, self._num_vector_dims = len(features), num_vector_dims

    def path(self, trains: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return for each C the margins of all rows, float32 [rows, outputs, trains], fitted on each set of rows."""
        found = []
        for masks in torch.split(self._masks(trains), self._masks_at_once, dim=1):
            margins = torch.cat([fits.margins(fits.path(masks)) for fits in self._fits], dim=1)
            found.append(margins.view(*margins.shape[:2], len(STRENGTHS), -1))
        return list(torch.cat(found, dim=3).movedim(2, 0).numpy())

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
            weights = np.concatenate(
                [probe.weights[: self._num_vector_dims] for probe in probes], axis=1
            )
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
        if has_extra_features and data.kind != "sentence":
            features = np.hstack([features, pair_features(*data.sentences)])
        has_words = has_extra_features and self.is_binary and data.kind == "sentence"
        self.solver = _Together(features, data, num_vector_dims=num_dims, has_words=has_words)

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
                scores = [
                    score(one, self.labels[out])
                    for one, (_, out) in zip(held_out, folds, strict=True)
                ]
                candidates.append(
                    _Choice(strength, float(np.mean(scores)), np.concatenate(held_out))
                )
            found.append(
                max(candidates, key=lambda one: one.mean)
            )  # the first, the smallest C, in a tie
            begin += len(folds)
        return found


def _fit_nested(task: _Task) -> ProbeResult:
    rows = np.array(
        [row for row, sentence in enumerate(task.data.sentences[0]) if sentence.strip()]
    )
    outer = _folds(_shuffled(rows))
    inner = [_folds(train) for train, _ in outer]
    choices = task.choose(inner, accuracy)
    strengths = [choice.strength for choice in choices]
    *fitted, last = task.solver.fit(
        [*(train for train, _ in outer), rows], [*strengths, float(np.median(strengths))]
    )
    results = []
    for (_, test), folds, choice, classifier in zip(outer, inner, choices, fitted, strict=True):
        validated = np.concatenate([out for _, out in folds])
        tested = Probe.log_probabilities_of_margins(classifier.margins[test])
        results.append(
            FoldResult(validated, choice.log_probabilities, test, tested, choice.strength)
        )
    tests = [accuracy(fold.test_log_probabilities, task.labels[fold.test_rows]) for fold in results]
    validation = float(np.mean([choice.mean for choice in choices]))
    return ProbeResult(
        100 * validation,
        100 * float(np.mean(tests)),
        tuple(results),
        last.probe,
        task.solver.num_unfinished,
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


def _fit_chosen(
    task: _Task, folds: Sequence[Fold], score: ScoreFunction, *, train: np.ndarray
) -> ProbeResult:
    data = task.data
    (choice,) = task.choose([folds], score)
    (fitted,) = task.solver.fit([train], [choice.strength])
    tested = Probe.log_probabilities_of_margins(fitted.margins[data.test])
    validated = np.concatenate([out for _, out in folds])
    result = FoldResult(validated, choice.log_probabilities, data.test, tested, choice.strength)
    test = 100 * accuracy(tested, task.labels[data.test])
    measures = class_measures(data, tested, data.test)
    return ProbeResult(
        100 * choice.mean, test, (result,), fitted.probe, task.solver.num_unfinished, measures
    )


def _fit_scored_pairs(features: np.ndarray, data: TaskData) -> ProbeResult:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layer = torch.nn.Linear(features.shape[1], len(data.label_names))
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    softmax = SoftmaxLayer(features, data.scores, layer=layer, order=np.arange)
    splits = (_shuffled(data.train), data.validation, data.test)
    return softmax.fit(
        data, splits, num_epochs=EPOCHS_PER_ROUND, batch_size=128, loss=cross_entropy, stop=STOP
    )


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
        [_features_of_pair(a.split(), b.split()) for a, b in zip(first, second, strict=True)],
        dtype=np.float32,
    )


def _features_of_pair(first: list[str], second: list[str]) -> list[float]:
    one, other = set(first), set(second)
    numbers, others = ({word for word in words if is_number(word)} for words in (one, other))
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


class NaiveBayes(ScaledFeatures):
    """Vectors beside words and word pairs, which are weighted by how strongly they indicate a class.

    All problems share one matrix of 0 and 1 [rows, columns]; each has its own ratio of every column. Words and pairs of
    the same sentences, most of which occur in one alone, are one column, whose ratio is the root of the sum of their
    squares: the penalty leaves them one direction, so that the objective is the same with a fourth of the columns.
    """

    def __init__(
        self,
        sentences: Sequence[str],
        labels: np.ndarray,
        features: Tensor,
        rows: Tensor,
        *,
        is_scaled: bool,
    ) -> None:
        """Count words and pairs of neighboring words in sentences [rows] of classes 0 and 1, beside their vectors."""
        from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - as above

        super().__init__(features, rows, is_scaled=is_scaled)
        counter = CountVectorizer(
            ngram_range=(1, 2), tokenizer=str.split, token_pattern=None, lowercase=False
        )
        counts = counter.fit_transform(sentences).astype(np.float32)
        self._labels, self._counts = labels[:, None], counts.T.tocsr()
        present = (self._counts > 0).astype(np.float32)
        keys = present @ np.random.default_rng(SEED).random(len(sentences))
        _, first, column = np.unique(keys, return_index=True, return_inverse=True)
        self._groups = sparse.coo_array(
            (np.ones(len(keys), np.float32), (column, np.arange(len(keys))))
        ).tocsr()
        self._transposed = present[first]
        self._present = self._transposed.T.tocsr()
        self._share = torch.from_numpy(self._present.mean(axis=0).A1).float()[:, None, None]
        self.ratios = torch.zeros(len(self._share), 1, 1)

    @property
    def dim(self) -> int:
        """Columns of the vectors and of the words."""
        return self.features.shape[1] + len(self._share)

    def of(self, masks: Tensor) -> NaiveBayes:
        """Return the features of problems with these training rows, bool [rows, problems].

        A ratio is ln(p / q), the smoothed fractions of a word among those of the second and of the first class, counted
        in the training rows; a word that occurs in none of them gets 0. Its sign is that of a weight, and left out:
        float32 [columns, 1, problems].
        """
        sums = [
            self._counts @ (masks.numpy() & (self._labels == label)).astype(np.float32)
            for label in (0, 1)
        ]
        known = (sums[0] + sums[1]) > 0
        fractions = [
            (total + SMOOTHING) / ((total + SMOOTHING) * known).sum(0, dtype=np.float64)
            for total in sums
        ]
        squares = np.where(known, np.log(fractions[1] / fractions[0]) ** 2, 0.0).astype(np.float32)
        other = copy(self)
        other.ratios = torch.from_numpy(np.sqrt(self._groups @ squares))[:, None]
        return other

    def times(self, weights: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the product with weights [dim, 1, problems] as [rows, 1, problems]."""
        vectors, words = torch.split(weights, [self.features.shape[1], len(self._share)])
        product = self._present @ (self.ratios * words)[:, 0].numpy()
        return super().times(vectors, features) + torch.from_numpy(product)[:, None]

    def transposed_times(self, residuals: Tensor) -> Tensor:
        """Return the transposed product with residuals [rows, 1, problems] as [dim, 1, problems]."""
        words = torch.from_numpy(self._transposed @ residuals[:, 0].numpy())[:, None]
        return torch.cat([super().transposed_times(residuals), self.ratios * words])

    def precondition(self, spectrum: Spectrum, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Return the approximate inverse Hessian times a gradient: its diagonal where columns are words."""
        vectors, words = torch.split(gradient, [self.features.shape[1], len(self._share)])
        diagonal = 1 + curvature * self.ratios.square() * self._share
        return torch.cat([spectrum.precondition(vectors, curvature), words / diagonal])
