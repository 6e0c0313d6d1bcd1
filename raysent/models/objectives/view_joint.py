"""View generation and view agreement together: the sum of both losses, three views.

The second encoder has two maps (`num_maps: 2`): the first is the view that agrees, the second the inverse decoder.

With several workers each compares its own sentences only.

Source: Tang and de Sa, 2018, appendix, section 5.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from raysent.data.batches import Batch
from raysent.models.objectives import BuildContext, ObjectiveConfig, Read
from raysent.models.objectives import Objective as BaseObjective
from raysent.models.objectives.view_agreement import Config as Agreement
from raysent.models.objectives.view_agreement import Objective as AgreementObjective
from raysent.models.objectives.view_generation import Config as Generation
from raysent.models.objectives.view_generation import Objective as GenerationObjective


class Config(ObjectiveConfig):
    """Both.

    Attributes:
        agreement: Settings of the one.
        generation: Settings of the other.
    """

    has_state: ClassVar[bool] = True
    is_cosine: ClassVar[bool] = True
    reads_counts: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    needs_map: ClassVar[bool] = True
    num_maps: ClassVar[int] = 2

    type: Literal["view_joint"] = "view_joint"
    agreement: Agreement = Agreement()
    generation: Generation = Generation()


class Objective(BaseObjective):
    """The sum of two losses on one batch."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self.agreement = AgreementObjective(config.agreement, build_context)
        self.generation = GenerationObjective(config.generation, build_context)

    def forward(self, read: Read, batch: Batch, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the sum of the losses."""
        both: Tensor = self.agreement(read, batch) + self.generation(read, batch, generator=generator)
        return both

    def after_step(self) -> None:
        """Bring the decoder's rows back towards orthonormal ones."""
        self.generation.after_step()
