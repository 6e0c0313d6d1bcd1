"""Ensembles of vectors: one encoder whose vectors join those of all members, for a single probe.

Every member's vector is a block of unit length. `JoinedEncoders` puts the blocks side by side. `Average` takes
their mean, for blocks of equal size whose dimensions correspond, such as two views of one model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from raysent.ensembles.measures import TaskScores
from raysent.ensembles.task_ensemble import score_model
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member
from raysent.evaluation.task import Task
from raysent.models.sentence_encoder import Float32, JoinedEncoders
from raysent.storage import content_key


class Average(JoinedEncoders):
    """The mean of blocks of equal size."""

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of one block."""
        return self.sizes[0]

    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return the mean of the blocks."""
        mean: Float32 = np.mean(blocks, axis=0, dtype=np.float32)
        return mean


def score_joined_vectors(
    members: Sequence[Member], tasks: Iterable[str | Task] | None, *, evaluator: Evaluator
) -> dict[str, list[TaskScores]]:
    """Return the scores of probes on members' joined vectors on each task, by way of joining.

    Args:
        members: The ensemble's members.
        tasks: As for `Evaluator.records`.
        evaluator: Loads the members and evaluates their joined vectors.
    """
    encoders = [member.encoder or evaluator.load(member.path) for member in members]
    joined: dict[str, JoinedEncoders] = {"concatenation": JoinedEncoders(encoders)}
    if len(set(joined["concatenation"].sizes)) == 1:
        joined["average"] = Average(encoders)
    found = {}
    for name, encoder in joined.items():
        one = Member(name, name, content_key(name, [member.key for member in members]), encoder)
        found[name] = [score_model(record) for record in evaluator.records([one], tasks)[one]]
    return found
