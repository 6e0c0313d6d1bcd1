"""The reports of a run and its outcome: plain values, stored in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from raysent.errors import ArtifactError
from raysent.storage import read_json, read_json_lines, write_json
from raysent.storage.layout import OUTCOME_FILE, REPORTS_FILE

Status = Literal["finished", "stopped", "nan"]


@dataclass(frozen=True)
class Report:
    """The state of a run at a report; reports come after equal parts of the training.

    Attributes:
        index: Number of the report, 1 to `num_reports`; a run with fewer steps than reports skips some.
        num_reports: Reports of the whole run.
        step: Steps done.
        num_steps: Steps of the whole run.
        sentences: Sentences trained on, over all workers; for triplets and pairs, their number.
        seconds: Duration of training and validation, over all sessions.
        metrics: The metrics of validation by name, and `loss`, the mean since the previous report.
        steps_lost: Steps that were lost with their process and repeated, over all sessions, as far as heartbeats show,
            which a run writes about once a second.
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
        status: `finished`; `stopped` at a report; or `nan`: the loss or the weights were no longer finite, and the
            model of the last report was kept.
        step: Steps of the model that was kept.
        num_steps: Steps of the whole run.
        sentences: Sentences that the model was trained on.
        seconds: Duration of training and validation, over all sessions.
        metrics: The metrics of the last report; empty without a report.
        pool: The validation pool's hash, sizes and chance levels.
        message: One line of explanation; empty for a run without problems.
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
"""Called with each report; returns whether the run continues."""


def always_continue(report: Report) -> bool:  # noqa: ARG001 - the form of an OnReport
    """Return True."""
    return True


def save_outcome(outcome: Outcome, folder: Path, *, key: str) -> None:
    """Write the outcome of the run that `key` identifies."""
    write_json(folder / OUTCOME_FILE, {"run": key, **asdict(outcome)})


def load_outcome(folder: Path, *, key: str) -> Outcome | None:
    """Return the outcome of a run's folder, or None if the run has not ended.

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
    """Return the reports of a run's folder in order, or an empty list if there are none."""
    path = folder / REPORTS_FILE
    if not path.exists():
        return []
    return [Report(**values) for values in read_json_lines(path)]
