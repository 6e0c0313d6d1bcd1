"""Batches as a pure function of the step, for every pool of candidates and every number of workers."""

import time

import numpy as np
import pytest

from raysent.data.batches import BatchStream
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import DataError

POOLS = ["contiguous", "random", "nearest"]


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return 950 training sentences in 19 documents; a sentence's last word but one is its own."""
    folder = tmp_path_factory.mktemp("batches")
    generator = np.random.default_rng(0)
    lines = []
    for document in range(20):
        topic = [f"topic{document % 4}word{i}" for i in range(12)]
        lines += [f"{' '.join(generator.choice(topic, 5))} s{document}x{i} ." for i in range(50)]
        lines.append("")
    (folder / "a.txt").write_text("\n".join(lines))
    config = CorpusConfig(path=str(folder / "a.txt"), format="sentences", cache_dir=str(folder / "cache"))
    return prepare(config, VocabularyConfig()).train


def stream(split, candidates="contiguous", **settings):
    """Return a stream of batches of 100 by default."""
    return BatchStream(
        split, **({"batch_size": 100, "context_size": 1, "seed": 0, "candidates": candidates} | settings)
    )


def epoch(batches, number: int = 0) -> np.ndarray:
    """Return the positions of all batches of an epoch."""
    first = number * batches.num_batches
    return np.concatenate([batches.batch(first + step).positions for step in range(batches.num_batches)])


@pytest.mark.parametrize("candidates", POOLS)
def test_batch_has_its_size_and_its_own_sentences(split, candidates):
    """Ids, positions and documents belong together."""
    batch = stream(split, candidates).batch(3)
    assert len(batch.positions) == len(batch.documents) == len(batch.sentences.lengths) == 100
    assert np.array_equal(batch.sentences.ids, split.sentences_at(batch.positions - split.first).ids)
    assert np.array_equal(batch.documents, split.documents_at(batch.positions - split.first))
    assert len(np.unique(batch.positions)) == 100


def test_contiguous_batches_follow_the_text(split):
    """An epoch is the text in order without its remainder, and the next is the same."""
    batches = stream(split)
    assert batches.num_batches == 9
    assert np.array_equal(epoch(batches), np.arange(900))
    assert np.array_equal(epoch(batches, 1), epoch(batches))


@pytest.mark.parametrize("candidates", POOLS)
@pytest.mark.parametrize("context_size", [1, 2])
def test_windows_are_whole_and_disjoint(split, candidates, context_size):
    """Every window is consecutive sentences; no sentence comes twice in an epoch."""
    batches = stream(split, candidates, context_size=context_size)
    positions = epoch(batches)
    assert len(np.unique(positions)) == len(positions) == 100 * batches.num_batches
    window = 2 * context_size + 1
    whole = positions[: 100 // window * window].reshape(-1, window)
    assert (np.diff(whole, axis=1) == 1).all()


def test_random_windows_come_from_all_over_and_change(split):
    """A batch reaches over the corpus; another epoch or seed draws others."""
    batches = stream(split, "random")
    assert np.ptp(batches.batch(0).positions) > 500
    assert not np.array_equal(epoch(batches, 1), epoch(batches))
    assert not np.array_equal(epoch(stream(split, "random", seed=1)), epoch(batches))


def test_nearest_windows_share_their_topic(split):
    """A batch holds more of one topic than chance would give."""

    def share(candidates):
        batches = stream(split, candidates, batch_size=30)
        topics = [np.bincount(batches.batch(step).documents % 4).max() for step in range(10)]
        return np.mean(topics) / 30

    assert share("nearest") > share("random") + 0.2


@pytest.mark.parametrize("candidates", POOLS)
def test_batch_is_a_function_of_the_step(split, candidates):
    """A fresh stream that starts in the middle gives what one that came there gives, over epochs."""
    came, fresh = stream(split, candidates), stream(split, candidates)
    passed = [came.batch(step).positions for step in range(25)]
    assert np.array_equal(fresh.batch(24).positions, passed[24])
    assert np.array_equal(fresh.batch(2).positions, passed[2])


@pytest.mark.parametrize("candidates", POOLS)
def test_workers_share_one_global_batch(split, candidates):
    """Two workers' blocks, one after the other, are the batch of one worker twice as wide."""
    whole = stream(split, candidates, batch_size=200).batch(1)
    parts = [stream(split, candidates, rank=rank, world_size=2).batch(1) for rank in range(2)]
    assert np.array_equal(np.concatenate([part.positions for part in parts]), whole.positions)
    assert np.array_equal(np.concatenate([part.sentences.ids for part in parts]), whole.sentences.ids)


@pytest.mark.parametrize("candidates", POOLS)
def test_too_small_a_corpus_names_the_largest_batch(split, candidates):
    """The nearest fix is a number that works."""
    with pytest.raises(DataError, match=r"training.batch_size: must be at most (\d+) for the 950 train") as caught:
        stream(split, candidates, batch_size=2_000)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert stream(split, candidates, batch_size=most).num_batches == 1
    with pytest.raises(DataError, match="given 1000"):
        stream(split, candidates, batch_size=500, world_size=2)


def test_contiguous_batch_takes_little_time(split):
    """Assembly stays far below a training step (0.2 ms on an idle machine; ten times that here)."""
    batches = stream(split, batch_size=400)
    batches.batch(0)
    times = []
    for step in range(20):
        start = time.perf_counter()
        batches.batch(step)
        times.append(time.perf_counter() - start)
    assert min(times) < 2e-3
