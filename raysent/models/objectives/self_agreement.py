"""Self agreement: the vector of a sentence is more similar to those of its neighbours than to other sentences.

    a_ij = cos(f_i, f_j),  j other than i;  loss as in `view_agreement`

Source: Tang and de Sa, 2018, table 6, the single-view rows.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from raysent.models.objectives import BuildContext, ContextObjective, neighbour_masks
from raysent.models.objectives.view_agreement import Agreement, AgreementConfig


class Config(AgreementConfig):
    """Settings of the agreement of one view with itself."""

    num_towers: ClassVar[Literal[1, 2]] = 1

    type: Literal["self_agreement"] = "self_agreement"


class Objective(ContextObjective):
    """The loss of one batch."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__(config)
        self.agreement = Agreement(config, build_context)

    def compare(self, vectors: tuple[Tensor, ...], places: Tensor, rows: slice) -> Tensor:
        """Return the mean over the sentences that have a neighbour, in nats."""
        neighbours, is_other = neighbour_masks(
            places[rows], places, context_size=self._context_size
        )
        f = self.agreement.unit(vectors[0])
        return self.agreement.loss(f[rows] @ f.T, neighbours, is_candidate=neighbours | is_other)
