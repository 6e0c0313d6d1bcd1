"""Many L2-regularized logistic regressions over the same rows, solved as one batched problem.

In: features [rows, dim], labels [rows], one mask of training rows and one C per problem. Out: weights
[dim, outputs, problems], and the margins [rows, outputs, problems] of all rows, including held-out ones.

Objective of a problem: 1/2 |W|^2 + C times the sum of the log loss over its training rows, with a free intercept. Two
classes have one output (sigmoid); more classes have one output each (softmax). This is scikit-learn's objective. With
`has_free_intercept=False` the intercept is the weight of a constant feature, penalized as the others are, and features
are neither centered nor scaled: LIBLINEAR's objective.

A class without a training row, as a rare one in a fold, has no output: its weights are 0 and its intercept is lowest,
as there is no best one. Of two classes of which one has no row, the other is surer, the more rows it has.

Method: L-BFGS on all problems at once. The only large products are X D and X^T R, shared by all problems; the step
length comes from Newton's method on the margins, without a product. The initial inverse Hessian comes from the leading
eigenvectors of X^T X (estimated on a sample of rows), scaled by each problem's C and mean curvature, so that 5 to 20
iterations do the work of hundreds of plain L-BFGS iterations. Products are centered and scaled, not X, which is copied
only for the constant feature.

Tolerance: a problem stops when its estimated distance to the optimum falls below 1e-7 of the objective; the objective
is then within 1e-6 of a tightly converged scikit-learn fit. Arithmetic is float32.

`Fits` solves a task's problems along a grid of C. Each fit starts from the best point on the line through the last two
solutions, where the margins are known without a product.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from raysent.errors import DataError
from raysent.evaluation.probes.results import Probe

# The eigenvectors of the preconditioner, and the sample of rows that they are estimated on.
_RANK = 256
_SAMPLE_BYTES = 128 * 2**20
MAX_SAMPLED = 4096
_NUM_PASSES = 2
# A relative difference below this is rounding in products of float32.
_ROUNDING = 64 * torch.finfo(torch.float32).eps
# Rows read at a time: few enough to stay in the processor's caches.
CHUNK = 128

TOLERANCE = 1e-7
PATH_TOLERANCE = 5e-5
MAX_STEPS = 300
# The intercept of a class without a training row, in nats.
LOWEST = -20.0
# The farthest that the preconditioner moves an intercept, in nats.
_MAX_MOVE = 100.0
# The steps that L-BFGS remembers.
_HISTORY = 8

# A solve holds about ten arrays of [rows, outputs, problems]; this bounds each of them.
ARRAY_BYTES = 32 * 2**20
# With fewer columns than this, a product is bound by reading X: several values of C are then solved side by side.
_MIN_COLUMNS = 8


class ScaledFeatures:
    """Features centered and divided by one number, without a copy of them.

    The mean and the scale come from the rows given: their mean squared distance to the mean becomes one, for every
    encoder and dimension, so that one grid of C suits all. As the intercept is free, centering changes no fit; the
    scale only sets the unit of C.
    """

    def __init__(self, features: Tensor, rows: Tensor, *, is_scaled: bool = True) -> None:
        """Compute the mean and the scale from `rows` [any], an int64 index into `features` [rows, dim].

        Without `is_scaled` they are 0 and 1.
        """
        self.features = features
        if not is_scaled:
            self.mean = torch.zeros(features.shape[1])
            self.scale = 1.0
            return
        chunks = torch.split(rows, CHUNK)
        total = torch.zeros(features.shape[1], dtype=torch.float64)
        for chunk in self._read(chunks):
            total += chunk.sum(0, dtype=torch.float64)
        self.mean = (total / len(rows)).to(features.dtype)
        squares = 0.0
        for chunk in self._read(chunks):
            squares += float(chunk.sub_(self.mean).flatten().square_().sum())
        spread = (squares / len(rows)) ** 0.5
        # Constant features have no scale, only rounding; any number will do.
        self.scale = 1.0
        if spread > _ROUNDING * float(self.mean.norm()):
            self.scale = spread

    @property
    def dim(self) -> int:
        """Columns, of which weights are learned."""
        return self.features.shape[1]

    def of(self, masks: Tensor) -> ScaledFeatures:  # noqa: ARG002 - those of words depend on them
        """Return the features of problems with these training rows, bool [rows, problems]."""
        return self

    def precondition(self, spectrum: Spectrum, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Return the approximate inverse Hessian times a gradient; see `Spectrum`."""
        return spectrum.precondition(gradient, curvature)

    def _read(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield rows, one chunk after another, in one buffer that stays in the processor's caches."""
        buffer = torch.empty(CHUNK, self.features.shape[1], dtype=self.features.dtype)
        for chunk in chunks:
            yield torch.index_select(self.features, 0, chunk, out=buffer[: len(chunk)])

    def times(self, weights: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the product with weights [dim, outputs, problems] as [rows, outputs, problems].

        Args:
            weights: Weights for the scaled features.
            features: Other features, centered and scaled in the same way [rows, dim]; by default these.
        """
        if features is None:
            features = self.features
        flat = weights.flatten(1)
        product: Tensor = torch.addmm(-(self.mean @ flat), features, flat)
        return product.div_(self.scale).view(-1, *weights.shape[1:])

    def transposed_times(self, residuals: Tensor) -> Tensor:
        """Return the transposed product with residuals [rows, outputs, problems] as [dim, outputs, problems]."""
        # R^T X instead of X^T R: with few columns the latter is up to ten times slower in BLAS libraries.
        flat = residuals.flatten(1).T.contiguous()
        product: Tensor = torch.addr(flat @ self.features, flat.sum(1), self.mean, alpha=-1)
        return product.div_(self.scale).T.reshape(-1, *residuals.shape[1:])


class Spectrum:
    """The leading eigenvectors of X^T X by randomized subspace iteration; the rest counts as isotropic.

    It affects only the speed of a solve, never the solution.

    Source: Halko, Martinsson and Tropp, 2011, algorithm 4.4.
    """

    def __init__(self, scaled: ScaledFeatures, rows: Tensor) -> None:
        """Compute the eigenvectors from a fixed sample of `rows`."""
        generator = torch.Generator().manual_seed(0)
        rows_in_memory = max(256, _SAMPLE_BYTES // (4 * scaled.features.shape[1]))
        num_sampled = min(len(rows), rows_in_memory, MAX_SAMPLED)
        sample = rows[torch.randperm(len(rows), generator=generator)[:num_sampled]]
        sampled = scaled.features.index_select(0, sample).sub_(scaled.mean).div_(scaled.scale)
        dim = sampled.shape[1]
        rank = min(_RANK, dim, num_sampled)
        # A few directions more than are used make the used ones more exact.
        basis = torch.randn(dim, min(rank + 16, dim), generator=generator)
        for _ in range(_NUM_PASSES):
            basis = torch.linalg.qr(sampled.T @ (sampled @ basis))[0]
        projected = sampled @ basis
        ascending, vectors = torch.linalg.eigh(projected.T @ projected)
        eigenvalues = ascending.flip(0)[:rank].clamp(min=0)
        self.vectors = basis @ vectors.flip(1)[:, :rank]
        # Per row, so that a problem can scale it by its own number of rows. What is less is rounding in products.
        lowest = _ROUNDING * float(eigenvalues[0]) / num_sampled
        self.values = (eigenvalues / num_sampled).clamp(min=lowest)[:, None, None]
        # The trace is the sum of all eigenvalues, so what the leading ones leave of it belongs to the others.
        remaining = float(sampled.square_().sum() - eigenvalues.sum()) / num_sampled
        self.rest = max(remaining / max(1, dim - rank), lowest)

    def precondition(self, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Return the approximate inverse Hessian times the gradient [dim, outputs, problems].

        Args:
            gradient: The gradient, or another direction.
            curvature: C times the sum over training rows of p (1 - p), [outputs, problems].
        """
        flat = gradient.flatten(1)
        inside = self.vectors.T @ flat
        leading = inside.view(-1, *gradient.shape[1:]) / (1 + curvature * self.values)
        product: Tensor = (self.vectors @ leading.flatten(1)).view(gradient.shape)
        if self.vectors.shape[1] < len(self.vectors):
            # Apart from the leading part, which would cancel where C times an eigenvalue is large.
            outside = (flat - self.vectors @ inside).view(gradient.shape)
            product += outside / (1 + curvature * self.rest)
        return product


class Point(NamedTuple):
    """Weights [dim, outputs, problems] and intercepts [outputs, problems], or a direction between two points."""

    weights: Tensor
    intercepts: Tensor

    def dot(self, other: Point) -> Tensor:
        """Return the inner products [problems]."""
        of_weights = (self.weights * other.weights).sum((0, 1))
        of_intercepts = (self.intercepts * other.intercepts).sum(0)
        return of_weights + of_intercepts

    def plus(self, other: Point, factor: Tensor) -> Point:
        """Return this point plus `factor` [problems] times another."""
        weights = self.weights + factor * other.weights
        intercepts = self.intercepts + factor * other.intercepts
        return Point(weights, intercepts)

    def select(self, problems: Tensor) -> Point:
        """Return the part of some problems."""
        return Point(self.weights[..., problems], self.intercepts[..., problems])


class Start(NamedTuple):
    """A point and the margins of all rows there [rows, outputs, problems], which save a product."""

    point: Point
    margins: Tensor

    def select(self, problems: Tensor) -> Start:
        """Return the part of some problems."""
        return Start(self.point.select(problems), self.margins[..., problems])

    def plus(self, other: Start, factor: Tensor) -> Start:
        """Return this start plus `factor` [problems] times another; margins are linear in the point."""
        return Start(self.point.plus(other.point, factor), self.margins + factor * other.margins)

    def minus(self, other: Start) -> Start:
        """Return the direction from another start to this one."""
        return self.plus(other, torch.tensor(-1.0))


class Step(NamedTuple):
    """A step in the L-BFGS history: changes of point and gradient, and 1 over their inner product [problems]."""

    moved: Point
    turned: Point
    inverse: Tensor

    def select(self, problems: Tensor) -> Step:
        """Return the part of some problems."""
        return Step(
            self.moved.select(problems), self.turned.select(problems), self.inverse[problems]
        )


@dataclass(frozen=True)
class _Solution:
    """The optimum of every problem.

    Attributes:
        point: The weights and intercepts, for scaled features.
        margins: X W + b of all rows, [rows, outputs, problems].
        objective: The objective [problems].
        num_steps: Iterations [problems].
    """

    point: Point
    margins: Tensor
    objective: Tensor
    num_steps: Tensor

    def start(self, problems: Tensor) -> Start:
        """Return the solutions of these problems as a start for others."""
        return Start(self.point, self.margins).select(problems)


@dataclass(frozen=True)
class Problems:
    """What the problems share, and the training rows and C in which they differ.

    Attributes:
        scaled: The features.
        spectrum: Their leading eigenvectors.
        targets: 1 where the row is of the output's class, [rows, outputs, 1].
        costs: C where the row trains the problem, else zero, [rows, problems].
        has_free_intercept: Whether there is an intercept without a penalty; otherwise it stays 0.
        fixed: The intercepts of outputs that are not fitted, as a class has no training row, [outputs, problems]; NaN
            where there is one to fit; None where all are fitted.
    """

    scaled: ScaledFeatures
    spectrum: Spectrum
    targets: Tensor
    costs: Tensor
    has_free_intercept: bool = True
    fixed: Tensor | None = None

    def select(self, is_selected: Tensor) -> Problems:
        """Return some of the problems, given by a mask, bool [problems]."""
        costs = self.costs[:, is_selected]
        fixed = self.fixed
        if fixed is not None:
            fixed = fixed[:, is_selected]
        return replace(self, costs=costs, scaled=self.scaled.of(costs > 0), fixed=fixed)

    def with_fixed(self, start: Start | None) -> Start | None:
        """Return a start whose outputs that are not fitted have their intercepts, and no weights."""
        if self.fixed is None:
            return start
        if start is None:
            start = _zero_start(self)
        is_fixed = ~self.fixed.isnan()
        point = Point(
            start.point.weights.masked_fill(is_fixed, 0),
            torch.where(is_fixed, self.fixed, start.point.intercepts),
        )
        return Start(point, torch.where(is_fixed, self.fixed, start.margins))

    def objective(self, point: Point, margins: Tensor) -> Tensor:
        """Return the objective [problems]."""
        if margins.shape[1] == 1:
            losses = (softplus(margins) - self.targets * margins).squeeze(1)
        else:
            losses = margins.logsumexp(1) - (self.targets * margins).sum(1)
        return point.weights.square().sum((0, 1)) / 2 + (self.costs * losses).sum(0)

    def gradient(self, point: Point, margins: Tensor) -> tuple[Point, Tensor]:
        """Return the gradient, and the curvature: the sum over rows of C p (1 - p), [outputs, problems]."""
        chances = probabilities(margins)
        curvature = (self.costs[:, None] * (chances - chances.square())).sum(0)
        residuals = (chances - self.targets).mul_(self.costs[:, None])
        if self.fixed is not None:
            residuals.masked_fill_(~self.fixed.isnan(), 0)
        of_weights = self.scaled.transposed_times(residuals) + point.weights
        if self.has_free_intercept:
            of_intercepts = residuals.sum(0)
        else:
            of_intercepts = torch.zeros_like(point.intercepts)
        return Point(of_weights, of_intercepts), curvature

    def best_along(self, start: Start, direction: Start) -> Start:
        """Return the best point on the line through `start` along `direction`, without a product."""
        length = self.step_length(start.point, direction.point, start.margins, direction.margins)
        return start.plus(direction, length)

    def step_length(
        self, point: Point, direction: Point, margins: Tensor, change: Tensor
    ) -> Tensor:
        """Return the length of the step [problems] by Newton's method along the line.

        Args:
            point: Where the line starts.
            direction: Its direction.
            margins: The margins at `point` [rows, outputs, problems].
            change: The margins of `direction`.
        """
        across = (point.weights * direction.weights).sum((0, 1))
        along = direction.weights.square().sum((0, 1))
        length = torch.ones_like(across)
        # The slope rises along the line: the best length lies between the longest where it falls and the shortest where
        # it does not. Newton's method alone swings between far ends where all rows are certain.
        low = torch.zeros_like(length)
        high = torch.full_like(length, torch.inf)
        for _ in range(8):
            chances = probabilities(margins + length * change)
            weighted = chances * change
            mean = weighted.sum(1)
            bends = (weighted * change).sum(1) - mean.square()
            slopes = mean - (self.targets * change).sum(1)
            slope = across + length * along + (self.costs * slopes).sum(0)
            bend = along + (self.costs * bends).sum(0)
            newton = -slope / bend.clamp(min=1e-30)
            low = torch.where(slope < 0, length, low)
            high = torch.where(slope > 0, length, high)
            ahead = (length + newton.clamp(-1, 2)).clamp(min=1e-4)
            is_outside = (ahead < low) | (ahead > high)
            length = torch.where(is_outside, (low + high) / 2, ahead)
            if bool((newton.abs() < 0.05 * length).all()):
                break
        return length


def class_targets(labels: np.ndarray, *, num_classes: int) -> Tensor:
    """Return 1 where a row is of an output's class, float32 [rows, outputs]; two classes have one output."""
    classes = torch.arange(num_classes)
    if num_classes == 2:
        classes = classes[1:]
    return (torch.from_numpy(labels)[:, None] == classes).to(torch.float32)


def probabilities(margins: Tensor) -> Tensor:
    """Return the probabilities of the classes for margins [rows, outputs, ...]."""
    if margins.shape[1] == 1:
        return torch.sigmoid(margins)
    return torch.softmax(margins, dim=1)


def solve(
    problems: Problems, *, start: Start | None = None, tolerance: Tensor | float = TOLERANCE
) -> _Solution:
    """Solve all problems.

    Args:
        problems: The problems.
        start: The initial point; by default zero.
        tolerance: A problem stops when its estimated distance to the optimum, divided by the objective, is at most
            this; one number, or [problems].

    Returns:
        The solution; `num_steps` is `MAX_STEPS` for problems that did not reach the tolerance.
    """
    num_problems = problems.costs.shape[1]
    point, margins = start or _zero_start(problems)
    solution = _Solution(
        Point(torch.empty_like(point.weights), torch.empty_like(point.intercepts)),
        margins.clone(),
        torch.zeros(num_problems),
        torch.zeros(num_problems, dtype=torch.int64),
    )
    active = torch.arange(num_problems)
    history = deque[Step](maxlen=_HISTORY)
    tolerances = torch.as_tensor(tolerance).expand(num_problems)
    gradient, curvature = problems.gradient(point, margins)
    for step in range(MAX_STEPS + 1):
        direction = _direction(problems, gradient, curvature, history)
        objective = problems.objective(point, margins)
        # Half of gradient x direction is the quadratic model's distance to its optimum.
        distance = -gradient.dot(direction) / 2
        allowed = tolerances[active] * objective
        is_uphill = distance < -allowed
        if bool(is_uphill.any()):
            # Rounding in the history turned the direction; these problems go on without their history.
            history = deque(
                (past._replace(inverse=past.inverse * ~is_uphill) for past in history),
                maxlen=_HISTORY,
            )
            direction = _direction(problems, gradient, curvature, history)
            distance = -gradient.dot(direction) / 2
        is_done = distance.abs() <= allowed
        if bool(is_done.all()) or step == MAX_STEPS:
            _store(solution, active, Start(point, margins), objective, step)
            break
        # Solved problems are dropped once they are a quarter of those left.
        if int(is_done.sum()) * 4 >= len(is_done):
            solved = Start(point, margins).select(is_done)
            _store(solution, active[is_done], solved, objective[is_done], step)
            is_open = ~is_done
            active = active[is_open]
            problems = problems.select(is_open)
            point, margins = Start(point, margins).select(is_open)
            gradient = gradient.select(is_open)
            direction = direction.select(is_open)
            history = deque((past.select(is_open) for past in history), maxlen=_HISTORY)
        change = problems.scaled.times(direction.weights) + direction.intercepts
        length = problems.step_length(point, direction, margins, change)
        point = point.plus(direction, length)
        margins = margins + length * change
        gradient_before = gradient
        gradient, curvature = problems.gradient(point, margins)
        turned = gradient.plus(gradient_before, torch.tensor(-1.0))
        moved = Point(length * direction.weights, length * direction.intercepts)
        history.append(Step(moved, turned, _inverse(moved, turned)))
    return solution


def _zero_start(problems: Problems) -> Start:
    """Return weights, intercepts and margins of 0 for every problem."""
    rows, num_problems = problems.costs.shape
    outputs = problems.targets.shape[1]
    weights = torch.zeros(problems.scaled.dim, outputs, num_problems)
    intercepts = torch.zeros(outputs, num_problems)
    return Start(Point(weights, intercepts), torch.zeros(rows, outputs, num_problems))


def _inverse(moved: Point, turned: Point) -> Tensor:
    """Return 1 over the inner products [problems]; 0, which leaves a step out of the history, where it is rounding."""
    product = moved.dot(turned)
    is_rounding = product <= _ROUNDING * (moved.dot(moved) * turned.dot(turned)).sqrt()
    return torch.where(is_rounding, 0, 1 / product.clamp(min=torch.finfo(product.dtype).tiny))


def _direction(
    problems: Problems, gradient: Point, curvature: Tensor, history: deque[Step]
) -> Point:
    """Return the L-BFGS direction: the two-loop recursion around the preconditioner."""
    ahead = gradient
    factors = []
    for step in reversed(history):
        factor = step.inverse * step.moved.dot(ahead)
        ahead = ahead.plus(step.turned, -factor)
        factors.append(factor)
    weights = problems.scaled.precondition(problems.spectrum, ahead.weights, curvature)
    # A start whose fit had no row of a class gives its first row no curvature: the step is bounded by the gradient.
    lowest = (gradient.intercepts.abs() / _MAX_MOVE).clamp(min=1e-12)
    ahead = Point(weights, ahead.intercepts / torch.maximum(curvature, lowest))
    for step, factor in zip(history, reversed(factors), strict=True):
        ahead = ahead.plus(step.moved, factor - step.inverse * step.turned.dot(ahead))
    return Point(-ahead.weights, -ahead.intercepts)


def _store(
    solution: _Solution, problems: Tensor, solved: Start, objective: Tensor, step: int
) -> None:
    """Write what was reached for these problems, int64 [problems], into the solution of all."""
    solution.point.weights[..., problems] = solved.point.weights
    solution.point.intercepts[..., problems] = solved.point.intercepts
    solution.margins[..., problems] = solved.margins
    solution.objective[problems] = objective
    solution.num_steps[problems] = step


class Fits:
    """The fits of one task, which share features, spectrum and targets.

    Attributes:
        num_unfinished: Fits that stopped at the maximum number of iterations, of `path` and of `solve`.
    """

    def __init__(
        self,
        features: np.ndarray,
        targets: Tensor,
        *,
        trainable: np.ndarray,
        strengths: Sequence[float],
        has_free_intercept: bool = True,
        scaled: Callable[..., ScaledFeatures] = ScaledFeatures,
    ) -> None:
        """Prepare the fits.

        Args:
            features: float32 [rows, dim].
            targets: Probability of each output, float32 [rows, outputs].
            trainable: The rows that may train, int64.
            strengths: The grid of C, ascending.
            has_free_intercept: See the module.
            scaled: Makes the features that products are taken with.
        """
        array = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        if not has_free_intercept:
            array = torch.cat([array, torch.ones(len(array), 1)], dim=1)
        self._has_free_intercept = has_free_intercept
        # Rows after the last trainable one take part in no product until all problems are solved.
        stop = int(trainable.max()) + 1
        rows = torch.from_numpy(trainable)
        self._scaled = scaled(array[:stop], rows, is_scaled=has_free_intercept)
        self._behind = array[stop:]
        self._spectrum = Spectrum(self._scaled, rows)
        self._targets = targets[:stop, :, None]
        self.strengths = tuple(strengths)
        self.num_unfinished = 0

    def with_targets(self, targets: Tensor) -> Fits:
        """Return fits of other targets, float32 [rows, outputs], with the same features and grid."""
        fits = copy(self)
        fits._targets = targets[: len(self._targets), :, None]
        fits.num_unfinished = 0
        return fits

    def solve(
        self,
        masks: Tensor,
        strengths: Tensor,
        start: Start | None = None,
        *,
        direction: Start | None = None,
        tolerance: Tensor | None = None,
    ) -> _Solution:
        """Solve problems in bounded memory.

        Args:
            masks: The training rows of each problem, bool [rows, problems].
            strengths: C [problems].
            start: The initial point; by default zero.
            direction: Where given, the initial point is the best one on the line through `start` along it.
            tolerance: Of each problem [problems]; by default `TOLERANCE`.

        Raises:
            DataError: If a fit is not finite.
        """
        if tolerance is None:
            tolerance = torch.tensor(TOLERANCE).expand(len(strengths))
        rows, outputs = self._targets.shape[:2]
        size = max(1, ARRAY_BYTES // (4 * max(rows, self._scaled.dim) * outputs))
        parts = []
        for chunk in torch.split(torch.arange(len(strengths)), size):
            problems = self._problems(masks[:rows, chunk], strengths[chunk])
            initial = start
            if initial:
                initial = initial.select(chunk)
            initial = problems.with_fixed(initial)
            if initial and start and direction:
                initial = problems.best_along(initial, direction.select(chunk))
                # The step along the line has moved the intercepts that are not fitted, too.
                initial = problems.with_fixed(initial)
            parts.append(solve(problems, start=initial, tolerance=tolerance[chunk]))
        solution = _concatenate(parts)
        self.num_unfinished += int((solution.num_steps >= MAX_STEPS).sum())
        if not bool(torch.isfinite(solution.objective).all()):
            raise DataError(
                "features: must allow finite fits of a probe; given some that do not; train the model again"
            )
        return solution

    def _problems(self, masks: Tensor, strengths: Tensor) -> Problems:
        """Return the problems of these training rows, bool [rows, problems], and C [problems]."""
        costs = masks.to(torch.float32) * strengths
        fixed = None
        if self._has_free_intercept:
            fixed = self._fixed_intercepts(costs > 0)
        return Problems(
            self._scaled.of(masks),
            self._spectrum,
            self._targets,
            costs,
            self._has_free_intercept,
            fixed,
        )

    def _fixed_intercepts(self, is_trained: Tensor) -> Tensor | None:
        """Return `Problems.fixed` of problems with these training rows, bool [rows, problems]."""
        trained = is_trained.to(torch.float32)
        has_class = (self._targets[:, :, 0] > 0).to(torch.float32).T @ trained > 0
        if len(has_class) > 1:
            fixed = torch.where(has_class, torch.nan, LOWEST)
        else:
            has_other = (self._targets[:, :, 0] < 1).to(torch.float32).T @ trained > 0
            odds = trained.sum(dim=0, keepdim=True).log1p()
            fixed = torch.full_like(odds, torch.nan)
            fixed = torch.where(has_class & ~has_other, odds, fixed)
            fixed = torch.where(has_other & ~has_class, -odds, fixed)
        if bool(fixed.isnan().all()):
            return None
        return fixed

    def path(self, masks: Tensor) -> _Solution:
        """Solve every mask [rows, masks] at every C, in ascending order, each starting from those before.

        Returns:
            The solution of masks x strengths problems, problem `strength * masks + mask`.
        """
        num_masks = masks.shape[1]
        outputs = self._targets.shape[1]
        group_size = -(-_MIN_COLUMNS // (num_masks * outputs))
        parts: list[_Solution] = []
        for group in torch.split(torch.tensor(self.strengths), group_size):
            # The problems of a group's last C are its last ones; each C of this group starts from them.
            last_problems = torch.arange(num_masks).repeat(len(group)) - num_masks
            earlier = [part.start(last_problems) for part in parts[-2:]]
            start = None
            if earlier:
                start = earlier[-1]
            direction = None
            if len(earlier) == 2:
                direction = earlier[1].minus(earlier[0])
            strengths = group.repeat_interleave(num_masks)
            tolerance = path_tolerance(strengths)
            all_masks = masks.repeat(1, len(group))
            parts.append(
                self.solve(all_masks, strengths, start, direction=direction, tolerance=tolerance)
            )
        return _concatenate(parts)

    def margins(self, solution: _Solution) -> Tensor:
        """Return X W + b of all rows, including those that cannot train, [rows, outputs, problems]."""
        if not len(self._behind):
            return solution.margins
        weights, intercepts = solution.point
        return torch.cat([solution.margins, self._scaled.times(weights, self._behind) + intercepts])

    def probe(self, solution: _Solution, problem: int, strength: float) -> Probe:
        """Return the classifier of one problem, for features that are not scaled."""
        point = solution.point
        # Weights of words, which `scaled` may have added, come last and are left out.
        weights = point.weights[: len(self._scaled.mean), :, problem] / self._scaled.scale
        if self._has_free_intercept:
            intercepts = point.intercepts[..., problem] - self._scaled.mean @ weights
        else:
            intercepts = weights[-1]
            weights = weights[:-1]
        return Probe(weights.numpy(), intercepts.numpy(), strength)


def path_tolerance(strengths: Tensor) -> Tensor:
    """Return the tolerance of a fit that helps to choose C, by C [problems]: 5e-5, and more for C above 1."""
    return PATH_TOLERANCE * strengths.clamp(min=1) ** (2 / 3)


def _concatenate(parts: Sequence[_Solution]) -> _Solution:
    if len(parts) == 1:
        return parts[0]
    point = Point(
        torch.cat([part.point.weights for part in parts], dim=-1),
        torch.cat([part.point.intercepts for part in parts], dim=-1),
    )
    return _Solution(
        point,
        torch.cat([part.margins for part in parts], dim=-1),
        torch.cat([part.objective for part in parts]),
        torch.cat([part.num_steps for part in parts]),
    )


def log_probabilities(margins: Tensor) -> Tensor:
    """Return log-probabilities [rows, classes] of margins [rows, outputs]; one output stands for two classes."""
    if margins.shape[1] == 1:
        margins = torch.cat([torch.zeros_like(margins), margins], dim=1)
    return torch.log_softmax(margins, dim=1)
