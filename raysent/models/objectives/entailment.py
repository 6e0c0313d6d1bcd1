"""Entailment: predict a pair's class from both vectors, their difference and their product.

    features = [u ; v ; |u - v| ; u * v]  ->  linear layers  ->  softmax;  loss = mean cross-entropy

Source: Conneau et al., 2017, section 3.1; the released code has one hidden layer of 512 without non-linearity.
Differs: trained with Adam, as everything here; the paper used SGD with rate 0.1, decayed by 0.99 an epoch and divided
by 5 when development accuracy fell.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.data.pairs import Pairs
from raysent.errors import DataError
from raysent.kernels.devices import to_device
from raysent.models.layers import linear_layer
from raysent.models.objectives import (
    Batches,
    BuildContext,
    ObjectiveConfig,
    PairBatches,
    Read,
    StepShape,
)
from raysent.models.objectives import Objective as BaseObjective


class Config(ObjectiveConfig):
    """Settings of entailment.

    Attributes:
        hidden_size: Units between features and classes; None for no hidden layer.
        activation: Their non-linearity; InferSent's released classifier is `linear`.
    """

    num_towers: ClassVar[Literal[1, 2]] = 1
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"
    is_by_example: ClassVar[bool] = True

    type: Literal["entailment"] = "entailment"
    hidden_size: int | None = pydantic.Field(default=512, ge=1)
    activation: Literal["linear", "tanh"] = "linear"

    @property
    def batches(self) -> Batches:
        """Pairs of sentences."""
        return PairBatches()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Accuracy and negative log-likelihood of held-out pairs."""
        return ("accuracy", "nll")

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the features with their gradients, and of the hidden layer's weights and moments."""
        features = 4 * shape.dim
        hidden = self.hidden_size or 0
        return 3 * shape.batch_size * (features + hidden) + 4 * features * hidden


class Objective(BaseObjective):
    """The classifier and its loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        if build_context.num_classes < 2:
            raise DataError(
                "pairs.label: must name a column of at least two classes for objective entailment"
            )
        self._config = config
        sizes = [4 * build_context.dim]
        if config.hidden_size:
            sizes.append(config.hidden_size)
        sizes.append(build_context.num_classes)
        self.layers = nn.ModuleList(
            linear_layer(inputs, outputs, generator=build_context.generator)
            for inputs, outputs in pairwise(sizes)
        )

    def forward(
        self, read: Read, batch: Pairs, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean over the pairs, in nats."""
        del generator
        return functional.cross_entropy(self._logits(read, batch), self._labels(batch))

    def held_out_totals(self, read: Read, batch: Pairs) -> dict[str, tuple[float, int]]:
        """Return how many pairs are classified correctly, and their negative log-likelihood in nats."""
        logits = self._logits(read, batch)
        labels = self._labels(batch)
        right = int((logits.argmax(dim=1) == labels).sum())
        nll = functional.cross_entropy(logits, labels, reduction="sum").item()
        return {"accuracy": (right, len(labels)), "nll": (nll, len(labels))}

    def _logits(self, read: Read, batch: Pairs) -> Tensor:
        u = read(batch.first)[0]
        v = read(batch.second)[0]
        values = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
        for number, layer in enumerate(self.layers):
            # The features themselves are read as they are.
            if number and self._config.activation == "tanh":
                values = torch.tanh(values)
            values = layer(values)
        return values.float()

    def _labels(self, batch: Pairs) -> Tensor:
        return to_device(np.asarray(batch.labels), next(self.parameters()).device)
