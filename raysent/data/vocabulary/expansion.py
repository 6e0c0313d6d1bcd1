"""Vocabulary expansion: a linear map from pretrained word vectors to a trained table, fitted on the shared words.

    v' = W v + b, by least squares over the shared words

Source: Kiros et al., 2015, section 2.2, and the released code, whose regression has the intercept b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysent.data.vocabulary.tokens import UNK_ID
from raysent.data.vocabulary.vectors import WordVectors
from raysent.data.vocabulary.words import Vocabulary

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LinearMap:
    """A map from one space of word vectors to another.

    Attributes:
        weight: float64 [dim of the source, dim of the target].
        intercept: float64 [dim of the target].
    """

    weight: npt.NDArray[np.float64]
    intercept: npt.NDArray[np.float64]

    def __call__(self, vectors: Float32) -> Float32:
        """Map vectors [rows, dim of the source] to float32 [rows, dim of the target]."""
        return (vectors @ self.weight.astype(np.float32) + self.intercept.astype(np.float32)).astype(np.float32)


def fit_linear_map(sources: Float32, targets: Float32, *, has_intercept: bool = True) -> LinearMap:
    """Return the map with the least squared error.

    Args:
        sources: Pretrained vectors of the shared words [words, dim of the source].
        targets: Their vectors in the trained table [words, dim of the target].
        has_intercept: Whether to fit an intercept; the paper's text has none.
    """
    x, y = sources.astype(np.float64), targets.astype(np.float64)
    x_mean, y_mean = (x.mean(axis=0), y.mean(axis=0)) if has_intercept else (np.zeros(x.shape[1]), np.zeros(y.shape[1]))
    weight = np.linalg.lstsq(x - x_mean, y - y_mean, rcond=None)[0]
    return LinearMap(weight, y_mean - x_mean @ weight)


def shared_words(vocabulary: Vocabulary, vectors: WordVectors) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the ids of the words that have a pretrained vector, and the rows of the vectors, int64 [words] each."""
    row = {word: number for number, word in enumerate(vectors.words)}
    pairs = [(number, row[word]) for number, word in enumerate(vocabulary.words) if number > UNK_ID and word in row]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def new_words(vocabulary: Vocabulary, vectors: WordVectors) -> npt.NDArray[np.int64]:
    """Return the rows of pretrained vectors whose words are not in the vocabulary, int64 [words].

    Phrases (words with ``_``) are left out; for a lowercase vocabulary, so are words with uppercase letters.
    """
    return np.array(
        [
            number
            for number, word in enumerate(vectors.words)
            if word not in vocabulary
            and "_" not in word
            and len(word.split()) == 1
            and not (vocabulary.lowercase and word != word.lower())
        ],
        dtype=np.int64,
    )
