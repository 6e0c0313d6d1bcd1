"""Toy signs: one bit for each number of the vector, 1 where it is positive."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from raysent.models.codes import Code as BaseCode
from raysent.models.codes import CodeConfig


class Config(CodeConfig):
    """No settings."""

    is_fitted: ClassVar[bool] = True
    type: Literal["toy_signs"] = "toy_signs"


class Code(BaseCode):
    """The signs."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()

    def logits(self, vectors: Tensor) -> Tensor:
        """Return the vectors themselves [batch, dim]."""
        return vectors
