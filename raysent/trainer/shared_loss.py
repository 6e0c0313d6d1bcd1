"""The loss of one step: of this worker's sentences, or of all workers' together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysent.batches import AnyBatch, Batch, Pairs
from raysent.devices import on_device
from raysent.model import SentenceModel
from raysent.run import RunConfig
from raysent.trainer.optimization import Optimizer
from raysent.trainer.plan import dropout_generator
from raysent.trainer.workers import Workers


class SharedLoss:
    """What a step minimises.

    Attributes:
        gathers: Whether every worker computes the whole loss, over the vectors of all.
    """

    def __init__(
        self, config: RunConfig, model: SentenceModel, optimizer: Optimizer, *, workers: Workers, device: torch.device
    ) -> None:
        """Say how a run's sentences are shared.

        Args:
            config: The run.
            model: What encodes.
            optimizer: Brings the words of a step up to date before they are read.
            workers: This process's place among several.
            device: Where to compute.
        """
        # Other losses than those over contexts are each worker's own: no sentence needs another worker's.
        is_shared = (
            config.training.gather_candidates
            and config.objective.reads in {"context", "pairs"}
            and config.objective.compares
        )
        self.gathers = is_shared and workers.world_size > 1
        self._seed = config.seed
        self._model, self._optimizer = model, optimizer
        self._workers, self._device = workers, device

    def __call__(self, batch: AnyBatch, *, step: int, generator: torch.Generator) -> Tensor:
        """Return the objective's value on a step's sentences, a scalar.

        Args:
            batch: This worker's.
            step: Which one; negatives that all workers draw alike are a function of it.
            generator: Source of this worker's randomness.
        """
        if not isinstance(batch, Batch):
            batch = self._model.prepare(batch, generator=generator)
            words = np.unique(np.concatenate([part.ids for part in batch.parts]))
            # All workers' words on all workers, so that their tables stay the same to the last bit.
            self._optimizer.catch_up(self._workers.gather_words(on_device(words, self._device)))
            if self.gathers and isinstance(batch, Pairs):
                return self._of_all_pairs(batch, step=step, generator=generator)
            return self._model.loss(batch, generator=generator)
        packed = self._model.pack(batch.sentences)
        self._optimizer.catch_up(self._workers.gather_words(packed.words))
        vectors = self._model.vectors(packed, generator=generator)
        if self.gathers:
            vectors = tuple(map(self._workers.gather_vectors, vectors))
            batch = self._workers.gather_batch(batch, self._device)
        return self._model.loss(batch, *vectors, generator=generator, penalty_share=self._share)

    def _of_all_pairs(self, pairs: Pairs, *, step: int, generator: torch.Generator) -> Tensor:
        """Return the loss over all workers' pairs; only this one's vectors carry gradient."""
        everyone = self._workers.gather_pairs(pairs)
        reading = self._model.reading(generator)
        for own, all_of_them in zip(pairs.parts, everyone.parts, strict=True):
            packed = self._model.pack(own)
            vectors = self._model.vectors(packed, generator=generator)
            reading.know(all_of_them, tuple(map(self._workers.gather_vectors, vectors)))
            with torch.no_grad():
                self._model.eval()
                plain = self._model.vectors(packed)
                self._model.train()
            reading.know(all_of_them, tuple(map(self._workers.gather_vectors, plain)), is_training=False)
        # Negatives are drawn alike by everybody.
        common = dropout_generator(self._seed, step, 0)
        return self._model.loss(everyone, generator=common, reading=reading, penalty_share=self._share)

    @property
    def _share(self) -> float:
        """What a worker counts of a loss that all workers compute alike."""
        return 1 / self._workers.world_size if self.gathers else 1.0
