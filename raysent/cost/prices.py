"""What machines cost an hour and how their seconds are billed, and the price of a node from its labels.

A node carries two labels, its type and its market:

    labels: {instance-type: g5.xlarge, market: spot}

An unknown price is never 0. A node whose type is missing or has no known price is charged at the highest known price,
a node without a market as on demand, and a spot price that cannot be read as the on-demand price.

Plain values; `raysent.cluster.prices` reads prices from AWS.
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

TYPE_LABEL = "instance-type"
MARKET_LABEL = "market"
# The source of prices that a search space lists by type.
MACHINES = "cost.machines"
# What no bill of raysent contains.
NOT_COUNTED = "not counted: storage in buckets, and traffic"
# Linux machines at AWS, spot and on demand, are billed by the second with a minimum of one minute.
MINIMUM_S = 60.0
# AWS does not bill a spot machine that it interrupts in its first hour.
FREE_IF_INTERRUPTED_S = 3600.0
# AWS bills a disk by the second, as a part of a month of this many hours.
_HOURS_A_MONTH = 730

Market = Literal["own", "on-demand", "spot"]
# An instance type -> its spot price in dollars an hour and the source of that price; None if unknown.
SpotUsd = Callable[[str], tuple[float, str] | None]


@dataclass(frozen=True)
class Price:
    """The price of a machine.

    Attributes:
        usd_per_hour: What it is billed at now.
        worst_usd_per_hour: The most it may cost: on demand. Work is admitted by this price.
        market: Where the machine comes from.
        source: Where the price comes from, in words.
        minimum_s: Seconds that are billed in any case.
        instance_type: As in g5.xlarge; empty if it does not matter.
        attached_usd_per_hour: The part of both prices that is its disk's and its public address's.
    """

    usd_per_hour: float
    worst_usd_per_hour: float
    market: Market
    source: str
    minimum_s: float = 0.0
    instance_type: str = ""
    attached_usd_per_hour: float = 0.0

    def usd(self, seconds: float) -> float:
        """Return the dollars for `seconds`, without the minimum."""
        return seconds / 3600 * self.usd_per_hour


def own_price(usd_per_hour: float | None) -> Price:
    """Return the price of your own machine: `cost.usd_per_hour`, or free if that is None."""
    if usd_per_hour is None:
        return Price(0.0, 0.0, "own", "own machine without cost.usd_per_hour, counted as free")
    return Price(usd_per_hour, usd_per_hour, "own", "cost.usd_per_hour")


def on_demand_price(usd_per_hour: float, *, source: str) -> Price:
    """Return the price of an on-demand machine."""
    return Price(usd_per_hour, usd_per_hour, "on-demand", source, MINIMUM_S)


def spot_price(usd_per_hour: float | None, on_demand: Price, *, source: str) -> Price:
    """Return the price of a spot machine: at most the on-demand price, and exactly that if it is unknown."""
    worst = on_demand.worst_usd_per_hour
    if usd_per_hour is None or not math.isfinite(usd_per_hour) or usd_per_hour <= 0:
        return Price(worst, worst, "spot", "unknown, counted as on-demand", MINIMUM_S)
    return Price(min(usd_per_hour, worst), worst, "spot", source, MINIMUM_S)


class Prices:
    """The prices of a cluster's nodes, by their labels."""

    def __init__(self, config: CostConfig, *, spot: SpotUsd | None = None) -> None:
        """Take the prices of a search space.

        Args:
            config: `usd_per_hour` for every machine, or `machines` by type.
            spot: Returns current spot prices; None if there is no source.
        """
        self._config = config
        self._spot: SpotUsd = spot or (lambda _: None)

    @property
    def most_expensive(self) -> Price:
        """The highest price of a machine."""
        machines = self._config.machines
        if not machines:
            return own_price(self._config.usd_per_hour)
        name = max(machines, key=machines.__getitem__)
        return replace(self._by_market(name, "on-demand"), instance_type=name)

    def of(self, labels: Mapping[str, str]) -> Price:
        """Return what a node with these labels costs now."""
        machines = self._config.machines
        name = labels.get(TYPE_LABEL, "")
        if not machines:
            return own_price(self._config.usd_per_hour)
        if name not in machines:
            problem = "its type is not known"
            if name:
                problem = f"type '{name}' has no known price"
            most = self.most_expensive
            return replace(
                most, source=f"{problem}; counted as {most.instance_type}, the most expensive"
            )
        return replace(self._by_market(name, labels.get(MARKET_LABEL, "")), instance_type=name)

    def _by_market(self, name: str, market: str) -> Price:
        usd = self._config.machines[name]
        if market == "own":
            return own_price(usd)
        price = on_demand_price(usd, source=MACHINES)
        if market == "spot":
            spot_usd = None
            source = ""
            current = self._spot(name)
            if current is not None:
                spot_usd, source = current
            price = spot_price(spot_usd, price, source=source)
        return with_attached(price, self._config.attached)


def with_attached(price: Price, usd_per_hour: float) -> Price:
    """Return the price of a machine together with its disk and its public address, which cost `usd_per_hour`."""
    return replace(
        price,
        usd_per_hour=price.usd_per_hour + usd_per_hour,
        worst_usd_per_hour=price.worst_usd_per_hour + usd_per_hour,
        attached_usd_per_hour=price.attached_usd_per_hour + usd_per_hour,
    )


@dataclass(frozen=True)
class PriceList:
    """List prices as of one day.

    Attributes:
        as_of: The day, as in 2025-06-01.
        regions: Region -> instance type -> dollars an hour on demand.
        disk_usd: Region -> dollars a GiB and month of a gp3 disk.
        address_usd: Dollars an hour of a public IPv4 address.
    """

    as_of: str
    regions: Mapping[str, Mapping[str, float]]
    disk_usd: Mapping[str, float]
    address_usd: float

    def attached_usd(self, region: str, *, disk_gib: float) -> float:
        """Return the dollars an hour of a machine's gp3 disk and public address; the highest known elsewhere."""
        a_month = self.disk_usd.get(region, max(self.disk_usd.values()))
        return disk_gib * a_month / _HOURS_A_MONTH + self.address_usd

    def on_demand(self, instance_type: str, region: str) -> Price:
        """Return the list price of an instance type.

        Raises:
            ConfigError: If the list has no such price.
        """
        usd_of_types = self.regions.get(region)
        if usd_of_types is None:
            raise ConfigError(
                f"{region}: no list prices of this region are known{did_you_mean(region, self.regions)}"
            )
        if instance_type not in usd_of_types:
            nearest = did_you_mean(instance_type, usd_of_types)
            raise ConfigError(
                f"{instance_type}: no list price in {region} is known; set cost.usd_per_hour{nearest}"
            )
        return on_demand_price(usd_of_types[instance_type], source=f"list price of {self.as_of}")


def price_list() -> PriceList:
    """Return the list prices that are part of the package."""
    values: dict[str, Any] = json.loads(
        files(__package__).joinpath("on_demand.json").read_text(encoding="utf-8")
    )
    return PriceList(
        values["as_of"],
        values["regions"],
        values["gp3_usd_per_gib_month"],
        values["ipv4_usd_per_hour"],
    )
