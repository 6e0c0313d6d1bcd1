"""Self agreement: the vector of a sentence is more similar to those of its neighbours than to other sentences.

    a_ij = cos(f_i, f_j),  j other than i;  loss as in `view_agreement`

Source: Tang and de Sa, 2018, table 6, the single-view rows.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from raysent.data.batches import Batch
from raysent.models.objectives import BuildContext, Read, has_neighbour, neighbour_masks, places_of, share_of_rows
from raysent.models.objectives import Objective as BaseObjective
from raysent.models.objectives.view_agreement import Agreement, AgreementConfig


class Config(AgreementConfig):
    """Settings of the agreement of one view with itself."""

    num_towers: ClassVar[Literal[1, 2]] = 1

    type: Literal["self_agreement"] = "self_agreement"


class Objective(BaseObjective):
    """The loss of one batch."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self._config = config
        self.agreement = Agreement(config, build_context)

    def forward(self, read: Read, batch: Batch, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean over the sentences that have a neighbour, in nats, or what this worker's rows add to it."""
        del generator
        (f,) = read(batch.sentences)
        places, rows = places_of(batch.positions, batch.documents, f.device), batch.rows or slice(None)
        size = self._config.context_size
        with torch.autocast(f.device.type, enabled=False):
            neighbours, others = neighbour_masks(places[rows], places, context_size=size)
            vectors = self.agreement.unit(f)
            loss = self.agreement.loss(vectors[rows] @ vectors.T, neighbours, is_candidate=neighbours | others)
            return loss if batch.rows is None else loss * share_of_rows(has_neighbour(places, context_size=size), rows)
