"""Relatedness: how alike two sentences are, as a distribution over the marks 1 to 5 that has the score as its mean.

    h1, h2 of unit length;  features = [h1 * h2 ; |h1 - h2|]  ->  sigmoid layer  ->  softmax over the marks
    target: y between two marks shares its probability between them, plus 1e-6
    loss = mean over pairs and marks of KL(target, predicted)
           + 1/2 lambda_w |W - W0|^2 + 1/2 lambda_c |C - C0|^2 + 1/2 lambda_head |head|^2

W are the word vectors, C the encoder's other parameters; W0 is what the words began with, C0 as well (`anchor: first`,
where the run begins with a trained model) or zero.

Source: Tai et al., 2015, section 4.2; Jiao, Wang and Feng, 2018, section 4.3, and their released code.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.data.batches import Pairs
from raysent.models.layers import Anchor, linear_layer
from raysent.models.objectives import BuildContext, ObjectiveConfig, Read, Reads
from raysent.models.objectives import Objective as BaseObjective

_LEAST_TARGET = 1e-6
_LEAST_NORM = 1e-10


class Config(ObjectiveConfig):
    """Relatedness.

    Attributes:
        hidden_size: Units of the sigmoid layer.
        num_marks: The scores go from 1 to this.
        lambda_w: Weight of the word vectors' way from their first values.
        lambda_c: Weight of the encoder's other parameters.
        lambda_head: Weight of the head's own.
        anchor: Whether the encoder's other parameters are drawn to their first values or to zero.
    """

    reads: ClassVar[Reads] = "pairs"
    num_towers: ClassVar[Literal[1, 2]] = 1
    has_state: ClassVar[bool] = True
    is_kept: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    needs_scores: ClassVar[bool] = True
    predicted_metrics: ClassVar[tuple[str, ...]] = ("score_pearson", "score_mse")

    type: Literal["relatedness"] = "relatedness"
    hidden_size: int = pydantic.Field(default=300, ge=1)
    num_marks: int = pydantic.Field(default=5, ge=2)
    lambda_w: float = pydantic.Field(default=1e-4, ge=0)
    lambda_c: float = pydantic.Field(default=1e-5, ge=0)
    lambda_head: float = pydantic.Field(default=1e-7, ge=0)
    anchor: Literal["first", "zero"] = "first"


class Objective(BaseObjective):
    """The head and its loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        generator = build_context.generator
        self.hidden = linear_layer(2 * build_context.dim, config.hidden_size, generator=generator)
        self.output = linear_layer(config.hidden_size, config.num_marks, generator=generator)
        words = () if build_context.words is None else (build_context.words.weight,)
        head = [*self.hidden.parameters(), *self.output.parameters()]
        self.anchors = nn.ModuleList(
            [
                Anchor(words, weight=config.lambda_w, to="first"),
                Anchor(build_context.parameters, weight=config.lambda_c, to=config.anchor),
                Anchor(head, weight=config.lambda_head, to="zero"),
            ]
        )
        self._num_marks = config.num_marks

    def forward(self, read: Read, batch: Pairs, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean over pairs and marks."""
        del generator
        log_probabilities = self._log_probabilities(read, batch)
        targets = mark_targets(torch.as_tensor(batch.scores), num_marks=self._num_marks).to(log_probabilities)
        targets = targets + _LEAST_TARGET
        return (targets * (targets.log() - log_probabilities)).mean()

    def penalty(self) -> Tensor:
        """Return what words, encoder and head cost for being away from where they belong."""
        return torch.stack([anchor() for anchor in self.anchors]).sum()

    def predict(self, read: Read, batch: Pairs) -> Tensor:
        """Return the predicted score of each pair, the mean mark [batch]."""
        marks = torch.arange(1, self._num_marks + 1, device=self.output.weight.device)
        return self._log_probabilities(read, batch).exp() @ marks.float()

    def _log_probabilities(self, read: Read, batch: Pairs) -> Tensor:
        """Return those of the marks [batch, marks]."""
        one, other = (functional.normalize(read(side)[0].float(), dim=1, eps=_LEAST_NORM) for side in batch.parts)
        features = torch.cat([one * other, (one - other).abs()], dim=1)
        return functional.log_softmax(self.output(torch.sigmoid(self.hidden(features))).float(), dim=1)


def mark_targets(scores: Tensor, *, num_marks: int) -> Tensor:
    """Return the distribution over marks whose mean is the score, float64 [batch, num_marks].

    Args:
        scores: From 1 to `num_marks` [batch].
        num_marks: Marks.
    """
    marks = torch.arange(1, num_marks + 1)
    # Two neighbouring marks share the probability by their distance from the score.
    return (1 - (scores.double()[:, None] - marks).abs()).clamp(min=0)
