"""A ledger's lines -> what a sweep came to: spent, lost with machines that went, and what it would be on demand.

Shapes: lines are `ledger.py`'s objects, in the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysent.cost.ledger import ASSUMED, TAKEN, Entry


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
