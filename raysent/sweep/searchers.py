"""`limits.sampler` -> what proposes trials."""

from __future__ import annotations

from raysent.search_space import SearchSpace
from raysent.sweep.frugal import FrugalProposals
from raysent.sweep.proposals import Proposals, Searcher


def make_searcher(space: SearchSpace, *, seed: int) -> Searcher:
    """Return the searcher that a space names: one of Optuna's samplers, or expected improvement per dollar."""
    return FrugalProposals(space, seed=seed) if space.limits.sampler == "ei_per_usd" else Proposals(space, seed=seed)
