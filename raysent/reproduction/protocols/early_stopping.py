"""Linear classifiers trained by gradient steps and stopped early, many at once, each as if trained alone.

In: features [rows, dim], labels, and per fit its rows and L2 penalty. Out: each fit's best weights [classes, dim] and
intercepts [classes].

This is SentEval's classifier: one linear layer, cross-entropy, Adam or RMSprop, stopped by the accuracy on validation
rows. Fits that differ only in their penalty see the same batches in the same order, so they take their steps together:
a batch is copied once and multiplied once by all their weights side by side; loss and optimizer step cover all fits.

Every sum is taken in the order of a lone fit. Whether the library's products keep that order side by side depends on
the library (oneDNN does, except for the smallest shapes), so each shape is tested once; where they do not, each fit has
a product of its own. Only a processor that rounds the last few numbers of an array differently can change the last bit
of a weight.

The optimizers equal torch's to the last bit, without the temporary arrays that torch allocates at each step: at these
sizes allocation takes as long as the arithmetic. They update one flat array of values in place.

Source: Conneau and Kiela, 2018, SentEval, senteval/tools/classifier.py; Kingma and Ba, 2015, Adam, algorithm 1; Hinton,
2012, lecture 6e (RMSprop).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysent.evaluation.probes.results import Probe

# The fraction of the training rows that stops a fit without validation rows.
_VALIDATION_FRACTION = 0.05


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained.

    Attributes:
        num_folds: Folds of the cross-validation around it.
        optimizer: `adam` or `rmsprop`, with torch's default learning rate.
        batch_size: Rows of a step; the last batch of an epoch may be smaller.
        tenacity: Number of rounds without a better validation accuracy, over the whole fit, that do not stop it.
        epoch_size: Epochs of a round.
        max_epochs: No round starts after this many epochs.
        seed: Seed of the initial weights and of the order of rows, the same for every fit.
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
    """The rows of fits that differ only in their penalty.

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
        """Return the given training and validation rows."""
        return cls(train, validation, np.random.RandomState(seed))

    @classmethod
    def split(cls, rows: np.ndarray, *, seed: int) -> Rows:
        """Return rows in a random order: the first twentieth stops the fit, and the others train."""
        order = np.random.RandomState(seed)
        shuffled = rows[order.permutation(len(rows))]
        num_validation = max(1, int(_VALIDATION_FRACTION * len(rows)))
        return cls(shuffled[num_validation:], shuffled[:num_validation], order)


@dataclass
class Fit:
    """One classifier and its best round so far.

    Attributes:
        penalty: The L2 penalty: weights and intercepts times this are added to the gradient.
        validation: The best accuracy on the validation rows, from 0 to 1.
        weights: Of the best round, float32 [classes, dim].
        intercepts: Of the best round, float32 [classes].
        num_failures: Rounds that were not better than those before.
    """

    penalty: float
    validation: float = -1.0
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    intercepts: Tensor = field(default_factory=lambda: torch.empty(0))
    num_failures: int = 0

    def margins(self, features: Tensor, rows: np.ndarray, *, batch_size: int) -> Tensor:
        """Return X W + b of rows, float32 [rows, classes], in batches as a lone fit computes them."""
        margins = []
        for batch in torch.split(torch.from_numpy(rows), batch_size):
            margins.append(torch.addmm(self.intercepts, features[batch], self.weights.t()))
        return torch.cat(margins)

    def probe(self) -> Probe:
        """Return the classifier; its strength is the inverse of its penalty."""
        return Probe(self.weights.T.contiguous().numpy(), self.intercepts.numpy(), 1 / self.penalty)


def train_together(
    features: Tensor,
    labels: Tensor,
    groups: Sequence[Rows],
    penalties: Sequence[Sequence[float]],
    *,
    recipe: Recipe,
) -> list[list[Fit]]:
    """Train classifiers.

    Args:
        features: float32 [rows, dim].
        labels: int64 [rows], from 0; every class occurs.
        groups: The rows of the fits.
        penalties: For each group, the L2 penalty of every fit on it.
        recipe: How each is trained.

    Returns:
        The fits, in the order of the groups and of their penalties.
    """
    fits = [[Fit(penalty) for penalty in of_group] for of_group in penalties]
    data = _Data(features, labels, torch.nn.functional.one_hot(labels).to(torch.float32))
    for rows, of_group in zip(groups, fits, strict=True):
        _Group(data, rows, of_group, recipe).run()
    return fits


class _Data(NamedTuple):
    """Features [rows, dim], labels [rows], and 1 where the row is of the class, [rows, classes]."""

    features: Tensor
    labels: Tensor
    is_class: Tensor


class _Group:
    """Fits on the same rows; one flat array holds the weights of all, then the intercepts of all."""

    def __init__(self, data: _Data, rows: Rows, fits: Sequence[Fit], recipe: Recipe) -> None:
        self._data = data
        self._rows = rows
        self._recipe = recipe
        self._inputs = torch.empty(recipe.batch_size, data.features.shape[1])
        # Every fit begins with the same values.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            layer = torch.nn.Linear(data.features.shape[1], data.is_class.shape[1])
        weights = layer.weight.detach().repeat(len(fits), 1, 1)
        intercepts = layer.bias.detach().repeat(len(fits))
        self._allocate(fits, torch.cat([weights.flatten(), intercepts]))
        self._optimizer = _OPTIMIZERS[recipe.optimizer](self._values)

    def _allocate(self, fits: Sequence[Fit], values: Tensor) -> None:
        """Take fits and their flat values: weights [fits, classes, dim], then intercepts [fits, classes]."""
        self._fits = list(fits)
        self._values = values
        self._gradients = torch.empty_like(values)
        self._weights, self._intercepts = self._views(values)
        self._weight_gradients, self._intercept_gradients = self._views(self._gradients)
        self._penalties = torch.empty_like(values)
        of_fits = torch.tensor([fit.penalty for fit in fits])
        weight_penalties, intercept_penalties = self._views(self._penalties)
        weight_penalties.copy_(of_fits[:, None, None].expand_as(weight_penalties))
        intercept_penalties.copy_(of_fits[:, None].expand_as(intercept_penalties))

    def _views(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts of a flat array for the weights [fits, classes, dim] and intercepts [fits, classes]."""
        num_fits = len(self._fits)
        num_classes = self._data.is_class.shape[1]
        dim = self._data.features.shape[1]
        size = num_fits * num_classes * dim
        weights = flat[:size].view(num_fits, num_classes, dim)
        return weights, flat[size:].view(num_fits, num_classes)

    def run(self) -> None:
        """Train rounds until every fit has stopped."""
        num_epochs = 0
        while self._fits and num_epochs <= self._recipe.max_epochs:
            for _ in range(self._recipe.epoch_size):
                self._train_epoch()
            num_epochs += self._recipe.epoch_size
            self._keep(self._validate())

    def _train_epoch(self) -> None:
        train = self._rows.train
        order = torch.from_numpy(train[self._rows.order.permutation(len(train))])
        for batch in torch.split(order, self._recipe.batch_size):
            inputs = self._read(batch)
            targets = self._data.is_class.index_select(0, batch).mul_(-1 / len(batch))
            self._differentiate(inputs, targets)
            # As torch's weight decay.
            self._gradients.addcmul_(self._values, self._penalties)
            self._optimizer.step(self._gradients)

    def _read(self, batch: Tensor) -> Tensor:
        return torch.index_select(self._data.features, 0, batch, out=self._inputs[: len(batch)])

    def _margins(self, inputs: Tensor) -> Tensor:
        """Return X W + b of inputs [batch, dim], [fits, batch, classes]."""
        if self._is_exact(inputs):
            return _margins_side_by_side(self._weights, self._intercepts, inputs)
        margins = []
        for weights, intercepts in zip(self._weights, self._intercepts, strict=True):
            margins.append(torch.addmm(intercepts, inputs, weights.t()))
        return torch.stack(margins)

    def _differentiate(self, inputs: Tensor, targets: Tensor) -> None:
        """Write the gradients of the mean cross-entropy; targets [batch, classes] are minus 1 / batch, or 0."""
        margins = self._margins(inputs)
        residuals: Tensor = torch.ops.aten._log_softmax_backward_data(
            targets.expand_as(margins), torch.log_softmax(margins, -1), -1, margins.dtype
        )
        for residual, gradient in zip(residuals, self._intercept_gradients, strict=True):
            torch.sum(residual, 0, out=gradient)
        if self._is_exact(inputs):
            _weight_gradients_side_by_side(residuals, inputs, out=self._weight_gradients)
            return
        for residual, gradient in zip(residuals, self._weight_gradients, strict=True):
            torch.mm(residual.t(), inputs, out=gradient)

    def _is_exact(self, inputs: Tensor) -> bool:
        precision = torch.get_float32_matmul_precision()
        return is_exact_side_by_side(tuple(self._weights.shape), len(inputs), precision)

    def _validate(self) -> list[int]:
        """Score every fit on the validation rows, keep better values, and return the indices of fits that continue."""
        validation = torch.from_numpy(self._rows.validation)
        num_correct = torch.zeros(len(self._fits), dtype=torch.int64)
        for batch in torch.split(validation, self._recipe.batch_size):
            predicted = self._margins(self._read(batch)).argmax(2)
            num_correct += (predicted == self._data.labels[batch]).sum(1)
        continuing = []
        for index, fit in enumerate(self._fits):
            accuracy = int(num_correct[index]) / len(validation)
            if accuracy > fit.validation:
                fit.validation = accuracy
                fit.weights = self._weights[index].clone()
                fit.intercepts = self._intercepts[index].clone()
            else:
                fit.num_failures += 1
            if fit.num_failures <= self._recipe.tenacity:
                continuing.append(index)
        return continuing

    def _keep(self, continuing: list[int]) -> None:
        """Go on with some of the fits alone, given by their indices."""
        if len(continuing) == len(self._fits):
            return
        # The same parts of an array of its own indices say where the values of these fits are.
        views = self._views(torch.arange(len(self._values)))
        positions = torch.cat([view[continuing].flatten() for view in views])
        self._allocate([self._fits[index] for index in continuing], self._values[positions])
        self._optimizer.keep(self._values, positions)


def _margins_side_by_side(weights: Tensor, intercepts: Tensor, inputs: Tensor) -> Tensor:
    """Return X W + b of inputs [batch, dim] for weights [fits, classes, dim], [fits, batch, classes]."""
    product = torch.addmm(intercepts.view(-1, 1), weights.flatten(0, 1), inputs.t())
    return product.view(*intercepts.shape, -1).transpose(1, 2).contiguous()


def _weight_gradients_side_by_side(residuals: Tensor, inputs: Tensor, *, out: Tensor) -> None:
    """Write R^T X of residuals [fits, batch, classes] to `out` [fits, classes, dim]."""
    torch.mm(residuals.transpose(1, 2).flatten(0, 1), inputs, out=out.flatten(0, 1))


@lru_cache(maxsize=256)
def is_exact_side_by_side(shape: tuple[int, int, int], batch_size: int, precision: str) -> bool:
    """Return whether products side by side have the bits of each fit's own product, by trying both.

    Args:
        shape: Number of fits, of classes, and of dimensions.
        batch_size: Rows of the batch.
        precision: torch's float32 matmul precision; part of the cache key, since sums depend on it.
    """
    del precision
    generator = torch.Generator().manual_seed(0)
    num_fits, num_classes, dim = shape
    weights = torch.randn(shape, generator=generator)
    inputs = torch.randn(batch_size, dim, generator=generator)
    intercepts = torch.randn(num_fits, num_classes, generator=generator)
    residuals = torch.randn(num_fits, batch_size, num_classes, generator=generator)
    lone_margins = []
    lone_gradients = []
    for fit in range(num_fits):
        lone_margins.append(torch.addmm(intercepts[fit], inputs, weights[fit].t()))
        lone_gradients.append(torch.mm(residuals[fit].t(), inputs))
    margins = _margins_side_by_side(weights, intercepts, inputs)
    gradients = torch.empty_like(weights)
    _weight_gradients_side_by_side(residuals, inputs, out=gradients)
    are_margins_equal = torch.equal(torch.stack(lone_margins), margins)
    return are_margins_equal and torch.equal(torch.stack(lone_gradients), gradients)


class Adam:
    """Adam with torch's defaults: learning rate 1e-3, betas 0.9 and 0.999, epsilon 1e-8.

    Call order: `step` once per batch; `keep` when some of the values are dropped.
    """

    def __init__(self, values: Tensor) -> None:
        """Take the values [values] to update."""
        self._values = values
        self._mean = torch.zeros_like(values)
        self._square = torch.zeros_like(values)
        self._scratch = torch.empty_like(values)
        self._num_steps = 0

    def step(self, gradient: Tensor) -> None:
        """Update the values by one step against their gradient [values]."""
        self._num_steps += 1
        self._mean.lerp_(gradient, 1 - 0.9)
        self._square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        root = torch.sqrt(self._square, out=self._scratch)
        root.div_(math.sqrt(1 - 0.999**self._num_steps)).add_(1e-8)
        self._values.addcdiv_(self._mean, root, value=-(1e-3 / (1 - 0.9**self._num_steps)))

    def keep(self, values: Tensor, positions: Tensor) -> None:
        """Continue with the values at some positions, int64 [kept values], copied to `values`."""
        self._values = values
        self._scratch = torch.empty_like(values)
        self._mean = self._mean[positions]
        self._square = self._square[positions]


class RMSprop:
    """RMSprop with torch's defaults: learning rate 1e-2, decay 0.99, epsilon 1e-8."""

    def __init__(self, values: Tensor) -> None:
        """Take the values [values] to update."""
        self._values = values
        self._square = torch.zeros_like(values)
        self._scratch = torch.empty_like(values)

    def step(self, gradient: Tensor) -> None:
        """Update the values by one step against their gradient [values]."""
        self._square.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
        root = torch.sqrt(self._square, out=self._scratch).add_(1e-8)
        self._values.addcdiv_(gradient, root, value=-1e-2)

    def keep(self, values: Tensor, positions: Tensor) -> None:
        """Continue with the values at some positions, int64 [kept values], copied to `values`."""
        self._values = values
        self._scratch = torch.empty_like(values)
        self._square = self._square[positions]


_OPTIMIZERS: dict[str, Callable[[Tensor], Adam | RMSprop]] = {"adam": Adam, "rmsprop": RMSprop}
