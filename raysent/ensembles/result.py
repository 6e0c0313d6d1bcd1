"""What an ensemble is and what it scores, in `ensemble.json`; what members cost; a student beside them, `front.json`.

Rows of a front are the student, the members and their ensemble, scored by the same probes on the same rows; differences
from the best member, which is chosen by validation, are paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pydantic

from raysent.config import StrictModel
from raysent.ensembles.answer import Answer
from raysent.ensembles.measures import MeanScores
from raysent.ensembles.methods import ANSWER, BY_LOG_LOSS, ENSEMBLE
from raysent.ensembles.task_ensemble import TaskEnsemble, score_methods, score_model
from raysent.errors import ArtifactError
from raysent.evaluation.baselines import LEXICAL, below_start
from raysent.evaluation.bootstrap import BootstrapEstimate, Interval, mean_estimate
from raysent.evaluation.members import Member
from raysent.evaluation.records import Costs, Record, costs_of
from raysent.models.schemes import find_scheme, split_path
from raysent.progress import SECONDS_PER_HOUR
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import ENSEMBLE_FILE, FRONT_FILE

KIND: Final = "raysent ensemble"
_STUDENT = "student"
_MEMBER = "member"


@dataclass(frozen=True)
class MeanOverTasks:
    """The ensemble over all tasks; correlations, which have no place in a mean of accuracies, count where all are.

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
        lines = []
        for task, of_task in self.tasks.items():
            if of_task.metric != "accuracy":
                metric = of_task.metric
                lines.append(
                    f"{task}: {self.method} fits the log loss, as it cannot fit {metric}; scores are {metric}"
                )
        return lines

    def gain_of_answer(self) -> float | None:
        """Return by how many points the method `answer` is above this one by cross-fitting; None where it is not."""
        of_answer = self.mean.scores.get(ANSWER)
        if of_answer is None:
            return None
        gain = of_answer.cross_fitted.value - self.mean.scores[ENSEMBLE].cross_fitted.value
        if gain > 0:
            return gain
        return None

    def below_start(self) -> dict[str, float]:
        """Return the points that a member loses against itself before training, by name, if it does."""
        lost = below_start({name: score.test for name, score in self.mean.scores.items()})
        return {name: points for name, points in lost.items() if name in self.members}

    def values(self) -> dict[str, Any]:
        """Return what it is worth as plain values, without what only loading needs."""
        needed = {"combination", "keys", "row_hash", "label_names", "calibration"}
        return self.model_dump(
            mode="json",
            exclude={"kind": True, "paths": True, "keys": True, "tasks": {"__all__": needed}},
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
        ensemble = EnsembleResult.model_validate(read_json(path), strict=False)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        about = ""
        if key:
            about = f" ({key}: {first['msg']})"
        raise ArtifactError(
            f"{address_of(path)}: not an ensemble of this version of raysent{about}; make it again"
        ) from None
    nested = [task for task, of_task in ensemble.tasks.items() if len(of_task.fold_weights) > 1]
    if ensemble.protocol == "fast" and nested:
        raise ArtifactError(
            f"{address_of(path)}: an older version scored it on rows of {', '.join(nested)} that may have chosen its "
            "members; make it again"
        )
    return ensemble


class MemberCost(StrictModel):
    """The cost of a member, or of several together.

    Attributes:
        encode_ms: Milliseconds to encode 1,000 sentences, on the machine that evaluated it.
        num_bytes: Size of the model's files; of TF-IDF, of its words and their weights; 0 for random word vectors.
        training_s: Seconds of training and validation; None if unknown.
    """

    encode_ms: float
    num_bytes: int
    training_s: float | None


def member_cost(member: Member, records: Sequence[Record]) -> MemberCost:
    """Return a member's cost; the time to encode is the median over its records, which measured it."""
    per_thousand = []
    for record in records:
        num_sentences = len(record.labels)
        if record.kind != "sentence":
            num_sentences *= 2
        seconds = record.about["seconds"]
        # Records of earlier versions timed the first use of a model.
        first_use = 1e6 * float(seconds["encode_s"]) / num_sentences
        per_thousand.append(float(seconds.get("encode_ms_per_1000", first_use)))
    encode_ms = float(np.median(per_thousand))
    scheme_and_argument = find_scheme(member.path)
    if scheme_and_argument is not None:
        scheme, argument = scheme_and_argument
        if hasattr(scheme, "num_bytes"):
            # It was pretrained elsewhere, for an unknown time.
            num_bytes = scheme.num_bytes(argument)
            return MemberCost(encode_ms=encode_ms, num_bytes=num_bytes, training_s=None)
    costs = _costs_of_member(member, records)
    training_s = None
    if costs.training_hours is not None:
        training_s = costs.training_hours * SECONDS_PER_HOUR
    return MemberCost(encode_ms=encode_ms, num_bytes=costs.num_bytes or 0, training_s=training_s)


def _costs_of_member(member: Member, records: Sequence[Record]) -> Costs:
    """Return the costs of a member that was not pretrained elsewhere."""
    if member.path in LEXICAL:
        # It is fitted on every task.
        return sum((Costs(**record.about["costs"]) for record in records), Costs(0, 0, 0.0))
    if find_scheme(member.path) is None:
        return costs_of(Path(member.path))
    path = split_path(member.path)[1]
    if path is None:
        return Costs(num_bytes=0, training_hours=0.0)
    return replace(costs_of(Path(path)), training_hours=0.0)


def total_cost(costs: Sequence[MemberCost]) -> MemberCost:
    """Return the cost of members together; training is unknown if it is unknown for one of them."""
    training_s: float | None = 0
    for cost in costs:
        if training_s is not None and cost.training_s is not None:
            training_s += cost.training_s
        else:
            training_s = None
    return MemberCost(
        encode_ms=sum(cost.encode_ms for cost in costs),
        num_bytes=sum(cost.num_bytes for cost in costs),
        training_s=training_s,
    )


class FrontRow(StrictModel):
    """One model on the tasks, beside the best member.

    Attributes:
        name: Its name.
        kind: `student`, `member` or `ensemble`.
        test: Mean test score over tasks, in percent.
        interval: 95 % bootstrap interval of `test`.
        encode_ms: Milliseconds to encode 1,000 sentences, warm; of an ensemble, all members'.
        is_on_front: Whether no other row is both faster and better.
        difference: `test` minus that of the best member, in points.
        difference_interval: 95 % bootstrap interval of `difference`, paired by row.
    """

    name: str
    kind: str
    test: float
    interval: Interval
    encode_ms: float | None
    is_on_front: bool = False
    difference: float
    difference_interval: Interval


def _on_front(rows: Iterable[FrontRow]) -> tuple[FrontRow, ...]:
    """Return rows by rising time to encode; one is on the front where it is better than all faster ones."""
    ordered: list[FrontRow] = []
    for row in sorted(rows, key=lambda row: (row.encode_ms or 0.0, -row.test)):
        is_on_front = all(row.test > faster.test for faster in ordered)
        ordered.append(row.model_copy(update={"is_on_front": is_on_front}))
    return tuple(ordered)


def write_front(folder: Path, front: Sequence[FrontRow]) -> None:
    """Write `front.json` into a student's folder.

    Raises:
        ArtifactError: If it cannot be written.
    """
    write_json(folder / FRONT_FILE, [row.model_dump(mode="json") for row in front])


def student_front(
    student: Member, records: Mapping[Member, Sequence[Record]], *, method: str = "validation"
) -> tuple[FrontRow, ...]:
    """Return the student, the members, and, of two or more members, their ensemble; by rising time to encode.

    Args:
        student: One of the keys of `records`.
        records: Records of the student and of the members, on the same tasks.
        method: How the ensemble combines its members on each task.

    Raises:
        ArtifactError: If the records cannot be compared.
    """
    members = [member for member in records if member != student]
    costs = {}
    tests = {}
    validations = {}
    for member, of_member in records.items():
        costs[member] = member_cost(member, of_member)
        tests[member] = mean_estimate([score_model(record).tested for record in of_member])
        validations[member] = float(np.mean([record.validation for record in of_member]))
    best = max(members, key=lambda member: validations[member])

    def row_of(name: str, kind: str, test: BootstrapEstimate, encode_ms: float) -> FrontRow:
        difference = test.minus(tests[best])
        return FrontRow(
            name=name,
            kind=kind,
            test=test.value,
            interval=test.interval,
            encode_ms=encode_ms,
            difference=difference.value,
            difference_interval=difference.interval,
        )

    rows = []
    for member in records:
        kind = _MEMBER
        if member == student:
            kind = _STUDENT
        rows.append(row_of(member.name, kind, tests[member], costs[member].encode_ms))
    if len(members) > 1:
        of_tasks = []
        for of_task in zip(*(records[member] for member in members), strict=True):
            of_tasks.append(score_methods(list(of_task), [method])[method].tested)
        cost = total_cost([costs[member] for member in members])
        rows.append(row_of(ENSEMBLE, ENSEMBLE, mean_estimate(of_tasks), cost.encode_ms))
    return _on_front(rows)
