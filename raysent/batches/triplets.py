"""A sentence with the one before and the one after. In: a split of a corpus. Out: batches of sentences of one length.

A triplet stands within one document, and none of its three sentences is longer than the limit; others are left out.

Source: Kiros et al., 2015, and the released code, which groups by the encoder's length.
Differs: the batches of an epoch come in random order, where the released code takes turns between the lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raysent.corpus import CorpusSplit
from raysent.errors import DataError
from raysent.vocabulary import Sentences


@dataclass(frozen=True)
class Triplets:
    """The sentences of one step.

    Attributes:
        sentences: Ragged ids of the sentences that are encoded, all of one length.
        before: The sentence before each.
        after: The sentence after each.
        positions: int64 [batch], global index of each encoded sentence.
    """

    sentences: Sentences
    before: Sentences
    after: Sentences
    positions: np.ndarray

    @property
    def parts(self) -> tuple[Sentences, ...]:
        """All sentences of the batch."""
        return (self.sentences, self.before, self.after)

    def __len__(self) -> int:
        return len(self.positions)


class TripletStream:
    """Batches without end; the same arguments always give the same batches.

    Every epoch draws anew which sentences of a length stand together, and the order of the batches. The last batch of
    a length is smaller; where it holds fewer triplets than there are workers it is left out.

    Args:
        split: Where the sentences come from.
        batch_size: Triplets of a step over all workers, at most.
        max_length: Words of a sentence at most.
        seed: Decides places and order.
        rank: This worker's number, from 0.
        world_size: Number of workers.

    Raises:
        DataError: If the split holds no triplet.
    """

    def __init__(
        self, split: CorpusSplit, *, batch_size: int, max_length: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self._split = split
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._positions, lengths = eligible(split, max_length=max_length)
        self._bounds = _batch_bounds(np.diff(lengths, prepend=0, append=max_length + 1), batch_size, world_size)
        self.num_batches = len(self._bounds)
        self.num_triplets = int((self._bounds[:, 1] - self._bounds[:, 0]).sum()) if self.num_batches else 0
        if not self.num_batches:
            raise DataError(
                f"objective.max_length: must leave a sentence with two neighbours of at most {max_length} words among "
                f"the {len(split)} {split.name} sentences of this corpus; given none; raise it or add text"
            )
        self._lengths = lengths
        # An order of the whole split is worth keeping, but only for the epoch at hand and the next.
        self._order = lru_cache(maxsize=2)(self._make_order)

    def size(self, step: int) -> int:
        """Return the triplets of a step over all workers."""
        return len(self._rows(step))

    def batch(self, step: int) -> Triplets:
        """Return this worker's block of the batch of a step, counted from 0 over all epochs."""
        chosen = np.array_split(self._rows(step), self._world_size)[self._rank]
        split = self._split
        return Triplets(
            sentences=split.sentences_at(chosen),
            before=split.sentences_at(chosen - 1),
            after=split.sentences_at(chosen + 1),
            positions=split.first + chosen,
        )

    def _rows(self, step: int) -> np.ndarray:
        """Return the numbers of a step's sentences within the split, int64 [triplets]."""
        epoch, index = divmod(step, self.num_batches)
        positions, batches = self._order(epoch)
        start, stop = self._bounds[batches[index]]
        return positions[start:stop]

    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the triplets by length, int64 [triplets], and the order of the batches, int64 [batches]."""
        generator = np.random.default_rng((self._seed, epoch))
        # A random order within each length: the sort by length keeps the order that the shuffle gave.
        shuffled = generator.permutation(len(self._positions))
        by_length = shuffled[np.argsort(self._lengths[shuffled], kind="stable")]
        return self._positions[by_length], generator.permutation(self.num_batches)


def eligible(split: CorpusSplit, *, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sentences that have both neighbours, shortest first.

    Args:
        split: Where the sentences are.
        max_length: Words of each of the three at most.

    Returns:
        Their numbers within the split, and their lengths, int64 [triplets] each.
    """
    lengths = np.diff(split.corpus.offsets[split.first : split.first + len(split) + 1])
    documents = split.documents(0, len(split))
    short = lengths <= max_length
    middle = short[1:-1] & short[:-2] & short[2:] & (documents[:-2] == documents[2:])
    positions = 1 + np.flatnonzero(middle)
    order = np.argsort(lengths[positions], kind="stable")
    return positions[order], lengths[positions][order]


def _batch_bounds(steps: np.ndarray, batch_size: int, world_size: int) -> np.ndarray:
    """Return where batches begin and end among triplets sorted by length, int64 [batches, 2].

    Args:
        steps: By how much the length grows before each triplet and after the last; above 0 begins another length.
        batch_size: Triplets of a batch at most.
        world_size: Triplets of a batch at least.
    """
    edges = np.flatnonzero(steps > 0)
    bounds = [
        (start, min(start + batch_size, stop))
        for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        for start in range(first, stop, batch_size)
    ]
    return np.array([bound for bound in bounds if bound[1] - bound[0] >= world_size], dtype=np.int64).reshape(-1, 2)
