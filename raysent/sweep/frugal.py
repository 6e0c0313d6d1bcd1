"""Proposals by expected improvement per dollar: a fitted model of scores over a fitted model of costs.

Two Gaussian processes over the searched values, one of the score and one of the logarithm of a report's dollars. Of
many blind draws the one is proposed whose expected improvement, divided by what it is expected to cost, is greatest.

Source: Snoek et al. 2012, "Practical Bayesian optimization of machine learning algorithms", section 3.2 ("expected
improvement per second"), with dollars for seconds.
Differs: kernels have one fixed length scale, so that a proposal is a plain function of what was observed; scores of
unfinished trials count, with the share of the run that is behind them as one more coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raysent.search_space import Choice, Params, SearchSpace
from raysent.sweep.blind import BlindProposals

NUM_CANDIDATES = 256
# In units of a domain's width; and the noise of a standardised score.
LENGTH_SCALE, NOISE = 0.35, 0.05
# The models see so many trials at most, the latest.
MAX_OBSERVED = 200

Matrix = NDArray[np.float64]


@dataclass
class _Seen:
    """What is known of a trial: its place, its last report, and a report's dollars."""

    place: list[float]
    index: int = 0
    score: float = math.nan
    usd: float = 0.0
    params: Params = field(default_factory=dict)


class FrugalProposals:
    """The searcher `ei_per_usd`."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space, self._seed = space, seed
        self._sign = 1.0 if space.mode == "max" else -1.0
        self._blind = BlindProposals(space, seed=seed)
        self._num_blind = max(4, min(10, space.limits.trials // 4))
        self._seen: dict[int, _Seen] = {}

    def propose(self, number: int) -> tuple[Params, int] | None:
        """Draw blindly at first; then take the draw of the greatest expected improvement per dollar."""
        told = [seen for seen in self._seen.values() if seen.index][-MAX_OBSERVED:]
        taken = {repr(sorted(seen.params.items())) for seen in self._seen.values()}
        draws = self._blind.draws(number, count=NUM_CANDIDATES)
        fresh = [draw for draw in draws if repr(sorted(draw.items())) not in taken]
        if len(told) >= self._num_blind and fresh:
            worth = self._worth(told, [self._place(draw) for draw in fresh])
            fresh = [fresh[at] for at in np.argsort(-worth, kind="stable")]
        chosen = next((draw for draw in fresh if self._space.violated(draw) is None), None)
        if chosen is None:
            return None
        self.repeat(number, chosen, attempts=1)
        return chosen, 1

    def repeat(self, number: int, params: Params, *, attempts: int) -> None:  # noqa: ARG002 - the searchers' common form
        """Take the parameters of a draw."""
        self._seen[number] = _Seen(self._place(params), params=params)

    def observe(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn a trial's score at a report, and what it has cost."""
        seen = self._seen[number]
        seen.index, seen.score, seen.usd = index, self._sign * score, usd / index

    def settle(self, number: int, *, status: str, score: float | None) -> None:
        """Nothing more is learnt from an ending."""

    def _worth(self, told: Sequence[_Seen], places: Sequence[list[float]]) -> Matrix:
        """Return the expected improvement per dollar at each place, up to a factor."""
        last = max(seen.index for seen in told)
        behind = [math.log(seen.index) / math.log(last) if last > 1 else 1.0 for seen in told]
        known = np.array([[*seen.place, share] for seen, share in zip(told, behind, strict=True)])
        asked = np.array([[*place, 1.0] for place in places])
        mean, deviation = _predict(known, np.array([seen.score for seen in told]), asked)
        best, _ = _predict(
            known, np.array([seen.score for seen in told]), np.hstack([known[:, :-1], np.ones((len(told), 1))])
        )
        improvement = _expected_improvement(mean, deviation, best=float(best.max()))
        if all(seen.usd <= 0 for seen in told):
            return improvement
        dollars = np.log([max(seen.usd, 1e-12) for seen in told])
        cost, _ = _predict(known[:, :-1], dollars, asked[:, :-1])
        worth: Matrix = improvement / np.exp(cost - cost.min())
        return worth

    def _place(self, params: Params) -> list[float]:
        """Return where parameters lie, each domain as wide as 1; labels apart from each other, 0 where unsearched."""
        place: list[float] = []
        for name, domain in self._space.domains.items():
            drawn = params.get(name)
            if isinstance(domain, Choice):
                place += [0.5 * (label == drawn) for label in domain.options]
            elif drawn is None or domain.high <= domain.low:
                place.append(0.0)
            elif domain.is_log:
                place.append(math.log(drawn / domain.low) / math.log(domain.high / domain.low))
            else:
                place.append((drawn - domain.low) / (domain.high - domain.low))
        return place


def _predict(known: Matrix, values: Matrix, asked: Matrix) -> tuple[Matrix, Matrix]:
    """Return mean and standard deviation of a Gaussian process at the places asked about."""
    centre, spread = float(values.mean()), float(values.std()) or 1.0
    kernel = _kernel(known, known) + NOISE * np.eye(len(known))
    cross = _kernel(asked, known)
    solved = np.linalg.solve(kernel, np.column_stack([(values - centre) / spread, cross.T]))
    mean = cross @ solved[:, 0]
    variance = np.maximum(1.0 - np.einsum("ij,ji->i", cross, solved[:, 1:]), 1e-12)
    return centre + spread * mean, spread * np.sqrt(variance)


def _kernel(left: Matrix, right: Matrix) -> Matrix:
    """Return the squared-exponential kernel between two sets of places."""
    squares = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)
    kernel: Matrix = np.exp(-squares / (2 * LENGTH_SCALE**2))
    return kernel


def _expected_improvement(mean: Matrix, deviation: Matrix, *, best: float) -> Matrix:
    """Return the expected improvement over the best score."""
    ahead = (mean - best) / deviation
    density = np.exp(-(ahead**2) / 2) / math.sqrt(2 * math.pi)
    share = 0.5 * (1 + np.array([math.erf(value / math.sqrt(2)) for value in ahead]))
    improvement: Matrix = deviation * (ahead * share + density)
    return np.maximum(improvement, 1e-300)
