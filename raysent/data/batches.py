"""Streams of training batches; the batch of a step is a pure function of the step.

- `BatchStream` yields `Batch`: windows of a corpus, in text order, from random places or grouped by similarity
- `TripletStream` yields `Triplets`: a sentence with its predecessor and its successor
- `PairStream` yields `Pairs`: two or more columns of sentences with an optional label or score
- `LabelStream` yields `LabelBatch`: texts of a task's training rows with their classes
- `TargetStream` yields `TargetBatch`: sentences of a corpus with what a teacher returned for each

A batch is divided among the workers: the blocks of all ranks, concatenated, are the batch that one worker would read.
Every worker knows the words of the whole batch, so that none has to send them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Generic, Literal, TypeVar

import numpy as np

from raysent.data.corpus import CorpusSplit
from raysent.data.pairs import NOT_OF_ROWS, Pairs, number_texts, select_fields, select_rows
from raysent.data.vocabulary import Sentences
from raysent.errors import DataError

Candidates = Literal["contiguous", "random", "nearest"]
# The batch of a worker.
Own = TypeVar("Own", "Batch", "Triplets", "LabelBatch", Pairs)

_PAGE_WINDOWS = 32_768
_HASHED_DIM = 256
_MIN_PAIRS = 2  # per worker


@dataclass(frozen=True)
class Batch:
    """The sentences of one step that one worker encodes, and the places of all that it compares them with.

    Attributes:
        sentences: Ragged ids of this worker's sentences [batch].
        positions: Global index of each candidate, int64 [candidates]; neighbours in the text differ by 1. Candidates
            are the sentences, or those of all workers where `rows` is given.
        documents: Document of each candidate, int64 [candidates]; all 0 if windows may cross documents.
        rows: The sentences' rows among the candidates; None where they are the same.
        texts: `number_texts` of the candidates, where `rows` is given.
    """

    sentences: Sentences
    positions: np.ndarray
    documents: np.ndarray
    rows: slice | None = field(default=None, kw_only=True)
    texts: tuple[np.ndarray, ...] | None = field(default=None, kw_only=True)

    @property
    def parts(self) -> tuple[Sentences, ...]:
        """All sentences of the batch."""
        return (self.sentences,)

    def __len__(self) -> int:
        return len(self.sentences.lengths)


class _Stream(ABC, Generic[Own]):
    """Batches that are rows of a whole, of which each worker has a block; `num_batches` are an epoch."""

    num_batches: int

    def __init__(self, *, rank: int, world_size: int, gathers: bool = False) -> None:
        self._rank = rank
        self._world_size = world_size
        self._gathers = gathers and world_size > 1

    @abstractmethod
    def _rows(self, step: int) -> np.ndarray:
        """Return the rows of a step over all workers, int64 [batch]."""

    @abstractmethod
    def _at(self, rows: np.ndarray, worker_rows: slice) -> Own:
        """Return the batch of a worker's own rows among some rows."""

    def size(self, step: int) -> int:
        """Return the number of sentences, triplets or pairs of a step over all workers."""
        return len(self._rows(step))

    def words(self, step: int) -> np.ndarray:
        """Return the distinct words of a step over all workers, int32 [words], ascending."""
        return distinct_words(*self._at(self._rows(step), slice(None)).parts)

    def batch(self, step: int) -> Own:
        """Return this worker's block of the batch of a step, counted from 0 over all epochs."""
        rows = self._rows(step)
        return self._at(rows, block_of(len(rows), rank=self._rank, world_size=self._world_size))


class BatchStream(_Stream[Batch]):
    """An infinite stream of batches of a corpus; the same arguments give the same batches.

    Each worker reads a contiguous block of a batch. An epoch has `num_batches` steps; sentences that do not fill a last
    batch are left out.

    Args:
        split: The sentences.
        batch_size: Sentences of a step, over all workers.
        candidates: ``contiguous``: consecutive sentences in text order, the same in every epoch. ``random``: windows of
            consecutive sentences from random places, each once per epoch, redrawn in every epoch. ``nearest``: a random
            window and the windows with the most similar words (`_group_nearest_windows`), the same in every epoch.
        context_size: Neighbours on either side; a window has ``2 * context_size + 1`` sentences.
        seed: Seed of the places of windows.
        rank: Rank of this worker, from 0.
        world_size: Number of workers.
        gathers: Whether the candidates of a batch are the sentences of all workers.

    Raises:
        DataError: If the split does not fill one batch.
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
        gathers: bool = False,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size, gathers=gathers)
        self._split = split
        self._order = _order_of(split, batch_size, candidates, context_size, seed)
        self.num_batches = self._order.num_batches

    @property
    def num_sentences(self) -> int:
        """Sentences of all batches."""
        return len(self._split)

    def sentences(self) -> Sentences:
        """Return the sentences of all batches."""
        return self._split.sentences(0, len(self._split))

    def _rows(self, step: int) -> np.ndarray:
        return self._order.positions(step)

    def _at(self, rows: np.ndarray, worker_rows: slice) -> Batch:
        split = self._split
        candidates = rows if self._gathers else rows[worker_rows]
        batch = Batch(
            self._sentences(rows[worker_rows]),
            split.first + candidates,
            split.documents_at(candidates),
        )
        if not self._gathers:
            return batch
        return replace(batch, rows=worker_rows, texts=number_texts(self._sentences(rows)))

    def _sentences(self, positions: np.ndarray) -> Sentences:
        if not isinstance(self._order, _Contiguous):
            return self._split.sentences_at(positions)
        return self._split.sentences(int(positions[0]), int(positions[-1]) + 1)


def block_of(count: int, *, rank: int, world_size: int) -> slice:
    """Return a worker's rows of `count` rows; the blocks of all workers differ by at most one row."""
    size, num_left = divmod(count, world_size)
    start = rank * size + min(rank, num_left)
    return slice(start, start + size + (rank < num_left))


def divide(batch: AnyBatch, num_parts: int) -> list[AnyBatch]:
    """Return a batch of one worker in parts of about equal size; at most one for each example."""
    num = min(num_parts, len(batch))
    rows = np.arange(len(batch))
    return [
        select_fields(batch, rows[block_of(len(batch), rank=part, world_size=num)])
        for part in range(num)
    ]


def distinct_words(*parts: Sentences) -> np.ndarray:
    """Return the distinct words of sentences, int32 [words], ascending."""
    return np.unique(np.concatenate([part.ids for part in parts]))


def largest_batch(num_sentences: int, *, candidates: Candidates, context_size: int) -> int:
    """Return the most sentences that a batch of so much text can have, as `BatchStream` makes batches.

    Args:
        num_sentences: Sentences for training.
        candidates: As for `BatchStream`.
        context_size: As for `BatchStream`.
    """
    if candidates == "contiguous":
        return num_sentences
    window = 2 * context_size + 1
    return _num_windows(num_sentences, window) * window


def _num_windows(num_sentences: int, window: int) -> int:
    """Return one window less than fits, so that every epoch can shift its windows."""
    return max((num_sentences - window + 1) // window, 0)


def _order_of(
    split: CorpusSplit, size: int, candidates: Candidates, context_size: int, seed: int
) -> _Contiguous | _Windows:
    max_size = largest_batch(len(split), candidates=candidates, context_size=context_size)
    if size > max_size:
        raise DataError(
            f"training.batch_size: must be at most {max_size} for the {len(split)} {split.name} sentences of this "
            f"corpus, over all workers; given {size}; lower it or add text"
        )
    if candidates == "contiguous":
        return _Contiguous(len(split), size)
    window = 2 * context_size + 1
    num_windows = _num_windows(len(split), window)
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
    """Windows of consecutive sentences, each at most once per epoch."""

    def __init__(
        self,
        split: CorpusSplit,
        size: int,
        window: int,
        num_windows: int,
        *,
        seed: int,
        is_nearest: bool,
    ) -> None:
        self._size = size
        self._window = window
        # The last window of a batch is truncated if it does not fit.
        self._per_batch = -(-size // window)
        self._split = split
        self._seed = seed
        self._is_nearest = is_nearest
        self._num_windows = num_windows
        self.num_batches = self._num_windows // self._per_batch
        # Cache the order of the whole split for the current epoch and the next one.
        self._starts = lru_cache(maxsize=2)(self._make_starts)

    def positions(self, step: int) -> np.ndarray:
        epoch, index = divmod(step, self.num_batches)
        starts = self._starts(0 if self._is_nearest else epoch)
        batch_starts = starts[index * self._per_batch : (index + 1) * self._per_batch]
        within = np.arange(self._window, dtype=np.int64)
        positions: np.ndarray = (batch_starts[:, None] + within).reshape(-1)[: self._size]
        return positions

    def _make_starts(self, epoch: int) -> np.ndarray:
        """Return the first sentence of each window, int64 [windows], in the order of an epoch."""
        generator = np.random.default_rng((self._seed, epoch))
        shift = int(generator.integers(self._window))
        starts: np.ndarray = shift + self._window * generator.permutation(self._num_windows)
        if self._is_nearest:
            return _group_nearest_windows(self._split, starts, self._window, self._per_batch)
        return starts


def _group_nearest_windows(
    split: CorpusSplit, starts: np.ndarray, window: int, group: int
) -> np.ndarray:
    """Reorder windows so that each group of `group` windows holds one window and its nearest ones.

    Similarity is the cosine of the windows' bags of words, each word hashed to one of 256 signed dimensions and
    weighted by its rarity. Neighbours are searched within pages of 32,768 windows, which bounds memory (about 50 MB)
    and time (about a second per page).

    Args:
        split: The sentences.
        starts: First sentence of each window, int64 [windows], in random order.
        window: Sentences of a window.
        group: Windows of a group.

    Returns:
        The same starts in groups, int64 [windows].
    """
    page = _PAGE_WINDOWS // group * group or group
    pages = [starts[first : first + page] for first in range(0, len(starts), page)]
    return np.concatenate(
        [part[_group_nearest(_bags(split, part, window), group)] for part in pages]
    )


def _bags(split: CorpusSplit, starts: np.ndarray, window: int) -> np.ndarray:
    """Return the unit-length hashed bag of words of each window, float32 [windows, 256]."""
    sentences = split.sentences_at((starts[:, None] + np.arange(window)).reshape(-1))
    lengths = sentences.lengths.reshape(-1, window).sum(axis=1)
    counts = np.bincount(sentences.ids)
    # Knuth's multiplicative hash: the top 8 bits are the dimension, the next bit is the sign.
    hashed = (
        np.arange(len(counts), dtype=np.uint64) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)
    ) >> np.uint64(23)
    signs = np.where(hashed & np.uint64(1), 1.0, -1.0)
    weights = signs * np.log(1 + len(sentences.ids) / (1 + counts)) ** 2
    rows = np.repeat(np.arange(len(starts)), lengths)
    cells = rows * _HASHED_DIM + (hashed >> np.uint64(1)).astype(np.int64)[sentences.ids]
    bags = np.bincount(cells, weights=weights[sentences.ids], minlength=len(starts) * _HASHED_DIM)
    bags = bags.reshape(len(starts), _HASHED_DIM).astype(np.float32)
    unit: np.ndarray = bags / np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1e-12)
    return unit


def _group_nearest(bags: np.ndarray, group: int) -> np.ndarray:
    """Return an order of the rows, int64 [windows]: repeatedly the first remaining row and its nearest ones."""
    remaining = np.arange(len(bags))
    order = []
    while len(remaining) > group:
        # The first window that is left, which stands at a random place of the text, and the windows nearest to it.
        similarity = bags[remaining[1:]] @ bags[remaining[0]]
        nearest = np.empty(0, dtype=int)
        if group > 1:
            nearest = 1 + np.argpartition(-similarity, group - 2)[: group - 1]
        group_rows = np.concatenate([[0], nearest])
        order.append(remaining[group_rows])
        remaining = np.delete(remaining, group_rows)
    return np.concatenate([*order, remaining])


@dataclass(frozen=True)
class Triplets:
    """The sentences of one step.

    Attributes:
        sentences: Ragged ids of the sentences to encode, all of one length.
        before: The sentence before each.
        after: The sentence after each.
        positions: Global index of each encoded sentence, int64 [batch].
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


class TripletStream(_Stream[Triplets]):
    """An infinite stream of triplets whose encoded sentences have one length; the same arguments give the same batches.

    A triplet lies within one document, and each of its three sentences has at most `max_length` tokens. Every epoch
    redraws which sentences of a length share a batch, and the order of the batches. The last batch of a length is
    smaller; if it has fewer triplets than there are workers, it is left out.

    Args:
        split: The sentences.
        batch_size: Maximum number of triplets of a step, over all workers.
        max_length: Maximum length of a sentence, in tokens.
        seed: Seed of batches and order.
        rank: Rank of this worker, from 0.
        world_size: Number of workers.

    Raises:
        DataError: If the split has no triplet.

    Source: Kiros et al., 2015, and the released code, which groups by the length of the encoded sentence.
    Differs: the batches of an epoch have random order; the released code alternates between the lengths.
    """

    def __init__(
        self,
        split: CorpusSplit,
        *,
        batch_size: int,
        max_length: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        self._split = split
        self._seed = seed
        self._positions, lengths = _find_triplets(split, max_length=max_length)
        self._bounds = _batch_bounds(
            np.diff(lengths, prepend=0, append=max_length + 1), batch_size, world_size
        )
        self.num_batches = len(self._bounds)
        if not self.num_batches:
            raise DataError(
                f"objective.max_length: must leave a sentence with two neighbours of at most {max_length} words among "
                f"the {len(split)} {split.name} sentences of this corpus; given none; raise it or add text"
            )
        self._lengths = lengths
        # Cache the order of the whole split for the current epoch and the next one.
        self._order = lru_cache(maxsize=2)(self._make_order)

    def _at(self, rows: np.ndarray, worker_rows: slice) -> Triplets:
        split = self._split
        rows = rows[worker_rows]
        before = split.sentences_at(rows - 1)
        after = split.sentences_at(rows + 1)
        return Triplets(split.sentences_at(rows), before, after, positions=split.first + rows)

    def _rows(self, step: int) -> np.ndarray:
        epoch, index = divmod(step, self.num_batches)
        positions, batches = self._order(epoch)
        start, stop = self._bounds[batches[index]]
        return positions[start:stop]

    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the triplets sorted by length, int64 [triplets], and the order of the batches, int64 [batches]."""
        generator = np.random.default_rng((self._seed, epoch))
        # The stable sort keeps the shuffled order within each length.
        shuffled = generator.permutation(len(self._positions))
        by_length = shuffled[np.argsort(self._lengths[shuffled], kind="stable")]
        return self._positions[by_length], generator.permutation(self.num_batches)


def _find_triplets(split: CorpusSplit, *, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and lengths of sentences with both neighbours in their document, shortest first."""
    lengths = np.diff(split.corpus.offsets[split.first : split.first + len(split) + 1])
    documents = split.documents(0, len(split))
    short = lengths <= max_length
    middle = short[1:-1] & short[:-2] & short[2:] & (documents[:-2] == documents[2:])
    positions = 1 + np.flatnonzero(middle)
    order = np.argsort(lengths[positions], kind="stable")
    return positions[order], lengths[positions][order]


def _batch_bounds(steps: np.ndarray, batch_size: int, world_size: int) -> np.ndarray:
    """Return start and end of each batch among triplets sorted by length, int64 [batches, 2].

    Args:
        steps: Difference in length before each triplet and after the last; a value above 0 starts another length.
        batch_size: Maximum number of triplets of a batch.
        world_size: Minimum number of triplets of a batch.
    """
    edges = np.flatnonzero(steps > 0).tolist()
    bounds = []
    for first, last_stop in pairwise(edges):
        for start in range(first, last_stop, batch_size):
            stop = min(start + batch_size, last_stop)
            # Each worker needs a triplet.
            if stop - start >= world_size:
                bounds.append((start, stop))
    return np.array(bounds, dtype=np.int64).reshape(-1, 2)


class PairStream(_Stream[Pairs]):
    """An infinite stream of pairs, reshuffled every epoch; the same arguments give the same batches.

    The last batch of an epoch is smaller; if it has fewer than 2 pairs per worker, it is left out,
    since margin objectives contrast a pair with another.

    Args:
        pairs: The training pairs.
        batch_size: Maximum number of pairs of a step, over all workers.
        seed: Seed of the order.
        rank: Rank of this worker, from 0.
        world_size: Number of workers.
        gathers: Whether a loss compares the pairs of all workers.

    Raises:
        DataError: If there are too few pairs for one batch.
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        gathers: bool = False,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size, gathers=gathers)
        self._pairs = pairs
        self._batch_size = batch_size
        self._seed = seed
        num_full, num_left = divmod(len(pairs), batch_size)
        min_size = _MIN_PAIRS * world_size
        self.num_batches = num_full + (num_left >= min_size)
        if self.num_batches == 0 or batch_size < min_size:
            raise DataError(
                f"training.batch_size: must be at least {min_size}, and so must the number of training pairs; "
                f"given {batch_size}, and {len(pairs)} pairs"
            )
        self._order = lru_cache(maxsize=2)(self._make_order)

    @property
    def num_sentences(self) -> int:
        """Sentences of all batches."""
        return 2 * len(self._pairs)

    def sentences(self) -> Sentences:
        """Return the sentences of all batches."""
        sides = (self._pairs.first, self._pairs.second)
        return Sentences(
            np.concatenate([side.ids for side in sides]),
            np.concatenate([side.lengths for side in sides]),
        )

    def _rows(self, step: int) -> np.ndarray:
        epoch, index = divmod(step, self.num_batches)
        return self._order(epoch)[index * self._batch_size : (index + 1) * self._batch_size]

    def _at(self, rows: np.ndarray, worker_rows: slice) -> Pairs:
        pairs = self._pairs.select(rows[worker_rows])
        if not self._gathers:
            return pairs
        return replace(pairs, rows=worker_rows, texts=number_texts(*self._pairs.select(rows).parts))

    def _make_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self._seed, epoch)).permutation(len(self._pairs))


@dataclass(frozen=True)
class LabelBatch(Batch):
    """Texts of one step with their classes; positions are numbers of rows.

    Attributes:
        labels: The class of each candidate, int64 [candidates].
        more_often: The logarithm of a class's part of a batch over its part of all rows, float32 [classes].
    """

    labels: np.ndarray
    more_often: np.ndarray = field(
        default_factory=lambda: np.zeros(1, dtype=np.float32), metadata=NOT_OF_ROWS
    )


class LabelStream(_Stream[LabelBatch]):
    """An infinite stream of labelled texts, balanced over classes; the same arguments give the same batches.

    A class has its part of a batch, or all its rows where these are fewer. Its rows are drawn in random order; those
    that fill no whole part of a batch are left out until the next order.

    Args:
        sentences: The texts.
        labels: Their classes, int64 [rows].
        batch_size: Maximum number of texts of a step, over all workers.
        seed: Seed of the order.
        rank: Rank of this worker, from 0.
        world_size: Number of workers.
        gathers: Whether a loss compares the texts of all workers.

    Raises:
        DataError: If there are fewer than two classes with two rows, or a batch has no place for these.
    """

    def __init__(
        self,
        sentences: Sentences,
        labels: np.ndarray,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        gathers: bool = False,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size, gathers=gathers)
        self._sentences = sentences
        self._labels = labels
        self._seed = seed
        rows_by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        # A class of one row has no pair.
        self._classes = [rows for rows in rows_by_class if len(rows) > 1]
        min_size = max(2 * len(self._classes), world_size)
        if len(self._classes) < 2 or batch_size < min_size:
            raise DataError(
                f"training.batch_size: must be at least {min_size}, and the training rows must be of two classes or "
                f"more with two rows each; given {batch_size}, and {len(self._classes)} such classes"
            )
        rows_each, num_left = divmod(batch_size, len(self._classes))
        # Where classes do not divide the batch, the first ones have a row more; a small class has what it has.
        self._counts = [
            min(len(rows), rows_each + (class_index < num_left))
            for class_index, rows in enumerate(self._classes)
        ]
        if sum(self._counts) < world_size:
            raise DataError(
                f"workers {world_size}: must be at most {sum(self._counts)}, the rows of a batch"
            )
        self.num_batches = max(1, sum(map(len, self._classes)) // sum(self._counts))
        self._more_often = self._log_ratios()
        self._order = lru_cache(maxsize=4 * len(self._classes))(self._make_order)

    def _log_ratios(self) -> np.ndarray:
        """Return the logarithm of each class's part of a batch over its part of all rows; 0 for one that is in none."""
        ratios = np.zeros(int(self._labels.max()) + 1, dtype=np.float32)
        for rows, count in zip(self._classes, self._counts, strict=True):
            in_batches = count / sum(self._counts)
            of_rows = len(rows) / len(self._labels)
            ratios[self._labels[rows[0]]] = np.log(in_batches / of_rows)
        return ratios

    def _rows(self, step: int) -> np.ndarray:
        drawn = [
            self._of_class(class_index, step, count)
            for class_index, count in enumerate(self._counts)
        ]
        return np.random.default_rng((self._seed, step, 0)).permutation(np.concatenate(drawn))

    def _of_class(self, class_index: int, step: int, count: int) -> np.ndarray:
        number, within = divmod(step, len(self._classes[class_index]) // count)
        return self._order(class_index, number)[within * count : (within + 1) * count]

    def _make_order(self, class_index: int, number: int) -> np.ndarray:
        return np.random.default_rng((self._seed, class_index, number, 1)).permutation(
            self._classes[class_index]
        )

    def _at(self, rows: np.ndarray, worker_rows: slice) -> LabelBatch:
        candidates = rows if self._gathers else rows[worker_rows]
        batch = LabelBatch(
            select_rows(self._sentences, rows[worker_rows]),
            candidates,
            np.zeros_like(candidates),
            self._labels[candidates],
            self._more_often,
        )
        if not self._gathers:
            return batch
        return replace(
            batch, rows=worker_rows, texts=number_texts(select_rows(self._sentences, rows))
        )


@dataclass(frozen=True)
class TargetBatch(Batch):
    """The sentences of one step, with what a teacher returned for each.

    Attributes:
        vectors: The teacher's vectors, float32 [batch, dim].
        log_probabilities: Task -> the teacher's log-probabilities of its classes, float32 [batch, classes].
    """

    vectors: np.ndarray
    log_probabilities: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetSizes:
    """Sizes of what a teacher returned for each sentence.

    Attributes:
        dim: Size of a vector.
        num_classes: Task -> classes of its log-probabilities.
    """

    dim: int
    num_classes: Mapping[str, int]


@dataclass(frozen=True)
class SentenceTargets:
    """What a teacher returned for each sentence of a corpus, in the order of the corpus.

    Attributes:
        key: Equal for equal values.
        vectors: float16 [sentences, dim], memory-mapped.
        log_probabilities: Task -> float16 [sentences, classes], memory-mapped.
    """

    key: str
    vectors: np.ndarray
    log_probabilities: Mapping[str, np.ndarray]

    @property
    def sizes(self) -> TargetSizes:
        """The sizes of a sentence's values."""
        num_classes = {task: rows.shape[1] for task, rows in self.log_probabilities.items()}
        return TargetSizes(self.vectors.shape[1], num_classes)

    def of(self, batch: Batch) -> TargetBatch:
        """Return a batch of the corpus with its targets."""
        log_probabilities = {
            task: rows[batch.positions].astype(np.float32)
            for task, rows in self.log_probabilities.items()
        }
        return TargetBatch(
            batch.sentences,
            batch.positions,
            batch.documents,
            vectors=self.vectors[batch.positions].astype(np.float32),
            log_probabilities=log_probabilities,
        )


class TargetStream:
    """The batches of another stream, with a teacher's targets.

    Args:
        stream: The sentences of each step.
        targets: What the teacher returned for each sentence of the corpus.
    """

    def __init__(self, stream: BatchStream, targets: SentenceTargets) -> None:
        self._stream = stream
        self._targets = targets
        self.num_batches = stream.num_batches

    def size(self, step: int) -> int:
        """Return the number of sentences of a step over all workers."""
        return self._stream.size(step)

    def words(self, step: int) -> np.ndarray:
        """Return the distinct words of a step over all workers, int32 [words], ascending."""
        return self._stream.words(step)

    def batch(self, step: int) -> TargetBatch:
        """Return this worker's block of the batch of a step, counted from 0 over all epochs."""
        return self._targets.of(self._stream.batch(step))


AnyBatch = Batch | Triplets | Pairs
AnyStream = BatchStream | TripletStream | PairStream | LabelStream | TargetStream
