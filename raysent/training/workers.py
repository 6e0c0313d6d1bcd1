"""Several processes that train one model: `Workers` communicates, `SharedLoss` computes the loss of one step.

Every rank holds the whole model and encodes a block of the step's sentences; `Exchange` is what ranks send each other
for it. Losses are divided so that they add up to the loss that one process computes, and so do the gradients:

1. forward    all ranks' vectors are gathered where a loss compares them, and each rank has the loss of its own rows
2. backward   the gradients of the gathered vectors are summed and return to the rank that encoded them; the gradients
              of parameters are summed in buckets while backward still computes others
3. step       every rank has the same gradients, and makes the same step

A step never waits for the device: the places, the words and the number of sentences of all ranks follow from the step.
More than one rank requires a torch.distributed group.

Source: Li et al., 2020, "PyTorch Distributed", section 3.2, for buckets in a fixed order that overlap backward.
Differs: a word table's gradient is summed over the rows of the step's words, instead of over the whole table.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from raysent.data.batches import (
    AnyBatch,
    AnyStream,
    Batch,
    Triplets,
    block_of,
    distinct_words,
    divide,
)
from raysent.data.vocabulary import Sentences
from raysent.errors import ConfigError, TrainingError
from raysent.kernels.devices import is_gpu, to_device
from raysent.kernels.packing import PackedAhead
from raysent.models import SentenceModel
from raysent.training.feed import PreparedStep, StepFeed
from raysent.training.optimization import Optimizer
from raysent.training.run import RunConfig

# Large enough that a sum is not mostly latency, small enough that the first one starts early in backward.
_BUCKET_BYTES = 4 << 20


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

    def check_weights(self, parameters: Sequence[nn.Parameter], *, step: int) -> None:
        """Compare a hash of the weights over the ranks.

        Args:
            parameters: All trained parameters, up to date and in the same order on every rank.
            step: Steps so far, for the message.

        Raises:
            TrainingError: On every rank, if a rank has other weights.
        """
        if self.world_size == 1:
            return
        digest = hashlib.sha256()
        for parameter in parameters:
            digest.update(parameter.detach().cpu().contiguous().numpy().data)
        # As numbers, because a group gathers tensors.
        numbers = np.frombuffer(digest.digest(), dtype=np.int64).copy()
        rank_hash = torch.from_numpy(numbers).to(parameters[0].device)
        hashes = [torch.empty_like(rank_hash) for _ in range(self.world_size)]
        dist.all_gather(hashes, rank_hash)
        first_hash = hashes[0].tolist()
        different = [
            str(rank)
            for rank, gathered_hash in enumerate(hashes)
            if gathered_hash.tolist() != first_hash
        ]
        if different:
            raise TrainingError(
                f"workers: must have the same weights as worker 0 after step {step}; given others on worker "
                f"{', '.join(different)}; use machines of one kind with the same versions, and resume"
            )

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


class Exchange:
    """What the ranks send each other in one step: vectors, the gradients of these, and the gradients of parameters.

    Call order in a step: `gather` in forward; `begin` before backward, `finish` after it. All ranks send in the same
    order: buckets start in a fixed order, and only after the gradients of the gathered vectors.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        tables: Sequence[nn.Parameter],
        *,
        workers: Workers,
        overlaps: bool = True,
    ) -> None:
        """Divide the parameters into buckets, in about the order in which backward finishes them.

        Args:
            parameters: All trained parameters, in the same order on every rank.
            tables: Those of them whose gradients hold only the rows of the step's words.
            workers: This process's rank; there is more than one.
            overlaps: Whether sums start in backward; False where backward adds to a gradient several times.
        """
        self._workers = workers
        self._tables = {id(table) for table in tables}
        self._buckets = _buckets(parameters, self._tables)
        self._num_gathered = 0  # whose gradients have not been sent back yet
        self._words = torch.empty(0)
        self._loss = torch.empty(0)
        self._num_missing: list[int] = []
        self._sums: list[tuple[Tensor, Any]] = []
        # The nodes exist as long as they are referred to. Their hooks run once a backward, when a gradient is complete,
        # also that of a table, which is not assigned by autograd.
        self._nodes = [
            [get_gradient_edge(parameter).node for parameter in bucket] for bucket in self._buckets
        ]
        if overlaps:
            # By a weak reference, as the nodes' hooks would keep the exchange, which keeps the nodes.
            exchange = weakref.ref(self)
            for number, nodes in enumerate(self._nodes):
                for node in nodes:
                    node.register_hook(partial(_mark_complete, exchange, number))

    def gather(self, vectors: tuple[Tensor, ...], *, count: int) -> tuple[Tensor, ...]:
        """Return all ranks' vectors in rank order; their gradients return to the ranks.

        Args:
            vectors: Each tower's vectors of this rank's block [batch, dim].
            count: Sentences of all ranks, divided by `block_of`.

        Returns:
            [count, dim] each.
        """
        dims = [tower.shape[1] for tower in vectors]
        rows = torch.cat(vectors, dim=1)
        if torch.is_grad_enabled() and rows.requires_grad:
            self._num_gathered += 1
        all_rows: Tensor = _Gather.apply(rows, count, self)  # type: ignore[no-untyped-call]
        return torch.split(all_rows, dims, dim=1)

    def begin(self, words: Tensor, loss: Tensor) -> None:
        """Start to sum what backward completes.

        Args:
            words: The distinct words of all ranks' sentences, ascending, int64 [words].
            loss: This rank's part of the loss, a scalar.
        """
        self._words = words
        self._num_missing = [len(bucket) for bucket in self._buckets]
        self._sums = []
        self._loss = loss.detach().clone()
        self._loss_work = dist.all_reduce(self._loss, async_op=True)

    def complete(self, number: int) -> None:
        """Note that one more gradient of a bucket is complete, and start the sums that are due."""
        self._num_missing[number] -= 1
        while not self._num_gathered and len(self._sums) < len(self._buckets):
            if self._num_missing[len(self._sums)]:
                return
            self._start()

    @torch.no_grad()
    def finish(self) -> Tensor:
        """Set the gradients to their sums over the ranks; returns the sum of the losses, a scalar.

        A parameter that no sentence of this rank reached has a gradient of zero.
        """
        while len(self._sums) < len(self._buckets):
            self._start()
        self._loss_work.wait()
        for bucket, (bucket_sum, work) in zip(self._buckets, self._sums, strict=True):
            work.wait()
            self._assign(bucket, bucket_sum)
        self._num_missing = []
        self._sums = []
        self._num_gathered = 0
        return self._loss

    @torch.no_grad()
    def _start(self) -> None:
        """Start to sum the gradients of the next bucket over the ranks."""
        bucket = self._buckets[len(self._sums)]
        if self._holds_rows(bucket[0]):
            sent = self._rows(bucket[0])
        else:
            sent = _joined_gradients(bucket)
        self._sums.append((sent, dist.all_reduce(sent, async_op=True)))

    def _holds_rows(self, parameter: nn.Parameter) -> bool:
        """Return whether a gradient has rows only; a penalty on all word vectors makes that of a table dense."""
        is_dense = parameter.grad is not None and not parameter.grad.is_sparse
        return id(parameter) in self._tables and not is_dense

    def _rows(self, table: nn.Parameter) -> Tensor:
        """Return a table's gradient at the words of all ranks, zero at words that this rank lacks [words, dim]."""
        gradient = table.new_zeros(len(self._words), table.shape[1])
        if table.grad is not None:
            rows = torch.searchsorted(self._words, table.grad._indices()[0])
            gradient.index_add_(0, rows, table.grad._values())
        return gradient

    def _assign(self, bucket: list[nn.Parameter], bucket_sum: Tensor) -> None:
        """Set the gradients of a bucket to their sum over the ranks."""
        if self._holds_rows(bucket[0]):
            bucket[0].grad = torch.sparse_coo_tensor(
                self._words[None],
                bucket_sum,
                bucket[0].shape,
                is_coalesced=True,
                check_invariants=False,
            )
            return
        sizes = [parameter.numel() for parameter in bucket]
        parts = torch.split(bucket_sum.reshape(-1), sizes)
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def all_gather(self, rows: Tensor, count: int) -> Tensor:
        """Return all ranks' rows [count, dim] of this rank's [batch, dim]."""
        sizes = self._sizes(count)
        # A group gathers tensors of one shape.
        padded = rows.new_zeros(max(sizes), rows.shape[1])
        padded[: len(rows)] = rows
        blocks = padded.new_empty(len(sizes), *padded.shape)
        dist.all_gather(list(blocks.unbind()), padded)
        if min(sizes) == max(sizes):
            return blocks.flatten(0, 1)
        return torch.cat([block[:size] for block, size in zip(blocks, sizes, strict=True)])

    def reduce_scatter(self, all_rows: Tensor) -> Tensor:
        """Return the sum over the ranks of this rank's rows [batch, dim] of all ranks' [count, dim]."""
        sizes = self._sizes(len(all_rows))
        most = max(sizes)
        blocks = [block.contiguous() for block in torch.split(all_rows, sizes)]
        if min(sizes) < most:
            blocks = [nn.functional.pad(block, (0, 0, 0, most - len(block))) for block in blocks]
        padded_sum = torch.empty_like(blocks[0])
        dist.reduce_scatter(padded_sum, blocks)
        self._num_gathered -= 1
        return padded_sum[: sizes[self._workers.rank]]

    def _sizes(self, count: int) -> list[int]:
        world_size = self._workers.world_size
        blocks = (block_of(count, rank=rank, world_size=world_size) for rank in range(world_size))
        return [block.stop - block.start for block in blocks]


def _mark_complete(reference: weakref.ref[Exchange], number: int, *_: object) -> None:
    """Note that a gradient of a bucket is complete, unless the run that exchanges it has ended."""
    exchange = reference()
    if exchange is not None:
        exchange.complete(number)


def _joined_gradients(bucket: list[nn.Parameter]) -> Tensor:
    """Return the gradients of a bucket in one tensor, zeros for a parameter without; a single one is not copied."""
    gradients = []
    for parameter in bucket:
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        gradients.append(gradient)
    if len(gradients) == 1 and gradients[0].is_contiguous():
        return gradients[0]
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _buckets(parameters: Sequence[nn.Parameter], tables: set[int]) -> list[list[nn.Parameter]]:
    """Return the parameters in groups of about `_BUCKET_BYTES`, the last ones first; a table is a group of its own."""
    buckets: list[list[nn.Parameter]] = []
    size = _BUCKET_BYTES
    for parameter in reversed(parameters):
        is_table = id(parameter) in tables
        if is_table or size >= _BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
        if is_table:
            # Whatever its size, nothing is added to its group.
            size = _BUCKET_BYTES
    return buckets


class _Gather(torch.autograd.Function):
    """All ranks' vectors; the gradient of this rank's is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.all_gather(rows, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.reduce_scatter(gradient), None, None


def dropout_generator(seed: int, step: int, rank: int) -> torch.Generator:
    """Return the random generator of one step on one worker."""
    mixed = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed >> np.uint64(1)))


def gathers_candidates(config: RunConfig, workers: Workers) -> bool:
    """Return whether a loss compares the sentences of all workers."""
    is_compared = config.objective.across_workers == "rows" and config.training.gather_candidates
    return is_compared and workers.world_size > 1


class SharedLoss:
    """The loss of one step, and the gradients that several workers combine to."""

    def __init__(
        self,
        config: RunConfig,
        model: SentenceModel,
        optimizer: Optimizer,
        *,
        stream: AnyStream,
        workers: Workers,
        device: torch.device,
        bfloat16: bool = False,
    ) -> None:
        """Prepare the loss of a run's steps.

        Args:
            config: The run.
            model: The model to train.
            optimizer: Updates the word vectors of a step before they are read.
            stream: The batches.
            workers: This process's rank among several.
            device: Where to compute.
            bfloat16: Whether matrices are multiplied in bfloat16.

        Raises:
            ConfigError: If the objective's `across_workers` is unknown.
        """
        self._rule = config.objective.across_workers
        if self._rule not in ("rows", "mean", "sum"):
            raise ConfigError(
                f"objective {config.objective.type}: across_workers must be rows, mean or sum; given {self._rule!r}"
            )
        self._gathers = gathers_candidates(config, workers)
        self._seed = config.seed
        self._model = model
        self._optimizer = optimizer
        self._stream = stream
        self._workers = workers
        self._device = device
        num_parts = config.training.accumulate
        # A loss of single examples is divided; of any other the vectors alone, whose states take the memory.
        self._num_parts = 1
        self._num_encoded = 1
        if config.objective.is_by_example:
            self._num_parts = num_parts
        else:
            self._num_encoded = num_parts
        is_whole = num_parts == 1 and config.objective.encoded_at_once is None
        reads_vectors = not (config.objective.trains_code or config.objective.scores_words)
        self._packs = is_whole and workers.world_size == 1 and reads_vectors
        self._exchange: Exchange | None = None
        if workers.world_size > 1:
            self._exchange = Exchange(
                optimizer.parameters, optimizer.tables, workers=workers, overlaps=is_whole
            )
        self._bfloat16 = bfloat16
        self._feed = StepFeed(
            self.prepared, device=device, is_ahead=self._is_ahead, mode=self._mode
        )

    @property
    def _is_ahead(self) -> bool:
        """Whether a thread may prepare steps ahead: on a GPU, where no objective changes in the course of a run."""
        return is_gpu(self._device) and not self._model.has_schedule

    def _mode(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bfloat16)

    def prepared(self, step: int) -> PreparedStep:
        """Return what a step reads: its batch, laid out on the device.

        Raises:
            ConfigError: If the objective added words to a batch that several workers share.
        """
        # Dropout is a function of seed, step and rank, so that a resumed run draws the same masks.
        generator = dropout_generator(self._seed, step, self._workers.rank)
        common = generator
        if self._exchange is not None:
            # All workers choose alike, as one does.
            common = dropout_generator(self._seed, step, 0)
        batch = self._model.prepare(self._stream.batch(step), generator=common)
        packed = PackedAhead()
        if self._packs:
            for part in self._packed_parts(batch):
                packed.add(part, self._model.pack_ahead(part))
        words = None
        if not (self._packs and isinstance(batch, Batch)):
            words = to_device(self._words_of(batch, step), self._device)
        return PreparedStep(batch, generator, words, packed)

    def _packed_parts(self, batch: AnyBatch) -> Sequence[Sentences]:
        """Return the sentences that encoders read, where they are laid out before the loss asks for them."""
        if isinstance(batch, Batch | Triplets):
            return [batch.sentences]
        if is_gpu(self._device):
            return batch.parts
        return ()

    def _words_of(self, batch: AnyBatch, step: int) -> npt.NDArray[np.int32]:
        """Return the distinct words that a step reads on all workers."""
        words = distinct_words(*batch.parts)
        if self._exchange is None:
            return words
        # All workers' words on all workers, so that their word tables stay bit-identical.
        all_words = self._stream.words(step)
        has_all = np.isin(words, all_words, assume_unique=True).all()
        if self._optimizer.tables and not has_all:
            raise ConfigError(
                "objective: prepare must add no words to a batch that several workers share; given some"
            )
        return all_words

    def gradients(self, step: int) -> Tensor:
        """Compute the gradients of a step, which are equal on all workers.

        Args:
            step: Number of the step, which seeds all that is drawn in it.

        Returns:
            The loss of the whole step, a scalar without gradient, equal on all workers.
        """
        prepared = self._feed.step(step)
        if prepared.words is not None:
            self._optimizer.catch_up(prepared.words)
        batch = prepared.batch
        parts = [batch]
        if self._num_parts > 1:
            parts = divide(batch, self._num_parts)
        losses = []
        for part in parts:
            with self._mode():
                loss = self._loss(part, step, prepared, num_parts=len(parts))
            if self._exchange is not None and len(parts) == 1:
                self._exchange.begin(_words(prepared), loss)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        total = losses[0]
        if len(losses) > 1:
            total = torch.stack(losses).sum()
        if self._exchange is None:
            return total
        if len(parts) > 1:
            # Gradients of several parts are complete after the last one.
            self._exchange.begin(_words(prepared), total)
        return self._exchange.finish()

    def close(self) -> None:
        """End the thread that prepares steps."""
        self._feed.close()

    def _loss(
        self, batch: AnyBatch, step: int, prepared: PreparedStep, *, num_parts: int
    ) -> Tensor:
        """Return what a batch, or a part of one, adds to the loss of a step, a scalar with gradient."""
        generator = prepared.generator
        count = self._stream.size(step)
        gather = None
        common = generator
        if self._exchange is not None and self._gathers:
            gather = partial(self._exchange.gather, count=count)
            # All workers draw the same negatives.
            common = dropout_generator(self._seed, step, 0)
        reader = self._model.step_reader(
            generator, gather=gather, num_parts=self._num_encoded, packed=prepared.packed
        )
        if self._packs and isinstance(batch, Batch):
            packed = prepared.packed.find(batch.sentences)
            assert packed is not None
            self._optimizer.catch_up(packed.words)
            reader.add(batch.sentences, self._model.vectors(packed, generator=generator))
        is_mean = self._rule == "mean" or not (self._gathers or self._rule == "sum")
        penalty_weight = 1.0 if is_mean else 1 / (self._workers.world_size * num_parts)
        loss = self._model.loss(
            batch, generator=common, reader=reader, penalty_weight=penalty_weight
        )
        if is_mean and len(batch) != count:
            # So that the ranks' parts add up to the mean over all rows.
            return loss * (len(batch) / count)
        return loss


def _words(prepared: PreparedStep) -> Tensor:
    """Return the rows that several workers exchange; a batch that one worker packs names none."""
    assert prepared.words is not None
    return prepared.words
