"""A run's look out for interruptions: how often, and on whose clock.

What a training run tells while it goes and when it ends: plain values, kept in the run's folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from raysent.errors import ArtifactError
from raysent.storage import read_json, read_json_lines, write_json
from raysent.storage.layout import OUTCOME_FILE, REPORTS_FILE
from raysent.training.checkpoint import LOOK_S, Interruptions, SaveTimer


class InterruptionMonitor:
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


Status = Literal["finished", "stopped", "nan"]


@dataclass(frozen=True)
class Report:
    """The state of a run after an equal share of its training.

    Attributes:
        index: Shares done, 1 to `num_reports`; where a run has fewer steps than reports, some are passed over.
        num_reports: Shares of the whole run.
        step: Steps done.
        num_steps: Steps of the whole run.
        sentences: Sentences trained on, over all workers; of triplets and pairs, their number.
        seconds: Time spent in training and validation, over all resumes.
        metrics: The figures of validation by name, and `loss`, the mean since the report before.
        steps_lost: Steps that were done, lost with their process and done again, over all resumes; as of the last sign
            of life, which a run leaves about once a second.
    """

    index: int
    num_reports: int
    step: int
    num_steps: int
    sentences: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    steps_lost: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: `finished`; `stopped` by a report's answer; or `nan`: loss or weights were no longer finite, and the
            model of the last good checkpoint was kept.
        step: Steps of the model that was kept.
        num_steps: Steps of the whole run.
        sentences: Sentences that the model was trained on.
        seconds: Time spent in training and validation, over all resumes.
        metrics: Those of the last report of the model that was kept; empty where there was none.
        pool: The validation pool's hash, sizes and chance levels.
        message: One line for people; empty where all went well.
    """

    status: Status
    step: int
    num_steps: int
    sentences: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    pool: dict[str, float | int | str] = field(default_factory=dict)
    message: str = ""


OnReport = Callable[[Report], bool]


def go_on(report: Report) -> bool:  # noqa: ARG001 - the form of an OnReport
    """Answer every report with: go on."""
    return True


def save_outcome(outcome: Outcome, folder: Path, *, key: str) -> None:
    """Write how the run named by `key` ended."""
    write_json(folder / OUTCOME_FILE, {"run": key, **asdict(outcome)})


def load_outcome(folder: Path, *, key: str) -> Outcome | None:
    """Return how the run of this folder ended, or None where it has not.

    Raises:
        ArtifactError: If the file is of another run, truncated or of another kind.
    """
    path = folder / OUTCOME_FILE
    if not path.exists():
        return None
    values = read_json(path)
    if not isinstance(values, dict) or values.pop("run", None) != key:
        raise ArtifactError(f"{path}: of a run with another configuration; name another folder or remove this one")
    try:
        return Outcome(**values)
    except TypeError as error:
        raise ArtifactError(f"{path}: not an outcome ({error}); remove it and resume") from None


def load_reports(folder: Path) -> list[Report]:
    """Return the reports of a run's folder in order; none where it has not reported."""
    path = folder / REPORTS_FILE
    if not path.exists():
        return []
    return [Report(**values) for values in read_json_lines(path)]
