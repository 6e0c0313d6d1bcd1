"""What an hour of a machine costs, and what its seconds are billed at. Plain values; asking AWS is `cloud`'s.

An unknown price is the upper bound that is known, never 0: a spot price that cannot be read is the on-demand price.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from raysent.errors import ConfigError, did_you_mean

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
