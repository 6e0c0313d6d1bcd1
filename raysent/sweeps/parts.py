"""The best trial that learned labels, trained for every third of the rows and on all of them.

A trial of labels learns two thirds of the rows that train, and the third that it leaves out ranks it. The best one is
then trained three times more with the same settings: without each of the other thirds, and on all rows. So every row is
predicted by a model that has not learned it, and what is delivered has learned all of them (`evaluation.parts`).

    learned/0007/             the model that learned all rows, and `parts.json`
    learned/0007/without-1/   a model that did not learn the second third

The trainings are jobs like evaluations: they run side by side in processes of this machine or on a cluster, each in a
folder of its own, where one that was interrupted continues and one that has ended is not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysent.errors import TrainingError
from raysent.evaluation.evaluate import MapJobs
from raysent.evaluation.members import Member, model_key
from raysent.evaluation.parts import NUM_PARTS, write_parts
from raysent.parallel import Progress
from raysent.storage import open_folder, path_below, refresh, to_uri
from raysent.storage.layout import LEARNED_FOLDER
from raysent.sweeps.record import trial_folder
from raysent.sweeps.trial import Trial
from raysent.training.labels import LabelledRows
from raysent.training.loop import fit
from raysent.training.run import RunConfig, load_run

# The trainings beside the trial's own: the other parts, and all rows.
NUM_MORE = NUM_PARTS


@dataclass(frozen=True)
class PartTraining:
    """One more training of a trial's settings; a job as `MapJobs` runs it.

    Attributes:
        member: The trial.
        data: The texts that it learns.
        config: The settings, with the rows that it learns.
        folder: Address of its folder.
    """

    member: Member
    data: Sequence[str] = field(repr=False)
    config: RunConfig
    folder: str

    def run(self, *, load: Any = None) -> str:
        """Train, from the last checkpoint of its folder if there is one; return how it ended."""
        del load
        return fit(self.config, open_folder(self.folder, with_checkpoints=True)).status


def learns_parts(run: Path, trial: Trial) -> bool:
    """Return whether a trial learned a part of the rows of a task without validation rows of its own."""
    config = load_run(trial_folder(run, trial.number))
    return config.labels is not None and config.source is config.labels and has_left_out(config)


def has_left_out(config: RunConfig) -> bool:
    """Return whether a run of labels leaves out rows of its task, which has no validation rows of its own."""
    return config.labels is not None and LabelledRows(config.labels).has_parts


def train_parts(
    run: Path, trial: Trial, map_jobs: MapJobs, *, progress: Progress | None = None
) -> Path:
    """Train what a trial needs to predict every row, and return the folder of the model that learned all of them.

    Args:
        run: The sweep's folder.
        trial: A trial that has left out a part of the rows; see `learns_parts`.
        map_jobs: Runs the trainings.
        progress: Called with the trainings that have ended.

    Raises:
        TrainingError: If one of them diverges.
        BudgetError: If the budget ends; those that have ended stay, and a resume continues with the others.
    """
    first = trial_folder(run, trial.number)
    whole = path_below(run / LEARNED_FOLDER, trial.name)
    config = load_run(first)
    assert config.labels is not None
    held_out = config.labels.held_out
    parts = [first if part == held_out else whole / f"without-{part}" for part in range(NUM_PARTS)]
    member = Member(trial.name, str(first), model_key(str(first)))
    settings = {part: path for part, path in enumerate(parts) if part != held_out}
    jobs = [_training(member, config, part, path) for part, path in settings.items()]
    jobs.append(_training(member, config, None, whole))
    for ended, (place, status) in enumerate(map_jobs(jobs), start=1):
        if status != "finished":
            raise TrainingError(
                f"trial {trial.name}: a training of its settings on other rows ended as {status}: "
                f"{jobs[place].folder}"
            )
        if progress is not None:
            progress(f"trial {trial.name} on other rows", ended, len(jobs))
    refresh(whole)
    write_parts(whole, parts)
    return whole


def _training(
    member: Member, config: RunConfig, held_out: int | None, folder: Path
) -> PartTraining:
    values = config.model_dump(mode="json")
    values["labels"]["held_out"] = held_out
    values["training"]["num_reports"] = 1
    if held_out is None:  # no row is left to rank it
        values["validation"]["downstream"] = None
    changed = RunConfig.model_validate(values)
    assert changed.labels is not None
    return PartTraining(member, LabelledRows(changed.labels).train, changed, to_uri(folder))
