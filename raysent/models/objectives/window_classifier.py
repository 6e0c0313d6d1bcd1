"""Window classifier: is this sentence a neighbour or not, by the logistic function of f . g.

    loss = mean over sentences with a neighbour of
           mean over neighbours j of -log s(f_i . g_j)  +  num_negatives * mean over others k of -log s(-f_i . g_k)

Source: Logeswaran and Lee, 2018, section 3, "an objective function similar to the negative sampling approach"; the
paper found it worse than context prediction, and gives no settings.
Differs: the negatives are not drawn; the loss takes their expectation over the batch's other sentences.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from torch import Tensor
from torch.nn import functional

from raysent.models.objectives import BuildContext, ContextConfig, ScoredContext


class Config(ContextConfig):
    """Settings of a window classifier.

    Attributes:
        num_negatives: Weight of the other sentences relative to the neighbours.
    """

    type: Literal["window_classifier"] = "window_classifier"
    num_negatives: float = pydantic.Field(default=5.0, gt=0)


class Objective(ScoredContext):
    """The loss of one batch; no parameters of its own."""

    def __init__(self, config: Config, build_context: BuildContext | None = None) -> None:
        super().__init__(config, build_context)
        self._num_negatives = config.num_negatives

    def loss(self, scores: Tensor, *, neighbours: Tensor, others: Tensor) -> Tensor:
        """Return the mean cross-entropy, in nats; see `ScoredContext.loss`."""
        right = (functional.softplus(-scores) * neighbours).sum(dim=1) / neighbours.sum(
            dim=1
        ).clamp(min=1)
        wrong = (functional.softplus(scores) * others).sum(dim=1) / others.sum(dim=1).clamp(min=1)
        sources = neighbours.any(dim=1)
        return ((right + self._num_negatives * wrong) * sources).sum() / sources.sum().clamp(min=1)
