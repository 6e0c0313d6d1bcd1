"""Score against the time to encode: of a student beside what it was distilled from, and of an ensemble and its members.

Rows of members, of their ensemble and of the student are scored by the same probes on the same rows; differences from
the best member, which is chosen by validation, are paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pydantic

from raysent.config import StrictModel
from raysent.ensembles.costs import member_cost, total_cost
from raysent.ensembles.methods import ENSEMBLE
from raysent.ensembles.result import EnsembleResult
from raysent.ensembles.task_ensemble import score_methods, score_model
from raysent.errors import ArtifactError
from raysent.evaluation.bootstrap import Interval, mean_estimate
from raysent.evaluation.members import Member
from raysent.evaluation.records import Record
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import FRONT_FILE

STUDENT, MEMBER, BASELINE = "student", "member", "baseline"


class FrontPoint(StrictModel):
    """One model on the tasks.

    Attributes:
        name: Its name.
        kind: `student`, `member`, `ensemble` or `baseline`.
        test: Mean test score over tasks, in percent.
        interval: 95 % bootstrap interval of `test`.
        encode_ms: Milliseconds to encode 1,000 sentences, warm; of an ensemble, all members'. None for a model without
            vectors.
        is_on_front: Whether no other row is both faster and better.
    """

    name: str
    kind: str
    test: float
    interval: Interval
    encode_ms: float | None
    is_on_front: bool = False


class FrontRow(FrontPoint):
    """The same beside the best member.

    Attributes:
        difference: `test` minus that of the best member, in points.
        difference_interval: 95 % bootstrap interval of `difference`, paired by row.
    """

    difference: float
    difference_interval: Interval


Point = TypeVar("Point", bound=FrontPoint)


def on_front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return points by rising time to encode, and those of unknown time last, with the front marked."""
    timed: list[Point] = []
    others = []
    for point in sorted(points, key=lambda one: (one.encode_ms or 0.0, -one.test)):
        if point.encode_ms is None:
            others.append(point)
        else:
            timed.append(point.model_copy(update={"is_on_front": all(point.test > one.test for one in timed)}))
    return (*timed, *others)


def ensemble_front(result: EnsembleResult, encode_ms: Mapping[str, float]) -> tuple[FrontPoint, ...]:
    """Return an ensemble, its members and baselines.

    Args:
        result: The ensemble.
        encode_ms: Milliseconds to encode 1,000 sentences of baselines that have vectors.
    """
    known = {name: cost.encode_ms for name, cost in result.costs.items()}
    times: dict[str, float | None] = {ENSEMBLE: sum(known.values()), **known}
    times |= {name: encode_ms.get(name) for name in result.baselines}
    kinds = {ENSEMBLE: ENSEMBLE, **dict.fromkeys(result.members, MEMBER), **dict.fromkeys(result.baselines, BASELINE)}
    scores = result.mean.scores
    return on_front(
        FrontPoint(
            name=name, kind=kind, test=scores[name].test, interval=scores[name].interval, encode_ms=times.get(name)
        )
        for name, kind in kinds.items()
        if name in scores
    )


def write_front(folder: Path, front: Sequence[FrontRow]) -> None:
    """Write `front.json` into a student's folder.

    Raises:
        ArtifactError: If it cannot be written.
    """
    write_json(folder / FRONT_FILE, [row.model_dump(mode="json") for row in front])


def read_front(folder: Path) -> tuple[FrontRow, ...]:
    """Read `front.json`; nothing if there is none.

    Raises:
        ArtifactError: If it is damaged.
    """
    path = folder / FRONT_FILE
    if not path.is_file():
        return ()
    try:
        return tuple(pydantic.TypeAdapter(list[FrontRow]).validate_python(read_json(path), strict=False))
    except pydantic.ValidationError:
        raise ArtifactError(f"{address_of(path)}: not a student's front; distill again") from None


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
    costs = {member: member_cost(member, found) for member, found in records.items()}
    tests = {member: mean_estimate([score_model(one).tested for one in found]) for member, found in records.items()}
    best = max(members, key=lambda member: float(np.mean([one.validation for one in records[member]])))
    rows = [
        (member.name, STUDENT if member == student else MEMBER, tests[member], costs[member].encode_ms)
        for member in records
    ]
    if len(members) > 1:
        of_tasks = zip(*(records[member] for member in members), strict=True)
        pooled = mean_estimate([score_methods(list(of_task), [method])[method].tested for of_task in of_tasks])
        rows.append((ENSEMBLE, ENSEMBLE, pooled, total_cost([costs[member] for member in members]).encode_ms))
    return on_front(
        FrontRow(
            name=name,
            kind=kind,
            test=test.value,
            interval=test.interval,
            encode_ms=encode_ms,
            difference=test.minus(tests[best]).value,
            difference_interval=test.minus(tests[best]).interval,
        )
        for name, kind, test, encode_ms in rows
    )
