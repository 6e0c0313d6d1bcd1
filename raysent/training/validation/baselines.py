"""What an encoder should beat on the contextual metric: cosines of plain word statistics, on the same pool.

    tfidf   vectors of the run's words, weighted by TF-IDF; document frequencies are of sentences of the training text
    random  the mean of random word vectors

Without training both find neighbours, because sentences that follow each other share words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from raysent.data.vocabulary import UNK_ID, Sentences
from raysent.training.validation.pool import ValidationPool, similarity_scores

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_DIM = 300

Similarity = Callable[[Sentences], np.ndarray]
"""Sentences -> the cosine of each with each, [sentences, sentences]."""


def baseline_accuracies(pool: ValidationPool, sample: Sentences, *, num_words: int) -> dict[str, float]:
    """Return `context_accuracy` on a pool, a fraction, of the cosine of `tfidf` vectors and of `random` word vectors.

    Args:
        pool: The pool of a run.
        sample: Sentences of the training text, which decide how rare a word is.
        num_words: Words of the vocabulary.
    """
    baselines: dict[str, Similarity] = {"tfidf": _tfidf(sample, num_words), "random": _random_words(num_words)}
    correct = dict.fromkeys(baselines, 0.0)
    for sentences, in_context in pool.blocks():
        for name, similarity in baselines.items():
            found = torch.from_numpy(similarity(sentences))
            correct[name] += similarity_scores(found, torch.from_numpy(in_context))[0]
    return {name: total / pool.record.num_sources for name, total in correct.items()}


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
    """Return how often each known word occurs in each sentence, [sentences, words]."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - as above

    bounds = np.concatenate([[0], np.cumsum(sentences.lengths)])
    is_known = (sentences.ids > UNK_ID).astype(np.float32)
    counts = csr_array((is_known, sentences.ids, bounds), shape=(len(sentences.lengths), num_words))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts
