"""Pairs with scores -> the mean Pearson correlation, over sets, of the vectors' cosines with the scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from raysent.artifacts import content_key
from raysent.errors import DataError
from raysent.pairs import PairTexts, read_pairs, read_sts
from raysent.validation.config import ValidationConfig
from raysent.vocabulary import Sentences, Vocabulary

EncodeUnit = Callable[[Sentences], Tensor]
"""Sentences -> what the model's `encode` gives for them [batch, dim], without gradient."""

_CHUNK = 512


class Similarity:
    """Sets of scored pairs.

    Attributes:
        hash: Equal for equal pairs and scores.
        sets: The pairs by the set's name.
    """

    def __init__(self, config: ValidationConfig) -> None:
        """Read the sets.

        Raises:
            DataError: If there is none, or a set has no two different scores.
        """
        self.sets: dict[str, PairTexts] = read_sts(config.sts) if config.sts is not None else {}
        if config.similarity is not None:
            if config.similarity.score is None:
                raise DataError("validation.similarity.score: must name the column of the scores; given none")
            self.sets["similarity"] = read_pairs(config.similarity, name="validation.similarity")
        for name, pairs in self.sets.items():
            if pairs.scores is None or len(set(pairs.scores.tolist())) < 2:
                raise DataError(f"validation.sts: {name}: must hold two different scores; given fewer")
        self.hash = content_key({name: pairs.key for name, pairs in self.sets.items()})

    def scores(self, encode: EncodeUnit, vocabulary: Vocabulary, *, max_length: int) -> dict[str, float]:
        """Return `pearson`, the mean over the sets."""
        sets = []
        for pairs in self.sets.values():
            encoded = pairs.encoded(vocabulary, max_length=max_length)
            first, second = (_encode(side, encode) for side in (encoded.first, encoded.second))
            sets.append((cosines(first, second), np.asarray(pairs.scores)))
        return {"pearson": mean_pearson(sets)}


def mean_pearson(sets: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]) -> float:
    """Return the plain mean over sets of the correlation of two columns."""
    return float(np.mean([pearson(one, other) for one, other in sets]))


def pearson(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """Return Pearson's correlation of two columns [rows]; 0 where one of them is constant."""
    x, y = one - one.mean(), other - other.mean()
    length = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / length if length > 0 or np.isnan(length) else 0.0


def cosines(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the cosine of each row of one with the same row of the other, float64 [rows]; 0 for a vector of zeros."""
    one, other = first.astype(np.float64), second.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosine: npt.NDArray[np.float64] = (one * other).sum(axis=1) / np.where(lengths == 0, 1.0, lengths)
    return cosine


def _encode(sentences: Sentences, encode: EncodeUnit) -> npt.NDArray[np.float32]:
    """Encode in chunks, float32 [sentences, dim]."""
    ends = np.cumsum(sentences.lengths)
    blocks = []
    for first in range(0, len(ends), _CHUNK):
        lengths = sentences.lengths[first : first + _CHUNK]
        stop = int(ends[first + len(lengths) - 1])
        ids = sentences.ids[stop - int(lengths.sum()) : stop]
        blocks.append(encode(Sentences(ids, lengths)).float().cpu().numpy())
    return np.concatenate(blocks)
