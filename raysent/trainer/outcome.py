"""What a training run tells while it goes and when it ends: plain values, kept in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from raysent.artifacts import read_json, read_json_lines, write_json
from raysent.errors import ArtifactError
from raysent.run import OUTCOME_FILE, REPORTS_FILE

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
