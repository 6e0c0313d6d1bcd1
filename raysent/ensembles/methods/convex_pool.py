"""The logarithmic pool of minimal penalised NLL, with a certificate that it is the global optimum.

Minimised over w >= 0, with M members, classes k and rows i:

    mean_i [ log sum_k exp(sum_m w_m log p_m(k)) - sum_m w_m log p_m(y_i) ]  +  strength M/2 sum_m (w_m - 1/M)^2

The first term is the NLL, which is convex in w. The weights need not sum to one: their sum is the inverse of a
temperature, so the fit also calibrates the pool. The second term shrinks them towards equal weights; held-out NLL
chooses its strength by cross-fitting, the strongest of equals. The solver is a projected Newton method, each step of
which is a non-negative least squares problem.

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
TOLERANCE = 1e-8
MAX_STEPS = 100
# Log-probabilities read to choose the strength; where the rows hold more, the first rows of every fold are used.
MAX_READ_FOR_STRENGTH = 10**8
SEED = 3333


@dataclass(frozen=True)
class PoolSolution:
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
        self._predictions, self._labels = predictions, labels
        self._whole: Float64 | None = None

    def blocks(self) -> Iterator[Float64]:
        """Yield the blocks in turn; one that holds all rows is cached."""
        if self._whole is not None:
            yield self._whole
            return
        for rows, block in self._predictions.blocks():
            against = np.maximum(block.transpose(0, 2, 1), LOG_ZERO, order="C")
            against -= against[:, self._labels[rows], np.arange(block.shape[1])][:, None, :]
            if block.shape[1] == self.num_rows:
                self._whole = against
            yield against


def convex_pool(
    predictions: MemberPredictions, targets: Targets
) -> tuple[LogarithmicPool, Diagnostics]:
    """Weights of minimal penalised NLL, certified; cross-fitting chooses the penalty."""
    # Any positive weight on a member that excludes a right class would make the NLL infinite.
    allowed = np.asarray(np.isfinite(predictions.of_labels(targets.labels)).all(axis=1))
    allowed = allowed if allowed.any() else np.ones_like(allowed)
    kept = predictions.select(np.flatnonzero(allowed).tolist())
    strength = choose_strength(kept, targets.labels)
    solution = solve(Odds(kept, targets.labels), strength=strength)
    weights = np.zeros(len(allowed))
    weights[allowed] = solution.weights
    found = {
        "duality_gap": solution.gap,
        "strength": strength,
        "num_steps": float(solution.num_steps),
        "weight_sum": float(weights.sum()),
    }
    return LogarithmicPool(weights), found


METHODS = {"pool": convex_pool}


def choose_strength(predictions: MemberPredictions, labels: np.ndarray) -> float:
    """Return the strength of least cross-fitted NLL; the strongest if there is a single row."""
    members, _, classes = predictions.shape
    most = max(1, MAX_READ_FOR_STRENGTH // (members * classes))
    totals = np.zeros(len(STRENGTHS))
    for training, held_out in folds_of(labels, seed=SEED):
        few, unseen = training[: max(1, most * len(training) // len(labels))], held_out[:most]
        odds, unseen_odds = (
            Odds(predictions.take(few), labels[few]),
            Odds(predictions.take(unseen), labels[unseen]),
        )
        weights = None
        for index, strength in enumerate(STRENGTHS):
            weights = solve(odds, strength=strength, start=weights).weights
            totals[index] += _nll(unseen_odds, weights) * len(unseen)
    return STRENGTHS[int(totals.argmin())]


def solve(odds: Odds, *, strength: float, start: Float64 | None = None) -> PoolSolution:
    """Return the weights of least penalised NLL.

    Args:
        odds: Members' log-odds against the right class.
        strength: Of the shrinkage towards equal weights, above 0.
        start: Initial weights, [members]; equal ones by default.
    """
    members = odds.num_members
    centre, pull = np.full(members, 1 / members), strength * members
    weights = centre if start is None else start
    point = _point(odds, weights)
    for step in range(MAX_STEPS):
        gap = _gap(weights, point.gradient, centre, pull)
        if gap <= TOLERANCE:
            return PoolSolution(weights, gap, step)
        target = _newton_target(weights, point, centre, pull)
        moved = _search(odds, (weights, target), point, (centre, pull))
        if moved is None:  # the objective does not decrease any further in floating point
            return PoolSolution(weights, gap, step)
        weights = moved
        point = _point(odds, weights)
    return PoolSolution(weights, _gap(weights, point.gradient, centre, pull), MAX_STEPS)


def _gap(weights: Float64, gradient: Float64, centre: Float64, pull: float) -> float:
    dual = np.maximum(0, centre - gradient / pull)
    return float(
        (weights - dual) @ gradient + _penalty(weights, centre, pull) - _penalty(dual, centre, pull)
    )


def _penalty(weights: Float64, centre: Float64, pull: float) -> float:
    return pull / 2 * float(((weights - centre) ** 2).sum())


def _newton_target(weights: Float64, point: _Point, centre: Float64, pull: float) -> Float64:
    """Return the weights >= 0 that minimise the second-order expansion of the objective."""
    gradient = point.gradient + pull * (weights - centre)
    root = np.linalg.cholesky(point.hessian + pull * np.eye(len(weights)))
    wanted = root.T @ weights - scipy.linalg.solve_triangular(root, gradient, lower=True)
    target: Float64 = scipy.optimize.nnls(root.T, wanted)[0]
    return target


def _search(
    odds: Odds, ends: tuple[Float64, Float64], point: _Point, towards: tuple[Float64, float]
) -> Float64 | None:
    """Return weights between two ends that decrease the objective enough, by backtracking; None if there are none."""
    weights, target = ends
    centre, pull = towards
    slope = float((target - weights) @ (point.gradient + pull * (weights - centre)))
    before = point.nll + _penalty(weights, centre, pull)
    step = 1.0
    while step * -slope > np.finfo(np.float64).eps * abs(before):
        moved = weights + step * (target - weights)
        if _nll(odds, moved) + _penalty(moved, centre, pull) <= before + 1e-4 * step * slope:
            return moved
        step /= 2
    return None


def _nll(odds: Odds, weights: Float64) -> float:
    total = sum(
        float(_log_sum(np.tensordot(weights, block, axes=1)).sum()) for block in odds.blocks()
    )
    return total / odds.num_rows


def _point(odds: Odds, weights: Float64) -> _Point:
    members = odds.num_members
    nll, gradient, hessian = 0.0, np.zeros(members), np.zeros((members, members))
    for block in odds.blocks():
        margins = np.tensordot(weights, block, axes=1)
        heights = _log_sum(margins)
        roots = np.exp((margins - heights) / 2)
        rooted = block * roots
        means = np.einsum("mki,ki->mi", rooted, roots)
        nll += float(heights.sum())
        gradient += means.sum(axis=1)
        flat = rooted.reshape(members, -1)
        hessian += flat @ flat.T - means @ means.T
    return _Point(nll / odds.num_rows, gradient / odds.num_rows, hessian / odds.num_rows)


def _log_sum(margins: Float64) -> Float64:
    """Return the logarithm of the sum of exponentials over classes [classes, rows], [rows]."""
    highest = margins.max(axis=0)
    summed: Float64 = highest + np.log(np.exp(margins - highest).sum(axis=0))
    return summed
