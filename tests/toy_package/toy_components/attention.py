"""Toy attention: one head of self-attention over each sentence, then the mean of its words."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.kernels.packing import Packed
from raysent.models.embeddings import Tables
from raysent.models.encoders import Tower, WordEncoderConfig


class Config(WordEncoderConfig):
    """Settings of the attention.

    Attributes:
        width: Size of queries, keys, values and of the vector.
    """

    type: Literal["toy_attention"] = "toy_attention"
    width: int = 8

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.width


class Encoder(Tower):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)
        self.queries, self.keys, self.values = (
            nn.Parameter(torch.empty(config.width, config.embedding.dim)) for _ in range(3)
        )
        if tables.sets_values:
            for weight in (self.queries, self.keys, self.values):
                nn.init.uniform_(weight, -0.1, 0.1, generator=tables.generator)

    def project(self, words: Tensor) -> Tensor:
        """Return queries, keys and values of each distinct word [distinct, 3, width]."""
        vectors = self.words(words)
        mapped = [
            functional.linear(vectors, weight) for weight in (self.queries, self.keys, self.values)
        ]
        return torch.stack(mapped, dim=1)

    def read(self, packed: Packed, projected: Tensor) -> Tensor:
        """Return the vectors [batch, width], sentence by sentence."""
        starts = packed.sentence_starts.tolist()
        ends = [*starts[1:], len(packed.sentence_tokens)]
        return torch.stack(
            [
                self._sentence(projected[packed.sentence_tokens[start:end]])
                for start, end in zip(starts, ends, strict=True)
            ]
        )

    def _sentence(self, words: Tensor) -> Tensor:
        """Return the vector [width] of a sentence from its words [tokens, 3, width]."""
        queries, keys, values = words.unbind(dim=1)
        weights = torch.softmax(queries @ keys.T / keys.shape[1] ** 0.5, dim=1)
        return (weights @ values).mean(dim=0)
