"""Ensembles of vectors, which stand beside those of answers: one probe on all members' vectors together.

Every member's vector is a block of unit length. Blocks stand one after another, or, where all are equally large and
their dimensions mean the same, as for two views of one model, their mean is taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from raysent.errors import ConfigError
from raysent.sentence_encoder import Float32, SentenceEncoder, check_sentences, normalize_rows


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
        if len(set(self.sizes)) > 1:
            given = ", ".join(map(str, self.sizes))
            raise ConfigError(f"average: members' vectors must be equally large; given {given}; use concatenation")

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of one block."""
        return self.sizes[0]

    def join(self, blocks: Sequence[Float32]) -> Float32:
        """Return the mean of the blocks."""
        mean: Float32 = np.mean(blocks, axis=0, dtype=np.float32)
        return mean


# By the name under which they stand in the table.
REPRESENTATIONS: Mapping[str, type[Blocks]] = {"concatenation": Concatenation, "average": Average}
