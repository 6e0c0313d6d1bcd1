"""Cosines of pairs in single precision, to the same last bit on every machine.

Pairs of equal sentences have cosines that differ from one only by rounding, and that rounding decides their ranks: on
STS12 it moves Spearman's correlation in the third digit. SentEval leaves it to the machine's linear algebra. Here sums
are taken in one fixed order, that of OpenBLAS on processors with 256-bit vectors (AVX2), whatever the machine.

Source: Conneau and Kiela, 2018, SentEval, senteval/sts.py; OpenBLAS, kernel/x86_64/sdot.c (the order of the sum).

Scored pairs -> correlations of a model's own similarity with people's scores; nothing is trained.

Three ways to sum up several sets, since papers differ: the plain mean over sets, the mean weighted by their pairs, and
one correlation over all pairs.

Source: SentEval (mean and weighted mean); encoders of sentence-transformers' time report the third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from raysent.errors import ArtifactError
from raysent.evaluation.members import Member
from raysent.evaluation.probes.features import encode_columns
from raysent.evaluation.probes.results import pearson
from raysent.evaluation.tasks.similarity import ScoredSet, SimilarityTask, set_hash
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import content_key, read_json, write_json

Float32 = npt.NDArray[np.float32]

# Four registers of eight numbers, each summed for itself.
LANES = 32


def cosines(first: Float32, second: Float32) -> Float32:
    """Return the cosine of every row of `first` with the same row of `second`, both [rows, dim], as [rows].

    It is 0 where a vector has no length.
    """
    products = _dots(first, second)
    lengths = np.sqrt(_dots(first, first)) * np.sqrt(_dots(second, second))
    quotients: Float32 = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return quotients


def _dots(first: Float32, second: Float32) -> Float32:
    """Return the inner products of rows [rows]."""
    dim = first.shape[1]
    whole = dim - dim % LANES
    lanes = np.zeros((len(first), LANES), dtype=np.float32)
    for start in range(0, whole, LANES):
        block = slice(start, start + LANES)
        # In double precision the product is exact, so that one rounding follows, as in a fused multiply-add.
        exact = first[:, block].astype(np.float64) * second[:, block]
        lanes = (lanes + exact).astype(np.float32)
    registers = lanes.reshape(-1, 4, 2, 4)
    halves = registers[:, :, 0] + registers[:, :, 1]
    quarters = (halves[:, 0] + halves[:, 1]) + (halves[:, 2] + halves[:, 3])
    total = (quarters[:, 0] + quarters[:, 1]) + (quarters[:, 2] + quarters[:, 3])
    rest = np.zeros(len(first))
    for place in range(whole, dim):
        rest += first[:, place] * second[:, place]
    sums: Float32 = (rest + total).astype(np.float32)
    return sums


Float64 = np.ndarray


@dataclass(frozen=True)
class SimilarityScore:
    """A model's agreement with people on a task, correlations times 100.

    Attributes:
        model: The member's name in this evaluation.
        task: The task's name.
        measure: What compared two vectors, `cosine` or `hamming`.
        pearson: Plain mean over sets.
        pearson_weighted: Mean weighted by the sets' pairs.
        pearson_all: One correlation over all pairs.
        spearman: Of ranks, the plain mean over sets.
        spearman_weighted: Of ranks, the mean weighted by the sets' pairs.
        spearman_all: Of ranks, one correlation over all pairs.
        by_set: Pearson of each set.
        spearman_by_set: Spearman of each set.
        num_pairs: All sets' pairs.
        measures: Where scores are only 0 and 1, as of paraphrases: `accuracy` and `f1` in percent of the last set's
            pairs taken for 1 where they are more alike than the first set's are on average, the `threshold`.
    """

    model: str
    task: str
    measure: str
    pearson: float
    pearson_weighted: float
    pearson_all: float
    spearman: float
    spearman_weighted: float
    spearman_all: float
    by_set: dict[str, float]
    spearman_by_set: dict[str, float]
    num_pairs: int
    measures: dict[str, float]


def similarity_scores(
    members: Sequence[Member],
    tasks: Sequence[SimilarityTask],
    *,
    output: Path,
    data_dir: Path | None,
    load: Callable[[str], SentenceEncoder],
    progress: Callable[[str, int, int], None],
) -> list[SimilarityScore]:
    """Score models on tasks; what was found before is read.

    Raises:
        DataError: If a task's files are missing or wrong.
        ArtifactError: If a model cannot be loaded or a record cannot be written.
    """
    loaded = [(task, task.load(data_dir)) for task in tasks]
    found = []
    for number, member in enumerate(members):
        encoder: SentenceEncoder | None = None
        for place, (task, sets) in enumerate(loaded):
            progress(f"{member.name}: {task.name}", number * len(loaded) + place, len(members) * len(loaded))
            path = output / member.folder / f"{task.name}.json"
            key = content_key(member.key, set_hash(sets), "similarity", 3)
            score = _read(path, key)
            if score is None:
                encoder = encoder or load(member.path)
                score = score_sets(encoder, sets, model=member.name, task=task.name)
                write_json(path, {"key": key, **asdict(score)})
            found.append(score)
    return found


def score_sets(encoder: SentenceEncoder, sets: Sequence[ScoredSet], *, model: str, task: str) -> SimilarityScore:
    """Return the correlations of one model on the sets of one task."""
    likeness = []
    for one in sets:
        first, second = encode_columns(encoder, (one.first, one.second))
        likeness.append(_likeness(encoder, first, second))
    pearsons = [pearson(mine, one.scores) for mine, one in zip(likeness, sets, strict=True)]
    spearmans = [pearson(_ranks(mine), _ranks(one.scores)) for mine, one in zip(likeness, sets, strict=True)]
    sizes = [len(one.scores) for one in sets]
    everywhere, scores = np.concatenate(likeness), np.concatenate([one.scores for one in sets])
    return SimilarityScore(
        model=model,
        task=task,
        measure=encoder.similarity_measure,
        pearson=100 * float(np.mean(pearsons)),
        pearson_weighted=100 * float(np.average(pearsons, weights=sizes)),
        pearson_all=100 * pearson(everywhere, scores),
        spearman=100 * float(np.mean(spearmans)),
        spearman_weighted=100 * float(np.average(spearmans, weights=sizes)),
        spearman_all=100 * pearson(_ranks(everywhere), _ranks(scores)),
        by_set={one.name: 100 * value for one, value in zip(sets, pearsons, strict=True)},
        spearman_by_set={one.name: 100 * value for one, value in zip(sets, spearmans, strict=True)},
        num_pairs=sum(sizes),
        measures=_by_threshold(likeness, sets),
    )


def _by_threshold(likeness: Sequence[Float64], sets: Sequence[ScoredSet]) -> dict[str, float]:
    """Return what telling pairs apart by a threshold gives, the mean likeness; nothing where scores are not 0 and 1.

    Source: Shen et al., 2019 (MRPC without a classifier).
    """
    scores = sets[-1].scores
    if not np.isin(scores, (0, 1)).all():
        return {}
    threshold = float(likeness[0].mean())
    taken = likeness[-1] > threshold
    right = float((taken * scores).sum())
    return {
        "accuracy": 100 * float((taken == scores).mean()),
        "f1": 100 * 2 * right / max(1.0, float(taken.sum() + scores.sum())),
        "threshold": threshold,
    }


def _likeness(encoder: SentenceEncoder, first: np.ndarray, second: np.ndarray) -> Float64:
    """Return how alike vectors [rows, dim] are, row by row, float64 [rows]."""
    is_cosine = encoder.similarity_measure == "cosine"
    return np.asarray(cosines(first, second) if is_cosine else encoder.similarity_pairwise(first, second), np.float64)


def _ranks(values: Float64) -> Float64:
    """Return ranks, equal values sharing their mean rank."""
    ranks: Float64 = stats.rankdata(values)
    return ranks


def _read(path: Path, key: str) -> SimilarityScore | None:
    """Return a score that was kept under this key."""
    try:
        values = read_json(path)
        if values.pop("key") != key:
            return None
        return SimilarityScore(**values)
    except (ArtifactError, AttributeError, KeyError, TypeError):
        # Whatever is missing or torn is simply made again.
        return None
