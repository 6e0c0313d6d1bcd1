"""Toy hinge: a neighbour's score is above the mean score of the others by one."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional

from raysent.models.objectives import ContextConfig, ScoredContext


class Config(ContextConfig):
    """No settings of its own."""

    type: Literal["toy_hinge"] = "toy_hinge"


class Objective(ScoredContext):
    """The loss of one batch."""

    def loss(self, scores: Tensor, *, neighbours: Tensor, others: Tensor) -> Tensor:
        """Return the mean hinge; see `ScoredContext.loss`."""
        mean = (scores * others).sum(dim=1) / others.sum(dim=1).clamp(min=1)
        hinges = functional.relu(1 - scores + mean[:, None]) * neighbours
        return hinges.sum() / neighbours.sum().clamp(min=1)
