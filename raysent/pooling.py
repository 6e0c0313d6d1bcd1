"""States of all words of each sentence -> one vector a sentence; padding is never there to be counted.

Source: Tang and de Sa, 2018 (Multi-view), table 2; Conneau et al., 2017 (maximum over time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raysent.packing import Packed

Pooling = Literal["last", "mean", "max", "min"]


@dataclass(frozen=True)
class States:
    """What an encoder has made of every word of a batch.

    Attributes:
        values: One row a token, sentences in any order [tokens, dim].
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
            counts = torch.bincount(self.rows, minlength=len(self.last))
            return empty.index_add(0, self.rows, self.values) / counts[:, None]
        index = self.rows[:, None].expand_as(self.values)
        reduce = "amax" if pooling == "max" else "amin"
        return empty.scatter_reduce(0, index, self.values, reduce=reduce, include_self=False)

    def concatenated(self, poolings: tuple[Pooling, ...] | list[Pooling]) -> Tensor:
        """Return several poolings side by side [batch, len(poolings) * dim]."""
        return torch.cat([self.pooled(pooling) for pooling in poolings], dim=1)


def token_rows(packed: Packed) -> Tensor:
    """Return the sentence of each time-major token, as numbers of the given order [tokens]."""
    return torch.cat([packed.order[:batch] for batch in packed.batch_sizes])


def sentence_rows(packed: Packed) -> Tensor:
    """Return the sentence of each of `sentence_tokens` [tokens]."""
    starts = packed.sentence_starts
    lengths = torch.diff(starts, append=starts.new_tensor([packed.num_tokens]))
    return torch.repeat_interleave(torch.arange(len(starts), device=starts.device), lengths)
