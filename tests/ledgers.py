"""Ledgers as tests read them: an entry of its own for each machine and poll."""

from __future__ import annotations

from collections.abc import Iterable

from raysent.cost import Entry
from raysent.cost.merging import ALL, OpenMachines


def each_machine(entries: Iterable[Entry]) -> list[Entry]:
    """Return a ledger's entries with one for each machine in the place of one for many."""
    machines, each = OpenMachines(), []
    for entry in entries:
        if entry["entry"] == ALL:
            for node, last in machines.last.items():
                if node not in entry["but"]:
                    usd = entry["seconds"] / 3600 * last["usd_per_hour"]
                    own = {"seconds": entry["seconds"], "usd": usd, "time": entry.get("time")}
                    each.append({**last, **own})
        else:
            each.append(entry)
        machines.add(entry)
    return each
