"""The best logarithmic pool there is: its NLL is convex in the weights, so the optimum is global and certified.

Minimised over w >= 0, with M members, classes k and rows i:

    mean_i [ log sum_k exp(sum_m w_m log p_m(k)) - sum_m w_m log p_m(y_i) ]  +  strength M/2 sum_m (w_m - 1/M)^2

The weights need not sum to one: their sum is the inverse of a temperature, so the pool is calibrated as it is fitted.
The second term draws them towards equal shares; cross-fitting chooses its strength by held-out NLL, the strongest of
equals. The solver is a projected Newton method whose steps are non-negative least squares.

The certificate is Fenchel's dual at the pool's own class probabilities: with g the NLL's gradient, no weights are
better than w by more than  w.g + penalty(w) - min over v >= 0 of [ v.g + penalty(v) ],  which has a closed form.

Source: Heskes, 1998 (logarithmic opinion pools). Differs: the weights' sum is free, and shrunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize

from raysent.ensembles.combination import LOG_OF_NOUGHT, LogarithmicPool
from raysent.ensembles.folds import divisions
from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.predictions import Answers, Float64, Truth

STRENGTHS = (10.0, 1.0, 0.1, 0.01, 0.001, 0.0001)
TOLERANCE = 1e-8
MAX_STEPS = 100
# Log-probabilities read to choose the strength; of more rows than hold so many, the first of every fold are taken.
MAX_READ_FOR_STRENGTH = 10**8
SEED = 3333


@dataclass(frozen=True)
class Solution:
    """Weights and their certificate.

    Attributes:
        weights: float64 [members].
        gap: Nats per row by which any other weights could be better at most.
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
    """Members' log-probabilities less what they give the right class, float64 [members, classes, rows] by blocks."""

    def __init__(self, answers: Answers, labels: np.ndarray) -> None:
        """Take answers and the rows' classes [rows]; -inf counts as the logarithm of the smallest number."""
        self.num_members, self.num_rows, _ = answers.shape
        self._answers, self._labels = answers, labels
        self._whole: Float64 | None = None

    def blocks(self) -> Iterator[Float64]:
        """Yield the blocks in turn; where one holds all rows, it is kept for the next reading."""
        if self._whole is not None:
            yield self._whole
            return
        for places, block in self._answers.blocks():
            against = np.maximum(block.transpose(0, 2, 1), LOG_OF_NOUGHT, order="C")
            against -= against[:, self._labels[places], np.arange(block.shape[1])][:, None, :]
            if block.shape[1] == self.num_rows:
                self._whole = against
            yield against


def convex_pool(answers: Answers, truth: Truth) -> tuple[LogarithmicPool, Diagnostics]:
    """Return the logarithmic pool of least penalised NLL, its strength chosen by cross-fitting."""
    able = _able(answers, truth.labels)
    kept = answers.select(np.flatnonzero(able).tolist())
    strength = choose_strength(kept, truth.labels)
    solution = solve(Odds(kept, truth.labels), strength=strength)
    weights = np.zeros(len(able))
    weights[able] = solution.weights
    found = {
        "duality_gap": solution.gap,
        "strength": strength,
        "num_steps": float(solution.num_steps),
        "weight_sum": float(weights.sum()),
    }
    return LogarithmicPool(weights), found


METHODS = {"pool": convex_pool}


def _able(answers: Answers, labels: np.ndarray) -> np.ndarray:
    """Return which members may have weight [members]: those that rule out no right class; all if none is left.

    Any weight at all on another member would make the NLL infinite.
    """
    able = np.asarray(np.isfinite(answers.of_labels(labels)).all(axis=1))
    return able if able.any() else np.ones_like(able)


def choose_strength(answers: Answers, labels: np.ndarray) -> float:
    """Return the strength of least cross-fitted NLL; the strongest where there is a single row."""
    members, _, classes = answers.shape
    most = max(1, MAX_READ_FOR_STRENGTH // (members * classes))
    totals = np.zeros(len(STRENGTHS))
    for fitted, held_out in divisions(labels, seed=SEED):
        few, unseen = fitted[: max(1, most * len(fitted) // len(labels))], held_out[:most]
        odds, unseen_odds = Odds(answers.take(few), labels[few]), Odds(answers.take(unseen), labels[unseen])
        weights = None
        for index, strength in enumerate(STRENGTHS):
            weights = solve(odds, strength=strength, start=weights).weights
            totals[index] += _nll(unseen_odds, weights) * len(unseen)
    return STRENGTHS[int(totals.argmin())]


def solve(odds: Odds, *, strength: float, start: Float64 | None = None) -> Solution:
    """Return the weights of least penalised NLL.

    Args:
        odds: What members say of the rows.
        strength: Of the pull towards equal shares, above 0.
        start: Weights to begin with, [members]; equal shares by default.
    """
    members = odds.num_members
    centre, pull = np.full(members, 1 / members), strength * members
    weights = centre if start is None else start
    point = _point(odds, weights)
    for step in range(MAX_STEPS):
        gap = _gap(weights, point.gradient, centre, pull)
        if gap <= TOLERANCE:
            return Solution(weights, gap, step)
        target = _newton_target(weights, point, centre, pull)
        moved = _search(odds, (weights, target), point, (centre, pull))
        if moved is None:  # the objective no longer falls in floating point
            return Solution(weights, gap, step)
        weights = moved
        point = _point(odds, weights)
    return Solution(weights, _gap(weights, point.gradient, centre, pull), MAX_STEPS)


def _gap(weights: Float64, gradient: Float64, centre: Float64, pull: float) -> float:
    """Return the duality gap; see the module."""
    dual = np.maximum(0, centre - gradient / pull)
    return float((weights - dual) @ gradient + _penalty(weights, centre, pull) - _penalty(dual, centre, pull))


def _penalty(weights: Float64, centre: Float64, pull: float) -> float:
    return pull / 2 * float(((weights - centre) ** 2).sum())


def _newton_target(weights: Float64, point: _Point, centre: Float64, pull: float) -> Float64:
    """Return the weights >= 0 at which the objective's second-order expansion is least."""
    gradient = point.gradient + pull * (weights - centre)
    root = np.linalg.cholesky(point.hessian + pull * np.eye(len(weights)))
    wanted = root.T @ weights - scipy.linalg.solve_triangular(root, gradient, lower=True)
    target: Float64 = scipy.optimize.nnls(root.T, wanted)[0]
    return target


def _search(odds: Odds, ends: tuple[Float64, Float64], point: _Point, towards: tuple[Float64, float]) -> Float64 | None:
    """Return the first weights, going from the far end back by halves, at which the objective falls enough."""
    weights, target = ends
    centre, pull = towards
    slope = float((target - weights) @ (point.gradient + pull * (weights - centre)))
    before = point.nll + _penalty(weights, centre, pull)
    share = 1.0
    while share * -slope > np.finfo(np.float64).eps * abs(before):
        moved = weights + share * (target - weights)
        if _nll(odds, moved) + _penalty(moved, centre, pull) <= before + 1e-4 * share * slope:
            return moved
        share /= 2
    return None


def _nll(odds: Odds, weights: Float64) -> float:
    """Return the pool's NLL per row."""
    total = sum(float(_log_sum(np.tensordot(weights, block, axes=1)).sum()) for block in odds.blocks())
    return total / odds.num_rows


def _point(odds: Odds, weights: Float64) -> _Point:
    """Return the pool's NLL per row with its derivatives."""
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
