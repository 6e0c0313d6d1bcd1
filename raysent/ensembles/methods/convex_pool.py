"""The logarithmic pool of minimal penalised NLL, with a certificate that it is the global optimum.

Minimised over w >= 0, with M members, classes k and rows i:

    mean_i [ log sum_k exp(sum_m w_m log p_m(k)) - sum_m w_m log p_m(y_i) ]  +  strength/2 sum_m (w_m - centre_m)^2

The first term is the NLL, which is convex in w. The weights need not sum to one: their sum is the inverse of a
temperature, so the fit also calibrates the pool. The second term shrinks them: `pool` towards equal weights, with a
strength that held-out NLL chooses by cross-fitting, the strongest of equals; `answer` towards what is known of the
members elsewhere, as if some rows had been seen. The solver is a projected Newton method, each step of which is a
non-negative least squares problem.

The certificate is Fenchel's dual at the pool's own class probabilities. With g the gradient of the NLL, no weights are
better than w by more than  w.g + penalty(w) - min over v >= 0 of [ v.g + penalty(v) ],  which has a closed form.

Source: Heskes, 1998 (logarithmic opinion pools).
Differs: the sum of the weights is free, and the weights are shrunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize

from raysent.ensembles.cross_fitting import folds_of
from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.pools import LOG_ZERO, LogarithmicPool
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.targets import Float64, Targets

STRENGTHS = (10.0, 1.0, 0.1, 0.01, 0.001, 0.0001)
# Of `answer`: the penalty on all rows together is this times the squared distance. From 3 to 100 accuracies differ by
# 0.3 points at most.
_LEANING_STRENGTH = 10.0
TOLERANCE = 1e-8
MAX_STEPS = 100
# Log-probabilities read to choose the strength; where the rows hold more, the first rows of every fold are used.
_MAX_READ_FOR_STRENGTH = 10**8
SEED = 3333


@dataclass(frozen=True)
class Pull:
    """What draws weights towards a point: `strength / 2` times the squared distance from it, in nats a row.

    Attributes:
        centre: The point, float64 [members], of numbers that are not negative.
        strength: Above 0.
    """

    centre: Float64
    strength: float

    @classmethod
    def to_equal(cls, num_members: int, strength: float) -> Pull:
        """Return the pull towards equal weights, stronger with more members."""
        return cls(np.full(num_members, 1 / num_members), strength * num_members)

    def penalty(self, weights: Float64) -> float:
        """Return the penalty on weights [members]."""
        return self.strength / 2 * float(((weights - self.centre) ** 2).sum())

    def gradient(self, weights: Float64) -> Float64:
        """Return the penalty's gradient at weights, [members]."""
        return self.strength * (weights - self.centre)


@dataclass(frozen=True)
class _PoolSolution:
    """Weights and their certificate.

    Attributes:
        weights: float64 [members].
        gap: Upper bound on the improvement by any other weights, in nats per row.
        num_steps: Newton steps taken.
    """

    weights: Float64
    gap: float
    num_steps: int


@dataclass(frozen=True)
class _Point:
    """The NLL per row at some weights, with its gradient [members] and its Hessian [members, members]."""

    nll: float
    gradient: Float64
    hessian: Float64


class Odds:
    """Members' log-probabilities minus that of the right class, float64 [members, classes, rows], in blocks of rows."""

    def __init__(self, predictions: MemberPredictions, labels: np.ndarray) -> None:
        """Hold predictions and the rows' classes [rows]; -inf counts as `LOG_ZERO`."""
        self.num_members, self.num_rows, _ = predictions.shape
        self._predictions = predictions
        self._labels = labels
        # The one block, where all rows fit into one.
        self._only_block: Float64 | None = None

    def blocks(self) -> Iterator[Float64]:
        """Yield the blocks in turn; one that holds all rows is cached."""
        if self._only_block is not None:
            yield self._only_block
            return
        for rows, block in self._predictions.blocks():
            num_rows = block.shape[1]
            odds = np.maximum(block.transpose(0, 2, 1), LOG_ZERO, order="C")
            odds -= odds[:, self._labels[rows], np.arange(num_rows)][:, None, :]
            if num_rows == self.num_rows:
                self._only_block = odds
            yield odds


def convex_pool(
    predictions: MemberPredictions, targets: Targets
) -> tuple[LogarithmicPool, Diagnostics]:
    """Weights of minimal penalised NLL, certified; cross-fitting chooses the penalty."""
    is_allowed, allowed = _allowed(predictions, targets)
    strength = _choose_strength(allowed, targets)
    pull = Pull.to_equal(allowed.shape[0], strength)
    return _fitted(is_allowed, allowed, targets, pull, chosen_strength=strength)


def _leaning_pool(
    predictions: MemberPredictions, targets: Targets
) -> tuple[LogarithmicPool, Diagnostics]:
    """Weights of minimal penalised NLL, certified, that lean to what is known to be good elsewhere; see `prior`."""
    is_allowed, allowed = _allowed(predictions, targets)
    strength = 2 * _LEANING_STRENGTH / len(targets)
    pull = Pull(allowed.prior, strength)
    return _fitted(is_allowed, allowed, targets, pull, chosen_strength=strength)


METHODS = {"pool": convex_pool, "answer": _leaning_pool}


def _allowed(
    predictions: MemberPredictions, targets: Targets
) -> tuple[np.ndarray, MemberPredictions]:
    """Return which members exclude no right class, [members], and these; all where each excludes one.

    Any positive weight on a member that excludes a right class would make the NLL infinite.
    """
    is_allowed = np.asarray(np.isfinite(predictions.of_labels(targets.labels)).all(axis=1))
    if not is_allowed.any():
        is_allowed = np.ones_like(is_allowed)
    return is_allowed, predictions.select(np.flatnonzero(is_allowed).tolist())


def _fitted(
    is_allowed: np.ndarray,
    allowed: MemberPredictions,
    targets: Targets,
    pull: Pull,
    *,
    chosen_strength: float,
) -> tuple[LogarithmicPool, Diagnostics]:
    """Return the pool of all members, in which only those that are allowed have a weight, and how it was fitted."""
    solution = solve(Odds(allowed, targets.labels), pull)
    weights = np.zeros(len(is_allowed))
    weights[is_allowed] = solution.weights
    diagnostics = {
        "duality_gap": solution.gap,
        "strength": chosen_strength,
        "num_steps": float(solution.num_steps),
        "weight_sum": float(weights.sum()),
    }
    return LogarithmicPool(weights), diagnostics


def _choose_strength(predictions: MemberPredictions, targets: Targets) -> float:
    """Return the strength of least cross-fitted NLL; the strongest if there is a single unit of rows."""
    num_members, _, num_classes = predictions.shape
    labels = targets.labels
    max_rows = max(1, _MAX_READ_FOR_STRENGTH // (num_members * num_classes))
    totals = np.zeros(len(STRENGTHS))
    for fold_rows, held_out in folds_of(targets, seed=SEED):
        fitted = fold_rows[: max(1, max_rows * len(fold_rows) // len(labels))]
        unseen = held_out[:max_rows]
        odds = Odds(predictions.take(fitted), labels[fitted])
        unseen_odds = Odds(predictions.take(unseen), labels[unseen])
        weights = None
        for index, strength in enumerate(STRENGTHS):
            # The strengths fall, and each fit starts from the one before.
            weights = solve(odds, Pull.to_equal(num_members, strength), start=weights).weights
            totals[index] += _nll(unseen_odds, weights) * len(unseen)
    return STRENGTHS[int(totals.argmin())]


def solve(odds: Odds, pull: Pull, *, start: Float64 | None = None) -> _PoolSolution:
    """Return the weights of least penalised NLL.

    Args:
        odds: Members' log-odds against the right class.
        pull: What the weights are shrunk towards.
        start: Initial weights, [members]; by default those they are shrunk towards.
    """
    weights = pull.centre
    if start is not None:
        weights = start
    point = _point(odds, weights)
    for step in range(MAX_STEPS):
        gap = _gap(weights, point.gradient, pull)
        if gap <= TOLERANCE:
            return _PoolSolution(weights, gap, step)
        target = _newton_target(weights, point, pull)
        moved = _search(odds, weights, target, point, pull)
        if moved is None:
            # The objective does not decrease any further in floating point.
            return _PoolSolution(weights, gap, step)
        weights = moved
        point = _point(odds, weights)
    return _PoolSolution(weights, _gap(weights, point.gradient, pull), MAX_STEPS)


def _gap(weights: Float64, gradient: Float64, pull: Pull) -> float:
    """Return the duality gap at weights [members], which bounds what any others would improve; see the module."""
    dual = np.maximum(0, pull.centre - gradient / pull.strength)
    return float((weights - dual) @ gradient + pull.penalty(weights) - pull.penalty(dual))


def _newton_target(weights: Float64, point: _Point, pull: Pull) -> Float64:
    """Return the weights >= 0 that minimise the second-order expansion of the objective."""
    gradient = point.gradient + pull.gradient(weights)
    # With H = L L^T the expansion is half the squared length of L^T v - (L^T w - L^-1 g), up to a constant.
    root = np.linalg.cholesky(point.hessian + pull.strength * np.eye(len(weights)))
    right_side = root.T @ weights - scipy.linalg.solve_triangular(root, gradient, lower=True)
    target: Float64 = scipy.optimize.nnls(root.T, right_side)[0]
    return target


def _search(
    odds: Odds, weights: Float64, target: Float64, point: _Point, pull: Pull
) -> Float64 | None:
    """Return weights on the way to a target that decrease the objective enough, by backtracking; None for none."""
    slope = float((target - weights) @ (point.gradient + pull.gradient(weights)))
    before = point.nll + pull.penalty(weights)
    step = 1.0
    while step * -slope > np.finfo(np.float64).eps * abs(before):
        moved = weights + step * (target - weights)
        if _nll(odds, moved) + pull.penalty(moved) <= before + 1e-4 * step * slope:
            return moved
        step /= 2
    return None


def _nll(odds: Odds, weights: Float64) -> float:
    """Return the NLL per row: the right class has odds of 0, so that its log-probability is minus the log-sum."""
    total = 0.0
    for block in odds.blocks():
        margins = np.tensordot(weights, block, axes=1)
        total += float(_log_sum(margins).sum())
    return total / odds.num_rows


def _point(odds: Odds, weights: Float64) -> _Point:
    num_members = odds.num_members
    nll = 0.0
    gradient = np.zeros(num_members)
    hessian = np.zeros((num_members, num_members))
    for block in odds.blocks():
        margins = np.tensordot(weights, block, axes=1)
        log_sums = _log_sum(margins)
        # Square roots of the pool's probabilities, so that one product of a matrix with itself weighs by them.
        roots = np.exp((margins - log_sums) / 2)
        rooted = block * roots
        means = np.einsum("mki,ki->mi", rooted, roots)
        nll += float(log_sums.sum())
        gradient += means.sum(axis=1)
        flat = rooted.reshape(num_members, -1)
        # The covariance of the members' odds: the mean of products minus the product of means.
        hessian += flat @ flat.T - means @ means.T
    return _Point(nll / odds.num_rows, gradient / odds.num_rows, hessian / odds.num_rows)


def _log_sum(margins: Float64) -> Float64:
    """Return the logarithm of the sum of exponentials over classes [classes, rows], [rows]."""
    highest = margins.max(axis=0)
    summed: Float64 = highest + np.log(np.exp(margins - highest).sum(axis=0))
    return summed
