"""Which machines may run: launches admitted one by one under a budget. Plain values in and out; no clock, no Ray.

A cloud bills a machine from its launch, whether it ever trains or not. A launch is therefore admitted only if all of
this fits into the budget for training, at on-demand prices:

    spent + stopping every machine now + boot and stop of the machines to launch

A machine that has not joined Ray ends on its own only after a while if the head dies, and so does the head if the sweep
dies (`budget.py`): stopping them is counted with that time. A machine whose launch is admitted counts as running
from that moment, so that the same dollars are not admitted twice. A machine that ends is replaced only by a new
admission. A type that the cloud has none of is skipped for a while, and the type of the next priority takes its place.
While the cloud has no time, nothing is launched, so that throttling buys no other type. A type that the cloud will
never launch is not asked for again (`refusals.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from raysent.cost.budget import Budget, Funds
from raysent.cost.prices import MINIMUM_S
from raysent.cost.refusals import Refusal, is_quota, refusal_of

# How long a type is skipped after the cloud has refused it or its machine has not joined.
RETRY_S = 300.0
# How long nothing is launched after the cloud had no time for a request: doubled each time, up to the most.
_BACK_OFF_S = 15.0
_MAX_BACK_OFF_S = 240.0


@dataclass(frozen=True)
class MachineType:
    """A type of machine that may be launched.

    Attributes:
        name: Its name in the cluster file.
        worst_usd_per_hour: The most that it may cost: on demand.
        market: `own`, `on-demand` or `spot`.
        priority: Higher is launched first.
        max_machines: The most at the same time.
        num_slots: Trials at the same time on one machine.
    """

    name: str
    worst_usd_per_hour: float
    market: str = "on-demand"
    priority: int = 0
    max_machines: int = 1
    num_slots: int = 1

    def usd(self, seconds: float) -> float:
        """Return the most that `seconds` of a machine cost, its minimum included."""
        if self.market != "own":
            seconds = max(seconds, MINIMUM_S)
        return max(seconds, 0.0) / 3600 * self.worst_usd_per_hour


@dataclass
class _Counts:
    """The launches of one type over the whole sweep: admitted, and accepted by the cloud; and why it is skipped."""

    num_admitted: int = 0
    num_launched: int = 0
    skip_until_s: float = 0.0
    reason: str = ""
    refused_s: float = 0.0
    # Why it is never asked for again, and how many may run all the same: a quota may allow some.
    never: str = ""
    quota: int | None = None

    @property
    def num_in_flight(self) -> int:
        """Launches that are admitted and that the cloud has not accepted yet."""
        return self.num_admitted - self.num_launched

    def is_skipped(self, now_s: float) -> bool:
        """Return whether the type is skipped now; a clock that was set back does not skip it for longer."""
        return self.refused_s <= now_s < self.skip_until_s


@dataclass(frozen=True)
class Plan:
    """The result of one decision.

    Attributes:
        targets: Type -> machines that may be running, those in flight included.
        launches: Type -> launches that are admitted, over the whole sweep. Never shrinks, except by launches that are
            withdrawn before the cloud has accepted them.
        waiting: Why fewer machines may run than trials need; empty if enough may.
    """

    targets: Mapping[str, int] = field(default_factory=dict)
    launches: Mapping[str, int] = field(default_factory=dict)
    waiting: str = ""


def spare(
    slots: Mapping[str, int], taken: Mapping[str, int], *, num_needed: int, may_move: bool
) -> list[str]:
    """Return the machines that the last trials of a sweep do not need, those with the fewest trials first.

    Source: Misra et al. 2021, "RubberBand: Cloud-based Hyperparameter Tuning", EuroSys: fewer machines as fewer trials
    are left. Differs: it is decided as trials end, not planned for rungs that all end at once.

    Args:
        slots: Machine -> its slots.
        taken: Machine -> how many of them are taken.
        num_needed: Slots that all trials need, those included that have none at the moment.
        may_move: Whether trials may move to slots of other machines; else only machines without any are returned.
    """
    num_left = sum(slots.values())
    spare_machines = []
    for name in sorted(slots, key=lambda name: taken[name]):
        if num_left - slots[name] >= max(1, num_needed) and (may_move or not taken[name]):
            num_left -= slots[name]
            spare_machines.append(name)
    return spare_machines


class Admission:
    """Admits launches. At every poll, call `launched`, `refused` and `not_joined` for what happened, then `plan`."""

    def __init__(
        self,
        types: Sequence[MachineType],
        budget: Budget,
        *,
        boot_s: float,
        max_machines: int | None = None,
        retry_s: float = RETRY_S,
        alone_s: float = 0.0,
        head_usd: float = 0.0,
    ) -> None:
        """Start without machines.

        Args:
            types: The types that may be launched.
            budget: What the sweep may spend.
            boot_s: The longest that a machine is billed before it trains.
            max_machines: The most machines of all types at the same time; None for no limit.
            retry_s: How long a refused type is skipped.
            alone_s: How long a machine that has not joined lives if the head dies, beyond what stopping takes.
            head_usd: The most that the head costs if the sweep dies, beyond what stopping it costs.
        """
        self.types = {kind.name: kind for kind in types}
        self._budget = budget
        self._boot_s = boot_s
        self._retry_s = retry_s
        self._alone_s = alone_s
        self._head_usd = head_usd
        self._not_joined: Mapping[str, int] = {}
        self._max_machines = max_machines
        self._wait_s = 0.0
        self._wait_until_s = 0.0
        self._waits_since_s = 0.0
        self._wait_reason = ""
        self._counts = {name: _Counts() for name in self.types}

    @property
    def num_in_flight(self) -> int:
        """Launches that are admitted and that the cloud has not accepted yet."""
        return sum(counts.num_in_flight for counts in self._counts.values())

    def with_in_flight(self, funds: Funds) -> Funds:
        """Return funds whose commitment includes what ends late, and machines in flight, billed from their launch."""
        if not self.num_in_flight and not self._head_usd and not any(self._not_joined.values()):
            return funds
        usd = self._head_usd + sum(
            self.types[name].usd(self._budget.window_s + self._alone_s) * counts.num_in_flight
            + self.types[name].worst_usd_per_hour
            * self._alone_s
            / 3600
            * self._not_joined.get(name, 0)
            for name, counts in self._counts.items()
        )
        hourly = sum(
            self.types[name].worst_usd_per_hour * counts.num_in_flight
            for name, counts in self._counts.items()
        )
        return replace(
            funds, commitment_usd=funds.commitment_usd + usd, hourly_usd=funds.hourly_usd + hourly
        ).rounded()

    def launched(self, name: str, *, total: int) -> None:
        """Record how many machines of a type the cloud has launched, over the whole sweep."""
        counts = self._counts.get(name)
        if counts is not None:
            if total > counts.num_launched:
                self._wait_s = 0.0
            counts.num_launched = total
            counts.num_admitted = max(counts.num_admitted, total)

    def not_joined(self, counts: Mapping[str, int]) -> None:
        """Record how many machines of each type are billed and have not joined Ray."""
        self._not_joined = dict(counts)

    def refused(
        self, name: str, *, now_s: float, reason: str, refusal: Refusal | None = None
    ) -> None:
        """Record that the cloud refused a type, or that its machine did not join. Its launches are withdrawn.

        Args:
            name: The type.
            now_s: The time, on the caller's clock.
            reason: Why, as the cloud says it.
            refusal: The class of the refusal; None for the one of the reason.
        """
        counts = self._counts.get(name)
        if counts is None:
            return
        counts.num_admitted = counts.num_launched
        refusal = refusal or refusal_of(reason)
        if refusal == "again":
            self._wait_s = min(_MAX_BACK_OFF_S, 2 * self._wait_s or _BACK_OFF_S)
            self._wait_until_s = now_s + self._wait_s
            self._waits_since_s = now_s
            self._wait_reason = f"{name}: {reason}"
            return
        if refusal == "never":
            counts.never = reason
            counts.quota = None  # known when the next launch is planned, by what runs then
        counts.skip_until_s = now_s + self._retry_s
        counts.refused_s = now_s
        counts.reason = reason

    def stuck(self, running: Mapping[str, int]) -> str:
        """Return why no machine will ever be launched although none is running; empty while one may be.

        Args:
            running: Type -> machines that are billed now.
        """
        if sum(running.values()) or self.num_in_flight:
            return ""
        if not all(counts.never and not counts.quota for counts in self._counts.values()):
            return ""
        reasons = {name: counts.never for name, counts in self._counts.items()}
        return "AWS will launch no machine: " + "; ".join(
            f"{name}: {reason}" for name, reason in reasons.items()
        )

    def num_left(self, name: str) -> int:
        """Return how many more machines of a type the cloud may launch now."""
        return self._counts[name].num_in_flight

    def withdraw(self) -> Plan:
        """Withdraw every launch that the cloud has not accepted, as at the end of a sweep."""
        for counts in self._counts.values():
            counts.num_admitted = counts.num_launched
        return Plan(dict.fromkeys(self.types, 0), self._launches())

    def keep(self, running: Mapping[str, int], *, num_slots: int) -> Plan:
        """Withdraw every launch that the cloud has not accepted, and keep the cheapest machines with enough slots.

        Args:
            running: Type -> machines that are billed now.
            num_slots: Tasks at the same time.
        """
        targets = dict(self.withdraw().targets)
        slots_left = num_slots
        for kind in sorted(
            self.types.values(), key=lambda kind: kind.worst_usd_per_hour / kind.num_slots
        ):
            needed = -(-max(0, slots_left) // kind.num_slots)
            targets[kind.name] = min(running.get(kind.name, 0), needed)
            slots_left -= targets[kind.name] * kind.num_slots
        return Plan(targets, self._launches())

    def plan(
        self,
        *,
        now_s: float,
        num_slots: int,
        funds: Funds,
        running: Mapping[str, int],
        is_urgent: bool = False,
    ) -> Plan:
        """Admit launches until enough machines for `num_slots` trials are running, in flight or refused.

        Args:
            now_s: The time, on the caller's clock.
            num_slots: Trials at the same time that have work, those that are training included.
            funds: Spending and commitment of the running machines, without those in flight.
            running: Type -> machines that are billed now.
            is_urgent: Whether the deadline leaves no time for interruptions: on-demand types come first.
        """
        if self._waits_since_s <= now_s < self._wait_until_s:
            waiting = (
                f"{self._wait_reason}, {now_s - self._waits_since_s:.0f} s ago; the next launch is "
                f"tried in {self._wait_until_s - now_s:.0f} s"
            )
            return Plan(self._targets(running), self._launches(), waiting)
        free = num_slots - sum(
            self.types[name].num_slots * num for name, num in running.items() if name in self.types
        )
        free -= sum(
            self.types[name].num_slots * counts.num_in_flight
            for name, counts in self._counts.items()
        )
        reasons: dict[str, str] = {}
        order = sorted(
            self.types.values(),
            key=lambda kind: (is_urgent and kind.market == "spot", -kind.priority),
        )
        for kind in order:
            while free > 0:
                reason = self._refusal(kind, now_s=now_s, funds=funds, running=running)
                if reason:
                    reasons[kind.name] = reason
                    break
                self._counts[kind.name].num_admitted += 1
                free -= kind.num_slots
        waiting = ""
        if free > 0:
            waiting = self._waiting(reasons, now_s=now_s)
        return Plan(self._targets(running), self._launches(), waiting)

    def _targets(self, running: Mapping[str, int]) -> dict[str, int]:
        return {
            name: running.get(name, 0) + self._counts[name].num_in_flight for name in self.types
        }

    def _refusal(
        self, kind: MachineType, *, now_s: float, funds: Funds, running: Mapping[str, int]
    ) -> str:
        counts = self._counts[kind.name]
        if counts.never and is_quota(counts.never):
            # As many as ran when the quota was used up may run again.
            num_running = running.get(kind.name, 0)
            counts.quota = max(counts.quota or 0, num_running)
            if num_running + counts.num_in_flight >= counts.quota:
                return counts.never
        elif counts.never:
            return counts.never
        if counts.is_skipped(now_s):
            return counts.reason
        if running.get(kind.name, 0) + counts.num_in_flight >= kind.max_machines:
            return f"max_workers is {kind.max_machines}"
        if (
            self._max_machines is not None
            and sum(running.values()) + self.num_in_flight >= self._max_machines
        ):
            return f"max_workers is {self._max_machines}"
        due = self.with_in_flight(funds)
        if not self._budget.fits_hourly(due.hourly_usd + kind.worst_usd_per_hour):
            return f"max_hourly is {self._budget.max_hourly_usd:.2f} usd"
        return self._budget.refusal(due, need_usd=self.need_usd(kind))

    def need_usd(self, kind: MachineType) -> float:
        """Return what must be left for one more machine of a type."""
        return kind.usd(max(self._boot_s, self._alone_s) + self._budget.window_s)

    def _launches(self) -> dict[str, int]:
        return {name: counts.num_admitted for name, counts in self._counts.items()}

    def _waiting(self, reasons: Mapping[str, str], *, now_s: float) -> str:
        texts = []
        for name, reason in reasons.items():
            counts = self._counts[name]
            age = ""
            if counts.is_skipped(now_s):
                age = f", {now_s - counts.refused_s:.0f} s ago"
            texts.append(f"{name}: {reason}{age}")
        return "; ".join(texts)
