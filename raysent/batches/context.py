"""Windows of a corpus. In: a split of it. Out: the batch of any step, a pure function of the step.

A global batch is `batch_size * world_size` sentences; each worker reads its own contiguous block of it, so that the
blocks of two workers are, put together, the batch that one worker twice as wide would read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from raysent.corpus import CorpusSplit
from raysent.errors import DataError
from raysent.vocabulary import Sentences

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
            next. ``nearest``: a random window and those whose words are most like its own (`nearest_order`), the same
            in every epoch.
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
        return nearest_order(self._split, starts, self._window, self._per_batch) if self._is_nearest else starts


def nearest_order(split: CorpusSplit, starts: np.ndarray, window: int, group: int) -> np.ndarray:
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
