"""Context margin: a neighbour's score f . g is above every other sentence's by a margin.

    loss = mean over sentences i with a neighbour, over their neighbours j and over the others k of
           [margin - f_i . g_j + f_i . g_k]+

Source: Logeswaran and Lee, 2018, section 3, "a max-margin loss", which the paper found worse than context prediction
and gives no settings for.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from torch import Tensor
from torch.nn import functional

from raysent.objectives import ContextConfig, ScoredContext, Surroundings


class Config(ContextConfig):
    """A margin between neighbours and others.

    Attributes:
        margin: By how much a neighbour's score must be higher.
    """

    type: Literal["context_margin"] = "context_margin"
    margin: float = pydantic.Field(default=1.0, gt=0)


class Objective(ScoredContext):
    """The loss of one batch; no parameters of its own."""

    def __init__(self, config: Config, surroundings: Surroundings | None = None) -> None:
        super().__init__(config, surroundings)
        self._margin = config.margin

    def loss(self, scores: Tensor, *, neighbours: Tensor, others: Tensor) -> Tensor:
        """Return the mean hinge; see `ScoredContext.loss`."""
        source, neighbour = neighbours.nonzero(as_tuple=True)
        hinges = functional.relu(self._margin - scores[source, neighbour][:, None] + scores[source])
        # [neighbours, candidates] -> [neighbours]: the mean over the others of each source.
        means = (hinges * others[source]).sum(dim=1) / others[source].sum(dim=1).clamp(min=1)
        share = neighbours.sum(dim=1).clamp(min=1)[source]
        return (means / share).sum() / neighbours.any(dim=1).sum().clamp(min=1)
