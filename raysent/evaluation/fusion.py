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
        weight: The weight of words, from 0 to 1; at 0 the ranking by words does not count, at 1 the one by vectors does
            not. None adds reciprocal ranks.
        depth: Passages to keep of each query.
    """
    rows = np.full((len(vectors.queries), depth), -1, np.int32)
    scores = np.zeros((len(vectors.queries), depth), np.float32)
    is_rank = weight is None
    if weight is None:
        weighted = [(vectors, 1.0), (words, 1.0)]
    else:
        weighted = [(vectors, 1 - weight), (words, weight)]
    # A ranking of weight 0 must not add its passages, which would then have a score of 0.
    weighted = [(ranking, share) for ranking, share in weighted if share]
    for query in range(len(rows)):
        passages_of = []
        points_of = []
        for ranking, share in weighted:
            is_passage = ranking.rows[query] >= 0
            passages_of.append(ranking.rows[query][is_passage])
            points_of.append(share * _scaled(ranking.scores[query], is_passage, is_rank=is_rank))
        passages = np.unique(np.concatenate(passages_of))
        total = np.zeros(len(passages))
        for ranked, points in zip(passages_of, points_of, strict=True):
            total[np.searchsorted(passages, ranked)] += points
        order = np.lexsort((passages, -total))[:depth]
        rows[query, : len(order)] = passages[order]
        scores[query, : len(order)] = total[order]
    return Ranking(vectors.queries, rows, scores)


def _scaled(
    scores: np.ndarray, is_passage: np.ndarray, *, is_rank: bool
) -> npt.NDArray[np.float64]:
    """Return the points of the passages of one ranking, best first, from 0 to 1."""
    points: npt.NDArray[np.float64] = scores[is_passage].astype(np.float64)
    if is_rank or not len(points):
        return 1 / (_RANK_CONSTANT + 1 + np.arange(len(points)))
    high = points[0]
    low = points[-1]
    if not is_passage.all():
        # The ranking ended early: a passage that is not in it has a score of 0.
        low = min(low, 0.0)
    if high > low:
        scaled: npt.NDArray[np.float64] = (points - low) / (high - low)
        return scaled
    return np.ones(len(points))
