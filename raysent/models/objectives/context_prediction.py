"""Context prediction: pick a sentence's neighbours among the candidates, by f . g and a softmax.

    S = f(batch) g(candidates)^T, without temperature, normalisation or bias
    T_ij proportional to 1 where candidate j is within `context_size` of sentence i, in the same document
    loss = mean over sentences with a neighbour of -sum_j T_ij log softmax(S_i)_j

Source: Logeswaran and Lee, 2018, section 3 and the released code.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysent.config import ByVariant
from raysent.kernels.devices import in_float32
from raysent.models.objectives import BuildContext, ContextConfig, ContextObjective, neighbour_masks


class Config(ContextConfig):
    """Settings of context prediction.

    Attributes:
        diagonal: Whether the sentence itself is no candidate (`exclude`) or a candidate with score 0 (`zero`, the
            released code's). None follows `variant`: `exclude` for paper, `zero` for authors.
        target: Whether a sentence's neighbours share one unit of probability (`mean`) or have one each (`sum`, the
            paper's text). None is `mean`, which changes the gradient by a factor only.
    """

    type: Literal["context_prediction"] = "context_prediction"
    diagonal: Literal["exclude", "zero"] | None = None
    target: Literal["mean", "sum"] | None = None

    resolved_diagonal: ClassVar[ByVariant[str]] = ByVariant(
        "diagonal", paper="exclude", authors="zero"
    )


class Objective(ContextObjective):
    """The loss of one batch; no parameters of its own."""

    def __init__(self, config: Config, build_context: BuildContext | None = None) -> None:
        super().__init__(config, build_context)
        self._excludes_itself = config.resolved_diagonal == "exclude"
        self._shares_target = config.target != "sum"

    def compare(self, vectors: tuple[Tensor, ...], places: Tensor, rows: slice) -> Tensor:
        """Return the mean in nats, a scalar; 0, with a gradient of 0, where no sentence has a neighbour."""
        f, g = vectors
        is_whole = rows == slice(None)
        sources = places if is_whole else places[rows]
        itself_score = -torch.inf if self._excludes_itself else 0.0
        loss: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            in_float32(f if is_whole else f[rows]),
            in_float32(g),
            (sources, places, self._context_size),
            itself_score,
            self._shares_target,
        )
        return loss


class _CrossEntropy(torch.autograd.Function):
    """The mean cross-entropy of the scores f g^T against the neighbours.

    The gradient with respect to the scores (probabilities minus target) is computed with the loss, so that only two of
    the [batch, candidates] matrices that automatic differentiation would make are needed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        f: Tensor,
        g: Tensor,
        neighbourhood: tuple[Tensor, Tensor, int],
        itself_score: float,
        shares_target: bool,
    ) -> Tensor:
        """Return the loss; a neighbourhood is the places of sources and candidates, and the size of the context."""
        sources, candidates, context_size = neighbourhood
        neighbours, is_other = neighbour_masks(sources, candidates, context_size=context_size)
        itself = ~(neighbours | is_other)
        log_probabilities = (f @ g.T).masked_fill_(itself, itself_score).log_softmax(dim=1)
        num_neighbours = neighbours.sum(dim=1)
        has_neighbour = num_neighbours > 0
        # The weight of one neighbour of a sentence in the mean over the sentences that have any.
        weights = has_neighbour / has_neighbour.sum().clamp(min=1)
        if shares_target:
            weights = weights / num_neighbours.clamp(min=1)
        loss = -(torch.where(neighbours, log_probabilities, 0.0).sum(dim=1) * weights).sum()
        probabilities = log_probabilities.exp_()
        d_scores = probabilities.mul_((weights * num_neighbours)[:, None]).sub_(
            neighbours * weights[:, None]
        )
        d_scores.masked_fill_(itself | ~has_neighbour[:, None], 0.0)
        ctx.save_for_backward(f, g, d_scores)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        f, g, d_scores = ctx.saved_tensors
        d_scores = d_scores * gradient
        return d_scores @ g, d_scores.T @ f, None, None, None
