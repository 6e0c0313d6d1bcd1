"""What Optuna's samplers see of a long sweep: the best trials, the latest ones, and those under way.

A sampler reads its whole history at every draw, so that a draw of trial 10,000 would take a hundred times as long as
one of trial 100. Up to `NUM_BEST + NUM_LATEST` trials nothing is left out.
"""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Container, Sequence

from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

# TPE holds a tenth of what it sees for good, so all of these are among the best 25; the rest says what to avoid.
NUM_BEST, NUM_LATEST = 25, 75


class Window(InMemoryStorage):
    """Optuna's storage in memory, of one study, that shows a part of its trials when asked for all."""

    def __init__(self) -> None:
        super().__init__()
        self._open: set[int] = set()
        self._latest: deque[int] = deque(maxlen=NUM_LATEST)
        # The worst of the best first; of equal ones the latest.
        self._best: list[tuple[float, int]] = []
        # A trial that has ended changes no more.
        self._ended: dict[int, FrozenTrial] = {}
        self._sign = 1.0

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Begin a trial; it is shown until it has ended."""
        trial_id = super().create_new_trial(study_id, template_trial)
        self._open.add(trial_id)
        self._sign = -1.0 if self.get_study_directions(study_id)[0] == StudyDirection.MINIMIZE else 1.0
        return trial_id

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Take a trial's state; one that has ended is shown while it is among the best or the latest."""
        is_set = super().set_trial_state_values(trial_id, state, values)
        if is_set and state.is_finished():
            self._open.discard(trial_id)
            if state != TrialState.FAIL:
                self._latest.append(trial_id)
            if state == TrialState.COMPLETE and values:
                heapq.heappush(self._best, (self._sign * values[0], -trial_id))
                if len(self._best) > NUM_BEST:
                    heapq.heappop(self._best)
            self._show()
        return is_set

    def get_all_trials(
        self,
        study_id: int,  # noqa: ARG002 - there is one study
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials that are shown: those that have ended, then those under way, in order."""
        trials = [*self._ended.values(), *(self.get_trial(trial_id) for trial_id in sorted(self._open))]
        trials = [trial for trial in trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def _show(self) -> None:
        """Gather the trials that are shown of those that have ended."""
        shown = {*self._latest, *(-trial_id for _, trial_id in self._best)}
        self._ended = {trial_id: self._ended.get(trial_id) or self.get_trial(trial_id) for trial_id in sorted(shown)}
