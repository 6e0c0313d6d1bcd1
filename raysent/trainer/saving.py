"""When to save between reports: now and then, at once after a notice, and just before its end.

Plain values in, plain values out: times come from the caller, and who gives notice is a callable of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

# Seconds until this machine is taken away; None while nobody has said so. Called equally often on every worker.
GiveNotice = Callable[[], float | None]

# How often to look for a notice, and to leave a sign of life.
LOOK_S = 1.0
# What a save is thought to take before one has been measured.
_FIRST_GUESS_S = 1.0
# Two notices whose deadlines differ by less are the same one.
_SAME_DEADLINE_S = 5.0


def no_notice() -> float | None:
    """Say that nobody takes this machine away."""
    return None


@dataclass(frozen=True)
class Interruptions:
    """What a run has to expect of its machines.

    Attributes:
        notice: Says how many seconds are left on this machine, or on any that this run trains on.
        per_hour: Interruptions that come without notice, per hour of the run; 0 saves at reports and notices only.
    """

    notice: GiveNotice = no_notice
    per_hour: float = 0.0


def best_interval_s(save_s: float, *, per_hour: float) -> float:
    """Return the seconds between two checkpoints that lose least: sqrt(2 C / lambda).

    Args:
        save_s: C, what a checkpoint takes.
        per_hour: lambda, interruptions per hour; 0 gives infinity.

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006 refines it.
    """
    return math.sqrt(2 * save_s * 3600 / per_hour) if per_hour > 0 else math.inf


class SaveTimer:
    """Says when a checkpoint between reports is due: now and then, at once after a notice, and just before its end.

    The second save after a notice keeps what was trained, and paid for, between the notice and the deadline.
    """

    def __init__(self, *, per_hour: float, now_s: float) -> None:
        """Begin at `now_s`, on the caller's clock, with nothing to lose."""
        self.save_s = _FIRST_GUESS_S
        self._per_hour = per_hour
        self._saved_s = now_s
        self._deadline_s: float | None = None
        self._saves_left = 0

    @property
    def margin_s(self) -> float:
        """How long before a deadline the last save begins: twice what it takes, and two looks."""
        return 2 * self.save_s + 2 * LOOK_S

    def is_due(self, *, now_s: float, left_s: float | None) -> bool:
        """Whether to save now.

        Args:
            now_s: On the caller's clock.
            left_s: Seconds until the machine goes; None where nobody has given notice.
        """
        self._hear(now_s, left_s)
        if self._saves_left == 2 or (self._saves_left == 1 and left_s is not None and left_s <= self.margin_s):
            return True
        return now_s - self._saved_s >= best_interval_s(self.save_s, per_hour=self._per_hour)

    def note_save(self, *, now_s: float, took_s: float, left_s: float | None = None) -> None:
        """Hear that a checkpoint has been written, and what it took."""
        is_last = left_s is not None and left_s <= self.margin_s
        self._saves_left = 0 if is_last else min(self._saves_left, 1)
        self._saved_s, self.save_s = now_s, took_s

    def _hear(self, now_s: float, left_s: float | None) -> None:
        """Begin anew with every notice; one that was taken back is forgotten."""
        if left_s is None:
            self._deadline_s, self._saves_left = None, 0
        elif self._deadline_s is None or abs(now_s + left_s - self._deadline_s) > _SAME_DEADLINE_S:
            self._deadline_s, self._saves_left = now_s + left_s, 2
