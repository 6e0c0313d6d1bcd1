"""What trains a model: vectors with gradient, the objective's losses on them, and its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.codes import straight_through
from raysent.embeddings import WordTable
from raysent.model.encoding import Encoding
from raysent.model.reading import Reading
from raysent.objectives import Objective
from raysent.packing import Packed
from raysent.vocabulary import Sentences

if TYPE_CHECKING:
    from raysent.batches import AnyBatch


class Learning(Encoding):
    """Towers and the objectives that read them.

    Attributes:
        objectives: One for each block that has a loss of its own; none in a model that was loaded and whose objective
            does not stay with it.
    """

    objectives: nn.ModuleList

    @property
    def tables(self) -> list[WordTable]:
        """The trained word tables, each once, in a fixed order."""
        return [table for table in self._word_tables() if table.weight.requires_grad]

    def _word_tables(self) -> list[WordTable]:
        return [module for module in self.modules() if isinstance(module, WordTable)]

    def use_sparse_gradients(self, enabled: bool = True) -> None:
        """Choose whether a word table's gradient holds the rows in use only, as `RowAdam` wants it."""
        for table in self.tables:
            table.sparse_gradient = enabled

    def vectors(self, sentences: Sentences | Packed, *, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Encode with every tower, with gradient.

        Args:
            sentences: Ids and lengths, or the same packed.
            generator: Source of dropout's masks in training; None is torch's own.

        Returns:
            f, or f and g, each float32 [batch, dim]; where a code is trained, the finished vectors alone; where the
            objective sees the bits, these as -1 and 1.
        """
        packed = sentences if isinstance(sentences, Packed) else self.pack(sentences)
        if self.config.objective.trains_code:
            with torch.no_grad():
                return (self.postprocessing(self._blocks(packed)),)
        for table in self._word_tables():
            table.generator = generator
        vectors = tuple(tower(packed).float() for tower in self.towers)
        if self.code is not None:
            vectors = tuple(2 * straight_through(tower) - 1 for tower in vectors)
        if not self.training:
            return vectors
        masks = self._dropout_masks(packed.batch, generator)
        return tuple(tower * mask.to(tower.device) for tower, mask in zip(vectors, masks, strict=True))

    def _dropout_masks(self, batch: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """Return each tower's factors, broadcastable to [batch, dim]."""
        first, second = self.config.encoder.dropout_masks(batch, generator=generator)
        if self.config.second_encoder is not None:
            second = self.config.second_encoder.dropout_masks(batch, generator=generator)[1]
        return (first, second)[: self.config.objective.num_towers]

    def loss(
        self,
        batch: AnyBatch,
        *vectors: Tensor,
        packed: Packed | None = None,
        generator: torch.Generator | None = None,
        reading: Reading | None = None,
        penalty_share: float = 1.0,
    ) -> Tensor:
        """Return the objective's value, a scalar; where members train separately, the sum of their losses.

        Args:
            batch: Sentences and what the objective knows of them.
            vectors: The towers' vectors of the batch's `sentences` [batch, dim] each, for instance gathered from
                several workers; by default they are encoded here.
            packed: The batch's `sentences` packed, to save doing it again.
            generator: Source of randomness in training, the encoders' and the objective's; None is torch's own.
            reading: Knows vectors already; by default one that knows none.
            penalty_share: Share of the parameters' own penalty that is added, where several workers' losses are added.
        """
        reading = reading or self.reading(generator)
        if packed is not None and not vectors:
            vectors = self.vectors(packed, generator=generator)
        if vectors:
            reading.know(batch.sentences, vectors)  # type: ignore[union-attr]  # pairs have no such column, nor these
        dims = self._loss_dims
        losses = [
            objective(reading.block(index, dims), batch, generator=generator)
            for index, objective in enumerate(self.objectives)
        ]
        penalties = [objective.penalty().to(losses[0].device) for objective in self._objectives()]
        return torch.stack(losses).sum() + penalty_share * torch.stack(penalties).sum()

    def prepare(self, batch: AnyBatch, *, generator: torch.Generator | None = None) -> AnyBatch:
        """Return a training batch as the objective wants it."""
        prepared: AnyBatch = self._objectives()[0].prepare(batch, generator=generator)
        return prepared

    @torch.no_grad()
    def scores(self, batch: AnyBatch) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of cases of each metric of the objective on a held-out batch, over blocks."""
        reading, dims = self.reading(None), self._loss_dims
        totals: dict[str, tuple[float, int]] = {}
        for index, objective in enumerate(self._objectives()):
            for name, (total, count) in objective.scores(reading.block(index, dims), batch).items():
                before = totals.get(name, (0.0, 0))
                totals[name] = (before[0] + total, before[1] + count)
        return totals

    @torch.no_grad()
    def predictions(self, batch: AnyBatch) -> npt.NDArray[np.float64]:
        """Return the score that the objective predicts for each pair, the mean over blocks, float64 [batch]."""
        reading, dims = self.reading(None), self._loss_dims
        blocks = [
            objective.predict(reading.block(index, dims), batch) for index, objective in enumerate(self._objectives())
        ]
        found: npt.NDArray[np.float64] = torch.stack(blocks).mean(dim=0).double().cpu().numpy()
        return found

    def after_step(self) -> None:
        """Let the objective keep its constraints after the optimiser's step."""
        for objective in self._objectives():
            objective.after_step()

    def _objectives(self) -> list[Objective]:
        return [cast("Objective", objective) for objective in self.objectives]

    def reading(self, generator: torch.Generator | None) -> Reading:
        """Return the way in which the objective reads in one step."""

        def read(sentences: Sentences, is_training: bool) -> tuple[Tensor, ...]:
            if is_training or not self.training:
                return self.vectors(sentences, generator=generator)
            self.eval()
            vectors = self.vectors(sentences)
            self.train()
            return vectors

        return Reading(read, has_dropout=self.training and any(tower.has_dropout for tower in self.config.towers))

    def compared(self, sentences: Sentences) -> tuple[Tensor, ...]:
        """Return each tower's vectors as a dot product may compare them: of unit length where only angles count."""
        vectors = self.vectors(sentences)
        if not self.config.objective.is_cosine:
            return vectors
        return tuple(nn.functional.normalize(tower, dim=1) for tower in vectors)

    @property
    def _loss_dims(self) -> list[int]:
        """Sizes of the blocks that have a loss of their own; of a code's training the whole vector."""
        if self.config.objective.trains_code:
            return [self.postprocessing.dim()]
        return list(self.config.encoder.loss_dims)
