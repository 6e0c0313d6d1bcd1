"""Context margin: a neighbour's score f . g exceeds every other sentence's by a margin.

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

from raysent.models.objectives import BuildContext, ContextConfig, ScoredContext


class Config(ContextConfig):
    """Settings of the margin between neighbours and others.

    Attributes:
        margin: By how much a neighbour's score must be higher.
    """

    type: Literal["context_margin"] = "context_margin"
    margin: float = pydantic.Field(default=1.0, gt=0)


class Objective(ScoredContext):
    """The loss of one batch; no parameters of its own."""

    def __init__(self, config: Config, build_context: BuildContext | None = None) -> None:
        super().__init__(config, build_context)
        self._margin = config.margin

    def loss(self, scores: Tensor, *, neighbours: Tensor, others: Tensor) -> Tensor:
        """Return the mean hinge; see `ScoredContext.loss`."""
        # No sentence occurs twice in a batch, so none has more neighbours than this.
        most = min(2 * self._context_size, scores.shape[1])
        is_neighbour, neighbour_columns = neighbours.to(scores.dtype).topk(most)
        hinges = functional.relu(
            self._margin - scores.gather(1, neighbour_columns)[:, :, None] + scores[:, None, :]
        )
        # [batch, neighbours, candidates] -> [batch, neighbours]: the mean over the others of each source.
        means = (hinges * others[:, None, :]).sum(dim=2) / others.sum(dim=1).clamp(min=1)[:, None]
        weights = is_neighbour / neighbours.sum(dim=1).clamp(min=1)[:, None]
        return (means * weights).sum() / neighbours.any(dim=1).sum().clamp(min=1)
