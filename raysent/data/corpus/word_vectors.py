"""Word vectors computed from a corpus, for encoders without a file of pretrained vectors: PPMI factorized by an SVD."""

from __future__ import annotations

import contextlib
from typing import Any

import filelock
import numpy as np

from raysent import storage
from raysent.data.corpus.store import Corpus, CorpusSplit
from raysent.data.languages import WITHOUT_BLANKS
from raysent.data.vocabulary import PAD_ID, WORD_START, Sentences, SubwordVocabulary
from raysent.errors import ArtifactError, DataError

_WINDOW = 5
_SMOOTHING = 0.75
_NUM_CONTEXTS = 10_000  # the most frequent words; rarer contexts cost memory and change little
_MAX_TOKENS = 10_000_000
_BLOCK_SENTENCES = 20_000
_OVERSAMPLING = 16
_NUM_POWER_ITERATIONS = 2


def corpus_word_vectors(corpus: Corpus, *, dim: int, seed: int) -> np.ndarray:
    """Return word vectors computed from the training sentences: PPMI factorized by a truncated SVD.

    They are cached in the folder of the corpus. In a corpus of more than 10 million tokens, evenly spaced blocks of
    that total size are counted. Those of sub-words have the length that `_lengths` returns instead of the SVD's: the
    parts of a rare word, which occur together, would outweigh the words around them in a mean.

    Args:
        corpus: A prepared corpus.
        dim: Dimension of the vectors.
        seed: Seed of the randomized SVD.

    Returns:
        float32 [vocabulary, dim], scaled so that the values of all words have variance 1; the padding's row is 0.

    Raises:
        DataError: If the vocabulary has fewer words than the vectors have dimensions.

    Source: Levy, Goldberg and Dagan, 2015, "Improving distributional similarity with lessons learned from word
        embeddings": positive pointwise mutual information, context distribution smoothed by 0.75, truncated SVD,
        singular values to the power 1/2. The SVD is the randomized one of Halko, Martinsson and Tropp, 2011, with two
        power iterations.
    """
    if dim > len(corpus.vocabulary):
        raise DataError(
            f"embedding.vectors: 'ppmi' with {dim} dimensions must have as many words; given {len(corpus.vocabulary)}"
            " in the vocabulary; lower embedding.dim"
        )
    file = corpus.folder / f"ppmi-{dim}-{seed}.npz"
    # The workers of a node need the same vectors at once: one computes them, the others wait.
    with storage.storage_errors(file), filelock.FileLock(file.with_suffix(".lock")):
        # A damaged file is counted again.
        with contextlib.suppress(ArtifactError, KeyError):
            return storage.load_arrays(file)["vectors"]
        counts = _count_pairs(corpus.train, len(corpus.vocabulary))
        vectors = _factorize(_positive_information(counts), dim, np.random.default_rng(seed))
        if isinstance(corpus.vocabulary, SubwordVocabulary):
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors *= _lengths(corpus)[:, None] / np.maximum(norms, 1e-12)
        vectors[PAD_ID] = 0
        vectors /= max(float(vectors[PAD_ID + 1 :].std()), 1e-12)
        storage.save_arrays(file, {"vectors": vectors})
    return vectors


def _count_pairs(split: CorpusSplit, num_words: int) -> Any:
    """Return the co-occurrence counts of words and contexts, weighted 1/distance: sparse [vocabulary, contexts]."""
    num_contexts = min(num_words, _NUM_CONTEXTS)
    counts = _sparse((num_words, num_contexts), dtype=np.float32)
    blocks = range(0, len(split), _BLOCK_SENTENCES)
    stride = -(-split.num_tokens // _MAX_TOKENS)
    for start in blocks[::stride]:
        block = split.sentences(start, min(start + _BLOCK_SENTENCES, len(split)))
        counts = counts + _block_pairs(block, counts.shape)
    return counts


def _lengths(corpus: Corpus) -> np.ndarray:
    """Return the share that a sub-word is of its word, in the mean of its places; 1 where text writes no blanks."""
    starts = np.array([word.startswith(WORD_START) for word in corpus.vocabulary.words])
    if corpus.language in WITHOUT_BLANKS or not starts.any():
        return np.ones(len(starts), np.float32)
    num_subwords = len(starts)
    shares = np.zeros(num_subwords)
    num_places = np.zeros(num_subwords)
    for start in range(0, len(corpus.train), _BLOCK_SENTENCES):
        stop = min(start + _BLOCK_SENTENCES, len(corpus.train))
        ids = corpus.train.sentences(start, stop).ids
        # The number of the word that each sub-word is a part of, and the share that it is of that word.
        word = np.cumsum(starts[ids])
        word_sizes = np.bincount(word)
        shares += np.bincount(ids, 1 / word_sizes[word], minlength=num_subwords)
        num_places += np.bincount(ids, minlength=num_subwords)
    mean_shares = shares / np.maximum(num_places, 1)
    return np.where(num_places > 0, mean_shares, 1).astype(np.float32)


def _sparse(values: Any, **options: Any) -> Any:
    """Return a sparse matrix, by rows."""
    from scipy.sparse import csr_matrix  # noqa: PLC0415 - a tenth of a second for every process that loads a model

    return csr_matrix(values, **options)


def _block_pairs(sentences: Sentences, shape: tuple[int, int]) -> Any:
    """Return the counts of some sentences, weighted 1/distance: sparse [vocabulary, contexts]."""
    ids = sentences.ids
    sentence = np.repeat(np.arange(len(sentences.lengths)), sentences.lengths)
    total = _sparse(shape, dtype=np.float32)
    for distance in range(1, min(_WINDOW, len(ids) - 1) + 1):
        in_same_sentence = sentence[:-distance] == sentence[distance:]
        first = ids[:-distance][in_same_sentence]
        second = ids[distance:][in_same_sentence]
        # Each is a context of the other.
        words = np.concatenate([first, second])
        contexts = np.concatenate([second, first])
        is_counted = contexts < shape[1]
        words = words[is_counted]
        contexts = contexts[is_counted]
        weights = np.full(len(words), 1 / distance, dtype=np.float32)
        total = total + _sparse((weights, (words, contexts)), shape=shape)
    return total


def _positive_information(counts: Any) -> Any:
    """Return max(0, log p(word, context) / (p(word) p(context))) with smoothed contexts, sparse."""
    pairs = counts.tocoo()
    words = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    contexts = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel() ** _SMOOTHING
    ratio = pairs.data * contexts.sum() / (words[pairs.row] * contexts[pairs.col])
    information = np.maximum(np.log(ratio), 0).astype(np.float32)
    positive = _sparse((information, (pairs.row, pairs.col)), shape=counts.shape)
    positive.eliminate_zeros()
    return positive


def _factorize(matrix: Any, dim: int, generator: np.random.Generator) -> np.ndarray:
    """Return U S^(1/2) of the leading singular vectors, float32 [rows, dim]; 0 beyond the matrix's rank."""
    rank = min(dim + _OVERSAMPLING, *matrix.shape)
    basis = matrix @ generator.standard_normal((matrix.shape[1], rank), dtype=np.float32)
    for _ in range(_NUM_POWER_ITERATIONS):
        # Without orthonormal columns all would turn to the first singular vector.
        basis = matrix @ (matrix.T @ np.linalg.qr(basis)[0])
    basis = np.linalg.qr(basis)[0]
    projected = (matrix.T @ basis).T
    left_vectors, singular_values, _ = np.linalg.svd(projected, full_matrices=False)
    num_kept = min(dim, rank)
    leading = basis @ left_vectors[:, :num_kept]
    vectors = np.zeros((matrix.shape[0], dim), dtype=np.float32)
    vectors[:, :num_kept] = leading * np.sqrt(singular_values[:num_kept])
    return vectors
