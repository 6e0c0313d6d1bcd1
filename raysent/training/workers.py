"""Several processes that train one model: `Workers` communicates, `SharedLoss` computes the loss of one step.

Every rank holds the whole model and a contiguous block of the step's sentences. With gathered candidates, each rank
computes the loss over all sentences, but only the vectors of its own block carry gradient; the sum of the ranks'
parameter gradients is then exactly the gradient of that loss, as one process would compute it. Otherwise each rank has
the loss of its own sentences, and gradients are averaged or summed. More than one rank requires a torch.distributed
group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysent.data.batches import AnyBatch, Batch, Pairs, Sentences
from raysent.kernels.devices import to_device
from raysent.models import SentenceModel
from raysent.training.optimization import Optimizer
from raysent.training.run import RunConfig


@dataclass(frozen=True)
class Workers:
    """This process's rank among those that train one model, and their collective operations.

    Attributes:
        rank: 0 to world_size - 1; rank 0 validates, saves and reports.
        world_size: Number of processes.
    """

    rank: int = 0
    world_size: int = 1

    @classmethod
    def of_group(cls) -> Workers:
        """Return the rank in the torch.distributed group; without a group, the only rank."""
        if not dist.is_initialized():
            return cls()
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this process validates, saves and reports."""
        return self.rank == 0

    def gather_vectors(self, vectors: Tensor) -> Tensor:
        """Return all ranks' vectors in rank order; only this rank's rows carry gradient.

        Args:
            vectors: This rank's vectors [batch, dim]; batches have the same size on every rank.

        Returns:
            [batch * world_size, dim].
        """
        if self.world_size == 1:
            return vectors
        own = vectors.detach().contiguous()
        blocks = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(blocks, own)
        blocks[self.rank] = vectors
        return torch.cat(blocks)

    def gather_batch(self, batch: Batch, device: torch.device) -> Batch:
        """Return the batch of all ranks: positions and documents, without words."""
        if self.world_size == 1:
            return batch
        places = to_device(np.stack([batch.positions, batch.documents, batch.sentences.lengths]), device)
        blocks = [torch.empty_like(places) for _ in range(self.world_size)]
        dist.all_gather(blocks, places)
        positions, documents, lengths = torch.cat(blocks, dim=1).cpu().numpy()
        sentences = Sentences(ids=np.zeros(0, dtype=np.int32), lengths=lengths)
        return Batch(sentences=sentences, positions=positions, documents=documents)

    def gather_pairs(self, pairs: Pairs) -> Pairs:
        """Return as many pairs as all ranks have together, without words, labels or scores."""
        nothing = np.zeros(0, dtype=np.int32)
        first, second = (Sentences(nothing, np.tile(side.lengths, self.world_size)) for side in pairs.parts)
        return Pairs(first, second)

    def gather_words(self, words: Tensor) -> Tensor:
        """Return the distinct words of all ranks' sentences, ascending, int64 [words]."""
        return words if self.world_size == 1 else torch.unique(self._gather_ragged(words))

    def combine(self, parameters: Iterable[nn.Parameter], loss: Tensor, *, mean: bool) -> Tensor:
        """Sum or average the gradients over the ranks, in place.

        Dense gradients are sent as one flat buffer, sparse gradients of word tables as the rows in use.

        Args:
            parameters: All trained parameters, in the same order on every rank.
            loss: This rank's loss, a scalar.
            mean: Whether gradients are averaged or summed.

        Returns:
            The mean of the ranks' losses, a scalar, equal on all ranks.
        """
        if self.world_size == 1:
            return loss
        scale = 1.0 / self.world_size if mean else 1.0
        trained = list(parameters)
        for parameter in trained:
            if parameter.grad is None:  # a part that this rank's sentences did not reach
                parameter.grad = torch.zeros_like(parameter)
        has_rows = self._any([_is_sparse(parameter) for parameter in trained], loss.device)
        for parameter, sparse in zip(trained, has_rows, strict=True):
            if sparse:
                parameter.grad = self._sum_rows(parameter, scale)
        dense = [p.grad for p, sparse in zip(trained, has_rows, strict=True) if not sparse and p.grad is not None]
        return self._sum_dense(dense, loss, scale)

    def _sum_dense(self, gradients: list[Tensor], loss: Tensor, scale: float) -> Tensor:
        """Sum dense gradients and the loss over the ranks in one flat buffer; returns the mean loss."""
        parts = [*(gradient.reshape(-1) for gradient in gradients), loss.detach().float().reshape(1)]
        flat = torch.cat(parts)
        dist.all_reduce(flat)
        start = 0
        for gradient in gradients:
            stop = start + gradient.numel()
            gradient.copy_(flat[start:stop].view_as(gradient)).mul_(scale)
            start = stop
        return flat[-1] / self.world_size

    def _sum_rows(self, parameter: nn.Parameter, scale: float) -> Tensor:
        """Return the sum of the ranks' row gradients, sparse and coalesced."""
        rows, values = _rows_of(parameter)
        index, value = self._gather_ragged(rows), self._gather_ragged(values)
        return torch.sparse_coo_tensor(
            index[None], value * scale, parameter.shape, check_invariants=False, is_coalesced=False
        ).coalesce()

    def _gather_ragged(self, rows: Tensor) -> Tensor:
        """Return all ranks' rows in rank order; ranks may have different numbers of rows."""
        counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(self.world_size)]
        dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
        # all_gather requires equal shapes: pad to the longest, and cut afterwards.
        longest = max(int(count) for count in counts)
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        blocks = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(blocks, padded)
        return torch.cat([block[: int(count)] for block, count in zip(blocks, counts, strict=True)])

    def _any(self, flags: list[bool], device: torch.device) -> list[bool]:
        """Return for each flag whether it is set on any rank."""
        seen = torch.tensor(flags, dtype=torch.int32, device=device)
        dist.all_reduce(seen, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in seen.tolist()]

    def share(self, values: dict[str, float], device: torch.device) -> dict[str, float]:
        """Return rank 0's values on every rank."""
        if self.world_size == 1:
            return values
        shared: list[dict[str, float]] = [values]
        dist.broadcast_object_list(shared, src=0, device=device)
        return shared[0]

    def agree(self, value: int, device: torch.device) -> int:
        """Return rank 0's value on every rank."""
        if self.world_size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.int64, device=device)
        dist.broadcast(shared, src=0)
        return int(shared)


def _is_sparse(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


def _rows_of(parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
    """Return the rows with gradient, and their gradients; both are empty without a gradient."""
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse:
        empty = torch.zeros(0, dtype=torch.int64, device=parameter.device)
        return empty, parameter.detach().new_zeros(0, parameter.shape[1])
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()


def dropout_generator(seed: int, step: int, rank: int) -> torch.Generator:
    """Return the random generator of one step on one worker."""
    mixed = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed >> np.uint64(1)))


class SharedLoss:
    """The loss of one step, and the gradients that several workers combine to.

    Attributes:
        gathers: Whether every worker computes the whole loss, from the vectors of all.
    """

    def __init__(
        self, config: RunConfig, model: SentenceModel, optimizer: Optimizer, *, workers: Workers, device: torch.device
    ) -> None:
        """Prepare the loss of a run's steps.

        Args:
            config: The run.
            model: The model to train.
            optimizer: Updates the word vectors of a step before they are read.
            workers: This process's rank among several.
            device: Where to compute.
        """
        rule = config.objective.across_workers
        self.gathers = rule == "gather" and config.training.gather_candidates and workers.world_size > 1
        self._is_sum = rule == "sum"
        self._seed = config.seed
        self._model, self._optimizer = model, optimizer
        self._workers, self._device = workers, device

    def __call__(self, batch: AnyBatch, *, step: int, generator: torch.Generator) -> Tensor:
        """Return the loss of a step's sentences, a scalar with gradient.

        Args:
            batch: This worker's part of the batch.
            step: Number of the step, which seeds the negatives that all workers draw alike.
            generator: Source of this worker's randomness.
        """
        if isinstance(batch, Batch):
            return self._of_contexts(batch, generator)
        batch = self._model.prepare(batch, generator=generator)
        words = np.unique(np.concatenate([part.ids for part in batch.parts]))
        # All workers' words on all workers, so that their word tables stay bit-identical.
        self._optimizer.catch_up(self._workers.gather_words(to_device(words, self._device)))
        if self.gathers and isinstance(batch, Pairs):
            return self._of_all_pairs(batch, step=step, generator=generator)
        return self._model.loss(batch, generator=generator)

    def _of_contexts(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the loss of a batch of running text, or of all workers' batches together."""
        packed = self._model.pack(batch.sentences)
        self._optimizer.catch_up(self._workers.gather_words(packed.words))
        vectors = self._model.vectors(packed, generator=generator)
        if self.gathers:
            vectors = tuple(map(self._workers.gather_vectors, vectors))
            batch = self._workers.gather_batch(batch, self._device)
        reader = self._model.step_reader(generator)
        reader.add(batch.sentences, vectors)
        return self._model.loss(batch, generator=generator, reader=reader, penalty_weight=self._penalty_weight)

    def _of_all_pairs(self, pairs: Pairs, *, step: int, generator: torch.Generator) -> Tensor:
        """Return the loss over all workers' pairs; only this worker's vectors carry gradient."""
        gathered = self._workers.gather_pairs(pairs)
        reader = self._model.step_reader(generator)
        for own, everyones in zip(pairs.parts, gathered.parts, strict=True):
            packed = self._model.pack(own)
            vectors = self._model.vectors(packed, generator=generator)
            reader.add(everyones, tuple(map(self._workers.gather_vectors, vectors)))
            with torch.no_grad():
                self._model.eval()
                plain = self._model.vectors(packed)
                self._model.train()
            reader.add(everyones, tuple(map(self._workers.gather_vectors, plain)), is_training=False)
        # All workers draw the same negatives.
        common = dropout_generator(self._seed, step, 0)
        return self._model.loss(gathered, generator=common, reader=reader, penalty_weight=self._penalty_weight)

    @property
    def _penalty_weight(self) -> float:
        """Weight of the penalty on parameters, which every worker adds where the workers' losses are one."""
        return 1 / self._workers.world_size if self.gathers else 1.0

    def combine(self, loss: Tensor) -> Tensor:
        """Combine the workers' gradients in place, as the objective's `across_workers` says.

        Args:
            loss: This worker's loss, a scalar without gradient.

        Returns:
            The loss of the whole step, a scalar, equal on all workers.
        """
        if self.gathers:
            # Every worker has the whole loss, so the objective's own parameters have the whole gradient on each.
            for parameter in self._model.objectives.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self._workers.world_size
        is_mean = not (self.gathers or self._is_sum)
        loss = self._workers.combine(self._optimizer.parameters, loss, mean=is_mean)
        return loss * self._workers.world_size if self._is_sum else loss
