"""Adam and RMSprop as torch takes them, to the last bit, on one flat array and without temporaries.

In: the values of many small classifiers side by side, and their gradients. Out: the values after the step, in place.
A step of torch's own makes new arrays at each, which at these sizes takes as long as the arithmetic.

Source: Kingma and Ba, 2015, Adam, algorithm 1; Hinton, 2012, lecture 6e (RMSprop); constants are torch's defaults.

Features as a solver sees them: centred and scaled without a copy, and the leading eigenvectors of their products.

In: features [rows, dim]. Out: products with them, and an approximate inverse Hessian that costs a small product.

Many L2-regularised logistic regressions over the same rows, solved as one batched problem.

In: features [rows, dim], labels [rows], one mask of training rows and one C per problem. Out: weights
[dim, outputs, problems], and the margins [rows, outputs, problems] of all rows, held-out ones included.

Objective of a problem: 1/2 |W|^2 + C sum over its training rows of the log loss; the intercept is free. Two
classes have one output (the sigmoid's), more have one output a class (softmax): scikit-learn's objective, exactly.

Method: L-BFGS for all problems in step. The only large products are X D and X^T R, shared by all problems; the
step length comes from Newton's method on the margins, without a product. The inverse Hessian starts from the
leading eigenvectors of X^T X (found on a sample of rows), scaled by each problem's C and mean curvature, so that 5
to 20 iterations do what takes plain L-BFGS hundreds. X is never copied: centring and scaling are done on products.

Tolerance: a problem ends when its estimated distance to the optimum falls below 1e-7 of the objective; measured against
a tight scikit-learn fit the objective is within 1e-6. Arithmetic is float32.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus


class StepRule(Protocol):
    """What remembers past gradients and takes steps."""

    def step(self, gradient: Tensor) -> None:
        """Change the values by one step against their gradient [values]."""

    def keep(self, values: Tensor, kept: Tensor) -> None:
        """Go on with other values, which are those at the places `kept`, int64, of the values so far."""


class Adam:
    """Adam with torch's defaults: learning rate 1e-3, betas 0.9 and 0.999, epsilon 1e-8."""

    def __init__(self, values: Tensor) -> None:
        """Begin with the values [values] to change."""
        self._values = values
        self._mean, self._square = torch.zeros_like(values), torch.zeros_like(values)
        self._scratch = torch.empty_like(values)
        self._num_steps = 0

    def step(self, gradient: Tensor) -> None:
        """Change the values by one step against their gradient [values]."""
        self._num_steps += 1
        self._mean.lerp_(gradient, 1 - 0.9)
        self._square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        root = torch.sqrt(self._square, out=self._scratch)
        root.div_(math.sqrt(1 - 0.999**self._num_steps)).add_(1e-8)
        self._values.addcdiv_(self._mean, root, value=-(1e-3 / (1 - 0.9**self._num_steps)))

    def keep(self, values: Tensor, kept: Tensor) -> None:
        """Go on with some of the values, copied to `values`."""
        self._values, self._scratch = values, torch.empty_like(values)
        self._mean, self._square = self._mean[kept], self._square[kept]


class RMSprop:
    """RMSprop with torch's defaults: learning rate 1e-2, decay 0.99, epsilon 1e-8."""

    def __init__(self, values: Tensor) -> None:
        """Begin with the values [values] to change."""
        self._values = values
        self._square, self._scratch = torch.zeros_like(values), torch.empty_like(values)

    def step(self, gradient: Tensor) -> None:
        """Change the values by one step against their gradient [values]."""
        self._square.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
        root = torch.sqrt(self._square, out=self._scratch).add_(1e-8)
        self._values.addcdiv_(gradient, root, value=-1e-2)

    def keep(self, values: Tensor, kept: Tensor) -> None:
        """Go on with some of the values, copied to `values`."""
        self._values, self._scratch = values, torch.empty_like(values)
        self._square = self._square[kept]


RANK = 256
SAMPLE_BYTES = 128 * 2**20
MAX_SAMPLED = 4096
NUM_PASSES = 2
# What differs by less, as a share of its size, differs by rounding in products of float32.
ROUNDING = 64 * torch.finfo(torch.float32).eps
# Rows read at a time; few, so that they stay in the processor's caches.
CHUNK = 128


class ScaledFeatures:
    """Features seen centred and divided by one number, without a copy of them.

    The mean and the number come from the rows given for it: afterwards their mean squared distance to the mean is
    one, whatever the encoder's dimension and blocks, so one grid of C suits all. As the intercept is free, centring
    changes no fit; the number only says in which unit C is measured.
    """

    def __init__(self, features: Tensor, rows: Tensor) -> None:
        """Take the mean and the scale from `rows` [any], an int64 index into `features` [rows, dim]."""
        self.features = features
        chunks = torch.split(rows, CHUNK)
        total = torch.zeros(features.shape[1], dtype=torch.float64)
        for chunk in self._read(chunks):
            total += chunk.sum(0, dtype=torch.float64)
        self.mean = (total / len(rows)).to(features.dtype)
        squares = sum(float(chunk.sub_(self.mean).flatten().square_().sum()) for chunk in self._read(chunks))
        spread = (squares / len(rows)) ** 0.5
        # Constant features have no scale of their own, only what rounding leaves; any will do.
        self.scale = spread if spread > ROUNDING * float(self.mean.norm()) else 1.0

    def _read(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        """Copy rows, chunk after chunk, into one array that stays in the processor's caches."""
        room = torch.empty(CHUNK, self.features.shape[1], dtype=self.features.dtype)
        for chunk in chunks:
            yield torch.index_select(self.features, 0, chunk, out=room[: len(chunk)])

    def times(self, weights: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the product with weights [dim, outputs, problems] as [rows, outputs, problems].

        Args:
            weights: For the features as they are seen.
            features: Others seen in the same way [rows, dim]; by default these.
        """
        flat = weights.flatten(1)
        product: Tensor = torch.addmm(-(self.mean @ flat), self.features if features is None else features, flat)
        return product.div_(self.scale).view(-1, *weights.shape[1:])

    def transposed_times(self, residuals: Tensor) -> Tensor:
        """Return the transposed product with residuals [rows, outputs, problems] as [dim, outputs, problems]."""
        # R^T X and not X^T R: with few columns the latter is up to ten times slower in the libraries below.
        flat = residuals.flatten(1).T.contiguous()
        product: Tensor = torch.addr(flat @ self.features, flat.sum(1), self.mean, alpha=-1)
        return product.div_(self.scale).T.reshape(-1, *residuals.shape[1:])

    def unscaled(self, weights: Tensor, intercepts: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [dim, outputs] and intercepts [outputs] that act on the features as they were given."""
        plain = weights / self.scale
        return plain, intercepts - self.mean @ plain


class Spectrum:
    """The leading eigenvectors of X^T X by randomised subspace iteration; the rest is taken as isotropic.

    Only the speed depends on it, never the solution.

    Source: Halko, Martinsson and Tropp, 2011, Algorithm 4.4.
    """

    def __init__(self, scaled: ScaledFeatures, rows: Tensor) -> None:
        """Find the eigenvectors on a fixed sample of `rows`."""
        generator = torch.Generator().manual_seed(0)
        num_sampled = min(len(rows), max(256, SAMPLE_BYTES // (4 * scaled.features.shape[1])), MAX_SAMPLED)
        sample = rows[torch.randperm(len(rows), generator=generator)[:num_sampled]]
        sampled = scaled.features.index_select(0, sample).sub_(scaled.mean).div_(scaled.scale)
        dim = sampled.shape[1]
        rank = min(RANK, dim, num_sampled)
        basis = torch.randn(dim, min(rank + 16, dim), generator=generator)
        for _ in range(NUM_PASSES):
            basis = torch.linalg.qr(sampled.T @ (sampled @ basis))[0]
        projected = sampled @ basis
        values, vectors = torch.linalg.eigh(projected.T @ projected)
        kept = values.flip(0)[:rank].clamp(min=0)
        self.vectors = basis @ vectors.flip(1)[:, :rank]
        # Per row, so that it can be scaled to the rows of any problem.
        self.values = (kept / num_sampled)[:, None, None]
        rest = float(sampled.square_().sum() - kept.sum()) / num_sampled
        self.rest = max(rest, 0.0) / max(1, dim - rank)

    def precondition(self, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Return the approximate inverse Hessian times the gradient [dim, outputs, problems].

        Args:
            gradient: The gradient, or another direction.
            curvature: C times the sum over training rows of p (1 - p), [outputs, problems].
        """
        rest: Tensor = 1 / (1 + curvature * self.rest)
        leading = 1 / (1 + curvature * self.values) - rest
        inside = (self.vectors.T @ gradient.flatten(1)).view(-1, *gradient.shape[1:])
        correction = self.vectors @ (leading * inside).flatten(1)
        product: Tensor = gradient * rest + correction.view(gradient.shape)
        return product


TOLERANCE = 1e-7
MAX_STEPS = 300
HISTORY = 8


class Point(NamedTuple):
    """Weights [dim, outputs, problems] and intercepts [outputs, problems], or a direction between two of them."""

    weights: Tensor
    intercepts: Tensor

    def dot(self, other: Point) -> Tensor:
        """Return the inner products [problems]."""
        products: Tensor = (self.weights * other.weights).sum((0, 1)) + (self.intercepts * other.intercepts).sum(0)
        return products

    def plus(self, other: Point, factor: Tensor) -> Point:
        """Return this plus `factor` [problems] times another."""
        return Point(self.weights + factor * other.weights, self.intercepts + factor * other.intercepts)

    def select(self, problems: Tensor) -> Point:
        """Return the part that belongs to some of the problems."""
        return Point(self.weights[..., problems], self.intercepts[..., problems])


class Start(NamedTuple):
    """A point, and the margins of all rows there, [rows, outputs, problems], which to know saves a product."""

    point: Point
    margins: Tensor

    def select(self, problems: Tensor) -> Start:
        """Return the part that belongs to some of the problems."""
        return Start(self.point.select(problems), self.margins[..., problems])

    def plus(self, other: Start, factor: Tensor) -> Start:
        """Return this plus `factor` [problems] times another; margins are linear in the point."""
        return Start(self.point.plus(other.point, factor), self.margins + factor * other.margins)

    def minus(self, other: Start) -> Start:
        """Return the way from another to here."""
        return self.plus(other, torch.tensor(-1.0))


class Step(NamedTuple):
    """One remembered step: how far the point and the gradient moved, and 1 over their inner product [problems]."""

    moved: Point
    turned: Point
    inverse: Tensor


@dataclass(frozen=True)
class Solution:
    """The optimum of every problem.

    Attributes:
        point: The weights and intercepts, for scaled features.
        margins: X W + b of all rows, [rows, outputs, problems].
        objective: The objective [problems].
        num_steps: Iterations taken [problems].
    """

    point: Point
    margins: Tensor
    objective: Tensor
    num_steps: Tensor

    def start(self, problems: Tensor) -> Start:
        """Return these problems' solutions as where others start."""
        return Start(self.point, self.margins).select(problems)


@dataclass(frozen=True)
class Problems:
    """What the problems have in common, and where they differ.

    Attributes:
        scaled: The features.
        spectrum: Their leading eigenvectors.
        targets: One where the row is of the output's class, [rows, outputs, 1].
        costs: C where the row trains the problem, zero where it does not, [rows, problems].
    """

    scaled: ScaledFeatures
    spectrum: Spectrum
    targets: Tensor
    costs: Tensor

    def select(self, kept: Tensor) -> Problems:
        """Return some of the problems."""
        return Problems(self.scaled, self.spectrum, self.targets, self.costs[:, kept])

    def objective(self, point: Point, margins: Tensor) -> Tensor:
        """Return the objective [problems]."""
        if margins.shape[1] == 1:
            losses = (softplus(margins) - self.targets * margins).squeeze(1)
        else:
            losses = margins.logsumexp(1) - (self.targets * margins).sum(1)
        return point.weights.square().sum((0, 1)) / 2 + (self.costs * losses).sum(0)

    def gradient(self, point: Point, margins: Tensor) -> tuple[Point, Tensor]:
        """Return the gradient, and the curvature: sum over rows of C p (1 - p), [outputs, problems]."""
        chances = probabilities(margins)
        curvature = (self.costs[:, None] * (chances - chances.square())).sum(0)
        residuals = (chances - self.targets).mul_(self.costs[:, None])
        gradient = Point(self.scaled.transposed_times(residuals) + point.weights, residuals.sum(0))
        return gradient, curvature

    def along(self, start: Start, way: Start) -> Start:
        """Return the best point on the line through `start` along `way`, whose margins are known: without a product."""
        length = self.step_length(start.point, way.point, start.margins, way.margins)
        return start.plus(way, length)

    def step_length(self, point: Point, direction: Point, margins: Tensor, change: Tensor) -> Tensor:
        """Return how far to go [problems]: Newton's method along the line, on the margins alone."""
        across = (point.weights * direction.weights).sum((0, 1))
        along = direction.weights.square().sum((0, 1))
        length = torch.ones_like(across)
        first = None
        for _ in range(8):
            chances = probabilities(margins + length * change)
            weighted = chances * change
            mean = weighted.sum(1)
            bends = (weighted * change).sum(1) - mean.square()
            slopes = mean - (self.targets * change).sum(1)
            slope = across + length * along + (self.costs * slopes).sum(0)
            bend = along + (self.costs * bends).sum(0)
            newton = -slope / bend.clamp(min=1e-30)
            first = slope.abs() if first is None else first
            length = (length + newton.clamp(-1, 2)).clamp(min=1e-4)
            if bool((newton.abs() < 0.05 * length).all()):
                break
        return length


def probabilities(margins: Tensor) -> Tensor:
    """Return the classes' probabilities of margins [rows, outputs, ...]."""
    return torch.sigmoid(margins) if margins.shape[1] == 1 else torch.softmax(margins, dim=1)


def log_probabilities(margins: Tensor) -> Tensor:
    """Return log-probabilities [rows, classes] of margins [rows, outputs]; one output stands for two classes."""
    if margins.shape[1] == 1:
        margins = torch.cat([torch.zeros_like(margins), margins], dim=1)
    return torch.log_softmax(margins, dim=1)


def solve(problems: Problems, *, start: Start | None = None, tolerance: Tensor | float = TOLERANCE) -> Solution:
    """Solve all problems.

    Args:
        problems: The problems.
        start: Where to start; zero if absent.
        tolerance: Estimated distance to the optimum over the objective at which a problem ends; one, or [problems].

    Returns:
        The solution; `num_steps` is `MAX_STEPS` where the tolerance was not reached.
    """
    num_problems, outputs = problems.costs.shape[1], problems.targets.shape[1]
    dim = problems.scaled.features.shape[1]
    rows = len(problems.costs)
    nowhere = Point(torch.zeros(dim, outputs, num_problems), torch.zeros(outputs, num_problems))
    point, margins = start or Start(nowhere, torch.zeros(rows, outputs, num_problems))
    empty = Point(torch.empty_like(point.weights), torch.empty_like(point.intercepts))
    ended = Solution(empty, margins.clone(), torch.zeros(num_problems), torch.zeros(num_problems, dtype=torch.int64))
    active, history = torch.arange(num_problems), deque[Step](maxlen=HISTORY)
    near = torch.as_tensor(tolerance).expand(num_problems)
    gradient, curvature = problems.gradient(point, margins)
    for step in range(MAX_STEPS + 1):
        direction = _direction(problems.spectrum, gradient, curvature, history)
        objective = problems.objective(point, margins)
        # Half of gradient x direction is the quadratic model's distance to its optimum.
        done = -gradient.dot(direction) / 2 <= near[active] * objective
        if bool(done.all()) or step == MAX_STEPS:
            _store(ended, active, point, margins, objective, step)
            break
        if int(done.sum()) * 4 >= len(done):
            _store(ended, active[done], point.select(done), margins[..., done], objective[done], step)
            kept = ~done
            active, problems, curvature = active[kept], problems.select(kept), curvature[:, kept]
            point, gradient, direction = point.select(kept), gradient.select(kept), direction.select(kept)
            margins = margins[..., kept]
            old = list(history)
            history.clear()
            history.extend(Step(s.moved.select(kept), s.turned.select(kept), s.inverse[kept]) for s in old)
        change = problems.scaled.times(direction.weights) + direction.intercepts
        length = problems.step_length(point, direction, margins, change)
        point, margins = point.plus(direction, length), margins + length * change
        before = gradient
        gradient, curvature = problems.gradient(point, margins)
        turned = gradient.plus(before, torch.tensor(-1.0))
        moved = Point(length * direction.weights, length * direction.intercepts)
        history.append(Step(moved, turned, 1 / moved.dot(turned).clamp(min=1e-30)))
    return ended


def _direction(spectrum: Spectrum, gradient: Point, curvature: Tensor, history: deque[Step]) -> Point:
    """Return the L-BFGS direction: the two loops around the preconditioner."""
    ahead, factors = gradient, []
    for step in reversed(history):
        factor = step.inverse * step.moved.dot(ahead)
        ahead = ahead.plus(step.turned, -factor)
        factors.append(factor)
    ahead = Point(spectrum.precondition(ahead.weights, curvature), ahead.intercepts / curvature.clamp(min=1e-12))
    for step, factor in zip(history, reversed(factors), strict=True):
        ahead = ahead.plus(step.moved, factor - step.inverse * step.turned.dot(ahead))
    return Point(-ahead.weights, -ahead.intercepts)


def _store(ended: Solution, where: Tensor, point: Point, margins: Tensor, objective: Tensor, step: int) -> None:
    """Put problems that ended in their place."""
    ended.point.weights[..., where], ended.point.intercepts[..., where] = point
    ended.margins[..., where] = margins
    ended.objective[where], ended.num_steps[where] = objective, step
