"""Sentences of a task -> the features that a probe sees, float32 [rows, features].

Every distinct sentence is encoded once.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from raysent.evaluation.task import TaskData

# Sentences encoded before their vectors are copied into place; it bounds the memory held beside the features.
CHUNK = 8192
# Of the cosine among features: a weight that it needs costs a hundredth of what it would cost unscaled.
COSINE_SCALE = 10.0


class Encode(Protocol):
    """An encoder of sentences."""

    def encode(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return vectors of sentences, float32 [sentences, dim]."""


def task_features(encoder: Encode, data: TaskData) -> np.ndarray:
    """Return the features of a task's rows, float32 [rows, features].

    A sentence's features are its vector u. A pair's are [|u - v| ; u * v], those of a pair whose own likeness counts
    [s cos(u, v) ; |u - v| ; u * v], and those of a pair whose order matters [u ; v ; |u - v| ; u * v]. The scale s
    makes a weight of the cosine nearly free of the penalty, so that with few rows a probe says what the cosine says,
    which needs no training.

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
    num_before = {"order": 2 * dim, "likeness": 1}.get(kind, 0)
    features = np.empty((len(u), num_before + 2 * dim), dtype=np.float32)
    if kind == "order":
        features[:, :dim] = u
        features[:, dim:num_before] = v
    elif kind == "likeness":
        features[:, 0] = COSINE_SCALE * _cosines(u, v)
    np.abs(u - v, out=features[:, num_before : num_before + dim])
    np.multiply(u, v, out=features[:, num_before + dim :])
    return features


def _cosines(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the cosine of each row of `u` with the same row of `v`, [rows]; 0 where a vector is zero."""
    products = np.einsum("rd,rd->r", u, v)
    lengths = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    cosines: np.ndarray = np.divide(
        products, lengths, out=np.zeros_like(products), where=lengths > 0
    )
    return cosines


def encode_columns(encoder: Encode, columns: tuple[list[str], ...]) -> list[np.ndarray]:
    """Return the vectors [rows, dim] of every column; a sentence that occurs in several rows is encoded once."""
    numbers: dict[str, int] = {}
    sources = []
    for column in columns:
        column_numbers = [numbers.setdefault(sentence, len(numbers)) for sentence in column]
        sources.append(np.array(column_numbers, dtype=np.int64))
    distinct = list(numbers)
    if len(distinct) <= CHUNK:
        vectors = np.asarray(encoder.encode(distinct), dtype=np.float32)
        return [_taken(vectors, source) for source in sources]
    outputs: list[np.ndarray] = []
    for start in range(0, len(distinct), CHUNK):
        vectors = encoder.encode(distinct[start : start + CHUNK])
        if not outputs:
            # Only now is the dimension known.
            dim = vectors.shape[1]
            outputs = [np.empty((len(column), dim), dtype=np.float32) for column in columns]
        for output, source in zip(outputs, sources, strict=True):
            rows = np.flatnonzero((source >= start) & (source < start + CHUNK))
            output[rows] = vectors[source[rows] - start]
    return outputs


def _taken(vectors: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return the vectors at these numbers; those of all numbers in their order need no copy."""
    if np.array_equal(source, np.arange(len(vectors))):
        return vectors
    of_rows: np.ndarray = vectors[source]
    return of_rows
