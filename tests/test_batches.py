"""Batches and triplets are a pure function of the step, for every candidate pool and number of workers."""

import numpy as np
import pytest

from raysent.data.batches import BatchStream, TripletStream
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import DataError

POOLS = ["contiguous", "random", "nearest"]


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return 950 training sentences in 19 documents; the last word but one of each sentence is unique."""
    folder = tmp_path_factory.mktemp("batches")
    generator = np.random.default_rng(0)
    lines = []
    for document in range(20):
        topic = [f"topic{document % 4}word{i}" for i in range(12)]
        lines += [f"{' '.join(generator.choice(topic, 5))} s{document}x{i} ." for i in range(50)]
        lines.append("")
    (folder / "a.txt").write_text("\n".join(lines))
    config = CorpusConfig(
        path=str(folder / "a.txt"), format="sentences", cache_dir=str(folder / "cache")
    )
    return prepare(config, VocabularyConfig()).train


def stream(split, candidates="contiguous", **settings):
    """Return a stream of batches of 100."""
    return BatchStream(
        split,
        **({"batch_size": 100, "context_size": 1, "seed": 0, "candidates": candidates} | settings),
    )


def epoch(batches, number: int = 0) -> np.ndarray:
    """Return the positions of all batches of an epoch."""
    first = number * batches.num_batches
    return np.concatenate(
        [batches.batch(first + step).positions for step in range(batches.num_batches)]
    )


@pytest.mark.parametrize("candidates", POOLS)
def test_batch_has_its_size_and_its_own_sentences(split, candidates):
    """Ids, positions and documents of a batch agree."""
    batch = stream(split, candidates).batch(3)
    assert len(batch.positions) == len(batch.documents) == len(batch.sentences.lengths) == 100
    assert np.array_equal(
        batch.sentences.ids, split.sentences_at(batch.positions - split.first).ids
    )
    assert np.array_equal(batch.documents, split.documents_at(batch.positions - split.first))
    assert len(np.unique(batch.positions)) == 100


def test_contiguous_batches_follow_the_text(split):
    """An epoch is the text in order without the remainder; all epochs are the same."""
    batches = stream(split)
    assert batches.num_batches == 9
    assert np.array_equal(epoch(batches), np.arange(900))
    assert np.array_equal(epoch(batches, 1), epoch(batches))


@pytest.mark.parametrize("candidates", POOLS)
@pytest.mark.parametrize("context_size", [1, 2])
def test_windows_are_whole_and_disjoint(split, candidates, context_size):
    """Every window has consecutive sentences; no sentence occurs twice in an epoch."""
    batches = stream(split, candidates, context_size=context_size)
    positions = epoch(batches)
    assert len(np.unique(positions)) == len(positions) == 100 * batches.num_batches
    window = 2 * context_size + 1
    whole = positions[: 100 // window * window].reshape(-1, window)
    assert (np.diff(whole, axis=1) == 1).all()


def test_random_windows_span_the_corpus_and_change(split):
    """A batch spans the corpus; another epoch or seed draws other windows."""
    batches = stream(split, "random")
    assert np.ptp(batches.batch(0).positions) > 500
    assert not np.array_equal(epoch(batches, 1), epoch(batches))
    assert not np.array_equal(epoch(stream(split, "random", seed=1)), epoch(batches))


def test_nearest_windows_share_their_topic(split):
    """A batch contains more of one topic than a random batch."""

    def top_fraction(candidates):
        batches = stream(split, candidates, batch_size=30)
        topics = [np.bincount(batches.batch(step).documents % 4).max() for step in range(10)]
        return np.mean(topics) / 30

    assert top_fraction("nearest") > top_fraction("random") + 0.2


@pytest.mark.parametrize("candidates", POOLS)
def test_batch_is_a_function_of_the_step(split, candidates):
    """A new stream that starts in the middle gives the batches of one that started at step 0, across epochs."""
    first, second = stream(split, candidates), stream(split, candidates)
    expected = [first.batch(step).positions for step in range(25)]
    assert np.array_equal(second.batch(24).positions, expected[24])
    assert np.array_equal(second.batch(2).positions, expected[2])


@pytest.mark.parametrize("candidates", POOLS)
def test_workers_share_one_global_batch(split, candidates):
    """The blocks of three workers, concatenated, are the batch of one; all know its words."""
    whole = stream(split, candidates).batch(1)
    streams = [stream(split, candidates, rank=rank, world_size=3) for rank in range(3)]
    parts = [one.batch(1) for one in streams]
    assert [len(part) for part in parts] == [34, 33, 33]
    assert np.array_equal(np.concatenate([part.positions for part in parts]), whole.positions)
    assert np.array_equal(
        np.concatenate([part.sentences.ids for part in parts]), whole.sentences.ids
    )
    assert all(np.array_equal(one.words(1), np.unique(whole.sentences.ids)) for one in streams)


@pytest.mark.parametrize("candidates", POOLS)
def test_worker_that_gathers_knows_the_places_of_all(split, candidates):
    """Positions and documents are those of the whole batch; its rows say which sentences are its own."""
    whole = stream(split, candidates).batch(1)
    part = stream(split, candidates, rank=1, world_size=3, gathers=True).batch(1)
    assert np.array_equal(part.positions, whole.positions)
    assert np.array_equal(part.documents, whole.documents)
    assert (part.rows, len(part)) == (slice(34, 67), 33)
    assert stream(split, candidates, gathers=True).batch(1).rows is None


@pytest.mark.parametrize("candidates", POOLS)
def test_too_small_corpus_names_the_largest_batch(split, candidates):
    """The error names a batch size that works."""
    with pytest.raises(
        DataError, match=r"training.batch_size: must be at most (\d+) for the 950 train"
    ) as caught:
        stream(split, candidates, batch_size=2_000)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert stream(split, candidates, batch_size=most).num_batches == 1
    with pytest.raises(DataError, match="given 1000"):
        stream(split, candidates, batch_size=1000, world_size=2)


@pytest.fixture(scope="module")
def triplet_split(tmp_path_factory):
    """Return sentences of 1 to 12 words in documents of 20 sentences."""
    folder = tmp_path_factory.mktemp("triplets")
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(30):
        lines += [
            " ".join(generator.choice(list("abcdefgh"), generator.integers(1, 13)))
            for _ in range(20)
        ]
        lines.append("")
    (folder / "a.txt").write_text("\n".join(lines))
    config = CorpusConfig(
        path=str(folder / "a.txt"), format="sentences", cache_dir=str(folder / "cache")
    )
    return prepare(config, VocabularyConfig()).train


def triplet_stream(split, **settings):
    """Return a stream of batches of at most 16 triplets."""
    return TripletStream(split, **({"batch_size": 16, "max_length": 9, "seed": 0} | settings))


def triplet_epoch(batches, number=0):
    """Return the batches of an epoch."""
    return [
        batches.batch(number * batches.num_batches + step) for step in range(batches.num_batches)
    ]


def test_triplets_have_one_length_and_their_neighbours(triplet_split):
    """The three sentences are consecutive, in one document and within the length limit."""
    for batch in triplet_epoch(triplet_stream(triplet_split)):
        assert len(set(batch.sentences.lengths.tolist())) == 1
        inside = batch.positions - triplet_split.first
        for side, shift in ((batch.before, -1), (batch.sentences, 0), (batch.after, 1)):
            assert np.array_equal(side.ids, triplet_split.sentences_at(inside + shift).ids)
            assert side.lengths.max() <= 9
            assert np.array_equal(
                triplet_split.documents_at(inside + shift), triplet_split.documents_at(inside)
            )


def test_triplet_epoch_has_every_triplet_once_in_its_own_order(triplet_split):
    """With one worker no triplet is left out; the same step gives the same batch."""
    batches = triplet_stream(triplet_split)
    lengths = [len(triplet_split.sentences(row, row + 1).ids) for row in range(len(triplet_split))]
    documents = triplet_split.documents(0, len(triplet_split))
    expected = [
        row
        for row in range(1, len(triplet_split) - 1)
        if max(lengths[row - 1 : row + 2]) <= 9 and documents[row - 1] == documents[row + 1]
    ]
    orders = [
        np.concatenate([batch.positions for batch in triplet_epoch(batches, number)])
        for number in (0, 1)
    ]
    assert all(np.array_equal(np.sort(order) - triplet_split.first, expected) for order in orders)
    assert not np.array_equal(*orders)
    assert np.array_equal(
        batches.batch(5).positions, triplet_stream(triplet_split).batch(5).positions
    )


def test_workers_share_one_batch_of_triplets(triplet_split):
    """The blocks of three ranks are disjoint parts of one batch."""
    ranks = [triplet_stream(triplet_split, rank=rank, world_size=3) for rank in range(3)]
    for step in range(ranks[0].num_batches):
        blocks = [batches.batch(step).positions for batches in ranks]
        assert min(map(len, blocks)) >= 1
        assert len(np.unique(np.concatenate(blocks))) == sum(map(len, blocks)) <= 16


def test_text_without_a_triplet_raises_one_clear_error(triplet_split):
    """The error names the option."""
    with pytest.raises(
        DataError, match=r"^objective\.max_length: must leave a sentence .* given none; raise it"
    ):
        triplet_stream(triplet_split, max_length=0)
