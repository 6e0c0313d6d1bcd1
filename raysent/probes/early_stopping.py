"""Linear classifiers trained step by step and stopped early, many side by side, each as it would be trained alone.

The classifier of SentEval: one linear layer, cross-entropy, Adam or RMSprop, and an early stop on validation rows. Fits
of one call take their steps together: what costs time at these sizes is the number of calls, and the loss and the
optimiser take all fits in one. The products stay one per fit, on operands of the shape a lone fit has, so every sum is
taken in the same order; only where a processor rounds the last few numbers of an array in another way than the rest
can a weight differ from a lone fit's, in its last bit.

Source: Conneau and Kiela, 2018, SentEval, senteval/tools/classifier.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from raysent.probes.results import Probe

OPTIMIZERS = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
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
        rows: Index of its rows among those of the call.
        penalty: The L2 added to the gradient, times the weights and the intercepts.
        validation: The best accuracy on its validation rows, from 0 to 1.
        weights: Of that round, float32 [classes, dim].
        intercepts: Of that round, float32 [classes].
        num_failures: Rounds that were not better.
    """

    rows: int
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
    fits = [[Fit(place, penalty) for penalty in of_group] for place, of_group in enumerate(penalties)]
    # Fits keep step only where their epochs have equally many batches.
    by_length: dict[int, list[Fit]] = {}
    for place, rows in enumerate(groups):
        by_length.setdefault(-(-len(rows.train) // recipe.batch_size), []).extend(fits[place])
    for together in by_length.values():
        _Bench(features, labels, groups, together, recipe).run()
    return fits


class _Bench:
    """Fits whose epochs have equally many batches, with their weights, gradients and optimiser side by side."""

    def __init__(
        self, features: Tensor, labels: Tensor, groups: Sequence[Rows], fits: Sequence[Fit], recipe: Recipe
    ) -> None:
        self.features, self.labels, self.groups, self.recipe = features, labels, groups, recipe
        # Equal penalties stand together, so that a penalty is added to all of its fits at once.
        self.fits = sorted(fits, key=lambda fit: fit.penalty)
        weights, intercepts = _initial(features.shape[1], int(labels.max()) + 1, recipe.seed)
        self.weights = weights.repeat(len(fits), 1, 1)
        self.intercepts = intercepts.repeat(len(fits), 1)
        self.optimizer = self._optimizer()

    def run(self) -> None:
        """Train rounds until every fit has stopped."""
        num_epochs = 0
        while self.fits and num_epochs <= self.recipe.max_epochs:
            for _ in range(self.recipe.epoch_size):
                self._epoch()
            num_epochs += self.recipe.epoch_size
            self._keep([place for place, fit in enumerate(self.fits) if self._goes_on(place, fit)])

    def _optimizer(self) -> torch.optim.Optimizer:
        kind: type[torch.optim.Adam | torch.optim.RMSprop] = OPTIMIZERS[self.recipe.optimizer]
        self.weights.grad, self.intercepts.grad = torch.zeros_like(self.weights), torch.zeros_like(self.intercepts)
        return kind([self.weights, self.intercepts], foreach=False)

    def _epoch(self) -> None:
        """Take one step per batch, every fit on its own rows in their own order."""
        used = sorted({fit.rows for fit in self.fits})
        orders = {
            place: torch.from_numpy(group.train[group.order.permutation(len(group.train))])
            for place, group in ((place, self.groups[place]) for place in used)
        }
        size = self.recipe.batch_size
        for start in range(0, max(len(order) for order in orders.values()), size):
            batches = {place: order[start : start + size] for place, order in orders.items()}
            inputs = {place: self.features.index_select(0, batch) for place, batch in batches.items()}
            self._gradients(inputs, {place: self.labels[batch] for place, batch in batches.items()})
            self._penalize()
            self.optimizer.step()

    def _gradients(self, inputs: dict[int, Tensor], targets: dict[int, Tensor]) -> None:
        """Put the gradients of the mean cross-entropy in place; inputs [batch, dim] and targets [batch] by group."""
        size = max(len(batch) for batch in targets.values())
        margins = torch.zeros(len(self.fits), size, self.weights.shape[1])
        expected = torch.zeros(len(self.fits), size, dtype=torch.int64)
        shares = torch.zeros(len(self.fits), size)
        for place, fit in enumerate(self.fits):
            batch, count = inputs[fit.rows], len(targets[fit.rows])
            torch.addmm(self.intercepts[place], batch, self.weights[place].t(), out=margins[place, :count])
            expected[place, :count] = targets[fit.rows]
            shares[place, :count] = 1 / count
        residuals = _cross_entropy_gradient(margins, expected, shares)
        assert self.weights.grad is not None
        assert self.intercepts.grad is not None
        for place, fit in enumerate(self.fits):
            residual = residuals[place, : len(targets[fit.rows])]
            torch.mm(residual.t(), inputs[fit.rows], out=self.weights.grad[place])
            torch.sum(residual, 0, out=self.intercepts.grad[place])

    def _penalize(self) -> None:
        """Add each fit's L2 times its weights to its gradient, as the optimiser's weight decay does."""
        start = 0
        while start < len(self.fits):
            penalty = self.fits[start].penalty
            stop = next((i for i in range(start, len(self.fits)) if self.fits[i].penalty != penalty), len(self.fits))
            for values in (self.weights, self.intercepts):
                assert values.grad is not None
                values.grad[start:stop].add_(values[start:stop], alpha=penalty)
            start = stop

    def _goes_on(self, place: int, fit: Fit) -> bool:
        """Score a fit on its validation rows, keep it if it is better than before, and return whether it goes on."""
        rows = self.groups[fit.rows].validation
        probe = _Classifier(self.weights[place], self.intercepts[place])
        accuracy = probe.num_right(self.features, self.labels, rows, self.recipe.batch_size) / len(rows)
        if accuracy > fit.validation:
            fit.validation = accuracy
            fit.weights, fit.intercepts = self.weights[place].clone(), self.intercepts[place].clone()
            return True
        fit.num_failures += 1
        return fit.num_failures <= self.recipe.tenacity

    def _keep(self, places: list[int]) -> None:
        """Go on with some of the fits."""
        if len(places) == len(self.fits):
            return
        kept = torch.tensor(places, dtype=torch.int64)
        states = [self.optimizer.state[values] for values in (self.weights, self.intercepts)]
        self.fits = [self.fits[place] for place in places]
        self.weights, self.intercepts = self.weights[kept], self.intercepts[kept]
        self.optimizer = self._optimizer()
        for values, state in zip((self.weights, self.intercepts), states, strict=True):
            # Moments have an axis of fits, the count of steps has none.
            self.optimizer.state[values] = {name: one[kept] if one.ndim else one for name, one in state.items()}


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


def _cross_entropy_gradient(margins: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """Return the gradient of the cross-entropies weighted by `shares` [fits, batch], [fits, batch, classes]."""
    leaf = margins.requires_grad_()
    losses = torch.nn.functional.cross_entropy(leaf.flatten(0, 1), targets.flatten(), reduction="none")
    (gradient,) = torch.autograd.grad(losses, leaf, shares.flatten())
    return gradient
