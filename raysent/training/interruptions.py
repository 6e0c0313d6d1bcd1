"""Interruptions of a run: notices of them, and when to save a checkpoint.

A checkpoint between reports is due at the interval that loses least, at once after a notice, and just before the
deadline of a notice. A report has a checkpoint unless all saves would take too large a part of the time.
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

    notice: SecondsLeft = lambda: None
    per_hour: float = 0.0
    models: ModelsAtReports = "none"


def best_interval_s(save_s: float, *, per_hour: float) -> float:
    """Return the seconds between two checkpoints that lose least: sqrt(2 C / lambda).

    Args:
        save_s: C, the duration of a save.
        per_hour: lambda, interruptions per hour; 0 gives infinity.

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006 refines it.
    """
    if per_hour <= 0:
        return math.inf
    return math.sqrt(2 * save_s * 3600 / per_hour)


class SaveTimer:
    """Decides when a session of a run saves a checkpoint between reports, asking for notices about once a second.

    A notice asks for two saves: one at once, and one just before the deadline, which keeps the training in between.

    Attributes:
        next_check: The step of the next check.
    """

    def __init__(
        self,
        interruptions: Interruptions,
        *,
        step: int = 0,
        seconds: float = 0.0,
        save_bytes: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start a session.

        Args:
            interruptions: The interruptions to expect.
            step: The first step of the session.
            seconds: Duration of the earlier sessions.
            save_bytes: Size of a checkpoint, for a guess of the seconds of a save.
            clock: Returns seconds.
        """
        self.next_check = step + 1
        self._notice = interruptions.notice
        self._per_hour = interruptions.per_hour
        self._clock = clock
        # Until one is measured, a save of the model counts as one of a checkpoint.
        self._save_s = save_bytes / _FIRST_BYTES_PER_S
        self._model_s = self._save_s
        self._checked_step = step
        self._started_s = clock()
        self._checked_s = self._started_s
        self._saved_s = self._started_s
        self._earlier_s = seconds
        self._spent_s = 0.0
        # The notice: seconds left at the last check, when they will have passed, and how many saves it still asks for.
        self._left_s: float | None = None
        self._deadline_s: float | None = None
        self._saves_left = 0

    @property
    def seconds(self) -> float:
        """Duration of the run, over all sessions."""
        return self._earlier_s + self._clock() - self._started_s

    def is_due(self) -> bool:
        """Check for a notice and return whether to save; every worker calls it."""
        now_s = self._clock()
        left_s = self._notice()
        if left_s is None:
            self._deadline_s = None
            self._saves_left = 0
        elif self._deadline_s is None or abs(now_s + left_s - self._deadline_s) > _SAME_DEADLINE_S:
            self._deadline_s = now_s + left_s
            self._saves_left = 2
        self._left_s = left_s
        if self._saves_left == 2 or (self._saves_left == 1 and self._is_last):
            return True
        return now_s - self._saved_s >= best_interval_s(self._save_s, per_hour=self._per_hour)

    @property
    def _is_last(self) -> bool:
        """Whether a save that starts now is the last before a deadline: two saves and two checks are left until it."""
        return self._left_s is not None and self._left_s <= 2 * self._save_s + 2 * CHECK_INTERVAL_S

    def is_due_at_report(self) -> bool:
        """Return whether to save at a report: if saves take little time, and after a notice always."""
        session_s = self._clock() - self._started_s
        is_cheap = self._spent_s + self._save_s <= _ADVANCE_S + _MAX_PART * session_s
        return is_cheap or self._deadline_s is not None

    def is_model_due(self) -> bool:
        """Return whether a report that may have a model has one: if saves, and the one at the end, take little time."""
        session_s = self._clock() - self._started_s
        return self._spent_s + 2 * self._model_s <= _MAX_PART * session_s

    def next_check_step(self, step: int) -> int:
        """Return the step that is about a second away, by the speed since the last check."""
        now_s = self._clock()
        num_steps = step - self._checked_step
        took_s = max(now_s - self._checked_s, 1e-6)
        self._checked_step = step
        self._checked_s = now_s
        num_in_interval = int(num_steps * CHECK_INTERVAL_S / took_s)
        # At most twice as many, because the time of a few steps says little.
        return step + max(1, min(num_in_interval, 2 * num_steps))

    def record_save(self, *, took_s: float) -> None:
        """Record that a checkpoint was saved in `took_s` seconds."""
        self._spent_s += took_s
        self._saves_left = 0 if self._is_last else min(self._saves_left, 1)
        self._saved_s = self._clock()
        self._save_s = took_s

    def record_model(self, *, took_s: float) -> None:
        """Record that a model was saved in `took_s` seconds."""
        self._spent_s += took_s
        self._model_s = took_s
