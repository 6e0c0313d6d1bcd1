"""Proposals drawn blindly that take next to no time: for sweeps that are only simulated, and to choose among."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from raysent.sweeps.space import Choice, Domain, Params, SearchSpace
from raysent.sweeps.trial import derived_seed

MAX_ATTEMPTS = 100


class RandomSampler:
    """Draws every trial by itself: the same number gives the same parameters, whatever came before."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Draw parameters that satisfy every constraint."""
        for attempt, params in enumerate(self.draws(number, count=MAX_ATTEMPTS), start=1):
            if self._space.violated(params) is None:
                return params, attempt
        return None

    def draws(self, number: int, *, count: int) -> Iterator[Params]:
        """Yield blind draws for a trial, constraints left aside."""
        for attempt in range(1, count + 1):
            chance = random.Random(derived_seed(self._seed, number, attempt))
            params: Params = {}
            for name, domain in self._space.domains.items():
                if self._space.is_active(name, params):
                    params[name] = drawn(domain, chance)
            yield params

    def repeat(self, number: int, params: Params, *, attempts: int) -> None:
        """Nothing is remembered."""

    def on_report(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Nothing is learnt."""

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Nothing is learnt."""


def drawn(domain: Domain, chance: random.Random) -> object:
    """Draw from one domain."""
    if isinstance(domain, Choice):
        return chance.choice(list(domain.options))
    if domain.step:
        return domain.low + domain.step * chance.randint(0, round((domain.high - domain.low) / domain.step))
    if domain.is_integer:
        return chance.randint(int(domain.low), int(domain.high))
    if domain.is_log:
        return math.exp(chance.uniform(math.log(domain.low), math.log(domain.high)))
    return chance.uniform(domain.low, domain.high)
