"""A student beside what it was distilled from: score against the time to encode.

Rows of members, of their ensemble and of the student are scored by the same probes on the same rows; differences from
the best member, which is chosen by validation, are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raysent.ensembles.measures import mean_estimate
from raysent.ensembles.subsets import member_cost, total_cost
from raysent.ensembles.task_ensemble import score_model, task_ensemble
from raysent.evaluation.members import Member
from raysent.evaluation.records import Record

STUDENT, MEMBER, ENSEMBLE = "student", "member", "ensemble"


@dataclass(frozen=True)
class FrontRow:
    """One model on the tasks.

    Attributes:
        name: Its name.
        kind: `student`, `member` or `ensemble`.
        test: Mean test score over tasks, in percent.
        interval: 95 % bootstrap interval of `test`.
        difference: `test` minus that of the best member, in points.
        difference_interval: 95 % bootstrap interval of `difference`, paired by row.
        encode_ms: Milliseconds to encode 1,000 sentences, warm; of an ensemble, all members'.
        is_on_front: Whether no other row is both faster and better.
    """

    name: str
    kind: str
    test: float
    interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]
    encode_ms: float
    is_on_front: bool = False


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
    tests = {member: mean_estimate([score_model(one).test for one in found]) for member, found in records.items()}
    best = max(members, key=lambda member: float(np.mean([one.validation for one in records[member]])))
    rows = [
        (member.name, STUDENT if member == student else MEMBER, tests[member], costs[member].encode_ms)
        for member in records
    ]
    if len(members) > 1:
        of_tasks = zip(*(records[member] for member in members), strict=True)
        pooled = mean_estimate([task_ensemble(list(of_task), method=method).ensemble.test for of_task in of_tasks])
        rows.append((ENSEMBLE, ENSEMBLE, pooled, total_cost([costs[member] for member in members]).encode_ms))
    front: list[FrontRow] = []
    for name, kind, test, encode_ms in sorted(rows, key=lambda row: (row[3], -row[2].value)):
        difference = test.minus(tests[best])
        is_on_front = all(test.value > row.test for row in front)
        front.append(
            FrontRow(
                name, kind, test.value, test.interval, difference.value, difference.interval, encode_ms, is_on_front
            )
        )
    return tuple(front)
