"""Autoencoder: bits from which a linear decoder restores the vector; trained with the objective `reconstruction`.

    z = W h + k,   b = 1 where sigmoid(z) > s;   s = 0.5, or in training uniform in [0, 1) for each bit

Source: Shen et al., 2019, sections 3.4 and 3.5.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from torch import Tensor

from raysent.models.codes import Code as BaseCode
from raysent.models.codes import CodeConfig, straight_through
from raysent.models.layers import linear_layer


class Config(CodeConfig):
    """Settings of the encoder half of an autoencoder.

    Attributes:
        bits: Bits of a code.
        threshold: `deterministic` is 0.5; `stochastic` draws one for each bit in training, and is 0.5 otherwise.
    """

    is_trained: ClassVar[bool] = True

    type: Literal["autoencoder"] = "autoencoder"
    bits: int = pydantic.Field(default=2048, ge=1)
    threshold: Literal["deterministic", "stochastic"] = "deterministic"

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return both thresholds; see `CodeConfig.examples`."""
        return cls(bits=13), cls(bits=13, threshold="stochastic")


class Code(BaseCode):
    """A linear layer."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self._is_stochastic = config.threshold == "stochastic"
        self.layer = linear_layer(dim, config.bits, generator=generator)

    def logits(self, vectors: Tensor) -> Tensor:
        """Return z [batch, bits]."""
        logits: Tensor = self.layer(vectors)
        return logits

    def binarize(self, vectors: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return bits with the gradient of z [batch, bits]."""
        logits = self.logits(vectors)
        if not (self._is_stochastic and self.training):
            return straight_through(logits)
        drawn = torch.rand(logits.shape, generator=generator).to(logits.device)
        return straight_through(logits, (torch.sigmoid(logits) > drawn).to(logits.dtype))
