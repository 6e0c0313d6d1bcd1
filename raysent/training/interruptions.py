"""Interruptions of a run: notices of them, and when to save a checkpoint.

A checkpoint between reports is due at the interval that loses least, at once after a notice, and just before the
deadline of a notice. A report has a checkpoint unless all saves would take too large a part of the time. `SaveTimer`
decides on plain values; `InterruptionMonitor` gives it the time, and asks for notices about once a second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# Seconds until this machine is reclaimed; None without a notice. Called equally often on every worker.
SecondsLeft = Callable[[], float | None]
ModelsAtReports = Literal["none", "some", "all"]

# Seconds between two checks for a notice, and between two heartbeats.
CHECK_INTERVAL_S = 1.0
# How fast a checkpoint is written before one has been measured: to a bucket, or on a busy machine.
_FIRST_BYTES_PER_S = 5e7
# A report has a checkpoint if all saves of the session then take at most this part of its time, and so many seconds
# more. A killed run then repeats at most 25 times as long as the save that it did without. What is left of a twentieth
# is for the model at the end. For a model before the end there are no more seconds.
_MAX_PART = 0.04
_ADVANCE_S = 0.25
# Two notices whose deadlines differ by less are the same notice.
_SAME_DEADLINE_S = 5.0


def no_notice() -> float | None:
    """Return None: this machine is never reclaimed."""
    return None


@dataclass(frozen=True)
class Interruptions:
    """The interruptions that a run must expect.

    Attributes:
        notice: Returns the seconds left on this machine, or on any machine of the run; None without a notice.
        per_hour: Interruptions without notice per hour of the run; 0 saves only at reports and after notices.
        models: Before which reports the model is saved, not only when the run has ended. ``all``: for a caller that
            reads it then. ``some``: the first, and later ones while all saves take little time: for a caller that may
            end the process between two reports and keep the last model.
    """

    notice: SecondsLeft = no_notice
    per_hour: float = 0.0
    models: ModelsAtReports = "none"


def best_interval_s(save_s: float, *, per_hour: float) -> float:
    """Return the seconds between two checkpoints that lose least: sqrt(2 C / lambda).

    Args:
        save_s: C, the duration of a save.
        per_hour: lambda, interruptions per hour; 0 gives infinity.

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006 refines it.
    """
    return math.sqrt(2 * save_s * 3600 / per_hour) if per_hour > 0 else math.inf


class SaveTimer:
    """Decides when a checkpoint between reports is due.

    A notice asks for two saves: one at once, and one just before the deadline, which keeps the training in between.
    """

    def __init__(self, *, per_hour: float, now_s: float, save_s: float = 1.0) -> None:
        """Start at `now_s`, on the caller's clock, with a guess of the seconds of a save."""
        self.save_s = self._model_s = save_s
        self._per_hour = per_hour
        self._started_s = self._saved_s = now_s
        self._spent_s = 0.0
        self._deadline_s: float | None = None
        self._saves_left = 0

    @property
    def margin_s(self) -> float:
        """Seconds before a deadline at which the last save starts: two saves and two checks."""
        return 2 * self.save_s + 2 * CHECK_INTERVAL_S

    def is_due(self, *, now_s: float, left_s: float | None) -> bool:
        """Return whether to save now.

        Args:
            now_s: On the caller's clock.
            left_s: Seconds until the machine is reclaimed; None without a notice.
        """
        self._update_deadline(now_s, left_s)
        if self._saves_left == 2 or (self._saves_left == 1 and left_s is not None and left_s <= self.margin_s):
            return True
        return now_s - self._saved_s >= best_interval_s(self.save_s, per_hour=self._per_hour)

    def is_due_at_report(self, *, now_s: float) -> bool:
        """Return whether a report has a checkpoint: if saves take little time, and after a notice always."""
        is_cheap = self._spent_s + self.save_s <= _ADVANCE_S + _MAX_PART * (now_s - self._started_s)
        return is_cheap or self._deadline_s is not None

    def is_model_due(self, *, now_s: float) -> bool:
        """Return whether a report that may have a model has one: if saves, and the one at the end, take little time."""
        return self._spent_s + 2 * self._model_s <= _MAX_PART * (now_s - self._started_s)

    def record_save(self, *, now_s: float, took_s: float, left_s: float | None = None) -> None:
        """Record that a checkpoint was saved in `took_s` seconds."""
        self._spent_s += took_s
        is_last = left_s is not None and left_s <= self.margin_s
        self._saves_left = 0 if is_last else min(self._saves_left, 1)
        self._saved_s, self.save_s = now_s, took_s

    def record_model(self, *, took_s: float) -> None:
        """Record that a model was saved in `took_s` seconds."""
        self._spent_s += took_s
        self._model_s = took_s

    def _update_deadline(self, now_s: float, left_s: float | None) -> None:
        if left_s is None:
            self._deadline_s, self._saves_left = None, 0
        elif self._deadline_s is None or abs(now_s + left_s - self._deadline_s) > _SAME_DEADLINE_S:
            self._deadline_s, self._saves_left = now_s + left_s, 2


class InterruptionMonitor:
    """Checks for interruptions about once a second, on the clock of one session of a run.

    Attributes:
        next_check: The step of the next check.
    """

    def __init__(self, interruptions: Interruptions, *, step: int, seconds: float, save_bytes: int = 0) -> None:
        """Start a session.

        Args:
            interruptions: The interruptions to expect.
            step: The first step of the session.
            seconds: Duration of the earlier sessions.
            save_bytes: Size of a checkpoint.
        """
        self.next_check = step + 1
        self._notice = interruptions.notice
        self._left_s: float | None = None
        self._checked_step, self._checked_s = step, time.perf_counter()
        self._started_s = self._checked_s - seconds
        guess_s = save_bytes / _FIRST_BYTES_PER_S
        self._timer = SaveTimer(per_hour=interruptions.per_hour, now_s=self._checked_s, save_s=guess_s)

    @property
    def seconds(self) -> float:
        """Duration of the run, over all sessions."""
        return time.perf_counter() - self._started_s

    def is_save_due(self) -> bool:
        """Check for a notice and return whether to save; every worker calls it."""
        self._left_s = self._notice()
        return self._timer.is_due(now_s=time.perf_counter(), left_s=self._left_s)

    def is_save_due_at_report(self) -> bool:
        """Return whether to save at a report; only the worker that saves needs the answer."""
        return self._timer.is_due_at_report(now_s=time.perf_counter())

    def is_model_due(self) -> bool:
        """Return whether a report that may have a model has one; only the worker that saves knows."""
        return self._timer.is_model_due(now_s=time.perf_counter())

    def next_check_step(self, step: int) -> int:
        """Return the step that is about a second away, by the speed since the last check."""
        now_s = time.perf_counter()
        done, took_s = step - self._checked_step, max(now_s - self._checked_s, 1e-6)
        self._checked_step, self._checked_s = step, now_s
        return step + max(1, min(int(done * CHECK_INTERVAL_S / took_s), 2 * done))

    def record_save(self, *, took_s: float) -> None:
        """Record that a checkpoint was saved in `took_s` seconds."""
        self._timer.record_save(now_s=time.perf_counter(), took_s=took_s, left_s=self._left_s)

    def record_model(self, *, took_s: float) -> None:
        """Record that a model was saved in `took_s` seconds."""
        self._timer.record_model(took_s=took_s)
