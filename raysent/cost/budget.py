"""Whether a budget and a deadline admit more work. Plain values in and out; no clock, no Ray.

Work is admitted by reservation. These must fit into the budget together, with every machine at its on-demand price:
what is spent, what it would still cost to stop everything now, the cost of the work to admit, and a reserve for the
evaluation after training. Spending is bounded whatever dies, because each machine of a cluster ends on its own:

    machine                         ends on its own
    joined Ray, head or sweep dead  its sweep's permit was last renewed `permit_s` ago, seen `WATCH_S` later at most
    never joined, head dead         `ALONE_S` after its launch, seen `CHECK_S` later at most
    the head, sweep dead            `LEASE_S` after the last poll, seen `CHECK_S` later at most

and stops within `SLOW_STOP_S`. Admission pays for the second and the third in advance; the bound of the budget
(`BOUND_S`) covers the first and slow stops:

    permit_s + WATCH_S + SLOW_STOP_S - terminate <= BOUND_S
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

OnBudget = Literal["stop", "finish-rung"]

# The bill for training exceeds its part of the budget by at most the larger of this fraction of the budget and this
# time of the machines that are held. `cost/config.py` says what the time covers.
_BOUND_SHARE = 0.02
BOUND_S = 600.0
# The head terminates this long after the last poll of a sweep, unless 'raysent cluster up --keep' renews its lease.
LEASE_S = 3600.0
# A head has this lease from its start, so that it ends if its launch is never finished.
FIRST_LEASE_S = 1800.0
# Time between the end of a sweep and the end of its head, for processes that follow the sweep.
GRACE_S = 120.0
# A machine without Ray for this long terminates: it never joined, its Ray died, or the head is gone.
ALONE_S = 900.0
# The script that ends machines by their lease or without Ray runs this often.
CHECK_S = 60.0
# The longest that a permit's renewal and its end go unseen on a machine: polls of the watch, requests without answer.
WATCH_S = 25.0
# The longest that stopping a machine is expected to take, from the order to the last billed second.
SLOW_STOP_S = 600.0
# A permit is valid for this many polls of its sweep, and at least this long.
PERMIT_POLLS = 2
MIN_PERMIT_S = 30.0

# Ray and the processes of the first trials start in about this time, of which no trial gets a share.
START_S = 30.0
# One trial may take this part of the time, so that one that starts later ends too.
_MOST_OF_TIME = 0.8


@dataclass(frozen=True)
class Funds:
    """The spending of a sweep at one moment, from its ledger and its clock.

    Attributes:
        spent_usd: Dollars spent so far.
        commitment_usd: The most that stopping every machine now would still cost.
        hourly_usd: The most that all machines together cost an hour.
        elapsed_s: Seconds since the sweep started, pauses included.
    """

    spent_usd: float = 0.0
    commitment_usd: float = 0.0
    hourly_usd: float = 0.0
    elapsed_s: float = 0.0

    def values(self) -> dict[str, float]:
        """Return the rounded values that the journal stores. Decisions are made on these, so that replay is exact."""
        return {name: round(value, 6) for name, value in asdict(self).items()}

    def rounded(self) -> Funds:
        """Return these funds as the journal stores them."""
        return Funds(**self.values())


@dataclass(frozen=True)
class PlannedWork:
    """The trials of a sweep, among which a budget is divided.

    Attributes:
        num_trials: Trials.
        part: The part of one that is trained in the mean, as poor ones are stopped early; 1 where none is.
        at_once: Trials at the same time, on all machines together.
        num_machines: Machines.
        usd_per_hour: What one of them costs an hour at least; 0 for your own.
    """

    num_trials: int
    part: float
    at_once: int
    num_machines: int
    usd_per_hour: float

    @property
    def num_whole_trials(self) -> float:
        """As many whole trials take as long."""
        return self.num_trials * self.part

    @property
    def num_rounds(self) -> float:
        """How many whole trials follow one another."""
        if self.part == 1:
            return math.ceil(self.num_trials / self.at_once)
        return self.num_whole_trials / self.at_once


@dataclass(frozen=True)
class Budget:
    """The limits on a sweep's spending and time.

    Attributes:
        limit_usd: Dollars for the whole sweep; None for no limit.
        deadline_s: Seconds after the start at which everything must have stopped; None for no limit.
        max_hourly_usd: The most that all machines together may cost an hour, in dollars; None for no limit.
        reserve: Fraction of the budget that is kept for evaluation.
        window_s: The longest that stopping takes: from the poll that notices to the end of the machines.
        on_budget: What happens to running trials when the budget is spent: `stop` stops them at once; `finish-rung`
            continues a trial only if the budget covers its next rung.
        time_s: Seconds that trials may train, those of all sessions together; None for no limit. A trial that they end
            keeps what it has learned, so no time is kept for stopping.
    """

    limit_usd: float | None = None
    deadline_s: float | None = None
    max_hourly_usd: float | None = None
    reserve: float = 0.05
    window_s: float = 135.0
    on_budget: OnBudget = "stop"
    time_s: float | None = None

    def values(self) -> dict[str, Any]:
        """Return what the journal stores: what decisions are made by."""
        return {name: value for name, value in asdict(self).items() if name != "time_s"}

    @property
    def may_halt(self) -> bool:
        """Whether the money or the deadline may end trials between two reports."""
        return self.limit_usd is not None or self.deadline_s is not None

    def is_over(self, trained_s: float) -> bool:
        """Return whether trials have trained for all of their time, by the seconds of all sessions."""
        return self.time_s is not None and trained_s > self.time_s

    def with_time_as_deadline(self) -> Budget:
        """Return the budget of a sweep that trains from its start on, whose time ends it as the deadline does."""
        if self.time_s is None:
            return self
        # Training stops at a limit on time, not the time of stopping machines before it.
        ends_s = self.time_s + self.window_s
        if self.deadline_s is not None:
            ends_s = min(ends_s, self.deadline_s)
        return replace(self, deadline_s=ends_s)

    @property
    def training_usd(self) -> float:
        """Dollars for training: the budget without the reserve."""
        if self.limit_usd is None:
            return math.inf
        return self.limit_usd * (1 - self.reserve)

    def bound_usd(self, held_usd_per_hour: float) -> float:
        """Return by how much the bill for training may exceed its part of the budget, whatever ends or stops slowly.

        Args:
            held_usd_per_hour: The most that all machines that are held at once cost an hour.
        """
        return max(_BOUND_SHARE * (self.limit_usd or 0.0), BOUND_S / 3600 * held_usd_per_hour)

    def bound_sentence(self, held_usd_per_hour: float) -> str:
        """Return the cap and its bound as the plan of a sweep prints them; there is a limit."""
        return (
            f"of {self.limit_usd:.2f} usd, {self.training_usd:.2f} are for training; its bill exceeds that by at most "
            f"{self.bound_usd(held_usd_per_hour):.2f}: the larger of {_BOUND_SHARE:.0%} of the budget and "
            f"{BOUND_S / 60:.0f} minutes of all machines ({held_usd_per_hour:.2f} usd an hour)"
        )

    def refusal(self, funds: Funds, *, need_usd: float = 0.0) -> str:
        """Return why no more work is admitted; empty if it is admitted.

        Args:
            funds: The spending so far.
            need_usd: The cost beyond the commitment of the work to admit and of the work in progress.
        """
        due = funds.spent_usd + funds.commitment_usd + need_usd
        if due > self.training_usd:
            return (
                f"{funds.spent_usd:.2f} usd spent, {funds.commitment_usd + need_usd:.2f} committed; "
                f"{self.training_usd:.2f} of {self.limit_usd:.2f} are for training"
            )
        if self.deadline_s is not None and funds.elapsed_s + self.window_s > self.deadline_s:
            return f"the deadline is {max(0.0, self.deadline_s - funds.elapsed_s):.0f} s away"
        return ""

    def is_exhausted(self, funds: Funds, *, seconds: float, leaves_rest: bool = False) -> bool:
        """Return whether running all machines for `seconds` more would exceed the limit.

        Args:
            funds: The spending so far.
            seconds: Time until the next check.
            leaves_rest: Whether half of the reserve is left, as by the workers of a cluster to its head.
        """
        if self.limit_usd is None:
            return False
        most_usd = self.limit_usd
        if leaves_rest:
            most_usd *= 1 - self.reserve / 2
        return funds.spent_usd + funds.hourly_usd * seconds / 3600 > most_usd

    def seconds_left(self, funds: Funds) -> float:
        """Return for how many seconds no refusal is possible, whatever prices do. No check is needed before that."""
        seconds = math.inf
        if self.limit_usd is not None:
            room = self.training_usd - funds.spent_usd - funds.commitment_usd
            if funds.hourly_usd > 0:
                seconds = max(0.0, room / funds.hourly_usd * 3600)
            elif room < 0:
                seconds = 0.0
        if self.deadline_s is not None:
            seconds = min(seconds, max(0.0, self.deadline_s - self.window_s - funds.elapsed_s))
        return seconds

    def clock_limits(self) -> dict[str, float]:
        """Return the seconds on the clock in which trials train, by the limits that are set: `time`, `deadline`."""
        ends = {"time": self.time_s, "deadline": self.deadline_s}
        return {
            name: max(1.0, ends_s - START_S) for name, ends_s in ends.items() if ends_s is not None
        }

    def shares(self, work: PlannedWork) -> dict[str, float]:
        """Return for how many seconds one trial may train by each limit: `time`, `deadline` and `budget`, where set."""
        shares = {
            name: min(seconds / work.num_rounds, _MOST_OF_TIME * seconds)
            for name, seconds in self.clock_limits().items()
        }
        if self.limit_usd is not None and work.usd_per_hour:
            paid_s = self.training_usd / work.usd_per_hour * 3600
            machine_s = max(1.0, paid_s - START_S * work.num_machines)
            shares["budget"] = machine_s * work.at_once / work.num_machines / work.num_whole_trials
        return shares

    def fits_hourly(self, hourly_usd: float) -> bool:
        """Return whether machines that together cost `hourly_usd` an hour may run."""
        return self.max_hourly_usd is None or hourly_usd <= self.max_hourly_usd + 1e-9


# A sweep whose process lives and does not poll, as while a cloud does not answer, keeps its machines for this long at
# most; under a budget only while what the last poll knew leaves no doubt that it covers them (`Budget.seconds_left`).
STALL_S = 600.0


def permit_s(poll_s: float) -> float:
    """Return for how long a permit that is renewed at every poll is valid, in seconds."""
    return max(MIN_PERMIT_S, PERMIT_POLLS * poll_s)
