"""What an encoder should beat without labels: plain word statistics, on the same validation set.

    tfidf   vectors of the run's words, weighted by TF-IDF; document frequencies are of sentences of the training text
    random  the mean of random word vectors

Their cosines find neighbours without training, because sentences that follow each other share words; a probe on them
finds the document of a sentence, because documents have words of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from raysent.data.vocabulary import UNK_ID, Sentences
from raysent.training.validation.metrics import Documents, Validator
from raysent.training.validation.pool import ValidationPool, similarity_scores

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BASELINES = {
    "context_accuracy": {"tfidf": "cosine of TF-IDF", "random": "cosine of mean random word vectors"},
    "document_accuracy": {"tfidf": "probe on TF-IDF", "random": "probe on mean random word vectors"},
}
"""Metric -> name of a baseline -> what it is, in words."""

_DIM = 300
# Dimensions of less variance than this, of the largest, are rounding.
_LEAST_VARIANCE = 1e-6

Similarity = Callable[[Sentences], np.ndarray]
"""Sentences -> the cosine of each with each, [sentences, sentences]."""


def baseline_scores(metric: str, validator: Validator, sample: Sentences, *, num_words: int) -> dict[str, float]:
    """Return a metric of `BASELINES` for the vectors of `tfidf` and `random`.

    Args:
        metric: The metric.
        validator: The validation set of a run, which has what the metric reads.
        sample: Sentences of the training text, which decide how rare a word is.
        num_words: Words of the vocabulary.
    """
    baselines: dict[str, Similarity] = {"tfidf": _tfidf(sample, num_words), "random": _random_words(num_words)}
    if metric == "context_accuracy":
        assert validator.pool is not None
        return _context_accuracies(validator.pool, baselines)
    assert validator.documents is not None
    return {name: _document_accuracy(validator.documents, similarity) for name, similarity in baselines.items()}


def _context_accuracies(pool: ValidationPool, baselines: dict[str, Similarity]) -> dict[str, float]:
    correct = dict.fromkeys(baselines, 0.0)
    for sentences, in_context in pool.blocks():
        for name, similarity in baselines.items():
            found = torch.from_numpy(similarity(sentences))
            correct[name] += similarity_scores(found, torch.from_numpy(in_context))[0]
    return {name: total / pool.num_sources for name, total in correct.items()}


def _document_accuracy(documents: Documents, similarity: Similarity) -> float:
    """Return the accuracy, in percent, of a probe on vectors that are known by their cosines.

    A probe's fit depends on inner products alone, so vectors of as many dimensions as there are sentences will do.
    """
    values, vectors = np.linalg.eigh(similarity(documents.sentences).astype(np.float64))
    varies = values > _LEAST_VARIANCE * values[-1]
    return documents.accuracy((vectors[:, varies] * np.sqrt(values[varies])).astype(np.float32))


def _tfidf(sample: Sentences, num_words: int) -> Similarity:
    """Weigh a word by (1 + log tf) (1 + log((1 + n) / (1 + df))), as scikit-learn does with `sublinear_tf`."""
    seen = _counts(sample, num_words)
    frequencies = np.bincount(seen.indices, minlength=num_words)
    weights = (1 + np.log((1 + seen.shape[0]) / (1 + frequencies))).astype(np.float32)

    def similarity(sentences: Sentences) -> np.ndarray:
        rows = _counts(sentences, num_words)
        rows.data = (1 + np.log(rows.data)) * weights[rows.indices]
        lengths = np.sqrt((rows * rows).sum(axis=1))
        cosines = (rows @ rows.T).toarray() / np.maximum(np.outer(lengths, lengths), np.finfo(np.float32).tiny)
        return np.asarray(cosines)

    return similarity


def _random_words(num_words: int) -> Similarity:
    vectors = np.random.default_rng(0).standard_normal((num_words, _DIM), dtype=np.float32)

    def similarity(sentences: Sentences) -> np.ndarray:
        sums = _counts(sentences, num_words) @ vectors
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        rows = np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0)
        return np.asarray(rows @ rows.T)

    return similarity


def _counts(sentences: Sentences, num_words: int) -> csr_array:
    from scipy.sparse import csr_array  # noqa: PLC0415 - as above

    bounds = np.concatenate([[0], np.cumsum(sentences.lengths)])
    is_known = (sentences.ids > UNK_ID).astype(np.float32)
    counts = csr_array((is_known, sentences.ids, bounds), shape=(len(sentences.lengths), num_words))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts
