"""How long a machine of a cluster lives, and is billed, after whatever ends it has died.

    machine                         ends on its own
    joined Ray, head or sweep dead  its sweep's permit was last renewed `permit_s` ago, seen `WATCH_S` later at most
    never joined, head dead         `ALONE_S` after its launch, seen `CHECK_S` later at most
    the head, sweep dead            `LEASE_S` after the last poll, seen `CHECK_S` later at most

and stops within `SLOW_STOP_S`. Admission pays for the second and the third in advance; the bound of the budget
(`budget.BOUND_S`) covers the first and slow stops:

    permit_s + WATCH_S + SLOW_STOP_S - terminate <= BOUND_S

Plain values, for the processes that set these times, for admission and for the simulator.
"""

from __future__ import annotations

# The head terminates this long after the last poll of a sweep, unless 'raysent cluster up --keep' renews its lease.
LEASE_S = 3600.0
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
PERMIT_POLLS, MIN_PERMIT_S = 2, 30.0


def permit_s(poll_s: float) -> float:
    """Return for how long a permit that is renewed at every poll is valid, in seconds."""
    return max(MIN_PERMIT_S, PERMIT_POLLS * poll_s)


def uncovered_s(poll_s: float, terminate_s: float) -> float:
    """Return the longest that a machine is billed beyond what admission has reserved for it, in seconds."""
    return permit_s(poll_s) + WATCH_S + SLOW_STOP_S - terminate_s
