"""Entries of a ledger that charge many machines at once, written and read.

A poll charges every machine that runs. Most of them run on at an unchanged price for the same time: one entry says so,

    all  every open machine, but those in `but`, ran on for `seconds` at the price of its last own entry
         seconds, num, usd, on_demand_usd, but

in the place of an entry for each. Its sums are part of it, so that a reader needs no other entry to add them up, and
they are checked against the entries before it. Ledgers without such entries are read in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Entry = dict[str, Any]

NODE = "node"
ALL = "all"
# What must be as in a machine's last own entry. The source of a price may be newer.
_PRICE = ("instance_type", "market", "usd_per_hour", "worst_usd_per_hour", "attached_usd_per_hour")
# Fewer machines have an entry each.
_LEAST = 2
_TOLERANCE = 1e-6


@dataclass
class Charge:
    """What a machine was charged so far.

    Attributes:
        seconds: Time.
        usd: Dollars.
        refundable_usd: The part of them that AWS gives back if it interrupts the machine in its first hour.
    """

    seconds: float = 0.0
    usd: float = 0.0
    refundable_usd: float = 0.0


class OpenMachines:
    """The machines of a ledger and what each was charged, entry by entry.

    Attributes:
        last: Machine -> its last own entry, of those that are open.
    """

    def __init__(self) -> None:
        """Start with an empty ledger."""
        self.last: dict[str, Entry] = {}
        self._charges: dict[str, Charge] = {}
        # The seconds of all entries of kind `all`, and those up to which a machine's charge is counted.
        self._clock_s = 0.0
        self._counted_s: dict[str, float] = {}
        self._usd_per_hour = self._worst_usd_per_hour = 0.0

    def add(self, entry: Entry) -> None:
        """Take one more entry; those of trials change nothing."""
        if entry["entry"] == ALL:
            self._clock_s += entry["seconds"]
            for node in entry["but"]:
                self._counted_s[node] += entry["seconds"]
        elif entry["entry"] == NODE:
            self._add_node(entry)

    def _add_node(self, entry: Entry) -> None:
        node = entry["node"]
        charge = self.charge(node)
        before = self.last.pop(node, None)
        if before is not None:
            self._usd_per_hour -= before.get("usd_per_hour", 0.0)
            self._worst_usd_per_hour -= before.get("worst_usd_per_hour", 0.0)
        seconds = entry.get("seconds", 0.0)
        charge.seconds += seconds
        charge.usd += entry["usd"]
        attached_usd = seconds / 3600 * entry.get("attached_usd_per_hour", 0.0)
        charge.refundable_usd += entry["usd"] - attached_usd
        if entry["is_open"]:
            self.last[node] = entry
            self._counted_s[node] = self._clock_s
            self._usd_per_hour += entry.get("usd_per_hour", 0.0)
            self._worst_usd_per_hour += entry.get("worst_usd_per_hour", 0.0)
        else:
            charge.refundable_usd = 0.0

    def charge(self, node: str) -> Charge:
        """Return what a machine was charged up to now."""
        charge = self._charges.setdefault(node, Charge())
        entry = self.last.get(node)
        if entry is not None:
            seconds = self._clock_s - self._counted_s[node]
            self._counted_s[node] = self._clock_s
            hours = seconds / 3600
            charge.seconds += seconds
            usd = hours * entry.get("usd_per_hour", 0.0)
            charge.usd += usd
            charge.refundable_usd += usd - hours * entry.get("attached_usd_per_hour", 0.0)
        return charge

    def charges(self) -> Mapping[str, Charge]:
        """Return what each machine was charged up to now, those that have ended included."""
        for node in self.last:
            self.charge(node)
        return self._charges

    def sums(self, seconds: float, but: Collection[str]) -> tuple[int, float, float]:
        """Return of the open machines without some: their number, and what `seconds` cost now and on demand."""
        without = [self.last[node] for node in but]
        usd = self._usd_per_hour - sum(entry["usd_per_hour"] for entry in without)
        worst_usd = self._worst_usd_per_hour - sum(entry["worst_usd_per_hour"] for entry in without)
        hours = seconds / 3600
        return len(self.last) - len(without), hours * usd, hours * worst_usd

    def problem(self, entry: Entry) -> str:
        """Return what is wrong with an entry of kind `all` after those before it; empty if nothing is."""
        but = entry.get("but")
        if not isinstance(but, list) or len(set(map(str, but))) != len(but):
            return f"but: must be a list of machines, each once; it is {but!r}"
        strangers = [node for node in but if node not in self.last]
        if strangers:
            return f"but: must name machines that run; it names {strangers[0]!r}"
        num, usd, on_demand_usd = self.sums(entry["seconds"], but)
        wanted = {"num": num, "usd": usd, "on_demand_usd": on_demand_usd}
        for name, value in wanted.items():
            if abs(entry[name] - value) > _TOLERANCE * max(1.0, abs(value)):
                return (
                    f"{name}: must be {value:.9g} by the entries before it; it is {entry[name]!r}"
                )
        return ""


def merged(entries: Sequence[Entry], machines: OpenMachines) -> list[Entry]:
    """Return the entries of one poll with one entry for all machines that ran on at an unchanged price.

    Args:
        entries: The entries, in their order.
        machines: The machines before them.
    """
    times = Counter(entry["node"] for entry in entries if entry["entry"] == NODE)
    going_on = [
        entry
        for entry in entries
        if entry["entry"] == NODE and times[entry["node"]] == 1 and _goes_on(entry, machines)
    ]
    if len(going_on) < _LEAST:
        return list(entries)
    ((seconds, _),) = Counter(entry["seconds"] for entry in going_on).most_common(1)
    group = {entry["node"]: entry for entry in going_on if entry["seconds"] == seconds}
    but = sorted(machines.last.keys() - group.keys())
    if len(group) < max(_LEAST, len(but)):
        return list(entries)
    num, usd, on_demand_usd = machines.sums(seconds, but)
    merged: Entry = {
        "entry": ALL,
        "seconds": seconds,
        "num": num,
        "usd": round(usd, 12),
        "on_demand_usd": round(on_demand_usd, 12),
        "but": but,
    }
    first = next(iter(group.values()))
    if "time" in first:
        merged["time"] = first["time"]
    return [
        merged,
        *(entry for entry in entries if entry.get("node") not in group or _is_trial(entry)),
    ]


def _is_trial(entry: Entry) -> bool:
    return bool(entry["entry"] != NODE)


def _goes_on(entry: Entry, machines: OpenMachines) -> bool:
    """Return whether a machine runs on as before, at the price of its last own entry."""
    before = machines.last.get(entry["node"])
    return (
        before is not None
        and bool(entry["is_open"])
        and not entry["why"]
        and all(entry.get(name) == before.get(name) for name in _PRICE)
    )


def machine_charges(entries: Iterable[Entry]) -> Mapping[str, Charge]:
    """Return what each machine of a ledger was charged."""
    machines = OpenMachines()
    for entry in entries:
        machines.add(entry)
    return machines.charges()
