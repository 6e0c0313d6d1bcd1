r"""The protocol `senteval`: the scores of SentEval, to the last digit it prints, on any machine.

Rows are sorted by length and label before folds are drawn, as SentEval does to save padding; the folds depend on it.
How rows are divided:

- nested (MR, CR, SUBJ, MPQA): stratified folds, and stratified inner folds within each outer fold. The smallest L2
  penalty with the best mean inner accuracy is fitted again on the outer fold's training rows; a twentieth of them stops
  that fit early.
- train-test (TREC, MRPC): stratified folds of train choose; a fit on train, stopped by a twentieth of it, is tested.
- train-validation-test (SST, SICK-E): validation chooses, and stops the fits.
- scored pairs (SICK-R, STS-B): one softmax layer over five rating levels, squared error, stopped by validation's
  correlation, in every configuration.

Scores are rounded to two decimals where SentEval rounds them, before the best is chosen among them. Fits run on one
thread, so that scores do not depend on the number of threads.

Source: Conneau and Kiela, 2018, SentEval, senteval/tools/validation.py and senteval/tools/relatedness.py.
Differs: lines of the data end at "\n" only, so that MR and SUBJ have as many rows as published.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from raysent.evaluation.probes.relatedness import SoftmaxLayer, Stop, squared_error
from raysent.evaluation.probes.results import FoldResult, ProbeResult, accuracy, class_measures
from raysent.evaluation.task import TaskData
from raysent.kernels.devices import torch_threads
from raysent.reproduction.protocols.early_stopping import Fit, Recipe, Rows, train_together

_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
SEED = 1111
DEFAULT = Recipe(num_folds=10, optimizer="adam", batch_size=64, tenacity=5, epoch_size=4)
PROTOTYPING = Recipe(num_folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2)
# For scored pairs: a round ends with a validation; none starts after 1,000 epochs.
EPOCHS_PER_ROUND = 50
STOP = Stop(tenacity=3, max_rounds=21)

Fold = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SentEval:
    """SentEval's own scores, to the last digit it prints.

    Attributes:
        recipe: How classifiers are trained.
    """

    recipe: Recipe

    @property
    def summary(self) -> str:
        """What the configuration is."""
        kind = f"{self.recipe.optimizer}, {self.recipe.num_folds} folds, batches of {self.recipe.batch_size}"
        return f"SentEval's own scores, to the last digit it prints; {kind}"

    def settings(self) -> dict[str, object]:
        """Return what scores depend on."""
        return {"version": 1, "penalties": list(_PENALTIES), **asdict(self.recipe)}

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score a task's probe; see `EvaluationProtocol`."""
        # With more threads, small products are slower.
        with torch_threads(1):
            if data.is_scored:
                return _fit_scored_pairs(features, data)
            task = _Task(features, data, self.recipe)
            fits = {
                "nested": _fit_nested,
                "train-test": _fit_train_test,
                "train-validation-test": _fit_given_splits,
            }
            return fits[data.split](task)


PROTOCOLS = {"senteval": SentEval(DEFAULT), "senteval/prototyping": SentEval(PROTOTYPING)}


def sort_by_length(data: TaskData, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return rows sorted by the number of words of each sentence, then by value [all rows], int64 [rows]."""
    lengths = [[len(sentence.split()) for sentence in column] for column in data.sentences]

    def lengths_and_value(row: int) -> tuple[float, ...]:
        return *(of_column[row] for of_column in lengths), values[row]

    return np.array(sorted(rows, key=lengths_and_value), dtype=np.int64)


class _Task:
    """A task's features and labels, and the fits on them."""

    def __init__(self, features: np.ndarray, data: TaskData, recipe: Recipe) -> None:
        self.features = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        self.data = data
        self.recipe = recipe
        self.labels = torch.from_numpy(data.labels)

    def sorted(self, rows: np.ndarray) -> np.ndarray:
        """Return rows sorted by length and label."""
        return sort_by_length(self.data, rows, self.data.labels)

    def folds(self, rows: np.ndarray, *, seed: int) -> list[Fold]:
        """Return the training and the held-out rows of every stratified fold of rows."""
        from sklearn.model_selection import StratifiedKFold  # noqa: PLC0415 - seconds that `fast` does without

        folds = StratifiedKFold(self.recipe.num_folds, shuffle=True, random_state=seed)
        labels = self.data.labels[rows]
        # scikit-learn warns of rare classes, which raysent names with the task's file.
        with warnings.catch_warnings(action="ignore"):
            splits = list(folds.split(np.zeros(len(rows)), labels))
        return [(rows[train], rows[held_out]) for train, held_out in splits]

    def choose(self, folds: Sequence[Fold]) -> tuple[int, float, list[Fit]]:
        """Return the index of the best penalty over folds, its mean accuracy in percent, and its fit on every fold."""
        groups = [Rows.given(train, held_out, seed=self.recipe.seed) for train, held_out in folds]
        penalties = [_PENALTIES] * len(folds)
        fits = train_together(self.features, self.labels, groups, penalties, recipe=self.recipe)
        means = []
        for index in range(len(_PENALTIES)):
            mean = float(np.mean([of_fold[index].validation for of_fold in fits]))
            # Rounded before the best is chosen, as SentEval does.
            means.append(round(100 * mean, 2))
        best = int(np.argmax(means))
        return best, means[best], [of_fold[best] for of_fold in fits]

    def refit(self, choices: Sequence[tuple[np.ndarray, int]]) -> list[Fit]:
        """Return a fit for each choice of training rows and penalty, stopped by a twentieth of the rows."""
        groups = [Rows.split(rows, seed=self.recipe.seed) for rows, _ in choices]
        penalties = [[_PENALTIES[best]] for _, best in choices]
        fits = train_together(self.features, self.labels, groups, penalties, recipe=self.recipe)
        return [fit for (fit,) in fits]

    def log_probabilities(self, fit: Fit, rows: np.ndarray) -> np.ndarray:
        """Return a fit's log-probabilities of rows, float32 [rows, classes]."""
        margins = fit.margins(self.features, rows, batch_size=self.recipe.batch_size)
        return torch.log_softmax(margins, dim=1).numpy()

    def cross_validated(self, folds: Sequence[Fold], fits: Sequence[Fit]) -> np.ndarray:
        """Return the log-probabilities of each fold's held-out rows from the fit on that fold, concatenated."""
        parts = []
        for fit, (_, held_out) in zip(fits, folds, strict=True):
            parts.append(self.log_probabilities(fit, held_out))
        return np.concatenate(parts)

    def percent(self, log_probabilities: np.ndarray, rows: np.ndarray) -> float:
        """Return the accuracy in percent as SentEval prints it."""
        return round(100 * accuracy(log_probabilities, self.data.labels[rows]), 2)


def _fit_nested(task: _Task) -> ProbeResult:
    rows = task.sorted(np.arange(len(task.data.labels)))
    outer_folds = task.folds(rows, seed=SEED)
    best_indices = []
    means = []
    validated = []
    for train, _ in outer_folds:
        inner_folds = task.folds(train, seed=SEED)
        best, mean, fits = task.choose(inner_folds)
        best_indices.append(best)
        means.append(mean)
        validation = np.concatenate([held_out for _, held_out in inner_folds])
        validated.append((validation, task.cross_validated(inner_folds, fits)))
    # The probe for new sentences, which SentEval does not have, trains on all rows with the most frequent choice.
    most_frequent = int(np.bincount(best_indices).argmax())
    choices = [(train, best) for (train, _), best in zip(outer_folds, best_indices, strict=True)]
    *refits, last = task.refit([*choices, (rows, most_frequent)])
    fold_results = []
    test_scores = []
    for (_, test), fit, (validation, predicted) in zip(outer_folds, refits, validated, strict=True):
        tested = task.log_probabilities(fit, test)
        test_scores.append(task.percent(tested, test))
        fold_results.append(FoldResult(validation, predicted, test, tested, 1 / fit.penalty))
    return ProbeResult(
        validation=round(float(np.mean(means)), 2),
        test=round(float(np.mean(test_scores)), 2),
        folds=tuple(fold_results),
        probe=last.probe(),
    )


def _fit_train_test(task: _Task) -> ProbeResult:
    train = task.sorted(task.data.train)
    test = task.sorted(task.data.test)
    folds = task.folds(train, seed=task.recipe.seed)
    best, mean, fits = task.choose(folds)
    (fit,) = task.refit([(train, best)])
    tested = task.log_probabilities(fit, test)
    validation = np.concatenate([held_out for _, held_out in folds])
    predicted = task.cross_validated(folds, fits)
    fold = FoldResult(validation, predicted, test, tested, 1 / fit.penalty)
    measures = {}
    for name, measured in class_measures(task.data, tested, test).items():
        measures[name] = round(measured, 2)
    return ProbeResult(mean, task.percent(tested, test), (fold,), fit.probe(), measures=measures)


def _fit_given_splits(task: _Task) -> ProbeResult:
    train = task.sorted(task.data.train)
    validation = task.sorted(task.data.validation)
    test = task.sorted(task.data.test)
    # SentEval fits once more with the chosen penalty; same seed and rows, so the result is the fit that was chosen.
    _, mean, (fit,) = task.choose([(train, validation)])
    predicted = task.log_probabilities(fit, validation)
    tested = task.log_probabilities(fit, test)
    fold = FoldResult(validation, predicted, test, tested, 1 / fit.penalty)
    return ProbeResult(mean, task.percent(tested, test), (fold,), fit.probe())


def _fit_scored_pairs(features: np.ndarray, data: TaskData) -> ProbeResult:
    splits = [
        sort_by_length(data, rows, data.scores) for rows in (data.train, data.validation, data.test)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layer = torch.nn.Linear(features.shape[1], len(data.label_names))
    softmax = SoftmaxLayer(
        features, data.scores, layer=layer, order=np.random.RandomState(SEED).permutation
    )
    return softmax.fit(
        data, splits, num_epochs=EPOCHS_PER_ROUND, batch_size=64, loss=squared_error, stop=STOP
    )
