"""What members of an ensemble cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from raysent.config import StrictModel
from raysent.evaluation.baselines import LEXICAL
from raysent.evaluation.costs import Costs, costs_of
from raysent.evaluation.members import Member
from raysent.evaluation.records import Record
from raysent.models.schemes import find_scheme, split_path

_SECONDS_PER_HOUR = 3600.0


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
        num_sentences = len(record.labels) * (1 if record.kind == "sentence" else 2)
        seconds = record.about["seconds"]
        # Records of earlier versions timed the first use of a model.
        first_use = 1e6 * float(seconds["encode_s"]) / num_sentences
        per_thousand.append(float(seconds.get("encode_ms_per_1000", first_use)))
    encode_ms = float(np.median(per_thousand))
    found = find_scheme(member.path)
    if found is not None and hasattr(found[0], "num_bytes"):  # pretrained elsewhere, for an unknown time
        return MemberCost(encode_ms=encode_ms, num_bytes=found[0].num_bytes(found[1]), training_s=None)
    if member.path in LEXICAL:  # fitted on every task
        known = sum((Costs(**record.about["costs"]) for record in records), Costs(0, 0, 0.0))
    elif found is not None:
        place = split_path(member.path)[1]
        known = replace(Costs(num_bytes=0) if place is None else costs_of(Path(place)), training_hours=0.0)
    else:
        known = costs_of(Path(member.path))
    training_s = None if known.training_hours is None else known.training_hours * _SECONDS_PER_HOUR
    return MemberCost(encode_ms=encode_ms, num_bytes=known.num_bytes or 0, training_s=training_s)


def total_cost(costs: Sequence[MemberCost]) -> MemberCost:
    """Return the cost of members together; training is unknown if it is unknown for one of them."""
    training = [cost.training_s for cost in costs]
    known = [value for value in training if value is not None]
    return MemberCost(
        encode_ms=sum(cost.encode_ms for cost in costs),
        num_bytes=sum(cost.num_bytes for cost in costs),
        training_s=sum(known) if len(known) == len(training) else None,
    )
