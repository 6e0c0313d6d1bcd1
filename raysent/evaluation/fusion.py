"""Two rankings of the same passages -> one: by reciprocal rank, or by a weighted sum of scores.

For a weighted sum the scores of each ranking are scaled to 0 for the last of its passages and 1 for the first; where a
ranking ends early, as one of words does with the last passage that has any, 0 stays 0. `retrieval.fit_weight` fits the
weight of words.

Source: Cormack et al., 2009 (reciprocal rank, with 60); Bruch et al., 2023, "An Analysis of Fusion Functions for Hybrid
Retrieval" (the weighted sum).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RANK_CONSTANT = 60
# Passages that are kept of each query's ranking.
DEPTH = 200


@dataclass(frozen=True)
class Ranking:
    """The best passages of each query.

    Attributes:
        queries: The queries by their place, int64 [queries].
        rows: The passages by their place, int32 [queries, depth]; -1 where fewer are found.
        scores: Their scores, float32 [queries, depth].
    """

    queries: np.ndarray
    rows: np.ndarray
    scores: np.ndarray


def fuse(
    vectors: Ranking, words: Ranking, *, weight: float | None = None, depth: int = DEPTH
) -> Ranking:
    """Return one ranking of two of the same queries.

    Args:
        vectors: By vectors.
        words: By words.
        weight: Of words, from 0 to 1, of which the ends leave the other ranking out; None for reciprocal ranks.
        depth: Passages to keep of each query.
    """
    rows = np.full((len(vectors.queries), depth), -1, np.int32)
    scores = np.zeros((len(vectors.queries), depth), np.float32)
    shares = (1.0, 1.0) if weight is None else (1 - weight, weight)
    sides = [(one, share) for one, share in zip((vectors, words), shares, strict=True) if share]
    for number in range(len(rows)):
        lists = [(one.rows[number], one.scores[number]) for one, _ in sides]
        parts = [
            (some[some >= 0], _scaled(points, some >= 0, is_rank=weight is None))
            for some, points in lists
        ]
        found = np.unique(np.concatenate([some for some, _ in parts]))
        total = np.zeros(len(found))
        for (some, points), (_, share) in zip(parts, sides, strict=True):
            total[np.searchsorted(found, some)] += share * points
        order = np.lexsort((found, -total))[:depth]
        rows[number, : len(order)], scores[number, : len(order)] = found[order], total[order]
    return Ranking(vectors.queries, rows, scores)


def _scaled(scores: np.ndarray, is_found: np.ndarray, *, is_rank: bool) -> npt.NDArray[np.float64]:
    """Return the points of the passages of one ranking, best first, from 0 to 1."""
    points: npt.NDArray[np.float64] = scores[is_found].astype(np.float64)
    if is_rank or not len(points):
        return 1 / (_RANK_CONSTANT + 1 + np.arange(len(points)))
    low, high = points[-1] if is_found.all() else min(points[-1], 0.0), points[0]
    return (points - low) / (high - low) if high > low else np.ones(len(points))
