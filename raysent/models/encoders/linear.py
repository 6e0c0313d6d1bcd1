"""Linear: a map of each word's vector, pooled over the sentence; Multi-view's second view.

    y_t = W x_t,   W [dim, word dim] without bias
    g   = mean of y_t

Source: Tang and de Sa, 2018, section 2.
"""

from __future__ import annotations

import math
from typing import Literal, Self, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.kernels.packing import Packed
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import Tower, WordEncoderConfig
from raysent.models.layers import Pooling, States, word_means


class Config(WordEncoderConfig):
    """Settings of a linear map of word vectors.

    Attributes:
        hidden_size: Size of one tower's vector.
        pooling: How the mapped words become a sentence's vector in training.
        encode_pooling: Poolings of `encode`, concatenated; None is `pooling`.
        num_maps: Number of maps; `encode` returns the vectors of each, training reads the first. A second map is the
            inverse decoder of an objective that generates words as well as comparing vectors.
    """

    type: Literal["linear"] = "linear"
    hidden_size: int = pydantic.Field(default=2048, ge=1)
    pooling: Pooling = "mean"
    encode_pooling: list[Pooling] | None = pydantic.Field(default=None, min_length=1)
    num_maps: int = pydantic.Field(default=1, ge=1, le=2)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return two poolings, and two maps with poolings of their own; see `EncoderConfig.examples`."""
        words = EmbeddingConfig(dim=5)
        return (
            cls(embedding=words, hidden_size=6),
            cls(embedding=words, hidden_size=6, pooling="max"),
            cls(embedding=words, hidden_size=6, encode_pooling=["mean", "max"], num_maps=2),
        )

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words."""
        return f"linear map, {self.pooling} of words"

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.hidden_size

    @property
    def encoded_dims(self) -> tuple[int, ...]:
        """A block for each map, of every pooling's size together."""
        return (self.hidden_size * len(self.encode_pooling or [self.pooling]),) * self.num_maps


class Encoder(Tower):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)
        self._config = config
        size = config.embedding.dim
        scale = math.sqrt(2 / size)
        self.maps = nn.ParameterList(
            nn.Parameter(
                torch.empty(config.hidden_size, size).normal_(
                    0.0, scale, generator=tables.generator
                )
            )
            for _ in range(config.num_maps)
        )

    def project(self, words: Tensor) -> _Projected:
        """Return the distinct words; their images are computed when they are read."""
        return _Projected(cast("Tensor", self.words(words)), list(self.maps))

    def read(self, packed: Packed, projected: _Projected) -> Tensor:
        """Return the vectors of the first map [batch, dim]."""
        return projected.pooled(packed, 0, [self._config.pooling])

    def read_encoded(self, packed: Packed, projected: _Projected) -> Tensor:
        """Return the vectors of every map as `encode` pools them."""
        poolings = self._config.encode_pooling or [self._config.pooling]
        return torch.cat(
            [projected.pooled(packed, number, poolings) for number in range(len(self.maps))], dim=1
        )


class _Projected:
    """Distinct words and their images under each map, each computed once."""

    def __init__(self, vectors: Tensor, maps: list[nn.Parameter]) -> None:
        self._vectors = vectors
        self._maps = maps
        self._mapped: dict[int, Tensor] = {}

    def pooled(self, packed: Packed, number: int, poolings: list[Pooling]) -> Tensor:
        """Return the sentences under one map, poolings concatenated [batch, dims of all poolings]."""
        if poolings == ["mean"]:
            # The image of the mean is the mean of the images: one row for each sentence instead of each word.
            return functional.linear(word_means(packed, self._vectors), self._maps[number])
        if number not in self._mapped:
            self._mapped[number] = functional.linear(self._vectors, self._maps[number])
        return _states(packed, self._mapped[number]).concatenated(poolings)


def _states(packed: Packed, projected: Tensor) -> States:
    values = projected.index_select(0, packed.sentence_tokens)
    ends = packed.sentence_starts + packed.sentences.lengths - 1
    return States(values, packed.sentences.rows, values.index_select(0, ends))
