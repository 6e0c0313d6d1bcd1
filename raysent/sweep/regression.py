"""The two models behind proposals per dollar: a Gaussian process of scores, a linear model of the logarithm of costs.

Shapes: places are [trials, coordinates], each searched domain about as wide as 1; values are [trials].

Source: Rasmussen and Williams 2006, "Gaussian processes for machine learning", algorithm 2.1 and equation 2.30.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]

# In units of a domain's width: the one under which the scores are likeliest is taken.
LENGTH_SCALES = (0.2, 0.4, 0.8, 1.6)
# The noise of a standardised score, and how strongly the cost model's slopes are held small.
NOISE, RIDGE = 0.05, 1e-2


@dataclass(frozen=True)
class GaussianProcess:
    """A Gaussian process of one length scale, fitted.

    Attributes:
        known: [trials, coordinates] where values were seen.
        length_scale: Of the squared-exponential kernel.
        centre: Mean of the values.
        spread: Standard deviation of the values.
        factor: [trials, trials] lower Cholesky factor of the kernel with noise.
        weights: [trials] the kernel's inverse times the standardised values.
    """

    known: Matrix
    length_scale: float
    centre: float
    spread: float
    factor: Matrix
    weights: Matrix

    def mean(self, asked: Matrix) -> Matrix:
        """Return the expected values at [places, coordinates]."""
        expected: Matrix = self.centre + self.spread * (_kernel(asked, self.known, self.length_scale) @ self.weights)
        return expected

    def predict(self, asked: Matrix) -> tuple[Matrix, Matrix]:
        """Return mean and standard deviation at [places, coordinates], noise left out."""
        cross = _kernel(asked, self.known, self.length_scale)
        solved = np.linalg.solve(self.factor, cross.T)
        variance = np.maximum(1.0 - np.square(solved).sum(axis=0), 1e-12)
        return self.centre + self.spread * (cross @ self.weights), self.spread * np.sqrt(variance)

    def believing(self, places: Matrix) -> GaussianProcess:
        """Return the process that has seen its own expected values at [places, coordinates] too."""
        known = np.vstack([self.known, places])
        scaled = (np.concatenate([self.mean(self.known), self.mean(places)]) - self.centre) / self.spread
        kernel = _kernel(known, known, self.length_scale) + NOISE * np.eye(len(known))
        factor, weights = np.linalg.cholesky(kernel), np.linalg.solve(kernel, scaled)
        return GaussianProcess(known, self.length_scale, self.centre, self.spread, factor, weights)


def fit_scores(known: Matrix, values: Matrix) -> GaussianProcess:
    """Return the process of the length scale under which the values are likeliest."""
    centre, spread = float(values.mean()), float(values.std()) or 1.0
    scaled = (values - centre) / spread
    best: tuple[float, GaussianProcess] | None = None
    for length_scale in LENGTH_SCALES:
        kernel = _kernel(known, known, length_scale) + NOISE * np.eye(len(known))
        factor = np.linalg.cholesky(kernel)
        weights = np.linalg.solve(kernel, scaled)
        likelihood = -0.5 * float(scaled @ weights) - float(np.log(np.diag(factor)).sum())
        if best is None or likelihood > best[0]:
            best = likelihood, GaussianProcess(known, length_scale, centre, spread, factor, weights)
    assert best is not None
    return best[1]


def fit_costs(known: Matrix, dollars: Matrix, asked: Matrix) -> Matrix:
    """Return the expected dollars at [places, coordinates]: log dollars, linear in the coordinates and their squares.

    Coordinates are logarithms where domains are, so powers of sizes are lines; squares let a line bend, as where small
    sizes cost no less. Slopes are held small (ridge), the level is not.
    """
    logs = np.log(dollars)
    seen, wanted = np.hstack([known, known**2]), np.hstack([asked, asked**2])
    centre = seen.mean(axis=0)
    seen, wanted = seen - centre, wanted - centre
    slopes = np.linalg.solve(seen.T @ seen + RIDGE * np.eye(seen.shape[1]), seen.T @ (logs - logs.mean()))
    # Far from what was seen a bent line may lead anywhere; no further than a decade beyond.
    expected: Matrix = np.exp(
        np.clip(logs.mean() + wanted @ slopes, logs.min() - math.log(10), logs.max() + math.log(10))
    )
    return expected


def expected_improvement(mean: Matrix, deviation: Matrix, *, best: float) -> Matrix:
    """Return the expected improvement over the best score."""
    ahead = (mean - best) / deviation
    density = np.exp(-(ahead**2) / 2) / math.sqrt(2 * math.pi)
    share = 0.5 * (1 + np.array([math.erf(value / math.sqrt(2)) for value in ahead]))
    improvement: Matrix = deviation * (ahead * share + density)
    return np.maximum(improvement, 1e-300)


def _kernel(left: Matrix, right: Matrix, length_scale: float) -> Matrix:
    """Return the squared-exponential kernel between two sets of places."""
    squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)[None, :] - 2 * left @ right.T
    kernel: Matrix = np.exp(-np.maximum(squares, 0.0) / (2 * length_scale**2))
    return kernel
