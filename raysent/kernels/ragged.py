"""Ragged rows: values of rows of different lengths, concatenated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Sentences(NamedTuple):
    """Ragged rows of ids.

    Attributes:
        ids: The concatenated sentences, int32 [tokens].
        lengths: Number of tokens of each sentence, at least 1, int64 [batch].
    """

    ids: np.ndarray
    lengths: np.ndarray

    def split(self, size: int) -> Iterator[Sentences]:
        """Yield the sentences in order, at most `size` at a time."""
        ends = np.cumsum(self.lengths)
        for first in range(0, len(ends), size):
            lengths = self.lengths[first : first + size]
            stop = int(ends[first + len(lengths) - 1])
            yield Sentences(self.ids[stop - int(lengths.sum()) : stop], lengths)


def ragged_indices(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the indices starts[i], …, starts[i] + lengths[i] - 1 of all rows i, concatenated, int64."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + lengths, lengths) + np.arange(total, dtype=np.int64)


def ragged_sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the sum of each row's values, int64 [rows]; an empty row sums to 0."""
    totals = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(lengths)
    sums: np.ndarray = totals[ends] - totals[ends - lengths]
    return sums
