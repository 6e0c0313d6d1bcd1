"""View joint: the sum of the losses of view agreement and view generation, with three views.

The second encoder has two maps (`num_maps: 2`): the first is the view that is compared, the second the inverse decoder.
With several workers, each compares only its own sentences.

The losses are added as published: agreement sums over a sentence's neighbours, generation is a mean over words.

Source: Tang and de Sa, 2018, appendix, section 5.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from raysent.data.batches import Batch
from raysent.models.encoders import EncoderConfig
from raysent.models.objectives import BuildContext, ObjectiveConfig, Read
from raysent.models.objectives import Objective as BaseObjective
from raysent.models.objectives.view_agreement import Config as Agreement
from raysent.models.objectives.view_agreement import Objective as AgreementObjective
from raysent.models.objectives.view_generation import Config as Generation
from raysent.models.objectives.view_generation import Objective as GenerationObjective
from raysent.models.objectives.view_generation import check_map


class Config(ObjectiveConfig):
    """Settings of both losses.

    Attributes:
        agreement: Settings of view agreement.
        generation: Settings of view generation.
    """

    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"

    type: Literal["view_joint"] = "view_joint"
    agreement: Agreement = Agreement()
    generation: Generation = Generation()

    def check_towers(self, first: EncoderConfig, second: EncoderConfig | None) -> None:
        """Refuse encoders without a map for each loss; see `check_map`."""
        check_map(first, second, num_maps=2, objective=self.type)
        super().check_towers(first, second)

    def comparable(self, vectors: Tensor) -> Tensor:
        """Return vectors of unit length."""
        return self.agreement.comparable(vectors)


class Objective(BaseObjective):
    """The sum of two losses on one batch."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self.agreement = AgreementObjective(config.agreement, build_context)
        self.generation = GenerationObjective(config.generation, build_context)

    def forward(
        self, read: Read, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the sum of the losses."""
        total: Tensor = self.agreement(read, batch) + self.generation(
            read, batch, generator=generator
        )
        return total

    def after_step(self) -> None:
        """Move the decoder's rows towards orthonormal ones."""
        self.generation.after_step()
