"""The reports of a run and its outcome: plain values, stored in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from raysent.errors import ArtifactError
from raysent.models.files import verify_files
from raysent.storage import address_of, file_sha256, read_json, read_json_lines, write_json
from raysent.storage.layout import (
    MODEL_FILE,
    MODEL_REPORT_FILE,
    OUTCOME_FILE,
    REPORTS_FILE,
    RUN_FILE,
)
from raysent.training.run import RunConfig, load_run

Status = Literal["finished", "stopped", "nan"]

_OR_AGAIN = "; the same command with another run folder makes it again"


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


def save_outcome(outcome: Outcome, folder: Path, *, key: str) -> None:
    """Write the outcome of the run that `key` identifies."""
    write_json(
        folder / OUTCOME_FILE,
        {"run": key, "reports": _hash_of_reports(folder), **asdict(outcome)},
    )


def load_outcome(folder: Path, *, key: str) -> Outcome | None:
    """Return the outcome of a run's folder, or None if the run has not ended.

    Raises:
        ArtifactError: If the file is of another run, damaged or of another kind, or the reports are not the run's.
    """
    path = folder / OUTCOME_FILE
    if not path.exists():
        return None
    record = read_json(path)
    if not isinstance(record, dict) or record.pop("run", None) != key:
        raise ArtifactError(
            f"{path}: of a run with another configuration; name another folder or remove this one"
        )
    # Outcomes of earlier versions have no hash of the reports.
    if record.pop("reports", None) not in (None, _hash_of_reports(folder)):
        raise ArtifactError(
            f"{address_of(folder / REPORTS_FILE)}: changed since the run ended; restore it{_OR_AGAIN}"
        )
    try:
        return Outcome(**record)
    except TypeError as error:
        raise ArtifactError(f"{path}: not an outcome ({error}); remove it and resume") from None


def _hash_of_reports(folder: Path) -> str:
    """Return the SHA-256 of a run's reports; empty where it has none."""
    path = folder / REPORTS_FILE
    return file_sha256(path) if path.exists() else ""


def ended_outcome(folder: Path, *, key: str) -> Outcome | None:
    """Return the outcome of a run that is not trained again; None if it has not ended, or was stopped.

    Raises:
        ArtifactError: As `load_outcome`, or if a file of the run's model is missing or damaged.
    """
    outcome = load_outcome(folder, key=key)
    if outcome is None or outcome.status == "stopped":
        return None
    if outcome.step:
        try:
            verify_files(folder)
        except ArtifactError as error:
            where = address_of(folder)
            raise ArtifactError(
                f"{where}: a finished run must have its model: {error}{_OR_AGAIN}"
            ) from None
    return outcome


def save_model_report(report: Report, folder: Path) -> None:
    """Record that the model of a run's folder is the one of a report."""
    write_json(
        folder / MODEL_REPORT_FILE,
        {**asdict(report), "model": file_sha256(folder / MODEL_FILE)},
    )


def load_model_report(folder: Path) -> Report | None:
    """Return the report whose model is in a run's folder; None if there is no such model, or another one.

    Raises:
        ArtifactError: If the file is not a report.
    """
    path = folder / MODEL_REPORT_FILE
    if not path.exists() or not (folder / MODEL_FILE).is_file():
        return None
    record = read_json(path)
    try:
        model_sha256 = record.pop("model")
        if model_sha256 != file_sha256(folder / MODEL_FILE):
            # A process that ended between the two files leaves the report of an older model.
            return None
        return Report(**record)
    except (AttributeError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{address_of(path)}: not the report of a model ({error}); restore it"
        ) from None


def load_reports(folder: Path) -> list[Report]:
    """Return the reports of a run's folder in order; empty if it has not reported.

    Raises:
        ArtifactError: If a line other than an incomplete last one is not a report.
    """
    path = folder / REPORTS_FILE
    if not path.exists():
        return []
    try:
        return [Report(**report) for report in read_json_lines(path, is_plain=True)]
    except TypeError as error:
        raise ArtifactError(
            f"{address_of(path)}: not the reports of a run ({error}); restore it"
        ) from None


@dataclass(frozen=True)
class RecordedTraining:
    """The folder of a training, finished or not.

    Attributes:
        folder: The folder.
        config: What is trained, and how.
        versions: Package -> version that trained it.
        reports: The reports so far, in order.
        outcome: How it ended; None if it has not ended.
    """

    folder: Path
    config: RunConfig
    versions: Mapping[str, str]
    reports: tuple[Report, ...]
    outcome: Outcome | None


def read_training(folder: Path) -> RecordedTraining:
    """Read the folder of a training.

    Raises:
        ArtifactError: If the folder is not that of a training, or a file in it is damaged.
    """
    config = load_run(folder)
    versions = read_json(folder / RUN_FILE).get("versions", {})
    outcome = load_outcome(folder, key=config.key)
    return RecordedTraining(folder, config, versions, tuple(load_reports(folder)), outcome)
