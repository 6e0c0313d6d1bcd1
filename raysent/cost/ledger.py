"""What is owed, line by line: every stretch of every machine's time, and every trial's share of it.

The lines are append-only JSON objects:

    node   a machine's stretch that was charged     node, instance_type, market, source, seconds, usd_per_hour, usd,
                                                    is_open, why
    trial  a trial's share, from report to report   trial, node, rung, seconds, usd, steps, steps_lost

Spend is the sum of the node lines alone, so what nobody trained in (starting, idling, lost work) is counted too.
`Ledger` takes times from its caller and reads no clock; past lines make it stand where it stood.

A ledger's lines -> what a sweep came to: spent, lost with machines that went, and what it would be on demand.

Shapes: lines are `ledger.py`'s objects, in the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysent.cost.budget import Budget, Funds
from raysent.cost.prices import FREE_IF_TAKEN_S, Price

# How the words begin that a line has for a machine that its owner took, and for one that nobody closed.
TAKEN, ASSUMED = "taken back", "not closed"

Entry = dict[str, Any]
Write = Callable[[Entry], None]


@dataclass
class _Node:
    """A machine that is being paid for.

    Attributes:
        price: What it costs.
        begun_s: When it began, on the caller's clock.
        paid_until_s: Up to when it has been charged.
        usd: What it has been charged.
    """

    price: Price
    begun_s: float
    paid_until_s: float
    usd: float = 0.0


class Ledger:
    """Keeps what is owed. Order of the calls: `open`, then `tick` now and then, then `close`, for each machine."""

    def __init__(self, write: Write, *, past: Iterable[Entry] = (), window_s: float = Budget.window_s) -> None:
        """Take up the ledger where its lines leave it.

        A machine that nobody closed ran on after the last line, for how long is not known: it is charged for the
        whole time that stopping takes.

        Args:
            write: Called with each line before it counts.
            past: The lines so far.
            window_s: How long stopping takes at worst.
        """
        self.spent_usd = 0.0
        self.nodes: dict[str, _Node] = {}
        self._write = write
        self._window_s = window_s
        left_open: dict[str, Entry] = {}
        for entry in past:
            if entry["entry"] == "node":
                self.spent_usd += entry["usd"]
                left_open.pop(entry["node"], None)
                if entry["is_open"]:
                    left_open[entry["node"]] = entry
        for node, entry in left_open.items():
            worst = entry["worst_usd_per_hour"]
            price = Price(worst, worst, entry["market"], "assumed", instance_type=entry.get("instance_type", ""))
            why = f"{ASSUMED} by a killed driver: assumed to have run on for as long as stopping takes"
            self._line(node, price, (window_s, price.usd(window_s)), is_open=False, why=why)

    @property
    def usd_per_hour(self) -> float:
        """What all machines that are there cost an hour now."""
        return sum(node.price.usd_per_hour for node in self.nodes.values())

    def open(self, node: str, price: Price, *, now_s: float) -> None:
        """Begin to pay for a machine; its minimum is owed at once."""
        self.nodes[node] = _Node(price, now_s, now_s + price.minimum_s)
        self._pay(node, price.minimum_s)

    def reprice(self, node: str, price: Price, *, now_s: float) -> None:
        """Charge a machine at its old price up to now, and at a new one from now on."""
        self._tick(node, now_s)
        self.nodes[node].price = price

    def tick(self, *, now_s: float) -> None:
        """Charge every machine up to now."""
        for node in self.nodes:
            self._tick(node, now_s)

    def close(self, node: str, *, now_s: float, is_taken: bool = False) -> None:
        """Charge a machine up to its end.

        Args:
            node: The machine.
            now_s: When it ended.
            is_taken: Whether its owner took it back; a spot machine's first hour is then not billed.
        """
        self._tick(node, now_s)
        ended = self.nodes.pop(node)
        price = ended.price
        is_free = is_taken and price.market == "spot" and now_s - ended.begun_s < FREE_IF_TAKEN_S
        back_usd = -ended.usd if is_free else 0.0
        why = "" if not is_taken else f"{TAKEN} in its first hour: free" if is_free else TAKEN
        self._line(node, price, (0.0, back_usd), is_open=False, why=why)

    def share(
        self, trial: str, *, node: str, rung: int, seconds: float, usd: float, steps: int, steps_lost: int | None = None
    ) -> None:
        """Note what a trial's way to a report took of a machine; changes no sum.

        Args:
            trial: Its name.
            node: The machine.
            rung: The report's index.
            seconds: Time since the report before.
            usd: What that cost.
            steps: Steps since the report before.
            steps_lost: Steps that were done and had to be done again; None where nobody knows.
        """
        self._write(
            {
                "entry": "trial",
                "trial": trial,
                "node": node,
                "rung": rung,
                "seconds": round(seconds, 3),
                "usd": round(usd, 6),
                "steps": steps,
                "steps_lost": steps_lost,
            }
        )

    def funds(self, *, elapsed_s: float) -> Funds:
        """Return where the sweep stands, as of the last tick."""
        hourly = sum(node.price.worst_usd_per_hour for node in self.nodes.values())
        return Funds(self.spent_usd, hourly * self._window_s / 3600, hourly, elapsed_s).rounded()

    def _tick(self, node: str, now_s: float) -> None:
        seconds = now_s - self.nodes[node].paid_until_s
        if seconds > 0:
            self._pay(node, seconds)
            self.nodes[node].paid_until_s = now_s  # once it is written

    def _pay(self, node: str, seconds: float) -> None:
        """Charge an open machine for more seconds."""
        held = self.nodes[node]
        self._line(node, held.price, (seconds, held.price.usd(seconds)), is_open=True, why="")
        held.usd += held.price.usd(seconds)

    def _line(self, node: str, price: Price, amount: tuple[float, float], *, is_open: bool, why: str) -> None:
        """Write a machine's line, then count it."""
        seconds, usd = amount
        self._write(
            {
                "entry": "node",
                "node": node,
                "instance_type": price.instance_type,
                "market": price.market,
                "source": price.source,
                "seconds": round(seconds, 3),
                "usd_per_hour": price.usd_per_hour,
                "worst_usd_per_hour": price.worst_usd_per_hour,
                "usd": usd,
                "is_open": is_open,
                "why": why,
            }
        )
        self.spent_usd += usd


@dataclass(frozen=True)
class Share:
    """A trial's way to a report.

    Attributes:
        trial: Its name.
        rung: The report's index.
        seconds: What the way took.
        usd: What that cost.
        lost_usd: What the steps cost that had to be done again, at the price of those that count; None where nobody
            knows how many they were.
        time: Unix seconds of the report; None where the line has none.
    """

    trial: str
    rung: int
    seconds: float
    usd: float
    lost_usd: float | None
    time: float | None


@dataclass(frozen=True)
class Moment:
    """Where a sweep stood after a line: dollars spent, dollars of lost work, and whether a machine was taken back."""

    time: float
    spent_usd: float
    lost_usd: float
    is_interruption: bool


@dataclass(frozen=True)
class Bill:
    """What a sweep came to.

    Attributes:
        usd: Spent on machines.
        on_demand_usd: The same machines' seconds at what they cost on demand; None where all were one's own.
        machine_s: Seconds of all machines.
        assumed_usd: Charged for machines that a killed driver had left, at worst.
        refunded_usd: What came back for machines that were taken in their first hour.
        lost_usd: What lost work cost, as far as it is known.
        num_unknown: Ways to reports of which nobody knows what was lost.
        num_interruptions: Machines that were taken back.
        shares: Trials' ways to reports.
        moments: Every line that has a time.
    """

    usd: float
    on_demand_usd: float | None
    machine_s: float
    assumed_usd: float
    refunded_usd: float
    lost_usd: float
    num_unknown: int
    num_interruptions: int
    shares: tuple[Share, ...]
    moments: tuple[Moment, ...]

    @property
    def outside_usd(self) -> float:
        """What no trial's report had, refunds left aside: starting, waiting, work that was lost."""
        return self.usd + self.refunded_usd - sum(share.usd for share in self.shares)


def bill_of(entries: Sequence[Entry]) -> Bill:
    """Return what a ledger comes to."""
    nodes = [entry for entry in entries if entry["entry"] == "node"]
    shares = tuple(_share(entry) for entry in entries if entry["entry"] == "trial")
    is_own = all(entry["market"] == "own" for entry in nodes)
    on_demand_usd = sum(entry["seconds"] / 3600 * entry["worst_usd_per_hour"] for entry in nodes)
    return Bill(
        usd=sum(entry["usd"] for entry in nodes),
        on_demand_usd=None if is_own else on_demand_usd,
        machine_s=sum(entry["seconds"] for entry in nodes),
        assumed_usd=sum(entry["usd"] for entry in nodes if entry["why"].startswith(ASSUMED)),
        refunded_usd=-sum(min(0.0, entry["usd"]) for entry in nodes),
        lost_usd=sum(share.lost_usd or 0.0 for share in shares),
        num_unknown=sum(share.lost_usd is None for share in shares),
        num_interruptions=sum(_is_taken(entry) for entry in nodes),
        shares=shares,
        moments=tuple(_moments(entries)),
    )


def verdict(estimate: Mapping[str, float], *, spent_usd: float) -> str:
    """Return whether a bill is inside the P10 to P90 of its estimate, `below` or `above`."""
    if estimate["p10"] <= spent_usd <= estimate["p90"]:
        return "inside"
    return "below" if spent_usd < estimate["p10"] else "above"


def _share(entry: Entry) -> Share:
    lost_usd: float | None = None
    if entry["steps_lost"] is not None and (entry["steps"] > 0 or entry["steps_lost"] == 0):
        lost_usd = entry["usd"] * entry["steps_lost"] / max(1, entry["steps"])
    return Share(entry["trial"], entry["rung"], entry["seconds"], entry["usd"], lost_usd, entry.get("time"))


def _is_taken(entry: Entry) -> bool:
    return bool(entry["entry"] == "node" and entry["why"].startswith(TAKEN))


def _moments(entries: Iterable[Entry]) -> Iterable[Moment]:
    """Yield where the sweep stood after each line that has a time."""
    spent_usd = lost_usd = 0.0
    for entry in entries:
        if entry["entry"] == "node":
            spent_usd += entry["usd"]
        else:
            lost_usd += _share(entry).lost_usd or 0.0
        time: Any = entry.get("time")
        if time is not None:
            yield Moment(float(time), spent_usd, lost_usd, _is_taken(entry))
