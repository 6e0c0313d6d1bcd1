"""Context prediction: pick a sentence's neighbours among the candidates, by f . g and a softmax.

    S = f(batch) g(candidates)^T, without temperature, normalisation or bias
    T_ij proportional to 1 where candidate j is within `context_size` of sentence i, in the same document
    loss = mean over sentences with a neighbour of -sum_j T_ij log softmax(S_i)_j

Source: Logeswaran and Lee, 2018, section 3 and the released code.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from raysent.objectives import ContextConfig, ContextObjective, Surroundings, neighbour_masks


class Config(ContextConfig):
    """Context prediction.

    Attributes:
        diagonal: Whether the sentence itself is no candidate (`exclude`) or one with score 0 (`zero`, the released
            code's). None is what `variant` says: `exclude` for paper, `zero` for authors.
        target: Whether a sentence's neighbours share one unit of probability (`mean`) or have one each (`sum`, the
            paper's text). None is `mean`, with which the gradient differs by a factor only.
    """

    type: Literal["context_prediction"] = "context_prediction"
    diagonal: Literal["exclude", "zero"] | None = None
    target: Literal["mean", "sum"] | None = None

    @property
    def resolved_diagonal(self) -> Literal["exclude", "zero"]:
        """The diagonal after the variant has had its say."""
        return self.diagonal or ("zero" if self.variant == "authors" else "exclude")

    @property
    def resolved_target(self) -> Literal["mean", "sum"]:
        """The target after the variant has had its say."""
        return self.target or "mean"


class Objective(ContextObjective):
    """The loss of one batch; no parameters of its own."""

    def __init__(self, config: Config, surroundings: Surroundings | None = None) -> None:
        super().__init__()
        del surroundings
        self._context_size = config.context_size
        self._excludes_itself = config.resolved_diagonal == "exclude"
        self._shares_target = config.resolved_target == "mean"

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
        """Return the mean over the source sentences that have a neighbour among the candidates, in nats.

        Args:
            f: Vectors of the source sentences [batch, dim].
            g: Vectors of the candidates [candidates, dim].
            positions: Place of each source sentence in the corpus [batch].
            documents: Its document [batch].
            candidate_positions: Place of each candidate [candidates]; None where they are the source sentences.
            candidate_documents: Its document [candidates].

        Returns:
            A scalar; 0, with a gradient of 0, where no sentence has a neighbour.
        """
        places = positions if candidate_positions is None else candidate_positions
        neighbours, _ = neighbour_masks(
            positions,
            documents,
            places,
            documents if candidate_documents is None else candidate_documents,
            context_size=self._context_size,
        )
        similarity = f.float() @ g.float().T
        itself = positions[:, None] == places[None, :]
        similarity = similarity.masked_fill(itself, -torch.inf if self._excludes_itself else 0.0)
        return self._cross_entropy(similarity, neighbours)

    def _cross_entropy(self, similarity: Tensor, neighbours: Tensor) -> Tensor:
        """Return the mean cross-entropy [] of scores against neighbours, both [batch, candidates]."""
        has_neighbour = neighbours.any(dim=1)
        similarity, neighbours = similarity[has_neighbour], neighbours[has_neighbour]
        num_neighbours = neighbours.sum(dim=1)
        # -sum_j log p_ij over the neighbours, written so that an excluded score of -inf is never multiplied.
        reached = similarity.masked_fill(~neighbours, 0.0).sum(dim=1)
        loss = num_neighbours * similarity.logsumexp(dim=1) - reached
        if self._shares_target:
            loss = loss / num_neighbours
        return loss.sum() / max(1, len(loss))
