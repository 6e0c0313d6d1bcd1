"""Principal components: the signs of the first coordinates of a singular value decomposition of centred vectors.

Source: Shen et al., 2019, section 3.3.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from torch import Tensor, nn

from raysent.errors import ConfigError, DataError
from raysent.models.codes import Code as BaseCode
from raysent.models.codes import CodeConfig


class Config(CodeConfig):
    """Settings of principal components.

    Attributes:
        bits: Number of components, at most the size of the vectors; None is that size, at most 2,048.
    """

    is_fitted: ClassVar[bool] = True

    type: Literal["principal_components"] = "principal_components"
    bits: int | None = pydantic.Field(default=None, ge=1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return a few components; see `CodeConfig.examples`."""
        return (cls(bits=6),)


class Code(BaseCode):
    """The components, and the mean of the vectors."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        del generator
        bits = config.num_bits(dim)
        if bits > dim:
            raise ConfigError(
                f"code.bits: must be at most {dim}, the size of the vectors, for principal_components; given {bits}"
            )
        self.weight = nn.Parameter(torch.zeros(bits, dim), requires_grad=False)
        self.center = nn.Parameter(torch.zeros(dim), requires_grad=False)

    def logits(self, vectors: Tensor) -> Tensor:
        """Return the first coordinates [batch, bits]."""
        return (vectors - self.center) @ self.weight.T

    def fit(self, vectors: Tensor) -> None:
        """Compute the components of a sample.

        Raises:
            DataError: If the sample has fewer rows than there are bits.
        """
        if len(vectors) < len(self.weight):
            raise DataError(
                f"code.bits: principal components need as many sentences as bits, {len(self.weight)}; "
                f"given {len(vectors)}; raise postprocessing.num_sentences or lower code.bits"
            )
        center = vectors.mean(dim=0)
        moments = (vectors - center).double().T @ (vectors - center).double()
        components = torch.linalg.eigh(moments).eigenvectors.flip(1)[:, : len(self.weight)].T
        # The sign of a component is arbitrary; its largest number is made positive, so that codes can be compared.
        largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
        self.weight.data.copy_(components * largest.sign())
        self.center.data.copy_(center)
