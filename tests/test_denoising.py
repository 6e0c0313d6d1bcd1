"""Denoising: what is deleted, loss and gradient against loops, every kind of encoder, resumed runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from reference import decode_sentence
from small_bert import write_bert
from tiny_run import check_learns, tiny_run
from toy_batches import ToyRead, build_context, sentences, toy_batch

from raysent.data.batches import Batch
from raysent.data.vocabulary import PAD_ID, UNK_ID, Sentences
from raysent.models.objectives import ContextBatches
from raysent.models.objectives.denoising import Config, Objective

_WORDS = {"embedding": {"dim": 6}}
_ENCODERS = {
    "bag": {"type": "bag", **_WORDS},
    "cnn": {"type": "cnn", "num_filters": 4, **_WORDS},
    "concat": {
        "type": "concat",
        "members": {"a": {"type": "gru", "hidden_size": 8, **_WORDS}, "b": {"type": "bag"}},
    },
}


def rows_of(batch):
    """The ids of each sentence."""
    return np.split(batch.ids, np.cumsum(batch.lengths)[:-1])


def prepared(objective, batch, seed=0):
    """The batch with deletions."""
    return objective.prepare(batch, generator=torch.Generator().manual_seed(seed))


def test_loss_and_gradient_equal_their_restatement():
    """By loops over sentences and words; the gradient by finite differences of these loops."""
    context, read = build_context(), ToyRead(1)
    objective, batch = Objective(Config(), context), toy_batch(ContextBatches)
    torch.nn.init.normal_(objective.bias, generator=torch.Generator().manual_seed(3))
    noisy = prepared(objective, batch)
    loss = objective(read, noisy)
    loss.backward()
    assert [name for name, _ in objective.decoder.named_parameters()] == [
        "weight_ih",
        "weight_hh",
        "bias",
        "weight_vh",
    ]
    parameters = [
        read.tables[0],
        context.token_words(),
        objective.bias,
        *objective.decoder.parameters(),
    ]
    values = [one.detach().double().numpy() for one in parameters]

    def restated(table, words, bias, *decoder):
        vectors = [table[row].sum(axis=0) for row in rows_of(noisy.sentences)]
        pairs = zip(vectors, rows_of(batch.sentences), strict=True)
        return sum(
            decode_sentence(one, row, words, decoder, (words, bias)) for one, row in pairs
        ) / len(batch)

    assert loss.item() == pytest.approx(restated(*values), rel=1e-5)
    word = int(noisy.sentences.ids[0])
    for part, place in (
        (0, (word, 2)),
        (1, (word, 3)),
        (2, (PAD_ID,)),
        (3, (4, 1)),
        (4, (9, 2)),
        (5, (7,)),
        (6, (3, 5)),
    ):
        ends = []
        for step in (1e-5, -1e-5):
            moved = [value.copy() for value in values]
            moved[part][place] += step
            ends.append(restated(*moved))
        gradient = parameters[part].grad[place].item()
        assert gradient == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-4, rel=1e-3), part
        assert abs(gradient) > 1e-5, part


def test_most_words_are_deleted_and_one_is_left():
    """60 %; what is left keeps its order, the padding of a tokenizer stays, and unknown words are words."""
    objective = Objective(Config(), build_context())
    ids = sentences(np.full(4000, 10)).ids
    ids[::10], ids[1::10] = PAD_ID, UNK_ID
    batch = Batch(
        Sentences(ids, np.full(4000, 10)), np.arange(4000), np.zeros(4000, dtype=np.int64)
    )
    found = prepared(objective, batch)
    assert found.targets is batch.sentences
    assert found.sentences.lengths.mean() == pytest.approx(1 + 9 * 0.4, abs=0.05)
    assert found.sentences.lengths.min() == 2
    assert (found.sentences.ids == PAD_ID).sum() == 4000
    assert (found.sentences.ids == UNK_ID).sum() == pytest.approx(1600, abs=120)
    for left, whole in zip(rows_of(found.sentences), rows_of(batch.sentences), strict=True):
        rest = iter(whole.tolist())
        assert all(word in rest for word in left.tolist())
    short = prepared(objective, dataclasses.replace(batch, sentences=sentences(np.ones(4000))))
    np.testing.assert_array_equal(short.sentences.ids, short.targets.ids)
    pairs = prepared(
        objective,
        dataclasses.replace(batch, sentences=Sentences(np.tile([2, 3], 4000), np.full(4000, 2))),
    )
    alone = pairs.sentences.ids[
        (np.cumsum(pairs.sentences.lengths) - 1)[pairs.sentences.lengths == 1]
    ]
    assert (alone == 2).mean() == pytest.approx(
        0.5, abs=0.04
    )  # either, where both would be deleted


def test_deletions_follow_from_the_step_and_the_place_of_a_sentence():
    """Parts of workers together are the whole; another step deletes other words."""
    objective, batch = Objective(Config(), build_context()), toy_batch(ContextBatches, size=40)
    whole = prepared(objective, batch, 5).sentences
    parts = [
        prepared(
            objective,
            dataclasses.replace(
                batch, sentences=part, positions=batch.positions[place : place + 15]
            ),
            5,
        )
        for place, part in zip((0, 15, 30), batch.sentences.split(15), strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate([part.sentences.ids for part in parts]), whole.ids)
    assert not np.array_equal(prepared(objective, batch, 6).sentences.lengths, whole.lengths)


@pytest.mark.parametrize("encoder", [*_ENCODERS, "bert"])
def test_run_learns_and_resumes(tmp_path, encoder):
    """Held-out sentences become more probable; a resumed run has the same bits."""
    given = _ENCODERS.get(encoder)
    if given is None:
        pytest.importorskip("transformers", reason="pip install raysent[pretrained]")
        given = {
            "type": "pretrained",
            "path": str(write_bert(tmp_path / "bert", max_position_embeddings=60)),
        }
    steps = {"training__max_steps": 16, "training__batch_size": 12}
    config = tiny_run(tmp_path, encoder=given, objective={"type": "denoising"}, **steps)
    check_learns(config, tmp_path)


def test_member_without_vectors_of_words_is_refused_in_one_line(tmp_path):
    """A transformer beside a bag: words of which of them would be rebuilt?"""
    small = {
        "type": "transformer",
        "hidden_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 12,
    }
    encoder = {"type": "concat", "members": {"a": small, "b": {"type": "bag"}}}
    with pytest.raises(
        ValueError, match="encoder's members must each have an embedding with objective denoising"
    ):
        tiny_run(tmp_path, encoder=encoder, objective={"type": "denoising"})
