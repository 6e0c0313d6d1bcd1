"""Linear classifiers trained step by step and stopped early, many side by side, each as it would be trained alone.

The classifier of SentEval: one linear layer, cross-entropy, Adam or RMSprop, and an early stop on validation rows. Fits
that differ in their L2 alone see the same batches in the same order, so they take their steps together: a batch is
copied once, multiplied once by all their weights side by side, and the loss and the step take all of them in one.

Every sum is taken in the order in which a lone fit takes it. Whether the library's products do so side by side is
tried out for each shape (oneDNN's do, at all but the smallest); where they do not, there is one product a fit. Only
where a processor rounds the last few numbers of an array in another way than the rest can a weight differ from a lone
fit's, in its last bit.

Source: Conneau and Kiela, 2018, SentEval, senteval/tools/classifier.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysent.probes.results import Probe
from raysent.probes.side_by_side import adds_alike, margins_side_by_side, weight_gradients_side_by_side
from raysent.probes.step_rules import Adam, RMSprop, StepRule

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
