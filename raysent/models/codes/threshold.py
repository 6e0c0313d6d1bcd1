"""Hard threshold: a bit for each number of the vector, 1 where it is above a threshold.

Source: Shen et al., 2019, section 3.1; the paper chose from 0, 0.01 and 0.1, the released code has 0.07.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from raysent.config import ByVariant
from raysent.models.codes import Code as BaseCode
from raysent.models.codes import CodeConfig


class Config(CodeConfig):
    """Settings of a hard threshold; a code has one bit for each number of the vector.

    Attributes:
        threshold: The value that a number must exceed; `mean` is each number's mean over a sample. None follows
            `variant`: 0 for paper, 0.07 for authors.
    """

    is_fitted: ClassVar[bool] = True

    type: Literal["threshold"] = "threshold"
    threshold: float | Literal["mean"] | None = None

    resolved_threshold: ClassVar[ByVariant[float | str]] = ByVariant(
        "threshold", paper=0.0, authors=0.07
    )

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return fixed thresholds and means; see `CodeConfig.examples`."""
        return cls(), cls(variant="authors"), cls(threshold="mean")


class Code(BaseCode):
    """A threshold for each number."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        del generator
        threshold = config.resolved_threshold
        self._is_mean = threshold == "mean"
        self.thresholds = nn.Parameter(torch.zeros(dim), requires_grad=False)
        if not isinstance(threshold, str):
            self.thresholds.data.fill_(threshold)

    def logits(self, vectors: Tensor) -> Tensor:
        """Return by how much each number exceeds its threshold [batch, dim]."""
        return vectors - self.thresholds

    def fit(self, vectors: Tensor) -> None:
        """Set the means of the sample where these are the thresholds."""
        if self._is_mean:
            self.thresholds.data.copy_(vectors.mean(dim=0))
