"""Random projection: the signs of random directions.

Source: Shen et al., 2019, section 3.2; Charikar, 2002.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import pydantic
import torch
from torch import Tensor, nn

from raysent.config import ByVariant
from raysent.models.codes import Code as BaseCode
from raysent.models.codes import CodeConfig


class Config(CodeConfig):
    """Settings of a random projection.

    Attributes:
        bits: Number of directions; None is one for each number of the vector, at most 2,048.
        distribution: `uniform` in +-1 / sqrt(bits), without centring; `normal`, centred by the mean of a sample. None
            follows `variant`: `uniform` for paper, `normal` for authors.
    """

    is_fitted: ClassVar[bool] = True

    type: Literal["random_projection"] = "random_projection"
    bits: int | None = pydantic.Field(default=None, ge=1)
    distribution: Literal["uniform", "normal"] | None = None

    resolved_distribution: ClassVar[ByVariant[str]] = ByVariant("distribution", paper="uniform", authors="normal")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return both distributions; see `CodeConfig.examples`."""
        return cls(bits=13), cls(bits=13, variant="authors")


class Code(BaseCode):
    """Random directions, and the mean of the vectors."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self._is_centred = config.resolved_distribution == "normal"
        bits = config.num_bits(dim)
        limit = 1 / math.sqrt(bits)
        weight = torch.empty(bits, dim)
        if self._is_centred:
            weight.normal_(generator=generator)
        else:
            weight.uniform_(-limit, limit, generator=generator)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.center = nn.Parameter(torch.zeros(dim), requires_grad=False)

    def logits(self, vectors: Tensor) -> Tensor:
        """Return the coordinates along the directions [batch, bits]."""
        return (vectors - self.center) @ self.weight.T

    def fit(self, vectors: Tensor) -> None:
        """Set the mean of the sample where vectors are centred."""
        if self._is_centred:
            self.center.data.copy_(vectors.mean(dim=0))
