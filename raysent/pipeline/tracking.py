"""What trackers get of a sweep: its journal, and the scores of its evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raysent.ensembles import ENSEMBLE, EnsembleResult, answer_lines, read_answers, read_result
from raysent.storage import open_folder
from raysent.storage.layout import ENSEMBLE_FILE
from raysent.sweeps.trackers import evaluated_event
from raysent.sweeps.trackers import track as track_events

if TYPE_CHECKING:
    from raysent.sweeps import Event


def track(run: str | Path, to: str) -> int:
    """Send the trials of a sweep to a tracker: TensorBoard, MLflow or Weights & Biases.

    The scores of the ensemble, its members and the baselines follow, if they were evaluated.

    Args:
        run: The run folder of a sweep, finished or not.
        to: The tracker and where it writes: ``tensorboard:DIR``, ``mlflow:URI`` or ``wandb:PROJECT``.

    Returns:
        The number of events of the sweep.

    Raises:
        RaysentError: If the folder is no sweep's, or the tracker is unknown, not installed or fails.
    """
    folder = open_folder(run)
    return track_events(folder, to, evaluated=read_scores(folder))


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


__all__ = ["read_scores", "track"]
