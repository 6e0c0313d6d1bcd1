"""What each machine of a sweep costs, by what its node says of itself: two labels, its type and its market.

    labels: {instance-type: g5.xlarge, market: spot}

A node that does not say its type, or says one of no known price, is counted at the dearest price that is known; one
that does not say its market, as on demand.

What an hour of a machine costs, and what its seconds are billed at. Plain values; asking AWS is `cloud`'s.

An unknown price is the upper bound that is known, never 0: a spot price that cannot be read is the on-demand price.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal

from raysent.cost.config import CostConfig
from raysent.errors import ConfigError, did_you_mean

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


Market = Literal["own", "on-demand", "spot"]
# Spot and on-demand Linux machines are billed by the second, but for a minute at least.
MINIMUM_S = 60.0
# AWS does not bill a spot machine that it takes back itself within its first hour.
FREE_IF_TAKEN_S = 3600.0


@dataclass(frozen=True)
class Price:
    """What a machine costs.

    Attributes:
        usd_per_hour: What it is billed at now.
        worst_usd_per_hour: What it may come to cost: on demand. Work is admitted by this figure.
        market: Whose machine it is.
        source: Where the figure comes from, in words.
        minimum_s: Seconds that are billed however short it runs.
        instance_type: As in g5.xlarge; empty where it does not matter.
    """

    usd_per_hour: float
    worst_usd_per_hour: float
    market: Market
    source: str
    minimum_s: float = 0.0
    instance_type: str = ""

    def usd(self, seconds: float) -> float:
        """Return the dollars of so many seconds, without the minimum."""
        return seconds / 3600 * self.usd_per_hour

    def worst_usd(self, seconds: float) -> float:
        """Return the most dollars that so many seconds may cost, without the minimum."""
        return seconds / 3600 * self.worst_usd_per_hour


@dataclass(frozen=True)
class Snapshot:
    """List prices as they were on a day.

    Attributes:
        as_of: The day, as in 2025-06-01.
        regions: Region -> instance type -> dollars an hour on demand.
    """

    as_of: str
    regions: Mapping[str, Mapping[str, float]]

    def on_demand(self, instance_type: str, region: str) -> Price:
        """Return the list price of an instance type.

        Raises:
            ConfigError: If the snapshot does not know it: an unknown price is no reason to spend.
        """
        known = self.regions.get(region)
        if known is None:
            raise ConfigError(f"{region}: no list prices of this region are known{did_you_mean(region, self.regions)}")
        if instance_type not in known:
            nearest = did_you_mean(instance_type, known)
            raise ConfigError(f"{instance_type}: no list price in {region} is known; set cost.usd_per_hour{nearest}")
        return on_demand_price(known[instance_type], source=f"list price of {self.as_of}")


def own_price(usd_per_hour: float | None) -> Price:
    """Return the price of one's own machine: what `cost.usd_per_hour` says, else nothing, and says so."""
    if usd_per_hour is None:
        return Price(0.0, 0.0, "own", "own machine without cost.usd_per_hour, counted as free")
    return Price(usd_per_hour, usd_per_hour, "own", "cost.usd_per_hour")


def on_demand_price(usd_per_hour: float, *, source: str) -> Price:
    """Return the price of a machine on demand."""
    return Price(usd_per_hour, usd_per_hour, "on-demand", source, MINIMUM_S)


def spot_price(usd_per_hour: float | None, on_demand: Price, *, source: str) -> Price:
    """Return the price of a spot machine: never above on-demand, which an unreadable price counts as."""
    worst = on_demand.worst_usd_per_hour
    if usd_per_hour is None or not math.isfinite(usd_per_hour) or usd_per_hour <= 0:
        return Price(worst, worst, "spot", "unknown, counted as on-demand", MINIMUM_S)
    return Price(min(usd_per_hour, worst), worst, "spot", source, MINIMUM_S)


def snapshot() -> Snapshot:
    """Return the list prices that are shipped with the package."""
    values: dict[str, Any] = json.loads(files("raysent.cost").joinpath("on_demand.json").read_text(encoding="utf-8"))
    return Snapshot(values["as_of"], values["regions"])
