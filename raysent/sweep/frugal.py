"""Proposals by expected improvement per dollar: a fitted model of scores over a fitted model of costs.

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

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from raysent.search_space import Params, SearchSpace
from raysent.sweep.blind import BlindProposals, drawn
from raysent.sweep.places import axis_of
from raysent.sweep.proposals import derived_seed
from raysent.sweep.regression import Matrix, expected_improvement, fit_costs, fit_scores

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


class FrugalProposals:
    """The searcher `ei_per_usd`."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space, self._seed = space, seed
        self._sign = 1.0 if space.mode == "max" else -1.0
        self._blind = BlindProposals(space, seed=seed)
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

    def propose(self, number: int) -> tuple[Params, int] | None:
        """Draw blindly at first; then take the draw of the greatest expected improvement per dollar."""
        if self._num_told < self._num_first:
            found = self._blind.propose(number)
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

    def observe(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn a trial's score at a report, and what it has cost."""
        seen = self._seen[number]
        if self._waiting.pop(number, None) is not None:
            self._show(seen)
        self._gains.learn(seen.scores, index, self._sign * score)
        self._spent_usd += usd - seen.usd
        seen.scores[index], seen.usd = self._sign * score, usd

    def settle(self, number: int, *, status: str, score: float | None) -> None:  # noqa: ARG002
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
