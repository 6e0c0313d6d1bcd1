"""Pairs as text, and as ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysent.artifacts import content_key
from raysent.vocabulary import Sentences, Vocabulary, ragged_indices


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids.

    Attributes:
        first: Ragged ids of the first column.
        second: The same of the second.
        labels: int64 [pairs]; None where there are none.
        scores: float64 [pairs]; None where there are none.
    """

    first: Sentences
    second: Sentences
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.first.lengths)


@dataclass(frozen=True)
class PairTexts:
    """Pairs as text.

    Attributes:
        first: The first sentences.
        second: The second ones.
        labels: int64 [pairs]; None where there are none.
        scores: float64 [pairs]; None where there are none.
        classes: Names of the labels.
    """

    first: list[str]
    second: list[str]
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first)

    @property
    def key(self) -> str:
        """16 hexadecimal digits that name the content."""
        marks = [None if side is None else side.tolist() for side in (self.labels, self.scores)]
        return content_key(self.first, self.second, *marks, self.classes)

    def rows(self, chosen: np.ndarray) -> PairTexts:
        """Return the pairs with the given numbers, int64 [chosen]."""
        return PairTexts(
            [self.first[row] for row in chosen],
            [self.second[row] for row in chosen],
            None if self.labels is None else self.labels[chosen],
            None if self.scores is None else self.scores[chosen],
            self.classes,
        )

    def encoded(self, vocabulary: Vocabulary, *, max_length: int) -> EncodedPairs:
        """Return the pairs as ids."""
        first, second = (vocabulary.ids(side, max_length=max_length) for side in (self.first, self.second))
        return EncodedPairs(first, second, self.labels, self.scores)


def take_rows(sentences: Sentences, rows: np.ndarray) -> Sentences:
    """Return the sentences with the given numbers, int64 [rows], in that order."""
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    lengths = sentences.lengths[rows]
    return Sentences(sentences.ids[ragged_indices(starts[rows], lengths)], lengths)
