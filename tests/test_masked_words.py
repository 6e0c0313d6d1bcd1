"""Masked words: states of words, the choice of words, loss and gradient against loops, resumed runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_bert import write_bert
from tiny_run import check_learns, tiny_run
from toy_batches import ToyRead, build_context, sentences, toy_batch

from raysent.data.batches import Batch
from raysent.data.vocabulary import PAD_ID, UNK_ID, Sentences
from raysent.errors import DataError
from raysent.models.objectives import ContextBatches, build_objective
from raysent.models.objectives.masked_words import Config, NoisyBatch, Objective
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.plan import build_model

_SMALL = {
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 12,
    "max_positions": 60,
}
_ENCODERS = {
    "gru": {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
    "bi": {
        "type": "gru",
        "hidden_size": 8,
        "bidirectional": True,
        "pooling": "mean",
        "embedding": {"dim": 8},
    },
    "layers": {"type": "gru", "hidden_size": 8, "num_layers": 2, "embedding": {"dim": 6}},
    "transformer": {"type": "transformer", **_SMALL},
}


def run_with(folder: Path, encoder: str, **changes):
    """A run on masked words; `bert` starts from a folder."""
    given = _ENCODERS.get(encoder)
    if given is None or encoder == "transformer":
        pytest.importorskip("transformers", reason="pip install raysent[pretrained]")
    if given is None:
        given = {
            "type": "pretrained",
            "path": str(write_bert(folder / "bert", max_position_embeddings=60)),
        }
    return tiny_run(folder, **{"encoder": given, "objective": {"type": "masked_words"}, **changes})


@pytest.mark.parametrize("encoder", [*_ENCODERS, "bert"])
def test_states_are_those_of_each_sentence_alone_in_the_order_of_its_words(tmp_path, encoder):
    """Pooled, they are the sentence's vector."""
    config = run_with(tmp_path, encoder)
    model = build_model(config, open_training_data(config)).eval()
    ids = np.random.default_rng(0).integers(2, 14, size=25).astype(np.int32)
    batch = Sentences(ids, np.array([4, 9, 1, 5, 6]))
    states, vectors = model.vectors(batch, tokens=True)[0], model.vectors(batch)[0]
    assert states.shape == (25, config.encoder.token_dim)
    alone = [model.vectors(one, tokens=True)[0] for one in batch.split(1)]
    torch.testing.assert_close(states, torch.cat(alone), atol=1e-5, rtol=1e-5)
    pooled = [part[-1] if encoder in ("gru", "layers") else part.mean(dim=0) for part in alone]
    torch.testing.assert_close(vectors, torch.stack(pooled), atol=1e-5, rtol=1e-5)


def restated(states, words, weight, bias, batch):
    """The loss by loops over the chosen words; `words` maps states, `weight` has the vectors of words."""
    total = 0.0
    for place, target in enumerate(batch.targets.ids):
        if target < 0:
            continue
        state = states[place] if words is None else words[0] @ states[place] + words[1]
        scores = weight @ state + bias
        total += np.log(np.exp(scores).sum()) - scores[target]
    return total / len(batch)


@pytest.mark.parametrize("dim", [5, 8])
def test_loss_and_gradient_equal_their_restatement(dim):
    """With and without a map to the size of the words' vectors; the gradient by finite differences of loops."""
    context = build_context(dim=dim)
    objective, read = Objective(Config(fraction=0.5), context), ToyRead(1, dim=dim)
    assert (objective.map is None) == (dim == 5)
    batch = objective.prepare(toy_batch(ContextBatches), generator=torch.Generator().manual_seed(1))
    objective(read, batch).backward()
    table, weight = read.tables[0], context.token_words()
    mapped = (
        None
        if objective.map is None
        else [one.detach().double().numpy() for one in objective.map.parameters()]
    )
    values = [one.detach().double().numpy() for one in (table, weight, objective.bias)]

    def loss(table_values, weight_values, bias_values):
        return restated(
            table_values[batch.sentences.ids], mapped, weight_values, bias_values, batch
        )

    assert objective(read, batch).item() == pytest.approx(loss(*values), rel=1e-5)
    for part, place in ((0, (UNK_ID, 2)), (1, (7, 3)), (2, (7,))):
        ends = []
        for step in (1e-5, -1e-5):
            moved = [value.copy() for value in values]
            moved[part][place] += step
            ends.append(loss(*moved))
        gradient = (table, weight, objective.bias)[part].grad[place].item()
        assert gradient == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-4)


def test_words_are_chosen_and_hidden_as_often_as_is_said():
    """15 %, of which 80, 10 and 10 %; special and unknown words never; others are drawn from all words."""
    objective = Objective(Config(), build_context())
    ids = sentences(np.full(4000, 10)).ids
    ids[::10], ids[1::10] = PAD_ID, UNK_ID
    batch = Batch(
        Sentences(ids, np.full(4000, 10)), np.arange(4000), np.zeros(4000, dtype=np.int64)
    )
    masked = objective.prepare(batch, generator=torch.Generator().manual_seed(0))
    changed, places = (
        np.flatnonzero(masked.sentences.ids != ids),
        np.flatnonzero(masked.targets.ids >= 0),
    )
    assert set(changed) <= set(places)
    assert not np.isin(places % 10, (0, 1)).any()
    targets = masked.targets.ids[places]
    np.testing.assert_array_equal(targets, ids[places])
    assert len(places) == pytest.approx(0.15 * 32_000, rel=0.05)
    read = masked.sentences.ids[places]
    assert (read == UNK_ID).mean() == pytest.approx(0.8, abs=0.02)
    assert (read == targets).mean() == pytest.approx(0.1 + 0.1 / 28, abs=0.02)
    assert set(read[(read != UNK_ID) & (read != targets)]) == set(range(2, 30))


def test_choices_follow_from_the_step_and_the_place_of_a_sentence():
    """Parts of workers together are the whole; another step hides other words."""
    objective, batch = Objective(Config(), build_context()), toy_batch(ContextBatches, size=40)
    whole = objective.prepare(batch, generator=torch.Generator().manual_seed(5))
    parts = [
        objective.prepare(
            dataclasses.replace(
                batch, sentences=part, positions=batch.positions[place : place + 15]
            ),
            generator=torch.Generator().manual_seed(5),
        )
        for place, part in zip((0, 15, 30), batch.sentences.split(15), strict=True)
    ]
    np.testing.assert_array_equal(
        np.concatenate([part.sentences.ids for part in parts]), whole.sentences.ids
    )
    np.testing.assert_array_equal(
        np.concatenate([part.targets.ids for part in parts]), whole.targets.ids
    )
    other = objective.prepare(batch, generator=torch.Generator().manual_seed(6))
    assert isinstance(other, NoisyBatch)
    assert not np.array_equal(other.targets.ids, whole.targets.ids)


@pytest.mark.parametrize("encoder", ["bi", "transformer", "bert"])
def test_run_learns_and_resumes(tmp_path, encoder):
    """Held-out words become more probable; a resumed run has the same bits."""
    config = run_with(tmp_path, encoder, training__epochs=4.0, training__batch_size=12)
    check_learns(config, tmp_path)


def test_bias_starts_as_the_frequency_of_words(tmp_path):
    """Of a model whose states say nothing, the loss is the entropy of the words."""
    context = dataclasses.replace(build_context(), word_counts=lambda: torch.arange(30))
    bias = build_objective(Config(), context).bias.detach().double().numpy()
    np.testing.assert_allclose(np.exp(bias), np.arange(1, 31) / 465, rtol=1e-5)


def test_text_without_a_known_word_is_refused_in_one_line(tmp_path):
    """It has no word to predict; the line names the cause, not the learning rate."""
    fit(tiny_run(tmp_path, training__max_steps=1), tmp_path / "model")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "text.txt").write_text(
        "\n".join("none of these words" for _ in range(60))
    )
    for objective in ("masked_words", "denoising"):
        start = {
            "encoder": {},
            "objective": {"type": objective},
            "initial": str(tmp_path / "model"),
        }
        config = tiny_run(tmp_path / "other", **start)
        with pytest.raises(
            DataError, match="^corpus: must have words that the model knows, which the objective"
        ):
            fit(config, tmp_path / objective)


def test_held_out_text_of_which_no_word_is_chosen_is_named(tmp_path):
    """There is no mean of no words; the loss is finite, and no learning rate would help."""
    words = {"objective": {"type": "masked_words", "fraction": 0.001}, "training__max_steps": 1}
    with pytest.raises(
        DataError, match=r"must have something to predict, and nll found nothing; set corpus\.valid"
    ):
        fit(tiny_run(tmp_path, validation__num_sentences=3, **words), tmp_path / "run")


def test_encoder_without_states_of_words_is_refused_in_one_line(tmp_path):
    """A bag has none, nor has the gate of the released code, whose recurrence keeps the last state."""
    for encoder in (
        {"type": "bag", "embedding": {"dim": 6}},
        {**_ENCODERS["gru"], "variant": "authors"},
    ):
        with pytest.raises(
            ValueError, match="encoder must have a state for each word with objective masked_words"
        ):
            tiny_run(tmp_path, encoder=encoder, objective={"type": "masked_words"})
