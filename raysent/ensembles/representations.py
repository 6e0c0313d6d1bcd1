"""Ensembles of vectors, which stand beside those of answers: one probe on all members' vectors together.

Every member's vector is a block of unit length. Blocks stand one after another, or, where all are equally large and
their dimensions mean the same, as for two views of one model, their mean is taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from raysent.ensembles.outcomes import Outcome, single_outcome
from raysent.errors import ConfigError
from raysent.evaluation.evaluate import Load
from raysent.evaluation.members import Member
from raysent.evaluation.records import Record
from raysent.models.sentence_encoder import Float32, SentenceEncoder, check_sentences, normalize_rows
from raysent.storage import content_key


class Blocks(SentenceEncoder):
    """Several encoders whose vectors, each of unit length, are joined."""

    def __init__(self, encoders: Sequence[SentenceEncoder]) -> None:
        """Take the members' encoders, at least one."""
        self.encoders = tuple(encoders)
        self.sizes = [encoder.get_sentence_embedding_dimension() for encoder in encoders]

    def encode(self, sentences: list[str], *, batch_size: int = 512, normalize_embeddings: bool = False) -> Float32:
        """Return the joined vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        check_sentences(sentences)
        blocks = [
            encoder.encode(sentences, batch_size=batch_size, normalize_embeddings=True) for encoder in self.encoders
        ]
        vectors = self.join(blocks)
        return normalize_rows(vectors) if normalize_embeddings else vectors

    @classmethod
    def suits(cls, sizes: Sequence[int]) -> bool:
        """Return whether vectors of these sizes can be joined so."""
        return len(sizes) > 0

    @abstractmethod
    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return one vector per sentence, [sentences, dim], from the members', each [sentences, its dim]."""


class Concatenation(Blocks):
    """Blocks one after another."""

    def get_sentence_embedding_dimension(self) -> int:
        """Return the sum of the members' sizes."""
        return sum(self.sizes)

    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return the blocks side by side."""
        return np.concatenate(blocks, axis=1)


class Average(Blocks):
    """The mean of equally large blocks."""

    def __init__(self, encoders: Sequence[SentenceEncoder]) -> None:
        """Take the members' encoders.

        Raises:
            ConfigError: If they are not equally large.
        """
        super().__init__(encoders)
        if not self.suits(self.sizes):
            given = ", ".join(map(str, self.sizes))
            raise ConfigError(f"average: members' vectors must be equally large; given {given}; use concatenation")

    @classmethod
    def suits(cls, sizes: Sequence[int]) -> bool:
        """Return whether the vectors are equally large."""
        return len(set(sizes)) == 1

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of one block."""
        return self.sizes[0]

    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return the mean of the blocks."""
        mean: Float32 = np.mean(blocks, axis=0, dtype=np.float32)
        return mean


# By the name under which they stand in the table.
REPRESENTATIONS: Mapping[str, type[Blocks]] = {"concatenation": Concatenation, "average": Average}


def judged_together(
    members: Sequence[Member], *, load: Load, judge: Callable[[Member, SentenceEncoder], Sequence[Record]]
) -> dict[str, list[Outcome]]:
    """Return how probes on members' joined vectors do on each task, by the way of joining; only ways that suit them.

    Args:
        members: The ensemble's members.
        load: Path -> encoder.
        judge: A name with its key, and the encoder of that name -> its records, a task each.
    """
    encoders = [load(member.path) for member in members]
    sizes = [encoder.get_sentence_embedding_dimension() for encoder in encoders]
    found = {}
    for name, way in REPRESENTATIONS.items():
        if way.suits(sizes):
            joined = Member(name, name, content_key(name, [member.key for member in members]))
            found[name] = [single_outcome(record) for record in judge(joined, way(encoders))]
    return found
