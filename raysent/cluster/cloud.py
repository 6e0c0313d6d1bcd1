"""AWS for sweeps that run there, found by an entry point of the group `raysent.fleets`.

Its modules are imported at the first call: they take seconds that only sweeps in a cloud need.
"""

from __future__ import annotations

from pathlib import Path

from raysent import cluster
from raysent.cost import Budget, CostConfig, Prices, SpotUsd
from raysent.sweeps.fleet import Fleet
from raysent.sweeps.layout import Layout


class Aws:
    """The machines and prices of AWS."""

    def spot_prices(self, region: str) -> SpotUsd:
        """Return what asks AWS for the prices of spot machines in a region."""
        return cluster.LiveSpot(region)

    def make_fleet(
        self, cost: CostConfig, budget: Budget, prices: Prices, layout: Layout, started: float
    ) -> Fleet | None:
        """Return the machines of the cluster that this process is part of; None on one that does not grow."""
        return cluster.make_fleet(cost, budget, prices, layout, started)

    def note_waiting(self, folder: Path, reason: str) -> None:
        """Store why trials wait beside the record of the submitted sweep."""
        cluster.note_waiting(folder, reason)


CLOUDS = {"aws": Aws()}
