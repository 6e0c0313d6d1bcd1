"""A made-up spot market: prices that move, machines that are not to be had, and machines that are taken back.

Statistics follow public traces of V100 spot machines: a zone has machines 17 to 91 % of the time, the median machine
lives 0.33 to 1.41 hours, and a machine is likeliest to be taken early or late (a bathtub). Times are in seconds from a
sweep's beginning.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass, field

from raysent.cost import Price, on_demand_price, spot_price

AVAILABILITY = (0.17, 0.91)
MEDIAN_LIFE_HOURS = (0.33, 1.41)
# Share of machines that are taken early, and how early, as a share of the median life.
EARLY_SHARE, EARLY_LIFE = 0.25, 0.2
# Spot prices, as a share of on-demand; how often they change, and by how much.
SPOT_SHARE = (0.25, 0.65)
PRICE_CHANGE_HOURS, PRICE_SIGMA = 2.0, 0.12
# How late a change of price is heard of, at most, and how often prices cannot be read at all.
PRICE_LAG_S, UNREAD_SHARE = 300.0, 0.05
# AWS gives two minutes' notice, and now and then none.
NOTICE_S, NO_NOTICE_SHARE = 120.0, 0.05


@dataclass
class Zone:
    """One pool of spot machines.

    Attributes:
        name: The zone's.
        on_demand: What its machines cost on demand.
        availability: Share of the time in which it has machines.
        median_life_s: Half of its machines are taken back before.
        random: Where chance comes from.
    """

    name: str
    on_demand: Price
    availability: float
    median_life_s: float
    random: random.Random
    _changes: list[float] = field(default_factory=lambda: [0.0])
    _prices: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._prices.append(self.on_demand.usd_per_hour * self.random.uniform(*SPOT_SHARE))

    def usd_per_hour(self, at_s: float) -> float:
        """Return the spot price at a time."""
        self._unfold(at_s)
        return self._prices[bisect.bisect_right(self._changes, at_s) - 1]

    def next_change_s(self, at_s: float) -> float:
        """Return when the price changes next."""
        self._unfold(at_s)
        return self._changes[bisect.bisect_right(self._changes, at_s)]

    def price(self, at_s: float) -> Price:
        """Return what a spot machine costs at a time."""
        return spot_price(self.usd_per_hour(at_s), self.on_demand, source="simulated")

    def usd(self, begin_s: float, end_s: float) -> float:
        """Return what a spot machine is billed from one time to another, its minute's minimum included."""
        end_s = max(end_s, begin_s + self.on_demand.minimum_s)
        self._unfold(end_s)
        total, at = 0.0, begin_s
        for index in range(bisect.bisect_right(self._changes, begin_s) - 1, len(self._changes)):
            until = min(end_s, self._changes[index + 1] if index + 1 < len(self._changes) else end_s)
            total += max(0.0, until - at) / 3600 * self._prices[index]
            at = max(at, until)
        return total

    def has_machines(self) -> bool:
        """Return whether a machine is to be had at the moment."""
        return self.random.random() < self.availability

    def life_s(self) -> float:
        """Return how long a machine lives before it is taken back: early deaths, and a long rest that ages."""
        if self.random.random() < EARLY_SHARE:
            return self.random.expovariate(1 / (EARLY_LIFE * self.median_life_s))
        # A Weibull law of shape 1.5 whose median makes up for the early deaths.
        left = (0.5 - EARLY_SHARE * math.exp(-1 / EARLY_LIFE)) / (1 - EARLY_SHARE)
        scale = self.median_life_s / (-math.log(left)) ** (1 / 1.5)
        return self.random.weibullvariate(scale, 1.5)

    def _unfold(self, at_s: float) -> None:
        """Draw the curve as far as it is asked for."""
        while self._changes[-1] <= at_s:
            self._changes.append(self._changes[-1] + self.random.expovariate(1 / (PRICE_CHANGE_HOURS * 3600)))
            moved = self._prices[-1] * math.exp(self.random.gauss(0, PRICE_SIGMA))
            self._prices.append(min(moved, self.on_demand.usd_per_hour))


def make_zones(on_demand_usd_per_hour: float, *, num_zones: int, seed: int) -> list[Zone]:
    """Return zones with statistics of their own."""
    chance = random.Random(seed)
    price = on_demand_price(on_demand_usd_per_hour, source="simulated")
    low, high = (math.log(hours * 3600) for hours in MEDIAN_LIFE_HOURS)
    return [
        Zone(
            f"zone-{index}",
            price,
            chance.uniform(*AVAILABILITY),
            math.exp(chance.uniform(low, high)),
            random.Random(chance.getrandbits(62)),
        )
        for index in range(num_zones)
    ]
