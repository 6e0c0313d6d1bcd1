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

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
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
        return {"version": 1, "penalties": list(PENALTIES), **asdict(self.recipe)}

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score a task's probe; see `EvaluationProtocol`."""
        with torch_threads(1):  # with more, small products are slower
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
    return np.array(
        sorted(rows, key=lambda row: (*(column[row] for column in lengths), values[row])),
        dtype=np.int64,
    )


class _Task:
    """A task's features and labels, and the fits on them."""

    def __init__(self, features: np.ndarray, data: TaskData, recipe: Recipe) -> None:
        self.features = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        self.data, self.recipe = data, recipe
        self.labels = torch.from_numpy(data.labels)

    def sorted(self, rows: np.ndarray) -> np.ndarray:
        """Return rows sorted by length and label."""
        return sort_by_length(self.data, rows, self.data.labels)

    def folds(self, rows: np.ndarray, *, seed: int) -> list[Fold]:
        """Return the training and the held-out rows of every stratified fold of rows."""
        from sklearn.model_selection import StratifiedKFold  # noqa: PLC0415 - seconds that `fast` does without

        folds = StratifiedKFold(self.recipe.num_folds, shuffle=True, random_state=seed)
        labels = self.data.labels[rows]
        with warnings.catch_warnings(
            action="ignore"
        ):  # of rare classes, which raysent names with the task's file
            return [
                (rows[train], rows[held_out])
                for train, held_out in folds.split(np.zeros(len(rows)), labels)
            ]

    def choose(self, folds: Sequence[Fold]) -> tuple[int, float, list[Fit]]:
        """Return the index of the best penalty over folds, its mean accuracy in percent, and its fit on every fold."""
        groups = [Rows.given(train, held_out, seed=self.recipe.seed) for train, held_out in folds]
        fits = train_together(
            self.features, self.labels, groups, [PENALTIES] * len(folds), recipe=self.recipe
        )
        means = [
            round(100 * float(np.mean([of_fold[place].validation for of_fold in fits])), 2)
            for place in range(len(PENALTIES))
        ]
        best = int(np.argmax(means))
        return best, means[best], [of_fold[best] for of_fold in fits]

    def refit(self, choices: Sequence[tuple[np.ndarray, int]]) -> list[Fit]:
        """Return a fit for each choice of training rows and penalty, stopped by a twentieth of the rows."""
        groups = [Rows.split(rows, seed=self.recipe.seed) for rows, _ in choices]
        penalties = [[PENALTIES[best]] for _, best in choices]
        return [
            fit
            for (fit,) in train_together(
                self.features, self.labels, groups, penalties, recipe=self.recipe
            )
        ]

    def log_probabilities(self, fit: Fit, rows: np.ndarray) -> np.ndarray:
        """Return a fit's log-probabilities of rows, float32 [rows, classes]."""
        margins = fit.margins(self.features, rows, batch_size=self.recipe.batch_size)
        return torch.log_softmax(margins, dim=1).numpy()

    def cross_validated(self, folds: Sequence[Fold], fits: Sequence[Fit]) -> np.ndarray:
        """Return the log-probabilities of each fold's held-out rows from the fit on that fold, concatenated."""
        return np.concatenate(
            [
                self.log_probabilities(fit, held_out)
                for fit, (_, held_out) in zip(fits, folds, strict=True)
            ]
        )

    def percent(self, log_probabilities: np.ndarray, rows: np.ndarray) -> float:
        """Return the accuracy in percent as SentEval prints it."""
        return round(100 * accuracy(log_probabilities, self.data.labels[rows]), 2)


def _fit_nested(task: _Task) -> ProbeResult:
    rows = task.sorted(np.arange(len(task.data.labels)))
    outer = task.folds(rows, seed=SEED)
    chosen, means, validated = [], [], []
    for train, _ in outer:
        inner = task.folds(train, seed=SEED)
        best, mean, fits = task.choose(inner)
        chosen.append(best)
        means.append(mean)
        validated.append(
            (np.concatenate([held_out for _, held_out in inner]), task.cross_validated(inner, fits))
        )
    # The probe for new sentences, which SentEval does not have, trains on all rows with the most frequent choice.
    most_frequent = int(np.bincount(chosen).argmax())
    choices = [(train, best) for (train, _), best in zip(outer, chosen, strict=True)]
    *refits, last = task.refit([*choices, (rows, most_frequent)])
    results, tests = [], []
    for (_, test), fit, (validation, validated_by_best) in zip(
        outer, refits, validated, strict=True
    ):
        tested = task.log_probabilities(fit, test)
        tests.append(task.percent(tested, test))
        results.append(FoldResult(validation, validated_by_best, test, tested, 1 / fit.penalty))
    return ProbeResult(
        round(float(np.mean(means)), 2),
        round(float(np.mean(tests)), 2),
        tuple(results),
        last.probe(),
    )


def _fit_train_test(task: _Task) -> ProbeResult:
    train, test = task.sorted(task.data.train), task.sorted(task.data.test)
    folds = task.folds(train, seed=task.recipe.seed)
    best, mean, fits = task.choose(folds)
    (fit,) = task.refit([(train, best)])
    tested = task.log_probabilities(fit, test)
    validation = np.concatenate([held_out for _, held_out in folds])
    result = FoldResult(
        validation, task.cross_validated(folds, fits), test, tested, 1 / fit.penalty
    )
    measures = {
        name: round(value, 2) for name, value in class_measures(task.data, tested, test).items()
    }
    return ProbeResult(mean, task.percent(tested, test), (result,), fit.probe(), measures=measures)


def _fit_given_splits(task: _Task) -> ProbeResult:
    train, validation, test = (
        task.sorted(rows) for rows in (task.data.train, task.data.validation, task.data.test)
    )
    # SentEval fits once more with the chosen penalty; same seed and rows, so the result is the fit that was chosen.
    _, mean, (fit,) = task.choose([(train, validation)])
    tested = task.log_probabilities(fit, test)
    result = FoldResult(
        validation, task.log_probabilities(fit, validation), test, tested, 1 / fit.penalty
    )
    return ProbeResult(mean, task.percent(tested, test), (result,), fit.probe())


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
