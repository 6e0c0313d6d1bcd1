"""The TF-IDF features of a task's rows, and what a fitted probe predicts from those of new rows.

Features of pairs are those of encoders: [|u - v| ; u * v], and [u ; v] before them where the order matters. A word that
no row of the vocabulary has counts for the length of the vector of another row, and for the cosine of a pair that
shares it, as a word of a single row does, so that held-out rows and new ones are alike.

Predicting needs no more than this: `lexical.py` fits, and needs PyTorch for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from raysent.evaluation.probes.features import COSINE_SCALE
from raysent.evaluation.probes.results import Probe
from raysent.models.schemes.tfidf import LexicalModel, Vectorizer

Arrays = dict[str, np.ndarray]


def predict_lexical(
    model: LexicalModel, probe: Probe, arrays: Arrays, columns: tuple[list[str], ...], *, kind: str
) -> np.ndarray:
    """Return log-probabilities of new rows, float32 [rows, classes]."""
    is_new = np.ones(len(columns[0]), dtype=np.bool_)
    features = lexical_features(model.restored(arrays), columns, kind=kind, is_new=is_new)
    return probe.log_probabilities_of_margins(features @ probe.weights + probe.intercepts)


def lexical_features(
    vectorizer: Vectorizer, columns: Sequence[list[str]], *, kind: str, is_new: np.ndarray
) -> sparse.csr_matrix:
    """Return the features of rows, sparse float32 [rows, features].

    Args:
        vectorizer: Fitted.
        columns: The texts of rows, of each column.
        kind: What a row is; see `TaskData`.
        is_new: Whether the vectorizer has not seen a row, [rows].
    """
    vectors = [vectorizer.transform(column).astype(np.float32) for column in columns]
    # Of text without blanks, parts of a single text count for no length, so that sentences have nothing to add.
    if not is_new.any() or (vectorizer.min_df > 1 and len(columns) == 1):
        return join_columns(vectors, kind=kind)
    lengths = np.ones((len(columns), len(is_new)), dtype=np.float32)
    unknown_cosines = np.zeros(len(is_new), dtype=np.float32)
    unknown_words = _UnknownWords(vectorizer)
    for row in np.flatnonzero(is_new):
        known_lengths, cosine = unknown_words.of_row([texts[row] for texts in columns])
        lengths[:, row] = known_lengths
        unknown_cosines[row] = cosine
    scaled = []
    for column_lengths, column_vectors in zip(lengths, vectors, strict=True):
        scaled.append((sparse.diags(column_lengths) @ column_vectors).tocsr())
    return join_columns(scaled, kind=kind, unknown_cosines=unknown_cosines)


class _UnknownWords:
    """What the words that are in no row of a vocabulary do to a new row: as words of a single row do to that row."""

    def __init__(self, vectorizer: Vectorizer) -> None:
        self._analyze = vectorizer.build_analyzer()
        idf = vectorizer.idf_
        self._idf = {word: idf[column] for word, column in vectorizer.vocabulary_.items()}
        self._rarest = float(vectorizer.idf_.max())
        # Of text without blanks a part has to be in two texts, which may be the two of one row.
        self._must_be_shared = vectorizer.min_df > 1

    def of_row(self, texts: Sequence[str]) -> tuple[list[float], float]:
        """Return the length that known words have in each text's vector, and the cosine that unknown words have."""
        counts = [Counter(self._analyze(text)) for text in texts]
        shared = set[str]()
        if len(counts) > 1:
            shared = set.intersection(*map(set, counts))
        known_lengths = []
        unknown_weights = []
        for word_counts in counts:
            known_length, unit_weights = self._of_text(word_counts, shared)
            known_lengths.append(known_length)
            unknown_weights.append(unit_weights)
        cosine = 0.0
        if len(unknown_weights) > 1:
            first, second = unknown_weights
            cosine = sum(weight * second[word] for word, weight in first.items() if word in second)
        return known_lengths, cosine

    def _of_text(
        self, word_counts: Counter[str], shared: set[str]
    ) -> tuple[float, dict[str, float]]:
        """Return the length that known words have in a text's vector of length 1, and the weights of unknown words."""
        known_square = 0.0
        unknown: dict[str, float] = {}
        for word, count in word_counts.items():
            weight = 1 + math.log(count)
            if word in self._idf:
                known_square += (weight * self._idf[word]) ** 2
            elif word in shared or not self._must_be_shared:
                unknown[word] = weight * self._rarest
        if not unknown:
            return 1.0, {}
        square = known_square + sum(weight**2 for weight in unknown.values())
        length = math.sqrt(square)
        unit_weights = {word: weight / length for word, weight in unknown.items()}
        return math.sqrt(known_square / square), unit_weights


def join_columns(
    vectors: Sequence[sparse.csr_matrix],
    *,
    kind: str,
    unknown_cosines: np.ndarray | None = None,
) -> sparse.csr_matrix:
    """Return the features of rows from the vectors of each column; see `task_features`.

    Args:
        vectors: Of each column, [rows, words], of length one with the words that are left out of them.
        kind: What a row is; see `TaskData`.
        unknown_cosines: What words that are left out of the vectors add to the cosine of each row's texts, [rows].
    """
    if kind == "sentence":
        return vectors[0].tocsr()
    u, v = vectors
    products = u.multiply(v)
    parts = [abs(u - v), products]
    if kind == "order":
        parts = [u, v, *parts]
    elif kind == "likeness":
        cosines = np.asarray(products.sum(axis=1), dtype=np.float32).ravel()
        if unknown_cosines is not None:
            cosines = cosines + unknown_cosines
        parts = [sparse.csr_matrix(COSINE_SCALE * cosines[:, None]), *parts]
    return sparse.hstack(parts, format="csr")
