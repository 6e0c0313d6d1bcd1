"""Bag of words: the sum or the mean of a sentence's word vectors.

Source: Logeswaran and Lee, 2018, appendix B; the released code sums.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self, cast

import pydantic
from torch import Tensor

from raysent.kernels.packing import Packed
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import Tower, WordEncoderConfig
from raysent.models.layers import word_means, word_sums


class Config(WordEncoderConfig):
    """Settings of a bag of words; its vector has the size of a word vector.

    Attributes:
        pooling: Whether word vectors are summed or averaged.
    """

    reads_order: ClassVar[bool] = False

    type: Literal["bag"] = "bag"
    pooling: Literal["sum", "mean"] = "sum"

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return sums and means; see `EncoderConfig.examples`."""
        words = EmbeddingConfig(dim=5)
        return cls(embedding=words), cls(embedding=words, pooling="mean")

    @pydantic.model_validator(mode="after")
    def _something_is_trained(self) -> Self:
        if not self.embedding.trained:
            raise ValueError(
                "a bag of words has nothing to train but its word vectors: set embedding.trained: true"
            )
        return self

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words."""
        return "bag of words"

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.embedding.dim

    @property
    def activations_per_token(self) -> int:
        """Numbers of a word vector; sums of them are kept once a sentence."""
        return self.embedding.dim


class Encoder(Tower):
    """Vectors of distinct words -> their sums or means over the sentences."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)
        self._pooling = config.pooling

    def project(self, words: Tensor) -> Tensor:
        """Return the word vectors [distinct, dim]."""
        return cast("Tensor", self.words(words))

    def read(self, packed: Packed, projected: Tensor) -> Tensor:
        """Return the vectors [batch, dim]."""
        if self._pooling == "mean":
            return word_means(packed, projected)
        return word_sums(packed.sentences, projected)
