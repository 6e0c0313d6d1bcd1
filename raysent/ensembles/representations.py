"""Ensembles of vectors: one encoder whose vectors join those of all members, for a single probe.

Every member's vector is a block of unit length. `Concatenation` puts the blocks side by side. `Average` takes their
mean, for blocks of equal size whose dimensions correspond, such as two views of one model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from raysent.ensembles.measures import TaskScores
from raysent.ensembles.task_ensemble import score_model
from raysent.errors import ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member
from raysent.evaluation.task import Task
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.storage import content_key


class Blocks(SentenceEncoder):
    """Several encoders whose unit vectors are joined."""

    def __init__(self, encoders: Sequence[SentenceEncoder]) -> None:
        """Hold the members' encoders, at least one."""
        self.encoders = tuple(encoders)

    @property
    def sizes(self) -> list[int]:
        """The sizes of the members' vectors."""
        return [encoder.get_sentence_embedding_dimension() for encoder in self.encoders]

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the joined vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        return self.join(
            [encoder.encode(sentences, batch_size=batch_size, normalize_embeddings=True) for encoder in self.encoders]
        )

    def use_device(self, device: torch.device) -> None:
        """Move the members."""
        for encoder in self.encoders:
            encoder.use_device(device)

    @classmethod
    def accepts(cls, sizes: Sequence[int]) -> bool:
        """Return whether this class can join vectors of these sizes."""
        return len(sizes) > 0

    @abstractmethod
    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return one vector per sentence, [sentences, dim], from the members' vectors, each [sentences, its dim]."""


class Concatenation(Blocks):
    """Blocks side by side."""

    def get_sentence_embedding_dimension(self) -> int:
        """Return the sum of the members' sizes."""
        return sum(self.sizes)

    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return the blocks side by side."""
        return np.concatenate(blocks, axis=1)


class Average(Blocks):
    """The mean of blocks of equal size."""

    def __init__(self, encoders: Sequence[SentenceEncoder]) -> None:
        """Hold the members' encoders.

        Raises:
            ConfigError: If their vectors differ in size.
        """
        super().__init__(encoders)
        if not self.accepts(self.sizes):
            given = ", ".join(map(str, self.sizes))
            raise ConfigError(f"average: members' vectors must have the same size; given {given}; use concatenation")

    @classmethod
    def accepts(cls, sizes: Sequence[int]) -> bool:
        """Return whether the sizes are equal."""
        return len(set(sizes)) == 1

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of one block."""
        return self.sizes[0]

    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return the mean of the blocks."""
        mean: Float32 = np.mean(blocks, axis=0, dtype=np.float32)
        return mean


# By their names in tables of scores.
REPRESENTATIONS: Mapping[str, type[Blocks]] = {"concatenation": Concatenation, "average": Average}


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
    sizes = [encoder.get_sentence_embedding_dimension() for encoder in encoders]
    found = {}
    for name, kind in REPRESENTATIONS.items():
        if kind.accepts(sizes):
            key = content_key(name, [member.key for member in members])
            joined = Member(name, name, key, kind(encoders))
            found[name] = [score_model(record) for record in evaluator.records([joined], tasks)[joined]]
    return found
