"""Relatedness: how similar two sentences are, as a distribution over the rating levels 1 to 5 whose mean is the score.

    h1, h2 of unit length, or as they are
    features = [h1 * h2 ; |h1 - h2|]  ->  sigmoid layer  ->  softmax over the levels
    target: a score between two levels shares its probability between them, plus 1e-6
    loss = mean over pairs of KL(target, predicted), a sum over levels
           + 1/2 lambda_w |W - W0|^2 + 1/2 lambda_c |C - C0|^2 + 1/2 lambda_head |head|^2

W are the word vectors, C the encoder's other parameters. W0 are the initial word vectors; C0 are the initial values
(`penalty_center: initial`, for a run that starts with a trained model) or zero.

Source: Tai et al., 2015, section 4.2; Jiao, Wang and Feng, 2018, section 4.2, and their released code.
Differs: the penalties on W and C have the factor 1/2 too; vectors have unit length unless `unit_length` says otherwise,
as in the text. `variant: authors` takes the mean over levels as well.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.data.pairs import Pairs
from raysent.kernels.devices import to_device
from raysent.models.layers import L2Penalty, linear_layer, unit
from raysent.models.objectives import (
    PREDICTION_METRICS,
    Batches,
    BuildContext,
    ObjectiveConfig,
    PairBatches,
    Read,
    StepShape,
)
from raysent.models.objectives import Objective as BaseObjective

_LEAST_TARGET = 1e-6


class Config(ObjectiveConfig):
    """Settings of relatedness.

    Attributes:
        hidden_size: Units of the sigmoid layer.
        num_levels: Rating levels; scores range from 1 to this.
        lambda_w: Weight of the L2-SP penalty on the word vectors.
        lambda_c: Weight of the penalty on the encoder's other parameters.
        lambda_head: Weight of the L2 penalty on the head.
        unit_length: Whether the head reads vectors of unit length; the text's reads sums of states as they are.
        penalty_center: Whether `lambda_c` penalizes the distance from the initial values (L2-SP) or from zero (L2).
    """

    num_towers: ClassVar[Literal[1, 2]] = 1
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "kept"
    is_by_example: ClassVar[bool] = True

    type: Literal["relatedness"] = "relatedness"
    hidden_size: int = pydantic.Field(default=300, ge=1)
    num_levels: int = pydantic.Field(default=5, ge=2)
    lambda_w: float = pydantic.Field(default=1e-4, ge=0)
    lambda_c: float = pydantic.Field(default=1e-5, ge=0)
    lambda_head: float = pydantic.Field(default=1e-7, ge=0)
    penalty_center: Literal["initial", "zero"] = "initial"
    unit_length: bool = True

    @property
    def batches(self) -> Batches:
        """Pairs of sentences with scores."""
        return PairBatches(needs_scores=True, num_levels=self.num_levels)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Correlation and squared error of the predicted scores."""
        return PREDICTION_METRICS

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the features with their gradients, and of the head's weights and moments."""
        features = 2 * shape.dim
        return (
            3 * shape.batch_size * (features + self.hidden_size) + 4 * features * self.hidden_size
        )


class Objective(BaseObjective):
    """The head and its loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        generator = build_context.generator
        self.hidden = linear_layer(2 * build_context.dim, config.hidden_size, generator=generator)
        self.output = linear_layer(config.hidden_size, config.num_levels, generator=generator)
        words: tuple[nn.Parameter, ...] = ()
        if build_context.words is not None:
            words = (build_context.words.weight,)
        head = [*self.hidden.parameters(), *self.output.parameters()]
        self.penalties = nn.ModuleList(
            [
                L2Penalty(words, weight=config.lambda_w, to="initial"),
                L2Penalty(
                    build_context.parameters, weight=config.lambda_c, to=config.penalty_center
                ),
                L2Penalty(head, weight=config.lambda_head, to="zero"),
            ]
        )
        self._num_levels = config.num_levels
        self._scales = config.unit_length
        self._divisor = config.num_levels if config.variant == "authors" else 1

    def forward(
        self, read: Read, batch: Pairs, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean over pairs."""
        del generator
        log_probabilities = self._log_probabilities(read, batch)
        levels = level_targets(torch.as_tensor(batch.scores), num_levels=self._num_levels)
        targets = (
            to_device(levels.to(log_probabilities.dtype), log_probabilities.device) + _LEAST_TARGET
        )
        return (targets * (targets.log() - log_probabilities)).mean(dim=0).sum() / self._divisor

    def penalty(self) -> Tensor:
        """Return the penalties on word vectors, encoder and head."""
        return torch.stack([penalty() for penalty in self.penalties]).sum()

    def predict(self, read: Read, batch: Pairs) -> Tensor:
        """Return the predicted score of each pair, the mean level [batch]."""
        levels = torch.arange(1, self._num_levels + 1, device=self.output.weight.device)
        return self._log_probabilities(read, batch).exp() @ levels.float()

    def _log_probabilities(self, read: Read, batch: Pairs) -> Tensor:
        u, v = [read(side)[0] for side in batch.parts]
        if self._scales:
            u = unit(u)
            v = unit(v)
        features = torch.cat([u * v, (u - v).abs()], dim=1)
        return functional.log_softmax(
            self.output(torch.sigmoid(self.hidden(features))).float(), dim=1
        )


def level_targets(scores: Tensor, *, num_levels: int) -> Tensor:
    """Return the distribution over rating levels whose mean is the score, float64 [batch, levels].

    Args:
        scores: From 1 to `num_levels` [batch].
        num_levels: Number of levels.
    """
    levels = torch.arange(1, num_levels + 1)
    # The two levels next to the score share the probability by their distance from it.
    return (1 - (scores.double()[:, None] - levels).abs()).clamp(min=0)
