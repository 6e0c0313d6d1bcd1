"""Scored pairs -> correlations of a model's own similarity with human ratings; nothing is trained.

Papers summarize several sets in three ways, so all are computed: the plain mean over sets, the mean weighted by numbers
of pairs, and one correlation over all pairs.

Cosines are computed in single precision, to the same last bit on every machine. Pairs of equal sentences have cosines
that differ from one only by rounding, and that rounding decides their ranks: on STS12 it changes Spearman's correlation
in the third digit. SentEval leaves it to the machine's linear algebra. Here sums are taken in one fixed order, that of
OpenBLAS on processors with 256-bit vectors (AVX2).

Source: Conneau and Kiela, 2018, SentEval, senteval/sts.py (mean and weighted mean); OpenBLAS, kernel/x86_64/sdot.c (the
order of the sum).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raysent.evaluation.probes.features import encode_columns
from raysent.evaluation.probes.lexical import lexical_similarities
from raysent.evaluation.probes.results import pearson, spearman
from raysent.evaluation.records import SimilarityScore
from raysent.evaluation.task import ScoredSet
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Changes whenever scores may change.
VERSION = 3
# An AVX2 sum has four registers of eight numbers, each of which is summed on its own.
_LANES = 32


def score_sets(
    encoder: SentenceEncoder, sets: Sequence[ScoredSet], *, model: str, task: str
) -> SimilarityScore:
    """Return the correlations of one model on the sets of one task."""
    similarities = []
    pearsons = []
    spearmans = []
    for scored_set in sets:
        of_pairs = _pair_similarities(encoder, scored_set.first, scored_set.second)
        similarities.append(of_pairs)
        pearsons.append(pearson(of_pairs, scored_set.scores))
        spearmans.append(spearman(of_pairs, scored_set.scores))
    names = [scored_set.name for scored_set in sets]
    sizes = [len(scored_set.scores) for scored_set in sets]
    all_similarities = np.concatenate(similarities)
    all_scores = np.concatenate([scored_set.scores for scored_set in sets])
    return SimilarityScore(
        model=model,
        task=task,
        measure=encoder.similarity_measure,
        pearson=100 * float(np.mean(pearsons)),
        pearson_weighted=100 * float(np.average(pearsons, weights=sizes)),
        pearson_all=100 * pearson(all_similarities, all_scores),
        spearman=100 * float(np.mean(spearmans)),
        spearman_weighted=100 * float(np.average(spearmans, weights=sizes)),
        spearman_all=100 * spearman(all_similarities, all_scores),
        by_set=_in_percent(names, pearsons),
        spearman_by_set=_in_percent(names, spearmans),
        num_pairs=sum(sizes),
        measures=_threshold_measures(similarities, sets),
    )


def _in_percent(names: Sequence[str], correlations: Sequence[float]) -> dict[str, float]:
    return {name: 100 * correlation for name, correlation in zip(names, correlations, strict=True)}


def _pair_similarities(encoder: SentenceEncoder, first: list[str], second: list[str]) -> Float64:
    """Return the similarity of each pair of sentences by the encoder's own measure, float64 [rows]."""
    if isinstance(encoder, LexicalModel):
        return lexical_similarities(encoder, first, second)
    u, v = encode_columns(encoder, (first, second))
    if encoder.similarity_measure == "cosine":
        return cosines(u, v).astype(np.float64)
    return np.asarray(encoder.similarity_pairwise(u, v), np.float64)


def _threshold_measures(
    similarities: Sequence[Float64], sets: Sequence[ScoredSet]
) -> dict[str, float]:
    """Return accuracy and F1 of a threshold, the first set's mean similarity; nothing if scores are not 0 and 1.

    Source: Shen et al., 2019 (MRPC without a classifier).
    """
    scores = sets[-1].scores
    if not np.isin(scores, (0, 1)).all():
        return {}
    threshold = float(similarities[0].mean())
    predicted = similarities[-1] > threshold
    num_true_positives = float((predicted * scores).sum())
    return {
        "accuracy": 100 * float((predicted == scores).mean()),
        "f1": 100 * 2 * num_true_positives / max(1.0, float(predicted.sum() + scores.sum())),
        "threshold": threshold,
    }


def cosines(first: Float32, second: Float32) -> Float32:
    """Return the cosine of every row of `first` with the same row of `second`, both [rows, dim], as [rows].

    It is 0 where a vector is zero.
    """
    products = _dots(first, second)
    lengths = np.sqrt(_dots(first, first)) * np.sqrt(_dots(second, second))
    quotients: Float32 = np.divide(
        products, lengths, out=np.zeros_like(products), where=lengths > 0
    )
    return quotients


def _dots(first: Float32, second: Float32) -> Float32:
    """Return the inner product of every row of `first` with the same row of `second`, in OpenBLAS's order [rows]."""
    dim = first.shape[1]
    dim_in_blocks = dim - dim % _LANES
    lanes = np.zeros((len(first), _LANES), dtype=np.float32)
    for start in range(0, dim_in_blocks, _LANES):
        block = slice(start, start + _LANES)
        # In double precision the product is exact, so that one rounding follows, as in a fused multiply-add.
        exact = first[:, block].astype(np.float64) * second[:, block]
        lanes = (lanes + exact).astype(np.float32)
    # The registers are added in pairs of halves, then of quarters, as the processor's horizontal additions do.
    registers = lanes.reshape(-1, 4, 2, 4)
    halves = registers[:, :, 0] + registers[:, :, 1]
    quarters = (halves[:, 0] + halves[:, 1]) + (halves[:, 2] + halves[:, 3])
    total = (quarters[:, 0] + quarters[:, 1]) + (quarters[:, 2] + quarters[:, 3])
    # The columns beyond the last whole block are multiplied in float32, but summed in float64.
    remainder = np.zeros(len(first))
    for column in range(dim_in_blocks, dim):
        remainder += first[:, column] * second[:, column]
    sums: Float32 = (remainder + total).astype(np.float32)
    return sums
