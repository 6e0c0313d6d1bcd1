r"""Products of several linear classifiers with the same batch in one, and whether they have the bits of lone ones.

A product of a batch with a few columns of weights takes as long as reading the batch; side by side it is read once.
Exactness depends on the library: oneDNN adds up in the same order however many columns there are, at all but the
smallest shapes, others do not. So it is tried out, once a shape.

Linear classifiers trained step by step and stopped early, many side by side, each as it would be trained alone.

The classifier of SentEval: one linear layer, cross-entropy, Adam or RMSprop, and an early stop on validation rows. Fits
that differ in their L2 alone see the same batches in the same order, so they take their steps together: a batch is
copied once, multiplied once by all their weights side by side, and the loss and the step take all of them in one.

Every sum is taken in the order in which a lone fit takes it. Whether the library's products do so side by side is
tried out for each shape (oneDNN's do, at all but the smallest); where they do not, there is one product a fit. Only
where a processor rounds the last few numbers of an array in another way than the rest can a weight differ from a lone
fit's, in its last bit.

Source: Conneau and Kiela, 2018, SentEval, senteval/tools/classifier.py.

The protocol `senteval`: the figures of SentEval itself, to the last digit it prints, on any machine.

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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from raysent.evaluation.probes.logistic import Adam, RMSprop, StepRule
from raysent.evaluation.probes.relatedness import (
    Predictions,
    SoftmaxLayer,
    pearson,
    predicted_scores,
    scored_result,
    squared_error,
)
from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult, accuracy, class_measures
from raysent.evaluation.tasks import TaskData


def margins_side_by_side(weights: Tensor, intercepts: Tensor, inputs: Tensor) -> Tensor:
    """Return X W + b of inputs [batch, dim] for weights [fits, classes, dim], [fits, batch, classes]."""
    product = torch.addmm(intercepts.view(-1, 1), weights.flatten(0, 1), inputs.t())
    return product.view(*intercepts.shape, -1).transpose(1, 2).contiguous()


def weight_gradients_side_by_side(residuals: Tensor, inputs: Tensor, *, out: Tensor) -> None:
    """Put R^T X of residuals [fits, batch, classes] into `out` [fits, classes, dim]."""
    torch.mm(residuals.transpose(1, 2).flatten(0, 1), inputs, out=out.flatten(0, 1))


@lru_cache(maxsize=256)
def adds_alike(shape: tuple[int, int, int], batch_size: int, precision: str) -> bool:
    """Return whether products of fits side by side have the bits of each fit's own, found out by trying.

    Args:
        shape: Number of fits, of classes, and of dimensions.
        batch_size: Rows of the batch.
        precision: Of float32 products in this process; another takes other sums.
    """
    del precision
    generator = torch.Generator().manual_seed(0)
    weights, inputs = torch.randn(shape, generator=generator), torch.randn(batch_size, shape[2], generator=generator)
    intercepts = torch.randn(shape[:2], generator=generator)
    residuals = torch.randn(shape[0], batch_size, shape[1], generator=generator)
    margins = torch.stack([torch.addmm(b, inputs, w.t()) for b, w in zip(intercepts, weights, strict=True)])
    gradients = torch.stack([torch.mm(residual.t(), inputs) for residual in residuals])
    found = torch.empty_like(gradients)
    weight_gradients_side_by_side(residuals, inputs, out=found)
    return torch.equal(margins, margins_side_by_side(weights, intercepts, inputs)) and torch.equal(gradients, found)


OPTIMIZERS: dict[str, Callable[[Tensor], StepRule]] = {"adam": Adam, "rmsprop": RMSprop}
# The share of the training rows that stop a fit for which no validation rows are given.
VALIDATION_SHARE = 0.05


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained.

    Attributes:
        num_folds: Folds of the cross-validations around it.
        optimizer: A name in `OPTIMIZERS`, with torch's default learning rate.
        batch_size: Rows of a step; an epoch's last batch may be smaller.
        tenacity: Rounds without a better validation accuracy that are forgiven, counted over the whole fit.
        epoch_size: Epochs of a round.
        max_epochs: No round begins after this many epochs.
        seed: Of the initial weights and of the order of rows, the same for every fit.
    """

    num_folds: int
    optimizer: str
    batch_size: int
    tenacity: int
    epoch_size: int
    max_epochs: int = 200
    seed: int = 1111


@dataclass(frozen=True)
class Rows:
    """The rows of some fits that differ in their L2 alone.

    Attributes:
        train: Rows that train, int64 [train rows].
        validation: Rows whose accuracy stops the fit, int64 [validation rows].
        order: Draws the order of the training rows; it may have drawn `validation` before.
    """

    train: np.ndarray
    validation: np.ndarray
    order: np.random.RandomState

    @classmethod
    def given(cls, train: np.ndarray, validation: np.ndarray, *, seed: int) -> Rows:
        """Return given rows."""
        return cls(train, validation, np.random.RandomState(seed))

    @classmethod
    def divided(cls, rows: np.ndarray, *, seed: int) -> Rows:
        """Return rows of which the first twentieth of a drawn order stops the fit, and the others train."""
        order = np.random.RandomState(seed)
        shuffled = rows[order.permutation(len(rows))]
        num_validation = int(VALIDATION_SHARE * len(rows))
        return cls(shuffled[num_validation:], shuffled[:num_validation], order)


@dataclass
class Fit:
    """One classifier and how far it got.

    Attributes:
        penalty: The L2 added to the gradient, times the weights and the intercepts.
        validation: The best accuracy on its validation rows, from 0 to 1.
        weights: Of that round, float32 [classes, dim].
        intercepts: Of that round, float32 [classes].
        num_failures: Rounds that were not better.
    """

    penalty: float
    validation: float = -1.0
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    intercepts: Tensor = field(default_factory=lambda: torch.empty(0))
    num_failures: int = 0

    def probe(self) -> Probe:
        """Return the classifier; its strength is the inverse of its L2."""
        return Probe(self.weights.T.contiguous().numpy(), self.intercepts.numpy(), 1 / self.penalty)


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch take one thread: more make small products slower, and sums come out in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_together(
    features: Tensor, labels: Tensor, groups: Sequence[Rows], penalties: Sequence[Sequence[float]], *, recipe: Recipe
) -> list[list[Fit]]:
    """Train classifiers.

    Args:
        features: float32 [rows, dim].
        labels: int64 [rows], from 0; every class is among them.
        groups: The rows of the fits.
        penalties: For each of the groups, the L2 of every fit on it.
        recipe: How each is trained.

    Returns:
        The fits, in the order of the groups and of their penalties.
    """
    fits = [[Fit(penalty) for penalty in of_group] for of_group in penalties]
    data = _Data(features, labels, torch.nn.functional.one_hot(labels).to(torch.float32))
    for rows, of_group in zip(groups, fits, strict=True):
        _Bench(data, rows, of_group, recipe).run()
    return fits


class _Data(NamedTuple):
    """Features [rows, dim], labels [rows], and one where the row is of the class, [rows, classes]."""

    features: Tensor
    labels: Tensor
    is_class: Tensor


class _Bench:
    """Fits on the same rows, their weights and after these their intercepts side by side in one array."""

    def __init__(self, data: _Data, rows: Rows, fits: Sequence[Fit], recipe: Recipe) -> None:
        self._data, self._rows, self._recipe = data, rows, recipe
        self._inputs = torch.empty(recipe.batch_size, data.features.shape[1])
        weights, intercepts = _initial(data.features.shape[1], data.is_class.shape[1], recipe.seed)
        count = len(fits)
        self._lay_out(fits, torch.cat([weights.repeat(count, 1, 1).flatten(), intercepts.repeat(count)]))
        self._rule = OPTIMIZERS[recipe.optimizer](self._values)

    def _lay_out(self, fits: Sequence[Fit], values: Tensor) -> None:
        """Take fits and their values, weights [fits, classes, dim] and then intercepts [fits, classes], flat."""
        self._fits, self._values, self._gradients = list(fits), values, torch.empty_like(values)
        self._weights, self._intercepts = self._parts(values)
        self._of_weights, self._of_intercepts = self._parts(self._gradients)
        self._penalties = torch.empty_like(values)
        for part in self._parts(self._penalties):
            part.copy_(torch.tensor([fit.penalty for fit in fits]).view(-1, *[1] * (part.ndim - 1)).expand_as(part))

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of what belongs to the weights [fits, classes, dim] and to the intercepts [fits, classes]."""
        count, (classes, dim) = len(self._fits), (self._data.is_class.shape[1], self._data.features.shape[1])
        size = count * classes * dim
        return flat[:size].view(count, classes, dim), flat[size:].view(count, classes)

    def run(self) -> None:
        """Train rounds until every fit has stopped."""
        num_epochs = 0
        while self._fits and num_epochs <= self._recipe.max_epochs:
            for _ in range(self._recipe.epoch_size):
                self._epoch()
            num_epochs += self._recipe.epoch_size
            self._keep(self._going_on())

    def _epoch(self) -> None:
        """Take one step per batch of the training rows in a new order."""
        train = self._rows.train
        order = torch.from_numpy(train[self._rows.order.permutation(len(train))])
        for batch in torch.split(order, self._recipe.batch_size):
            inputs = self._read(batch)
            expected = self._data.is_class.index_select(0, batch).mul_(-1 / len(batch))
            self._differentiate(inputs, expected)
            # As the optimiser's weight decay does.
            self._gradients.addcmul_(self._values, self._penalties)
            self._rule.step(self._gradients)

    def _read(self, batch: Tensor) -> Tensor:
        """Return the features of a batch, which hold until the next is read."""
        return torch.index_select(self._data.features, 0, batch, out=self._inputs[: len(batch)])

    def _margins(self, inputs: Tensor) -> Tensor:
        """Return X W + b of inputs [batch, dim], [fits, batch, classes]."""
        if self._adds_alike(inputs):
            return margins_side_by_side(self._weights, self._intercepts, inputs)
        pairs = zip(self._intercepts, self._weights, strict=True)
        return torch.stack([torch.addmm(intercepts, inputs, weights.t()) for intercepts, weights in pairs])

    def _differentiate(self, inputs: Tensor, expected: Tensor) -> None:
        """Put the gradients of the mean cross-entropy in place; `expected` is minus the classes' shares of it."""
        margins = self._margins(inputs)
        residuals: Tensor = torch.ops.aten._log_softmax_backward_data(
            expected.expand_as(margins), torch.log_softmax(margins, -1), -1, margins.dtype
        )
        for residual, of_intercepts in zip(residuals, self._of_intercepts, strict=True):
            torch.sum(residual, 0, out=of_intercepts)
        if self._adds_alike(inputs):
            weight_gradients_side_by_side(residuals, inputs, out=self._of_weights)
            return
        for residual, of_weights in zip(residuals, self._of_weights, strict=True):
            torch.mm(residual.t(), inputs, out=of_weights)

    def _adds_alike(self, inputs: Tensor) -> bool:
        """Whether products side by side are those of lone fits, to the last bit."""
        precision = torch.get_float32_matmul_precision()
        return adds_alike(tuple(self._weights.shape), len(inputs), precision)

    def _going_on(self) -> list[int]:
        """Score every fit on the validation rows, keep what is better than before, and return which go on."""
        going_on = []
        for place, (fit, num_right) in enumerate(zip(self._fits, self._num_right().tolist(), strict=True)):
            accuracy = num_right / len(self._rows.validation)
            if accuracy > fit.validation:
                fit.validation = accuracy
                fit.weights, fit.intercepts = self._weights[place].clone(), self._intercepts[place].clone()
            else:
                fit.num_failures += 1
            # A round that is better fails nothing, and no fit gets here that has failed too often.
            if fit.num_failures <= self._recipe.tenacity:
                going_on.append(place)
        return going_on

    def _num_right(self) -> Tensor:
        """Return on how many validation rows each fit's likeliest class is the label, int64 [fits]."""
        total = torch.zeros(len(self._fits), dtype=torch.int64)
        for batch in torch.split(torch.from_numpy(self._rows.validation), self._recipe.batch_size):
            total += (self._margins(self._read(batch)).argmax(2) == self._data.labels[batch]).sum(1)
        return total

    def _keep(self, places: list[int]) -> None:
        """Go on with some of the fits."""
        if len(places) == len(self._fits):
            return
        kept = torch.cat([part[places].flatten() for part in self._parts(torch.arange(len(self._values)))])
        self._lay_out([self._fits[place] for place in places], self._values[kept])
        self._rule.keep(self._values, kept)


@dataclass(frozen=True)
class _Classifier:
    """Weights [classes, dim] and intercepts [classes]."""

    weights: Tensor
    intercepts: Tensor

    def num_right(self, features: Tensor, labels: Tensor, rows: np.ndarray, batch_size: int) -> int:
        """Return on how many rows the likeliest class is the label."""
        return int((self.margins(features, rows, batch_size).argmax(1) == labels[torch.from_numpy(rows)]).sum())

    def margins(self, features: Tensor, rows: np.ndarray, batch_size: int) -> Tensor:
        """Return X W + b of rows, [rows, classes], in batches as a lone fit takes them."""
        parts = torch.split(torch.from_numpy(rows), batch_size)
        return torch.cat([torch.addmm(self.intercepts, features[part], self.weights.t()) for part in parts])


def fit_margins(fit: Fit, features: Tensor, rows: np.ndarray, *, batch_size: int) -> Tensor:
    """Return a fit's margins of rows, float32 [rows, classes]."""
    return _Classifier(fit.weights, fit.intercepts).margins(features, rows, batch_size)


def _initial(dim: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weights [classes, dim] and intercepts [classes] that a new linear layer has after the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(dim, classes)
    return layer.weight.detach(), layer.bias.detach()


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
