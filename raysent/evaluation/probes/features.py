"""Sentences of a task -> the features its probe sees. Every distinct sentence is encoded once.

Features of words alone that stand beside vectors: of a pair's words and numbers, and naive-Bayes log-ratios.

Source: Socher et al., 2011, section 4.3 (pairs); Wang and Manning, 2012, section 2 (naive Bayes); both as used by Kiros
et al., 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from raysent.evaluation.tasks import TaskData

# Sentences encoded before their vectors are put in place: bounds what is held beside the features.
CHUNK = 8192


class Encode(Protocol):
    """Whatever turns sentences into vectors, float32 [sentences, dim]."""

    def encode(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Encode sentences."""


def task_features(encoder: Encode, data: TaskData) -> np.ndarray:
    """Return the features of a task's rows, float32 [rows, features].

    A sentence's feature is its vector u. A pair's are [|u - v| ; u * v], and where the order matters
    [u ; v ; |u - v| ; u * v].

    Source: Tai et al., 2015, equation 15; Conneau and Kiela, 2018, section 3.
    """
    return features_of(encoder, data.sentences, kind=data.kind)


def features_of(encoder: Encode, columns: tuple[list[str], ...], *, kind: str) -> np.ndarray:
    """Return the features of rows given as one column of sentences, or two for pairs; see `task_features`."""
    vectors = encode_columns(encoder, columns)
    if kind == "sentence":
        return vectors[0]
    u, v = vectors
    dim = u.shape[1]
    first = 2 * dim if kind == "order" else 0
    features = np.empty((len(u), first + 2 * dim), dtype=np.float32)
    if first:
        features[:, :dim], features[:, dim:first] = u, v
    np.abs(u - v, out=features[:, first : first + dim])
    np.multiply(u, v, out=features[:, first + dim :])
    return features


def encode_columns(encoder: Encode, columns: tuple[list[str], ...]) -> list[np.ndarray]:
    """Return the vectors [rows, dim] of every column, a distinct sentence encoded once over all columns."""
    numbers: dict[str, int] = {}
    sources = [
        np.array([numbers.setdefault(sentence, len(numbers)) for sentence in column], dtype=np.int64)
        for column in columns
    ]
    distinct = list(numbers)
    if len(distinct) <= CHUNK:
        return _placed(encoder.encode(distinct), sources)
    outputs: list[np.ndarray] = []
    for start in range(0, len(distinct), CHUNK):
        vectors = encoder.encode(distinct[start : start + CHUNK])
        outputs = outputs or [np.empty((len(column), vectors.shape[1]), dtype=np.float32) for column in columns]
        for output, source in zip(outputs, sources, strict=True):
            here = np.flatnonzero((source >= start) & (source < start + CHUNK))
            output[here] = vectors[source[here] - start]
    return outputs


def _placed(vectors: np.ndarray, sources: list[np.ndarray]) -> list[np.ndarray]:
    """Return the rows of vectors that the sources name, without a copy where these are all of them in order."""
    vectors = np.asarray(vectors, dtype=np.float32)
    every = np.arange(len(vectors))
    return [vectors if np.array_equal(source, every) else vectors[source] for source in sources]


SMOOTHING = 1.0


def pair_features(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return six features of pairs, float32 [rows, 6].

    Both sentences have the same numbers; the same and at least one; the numbers of one are among those of the other;
    the share of the first's words that the second has; of the second's that the first has; and the mean of the two
    ratios of their lengths.
    """
    return np.array([_features(a.split(), b.split()) for a, b in zip(first, second, strict=True)], dtype=np.float32)


def _features(first: list[str], second: list[str]) -> list[float]:
    one, other = set(first), set(second)
    numbers, others = ({word for word in words if _is_number(word)} for words in (one, other))
    shared = len(one & other)
    ratio = (len(first) / len(second) + len(second) / len(first)) / 2 if first and second else 0.0
    return [
        float(numbers == others),
        float(numbers == others and bool(numbers)),
        float(numbers <= others or others <= numbers),
        shared / len(one) if one else 0.0,
        shared / len(other) if other else 0.0,
        ratio,
    ]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class NaiveBayes:
    """Words and pairs of neighbouring words of some sentences, weighed by how much they speak for a class."""

    def __init__(self, sentences: Sequence[str]) -> None:
        """Count words and pairs of words in sentences [rows]."""
        counter = CountVectorizer(ngram_range=(1, 2), tokenizer=str.split, token_pattern=None, lowercase=False)
        self.counts = counter.fit_transform(sentences).tocsr().astype(np.float64)
        self.present = (self.counts > 0).astype(np.float64)

    def features(self, train: np.ndarray, labels: np.ndarray) -> sparse.csr_matrix:
        """Return ln(p / q) where a word or pair is present and 0 elsewhere, [rows, words and pairs].

        p and q are the smoothed shares of a word among those of the second class and of the first, counted in
        training rows; a word that these do not have is not used.

        Args:
            train: The rows that train, int64 [train rows].
            labels: All rows' classes, 0 or 1, [rows].
        """
        sums = [self.counts[train[labels[train] == label]].sum(axis=0).A1 for label in (0, 1)]
        known = (sums[0] + sums[1]) > 0
        shares = [(total + SMOOTHING) / (total + SMOOTHING)[known].sum() for total in sums]
        ratios = np.where(known, np.log(shares[1] / shares[0]), 0.0)
        return self.present.multiply(ratios).tocsr()
