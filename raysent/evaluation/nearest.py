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
        return self.scores if self.scores.dtype == np.int64 else -self.scores


def load_faiss(what: str) -> Any:
    """Return the library.

    Raises:
        ConfigError: If it is not installed; begins with `what`.
    """
    if find_spec("faiss") is None:
        raise ConfigError(f"{what}: needs the package faiss-cpu; install raysent[search]")
    return import_module("faiss")


def check_search(measure: str) -> None:
    """Refuse a search that needs FAISS where it is not installed, before a corpus is encoded.

    Raises:
        ConfigError: If it is not.
    """
    if measure == "cosine":
        load_faiss("search of vectors")
    elif try_load("hamming") is None:
        load_faiss("search of codes without a C++ compiler")


def nearest_codes(codes: npt.NDArray[np.uint8], queries: npt.NDArray[np.uint8], *, k: int) -> Hits:
    """Return the codes with the fewest differing bits.

    Args:
        codes: Packed bits, uint8 [rows, bytes], in memory or memory-mapped.
        queries: The same [queries, bytes].
        k: Rows per query, at least 1.

    Raises:
        ConfigError: If there is neither a compiler nor FAISS.
    """
    codes, queries, k = (
        np.ascontiguousarray(codes),
        np.ascontiguousarray(queries),
        min(k, len(codes)),
    )
    kernel = try_load("hamming")
    if kernel is not None:
        return _by_kernel(kernel, codes, queries, k)
    faiss = load_faiss("search of codes without a C++ compiler")
    found = _with_ties(
        lambda some, size: faiss.knn_hamming(some, codes, size), queries, len(codes), k=k, slack=0
    )
    orders = [np.lexsort((rows, distances))[:k] for distances, rows in found]
    near = [
        (rows[order], distances[order])
        for (distances, rows), order in zip(found, orders, strict=True)
    ]
    return Hits(
        np.stack([rows for rows, _ in near]), np.stack([some for _, some in near]).astype(np.int64)
    )


def _by_kernel(kernel: ctypes.CDLL, codes: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """Return the nearest codes by the kernel, which reads memory once for all queries of a thread."""
    hits = Hits(
        np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.int64)
    )

    def search(part: slice) -> None:
        own, rows, distances = queries[part], hits.rows[part], hits.scores[part]
        sizes = [ctypes.c_int64(size) for size in (len(own), len(codes), codes.shape[1], k)]
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (own, codes, rows, distances)]
        kernel.hamming_nearest(pointers[0], sizes[0], pointers[1], *sizes[1:], *pointers[2:])

    size = max(1, -(-len(queries) // torch.get_num_threads()))
    with ThreadPoolExecutor() as pool:
        list(
            pool.map(search, (slice(first, first + size) for first in range(0, len(queries), size)))
        )
    return hits


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
    faiss, k = load_faiss("search of vectors"), min(k, len(vectors))
    vectors, queries = np.ascontiguousarray(vectors), np.ascontiguousarray(queries)

    def search(some: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        products, rows = faiss.knn(some, vectors, size, metric=faiss.METRIC_INNER_PRODUCT)
        return -products, rows

    # Each of two products may be off by dim roundings of at most half a unit in the last place (Cauchy-Schwarz).
    slack = 2 * vectors.shape[1] * float(np.finfo(np.float32).eps)
    near = _with_ties(search, queries, len(vectors), k=k, slack=slack)
    found = [
        _rescored(vectors, query, some, k) for query, (_, some) in zip(queries, near, strict=True)
    ]
    return Hits(np.stack([rows for rows, _ in found]), np.stack([cosines for _, cosines in found]))


def _with_ties(
    search: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]],
    queries: np.ndarray,
    num_rows: int,
    *,
    k: int,
    slack: float,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each query's distances and rows: k, and all others within `slack` of the k-th; ties are searched again."""
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    left, size = np.arange(len(queries)), k + _NUM_SPARE
    while len(left):
        size = min(size, num_rows)
        distances, rows = search(queries[left], size)
        is_whole = (distances[:, -1] > distances[:, k - 1] + slack) | (size == num_rows)
        found |= zip(
            left[is_whole].tolist(),
            zip(distances[is_whole], rows[is_whole], strict=True),
            strict=True,
        )
        left, size = left[~is_whole], 4 * size
    return [found[number] for number in range(len(queries))]


def _rescored(
    vectors: np.ndarray, query: np.ndarray, rows: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the k nearest of some rows and their cosines, in float64; each row's sum is independent of the others."""
    cosines = np.empty(len(rows))
    exact = query.astype(np.float64)
    for at in range(0, len(rows), _RESCORED_AT_ONCE):
        some = rows[at : at + _RESCORED_AT_ONCE]
        cosines[at : at + len(some)] = (vectors[some].astype(np.float64) * exact).sum(axis=1)
    order = np.lexsort((rows, -cosines))[:k]
    return rows[order], cosines[order]
