"""Prepared text -> the batch of any step, a pure function of the step; one stream for each kind of batch.

- `context`: `Batch`, contiguous windows of a corpus, or windows from random or like places
- `triplets`: `Triplets`, a sentence with its predecessor and its successor, batches of one length
- `pairs`: `Pairs`, two columns of sentences with an optional label or score

A global batch is shared by the workers; the blocks of all ranks, put together, are the batch that one worker would
read.

Windows of a corpus. In: a split of it. Out: the batch of any step, a pure function of the step.

A global batch is `batch_size * world_size` sentences; each worker reads its own contiguous block of it, so that the
blocks of two workers are, put together, the batch that one worker twice as wide would read.

A sentence with the one before and the one after. In: a split of a corpus. Out: batches of sentences of one length.

A triplet stands within one document, and none of its three sentences is longer than the limit; others are left out.

Source: Kiros et al., 2015, and the released code, which groups by the encoder's length.
Differs: the batches of an epoch come in random order, where the released code takes turns between the lengths.

Two columns of sentences. In: encoded pairs. Out: batches in an order that every epoch draws anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from raysent.data.corpus import CorpusSplit
from raysent.data.pairs import EncodedPairs, select_rows
from raysent.data.vocabulary import Sentences
from raysent.errors import DataError

__all__ = [
    "AnyBatch",
    "AnyStream",
    "Batch",
    "BatchStream",
    "Candidates",
    "PairStream",
    "Pairs",
    "Sentences",
    "TripletStream",
    "Triplets",
    "group_nearest_windows",
]


Candidates = Literal["contiguous", "random", "nearest"]

_PAGE_WINDOWS = 32_768
_HASHED_DIM = 256


@dataclass(frozen=True)
class Batch:
    """The sentences of one step.

    Attributes:
        sentences: Ragged ids of the batch.
        positions: int64 [batch], global index of each sentence; neighbours in the text differ by 1.
        documents: int64 [batch], the document of each sentence; all 0 where windows may cross documents.
    """

    sentences: Sentences
    positions: np.ndarray
    documents: np.ndarray

    @property
    def parts(self) -> tuple[Sentences, ...]:
        """All sentences of the batch."""
        return (self.sentences,)

    def __len__(self) -> int:
        return len(self.positions)


class BatchStream:
    """Batches without end; the same arguments always give the same batches.

    An epoch has `num_batches` steps; the sentences that do not fill a last batch are left out.

    Args:
        split: Where the sentences come from.
        batch_size: Sentences of this worker's block.
        candidates: ``contiguous``: consecutive sentences in the order of the text, the same in every epoch.
            ``random``: windows of consecutive sentences from random places, each once in an epoch, drawn anew in the
            next. ``nearest``: a random window and those with the most similar words (`group_nearest_windows`), the
            same in every epoch.
        context_size: Neighbours on either side; a window is ``2 * context_size + 1`` sentences.
        seed: Decides the places of windows.
        rank: This worker's number, from 0.
        world_size: Number of workers.

    Raises:
        DataError: If the split does not fill one global batch.
    """

    def __init__(
        self,
        split: CorpusSplit,
        *,
        batch_size: int,
        candidates: Candidates,
        context_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._split = split
        self._batch_size = batch_size
        self._first = rank * batch_size
        self._world_size = world_size
        self._order = _orders(split, batch_size * world_size, candidates, 2 * context_size + 1, seed)
        self.num_batches = self._order.num_batches

    def size(self, step: int) -> int:
        """Return the sentences of a step over all workers."""
        del step  # all are alike
        return self._batch_size * self._world_size

    def batch(self, step: int) -> Batch:
        """Return this worker's block of the batch of a step, counted from 0 over all epochs."""
        start, stop = self._first, self._first + self._batch_size
        positions = self._order.positions(step)[start:stop]
        split = self._split
        if isinstance(self._order, _Contiguous):
            first = int(positions[0])
            sentences = split.sentences(first, first + self._batch_size)
        else:
            sentences = split.sentences_at(positions)
        return Batch(sentences, split.first + positions, split.documents_at(positions))


def _orders(split: CorpusSplit, size: int, candidates: Candidates, window: int, seed: int) -> _Contiguous | _Windows:
    """Return the order in which an epoch visits the split's sentences."""
    # One window less than fits, so that every epoch has room for a shift of its own.
    num_windows = (len(split) - window + 1) // window
    most = len(split) if candidates == "contiguous" else max(num_windows, 0) * window
    if size > most:
        raise DataError(
            f"training.batch_size: must be at most {most} for the {len(split)} {split.name} sentences of this corpus, "
            f"over all workers; given {size}; lower it or add text"
        )
    if candidates == "contiguous":
        return _Contiguous(len(split), size)
    return _Windows(split, size, window, num_windows, seed=seed, is_nearest=candidates == "nearest")


class _Contiguous:
    """Consecutive sentences, batch after batch, the same in every epoch."""

    def __init__(self, num_sentences: int, size: int) -> None:
        self._size = size
        self.num_batches = num_sentences // size

    def positions(self, step: int) -> np.ndarray:
        start = step % self.num_batches * self._size
        return np.arange(start, start + self._size, dtype=np.int64)


class _Windows:
    """Windows of consecutive sentences, each at most once in an epoch."""

    def __init__(
        self, split: CorpusSplit, size: int, window: int, num_windows: int, *, seed: int, is_nearest: bool
    ) -> None:
        self._size = size
        self._window = window
        self._per_batch = -(-size // window)  # The last window of a batch is cut where it does not fit.
        self._split = split
        self._seed = seed
        self._is_nearest = is_nearest
        self._num_windows = num_windows
        self.num_batches = self._num_windows // self._per_batch
        # An order of the whole split is worth keeping, but only for the epoch at hand and the next.
        self._starts = lru_cache(maxsize=2)(self._make_starts)

    def positions(self, step: int) -> np.ndarray:
        epoch, index = divmod(step, self.num_batches)
        starts = self._starts(0 if self._is_nearest else epoch)
        chosen = starts[index * self._per_batch : (index + 1) * self._per_batch]
        within = np.arange(self._window, dtype=np.int64)
        positions: np.ndarray = (chosen[:, None] + within).reshape(-1)[: self._size]
        return positions

    def _make_starts(self, epoch: int) -> np.ndarray:
        """Return the first sentence of each window, int64 [windows], in the order of an epoch."""
        generator = np.random.default_rng((self._seed, epoch))
        shift = int(generator.integers(self._window))
        starts: np.ndarray = shift + self._window * generator.permutation(self._num_windows)
        return group_nearest_windows(self._split, starts, self._window, self._per_batch) if self._is_nearest else starts


def group_nearest_windows(split: CorpusSplit, starts: np.ndarray, window: int, group: int) -> np.ndarray:
    """Reorder windows so that each group of `group` holds a window and its nearest ones.

    Nearness is the cosine of the windows' bags of words, each word hashed to one of 256 signed dimensions and weighted
    by its rarity. Windows are taken in pages of 32,768 as they come, and look for neighbours within their page, which
    bounds memory (about 50 MB) and time (a second or so a page).

    Args:
        split: Where the windows' sentences are.
        starts: First sentence of each window, int64 [windows], in random order.
        window: Sentences of a window.
        group: Windows of a group.

    Returns:
        The same starts in groups, int64 [windows].
    """
    page = _PAGE_WINDOWS // group * group or group
    pages = [starts[first : first + page] for first in range(0, len(starts), page)]
    return np.concatenate([part[_group_nearest(_bags(split, part, window), group)] for part in pages])


def _bags(split: CorpusSplit, starts: np.ndarray, window: int) -> np.ndarray:
    """Return the unit-length hashed bag of words of each window, float32 [windows, 256]."""
    sentences = split.sentences_at((starts[:, None] + np.arange(window)).reshape(-1))
    lengths = sentences.lengths.reshape(-1, window).sum(axis=1)
    counts = np.bincount(sentences.ids)
    # Knuth's multiplicative hash; the top bits choose the dimension, the next one the sign.
    hashed = (np.arange(len(counts), dtype=np.uint64) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) >> np.uint64(23)
    signs = np.where(hashed & np.uint64(1), 1.0, -1.0)
    weights = signs * np.log(1 + len(sentences.ids) / (1 + counts)) ** 2
    rows = np.repeat(np.arange(len(starts)), lengths)
    cells = rows * _HASHED_DIM + (hashed >> np.uint64(1)).astype(np.int64)[sentences.ids]
    bags = np.bincount(cells, weights=weights[sentences.ids], minlength=len(starts) * _HASHED_DIM)
    bags = bags.reshape(len(starts), _HASHED_DIM).astype(np.float32)
    unit: np.ndarray = bags / np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1e-12)
    return unit


def _group_nearest(bags: np.ndarray, group: int) -> np.ndarray:
    """Return an order of the rows, int64 [windows]: the first row left and its nearest ones, again and again."""
    left = np.arange(len(bags))
    order = []
    while len(left) > group:
        similarity = bags[left[1:]] @ bags[left[0]]
        nearest = 1 + np.argpartition(-similarity, group - 2)[: group - 1] if group > 1 else np.empty(0, dtype=int)
        taken = np.concatenate([[0], nearest])
        order.append(left[taken])
        left = np.delete(left, taken)
    return np.concatenate([*order, left])


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
        self._positions, lengths = find_triplets(split, max_length=max_length)
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


def find_triplets(split: CorpusSplit, *, max_length: int) -> tuple[np.ndarray, np.ndarray]:
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
        first=select_rows(pairs.first, rows),
        second=select_rows(pairs.second, rows),
        labels=None if pairs.labels is None else pairs.labels[rows],
        scores=None if pairs.scores is None else pairs.scores[rows],
    )


AnyBatch = Batch | Triplets | Pairs
AnyStream = BatchStream | TripletStream | PairStream
