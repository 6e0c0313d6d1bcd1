"""Word vectors or states of each sentence -> one vector a sentence. Sentences are packed, so there is no padding.

Source: Tang and de Sa, 2018 (Multi-view), table 2; Conneau et al., 2017 (maximum over time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.kernels.packing import Bags, Packed

Pooling = Literal["last", "mean", "max", "min"]


@dataclass(frozen=True)
class States:
    """An encoder's states for every token of a batch.

    Attributes:
        values: One row a token, in any order [tokens, dim].
        rows: Sentence of each token [tokens].
        last: Each sentence's last state, of both directions where there are two [batch, dim].
    """

    values: Tensor
    rows: Tensor
    last: Tensor

    def pooled(self, pooling: Pooling) -> Tensor:
        """Return one vector a sentence [batch, dim]."""
        if pooling == "last":
            return self.last
        empty = self.values.new_zeros(len(self.last), self.values.shape[1])
        if pooling == "mean":
            counts = empty.new_zeros(len(self.last)).index_add_(0, self.rows, empty.new_ones(len(self.rows)))
            return empty.index_add(0, self.rows, self.values) / counts[:, None]
        index = self.rows[:, None].expand_as(self.values)
        reduce = "amax" if pooling == "max" else "amin"
        return empty.scatter_reduce(0, index, self.values, reduce=reduce, include_self=False)

    def concatenated(self, poolings: tuple[Pooling, ...] | list[Pooling]) -> Tensor:
        """Return several poolings concatenated [batch, len(poolings) * dim]."""
        return torch.cat([self.pooled(pooling) for pooling in poolings], dim=1)


def token_rows(packed: Packed) -> Tensor:
    """Return the sentence of each time-major token, as an index into the given order [tokens]."""
    return torch.cat([packed.order[:batch] for batch in packed.batch_sizes])


def word_sums(bags: Bags, vectors: Tensor) -> Tensor:
    """Return the sum of the words of every row [rows, dim], from vectors of the distinct words [distinct, dim]."""
    sums: Tensor = _WordSums.apply(vectors, bags)  # type: ignore[no-untyped-call]
    return sums


def word_means(packed: Packed, vectors: Tensor) -> Tensor:
    """Return the mean of the words of every sentence [batch, dim], from vectors of distinct words [distinct, dim]."""
    return word_sums(packed.sentences, vectors) / packed.sentences.lengths[:, None]


class _WordSums(torch.autograd.Function):
    """Sums of words whose gradient is computed as sums of rows.

    A word's gradient is the sum of the gradients of the rows that contain it, so forward and backward are the same
    operation. Torch's gradient sorts the tokens by word and adds to each word's row token by token.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, bags: Bags) -> Tensor:
        ctx.bags = bags
        return _sum_bags(bags, vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum_bags(ctx.bags.by_word, gradient.contiguous()), None


def _sum_bags(bags: Bags, vectors: Tensor) -> Tensor:
    return functional.embedding_bag(bags.tokens, vectors, bags.starts, mode="sum", per_sample_weights=bags.weights)
