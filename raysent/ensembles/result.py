"""What an ensemble is and what it scores: the contents of `ensemble.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pydantic

from raysent.config import StrictModel
from raysent.ensembles.answer import Answer
from raysent.ensembles.measures import MeanScores
from raysent.ensembles.methods import BY_LOG_LOSS
from raysent.ensembles.selection import MemberCost, MemberSubset
from raysent.ensembles.task_ensemble import TaskEnsemble
from raysent.errors import ArtifactError
from raysent.evaluation.baselines import below_start
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import ENSEMBLE_FILE

KIND: Final = "raysent ensemble"


@dataclass(frozen=True)
class OverBaseline:
    """What training and combining gain over the baseline that is best on validation, in points of test score; paired.

    Attributes:
        baseline: Its name; a member may be one.
        model: The best member that is no baseline; None if all are.
        is_trained: Whether raysent trained it.
        best_model: Its score minus the baseline's.
        ensemble: The ensemble's score minus the baseline's.
        lexical: The lexical baseline that is best on validation; None if there is none, or a member is one.
        lexical_method: How the members are weighted with it; see `lexical_method`.
        with_lexical: Their score minus the baseline's.
    """

    baseline: str
    model: str | None
    is_trained: bool
    best_model: BootstrapEstimate | None
    ensemble: BootstrapEstimate
    lexical: str | None = None
    lexical_method: str = ""
    with_lexical: BootstrapEstimate | None = None

    def sentence(self, title: Callable[[str], str] = str) -> str:
        """Return what is gained in words; `title` returns how a model's name is shown."""
        gains = [f"combining {_gain(self.ensemble)}"]
        if self.model is not None and self.best_model is not None:
            name = title(self.model)
            gains.insert(0, f"{f'training ({name})' if self.is_trained else name} {_gain(self.best_model)}")
        if self.with_lexical is not None:
            gains.append(f"combining with {self.lexical} too (method {self.lexical_method}) {_gain(self.with_lexical)}")
        return f"Against {title(self.baseline)}, the best baseline on validation: {', '.join(gains)}"


def _gain(estimate: BootstrapEstimate) -> str:
    """Return a difference in words; a loss has no sign, as the word says it."""
    low, high = estimate.interval
    if high < 0:
        return f"loses {-estimate.value:.2f} points [{-high:.2f}, {-low:.2f}]"
    verb = "gains" if low > 0 else "buys nothing that the interval shows,"
    return f"{verb} {estimate.value:+.2f} points [{low:+.2f}, {high:+.2f}]"


@dataclass(frozen=True)
class MeanOverTasks:
    """The ensemble over all tasks.

    Attributes:
        scores: As those of each task.
        difference: The ensemble's test score minus that of the best member, in points; paired.
        over_baseline: Gains over the best baseline; None if no baseline was evaluated.
    """

    scores: Mapping[str, MeanScores]
    difference: BootstrapEstimate
    over_baseline: OverBaseline | None = None


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
        replaced: Tasks on which the best member predicts new sentences; empty unless the method is `guarded`.
        costs: Member -> its cost.
        choices: Subsets of the members, with costs and scores, by rising time to encode.
        tasks: Task -> the ensemble on it.
        mean: Over all tasks.
        answer: Of the model to take on a task: how it was chosen.
    """

    kind: Literal["raysent ensemble"] = KIND
    paths: dict[str, str]
    keys: dict[str, str]
    method: str
    protocol: str
    members: tuple[str, ...]
    best_member: str
    baselines: tuple[str, ...] = ()
    replaced: tuple[str, ...]
    costs: dict[str, MemberCost]
    choices: tuple[MemberSubset, ...]
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
