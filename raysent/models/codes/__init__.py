"""Vectors -> bits; one file per method, and the folder is the registry.

A file of this folder defines `class Config(CodeConfig)`, whose `type: Literal["..."]` names it, and `class Code(Code)`.
A bit is 1 where the method's `logits` are positive. What a method has is fitted to vectors once, or trained by the
objective `reconstruction`.

Source: Shen et al., 2019 (Learning compressed sentence representations), section 3.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from raysent.config import StrictModel
from raysent.registry import Registry, by_type, union


class CodeConfig(StrictModel):
    """What every method's configuration has.

    Attributes:
        is_fitted: Whether the method learns from a sample of vectors, without steps.
        is_trained: Whether it has parameters that steps train.
        type: The method.
        variant: `authors` sets the defaults to the released code's behaviour; keys that are given override them.
    """

    is_fitted: ClassVar[bool] = False
    is_trained: ClassVar[bool] = False

    type: str
    variant: Literal["paper", "authors"] = "paper"

    def num_bits(self, dim: int) -> int:
        """Return the bits of a vector of size `dim`."""
        return int(getattr(self, "bits", dim))


class Code(nn.Module):
    """A method for vectors of one size."""

    @abstractmethod
    def logits(self, vectors: Tensor) -> Tensor:
        """Return numbers that are positive where a bit is 1, [batch, bits], for vectors [batch, dim]."""

    def fit(self, vectors: Tensor) -> None:
        """Learn from a sample [rows, dim] what the method learns without steps.

        Raises:
            DataError: If the sample is too small.
        """
        del vectors

    def binarize(self, vectors: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return bits, 0 or 1, through which the gradient of the logits passes unchanged [batch, bits].

        Args:
            vectors: [batch, dim].
            generator: Source of stochastic thresholds, where the method has any in training.
        """
        del generator
        return straight_through(self.logits(vectors))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return bits, 0 or 1, float32 [batch, bits]."""
        return (self.logits(vectors) > 0).float()


def straight_through(logits: Tensor, bits: Tensor | None = None) -> Tensor:
    """Return bits, with the gradient of the logits as if they were these.

    Args:
        logits: [batch, bits].
        bits: 0 or 1; by default where the logits are positive.

    Source: Bengio et al., 2013; Shen et al., 2019, equation 5.
    """
    bits = (logits > 0).to(logits.dtype) if bits is None else bits
    # In this order the forward value is exactly 0 or 1.
    return bits + (logits - logits.detach())


def build_code(config: CodeConfig, *, dim: int, generator: torch.Generator) -> Code:
    """Return a new method of the kind that the configuration names, for vectors of size `dim`."""
    code: Code = CODES[config.type].Code(config, dim=dim, generator=generator)
    return code


CODES: Registry[Any] = Registry("code", package=__name__, folders=__path__, read=by_type)

if TYPE_CHECKING:
    AnyCode: TypeAlias = CodeConfig
else:
    AnyCode = union(CODES)


def known_codes() -> dict[str, type[CodeConfig]]:
    """Return the configuration of every method by name."""
    return {name: module.Config for name, module in CODES.items()}
