"""What happens, in order of time; nothing waits.

How a simulated sweep went.

Made-up machines: where they come from, how long they take to go, and what they are billed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raysent.cost import Entry, Price, on_demand_price, own_price
from raysent.simulation.market import Zone, make_zones
from raysent.simulation.workload import World
from raysent.sweeps import Event, Trial, derived_seed


class Clock:
    """Holds what will happen, and stands at the time of what happened last.

    Attributes:
        now_s: Seconds since the sweep's beginning.
    """

    def __init__(self) -> None:
        """Stand at zero, with nothing to come."""
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, seconds: float, happens: Callable[..., None], *arguments: Any) -> None:
        """Let something happen in so many seconds; of what comes at once, what was said first is first."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + seconds, self._count, happens, arguments))

    def has_more(self) -> bool:
        """Whether anything will happen."""
        return bool(self._heap)

    def step(self) -> None:
        """Go to what comes next, and let it happen."""
        self.now_s, _, happens, arguments = heapq.heappop(self._heap)
        happens(*arguments)

    def clear(self) -> None:
        """Forget all that was to come."""
        self._heap.clear()


@dataclass(frozen=True)
class SimulatedSweep:
    """How a simulated sweep went.

    Attributes:
        billed_usd: What its machines were billed, by what happened.
        ledger_usd: The same by the ledger.
        seconds: From its beginning to its end.
        best: The best score of a trial that was not cut off; None where there is none.
        num_interruptions: Machines that were taken back.
        lost_s: Training that had to be done again.
        rungs: Report index -> trials that came to it.
        trials: Every trial.
        events: The journal.
        lines: The ledger.
        scores: Time and dollars at every report, with the best score so far.
    """

    billed_usd: float
    ledger_usd: float
    seconds: float
    best: float | None
    num_interruptions: int
    lost_s: float
    rungs: dict[int, int]
    trials: list[Trial]
    events: list[Event] = field(repr=False)
    lines: list[Entry] = field(repr=False)
    scores: list[tuple[float, float, float]] = field(repr=False)


# How long draining and ending a machine take: median, and spread of the logarithm; now and then far longer.
DRAIN_S, TERMINATE_S, STOP_SIGMA = 10.0, 5.0, 1.0
SLOW_SHARE, SLOW_S = 0.02, (60.0, 300.0)


@dataclass
class Machine:
    """A machine that is billed.

    Attributes:
        name: In the ledger.
        price: What the driver knows of its price.
        zone: Its spot pool; None for own and on-demand machines.
        begin_s: When its billing began.
        trial: What it trains.
        share_begin_s: When the way to the next report began.
        is_ending: Whether it was told to end, or will be taken.
    """

    name: str
    price: Price
    zone: Zone | None
    begin_s: float
    trial: Trial | None = None
    share_begin_s: float = 0.0
    is_ending: bool = False


class Machines:
    """The machines that stand, and the owner's bill for all that ever stood.

    Attributes:
        alive_nodes: Those that are billed now, by name.
        billed_usd: The bill so far, by what happened.
    """

    def __init__(self, world: World, *, seed: int, chance: random.Random, most_drain_s: float) -> None:
        """Let no machine stand.

        Args:
            world: Machines, prices and times.
            seed: Of the spot market.
            chance: Draws how long machines take to go.
            most_drain_s: No machine drains longer.
        """
        self.alive_nodes: dict[str, Machine] = {}
        self.billed_usd = 0.0
        self._world, self._chance, self._most_drain_s = world, chance, most_drain_s
        self._zones = make_zones(world.usd_per_hour, num_zones=world.num_zones, seed=derived_seed(seed, "market"))
        self._num_begun = 0

    @property
    def num_busy(self) -> int:
        """Machines that are not about to go."""
        return sum(not machine.is_ending for machine in self.alive_nodes.values())

    @property
    def num_idle(self) -> int:
        """Machines that wait for a trial."""
        return sum(machine.trial is None and not machine.is_ending for machine in self.alive_nodes.values())

    def cheapest(self, now_s: float) -> tuple[Zone | None, Price] | None:
        """Return the cheapest machine that is to be had; None where none is."""
        world = self._world
        if world.market == "own":
            return None, own_price(world.usd_per_hour)
        if world.market != "on-demand":
            for zone in sorted(self._zones, key=lambda zone: zone.usd_per_hour(now_s)):
                if zone.has_machines():
                    return zone, zone.price(now_s)
        if world.market == "spot":
            return None
        return None, on_demand_price(world.usd_per_hour, source="simulated")

    def begin(self, zone: Zone | None, price: Price, *, now_s: float) -> Machine:
        """Let a machine stand, billed from now on."""
        self._num_begun += 1
        machine = Machine(f"machine-{self._num_begun}", price, zone, now_s)
        self.alive_nodes[machine.name] = machine
        return machine

    def has(self, machine: Machine) -> bool:
        """Whether a machine still stands."""
        return machine.name in self.alive_nodes

    def end(self, machine: Machine, *, now_s: float, is_taken: bool) -> None:
        """Let a machine stand no more, and bill it."""
        del self.alive_nodes[machine.name]
        self._bill(machine, now_s, is_taken=is_taken)

    def abandon(self, *, now_s: float) -> None:
        """Leave all machines to themselves: they end when they have heard nothing for long enough."""
        for machine in self.alive_nodes.values():
            alone_s = 0.0 if machine.price.market == "own" else self._world.cost.poll_s
            self._bill(machine, now_s + alone_s + self.drain_s(machine) + self.terminate_s(machine))
        self.alive_nodes.clear()

    def drain_s(self, machine: Machine) -> float:
        """Draw how long a machine's trial takes to stop."""
        if machine.price.market == "own" or machine.trial is None:
            return 0.0
        return min(self._chance.lognormvariate(math.log(DRAIN_S), STOP_SIGMA), self._most_drain_s)

    def terminate_s(self, machine: Machine) -> float:
        """Draw how long a machine is billed after it was told to end."""
        if machine.price.market == "own":
            return 0.0
        if self._chance.random() < SLOW_SHARE:
            return self._chance.uniform(*SLOW_S)
        return self._chance.lognormvariate(math.log(TERMINATE_S), STOP_SIGMA)

    def _bill(self, machine: Machine, end_s: float, *, is_taken: bool = False) -> None:
        """Count what a machine is billed, by what happened."""
        if is_taken and end_s - machine.begin_s < 3600:
            return
        if machine.zone is not None:
            self.billed_usd += machine.zone.usd(machine.begin_s, end_s)
        else:
            self.billed_usd += machine.price.usd(max(machine.price.minimum_s, end_s - machine.begin_s))
