"""Random projection: the signs of random directions.

    b = 1 where R (D^(-whiten) V^T (h - m)) > 0

m is the mean of a sample, V the directions in which it varies and D their standard deviations. With `whiten` 0 the
code keeps the vectors' own cosines. Where a few directions hold most of the variance, most random directions say nearly
the same of two sentences; dividing by a power of the deviation makes bits less alike.

Source: Shen et al., 2019, section 3.2; Charikar, 2002; Gao and Long, 2024 (RaBitQ: a rotation of centred vectors).
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
from raysent.models.postprocessing import VARIANCE_FLOOR


class Config(CodeConfig):
    """Settings of a random projection.

    Attributes:
        bits: Number of directions; None is one for each number of the vector, at most 2,048.
        distribution: `uniform` in +-1 / sqrt(bits), without centring; `normal`, centred by the mean of a sample. None
            follows `variant`: `uniform` for paper, `normal` for authors. `rotation` is centred too, and its directions
            are orthogonal to each other, in groups of as many as the vector has numbers.
        whiten: Power of each direction's standard deviation by which a sample's variance is evened out: 0 leaves it as
            it is, 1 whitens. It needs a centred distribution.
    """

    is_fitted: ClassVar[bool] = True

    type: Literal["random_projection"] = "random_projection"
    bits: int | None = pydantic.Field(default=None, ge=1)
    distribution: Literal["uniform", "normal", "rotation"] | None = None
    whiten: float = pydantic.Field(default=0.0, ge=0, le=1)

    resolved_distribution: ClassVar[ByVariant[str]] = ByVariant(
        "distribution", paper="uniform", authors="normal"
    )

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return all distributions; see `CodeConfig.examples`."""
        rotation = cls(bits=13, distribution="rotation", whiten=0.5)
        return cls(bits=13), cls(bits=13, variant="authors"), rotation

    @pydantic.model_validator(mode="after")
    def _whitened_is_centred(self) -> Self:
        if self.whiten and self.resolved_distribution == "uniform":
            raise ValueError(
                f"whiten must be 0 for distribution uniform; given {self.whiten}; name rotation"
            )
        return self


class Code(BaseCode):
    """Random directions, and the mean of the vectors."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self._is_centred = config.resolved_distribution != "uniform"
        self._whiten = config.whiten
        bits = config.num_bits(dim)
        limit = 1 / math.sqrt(bits)
        weight = torch.empty(bits, dim)
        if self._is_centred:
            weight.normal_(generator=generator)
        else:
            weight.uniform_(-limit, limit, generator=generator)
        if config.distribution == "rotation":
            # No more directions than numbers can be orthogonal to each other.
            groups = torch.split(weight, dim)
            weight = torch.cat([torch.linalg.qr(group.T).Q.T for group in groups])
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.center = nn.Parameter(torch.zeros(dim), requires_grad=False)

    def logits(self, vectors: Tensor) -> Tensor:
        """Return the coordinates along the directions [batch, bits]."""
        return (vectors - self.center) @ self.weight.T

    def fit(self, vectors: Tensor) -> None:
        """Set the mean of the sample where vectors are centred, and even out its variance."""
        if self._is_centred:
            self.center.data.copy_(vectors.mean(dim=0))
        if self._whiten:
            variances, directions = torch.linalg.eigh(vectors.double().T.cov())
            # Where the sample hardly varies, the inverse of its variance is rounding.
            variances = variances.clamp(min=VARIANCE_FLOOR * float(variances[-1]))
            powers = variances ** (-self._whiten / 2)
            evened_out = (self.weight.double() @ (directions * powers)) @ directions.T
            self.weight.data.copy_(evened_out)
