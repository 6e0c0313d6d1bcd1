"""What each machine of a sweep costs, by what its node says of itself: two labels, its type and its market.

    labels: {instance-type: g5.xlarge, market: spot}

A node that does not say its type, or says one of no known price, is counted at the dearest price that is known; one
that does not say its market, as on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from raysent.cost.config import CostConfig
from raysent.cost.prices import Price, on_demand_price, own_price, spot_price

TYPE_LABEL, MARKET_LABEL = "instance-type", "market"
# Where the prices of a fleet of several types are from, in words.
MACHINES = "cost.machines"

# An instance type -> what it costs an hour on the spot market, and where that is from; None where nobody can tell.
SpotUsd = Callable[[str], tuple[float, str] | None]


class Prices:
    """Knows what a node costs, from its labels."""

    def __init__(self, config: CostConfig, *, spot: SpotUsd | None = None) -> None:
        """Take the prices of a search space.

        Args:
            config: `usd_per_hour` for every machine alike, or `machines` by type.
            spot: Tells spot prices of today; None where nobody does.
        """
        self._config = config
        self._spot: SpotUsd = spot or (lambda _: None)

    @property
    def dearest(self) -> Price:
        """What a machine costs at most."""
        machines = self._config.machines
        if not machines:
            return own_price(self._config.usd_per_hour)
        name = max(machines, key=lambda one: machines[one])
        return replace(on_demand_price(machines[name], source=MACHINES), instance_type=name)

    def of(self, labels: Mapping[str, str]) -> Price:
        """Return what a node with these labels costs now."""
        machines, name = self._config.machines, labels.get(TYPE_LABEL, "")
        if not machines:
            return own_price(self._config.usd_per_hour)
        if name not in machines:
            what = f"type '{name}' has no known price" if name else "its type is not known"
            return replace(self.dearest, source=f"{what}; counted at that of {self.dearest.instance_type}, the dearest")
        return replace(self._by_market(name, labels.get(MARKET_LABEL, "")), instance_type=name)

    def _by_market(self, name: str, market: str) -> Price:
        """Return the price of a known type."""
        usd = self._config.machines[name]
        if market == "own":
            return own_price(usd)
        on_demand = on_demand_price(usd, source=MACHINES)
        if market != "spot":
            return on_demand
        told = self._spot(name)
        return spot_price(told and told[0], on_demand, source=told[1] if told else "")


def num_affordable(limit_usd: float, *, standing_usd: float, each_usd: float) -> int:
    """Return how many machines may stand together beside those that stand in any case.

    Args:
        limit_usd: Dollars an hour for all of them.
        standing_usd: Dollars an hour of those that stand in any case.
        each_usd: Dollars an hour of each other one, at most; above 0.
    """
    return max(0, int((limit_usd - standing_usd) / each_usd + 1e-9))
