"""View agreement: one view of a sentence is more similar to the other view of its neighbours than of other sentences.

    a_ij = cos(f_i, g_j) + cos(g_i, f_j)                two views
    a_ij = cos(f_i, f_j), i = j left out                one view, see `self_agreement`
    p_ij = softmax over j of a_ij / tau
    loss = mean over i of -sum over |i - j| <= context_size of log p_ij

Before the cosines, the first singular vector of each view's batch is removed; it comes from a few steps of power
iteration and is treated as a constant.

Source: Tang and de Sa, 2018, section 2.2.
Differs: the mean over sentences stands for the paper's sum; neighbours in other documents do not count.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.models.objectives import BuildContext, ContextConfig, ContextObjective, neighbour_masks
from raysent.models.postprocessing import first_singular_vector, without


class AgreementConfig(ContextConfig):
    """Settings that the agreement of one view and of two share.

    Attributes:
        temperature: Initial value of tau.
        trains_temperature: Whether log tau is trained.
        power_iterations: Steps of power iteration for the first singular vector; 0 does not remove it.
    """

    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"

    context_size: int = pydantic.Field(default=3, ge=1)
    temperature: float = pydantic.Field(default=1.0, gt=0)
    trains_temperature: bool = True
    power_iterations: int = pydantic.Field(default=5, ge=0)

    def comparable(self, vectors: Tensor) -> Tensor:
        """Return vectors of unit length: the loss compares cosines."""
        return functional.normalize(vectors, dim=1)


class Config(AgreementConfig):
    """Settings of the agreement of two views.

    Attributes:
        includes_itself: Whether a sentence's own other view counts among its neighbours, as in the paper's sum.
    """

    type: Literal["view_agreement"] = "view_agreement"
    includes_itself: bool = True


class Agreement(nn.Module):
    """Scores -> loss, with the temperature."""

    def __init__(self, config: AgreementConfig, build_context: BuildContext) -> None:
        super().__init__()
        self._config = config
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(config.temperature)), requires_grad=config.trains_temperature
        )
        start = torch.randn(build_context.dim, generator=build_context.generator)
        # The same start at every step, so that a resumed run computes the same.
        self.register_buffer("start", start / start.norm(), persistent=False)

    start: Tensor

    def unit(self, vectors: Tensor) -> Tensor:
        """Return vectors [batch, dim] of unit length, without their first singular vector."""
        vectors = vectors.float()
        if self._config.power_iterations:
            direction = first_singular_vector(
                vectors.detach(), self.start, num_iterations=self._config.power_iterations
            )
            vectors = without(vectors, direction)
        return functional.normalize(vectors, dim=1)

    def loss(
        self, scores: Tensor, targets: Tensor, *, is_candidate: Tensor | None = None
    ) -> Tensor:
        """Return the mean over the sentences that have a target of their sums over targets.

        Args:
            scores: a_ij [batch, candidates].
            targets: Which candidates are correct, bool [batch, candidates].
            is_candidate: Which sentences are candidates; None for all.
        """
        scaled = scores / self.log_temperature.exp()
        if is_candidate is not None:
            scaled = scaled.masked_fill(~is_candidate, -torch.inf)
        log_probabilities = functional.log_softmax(scaled, dim=1).masked_fill(~targets, 0.0)
        num_sentences = targets.any(dim=1).sum().clamp(min=1)
        return -log_probabilities.sum() / num_sentences


class Objective(ContextObjective):
    """The loss of one batch."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__(config)
        self._includes_itself = config.includes_itself
        self.agreement = Agreement(config, build_context)

    def compare(self, vectors: tuple[Tensor, ...], places: Tensor, rows: slice) -> Tensor:
        """Return the mean over the sentences, in nats."""
        first, second = map(self.agreement.unit, vectors)
        # a_ij adds the similarities of both views of i with the other view of j: with all rows one product is enough.
        if rows == slice(None):
            scores = first @ second.T
            scores = scores + scores.T
        else:
            scores = first[rows] @ second.T + second[rows] @ first.T
        neighbours, _ = neighbour_masks(places[rows], places, context_size=self._context_size)
        if self._includes_itself:
            neighbours = neighbours | (places[rows][:, None] == places[None, :])
        return self.agreement.loss(scores, neighbours)

    def has_target(self, places: Tensor) -> Tensor:
        """Return which sentences have a correct candidate, bool [candidates]."""
        if self._includes_itself:
            return torch.ones_like(places, dtype=torch.bool)
        return super().has_target(places)
