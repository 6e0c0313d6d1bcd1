"""What to try next: a module defines `SAMPLERS`, a table of names and classes.

Another package adds a sampler by an entry point `raysent.samplers` whose value is such a module.
"""

from __future__ import annotations

from typing import Any, Protocol

from raysent.config import StrictModel
from raysent.sweeps.components import SAMPLERS, build
from raysent.sweeps.space.space import Params, SearchSpace


class Sampler(Protocol):
    """Proposes parameters and learns from the trials that were trained with them.

    Calls for each configuration, by the number of its first trial:

    1. `ask`, once; a resumed sweep calls `replay` with the recorded parameters instead.
    2. `on_report` after each report of that trial, in order.
    3. `complete`, once, when the configuration's trials (one for each seed) have all ended.

    Configurations overlap: many are asked for before the first one is complete. Everything random comes from the seed,
    so that the same calls give the same proposals; a sampler that cannot promise this sets `replay_problem`.
    """

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Return parameters for trial `number` and how many draws they took; None where nothing is left to try.

        The parameters satisfy the space's constraints: ``space.violated(params) is None``.
        """

    def replay(self, number: int, params: Params, *, attempts: int) -> None:
        """Take parameters that the journal recorded, and return to the state after that `ask`."""

    def on_report(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn a trial's score at one of its reports, and what it has cost so far."""

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Learn how a configuration ended: its worst status, and the median of its trials' last scores."""


class SamplerType(Protocol):
    """A class of samplers, as a table names it.

    Attributes:
        Config: Its settings, which a search space gives beside `type`.
    """

    Config: type[StrictModel]

    def __call__(self, space: SearchSpace, config: Any, *, seed: int) -> Sampler:
        """Return a sampler for a space; raise `ConfigError` where settings and space do not fit."""


def make_sampler(space: SearchSpace, *, seed: int) -> Sampler:
    """Return the sampler that `limits.sampler` of a space names.

    Raises:
        ConfigError: With file and line, if there is none of that name, or its settings are wrong.
    """
    sampler: Sampler = build(SAMPLERS, space, space.limits.sampler, at="limits.sampler", seed=seed)
    return sampler


__all__ = ["SAMPLERS", "Sampler", "SamplerType", "make_sampler"]
