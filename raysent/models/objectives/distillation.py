"""Distillation: the vector of a sentence predicts what a teacher returns for it.

    p_i = W s_i + b   (p_i = s_i where the sizes are equal)
    loss = mean over sentences of  1 - cos(p_i, t_i)
           + lambda_similarity * mean over pairs of the batch of  (cos(s_i, s_j) - cos(t_i, t_j))^2
           + lambda_tasks * mean over tasks and sentences of  KL(q_i, softmax(V s_i + c))

s is the student's vector [dim], t the teacher's projected and centred vector, q the teacher's probabilities of the
classes of a task. W, b, V and c are used in training alone: a saved student encodes without them and without the
teacher.

Source: Romero et al., 2015 (a map from the student's to the teacher's hidden values); Tung and Mori, 2019
(similarity-preserving distillation); Hinton, Vinyals and Dean, 2015 (probabilities of a teacher).
Differs: similarities are cosines of all pairs, not products normalized by row; probabilities have temperature 1, since
the teacher's probes are linear and regularized.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.data.batches import TargetBatch
from raysent.errors import DataError
from raysent.kernels.devices import to_device
from raysent.models.layers import linear_layer, unit
from raysent.models.objectives import (
    Batches,
    BuildContext,
    ObjectiveConfig,
    Read,
    StepShape,
    TargetBatches,
)
from raysent.models.objectives import Objective as BaseObjective


class Config(ObjectiveConfig):
    """Settings of distillation.

    Attributes:
        teacher: Folder of a trained model, a composition, an ensemble or a sweep with an ensemble; or a scheme's name.
            Its vectors of the training text are computed once and kept in the cache.
        dim: Size of the target. The teacher's vectors are projected to it; smaller ones are kept as they are.
        projection: `pca` keeps the directions of most variance in a sample of the text, `random` random ones.
        tasks: Tasks on which the loss of the projection is measured. The log-probabilities of those that the teacher,
            an ensemble, was made on are learned too. None learns vectors alone.
        data: Folder of task files in SentEval's layout; None for embedded tasks alone.
        max_loss: The run is refused where the projection loses more than this: points of the mean validation score of
            probes on `tasks`, or percent of the variance without tasks.
        lambda_similarity: Weight of the cosines between the sentences of a batch.
        lambda_tasks: Weight of the log-probabilities.
    """

    num_towers: ClassVar[Literal[1, 2]] = 1
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"

    type: Literal["distillation"] = "distillation"
    teacher: str | None = None
    dim: int = pydantic.Field(default=1024, ge=1)
    projection: Literal["pca", "random"] = "pca"
    tasks: list[str] | None = pydantic.Field(default=None, min_length=1)
    data: str | None = None
    max_loss: float = pydantic.Field(default=1.0, ge=0)
    lambda_similarity: float = pydantic.Field(default=1.0, ge=0)
    lambda_tasks: float = pydantic.Field(default=1.0, ge=0)

    @property
    def is_by_example(self) -> bool:  # type: ignore[override]
        """Whether sentences are compared with their own targets alone."""
        return not self.lambda_similarity

    @property
    def presets(self) -> dict[str, Any]:
        """A higher learning rate that falls to zero: targets are fixed, so that training may end sharply."""
        return {"learning_rate": 5e-3, "schedule": "linear"}

    @property
    def batches(self) -> Batches:
        """Sentences of running text in random order, with the teacher's outputs."""
        return TargetBatches(
            teacher=self.teacher,
            dim=self.dim,
            projection=self.projection,
            tasks=None if self.tasks is None else tuple(self.tasks),
            data=self.data,
            max_loss=self.max_loss,
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The mean cosine with the target on held-out text."""
        return ("target_cosine",)

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of cosines, predictions and targets, and of the map's weights and moments."""
        return 6 * shape.batch_size**2 + 4 * shape.batch_size * self.dim + 4 * shape.dim * self.dim


class Objective(BaseObjective):
    """The maps from the student's vector to the targets, and their loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        targets = build_context.targets
        dim = build_context.dim
        if targets is None:
            raise DataError(
                "objective.teacher: needs running text whose targets are computed; given none"
            )
        self._config = config
        generator = build_context.generator
        self.map: nn.Module = nn.Identity()
        if dim != targets.dim:
            self.map = linear_layer(dim, targets.dim, generator=generator)
        self._tasks = tuple(targets.num_classes)
        self.probes = nn.ModuleList(
            linear_layer(dim, classes, generator=generator)
            for classes in targets.num_classes.values()
        )

    def forward(
        self, read: Read, batch: TargetBatch, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the loss of one batch, a scalar."""
        del generator
        (vectors,) = read(batch.sentences)
        # Sums over the batch stay in float32 under mixed precision.
        with torch.autocast(vectors.device.type, enabled=False):
            targets = unit(to_device(torch.from_numpy(batch.vectors), vectors.device))
            loss = 1 - self._cosines(vectors, targets).mean()
            if self._config.lambda_similarity:
                student = unit(vectors)
                differences = student @ student.T - targets @ targets.T
                # A sentence's cosine with itself is 1 for both.
                num_pairs = max(1, len(batch) * (len(batch) - 1))
                difference = differences.square().sum()
                loss = loss + self._config.lambda_similarity * difference / num_pairs
            if self._tasks and self._config.lambda_tasks:
                loss = loss + self._config.lambda_tasks * self._divergence(vectors, batch)
            return loss

    def held_out_totals(self, read: Read, batch: TargetBatch) -> dict[str, tuple[float, int]]:
        """Return the sum of the cosines with the targets."""
        (vectors,) = read(batch.sentences)
        targets = unit(to_device(torch.from_numpy(batch.vectors), vectors.device))
        return {"target_cosine": (self._cosines(vectors, targets).sum().item(), len(batch))}

    def _cosines(self, vectors: Tensor, targets: Tensor) -> Tensor:
        """Return the cosine of each sentence's prediction with its target, a unit vector [batch]."""
        return (unit(self.map(vectors)) * targets).sum(dim=1)

    def _divergence(self, vectors: Tensor, batch: TargetBatch) -> Tensor:
        """Return the mean over tasks and sentences of the divergence from the teacher's probabilities, in nats."""
        divergences = []
        for task, probe in zip(self._tasks, self.probes, strict=True):
            expected = to_device(torch.from_numpy(batch.log_probabilities[task]), vectors.device)
            predicted = functional.log_softmax(probe(vectors), dim=1)
            divergences.append(
                functional.kl_div(predicted, expected, log_target=True, reduction="batchmean")
            )
        return torch.stack(divergences).mean()
