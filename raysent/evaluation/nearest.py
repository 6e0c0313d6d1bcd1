"""Exact search: the k nearest rows of each query, by cosine or by Hamming distance.

FAISS compares float32 vectors, and the compiled kernel of this package codes, three times as fast as FAISS does, which
compares them where there is no compiler. Rows of equal distance are in the order of the corpus, so a result depends
on no other query: FAISS is asked for more rows until the last one is farther than the k-th, and cosines that differ by
less than the rounding of a float32 product are ordered by float64.

Source: FAISS: Douze et al., 2024, "The Faiss library".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raysent.errors import ConfigError
from raysent.kernels.native import try_load

# Rows beyond the k-th that FAISS is asked for at first.
_NUM_SPARE = 8
_RESCORED_AT_ONCE = 1024


@dataclass(frozen=True)
class Hits:
    """The nearest rows of every query, nearest first.

    Attributes:
        rows: Rows of the corpus, int64 [queries, k]; k is smaller if the corpus is.
        scores: Cosines, float64 [queries, k], or Hamming distances, int64; or scores of words, float32, where a row is
            -1 if fewer are found.
    """

    rows: npt.NDArray[np.int64]
    scores: np.ndarray

    @property
    def distances(self) -> np.ndarray:
        """What is smaller for nearer rows: minus the scores, or the Hamming distances."""
        if self.scores.dtype == np.int64:
            return self.scores
        return -self.scores


def _load_faiss(purpose: str) -> Any:
    """Return the library.

    Raises:
        ConfigError: If it is not installed; begins with the purpose.
    """
    if find_spec("faiss") is None:
        raise ConfigError(f"{purpose}: needs the package faiss-cpu; install raysent[search]")
    return import_module("faiss")


def check_search(measure: str) -> None:
    """Refuse a search that needs FAISS where it is not installed, before a corpus is encoded.

    Raises:
        ConfigError: If it is not.
    """
    if measure == "cosine":
        _load_faiss("search of vectors")
    elif try_load("hamming") is None:
        _load_faiss("search of codes without a C++ compiler")


def nearest_codes(codes: npt.NDArray[np.uint8], queries: npt.NDArray[np.uint8], *, k: int) -> Hits:
    """Return the codes with the fewest differing bits.

    Args:
        codes: Packed bits, uint8 [rows, bytes], in memory or memory-mapped.
        queries: The same [queries, bytes].
        k: Rows per query, at least 1.

    Raises:
        ConfigError: If there is neither a compiler nor FAISS.
    """
    codes = np.ascontiguousarray(codes)
    queries = np.ascontiguousarray(queries)
    k = min(k, len(codes))
    kernel = try_load("hamming")
    if kernel is not None:
        return _by_kernel(kernel, codes, queries, k)
    faiss = _load_faiss("search of codes without a C++ compiler")

    def search(batch: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        distances, rows = faiss.knn_hamming(batch, codes, size)
        return distances, rows

    near_rows = []
    near_distances = []
    for distances, rows in _with_ties(search, queries, len(codes), k=k, slack=0):
        order = np.lexsort((rows, distances))[:k]
        near_rows.append(rows[order])
        near_distances.append(distances[order])
    return Hits(np.stack(near_rows), np.stack(near_distances).astype(np.int64))


def _by_kernel(kernel: ctypes.CDLL, codes: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """Return the nearest codes by the kernel, which reads memory once for all queries of a thread."""
    near_rows = np.empty((len(queries), k), dtype=np.int64)
    near_distances = np.empty((len(queries), k), dtype=np.int64)

    def search(part: slice) -> None:
        batch = queries[part]
        kernel.hamming_nearest(
            _pointer(batch),
            ctypes.c_int64(len(batch)),
            _pointer(codes),
            ctypes.c_int64(len(codes)),
            ctypes.c_int64(codes.shape[1]),
            ctypes.c_int64(k),
            _pointer(near_rows[part]),
            _pointer(near_distances[part]),
        )

    size = max(1, -(-len(queries) // torch.get_num_threads()))
    parts = [slice(first, first + size) for first in range(0, len(queries), size)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(search, parts))  # a list, so that an error of a thread is raised here
    return Hits(near_rows, near_distances)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def nearest_vectors(
    vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], *, k: int
) -> Hits:
    """Return the vectors with the highest cosine.

    Args:
        vectors: Rows of unit length, or zeros, float32 [rows, dim], in memory or memory-mapped.
        queries: The same [queries, dim].
        k: Rows per query, at least 1.

    Raises:
        ConfigError: If FAISS is not installed.
    """
    faiss = _load_faiss("search of vectors")
    k = min(k, len(vectors))
    vectors = np.ascontiguousarray(vectors)
    queries = np.ascontiguousarray(queries)

    def search(batch: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        products, rows = faiss.knn(batch, vectors, size, metric=faiss.METRIC_INNER_PRODUCT)
        return -products, rows

    # Each of two products may be off by dim roundings of at most half a unit in the last place (Cauchy-Schwarz).
    slack = 2 * vectors.shape[1] * float(np.finfo(np.float32).eps)
    candidates = _with_ties(search, queries, len(vectors), k=k, slack=slack)
    near_rows = []
    near_cosines = []
    for query, (_, candidate_rows) in zip(queries, candidates, strict=True):
        rows, cosines = _rescored(vectors, query, candidate_rows, k)
        near_rows.append(rows)
        near_cosines.append(cosines)
    return Hits(np.stack(near_rows), np.stack(near_cosines))


def _with_ties(
    search: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    queries: np.ndarray,
    num_rows: int,
    *,
    k: int,
    slack: float,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each query's distances and rows: k, and all others within `slack` of the k-th; ties are searched again."""
    near_of: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    open_queries = np.arange(len(queries))
    size = k + _NUM_SPARE
    while len(open_queries):
        size = min(size, num_rows)
        distances, rows = search(queries[open_queries], size)
        # Where the last row is as near as the k-th, rows that were not returned may be as near, too.
        is_complete = (distances[:, -1] > distances[:, k - 1] + slack) | (size == num_rows)
        for position in np.flatnonzero(is_complete):
            query_index = int(open_queries[position])
            near_of[query_index] = (distances[position], rows[position])
        open_queries = open_queries[~is_complete]
        size *= 4
    return [near_of[query_index] for query_index in range(len(queries))]


def _rescored(
    vectors: np.ndarray, query: np.ndarray, rows: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the k nearest of some rows and their cosines, in float64; each row's sum is independent of the others."""
    cosines = np.empty(len(rows))
    exact = query.astype(np.float64)
    for first in range(0, len(rows), _RESCORED_AT_ONCE):
        part = slice(first, first + _RESCORED_AT_ONCE)
        cosines[part] = (vectors[rows[part]].astype(np.float64) * exact).sum(axis=1)
    order = np.lexsort((rows, -cosines))[:k]
    return rows[order], cosines[order]
