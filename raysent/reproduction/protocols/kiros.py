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
_SMOOTHING = 1.0

Fold = tuple[np.ndarray, np.ndarray]
# Log-probabilities [rows, classes] and labels [rows] -> the score, from 0 to 1.
_ScoreFunction = Callable[[np.ndarray, np.ndarray], float]


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
        summary = "The protocol of the Skip-Thoughts and Quick-Thoughts papers"
        if self.has_extra_features:
            summary += ", with their additional features"
        return summary

    def settings(self) -> dict[str, object]:
        """Return what scores depend on."""
        version = 3
        configuration = "default"
        if self.has_extra_features:
            version = 4
            configuration = "features"
        return {
            "version": version,
            "configuration": configuration,
            "strengths": list(STRENGTHS),
            "num_folds": NUM_FOLDS,
            "seed": SEED,
            "epochs_of_a_round": EPOCHS_PER_ROUND,
        }

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score a task's probe; see `EvaluationProtocol`."""
        if data.is_scored:
            # With more threads, small products are slower.
            with torch_threads(1):
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
        trainable = data.train
        if data.split == "nested" or has_words:
            trainable = np.arange(len(data.labels))
        scaled: Callable[..., ScaledFeatures] = ScaledFeatures
        self._masks_at_once = NUM_FOLDS**2
        if has_words:
            scaled = partial(NaiveBayes, data.sentences[0], data.labels)
            # Weights of words are many: those of all folds at every C would not fit in memory.
            self._masks_at_once = NUM_FOLDS
        first = Fits(
            features,
            targets[:, :1],
            trainable=trainable,
            strengths=STRENGTHS,
            has_free_intercept=False,
            scaled=scaled,
        )
        # One against the rest: every class is a task of its own.
        self._fits = [first]
        for class_index in range(1, targets.shape[1]):
            self._fits.append(first.with_targets(targets[:, class_index, None]))
        self._num_rows = len(features)
        self._num_vector_dims = num_vector_dims

    def path(self, trains: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return for each C the margins of all rows, float32 [rows, outputs, trains], fitted on each set of rows."""
        parts = []
        for masks in torch.split(self._masks(trains), self._masks_at_once, dim=1):
            margins = torch.cat([fits.margins(fits.path(masks)) for fits in self._fits], dim=1)
            parts.append(margins.view(*margins.shape[:2], len(STRENGTHS), -1))
        return list(torch.cat(parts, dim=3).movedim(2, 0).numpy())

    def fit(self, trains: Sequence[np.ndarray], strengths: Sequence[float]) -> list[_Classifier]:
        """Return the classifier of each set of rows at its C."""
        masks = self._masks(trains)
        costs = torch.tensor(strengths)
        solved = [(fits, fits.solve(masks, costs)) for fits in self._fits]
        margins = torch.cat([fits.margins(solution) for fits, solution in solved], dim=1).numpy()
        classifiers = []
        for problem, strength in enumerate(strengths):
            probes = [fits.probe(solution, problem, strength) for fits, solution in solved]
            # For new sentences, of which only the vectors are known.
            vector_weights = [probe.weights[: self._num_vector_dims] for probe in probes]
            weights = np.concatenate(vector_weights, axis=1)
            intercepts = np.concatenate([probe.intercepts for probe in probes])
            probe = Probe(weights, intercepts, strength)
            classifiers.append(_Classifier(margins[..., problem], probe))
        return classifiers

    @property
    def num_unfinished(self) -> int:
        return sum(fits.num_unfinished for fits in self._fits)

    def _masks(self, trains: Sequence[np.ndarray]) -> torch.Tensor:
        masks = torch.zeros(self._num_rows, len(trains), dtype=torch.bool)
        for problem, rows in enumerate(trains):
            masks[torch.from_numpy(rows), problem] = True
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
        self.data = data
        self.labels = data.labels
        self.is_binary = len(data.label_names) == 2
        num_vector_dims = features.shape[1]
        if has_extra_features and data.kind != "sentence":
            features = np.hstack([features, pair_features(*data.sentences)])
        has_words = has_extra_features and self.is_binary and data.kind == "sentence"
        self.solver = _Together(
            features, data, num_vector_dims=num_vector_dims, has_words=has_words
        )

    def choose(self, sets: Sequence[Sequence[Fold]], score: _ScoreFunction) -> list[_Choice]:
        """Return the choice of each set of folds."""
        by_strength = self.solver.path([train for folds in sets for train, _ in folds])
        choices = []
        first_problem = 0
        for folds in sets:
            candidates = []
            for strength, margins in zip(STRENGTHS, by_strength, strict=True):
                scores = []
                predictions = []
                for problem, (_, held_out) in enumerate(folds, start=first_problem):
                    of_fold = margins[held_out, :, problem]
                    predicted = Probe.log_probabilities_of_margins(of_fold)
                    scores.append(score(predicted, self.labels[held_out]))
                    predictions.append(predicted)
                mean = float(np.mean(scores))
                candidates.append(_Choice(strength, mean, np.concatenate(predictions)))
            # The first, which has the smallest C, in a tie.
            choices.append(max(candidates, key=lambda candidate: candidate.mean))
            first_problem += len(folds)
        return choices


def _fit_nested(task: _Task) -> ProbeResult:
    rows = np.array(
        [row for row, sentence in enumerate(task.data.sentences[0]) if sentence.strip()]
    )
    outer_folds = _folds(_shuffled(rows))
    inner_folds = [_folds(train) for train, _ in outer_folds]
    choices = task.choose(inner_folds, accuracy)
    strengths = [choice.strength for choice in choices]
    # The probe for new sentences trains on all rows with the median of the choices.
    trains = [*(train for train, _ in outer_folds), rows]
    *fitted, last = task.solver.fit(trains, [*strengths, float(np.median(strengths))])
    fold_results = []
    test_scores = []
    for (_, test), folds, choice, classifier in zip(
        outer_folds, inner_folds, choices, fitted, strict=True
    ):
        validated = np.concatenate([held_out for _, held_out in folds])
        tested = Probe.log_probabilities_of_margins(classifier.margins[test])
        test_scores.append(accuracy(tested, task.labels[test]))
        fold_results.append(
            FoldResult(validated, choice.log_probabilities, test, tested, choice.strength)
        )
    return ProbeResult(
        validation=100 * float(np.mean([choice.mean for choice in choices])),
        test=100 * float(np.mean(test_scores)),
        folds=tuple(fold_results),
        probe=last.probe,
        num_unfinished=task.solver.num_unfinished,
    )


def _fit_train_test(task: _Task) -> ProbeResult:
    train = task.data.train
    if task.data.kind != "sentence" and task.is_binary:
        return _fit_chosen(task, _folds(train, shuffle=True), f1, train=train)
    train = _shuffled(train)
    return _fit_chosen(task, _folds(train), accuracy, train=train)


def _fit_given_splits(task: _Task) -> ProbeResult:
    data = task.data
    return _fit_chosen(task, [(data.train, data.validation)], accuracy, train=data.train)


def _fit_chosen(
    task: _Task, folds: Sequence[Fold], score: _ScoreFunction, *, train: np.ndarray
) -> ProbeResult:
    """Return the result of a fit on the rows that train, at the C that the folds choose."""
    test = task.data.test
    (choice,) = task.choose([folds], score)
    (fitted,) = task.solver.fit([train], [choice.strength])
    tested = Probe.log_probabilities_of_margins(fitted.margins[test])
    validated = np.concatenate([held_out for _, held_out in folds])
    fold = FoldResult(validated, choice.log_probabilities, test, tested, choice.strength)
    return ProbeResult(
        validation=100 * choice.mean,
        test=100 * accuracy(tested, task.labels[test]),
        folds=(fold,),
        probe=fitted.probe,
        num_unfinished=task.solver.num_unfinished,
        measures=class_measures(task.data, tested, test),
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

    folds = KFold(NUM_FOLDS)
    if shuffle:
        folds = KFold(NUM_FOLDS, shuffle=True, random_state=SEED)
    return [(rows[train], rows[held_out]) for train, held_out in folds.split(rows)]


def pair_features(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return six features of pairs, float32 [rows, 6].

    Whether both sentences have the same numbers; the same and at least one; the numbers of one among those of the
    other; the fraction of the first's words that the second has, and of the second's that the first has; and the mean
    of the two ratios of their lengths.
    """
    features = []
    for first_sentence, second_sentence in zip(first, second, strict=True):
        features.append(_features_of_pair(first_sentence.split(), second_sentence.split()))
    return np.array(features, dtype=np.float32)


def _features_of_pair(first: list[str], second: list[str]) -> list[float]:
    first_words = set(first)
    second_words = set(second)
    first_numbers = {word for word in first_words if is_number(word)}
    second_numbers = {word for word in second_words if is_number(word)}
    num_shared = len(first_words & second_words)
    ratio = 0.0
    if first and second:
        ratio = (len(first) / len(second) + len(second) / len(first)) / 2
    return [
        float(first_numbers == second_numbers),
        float(first_numbers == second_numbers and bool(first_numbers)),
        float(first_numbers <= second_numbers or second_numbers <= first_numbers),
        # Without words nothing is shared, and the fraction is 0.
        num_shared / max(1, len(first_words)),
        num_shared / max(1, len(second_words)),
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
        self._labels = labels[:, None]
        self._counts = counts.T.tocsr()
        present = (self._counts > 0).astype(np.float32)
        # Words of the same sentences have the same sum of these random numbers, one a sentence.
        keys = present @ np.random.default_rng(SEED).random(len(sentences))
        _, first, columns = np.unique(keys, return_index=True, return_inverse=True)
        words = np.arange(len(keys))
        ones = np.ones(len(keys), np.float32)
        self._groups = sparse.coo_array((ones, (columns, words))).tocsr()
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
        sums = []
        for label in (0, 1):
            is_trained = masks.numpy() & (self._labels == label)
            sums.append(self._counts @ is_trained.astype(np.float32))
        occurs = (sums[0] + sums[1]) > 0
        fractions = []
        for of_class in sums:
            smoothed = of_class + _SMOOTHING
            fractions.append(smoothed / (smoothed * occurs).sum(0, dtype=np.float64))
        log_ratios = np.log(fractions[1] / fractions[0])
        squares = np.where(occurs, log_ratios**2, 0.0).astype(np.float32)
        features = copy(self)
        features.ratios = torch.from_numpy(np.sqrt(self._groups @ squares))[:, None]
        return features

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
