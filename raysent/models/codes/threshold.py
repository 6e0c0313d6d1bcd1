"""Hard threshold: a bit for each number of the vector, 1 where it is above a threshold.

Source: Shen et al., 2019, section 3.1; the paper chose from 0, 0.01 and 0.1, the released code has 0.07.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from raysent.models.codes import Code as BaseCode
from raysent.models.codes import CodeConfig


class Config(CodeConfig):
    """A hard threshold; it has as many bits as the vector has numbers.

    Attributes:
        threshold: What a number must be above; `mean` is each number's own mean over the sample. None is what
            `variant` says: 0 for paper, 0.07 for authors.
    """

    is_fitted: ClassVar[bool] = True

    type: Literal["threshold"] = "threshold"
    threshold: float | Literal["mean"] | None = None

    @property
    def resolved_threshold(self) -> float | Literal["mean"]:
        """The threshold after the variant has had its say."""
        return self.threshold if self.threshold is not None else (0.07 if self.variant == "authors" else 0.0)


class Code(BaseCode):
    """Thresholds of every number."""

    def __init__(self, config: Config, *, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        del generator
        threshold = config.resolved_threshold
        self._is_mean = threshold == "mean"
        self.thresholds = nn.Parameter(torch.zeros(dim), requires_grad=False)
        if not isinstance(threshold, str):
            self.thresholds.data.fill_(threshold)

    def logits(self, vectors: Tensor) -> Tensor:
        """Return what each number is above its threshold [batch, dim]."""
        return vectors - self.thresholds

    def fit(self, vectors: Tensor) -> None:
        """Take the sample's means where these are the thresholds."""
        if self._is_mean:
            self.thresholds.data.copy_(vectors.mean(dim=0))
