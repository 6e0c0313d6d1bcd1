"""A sampler that takes next to no time, for simulated sweeps."""

from __future__ import annotations

import math
import random

from raysent.sweeps.space import Choice, Domain, Params, SearchSpace
from raysent.sweeps.trial import derived_seed

MAX_ATTEMPTS = 100


class RandomSampler:
    """Draws each trial on its own: the same number gives the same parameters, whatever came before."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Draw parameters that satisfy every constraint."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            generator = random.Random(derived_seed(self._seed, number, attempt))
            params: Params = {}
            for name, domain in self._space.domains.items():
                if self._space.is_active(name, params):
                    params[name] = draw(domain, generator)
            if self._space.violated(params) is None:
                return params, attempt
        return None

    def replay(self, number: int, params: Params, *, attempts: int) -> None:
        """Remember nothing."""

    def on_report(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn nothing."""

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Learn nothing."""


def draw(domain: Domain, generator: random.Random) -> object:
    """Draw a value of a domain."""
    if isinstance(domain, Choice):
        return generator.choice(list(domain.options))
    if domain.step:
        return domain.low + domain.step * generator.randint(0, round((domain.high - domain.low) / domain.step))
    if domain.is_integer:
        return generator.randint(int(domain.low), int(domain.high))
    if domain.is_log:
        return math.exp(generator.uniform(math.log(domain.low), math.log(domain.high)))
    return generator.uniform(domain.low, domain.high)
