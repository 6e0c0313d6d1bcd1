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

from raysent.objectives import ContextConfig, ContextObjective, Surroundings, neighbour_masks


class Config(ContextConfig):
    """A margin between neighbours and others.

    Attributes:
        margin: By how much a neighbour's score must be higher.
    """

    type: Literal["context_margin"] = "context_margin"
    margin: float = pydantic.Field(default=1.0, gt=0)


class Objective(ContextObjective):
    """The loss of one batch; no parameters of its own."""

    def __init__(self, config: Config, surroundings: Surroundings | None = None) -> None:
        super().__init__()
        del surroundings
        self._config = config

    def compare(
        self,
        f: Tensor,
        g: Tensor,
        *,
        positions: Tensor,
        documents: Tensor,
        candidate_positions: Tensor | None = None,
        candidate_documents: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the sentences that have a neighbour; see `ContextObjective.compare`."""
        neighbours, others = neighbour_masks(
            positions,
            documents,
            positions if candidate_positions is None else candidate_positions,
            documents if candidate_documents is None else candidate_documents,
            context_size=self._config.context_size,
        )
        scores = f.float() @ g.float().T
        source, neighbour = neighbours.nonzero(as_tuple=True)
        hinges = functional.relu(self._config.margin - scores[source, neighbour][:, None] + scores[source])
        # [neighbours, candidates] -> [neighbours]: the mean over the others of each source.
        means = (hinges * others[source]).sum(dim=1) / others[source].sum(dim=1).clamp(min=1)
        share = neighbours.sum(dim=1).clamp(min=1)[source]
        return (means / share).sum() / neighbours.any(dim=1).sum().clamp(min=1)
