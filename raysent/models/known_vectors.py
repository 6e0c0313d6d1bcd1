"""`KnownVectors`: the vectors of sentences that an encoder of fixed weights has encoded, found by the sentences' words.

    sentence -> key of 64 bits -> row of the sorted keys -> vector

Two of n sentences share a key, and then a vector, with a probability of n^2 / 2^65: 3e-6 for ten million.

Source of the mixing function: Steele et al., 2014, "Fast splittable pseudorandom number generators", mix64 variant 13.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raysent.data.vocabulary import Sentences

Keys = npt.NDArray[np.uint64]


def sentence_keys(sentences: Sentences) -> Keys:
    """Return a key of each sentence, uint64 [batch]: equal for equal words in equal order."""
    if len(sentences.lengths) == 0:
        return np.empty(0, dtype=np.uint64)
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    places = np.arange(len(sentences.ids)) - np.repeat(starts, sentences.lengths)
    words = _mixed((places.astype(np.uint64) << np.uint64(32)) | sentences.ids.astype(np.uint64))
    return _mixed(np.add.reduceat(words, starts))


def _mixed(values: Keys) -> Keys:
    """Return a permutation of the numbers of 64 bits in which each bit depends on all."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class KnownVectors:
    """Vectors by sentence.

    Args:
        keys: Distinct keys, ascending, uint64 [sentences].
        vectors: float32 [sentences, dim]; may be memory-mapped.
    """

    def __init__(self, keys: Keys, vectors: npt.NDArray[np.float32]) -> None:
        self._keys, self._vectors = keys, vectors

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, sentences: Sentences) -> npt.NDArray[np.float32] | None:
        """Return the vectors of sentences, float32 [batch, dim], as a new array; None unless all are known."""
        keys = sentence_keys(sentences)
        rows = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        if not np.array_equal(self._keys[rows], keys):
            return None
        found: npt.NDArray[np.float32] = self._vectors[rows]
        return found
