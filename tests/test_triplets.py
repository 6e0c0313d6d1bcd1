"""Triplets as a pure function of the step, in batches of one length."""

import numpy as np
import pytest

from raysent.data.batches import TripletStream
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.errors import DataError


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return sentences of 1 to 12 words in documents of 20."""
    folder = tmp_path_factory.mktemp("triplets")
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(30):
        lines += [" ".join(generator.choice(list("abcdefgh"), generator.integers(1, 13))) for _ in range(20)]
        lines.append("")
    (folder / "a.txt").write_text("\n".join(lines))
    config = CorpusConfig(path=str(folder / "a.txt"), format="sentences", cache_dir=str(folder / "cache"))
    return prepare(config, VocabularyConfig()).train


def stream(split, **settings):
    """Return a stream of batches of 16 at most."""
    return TripletStream(split, **({"batch_size": 16, "max_length": 9, "seed": 0} | settings))


def epoch(batches, number=0):
    """Return the batches of an epoch."""
    return [batches.batch(number * batches.num_batches + step) for step in range(batches.num_batches)]


def test_batch_is_of_one_length_and_holds_the_neighbours(split):
    """The three columns belong together, within one document and the limit."""
    for batch in epoch(stream(split)):
        assert len(set(batch.sentences.lengths.tolist())) == 1
        inside = batch.positions - split.first
        for side, shift in ((batch.before, -1), (batch.sentences, 0), (batch.after, 1)):
            assert np.array_equal(side.ids, split.sentences_at(inside + shift).ids)
            assert side.lengths.max() <= 9
            assert np.array_equal(split.documents_at(inside + shift), split.documents_at(inside))


def test_epoch_holds_every_triplet_once_in_an_order_of_its_own(split):
    """None is lost with one worker; the same step is the same batch."""
    batches = stream(split)
    lengths = [len(split.sentences(row, row + 1).ids) for row in range(len(split))]
    documents = split.documents(0, len(split))
    expected = [
        row
        for row in range(1, len(split) - 1)
        if max(lengths[row - 1 : row + 2]) <= 9 and documents[row - 1] == documents[row + 1]
    ]
    orders = [np.concatenate([batch.positions for batch in epoch(batches, number)]) for number in (0, 1)]
    assert all(np.array_equal(np.sort(order) - split.first, expected) for order in orders)
    assert not np.array_equal(*orders)
    assert np.array_equal(batches.batch(5).positions, stream(split).batch(5).positions)


def test_workers_share_the_batch_of_one(split):
    """The blocks of three ranks are one worker's batch."""
    ranks = [stream(split, rank=rank, world_size=3) for rank in range(3)]
    for step in range(ranks[0].num_batches):
        blocks = [batches.batch(step).positions for batches in ranks]
        assert min(map(len, blocks)) >= 1
        assert len(np.unique(np.concatenate(blocks))) == sum(map(len, blocks)) <= 16


def test_text_without_a_triplet_is_one_clear_line(split):
    """The limit is named."""
    with pytest.raises(DataError, match=r"^objective\.max_length: must leave a sentence .* given none; raise it"):
        stream(split, max_length=0)
