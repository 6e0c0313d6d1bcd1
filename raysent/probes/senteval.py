r"""The protocol `senteval`: the figures of SentEval itself, to the last digit it prints, on any machine.

Rows are ordered by length and label before folds are drawn, as SentEval does to save padding: the folds depend on it.
Where rows are divided:

- nested (MR, CR, SUBJ, MPQA): stratified folds, and within each outer fold stratified inner folds. The smallest L2 of
  the best mean inner accuracy is fitted again on the outer fold's training rows, of which a twentieth stops it early.
- train-test (TREC, MRPC): stratified folds of train choose; a fit on train, stopped by a twentieth of it, is tested.
- train-validation-test (SST, SICK-E): validation chooses, and stops the fits.
- scored pairs (SICK-R, STS-B): one softmax layer over five marks, squared error, stopped by validation's correlation;
  no configuration changes it.

Scores are rounded to two decimals where SentEval rounds them, before the best is chosen among them. It runs on one
thread, so that figures do not depend on how many a machine has.

Source: Conneau and Kiela, 2018, SentEval, senteval/tools/validation.py.
Differs: lines of the data end at "\n" only, so that MR and SUBJ have as many rows as were published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from raysent.probes.early_stopping import Fit, Recipe, Rows, fit_margins, single_thread, train_together
from raysent.probes.relatedness import (
    Predictions,
    SoftmaxLayer,
    pearson,
    predicted_scores,
    scored_result,
    squared_error,
)
from raysent.probes.results import FoldResult, ProbeResult, accuracy, class_measures
from raysent.tasks import TaskData

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
SEED = 1111
# Of scored pairs; a round ends by asking validation, and as above some failures are forgiven.
EPOCHS_OF_A_ROUND = 50
TENACITY_OF_SCORES = 3
MAX_EPOCHS_OF_SCORES = 1000
CONFIGURATIONS = {
    "default": Recipe(num_folds=10, optimizer="adam", batch_size=64, tenacity=5, epoch_size=4),
    "prototyping": Recipe(num_folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2),
}


def settings(configuration: str) -> dict[str, object]:
    """Return what the figures depend on."""
    return {"version": 1, "penalties": list(PENALTIES), **asdict(CONFIGURATIONS[configuration])}


def fit(features: np.ndarray, data: TaskData, *, configuration: str) -> ProbeResult:
    """Fit and score a task's probe; features [rows, dim] are finite and hold at least two training classes."""
    with single_thread():
        if data.is_scored:
            return _scored(features, data)
        task = _Task(features, data, CONFIGURATIONS[configuration])
        match data.split:
            case "nested":
                return _nested(task)
            case "train-test":
                return _train_test(task)
            case "train-validation-test":
                return _given(task)


def by_length(data: TaskData, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return rows ordered by the number of words of each sentence, then by value [all rows], int64 [rows]."""
    lengths = [[len(sentence.split()) for sentence in column] for column in data.sentences]
    return np.array(sorted(rows, key=lambda row: (*(column[row] for column in lengths), values[row])), dtype=np.int64)


class _Task:
    """A task's features and labels, and the fits on them."""

    def __init__(self, features: np.ndarray, data: TaskData, recipe: Recipe) -> None:
        self.features = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        self.data, self.recipe = data, recipe
        self.labels = torch.from_numpy(data.labels)

    def ordered(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by length and label."""
        return by_length(self.data, rows, self.data.labels)

    def folds(self, rows: np.ndarray, *, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the training and the held-out rows of every stratified fold of rows."""
        folds = StratifiedKFold(self.recipe.num_folds, shuffle=True, random_state=seed)
        labels = self.data.labels[rows]
        return [(rows[train], rows[held_out]) for train, held_out in folds.split(np.zeros(len(rows)), labels)]

    def choose(self, folds: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[int, float, list[Fit]]:
        """Return which L2 is best over folds, its mean accuracy in percent, and its fit on every fold."""
        groups = [Rows.given(train, held_out, seed=self.recipe.seed) for train, held_out in folds]
        fits = train_together(self.features, self.labels, groups, [PENALTIES] * len(folds), recipe=self.recipe)
        means = [
            round(100 * float(np.mean([of_fold[place].validation for of_fold in fits])), 2)
            for place in range(len(PENALTIES))
        ]
        best = int(np.argmax(means))
        return best, means[best], [of_fold[best] for of_fold in fits]

    def refit(self, choices: Sequence[tuple[np.ndarray, int]]) -> list[Fit]:
        """Return a fit for each of some training rows and choices of L2, stopped by a twentieth of the rows."""
        groups = [Rows.divided(rows, seed=self.recipe.seed) for rows, _ in choices]
        penalties = [[PENALTIES[best]] for _, best in choices]
        return [fit for (fit,) in train_together(self.features, self.labels, groups, penalties, recipe=self.recipe)]

    def log_probabilities(self, fit: Fit, rows: np.ndarray) -> np.ndarray:
        """Return a fit's answers, float32 [rows, classes]."""
        margins = fit_margins(fit, self.features, rows, batch_size=self.recipe.batch_size)
        return torch.log_softmax(margins, dim=1).numpy()

    def cross_validated(self, folds: Sequence[tuple[np.ndarray, np.ndarray]], fits: Sequence[Fit]) -> np.ndarray:
        """Return the answers of every fold's fit to the rows it did not train on, one fold after another."""
        return np.concatenate(
            [self.log_probabilities(fit, held_out) for fit, (_, held_out) in zip(fits, folds, strict=True)]
        )

    def percent(self, answers: np.ndarray, rows: np.ndarray) -> float:
        """Return the accuracy in percent as it is printed."""
        return round(100 * accuracy(answers, self.data.labels[rows]), 2)


def _nested(task: _Task) -> ProbeResult:
    rows = task.ordered(np.arange(len(task.data.labels)))
    outer = task.folds(rows, seed=SEED)
    chosen, means, seen = [], [], []
    for train, _ in outer:
        inner = task.folds(train, seed=SEED)
        best, mean, fits = task.choose(inner)
        chosen.append(best)
        means.append(mean)
        seen.append((np.concatenate([held_out for _, held_out in inner]), task.cross_validated(inner, fits)))
    # The probe for new sentences, which SentEval has none of, trains on all rows, with the L2 chosen most often.
    everywhere = int(np.bincount(chosen).argmax())
    choices = [(train, best) for (train, _), best in zip(outer, chosen, strict=True)]
    *refits, last = task.refit([*choices, (rows, everywhere)])
    results, tests = [], []
    for (_, test), fit, (validation, answers) in zip(outer, refits, seen, strict=True):
        tested = task.log_probabilities(fit, test)
        tests.append(task.percent(tested, test))
        results.append(FoldResult(validation, answers, test, tested, 1 / fit.penalty))
    return ProbeResult(round(float(np.mean(means)), 2), round(float(np.mean(tests)), 2), tuple(results), last.probe())


def _train_test(task: _Task) -> ProbeResult:
    train, test = task.ordered(task.data.train), task.ordered(task.data.test)
    folds = task.folds(train, seed=task.recipe.seed)
    best, mean, fits = task.choose(folds)
    (fit,) = task.refit([(train, best)])
    tested = task.log_probabilities(fit, test)
    validation = np.concatenate([held_out for _, held_out in folds])
    result = FoldResult(validation, task.cross_validated(folds, fits), test, tested, 1 / fit.penalty)
    measures = {name: round(value, 2) for name, value in class_measures(task.data, tested, test).items()}
    return ProbeResult(mean, task.percent(tested, test), (result,), fit.probe(), measures=measures)


def _given(task: _Task) -> ProbeResult:
    train, validation, test = (task.ordered(rows) for rows in (task.data.train, task.data.validation, task.data.test))
    # The fit that SentEval repeats with the L2 chosen has the seed and the rows of the one that was chosen.
    _, mean, (fit,) = task.choose([(train, validation)])
    tested = task.log_probabilities(fit, test)
    answers = task.log_probabilities(fit, validation)
    result = FoldResult(validation, answers, test, tested, 1 / fit.penalty)
    return ProbeResult(mean, task.percent(tested, test), (result,), fit.probe())


def _scored(features: np.ndarray, data: TaskData) -> ProbeResult:
    train, validation, test = (by_length(data, rows, data.scores) for rows in (data.train, data.validation, data.test))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layer = torch.nn.Linear(features.shape[1], len(data.label_names))
    order = np.random.RandomState(SEED).permutation
    softmax = SoftmaxLayer(features, data.scores, layer=layer, order=order)
    best, kept, num_failures, num_epochs = -1.0, softmax.copy(), 0, 0
    while num_failures <= TENACITY_OF_SCORES and num_epochs <= MAX_EPOCHS_OF_SCORES:
        softmax.train(train, num_epochs=EPOCHS_OF_A_ROUND, batch_size=64, loss=squared_error)
        num_epochs += EPOCHS_OF_A_ROUND
        reached = pearson(predicted_scores(softmax.log_probabilities(validation)), data.scores[validation])
        if reached > best:
            best, kept = reached, softmax.copy()
        else:
            num_failures += 1
    softmax.go_back(kept)
    answers = [Predictions(rows, softmax.log_probabilities(rows)) for rows in (validation, test)]
    return scored_result(data, *answers, probe=softmax.probe())
