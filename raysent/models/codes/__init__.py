"""Codes: vectors -> bits. One file per method; the folder is the registry.

A file of this folder, or the value of an entry point of the group `raysent.codes`, is a `CodeModule`: a class `Config`
whose `type: Literal["..."]` is the method's name, and a class `Code`. A bit is 1 where the method's `logits` are
positive. A method is fitted to a sample of vectors, or trained with the objective `reconstruction`.

Source: Shen et al., 2019 (Learning compressed sentence representations), section 3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.config import StrictModel
from raysent.errors import DataError
from raysent.registry import AnyOf, Registry, by_type

UInt8 = npt.NDArray[np.uint8]

# Bits of a code where the configuration names no number: one for each number of the vector, at most the paper's.
_MAX_DEFAULT_BITS = 2048


class CodeConfig(StrictModel):
    """Settings of a method.

    Attributes:
        is_fitted: Whether the method is fitted to a sample of vectors.
        is_trained: Whether the method has parameters that are trained by steps.
        type: The method's name.
        variant: `authors` sets the defaults to the released code's behaviour; keys that are given override them.
    """

    is_fitted: ClassVar[bool] = False
    is_trained: ClassVar[bool] = False

    type: str
    variant: Literal["paper", "authors"] = "paper"

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return configurations for vectors of 8 numbers or more; the contract tests build each of them."""
        return (cls.model_validate({}),)

    def num_bits(self, dim: int) -> int:
        """Return the number of bits for vectors of size `dim`.

        By default the field `bits`; where it is None one bit a number, at most 2,048. A method without
        that field has one bit a number.
        """
        if not hasattr(self, "bits"):
            return dim
        return int(self.bits or min(dim, _MAX_DEFAULT_BITS))


class Code(nn.Module):
    """A method, for vectors of one size."""

    @abstractmethod
    def logits(self, vectors: Tensor) -> Tensor:
        """Return numbers that are positive where a bit is 1, [batch, bits], for vectors [batch, dim]."""

    def fit(self, vectors: Tensor) -> None:
        """Fit the method to a sample [rows, dim].

        Raises:
            DataError: If the sample is too small.
        """
        del vectors

    def binarize(self, vectors: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return bits, 0 or 1, whose gradient is that of the logits [batch, bits].

        Args:
            vectors: [batch, dim].
            generator: Source of stochastic thresholds in training.
        """
        del generator
        return straight_through(self.logits(vectors))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return bits, 0 or 1, float32 [batch, bits]."""
        return (self.logits(vectors) > 0).float()


class CodeModule(Protocol):
    """The form of a code's module.

    Call order:

    1. `Config` is validated from the `code` section of a run; `num_bits(dim)` is read from it.
    2. `Code(config, dim=..., generator=...)` is built; saved parameters may follow.
    3. Where `is_fitted`, `fit(vectors)` before the first step. In steps `binarize(vectors)`, whose gradient trains the
       parameters where `is_trained`.
    4. In use `Code(vectors)`, which calls `logits`.
    """

    Config: type[CodeConfig]
    Code: Callable[..., Code]


def straight_through(logits: Tensor, bits: Tensor | None = None) -> Tensor:
    """Return bits with the gradient of the logits.

    Args:
        logits: [batch, bits].
        bits: 0 or 1; by default 1 where the logits are positive.

    Source: Bengio et al., 2013; Shen et al., 2019, equation 5.
    """
    if bits is None:
        bits = (logits > 0).to(logits.dtype)
    # In this order the forward value is exactly 0 or 1.
    return bits + (logits - logits.detach())


def build_code(config: CodeConfig, *, dim: int, generator: torch.Generator) -> Code:
    """Return a new method of the type that the configuration names, for vectors of size `dim`."""
    return CODES[config.type].Code(config, dim=dim, generator=generator)


CODES: Registry[CodeModule] = Registry("code", package=__name__, folders=__path__, read=by_type)

AnyCode: TypeAlias = Annotated[CodeConfig, AnyOf(CODES)]


def pack_bits(bits: npt.ArrayLike) -> UInt8:
    """Pack bits, 0 or 1 [rows, bits], into bytes, uint8 [rows, ceil(bits / 8)].

    The layout is that of `numpy.packbits`: the first bit is the most significant one of the first byte, and the last
    byte is padded with zeros. It is the `ubinary` precision of sentence-transformers, and FAISS and usearch read it.

    Raises:
        DataError: If a value is neither 0 nor 1.
    """
    rows = np.atleast_2d(np.asarray(bits))
    if not ((rows == 0) | (rows == 1)).all():
        raise DataError(
            "codes: must be bits, 0 or 1; given other values; only a model with a code returns bits"
        )
    return np.packbits(rows.astype(np.uint8), axis=1)
