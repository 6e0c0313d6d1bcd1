"""Where searched values lie: coordinates about as wide as 1 for models to learn from, and draws near a place.

The two models behind proposals per dollar: a Gaussian process of scores, a linear model of the logarithm of costs.

Shapes: places are [trials, coordinates], each searched domain about as wide as 1; values are [trials].

Source: Rasmussen and Williams 2006, "Gaussian processes for machine learning", algorithm 2.1 and equation 2.30.

Proposals by expected improvement per dollar: a fitted model of scores over a fitted model of costs.

Of many draws, most of them blind and some near the best trials, the one is proposed whose expected improvement,
divided by what it is expected to cost, is greatest. Costs count fully at first and ever less as the money goes, so
that what is learnt from cheap trials is spent on dear ones in the end.

Scores taken at different reports are laid on the last one by what trials gained in between, on average.

Source: Snoek et al. 2012, "Practical Bayesian optimization of machine learning algorithms", section 3.2 ("expected
improvement per second"), with dollars for seconds; Lee et al. 2020, "Cost-aware Bayesian optimization", section 3.2
("cost cooling"): the cost has the exponent (budget - spent) / budget.
Differs: a proposal is a plain function of what was observed, so kernels take the best of a few length scales; where
there is no budget, trials cool the cost; very bad scores are cut off, since only good ones need to be told apart.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysent.sweeps.samplers.random_draws import RandomSampler, drawn
from raysent.sweeps.space import Choice, Domain, Params, SearchSpace
from raysent.sweeps.trial import derived_seed

# How far a near draw goes, in units of a domain's width, and how often it is any value at all.
NEAR, ANEW = 0.1, 0.2


@dataclass(frozen=True)
class Axis:
    """How a domain's values become coordinates.

    Attributes:
        domain: The domain.
        labels: Of a choice, unless they are all positive numbers: each has a coordinate of its own.
        low: The least number.
        high: The greatest number.
        is_log: Whether ratios count, as in a choice of sizes.
    """

    domain: Domain
    labels: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False

    def coordinates(self, value: Any) -> list[float]:
        """Return a value's place, from 0 to 1; labels stand apart from each other, what is not searched at 0."""
        if self.labels:
            return [0.5 * (label == value) for label in self.labels]
        if value is None or self.high <= self.low:
            return [0.0]
        if self.is_log:
            return [math.log(value / self.low) / math.log(self.high / self.low)]
        return [(value - self.low) / (self.high - self.low)]

    def near(self, value: Any, chance: random.Random) -> Any:
        """Return a value near another one, now and then any."""
        fresh = drawn(self.domain, chance)
        if value is None or chance.random() < ANEW:
            return fresh
        if isinstance(self.domain, Choice):
            return value
        share = min(1.0, max(0.0, self.coordinates(value)[0] + chance.gauss(0, NEAR)))
        low, high = self.low, self.high
        number = low * (high / low) ** share if self.is_log else low + share * (high - low)
        step = 1.0 if self.domain.is_integer and not self.domain.step else self.domain.step
        if step:
            number = low + step * round((number - low) / step)
        return round(number) if isinstance(fresh, int) else min(high, max(low, number))


def axis_of(domain: Domain) -> Axis:
    """Return how a domain's values become coordinates."""
    if not isinstance(domain, Choice):
        return Axis(domain, low=domain.low, high=domain.high, is_log=domain.is_log)
    labels = tuple(domain.options)
    sizes = [label for label in labels if isinstance(label, int | float) and not isinstance(label, bool) and label > 0]
    if len(sizes) < len(labels):
        return Axis(domain, labels)
    return Axis(domain, low=min(sizes), high=max(sizes), is_log=True)


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


# Draws to choose among: blind ones, and ones near the best trials.
NUM_BLIND, NUM_NEAR = 96, 32
# The models see so many of the best trials, and of the latest, up to so many in all; and of those without a report.
NUM_BEST, NUM_LATEST, MAX_SHOWN, MAX_WAITING = 30, 60, 120, 40
# Scores further below the best than so many times the median are cut off there.
CUT = 2.0


@dataclass
class _Seen:
    """What is known of a trial: its place, its reports' scores, and its dollars."""

    place: list[float]
    params: Params
    scores: dict[int, float] = field(default_factory=dict)
    usd: float = 0.0


class CostAwareSampler:
    """The searcher `ei_per_usd`."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space, self._seed = space, seed
        self._sign = 1.0 if space.mode == "max" else -1.0
        self._blind = RandomSampler(space, seed=seed)
        self._num_first = max(4, min(10, space.limits.trials // 4))
        self._limit_usd = space.cost.budget_usd
        self._seen: dict[int, _Seen] = {}
        self._axes = {name: axis_of(domain) for name, domain in space.domains.items()}
        self._waiting: dict[int, _Seen] = {}
        self._shown: list[_Seen] = []
        self._num_told = 0
        self._taken: set[str] = set()
        self._spent_usd = 0.0
        self._gains = _Gains()

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Draw blindly at first; then take the draw of the greatest expected improvement per dollar."""
        if self._num_told < self._num_first:
            found = self._blind.ask(number)
            if found is not None:
                self.repeat(number, found[0], attempts=1)
            return None if found is None else (found[0], 1)
        fresh = {key: draw for draw in self._draws(number) if (key := _key(draw)) not in self._taken}
        draws = list(fresh.values())
        if not draws:
            return None
        worth = self._worth([self._place(draw) for draw in draws])
        ranked = (draws[at] for at in np.argsort(-worth, kind="stable"))
        chosen = next((draw for draw in ranked if self._space.violated(draw) is None), None)
        if chosen is None:
            return None
        self.repeat(number, chosen, attempts=1)
        return chosen, 1

    def repeat(self, number: int, params: Params, *, attempts: int) -> None:  # noqa: ARG002 - the searchers' common form
        """Take the parameters of a draw."""
        self._seen[number] = self._waiting[number] = _Seen(self._place(params), params)
        self._taken.add(_key(params))

    def on_report(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn a trial's score at a report, and what it has cost."""
        seen = self._seen[number]
        if self._waiting.pop(number, None) is not None:
            self._show(seen)
        self._gains.learn(seen.scores, index, self._sign * score)
        self._spent_usd += usd - seen.usd
        seen.scores[index], seen.usd = self._sign * score, usd

    def complete(self, number: int, *, status: str, score: float | None) -> None:  # noqa: ARG002
        """Wait no longer for a trial that ended without a report."""
        self._waiting.pop(number, None)

    def _show(self, seen: _Seen) -> None:
        """Let the models see a trial; of many they see the best and the latest."""
        self._num_told += 1
        self._shown.append(seen)
        if len(self._shown) > MAX_SHOWN:
            older = [one for one in self._shown[:-NUM_LATEST] if one.scores]
            older = sorted(older, key=self._gains.final, reverse=True)[:NUM_BEST]
            self._shown = older + self._shown[-NUM_LATEST:]

    def _draws(self, number: int) -> Iterator[Params]:
        """Yield draws to choose among, constraints left aside."""
        chance = random.Random(derived_seed(self._seed, "near", number))
        for _ in range(NUM_BLIND):
            yield self._assembled({name: drawn(domain, chance) for name, domain in self._space.domains.items()})
        best = sorted(self._shown, key=self._gains.final, reverse=True)[:4]
        for place in range(NUM_NEAR):
            origin = best[place % len(best)].params
            yield self._assembled({name: axis.near(origin.get(name), chance) for name, axis in self._axes.items()})

    def _assembled(self, values: Params) -> Params:
        """Return the values of those names that apply."""
        params: Params = {}
        for name, value in values.items():
            if self._space.is_active(name, params):
                params[name] = value
        return params

    def _worth(self, places: Sequence[list[float]]) -> Matrix:
        """Return the expected improvement per cooled dollar at each place, up to a factor."""
        told = self._shown
        known, asked = np.array([seen.place for seen in told]), np.array(places)
        finals = np.array([self._gains.final(seen) for seen in told])
        lowest = finals.max() - CUT * (finals.max() - np.median(finals))
        scores = fit_scores(known, np.maximum(finals, lowest))
        # Trials without a report yet are believed to come out as expected, so that no other is drawn beside them.
        waiting = [seen.place for seen in self._waiting.values()][-MAX_WAITING:]
        believed = scores.believing(np.array(waiting)) if waiting else scores
        mean, deviation = believed.predict(asked)
        improvement = expected_improvement(mean, deviation, best=float(scores.mean(known).max()))
        paid = [seen for seen in told if seen.usd > 0]
        if not paid:
            return improvement
        paces = np.array([seen.usd / max(seen.scores) for seen in paid])
        dollars = fit_costs(np.array([seen.place for seen in paid]), paces, asked)
        worth: Matrix = improvement / dollars ** self._cooling()
        return worth

    def _cooling(self) -> float:
        """Return how much costs count: 1 at first, 0 when the money is gone, or the trials are drawn."""
        gone = len(self._seen) / self._space.limits.trials
        if self._limit_usd:
            gone = max(gone, self._spent_usd / self._limit_usd)
        return max(0.0, 1.0 - gone)

    def _place(self, params: Params) -> list[float]:
        """Return where parameters lie, each domain as wide as 1; labels apart from each other, 0 where unsearched."""
        return [at for name, axis in self._axes.items() for at in axis.coordinates(params.get(name))]


class _Gains:
    """What trials gain from report to report, on average: lays scores of any report on the last one."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, int]] = {}
        self._ahead: dict[int, float] | None = {}

    def learn(self, scores: dict[int, float], index: int, score: float) -> None:
        """Take the gain of a trial since its report before; a report that was skipped teaches nothing."""
        before = scores.get(index - 1)
        if before is not None and index not in scores:
            total, count = self._sums.get(index, (0.0, 0))
            self._sums[index] = total + score - before, count + 1
        self._ahead = None

    def final(self, seen: _Seen) -> float:
        """Return what a trial's last score would be at the last report that any trial came to."""
        if self._ahead is None:
            self._ahead, total = {}, 0.0
            for index in sorted(self._sums, reverse=True):
                gained, count = self._sums[index]
                total += gained / count
                self._ahead[index - 1] = total
        index = max(seen.scores)
        return seen.scores[index] + self._ahead.get(index, 0.0)


def _key(params: Params) -> str:
    return repr(sorted(params.items()))
