"""The ledger of a sweep: every machine's time and every trial's cost, one JSON object a line, and their sums.

    node   a charged period of a machine       node, instance_type, market, source, seconds, usd_per_hour,
                                               worst_usd_per_hour, attached_usd_per_hour, usd, is_open, why
    all    the same period of many machines   seconds, num, usd, on_demand_usd, but (`merging.py`)
    trial  a trial from one report to the next trial, node, rung, seconds, usd, steps, steps_lost

Lines are only appended. Spending is the sum of the lines of machines, so it includes start-up, idle time and lost work.
`Ledger` reads no clock: callers pass times. It restores its state from the lines of earlier sessions. `bill_of`
returns the sums of all lines: spent, lost to interruptions, and the cost of the same machines on demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysent.cost.budget import Budget, Funds
from raysent.cost.merging import ALL, NODE, Entry, OpenMachines
from raysent.cost.prices import FREE_IF_INTERRUPTED_S, Price

# How `why` starts for an interrupted spot machine, and for a machine that a killed driver left open. Ledgers on disk
# contain these texts.
INTERRUPTED = "taken back"
_ASSUMED = "not closed"
# Lines store seconds with three digits.
_ROUNDING_S = 0.002


@dataclass(frozen=True)
class MachineTime:
    """A machine in a cloud's own list.

    Attributes:
        labels: Its type and market, which determine its price.
        seconds: Time from its launch until now, or until its end.
        is_open: Whether it is still billed.
        is_interrupted: Whether the provider ended it.
        is_end_known: Whether `seconds` is exact. If a machine ended at an unknown time, what it is charged already
            counts, and the longest time that stopping takes; `seconds` counts only for one that was never charged.
    """

    labels: Mapping[str, str]
    seconds: float
    is_open: bool = True
    is_interrupted: bool = False
    is_end_known: bool = True


Write = Callable[[Entry], None]


@dataclass
class _Node:
    """A machine that is being charged, on the caller's clock; `usd` is what it was charged so far."""

    price: Price
    start_s: float
    paid_until_s: float
    usd: float = 0.0


class Ledger:
    """Records spending.

    Call `open` for a machine, `reprice` regularly, then `close`; or `follow` regularly for each of a cloud's list.
    """

    def __init__(
        self,
        write: Write,
        *,
        past: Iterable[Entry] = (),
        window_s: float = Budget.window_s,
        is_listed: bool = False,
    ) -> None:
        """Restore the state from the lines of earlier sessions.

        A machine without a closing line ran for an unknown time after its last line. It is charged for the longest
        time that stopping takes.

        Args:
            write: Called with each line before the line counts. A caller may collect lines: they are durable before
                what depends on their sum is decided.
            past: The lines so far.
            window_s: The longest time that stopping takes.
            is_listed: Whether `follow` will charge every machine by the cloud's list: then nothing is assumed.
        """
        self.nodes: dict[str, _Node] = {}
        self._write = write
        self._window_s = window_s
        machines = OpenMachines()
        for entry in past:
            machines.add(entry)
        self._left_open = dict(machines.last)
        charges = machines.charges()
        self._charged = {node: (charge.seconds, charge.usd) for node, charge in charges.items()}
        self._closed = charges.keys() - self._left_open.keys()
        self.spent_usd = sum(usd for _, usd in self._charged.values())
        # A cloud's list will say how long these machines ran; without one the worst is assumed.
        unseen = {} if is_listed else self._left_open
        for node, entry in unseen.items():
            price = _assumed_price(entry)
            reason = f"{_ASSUMED} by a killed driver: assumed to have run on for as long as stopping takes"
            self._line(node, price, (window_s, price.usd(window_s)), is_open=False, why=reason)

    @property
    def usd_per_hour(self) -> float:
        """What all open machines together cost an hour now."""
        return sum(node.price.usd_per_hour for node in self.nodes.values())

    def open(self, node: str, price: Price, *, now_s: float) -> None:
        """Start to charge a machine. Its minimum is charged at once."""
        self.nodes[node] = _Node(price, now_s, now_s + price.minimum_s)
        self._pay(node, price.minimum_s)

    def reprice(self, node: str, price: Price, *, now_s: float) -> None:
        """Charge a machine at its old price until now, and at a new price from now on."""
        self._tick(node, now_s)
        self.nodes[node].price = price

    def close(self, node: str, *, now_s: float, is_interrupted: bool = False) -> None:
        """Charge a machine until its end.

        Args:
            node: The machine.
            now_s: When it ended.
            is_interrupted: Whether the provider interrupted it; AWS does not bill a spot machine that it interrupts
                in the first hour.
        """
        self._tick(node, now_s)
        self.drop(node, seconds=now_s - self.nodes[node].start_s, is_interrupted=is_interrupted)

    def follow(self, node: str, price: Price, machine: MachineTime) -> None:
        """Charge a machine of the cloud's list for its time since its launch, less what is charged already.

        The sum of a machine's lines is its bill, whichever lines were lost. Its first line charges the minimum.

        Args:
            node: The machine's id.
            price: Its price now.
            machine: Its time.
        """
        seconds, usd = self._charged.get(node, (0.0, 0.0))
        if machine.is_end_known or not seconds:
            total_s = machine.seconds
        else:
            total_s = seconds + self._window_s
        is_closed = node in self._closed and (
            total_s <= seconds + _ROUNDING_S or not machine.is_end_known
        )
        if not machine.is_open and is_closed:
            self.nodes.pop(node, None)
            return  # charged until its end
        missing_s = _rounded(max(0.0, max(total_s, price.minimum_s) - seconds))
        if missing_s > _ROUNDING_S:
            reason = ""
            if not machine.is_end_known:
                reason = f"{_ASSUMED} when it was last seen: assumed to have run on"
            self._line(node, price, (missing_s, price.usd(missing_s)), is_open=True, why=reason)
            usd += price.usd(missing_s)
        self.nodes[node] = _Node(price, 0.0, 0.0, usd)
        if not machine.is_open:
            self.drop(node, seconds=total_s, is_interrupted=machine.is_interrupted)

    def unlisted(self, listed: Collection[str]) -> dict[str, Price]:
        """Return the machines without a closing line that the cloud's list lacks, and the price of each."""
        prices = {node: machine.price for node, machine in self.nodes.items() if node not in listed}
        for node, entry in self._left_open.items():
            if node not in listed and node not in self._closed and node not in prices:
                prices[node] = _assumed_price(entry)
        return prices

    def drop(self, node: str, *, seconds: float = math.inf, is_interrupted: bool = False) -> None:
        """Write the last line of a machine, with its refund; `seconds` is its time since its launch."""
        ended = self.nodes.pop(node)
        is_free = (
            is_interrupted and ended.price.market == "spot" and seconds < FREE_IF_INTERRUPTED_S
        )
        refund_usd = 0.0
        reason = INTERRUPTED if is_interrupted else ""
        if is_free:
            reason = f"{INTERRUPTED} in its first hour: free"
            # The machine is free, and its disk never is.
            attached_usd = self._charged[node][0] / 3600 * ended.price.attached_usd_per_hour
            refund_usd = min(0.0, attached_usd - ended.usd)
        self._line(node, ended.price, (0.0, refund_usd), is_open=False, why=reason)

    def record_trial(
        self,
        trial: str,
        *,
        node: str,
        rung: int,
        seconds: float,
        usd: float,
        steps: int,
        steps_lost: int | None = None,
    ) -> None:
        """Record the cost of a trial from one report to the next. Spending does not change.

        Args:
            trial: The trial's name.
            node: The machine that trained it.
            rung: Index of the report.
            seconds: Time since the previous report.
            usd: Cost of that time.
            steps: Steps since the previous report.
            steps_lost: Steps that had to be repeated after an interruption; None if unknown.
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
        """Return the spending as of the last charge."""
        hourly = sum(node.price.worst_usd_per_hour for node in self.nodes.values())
        return Funds(self.spent_usd, hourly * self._window_s / 3600, hourly, elapsed_s).rounded()

    def _tick(self, node: str, now_s: float) -> None:
        seconds = _rounded(now_s - self.nodes[node].paid_until_s)
        if seconds > 0:
            self._pay(node, seconds)
            self.nodes[node].paid_until_s += seconds  # only after the line is written

    def _pay(self, node: str, seconds: float) -> None:
        held = self.nodes[node]
        self._line(node, held.price, (seconds, held.price.usd(seconds)), is_open=True, why="")
        held.usd += held.price.usd(seconds)

    def _line(
        self, node: str, price: Price, amount: tuple[float, float], *, is_open: bool, why: str
    ) -> None:
        """Write a machine's line, then count it. `amount` is seconds and dollars."""
        seconds, usd = amount
        line: Entry = {
            "entry": "node",
            "node": node,
            "instance_type": price.instance_type,
            "market": price.market,
            "source": price.source,
            "seconds": round(seconds, 3),
            "usd_per_hour": price.usd_per_hour,
            "worst_usd_per_hour": price.worst_usd_per_hour,
        }
        if price.attached_usd_per_hour:
            line["attached_usd_per_hour"] = price.attached_usd_per_hour
        line.update(usd=usd, is_open=is_open, why=why)
        self._write(line)
        self._count(node, round(seconds, 3), usd, is_open=is_open)

    def _count(self, node: str, seconds: float, usd: float, *, is_open: bool) -> None:
        if is_open:
            self._closed.discard(node)
        else:
            self._closed.add(node)
        before_s, before_usd = self._charged.get(node, (0.0, 0.0))
        self._charged[node] = before_s + seconds, before_usd + usd
        self.spent_usd += usd


def _rounded(seconds: float) -> float:
    """Return seconds as lines store them; what is rounded off is charged by the next line."""
    return round(seconds, 3)


def _assumed_price(entry: Entry) -> Price:
    usd = entry["worst_usd_per_hour"]
    return Price(usd, usd, entry["market"], "assumed", instance_type=entry.get("instance_type", ""))


@dataclass(frozen=True)
class TrialCost:
    """The cost of a trial from one report to the next.

    Attributes:
        trial: The trial's name.
        rung: Index of the report.
        seconds: Time since the previous report.
        usd: Cost of that time.
        lost_usd: Cost of the steps that had to be repeated, at the price of the steps that count; None if their
            number is unknown.
        time: Unix seconds of the report; None if the line has no time.
    """

    trial: str
    rung: int
    seconds: float
    usd: float
    lost_usd: float | None
    time: float | None


@dataclass(frozen=True)
class CostPoint:
    """Dollars spent, dollars of lost work, and whether a machine was interrupted, as of one line."""

    time: float
    spent_usd: float
    lost_usd: float
    is_interruption: bool


@dataclass(frozen=True)
class Bill:
    """The sums of a ledger.

    Attributes:
        usd: Dollars spent on machines.
        on_demand_usd: Cost of the same machine time on demand; None if all machines are your own.
        machine_s: Seconds of all machines.
        assumed_usd: Dollars charged at worst for machines that a killed driver left open.
        refunded_usd: Refunds for spot machines that were interrupted in their first hour.
        lost_usd: Cost of lost work, where it is known.
        num_unknown: Reports for which the lost work is unknown.
        num_interruptions: Machines that were interrupted.
        trial_costs: The cost of every trial, report by report.
        history: The sums after every line that has a time.
    """

    usd: float
    on_demand_usd: float | None
    machine_s: float
    assumed_usd: float
    refunded_usd: float
    lost_usd: float
    num_unknown: int
    num_interruptions: int
    trial_costs: tuple[TrialCost, ...]
    history: tuple[CostPoint, ...]

    @property
    def outside_usd(self) -> float:
        """Dollars that no report accounts for, refunds aside: start-up, idle time, lost work."""
        return self.usd + self.refunded_usd - sum(cost.usd for cost in self.trial_costs)


def bill_of(entries: Sequence[Entry]) -> Bill:
    """Return the sums of a ledger's lines, which are in the order in which they were written."""
    nodes = [entry for entry in entries if entry["entry"] == NODE]
    many = [entry for entry in entries if entry["entry"] == ALL]
    costs = tuple(_trial_cost(entry) for entry in entries if entry["entry"] == "trial")
    is_own = all(entry["market"] == "own" for entry in nodes)
    on_demand_usd = sum(entry["seconds"] / 3600 * entry["worst_usd_per_hour"] for entry in nodes)
    on_demand_usd += sum(entry["on_demand_usd"] for entry in many)
    return Bill(
        usd=sum(entry["usd"] for entry in (*nodes, *many)),
        on_demand_usd=None if is_own else on_demand_usd,
        machine_s=sum(entry["seconds"] for entry in nodes)
        + sum(entry["seconds"] * entry["num"] for entry in many),
        assumed_usd=sum(entry["usd"] for entry in nodes if entry["why"].startswith(_ASSUMED)),
        refunded_usd=-sum(min(0.0, entry["usd"]) for entry in nodes),
        lost_usd=sum(cost.lost_usd or 0.0 for cost in costs),
        num_unknown=sum(cost.lost_usd is None for cost in costs),
        num_interruptions=sum(_is_interrupted(entry) for entry in nodes),
        trial_costs=costs,
        history=tuple(_history(entries)),
    )


def bad_entry(entries: Sequence[Entry]) -> tuple[int, str] | None:
    """Return the first entry that no ledger has, by its place from 0 and what must hold, or None.

    Amounts are finite numbers from 0. The only negative one is the refund of a spot machine that was interrupted in
    its first hour: it closes the machine and is what the machine was charged.
    """
    machines = OpenMachines()
    for number, entry in enumerate(entries):
        reason = _bad_amount(entry)
        if not reason and entry["entry"] == NODE:
            reason = _bad_node(entry, machines)
        elif not reason and entry["entry"] == ALL:
            reason = machines.problem(entry)
        if reason:
            return number, reason
        machines.add(entry)
    return None


# Kind of entry -> its amounts.
_AMOUNTS = {
    "node": ("seconds", "usd", "usd_per_hour", "worst_usd_per_hour"),
    "all": ("seconds", "usd", "on_demand_usd", "num"),
    "trial": ("seconds", "usd", "steps", "rung"),
}
_TEXTS = {"node": ("node", "market", "why"), "all": (), "trial": ("trial",)}


def _bad_amount(entry: Any) -> str:
    kind = None
    if isinstance(entry, dict):
        kind = entry.get("entry")
    if kind not in _AMOUNTS:
        return f"must be an entry of kind node, all or trial; it is {kind!r}"
    missing = next((name for name in _TEXTS[kind] if not isinstance(entry.get(name), str)), None)
    if missing is not None:
        return f"{missing}: must be text; it is {entry.get(missing)!r}"
    for name in _AMOUNTS[kind]:
        value = entry.get(name)
        is_number = (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
        if not is_number:
            return f"{name}: must be a finite number; it is {value!r}"
        if value < 0 and (kind, name) != ("node", "usd") and name not in ("steps", "seconds"):
            return f"{name}: must be a number from 0; it is {value!r}"
    return ""


def _bad_node(entry: Entry, machines: OpenMachines) -> str:
    node = entry["node"]
    usd = entry["usd"]
    attached = entry.get("attached_usd_per_hour", 0.0)
    if (
        isinstance(attached, bool)
        or not isinstance(attached, (int, float))
        or not 0 <= attached < math.inf
    ):
        return f"attached_usd_per_hour: must be a number from 0; it is {attached!r}"
    if not isinstance(entry.get("is_open"), bool):
        return f"is_open: must be true or false; it is {entry.get('is_open')!r}"
    if usd >= 0:
        return ""
    is_refund = (
        entry["why"].startswith(INTERRUPTED) and entry["market"] == "spot" and not entry["is_open"]
    )
    before = 0.0
    if is_refund:
        before = machines.charge(node).refundable_usd
    if not is_refund or abs(usd + before) > 1e-6 * max(1.0, before):
        return f"usd: must be a number from 0, or the refund of a machine's {before:.6g}; it is {usd!r}"
    return ""


def _trial_cost(entry: Entry) -> TrialCost:
    lost_usd: float | None = None
    if entry["steps_lost"] is not None and (entry["steps"] > 0 or entry["steps_lost"] == 0):
        lost_usd = entry["usd"] * entry["steps_lost"] / max(1, entry["steps"])
    return TrialCost(
        entry["trial"], entry["rung"], entry["seconds"], entry["usd"], lost_usd, entry.get("time")
    )


def _is_interrupted(entry: Entry) -> bool:
    return bool(entry["entry"] == "node" and entry["why"].startswith(INTERRUPTED))


def _history(entries: Iterable[Entry]) -> Iterable[CostPoint]:
    spent_usd = lost_usd = 0.0
    for entry in entries:
        if entry["entry"] in (NODE, ALL):
            spent_usd += entry["usd"]
        else:
            lost_usd += _trial_cost(entry).lost_usd or 0.0
        time: Any = entry.get("time")
        if time is not None:
            yield CostPoint(float(time), spent_usd, lost_usd, _is_interrupted(entry))


def bill_values(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the bill of a ledger's entries as plain values, with a row per trial."""
    bill = bill_of(entries)
    trials: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["entry"] == "trial":
            trial_sums = trials.setdefault(
                entry["trial"], {"rung": 0, "seconds": 0.0, "usd": 0.0, "steps": 0}
            )
            trial_sums["rung"] = max(trial_sums["rung"], entry["rung"])
            for name in ("seconds", "usd", "steps"):
                trial_sums[name] = round(trial_sums[name] + entry[name], 6)
    sums = {
        "spent_usd": bill.usd,
        "machine_hours": bill.machine_s / 3600,
        "outside_trials_usd": bill.outside_usd,
        "assumed_usd": bill.assumed_usd,
        "refunded_usd": bill.refunded_usd,
        "lost_usd": bill.lost_usd,
        "on_demand_usd": bill.on_demand_usd,
    }
    return {
        **{name: None if value is None else round(value, 6) for name, value in sums.items()},
        "trials": trials,
    }
