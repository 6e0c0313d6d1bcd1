"""Queries and passages -> how well a model ranks: nDCG@10, recall@100 and MRR@10; nothing is trained.

Encoders rank by cosine, or by Hamming distance of codes, exactly; `bm25` by words. A blank passage is never found. Each
measure is the mean over queries, in percent; a query without a relevant passage scores 0, and so does one for which a
model finds nothing. Passages of equal score are in the order of trec_eval: scores in single precision, then falling
identifiers. Queries of dev give the validation score, by which anything is chosen, and those of test the test score and
its interval.

Source: Järvelin and Kekäläinen, 2002 (nDCG; the gain is the relevance itself, as in trec_eval); trec_eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raysent.data.same_text import is_blank
from raysent.evaluation.bootstrap import BootstrapEstimate, Resamples
from raysent.evaluation.fusion import DEPTH, Ranking, fuse
from raysent.evaluation.nearest import Hits, check_search, nearest_codes, nearest_vectors
from raysent.evaluation.records import (
    ARRAYS_KEY,
    Costs,
    Score,
    read_about,
    read_arrays,
    record_errors,
    score_of,
)
from raysent.evaluation.task import RetrievalData
from raysent.evaluation.units import by_first_row, near_copies
from raysent.models.codes import pack_bits
from raysent.models.schemes.bm25 import Bm25Index, Bm25Model
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows
from raysent.storage import file_sha256, path_below, remove, save_arrays, write_json

Float64 = npt.NDArray[np.float64]

# The protocol of these scores.
RETRIEVAL = "retrieval"
MEASURES = ("ndcg_at_10", "recall_at_100", "mrr_at_10")
# Changes whenever scores may change.
VERSION = 1
# Weights of words that are tried, and parts of the queries for a cross-fitted score.
WEIGHTS = tuple(step / 20 for step in range(21))
_NUM_FOLDS = 5
# Passages that are encoded at once.
_CHUNK = 8192
# Of the gains of ranks 1 to 10.
_DISCOUNTS = 1 / np.log2(np.arange(2, 12))


@dataclass(frozen=True)
class RetrievalRecord:
    """What a model finds for the queries of dev and test.

    Attributes:
        score: The mean scores.
        ranking: What it finds, for the queries of dev, then of test.
    """

    score: Score
    ranking: Ranking


def rank(
    encoder: SentenceEncoder, data: RetrievalData, queries: np.ndarray, *, depth: int = DEPTH
) -> Ranking:
    """Return the best passages of some queries, given by their places, int64 [queries].

    A model that was saved with a weight of words ranks by vectors and words.

    Raises:
        RaysentError: If the model cannot rank, FAISS or bm25s is needed and not installed, or a vector is not finite.
    """
    if not encoder.fuses_words:
        return _rank(encoder, data, queries, depth)
    deep = max(depth, DEPTH)
    by_vectors = _rank(encoder, data, queries, deep)
    by_words = _rank(Bm25Model(), data, queries, deep)
    return fuse(by_vectors, by_words, weight=encoder.word_weight, depth=depth)


def _rank(
    encoder: SentenceEncoder, data: RetrievalData, queries: np.ndarray, depth: int
) -> Ranking:
    texts = [data.queries[query] for query in queries.tolist()]
    # One more than is kept, because a passage with the query's own identifier is left out.
    if isinstance(encoder, Bm25Model):
        hits = Hits(*Bm25Index.of(data.passages).search(texts, depth + 1))
    else:
        hits = _by_vectors(encoder, data.passages, texts, depth + 1)
    row_of_passage = {name: row for row, name in enumerate(data.passage_ids)}
    own_rows = [row_of_passage.get(data.query_ids[query], -1) for query in queries.tolist()]
    ranking = Ranking(
        queries,
        np.full((len(queries), depth), -1, np.int32),
        np.zeros((len(queries), depth), np.float32),
    )
    for number, (rows, scores) in enumerate(zip(hits.rows, -hits.distances, strict=True)):
        is_ranked = (rows >= 0) & (rows != own_rows[number])
        ranked = rows[is_ranked][:depth]
        ranking.rows[number, : len(ranked)] = ranked
        ranking.scores[number, : len(ranked)] = scores[is_ranked][:depth]
    return ranking


def _by_vectors(encoder: SentenceEncoder, passages: list[str], queries: list[str], k: int) -> Hits:
    check_search(encoder.similarity_measure)  # before hours of encoding
    # A blank passage has the vector of an unknown word: it would be the best hit of a query of such words.
    candidates = np.flatnonzero([not is_blank(passage) for passage in passages])
    if not len(candidates):
        return Hits(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0)))
    texts = [passages[row] for row in candidates.tolist()]
    blocks = [texts[first : first + _CHUNK] for first in range(0, len(texts), _CHUNK)]
    if encoder.similarity_measure == "hamming":
        codes = np.concatenate([pack_bits(encoder.encode_document(block)) for block in blocks])
        hits = nearest_codes(codes, pack_bits(encoder.encode_query(queries)), k=k)
    else:
        vectors = np.concatenate(
            [normalize_rows(encoder.encode_document(block)) for block in blocks]
        )
        hits = nearest_vectors(vectors, normalize_rows(encoder.encode_query(queries)), k=k)
    return Hits(candidates[hits.rows], hits.scores)


def measure(ranking: Ranking, data: RetrievalData) -> Float64:
    """Return `MEASURES` of each query of a ranking, from 0 to 1, float64 [queries, measures]."""
    # The rank of each passage's identifier, by which those of equal score are ordered.
    identifier_ranks = np.empty(len(data.passage_ids), dtype=np.int64)
    by_identifier = sorted(range(len(identifier_ranks)), key=data.passage_ids.__getitem__)
    identifier_ranks[by_identifier] = np.arange(len(identifier_ranks))
    measured = np.zeros((len(ranking.queries), len(MEASURES)))
    for number, query in enumerate(ranking.queries.tolist()):
        relevant = {row: grade for row, grade in data.relevant[query].items() if grade > 0}
        if not relevant:
            continue
        is_passage = ranking.rows[number] >= 0
        rows = ranking.rows[number][is_passage]
        scores = ranking.scores[number][is_passage]
        ranked = rows[np.lexsort((identifier_ranks[rows], scores))[::-1]]
        gains = np.array([relevant.get(row, 0.0) for row in ranked[:100].tolist()])
        ideal_gains = np.sort(list(relevant.values()))[::-1]
        measured[number] = (
            _discounted(gains) / _discounted(ideal_gains),
            np.count_nonzero(gains) / len(relevant),
            _reciprocal_rank(gains),
        )
    return measured


def _discounted(gains: Float64) -> float:
    """Return the discounted cumulative gain of the first ten passages."""
    first_gains = gains[:10]
    return float(first_gains @ _DISCOUNTS[: len(first_gains)])


def _reciprocal_rank(gains: Float64) -> float:
    """Return 1 over the rank of the first relevant passage; 0 where none of the first ten is relevant."""
    relevant_ranks = np.flatnonzero(gains[:10])
    if not len(relevant_ranks):
        return 0.0
    return float(1 / (1 + relevant_ranks[0]))


def mean_over_queries(values: Sequence[float] | Float64, *, task: str) -> BootstrapEstimate:
    """Return the mean over a task's test queries, in percent, of a measure [queries]; means of one task are paired."""
    column = np.asarray(values, dtype=np.float64)
    part = (np.arange(len(column)), column[:, np.newaxis])
    (draws,) = Resamples.of(task, len(column)).means([part])
    return BootstrapEstimate.of(100 * float(column.mean()), 100 * draws[:, 0])


def differences(scores: Sequence[Score]) -> list[BootstrapEstimate]:
    """Return by how many points of nDCG@10 each model on a task is above the best one on dev; paired over queries.

    Of a task without queries of dev, above the first model: no query of test may choose one.
    """
    means = [mean_over_queries(score.by_query, task=score.task) for score in scores]
    dev_scores = [score.validation for score in scores if score.validation is not None]
    best = 0
    if len(dev_scores) == len(scores):
        best = dev_scores.index(max(dev_scores))
    return [mean.minus(means[best]) for mean in means]


def record_of(
    ranking: Ranking,
    data: RetrievalData,
    *,
    model: str,
    costs: Costs | None = None,
    encode_ms: float | None = None,
    validation: float | None = None,
) -> RetrievalRecord:
    """Return the scores of a ranking of the queries of dev, then of test.

    Args:
        ranking: The ranking.
        data: The task.
        model: The model's name.
        costs: The model's costs.
        encode_ms: Milliseconds to encode 1,000 passages.
        validation: The validation score where it is not the mean nDCG@10 over dev, as of one that is cross-fitted; a
            task without queries of dev has none.
    """
    by_query = measure(ranking, data)
    num_dev = len(data.dev)
    if validation is None and num_dev:
        validation = 100 * float(by_query[:num_dev, 0].mean())
    of_test = by_query[num_dev:]
    tested = mean_over_queries(of_test[:, 0], task=data.task)
    measures = {
        name: 100 * float(column.mean()) for name, column in zip(MEASURES, of_test.T, strict=True)
    }
    score = Score(
        model=model,
        task=data.task,
        protocol=RETRIEVAL,
        validation=validation,
        test=tested.value,
        interval=tested.interval,
        measures=measures,
        row_hash=data.row_hash,
        costs=costs or Costs(),
        encode_ms=encode_ms,
        by_query=tuple(of_test[:, 0].round(6).tolist()),
        num_queries={"dev": num_dev, "test": len(data.test)},
    )
    return RetrievalRecord(score, ranking)


def fit_weight(vectors: Ranking, words: Ranking, data: RetrievalData) -> tuple[float, float]:
    """Return the weight of words of the highest nDCG@10, and the nDCG@10 of weights that are fitted on other queries.

    Args:
        vectors: By vectors, for queries of dev.
        words: By words, for the same queries.
        data: The task.

    Returns:
        The weight, the middle of equally good ones, which few queries leave many of; and the score, from 0 to 1.
    """
    fused = (fuse(vectors, words, weight=weight) for weight in WEIGHTS)
    gains = np.stack([measure(ranking, data)[:, 0] for ranking in fused])  # [weights, queries]
    # A query and its near-copies are held out together.
    units = by_first_row(near_copies([data.queries[query] for query in vectors.queries.tolist()]))
    num_sets = int(units.max(initial=-1)) + 1
    fold_of_set = np.random.default_rng(0).permutation(num_sets) % _NUM_FOLDS
    folds = fold_of_set[units]
    held_out = np.zeros(gains.shape[1])
    for fold in np.unique(folds):
        is_held_out = folds == fold
        fitted = gains[:, ~is_held_out]
        # Where all queries are in one fold, nothing fits the weight, and vectors rank alone.
        best = 0
        if fitted.size:
            best = _best_weight(fitted)
        held_out[is_held_out] = gains[best, is_held_out]
    return WEIGHTS[_best_weight(gains)], float(held_out.mean())


def _best_weight(gains: Float64) -> int:
    """Return the index of the weight of the highest mean over queries, of gains [weights, queries]."""
    means = np.round(gains.mean(axis=1), 9)
    equal = np.flatnonzero(means == means.max())
    return int(equal[len(equal) // 2])


def validation_score(encoder: SentenceEncoder, data: RetrievalData) -> float:
    """Return the mean nDCG@10 over the queries of dev, in percent; test queries are not read."""
    return 100 * float(measure(rank(encoder, data, data.dev, depth=10), data)[:, 0].mean())


def some_passages(data: RetrievalData, *, max_queries: int, max_passages: int) -> RetrievalData:
    """Return a task with fewer queries of dev, and with those passages that are relevant to them and some others."""
    generator = np.random.default_rng(0)
    dev = np.sort(generator.permutation(data.dev)[:max_queries])
    needed = {row for query in dev.tolist() for row in data.relevant[query]}
    shuffled = generator.permutation(len(data.passages)).tolist()
    not_needed = [row for row in shuffled if row not in needed]
    num_more = max(0, max_passages - len(needed))
    rows = sorted([*needed, *not_needed[:num_more]])
    new_rows = {row: new_row for new_row, row in enumerate(rows)}
    relevant = []
    for grades in data.relevant:
        relevant.append({new_rows[row]: grade for row, grade in grades.items() if row in new_rows})
    return replace(
        data,
        passages=[data.passages[row] for row in rows],
        passage_ids=tuple(data.passage_ids[row] for row in rows),
        relevant=tuple(relevant),
        dev=dev,
    )


def write_retrieval(folder: Path, record: RetrievalRecord, *, key: str) -> None:
    """Write `<task>.npz`, then `<task>.json`, which marks the record as complete.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    score = record.score
    remove(path_below(folder, f"{score.task}.json"))
    arrays_path = path_below(folder, f"{score.task}.npz")
    save_arrays(arrays_path, vars(record.ranking))
    about = {
        **asdict(score),
        "seconds": {"encode_ms_per_1000": score.encode_ms},
        "key": key,
        ARRAYS_KEY: file_sha256(arrays_path),
    }
    write_json(path_below(folder, f"{score.task}.json"), about)


def read_retrieval(folder: Path, task: str, *, key: str) -> RetrievalRecord | None:
    """Return a record, or None if it is missing, incomplete, or has another key.

    Raises:
        ArtifactError: If it is damaged.
    """
    about = read_about(folder, task)
    if about.get("key") != key or about.get("protocol") != RETRIEVAL:
        return None
    with record_errors(folder, task):
        names = ("queries", "rows", "scores")
        arrays = read_arrays(folder, task, about, is_wanted=names.__contains__)
        return RetrievalRecord(score_of(about), Ranking(*(arrays[name] for name in names)))
