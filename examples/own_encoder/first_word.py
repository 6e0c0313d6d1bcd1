"""The vector of a sentence's first word: the smallest encoder.

Put into a package that names this module as an entry point of the group ``raysent.encoders``, it is used by
``encoder: {type: first_word}``.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from raysent.kernels.packing import Packed
from raysent.models.embeddings import Tables
from raysent.models.encoders import Tower, WordEncoderConfig


class Config(WordEncoderConfig):
    """The first word's vector."""

    type: Literal["first_word"] = "first_word"

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.embedding.dim


class Encoder(Tower):
    """One tower: it is given the words of a whole batch, each distinct word once."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)

    def project(self, words: Tensor) -> Tensor:
        """Return what depends on the word alone [distinct, dim], for ids of the distinct words [distinct]."""
        return self.words(words)

    def read(self, packed: Packed, projected: Tensor) -> Tensor:
        """Return the vectors [batch, dim] in the order of the batch's sentences."""
        return projected[packed.sentence_tokens[packed.sentence_starts]]
