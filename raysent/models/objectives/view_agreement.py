"""View agreement: two views of a sentence agree with each other on its neighbours more than on other sentences.

    a_ij = cos(f_i, g_j) + cos(g_i, f_j)                two views
    a_ij = cos(f_i, f_j), i = j left out                one view (`views: 1`, see `self_agreement`)
    p_ij = softmax over j of a_ij / tau
    loss = mean over i of -sum over |i - j| <= context_size of log p_ij

Before the cosines the top component of each view's batch is removed; its direction comes from a few steps of power
iteration and counts as constant.

Source: Tang and de Sa, 2018, section 2.2.
Differs: the sum over neighbours is divided by their number, which changes the gradient of sentences at a document's
edge only; neighbours in other documents do not count.
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
    """What agreement of one view and of two have in common.

    Attributes:
        temperature: tau at first.
        trains_temperature: Whether log tau is trained.
        power_iterations: Steps of power iteration for the top component; 0 leaves it in.
    """

    has_state: ClassVar[bool] = True
    is_cosine: ClassVar[bool] = True

    context_size: int = pydantic.Field(default=3, ge=1)
    temperature: float = pydantic.Field(default=1.0, gt=0)
    trains_temperature: bool = True
    power_iterations: int = pydantic.Field(default=5, ge=0)


class Config(AgreementConfig):
    """Agreement of two views.

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
        # A direction to begin with, the same at every step: a resumed run takes the same way.
        self.register_buffer("start", start / start.norm(), persistent=False)

    start: Tensor

    def unit(self, vectors: Tensor) -> Tensor:
        """Return vectors [batch, dim] without their top component, of unit length."""
        vectors = vectors.float()
        if self._config.power_iterations:
            direction = first_singular_vector(
                vectors.detach(), self.start, num_iterations=self._config.power_iterations
            )
            vectors = without(vectors, direction)
        return functional.normalize(vectors, dim=1)

    def loss(self, scores: Tensor, targets: Tensor, *, is_candidate: Tensor | None = None) -> Tensor:
        """Return the mean over the sentences that have a target.

        Args:
            scores: a_ij [batch, batch].
            targets: Which candidates are right, bool [batch, batch].
            is_candidate: Which candidates there are at all; None for all.
        """
        scaled = scores / self.log_temperature.exp()
        if is_candidate is not None:
            scaled = scaled.masked_fill(~is_candidate, -torch.inf)
        log_probabilities = functional.log_softmax(scaled, dim=1).masked_fill(~targets, 0.0)
        counts = targets.sum(dim=1)
        per_sentence = -log_probabilities.sum(dim=1) / counts.clamp(min=1)
        return per_sentence.sum() / (counts > 0).sum().clamp(min=1)


class Objective(ContextObjective):
    """The loss of one batch."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self._config = config
        self.agreement = Agreement(config, build_context)

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
        """Return the mean over the sentences, in nats; the candidates are the sentences themselves."""
        if candidate_positions is not None or candidate_documents is not None:
            raise ValueError("view agreement compares the sentences of a batch with each other alone")
        neighbours, _ = neighbour_masks(positions, documents, context_size=self._config.context_size)
        if self._config.includes_itself:
            neighbours = neighbours | (positions[:, None] == positions[None, :])
        one, other = self.agreement.unit(f), self.agreement.unit(g)
        scores = one @ other.T
        return self.agreement.loss(scores + scores.T, neighbours)
