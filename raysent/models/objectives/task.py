"""Task: a linear layer on a sentence's vector predicts its class; the encoder is trained with it, end to end.

    loss = mean over the texts of the cross-entropy of softmax(W u + b), classes smoothed by `label_smoothing`

Rows are the training rows of the task that `labels.task` names, balanced over classes. Classes have other parts of a
batch than of the rows, so what is trained are the logits plus the logarithm of the former over the latter: the layer
itself then predicts classes as often as the rows have them. The layer is saved: it scores the model on the task where
validation rows prefer it to a probe on the vectors.

Source: Szegedy et al., 2016, section 7 (label smoothing); Menon et al., 2021, equation 10 (frequencies of classes).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from raysent.data.batches import LabelBatch
from raysent.kernels.devices import to_device
from raysent.models.layers import linear_layer
from raysent.models.objectives import (
    Batches,
    BuildContext,
    LabelBatches,
    ObjectiveConfig,
    Read,
    StepShape,
)
from raysent.models.objectives import Objective as BaseObjective


class Config(ObjectiveConfig):
    """Settings of a task's classes as the objective.

    Attributes:
        label_smoothing: Part of a text's probability that all classes share.
    """

    num_towers: ClassVar[Literal[1, 2]] = 1
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "kept"
    is_by_example: ClassVar[bool] = True

    type: Literal["task"] = "task"
    label_smoothing: float = pydantic.Field(default=0.0, ge=0, lt=1)

    @property
    def batches(self) -> Batches:
        """Training rows of a task."""
        return LabelBatches()

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the vectors with their gradients; a task has fewer classes than a vector numbers."""
        return 3 * shape.batch_size * shape.dim


class Objective(BaseObjective):
    """The layer and its loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self._label_smoothing = config.label_smoothing
        self.layer = linear_layer(
            build_context.dim, max(2, build_context.num_classes), generator=build_context.generator
        )

    def forward(
        self, read: Read, batch: LabelBatch, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean over the texts, in nats."""
        del generator
        logits = self.layer(read(batch.sentences)[0]).float()
        labels = to_device(batch.labels, logits.device)
        more_often = to_device(batch.more_often, logits.device)
        # Classes are drawn more or less often than they occur, so that the layer itself learns how often they do.
        missing = logits.shape[1] - len(more_often)
        drawn_logits = logits + functional.pad(more_often, (0, missing))
        return functional.cross_entropy(drawn_logits, labels, label_smoothing=self._label_smoothing)
