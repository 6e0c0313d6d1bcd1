"""Score against the time to encode of a student, beside what it was distilled from.

Rows of members, of their ensemble and of the student are scored by the same probes on the same rows; differences from
the best member, which is chosen by validation, are paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from raysent.config import StrictModel
from raysent.ensembles.costs import member_cost, total_cost
from raysent.ensembles.methods import ENSEMBLE
from raysent.ensembles.task_ensemble import score_methods, score_model
from raysent.evaluation.bootstrap import Interval, mean_estimate
from raysent.evaluation.members import Member
from raysent.evaluation.records import Record
from raysent.storage import write_json
from raysent.storage.layout import FRONT_FILE

STUDENT, MEMBER = "student", "member"


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
    """Return rows by rising time to encode, with the front marked."""
    timed: list[FrontRow] = []
    for row in sorted(rows, key=lambda one: (one.encode_ms or 0.0, -one.test)):
        timed.append(row.model_copy(update={"is_on_front": all(row.test > one.test for one in timed)}))
    return tuple(timed)


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
    return _on_front(
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
