"""What trackers get of a sweep: its journal, afterwards or while it runs, and the scores of its evaluation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from raysent.ensembles import ENSEMBLE, EnsembleResult, answer_lines, read_answers, read_result
from raysent.storage import open_folder, refresh
from raysent.storage.layout import ENSEMBLE_FILE, REPORT_FILE
from raysent.sweeps import read_events
from raysent.sweeps.trackers import evaluated_event
from raysent.sweeps.trackers import track as track_events

if TYPE_CHECKING:
    from raysent.sweeps import Event

_POLL_S = 2.0


def track(run: str | Path, to: str, *, follow: bool = False) -> int:
    """Send the trials of a sweep to a tracker: TensorBoard, Optuna's storage, MLflow or Weights & Biases.

    The scores of the ensemble, its members and the baselines follow, if they were evaluated.

    Args:
        run: The run folder of a sweep, finished or not.
        to: The tracker and where it writes: ``tensorboard:DIR``, ``optuna:sqlite:///study.db``, ``mlflow:URI`` or
            ``wandb:PROJECT``.
        follow: Whether to wait for more events until the sweep has ended and its best trials are evaluated.

    Returns:
        The number of events of the sweep.

    Raises:
        RaysentError: If the folder is no sweep's, or the tracker is unknown, not installed or fails.
    """
    folder = open_folder(run)
    was_over = _completed_s(folder) is not None

    def evaluated() -> Event | None:
        while follow and not was_over and not _has_report(folder):
            time.sleep(_POLL_S)
            refresh(folder)
        return read_scores(folder)

    return track_events(folder, to, follow=follow, evaluated=evaluated)


def read_scores(folder: Path) -> Event | None:
    """Return the scores of a sweep's ensemble, of its members and baselines as an event for trackers; None without."""
    if not (folder / ENSEMBLE_FILE).is_file():
        return None
    result, answers = read_result(folder), read_answers(folder)
    return evaluated_event(
        folder,
        scores=_scores_by_model(result),
        members=list(result.members),
        best_member=result.best_member,
        method=result.method,
        summary="\n".join(answer_lines(answers)),
    )


def _scores_by_model(result: EnsembleResult) -> dict[str, dict[str, dict[str, float]]]:
    """Return name -> task -> the scores on validation and test rows."""
    names = [ENSEMBLE, *result.members, *result.baselines]
    return {
        name: {
            task: {"validation": found.scores[name].validation, "test": found.scores[name].test}
            for task, found in result.tasks.items()
            if name in found.scores
        }
        for name in names
    }


def _completed_s(folder: Path) -> float | None:
    """Return when the last session of a sweep ended it, in seconds since 1970; None if it has not."""
    last = next((one for one in reversed(list(read_events(folder))) if one["event"] in ("completed", "session")), None)
    return last["time"] if last is not None and last["event"] == "completed" else None


def _has_report(folder: Path) -> bool:
    """Return whether a report, which a sweep writes last, was written after the end of the training."""
    completed_s, report = _completed_s(folder), folder / REPORT_FILE
    return completed_s is not None and report.is_file() and report.stat().st_mtime >= completed_s


__all__ = ["read_scores", "track"]
