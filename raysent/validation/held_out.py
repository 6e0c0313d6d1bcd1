"""Held-out triplets or pairs -> the objective's own measures, each a mean over its cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from raysent.artifacts import content_key
from raysent.batches import AnyBatch, Batch, Pairs, Triplets, TripletStream
from raysent.batches.pairs import pairs_at
from raysent.corpus import CorpusSplit
from raysent.pairs import PairTexts
from raysent.validation.similarity import pearson
from raysent.vocabulary import Vocabulary

Score = Callable[[AnyBatch], dict[str, tuple[float, int]]]
"""A batch -> sum and number of cases of each measure."""

Predict = Callable[[AnyBatch], npt.NDArray[np.float64]]
"""A batch of pairs -> the score that is predicted for each."""

_BATCH = 128


class HeldOut:
    """A frozen list of batches.

    Attributes:
        hash: Equal for equal text and settings.
    """

    def __init__(self, key: str, make: Callable[[], Iterator[AnyBatch]]) -> None:
        self.hash = key
        self._make = make

    def scores(self, score: Score) -> dict[str, float]:
        """Return each measure's mean over all cases."""
        totals: dict[str, tuple[float, int]] = {}
        for batch in self._make():
            for name, (total, count) in score(batch).items():
                before = totals.get(name, (0.0, 0))
                totals[name] = (before[0] + total, before[1] + count)
        return {name: total / count if count else float("nan") for name, (total, count) in totals.items()}

    def predicted(self, predict: Predict) -> dict[str, float]:
        """Return how far predictions agree with the pairs' scores: their correlation and mean squared difference."""
        found, given = [], []
        for batch in self._make():
            found.append(predict(batch))
            given.append(np.asarray(getattr(batch, "scores", None), dtype=np.float64))
        predictions, scores = np.concatenate(found), np.concatenate(given)
        mse = float(np.mean((predictions - scores) ** 2))
        return {"score_pearson": pearson(predictions, scores), "score_mse": mse}


def held_out_triplets(split: CorpusSplit, *, max_length: int, num_sentences: int) -> HeldOut:
    """Return the first triplets of a fixed random order of a split.

    Raises:
        DataError: If the split holds none.
    """
    stream = TripletStream(split, batch_size=_BATCH, max_length=max_length, seed=0)
    num_batches = max(1, min(stream.num_batches, num_sentences // _BATCH))

    def make() -> Iterator[Triplets]:
        return (stream.batch(step) for step in range(num_batches))

    return HeldOut(content_key(split.corpus.text_key, split.text_hash, max_length, num_batches), make)


def held_out_sentences(split: CorpusSplit, *, num_sentences: int) -> HeldOut:
    """Return the first sentences of a split, in blocks; a last block of one sentence is left out."""
    stop = min(len(split), num_sentences)

    def make() -> Iterator[Batch]:
        for start in range(0, stop - 1, _BATCH):
            end = min(start + _BATCH, stop)
            yield Batch(split.sentences(start, end), np.arange(start, end), split.documents(start, end))

    return HeldOut(content_key(split.corpus.text_key, split.text_hash, stop), make)


def held_out_pairs(pairs: PairTexts, vocabulary: Vocabulary, *, max_length: int, num_sentences: int) -> HeldOut:
    """Return the first held-out pairs."""
    chosen = pairs.rows(np.arange(min(len(pairs), num_sentences)))
    encoded = chosen.encoded(vocabulary, max_length=max_length)

    def make() -> Iterator[Pairs]:
        rows = np.arange(len(encoded))
        return (pairs_at(encoded, rows[start : start + _BATCH]) for start in range(0, len(rows), _BATCH))

    return HeldOut(chosen.key, make)
