"""Autoencoder: bits from which a linear decoder restores the vector; trained with the objective `reconstruction`.

    z = W (h - m) / v + k,   b = 1 where sigmoid(z) > s;   s = 0.5, or in training uniform in [0, 1) for each bit

m is the mean of a sample of vectors and v the root of their mean variance, so that bits start balanced and a learning
rate does not depend on the size of the vectors.

Source: Shen et al., 2019, sections 3.4 and 3.5.
Differs: m, v and `sharpness`; `variant: authors` has neither, m = 0 and v = 1. The gradient passes the threshold and
the sigmoid as it is, d b / d z = 1; of a threshold of sigmoid(z) it would have that slope too. Bengio et al., 2013,
section 3, have both.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from torch import Tensor, nn

from raysent.config import ByVariant
from raysent.kernels.devices import to_device
from raysent.models.codes import Code as BaseCode
from raysent.models.codes import CodeConfig, straight_through
from raysent.models.layers import linear_layer, spread


class Config(CodeConfig):
    """Settings of the encoder half of an autoencoder.

    Attributes:
        bits: Bits of a code; None is one for each number of the vector, at most 2,048.
        sharpness: Factor of z in the probability of a stochastic bit. z of a new layer is about 0.6 in size, so that
            with a factor of 1 most bits are nearly coin flips. None is 4 for paper, 1 for authors.
        threshold: `deterministic` is 0.5; `stochastic` draws one for each bit in training, and is 0.5 otherwise.
    """

    is_fitted: ClassVar[bool] = True
    is_trained: ClassVar[bool] = True

    type: Literal["autoencoder"] = "autoencoder"
    bits: int | None = pydantic.Field(default=None, ge=1)
    threshold: Literal["deterministic", "stochastic"] = "deterministic"
    sharpness: float | None = pydantic.Field(default=None, gt=0)

    resolved_sharpness: ClassVar[ByVariant[float]] = ByVariant("sharpness", paper=4.0, authors=1.0)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return both thresholds; see `CodeConfig.examples`."""
        return cls(bits=13), cls(bits=13, threshold="stochastic")


class Code(BaseCode):
    """A linear layer on standardized vectors."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self._is_stochastic = config.threshold == "stochastic"
        self._sharpness = config.resolved_sharpness
        self._is_standardized = config.variant == "paper"
        self.layer = linear_layer(dim, config.num_bits(dim), generator=generator)
        self.center = nn.Parameter(torch.zeros(dim), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def logits(self, vectors: Tensor) -> Tensor:
        """Return z [batch, bits]."""
        logits: Tensor = self.layer((vectors - self.center) / self.scale)
        return logits

    def fit(self, vectors: Tensor) -> None:
        """Set m and v to those of a sample [rows, dim]."""
        if self._is_standardized:
            self.center.data.copy_(vectors.mean(dim=0))
            self.scale.data.copy_(spread(vectors))

    def binarize(self, vectors: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return bits with the gradient of z [batch, bits]."""
        logits = self.logits(vectors)
        if not (self._is_stochastic and self.training):
            return straight_through(logits)
        # Drawn on the CPU, so that every device gets the same thresholds.
        thresholds = to_device(torch.rand(logits.shape, generator=generator), logits.device)
        bits = torch.sigmoid(self._sharpness * logits) > thresholds
        return straight_through(logits, bits.to(logits.dtype))
