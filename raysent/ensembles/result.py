"""What an ensemble is and what it scores: the contents of `ensemble.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pydantic

from raysent.config import StrictModel
from raysent.ensembles.answer import Answer
from raysent.ensembles.costs import MemberCost
from raysent.ensembles.measures import MeanScores
from raysent.ensembles.methods import BY_LOG_LOSS
from raysent.ensembles.task_ensemble import TaskEnsemble
from raysent.errors import ArtifactError
from raysent.evaluation.baselines import below_start
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import ENSEMBLE_FILE

KIND: Final = "raysent ensemble"


@dataclass(frozen=True)
class MeanOverTasks:
    """The ensemble over all tasks.

    Attributes:
        scores: As those of each task.
        difference: The ensemble's test score minus that of the best member, in points; paired.
    """

    scores: Mapping[str, MeanScores]
    difference: BootstrapEstimate


class EnsembleResult(StrictModel):
    """An ensemble and its scores.

    Attributes:
        kind: Identifies the file.
        paths: Member -> its path, relative to the ensemble's folder or absolute; or a scheme's name.
        keys: Member -> key of its content.
        method: The method that makes the ensemble.
        protocol: The protocol that evaluated the members.
        members: Names, by falling mean validation score.
        best_member: The first of them.
        baselines: Names of the baselines that were evaluated beside the members.
        costs: Member -> its cost.
        tasks: Task -> the ensemble on it.
        mean: Over all tasks.
        answer: Of the model to take on a task: how it was chosen.
    """

    # Earlier versions wrote more.
    model_config = pydantic.ConfigDict(extra="ignore")

    kind: Literal["raysent ensemble"] = KIND
    paths: dict[str, str]
    keys: dict[str, str]
    method: str
    protocol: str
    members: tuple[str, ...]
    best_member: str
    baselines: tuple[str, ...] = ()
    costs: dict[str, MemberCost]
    tasks: dict[str, TaskEnsemble]
    mean: MeanOverTasks
    answer: Answer | None = None

    def remarks(self) -> list[str]:
        """Return a line for each task whose metric the method cannot fit."""
        if self.method not in BY_LOG_LOSS:
            return []
        return [
            f"{task}: {self.method} fits the log loss, as it cannot fit {found.metric}; scores are {found.metric}"
            for task, found in self.tasks.items()
            if found.metric != "accuracy"
        ]

    def below_start(self) -> dict[str, float]:
        """Return the points that a member loses against itself before training, by name, if it does."""
        lost = below_start({name: score.test for name, score in self.mean.scores.items()})
        return {name: points for name, points in lost.items() if name in self.members}

    def values(self) -> dict[str, Any]:
        """Return what it is worth as plain values, without what only loading needs."""
        needed = {"combination", "keys", "row_hash", "label_names", "calibration"}
        return self.model_dump(
            mode="json", exclude={"kind": True, "paths": True, "keys": True, "tasks": {"__all__": needed}}
        )


def write_result(folder: Path, result: EnsembleResult) -> Path:
    """Write `ensemble.json` and return its path.

    Raises:
        ArtifactError: If it cannot be written.
    """
    path = folder / ENSEMBLE_FILE
    write_json(path, result.model_dump(mode="json"))
    return path


def read_result(folder: Path) -> EnsembleResult:
    """Read `ensemble.json`.

    Raises:
        ArtifactError: If it is missing, truncated, of another kind, or of another version, or was scored on rows that
            chose its members.
    """
    path = folder / ENSEMBLE_FILE
    try:
        # JSON has lists in place of tuples.
        result = EnsembleResult.model_validate(read_json(path), strict=False)
    except pydantic.ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        about = f" ({where}: {error.errors()[0]['msg']})" if where else ""
        raise ArtifactError(
            f"{address_of(path)}: not an ensemble of this version of raysent{about}; make it again"
        ) from None
    nested = [task for task, found in result.tasks.items() if len(found.fold_weights) > 1]
    if result.protocol == "fast" and nested:
        raise ArtifactError(
            f"{address_of(path)}: an older version scored it on rows of {', '.join(nested)} that may have chosen its "
            "members; make it again"
        )
    return result
