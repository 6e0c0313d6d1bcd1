"""Queries and rows -> the nearest rows, exactly, in blocks that fit the processor's cache.

Scores here are distances: the smaller, the nearer. Rows at the same distance come in the order of the corpus, so that
an answer depends neither on the size of a block nor on the other queries.

A model's vectors of a text's distinct sentences, memory-mapped: float32 unit rows, or the packed bits of a code.

A folder ``neighbours/<key>/`` of the cache, the key made of the model's content, the sentences and the format:
``vectors.bin`` (rows, no header) and ``index.json``, whose presence says that the vectors are whole. Vectors are
written in blocks; what a killed process leaves behind is gone on with.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from raysent.data.corpus import Progress
from raysent.data.corpus.cache import locked
from raysent.data.corpus.distinct import DistinctSentences
from raysent.errors import ArtifactError, DataError
from raysent.evaluation.members import Member
from raysent.kernels.compiled import try_load
from raysent.kernels.hamming import hamming, pack_bits
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows
from raysent.storage import cache_folder, content_key, read_json, storage_errors, write_json

# Fewer bytes are compared by NumPy in a few milliseconds, for which no machine need build a kernel.
_COMPILED_BYTES = 1 << 24
# Corpus rows and queries compared at once; their scores and a block of rows stay in the cache.
_BLOCK_BYTES = 1 << 21
_NUM_QUERIES = 64
_RESCORED_AT_ONCE = 1024
# So few queries are multiplied one by one, as fast as memory is read; from there on a matrix product is faster.
_FEW_QUERIES = 4


@dataclass(frozen=True)
class Hits:
    """The nearest rows of every query, the nearest first.

    Attributes:
        rows: Rows of the corpus, int64 [queries, k]; k is smaller where the corpus is.
        scores: Cosines, float64 [queries, k], or Hamming distances, int64.
    """

    rows: npt.NDArray[np.int64]
    scores: np.ndarray


def nearest_codes(codes: npt.NDArray[np.uint8], queries: npt.NDArray[np.uint8], *, k: int) -> Hits:
    """Return the codes with the fewest differing bits.

    A large search is a compiled kernel's, where there is a compiler; NumPy finds the same.

    Args:
        codes: Packed bits, uint8 [rows, bytes], in memory or memory-mapped.
        queries: The same [queries, bytes].
        k: Rows wanted of each query, at least 1.
    """
    k = min(k, len(codes))
    is_large = codes.nbytes * len(queries) >= _COMPILED_BYTES
    kernel = try_load("hamming") if is_large else None
    if kernel is not None and codes.flags.c_contiguous:
        return _compiled_nearest_codes(kernel, codes, np.ascontiguousarray(queries), k)
    parts = [_nearest_codes(codes, queries[at : at + _NUM_QUERIES], k) for at in range(0, len(queries), _NUM_QUERIES)]
    return _stacked(parts)


def nearest_vectors(vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], *, k: int) -> Hits:
    """Return the vectors with the highest cosine.

    Float32 products find all rows that may be among the nearest, within the rounding error of such a product; float64
    products of these decide.

    Args:
        vectors: Rows of unit length, or zeros, float32 [rows, dim], in memory or memory-mapped.
        queries: The same [queries, dim].
        k: Rows wanted of each query, at least 1.
    """
    k = min(k, len(vectors))
    parts = [
        _nearest_vectors(vectors, queries[at : at + _NUM_QUERIES], k) for at in range(0, len(queries), _NUM_QUERIES)
    ]
    return _stacked(parts)


def _stacked(parts: list[Hits]) -> Hits:
    return Hits(np.concatenate([part.rows for part in parts]), np.concatenate([part.scores for part in parts]))


def _compiled_nearest_codes(
    kernel: ctypes.CDLL, codes: npt.NDArray[np.uint8], queries: npt.NDArray[np.uint8], k: int
) -> Hits:
    """Return the nearest codes by the kernel, which reads memory once for all queries."""
    hits = Hits(np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.int64))
    sizes = [ctypes.c_int64(size) for size in (len(queries), len(codes), codes.shape[1], k)]
    given_queries, given_codes, rows, scores = (
        ctypes.c_void_p(array.ctypes.data) for array in (queries, codes, hits.rows, hits.scores)
    )
    kernel.hamming_nearest(given_queries, sizes[0], given_codes, *sizes[1:], rows, scores)
    return hits


def _nearest_codes(codes: npt.NDArray[np.uint8], queries: npt.NDArray[np.uint8], k: int) -> Hits:
    size = max(_BLOCK_BYTES // codes.shape[1], 1)
    best = [_Nearest(k, slack=0) for _ in queries]
    for first in range(0, len(codes), size):
        _offer(best, hamming(queries, codes[first : first + size]), first)
    rows = np.stack([one.rows for one in best])
    return Hits(rows, np.stack([one.scores for one in best]).astype(np.int64))


def _nearest_vectors(vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int) -> Hits:
    dim = vectors.shape[1]
    size = max(_BLOCK_BYTES // dim, _NUM_QUERIES)  # four times as many bytes: the product reads a block once
    # Either product may be off by dim roundings of at most one half unit in the last place (Cauchy–Schwarz).
    slack = 2 * dim * float(np.finfo(np.float32).eps)
    best = [_Nearest(k, slack=slack) for _ in queries]
    for first in range(0, len(vectors), size):
        _offer(best, -_products(queries, np.asarray(vectors[first : first + size])), first)
    found = [_decided(vectors, query, one.rows, k) for query, one in zip(queries, best, strict=True)]
    return Hits(np.stack([rows for rows, _ in found]), np.stack([scores for _, scores in found]))


def _products(queries: npt.NDArray[np.float32], block: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return float32 products [queries, rows]."""
    if len(queries) < _FEW_QUERIES:
        return np.stack([np.vecdot(block, query) for query in queries])
    products = torch.from_numpy(block) @ torch.from_numpy(np.array(queries)).T
    return np.ascontiguousarray(products.numpy().T)


def _offer(best: list[_Nearest], scores: np.ndarray, first: int) -> None:
    """Show a block's distances [queries, rows] to the queries that may find something in it."""
    lowest = scores.min(axis=1)
    for index, one in enumerate(best):
        if lowest[index] < one.bound:
            one.offer(scores[index], first)


def _decided(
    vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the k nearest of some rows and their cosines, in float64; each row's sum is independent of the others."""
    cosines = np.empty(len(rows))
    exact = query.astype(np.float64)
    for at in range(0, len(rows), _RESCORED_AT_ONCE):
        some = rows[at : at + _RESCORED_AT_ONCE]
        cosines[at : at + len(some)] = (vectors[some].astype(np.float64) * exact).sum(axis=1)
    order = np.lexsort((rows, -cosines))[:k]
    return rows[order], cosines[order]


class _Nearest:
    """The nearest rows of one query so far: k of them, and all others within `slack` of the last of these.

    Attributes:
        rows: Their places, int64.
        scores: Their distances, ascending; equal ones in order of rows.
        bound: Only a distance below it changes anything.
    """

    def __init__(self, k: int, *, slack: float) -> None:
        self._k = k
        self._slack = slack
        self.rows = np.empty(0, dtype=np.int64)
        self.scores = np.empty(0)
        self.bound = np.inf

    def offer(self, scores: np.ndarray, first: int) -> None:
        """Take what is near enough of a block's distances [rows], whose first row is `first`."""
        columns = np.flatnonzero(scores < self.bound)
        if len(columns) > self._k:
            # The block's own k nearest bound it, before anything is sorted.
            near = scores[columns]
            columns = columns[near <= np.partition(near, self._k - 1)[self._k - 1] + self._slack]
        rows = np.concatenate([self.rows, first + columns])
        found = np.concatenate([self.scores, scores[columns]])
        order = np.argsort(found, kind="stable")  # rows come in ascending order within equal distances
        num_kept = self._k
        if len(order) >= self._k:
            last = found[order[self._k - 1]]
            self.bound = last + self._slack
            num_kept = max(self._k, int(np.searchsorted(found[order], self.bound)))
        self.rows, self.scores = rows[order[:num_kept]], found[order[:num_kept]]


Measure = Literal["cosine", "hamming"]

_FORMAT_VERSION = 1
_BLOCK_SENTENCES = 4096
_SUMMARY = "index.json"
_VECTORS = "vectors.bin"


@dataclass(frozen=True)
class Index:
    """What is searched.

    Attributes:
        folder: Where the vectors are.
        sentences: The sentence of every row.
        measure: ``hamming`` for packed bits, ``cosine`` for unit vectors.
        width: Bytes of a code, or dimensions of a vector.
    """

    folder: Path
    sentences: DistinctSentences
    measure: Measure
    width: int

    def search(self, queries: np.ndarray, *, k: int) -> Hits:
        """Return the k nearest rows of every query, which `encoded` gives [queries, width]."""
        if self.measure == "hamming":
            return nearest_codes(self.rows, queries, k=k)
        return nearest_vectors(self.rows, queries, k=k)

    @cached_property
    def rows(self) -> np.ndarray:
        """Codes, uint8, or vectors, float32 [sentences, width], memory-mapped; what is written stays in memory."""
        shape = (len(self.sentences), self.width)
        return np.asarray(np.memmap(self.folder / _VECTORS, dtype=_dtype(self.measure), mode="c", shape=shape))


def measure_of(encoder: SentenceEncoder) -> Measure:
    """Return what an encoder's sentences are compared by: the bits of a code, else the angle."""
    return "hamming" if encoder.similarity_measure == "hamming" else "cosine"


def encoded(encoder: SentenceEncoder, sentences: list[str], *, measure: Measure, name: str) -> np.ndarray:
    """Return sentences as rows of an index: packed bits, uint8 [sentences, bytes], or unit float32 [sentences, dim].

    Raises:
        DataError: If a vector has a value that is not finite.
    """
    vectors = encoder.encode(sentences)
    if measure == "hamming":
        return pack_bits(vectors)
    is_odd = ~np.isfinite(vectors).all(axis=1)
    if is_odd.any():
        sentence = sentences[int(is_odd.argmax())]
        raise DataError(f"{name}: '{sentence[:40]}': the vector must be finite; given NaN or infinity; train it again")
    return normalize_rows(vectors)


def open_index(
    member: Member,
    encoder: SentenceEncoder,
    sentences: DistinctSentences,
    *,
    measure: Measure | None = None,
    cache_dir: str | None = None,
    progress: Progress | None = None,
) -> Index:
    """Return a model's index of a text, made or gone on with where it is not whole yet.

    Args:
        member: The model's name and content key.
        encoder: The model.
        sentences: What to search.
        measure: What to compare by; by default what the encoder is compared by.
        cache_dir: Where indexes are kept; default ``$RAYSENT_CACHE``, else the user's cache folder.
        progress: Told ``indexing``, the sentences done and all of them.

    Raises:
        DataError: If the model gives a value that is not finite.
        ArtifactError: If the cache cannot be written.
    """
    measure = measure or measure_of(encoder)
    key = content_key(_FORMAT_VERSION, member.key, sentences.key, measure)
    cache, name = cache_folder(cache_dir), f"neighbours/{key}"
    folder = cache / name
    dim = encoder.get_sentence_embedding_dimension()
    index = Index(folder, sentences, measure, -(-dim // 8) if measure == "hamming" else dim)
    if not _is_whole(index):
        with locked(cache, name), storage_errors(folder):
            if not _is_whole(index):
                _write(index, member, encoder, progress)
    return index


def _dtype(measure: Measure) -> type[np.generic]:
    return np.uint8 if measure == "hamming" else np.float32


def _row_bytes(index: Index) -> int:
    return index.width * np.dtype(_dtype(index.measure)).itemsize


def _is_whole(index: Index) -> bool:
    """Whether the vectors are all there; a file of another size than was written is made again."""
    try:
        about: dict[str, Any] = read_json(index.folder / _SUMMARY)
        return bool((index.folder / _VECTORS).stat().st_size == about["num_bytes"])
    except (ArtifactError, OSError, KeyError, TypeError):
        return False


def _write(index: Index, member: Member, encoder: SentenceEncoder, progress: Progress | None) -> None:
    """Write the vectors block by block, after the whole blocks that are there."""
    index.folder.mkdir(parents=True, exist_ok=True)
    path, num_rows, row_bytes = index.folder / _VECTORS, len(index.sentences), _row_bytes(index)
    (index.folder / _SUMMARY).unlink(missing_ok=True)
    with path.open("ab") as stream:
        # The last block may have been written in part when the power went.
        num_blocks = max(stream.tell() // (row_bytes * _BLOCK_SENTENCES) - 1, 0)
        stream.truncate(num_blocks * _BLOCK_SENTENCES * row_bytes)
        for first in range(num_blocks * _BLOCK_SENTENCES, num_rows, _BLOCK_SENTENCES):
            last = min(first + _BLOCK_SENTENCES, num_rows)
            block = index.sentences.texts(range(first, last))
            stream.write(encoded(encoder, block, measure=index.measure, name=member.name).data)
            stream.flush()
            os.fsync(stream.fileno())
            if progress:
                progress("indexing", last, num_rows)
    about = {
        "kind": "raysent-neighbours",
        "model": member.name,
        "model_key": member.key,
        "sentences": index.sentences.key,
        "num_sentences": num_rows,
        "measure": index.measure,
        "width": index.width,
        "num_bytes": num_rows * row_bytes,
    }
    write_json(index.folder / _SUMMARY, about)
