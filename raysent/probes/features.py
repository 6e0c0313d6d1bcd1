"""Sentences of a task -> the features its probe sees. Every distinct sentence is encoded once."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from raysent.tasks import TaskData

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
    places: dict[str, list[tuple[int, int]]] = {}
    for column, sentences in enumerate(columns):
        for row, sentence in enumerate(sentences):
            places.setdefault(sentence, []).append((column, row))
    distinct = list(places)
    outputs: list[np.ndarray] = []
    for start in range(0, len(distinct), CHUNK):
        chunk = distinct[start : start + CHUNK]
        vectors = encoder.encode(chunk)
        outputs = outputs or [np.empty((len(column), vectors.shape[1]), dtype=np.float32) for column in columns]
        spots = [(*place, index) for index, sentence in enumerate(chunk) for place in places[sentence]]
        which, rows, sources = np.array(spots, dtype=np.int64).T
        for column, output in enumerate(outputs):
            here = which == column
            output[rows[here]] = vectors[sources[here]]
    return outputs
