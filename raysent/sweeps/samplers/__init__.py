"""What to try next: a module defines `SAMPLERS`, a table of names and classes.

Another package adds a sampler by an entry point `raysent.samplers` whose value is such a module.
"""

from __future__ import annotations

import math
import random
from typing import Protocol

from raysent.sweeps.components import SAMPLERS as SAMPLERS
from raysent.sweeps.components import build
from raysent.sweeps.space.space import Choice, Domain, Params, SearchSpace
from raysent.sweeps.trial import derived_seed


class Sampler(Protocol):
    """Proposes parameters and learns from the trials that were trained with them.

    Calls for each configuration, by the number of its first trial:

    1. `ask`, once; a resumed sweep calls `replay` with the recorded parameters instead.
    2. `on_report` after each report of that trial, in order.
    3. `complete`, once, when the configuration's trials (one for each seed) have all ended.

    Configurations overlap: many are asked for before the first one is complete. Everything random comes from the seed,
    so that the same calls give the same proposals, and a journal replays.
    """

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Return parameters for trial `number` and how many draws they took; None where nothing is left to try."""

    def replay(self, number: int, params: Params, *, attempts: int) -> None:
        """Take parameters that the journal recorded, and return to the state after that `ask`."""

    def on_report(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn a trial's score at one of its reports, and what it has cost so far."""

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Learn how a configuration ended: its worst status, and the median of its trials' last scores."""


def make_sampler(space: SearchSpace, *, seed: int) -> Sampler:
    """Return the sampler that `limits.sampler` of a space names.

    Raises:
        ConfigError: With file and line, if there is none of that name, or its settings are wrong.
    """
    sampler: Sampler = build(SAMPLERS, space, space.limits.sampler, at="limits.sampler", seed=seed)
    return sampler


class RandomSampler:
    """A sampler that takes next to no time, for played and simulated sweeps.

    It draws each trial on its own: the same number gives the same parameters, whatever came before.
    """

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Draw parameters."""
        generator = random.Random(derived_seed(self._seed, number, 1))
        params: Params = {}
        for name, domain in self._space.domains.items():
            if self._space.is_active(name, params):
                params[name] = draw(domain, generator)
        return params, 1

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
        return domain.low + domain.step * generator.randint(
            0, round((domain.high - domain.low) / domain.step)
        )
    if domain.is_integer:
        return generator.randint(int(domain.low), int(domain.high))
    if domain.is_log:
        return math.exp(generator.uniform(math.log(domain.low), math.log(domain.high)))
    return generator.uniform(domain.low, domain.high)
