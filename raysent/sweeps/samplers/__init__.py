"""`limits.sampler` -> what proposes trials."""

from __future__ import annotations

from raysent.sweeps.samplers.cost_aware import CostAwareSampler
from raysent.sweeps.samplers.optuna_samplers import OptunaSampler, Sampler
from raysent.sweeps.space import SearchSpace


def make_sampler(space: SearchSpace, *, seed: int) -> Sampler:
    """Return the searcher that a space names: one of Optuna's samplers, or expected improvement per dollar."""
    return (
        CostAwareSampler(space, seed=seed) if space.limits.sampler == "ei_per_usd" else OptunaSampler(space, seed=seed)
    )
