"""Two columns of sentences. In: encoded pairs. Out: batches in an order that every epoch draws anew."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raysent.errors import DataError
from raysent.pairs import EncodedPairs, take_rows
from raysent.vocabulary import Sentences


@dataclass(frozen=True)
class Pairs:
    """The pairs of one step.

    Attributes:
        first: Ragged ids of the first column.
        second: The same of the second.
        labels: int64 [batch], the class of each pair; None where the file has none.
        scores: float64 [batch], how alike the two are; None where the file has none.
    """

    first: Sentences
    second: Sentences
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None

    @property
    def parts(self) -> tuple[Sentences, ...]:
        """All sentences of the batch."""
        return (self.first, self.second)

    def __len__(self) -> int:
        return len(self.first.lengths)


class PairStream:
    """Batches without end; the same arguments always give the same batches.

    The last batch of an epoch is smaller; where it holds fewer pairs than `least` for each worker it is left out.

    Args:
        pairs: The training pairs.
        batch_size: Pairs of a step over all workers, at most.
        seed: Decides the order.
        least: Pairs that a worker needs at least, such as 2 where each needs another to be told from.
        rank: This worker's number, from 0.
        world_size: Number of workers.

    Raises:
        DataError: If there are too few pairs for a single batch.
    """

    def __init__(
        self, pairs: EncodedPairs, *, batch_size: int, seed: int, least: int = 2, rank: int = 0, world_size: int = 1
    ) -> None:
        self._pairs = pairs
        self._batch_size = batch_size
        self._seed, self._rank, self._world_size = seed, rank, world_size
        whole, rest = divmod(len(pairs), batch_size)
        self.num_batches = whole + (rest >= least * world_size)
        if self.num_batches == 0 or batch_size < least * world_size:
            raise DataError(
                f"training.batch_size: must be at least {least * world_size}, and so must the pairs to train on; "
                f"given {batch_size}, and {len(pairs)} pairs"
            )
        self._order = lru_cache(maxsize=2)(self._make_order)

    def size(self, step: int) -> int:
        """Return the pairs of a step over all workers."""
        return len(self._rows(step))

    def batch(self, step: int) -> Pairs:
        """Return this worker's share of the batch of a step, counted from 0 over all epochs."""
        return pairs_at(self._pairs, np.array_split(self._rows(step), self._world_size)[self._rank])

    def _rows(self, step: int) -> np.ndarray:
        """Return the numbers of a step's pairs, int64 [batch]."""
        epoch, index = divmod(step, self.num_batches)
        rows = self._order(epoch)[index * self._batch_size : (index + 1) * self._batch_size]
        # Equal shares: what does not divide among the workers is left out.
        return rows[: len(rows) - len(rows) % self._world_size]

    def _make_order(self, epoch: int) -> np.ndarray:
        """Return the pairs in the order of an epoch, int64 [pairs]."""
        return np.random.default_rng((self._seed, epoch)).permutation(len(self._pairs))


def pairs_at(pairs: EncodedPairs, rows: np.ndarray) -> Pairs:
    """Return the pairs with the given numbers, int64 [batch], in that order."""
    return Pairs(
        first=take_rows(pairs.first, rows),
        second=take_rows(pairs.second, rows),
        labels=None if pairs.labels is None else pairs.labels[rows],
        scores=None if pairs.scores is None else pairs.scores[rows],
    )
