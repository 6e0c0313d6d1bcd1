"""Simulated machines: a spot market with varying prices, availability and interruptions, and the bill of each machine.

The statistics follow public traces of V100 spot machines: a zone has machines available 17 to 91 % of the time, the
median machine runs for 0.33 to 1.41 hours, and interruptions are most likely early or late in its life (a bathtub
curve). Times are in seconds from the start of the sweep.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.simulation.workload import Scenario
from raysent.cost import MachineTime, Price, on_demand_price, own_price, spot_price, with_attached
from raysent.cost.budget import ALONE_S, CHECK_S, LEASE_S, WATCH_S, permit_s
from raysent.cost.prices import FREE_IF_INTERRUPTED_S
from raysent.sweeps import Trial, derived_seed

AVAILABILITY = (0.17, 0.91)
MEDIAN_LIFE_HOURS = (0.33, 1.41)
# Fraction of machines that are interrupted early, and the mean of their life as a fraction of the median life.
EARLY_SHARE, EARLY_LIFE = 0.25, 0.2
# Spot prices as a fraction of on-demand; mean time between price changes, and their size (sigma of the logarithm).
SPOT_SHARE = (0.25, 0.65)
PRICE_CHANGE_HOURS, PRICE_SIGMA = 2.0, 0.12
# The longest delay before the driver sees a new price, and the fraction of prices that cannot be read.
PRICE_LAG_S, UNREAD_SHARE = 300.0, 0.05
# AWS gives two minutes' notice of an interruption, and sometimes none.
NOTICE_S, NO_NOTICE_SHARE = 120.0, 0.05
# Time to drain and to terminate a machine: median, and sigma of the logarithm; a few machines take much longer.
DRAIN_S, TERMINATE_S, STOP_SIGMA = 10.0, 5.0, 1.0
HEAD = "head"


@dataclass
class Zone:
    """One pool of spot machines.

    Attributes:
        name: Name of the zone.
        on_demand: On-demand price of its machines.
        availability: Fraction of the time in which it has machines available.
        median_life_s: Half of its machines are interrupted before this time.
        random: Source of randomness.
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
        self._extend(at_s)
        return self._prices[bisect.bisect_right(self._changes, at_s) - 1]

    def next_change_s(self, at_s: float) -> float:
        """Return the time of the next price change."""
        self._extend(at_s)
        return self._changes[bisect.bisect_right(self._changes, at_s)]

    def price(self, at_s: float) -> Price:
        """Return the price of a spot machine at a time."""
        return spot_price(self.usd_per_hour(at_s), self.on_demand, source="simulated")

    def usd(self, start_s: float, end_s: float) -> float:
        """Return the bill of a spot machine from its start to its end, at least its minimum."""
        end_s = max(end_s, start_s + self.on_demand.minimum_s)
        self._extend(end_s)
        total, at = 0.0, start_s
        for index in range(bisect.bisect_right(self._changes, start_s) - 1, len(self._changes)):
            until = min(
                end_s, self._changes[index + 1] if index + 1 < len(self._changes) else end_s
            )
            total += max(0.0, until - at) / 3600 * self._prices[index]
            at = max(at, until)
        return total

    def has_machines(self) -> bool:
        """Draw whether a machine is available now."""
        return self.random.random() < self.availability

    def life_s(self) -> float:
        """Draw the time until a machine is interrupted: some early, the rest with a hazard that grows with age."""
        if self.random.random() < EARLY_SHARE:
            return self.random.expovariate(1 / (EARLY_LIFE * self.median_life_s))
        # A Weibull distribution of shape 1.5. Its median is such that all machines together have the zone's median.
        left = (0.5 - EARLY_SHARE * math.exp(-1 / EARLY_LIFE)) / (1 - EARLY_SHARE)
        scale = self.median_life_s / (-math.log(left)) ** (1 / 1.5)
        return self.random.weibullvariate(scale, 1.5)

    def _extend(self, at_s: float) -> None:
        """Draw price changes until after a time."""
        while self._changes[-1] <= at_s:
            self._changes.append(
                self._changes[-1] + self.random.expovariate(1 / (PRICE_CHANGE_HOURS * 3600))
            )
            moved = self._prices[-1] * math.exp(self.random.gauss(0, PRICE_SIGMA))
            self._prices.append(min(moved, self.on_demand.usd_per_hour))


def make_zones(on_demand_usd_per_hour: float, *, num_zones: int, seed: int) -> list[Zone]:
    """Return zones, each with its own statistics."""
    generator = random.Random(seed)
    price = on_demand_price(on_demand_usd_per_hour, source="simulated")
    low, high = (math.log(hours * 3600) for hours in MEDIAN_LIFE_HOURS)
    return [
        Zone(
            f"zone-{index}",
            price,
            generator.uniform(*AVAILABILITY),
            math.exp(generator.uniform(low, high)),
            random.Random(generator.getrandbits(62)),
        )
        for index in range(num_zones)
    ]


@dataclass
class Machine:
    """A machine that is billed.

    Attributes:
        name: Its name in the ledger.
        price: Its price as far as the driver knows it.
        zone: Its spot pool; None for own and on-demand machines.
        start_s: When its billing started.
        trial: The trial that it trains.
        segment_start_s: When training for the next report started.
        is_ending: Whether it is being terminated or interrupted.
        has_joined: Whether its Ray node has joined.
        end_s: When it stops being billed, once that is certain.
    """

    name: str
    price: Price
    zone: Zone | None
    start_s: float
    trial: Trial | None = None
    segment_start_s: float = 0.0
    is_ending: bool = False
    has_joined: bool = False
    end_s: float | None = None

    def time(self, now_s: float, *, is_interrupted: bool = False) -> MachineTime:
        """Return the machine as the cloud lists it."""
        end_s = now_s if self.end_s is None else min(now_s, self.end_s)
        is_open = not is_interrupted and (self.end_s is None or self.end_s > now_s)
        return MachineTime({}, end_s - self.start_s, is_open=is_open, is_interrupted=is_interrupted)


class Machines:
    """All running machines, and the provider's bill for every machine that ever ran.

    Attributes:
        running: The machines that are billed now, by name.
        billed_usd: The bill so far, computed from the events.
        held_usd_per_hour: The most that the machines that were billed at once cost an hour.
    """

    def __init__(
        self, scenario: Scenario, *, seed: int, generator: random.Random, max_drain_s: float
    ) -> None:
        """Start without machines.

        Args:
            scenario: Machines, prices and times.
            seed: Seed of the spot market.
            generator: Draws how long machines take to stop.
            max_drain_s: The longest that a machine drains.
        """
        self.running: dict[str, Machine] = {}
        self.billed_usd = self.held_usd_per_hour = 0.0
        self._scenario, self._generator, self._max_drain_s = scenario, generator, max_drain_s
        self._zones = make_zones(
            scenario.usd_per_hour, num_zones=scenario.num_zones, seed=derived_seed(seed, "market")
        )
        self._num_started = 0

    @property
    def workers(self) -> list[Machine]:
        """The running machines without the head."""
        return [one for one in self.running.values() if not one.name.startswith(HEAD)]

    def running_types(self) -> dict[str, int]:
        """Return the workers of each market that are billed: a cloud lists them until they have ended."""
        return dict(Counter(one.price.market for one in self.workers))

    def not_joined(self) -> dict[str, int]:
        """Return the workers of each market that are billed and have not joined Ray."""
        return dict(Counter(one.price.market for one in self.workers if not one.has_joined))

    def offer(self, market: str, now_s: float) -> tuple[Zone | None, Price] | None:
        """Return zone and price of the cheapest available machine of a market, or None if the cloud has none."""
        if market == "own":
            return None, own_price(self._scenario.usd_per_hour)
        if market == "on-demand":
            return None, self._whole(
                on_demand_price(self._scenario.usd_per_hour, source="simulated")
            )
        for zone in sorted(self._zones, key=lambda zone: zone.usd_per_hour(now_s)):
            if zone.has_machines():
                return zone, self.price(zone, now_s)
        return None

    def price(self, zone: Zone, now_s: float, *, is_read: bool = True) -> Price:
        """Return the price of a spot machine with what is attached to it; the highest if it cannot be read."""
        return self._whole(
            zone.price(now_s) if is_read else spot_price(None, zone.on_demand, source="")
        )

    def start(
        self, zone: Zone | None, price: Price, *, now_s: float, name: str = "machine"
    ) -> Machine:
        """Start a machine; it is billed from now on."""
        self._num_started += 1
        machine = Machine(f"{name}-{self._num_started}", price, zone, now_s)
        self.running[machine.name] = machine
        held = sum(one.price.worst_usd_per_hour for one in self.running.values())
        self.held_usd_per_hour = max(self.held_usd_per_hour, held)
        return machine

    def start_head(self, *, now_s: float) -> Machine:
        """Start the head, on demand."""
        price = self._whole(on_demand_price(self._scenario.head_usd_per_hour, source="simulated"))
        return self.start(None, price, now_s=now_s, name=HEAD)

    def _whole(self, price: Price) -> Price:
        return with_attached(price, self._scenario.attached_usd_per_hour)

    def has(self, machine: Machine) -> bool:
        """Return whether a machine is still running."""
        return machine.name in self.running

    def end(self, machine: Machine, *, now_s: float, is_interrupted: bool) -> None:
        """End a machine and bill it."""
        del self.running[machine.name]
        self._bill(machine, now_s, is_interrupted=is_interrupted)

    def abandon(self, *, polled_s: float, now_s: float, is_head_dead: bool) -> None:
        """Lose the driver, and perhaps the head: every machine ends on its own, as `raysent.cost.budget` says.

        Args:
            polled_s: When the driver last renewed permit and lease.
            now_s: When it died.
            is_head_dead: Whether the head died with it.
        """
        for machine in self.running.values():
            machine.is_ending, machine.trial = True, None
            if machine.end_s is not None:  # was terminated before
                continue
            if machine.price.market == "own":
                machine.end_s = now_s
            elif machine.name.startswith(HEAD):
                is_gone = (
                    is_head_dead and self._generator.random() < 0.5
                )  # else Ray is dead, and the machine lives
                machine.end_s = (
                    now_s if is_gone else self._later(polled_s + LEASE_S, CHECK_S, machine)
                )
                machine.is_ending = is_head_dead
            elif machine.has_joined:
                machine.end_s = self._later(
                    polled_s + permit_s(self._scenario.cost.poll_s), WATCH_S, machine
                )
            else:
                machine.end_s = self._later(machine.start_s + ALONE_S, CHECK_S, machine)
            machine.end_s = max(machine.end_s, now_s)

    def ended_alone(self, *, now_s: float) -> list[Machine]:
        """End and return the machines that have ended without a driver until now."""
        ended = [
            one for one in self.running.values() if one.end_s is not None and one.end_s <= now_s
        ]
        for machine in ended:
            self.end(machine, now_s=machine.end_s or now_s, is_interrupted=False)
        return ended

    def watched_end_s(self, machine: Machine, now_s: float) -> float:
        """Draw when a machine has ended whose permit was renewed now for the last time."""
        return self._later(now_s + permit_s(self._scenario.cost.poll_s), WATCH_S, machine)

    def _later(self, at_s: float, seen_s: float, machine: Machine) -> float:
        """Draw when a machine has ended that sees within `seen_s` that it has to end."""
        return at_s + self._generator.uniform(0, seen_s) + self.terminate_s(machine)

    def drain_s(self, machine: Machine) -> float:
        """Draw how long a machine's trial takes to stop."""
        if machine.price.market == "own" or machine.trial is None:
            return 0.0
        return min(self._generator.lognormvariate(math.log(DRAIN_S), STOP_SIGMA), self._max_drain_s)

    def terminate_s(self, machine: Machine) -> float:
        """Draw how long a machine is billed after it was terminated."""
        if machine.price.market == "own":
            return 0.0
        if self._generator.random() < self._scenario.slow_share:
            return self._generator.uniform(*self._scenario.slow_s)
        return self._generator.lognormvariate(math.log(TERMINATE_S), STOP_SIGMA)

    def is_refused(self) -> bool:
        """Draw whether the cloud refuses to end a machine now."""
        return (
            self._scenario.refused_share > 0
            and self._generator.random() < self._scenario.refused_share
        )

    def launch_refusal(self) -> str:
        """Draw why the cloud refuses a launch, whatever machines it has; empty if it does not."""
        throttled, quota = self._scenario.throttled_share, self._scenario.quota_share
        if throttled + quota <= 0:
            return ""
        draw = self._generator.random()
        if draw < throttled:
            return "RequestLimitExceeded: Request limit exceeded."
        return "VcpuLimitExceeded: You have requested more" if draw < throttled + quota else ""

    def _bill(self, machine: Machine, end_s: float, *, is_interrupted: bool = False) -> None:
        """Add the bill of a machine that has ended."""
        seconds = max(machine.price.minimum_s, end_s - machine.start_s)
        if machine.zone is None:
            self.billed_usd += machine.price.usd(seconds)
            return
        self.billed_usd += seconds / 3600 * machine.price.attached_usd_per_hour
        if not is_interrupted or end_s - machine.start_s >= FREE_IF_INTERRUPTED_S:
            self.billed_usd += machine.zone.usd(machine.start_s, end_s)
