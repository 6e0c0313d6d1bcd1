"""Window classifier: is this sentence a neighbour or not, by the logistic function of f . g.

    loss = mean over sentences with a neighbour of
           mean over neighbours j of -log s(f_i . g_j)  +  num_negatives * mean over others k of -log s(-f_i . g_k)

Source: Logeswaran and Lee, 2018, section 3, "an objective function similar to the negative sampling approach"; the
paper found it worse than context prediction, and gives no settings.
Differs: the negatives are not drawn; their expectation over the batch's other sentences stands in.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from torch import Tensor
from torch.nn import functional

from raysent.objectives import ContextConfig, ContextObjective, Surroundings, neighbour_masks


class Config(ContextConfig):
    """A window classifier.

    Attributes:
        num_negatives: Weight of the other sentences against the neighbours.
    """

    type: Literal["window_classifier"] = "window_classifier"
    num_negatives: float = pydantic.Field(default=5.0, gt=0)


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
        """Return the mean over the sentences that have a neighbour, in nats; see `ContextObjective.compare`."""
        neighbours, others = neighbour_masks(
            positions,
            documents,
            positions if candidate_positions is None else candidate_positions,
            documents if candidate_documents is None else candidate_documents,
            context_size=self._config.context_size,
        )
        scores = f.float() @ g.float().T
        right = (functional.softplus(-scores) * neighbours).sum(dim=1) / neighbours.sum(dim=1).clamp(min=1)
        wrong = (functional.softplus(scores) * others).sum(dim=1) / others.sum(dim=1).clamp(min=1)
        sources = neighbours.any(dim=1)
        return ((right + self._config.num_negatives * wrong) * sources).sum() / sources.sum().clamp(min=1)
