"""A run's look out for interruptions: how often, and on whose clock."""

from __future__ import annotations

import time

from raysent.trainer.saving import LOOK_S, Interruptions, SaveTimer


class Lookout:
    """Looks out for interruptions about once a second, on the clock of one sitting of a run.

    Attributes:
        next_step: The step to look at next.
    """

    def __init__(self, interruptions: Interruptions, *, step: int, seconds: float) -> None:
        """Begin a sitting.

        Args:
            interruptions: Who gives notice of one, and how many come without.
            step: The step that is gone on from.
            seconds: What earlier sittings took.
        """
        self.next_step = step + 1
        self._notice = interruptions.notice
        self._left_s: float | None = None
        self._looked_at, self._looked_s = step, time.perf_counter()
        self._begun_s = self._looked_s - seconds
        self._timer = SaveTimer(per_hour=interruptions.per_hour, now_s=self._looked_s)

    @property
    def seconds(self) -> float:
        """Time spent on the run, over all sittings."""
        return time.perf_counter() - self._begun_s

    def is_save_due(self) -> bool:
        """Ask for a notice, on every worker, and whether to save."""
        self._left_s = self._notice()
        return self._timer.is_due(now_s=time.perf_counter(), left_s=self._left_s)

    def step_of_next_look(self, step: int) -> int:
        """Return the step that is about a second away, by the steps since the last look."""
        now_s = time.perf_counter()
        done, took_s = step - self._looked_at, max(now_s - self._looked_s, 1e-6)
        self._looked_at, self._looked_s = step, now_s
        return step + max(1, min(int(done * LOOK_S / took_s), 2 * done))

    def note_save(self, *, took_s: float) -> None:
        """Hear that a checkpoint has been written."""
        self._timer.note_save(now_s=time.perf_counter(), took_s=took_s, left_s=self._left_s)
