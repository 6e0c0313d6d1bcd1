"""What encoders and objectives are built of: layers with given initial values, pooling of states, and a penalty.

Pooling makes one vector a sentence of word vectors or states; sentences are packed, so there is no padding. The penalty
on parameters is 1/2 weight |P - P0|^2.

Source of pooling: Tang and de Sa, 2018 (Multi-view), table 2; Conneau et al., 2017 (maximum over time).
Source of the penalty: Wieting et al., 2016, equation 2; Jiao, Wang and Feng, 2018, sections 3.2 and 4.3; they halve it.
With initial values as P0 it is L2-SP (Li, Grandvalet and Davoine, 2018, "Explicit inductive bias").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.kernels.packing import Bags, Packed

Module = TypeVar("Module", bound=nn.Module)

_LEAST_NORM = 1e-10


def without_values(module: Callable[..., Module], *arguments: Any, **options: Any) -> Module:
    """Return a new module whose parameters have memory but no values: torch would draw them from its global generator.

    `torch.nn.utils.skip_init` does the same, but imports sympy, which takes a second of each process.
    """
    new_module = module(*arguments, **options, device="meta")
    for part in new_module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            memory = torch.empty(parameter.shape, dtype=parameter.dtype)
            setattr(part, name, nn.Parameter(memory))
    return new_module


def linear_layer(inputs: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """Return a layer with torch's default initial values: uniform within 1 / sqrt(inputs)."""
    layer = without_values(nn.Linear, inputs, outputs)
    limit = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        parameter.data.uniform_(-limit, limit, generator=generator)
    return layer


def unit(vectors: Tensor) -> Tensor:
    """Return vectors [batch, dim] with unit length, float32."""
    return functional.normalize(vectors.float(), dim=1, eps=_LEAST_NORM)


def spread(vectors: Tensor) -> Tensor:
    """Return the root of the mean over numbers of their variance over rows [rows, dim], a scalar above 0."""
    return vectors.var(dim=0, unbiased=False).mean().sqrt().clamp(min=1e-12)


class L2Penalty(nn.Module):
    """The penalty on parameters of other modules for their distance from zero, or from their initial values."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, weight: float, to: Literal["initial", "zero"]
    ) -> None:
        """Store the parameters' current values where these are the initial ones.

        Args:
            parameters: The parameters; those without gradient are ignored.
            weight: Factor of the penalty; 0 for none.
            to: `initial` penalizes the distance from the current values (L2-SP), `zero` the size (L2).
        """
        super().__init__()
        # A tuple, because the parameters belong to other modules.
        self._penalized = tuple(parameter for parameter in parameters if parameter.requires_grad)
        self._weight = weight
        self._is_initial = to == "initial" and weight > 0
        if self._is_initial:
            for number, parameter in enumerate(self._penalized):
                initial = parameter.detach().clone()
                self.register_buffer(f"initial_{number}", initial, persistent=False)

    @property
    def num_read(self) -> int:
        """Numbers that a step reads."""
        if not self._weight:
            return 0
        return sum(parameter.numel() for parameter in self._penalized)

    def forward(self) -> Tensor:
        """Return the penalty, a scalar."""
        if not self._penalized:
            return torch.zeros(())
        if not self._weight:
            return torch.zeros((), device=self._penalized[0].device)
        squares: list[Tensor] = []
        for number, parameter in enumerate(self._penalized):
            distance: Tensor = parameter
            if self._is_initial:
                distance = parameter - getattr(self, f"initial_{number}")
            squares.append(distance.square().sum())
        return self._weight / 2 * torch.stack(squares).sum()


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
            ones = empty.new_ones(len(self.rows))
            counts = empty.new_zeros(len(self.last)).index_add_(0, self.rows, ones)
            return empty.index_add(0, self.rows, self.values) / counts[:, None]
        index = self.rows[:, None].expand_as(self.values)
        reduce = "amax" if pooling == "max" else "amin"
        # A state of zeros is not among those that are compared.
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
    """Return the weighted sum of each bag's vectors [bags, dim]."""
    return functional.embedding_bag(
        bags.tokens,
        vectors,
        bags.starts,
        mode="sum",
        per_sample_weights=bags.weights,
    )
