"""Skip-Thoughts: the decoders' formulas, the published sizes, and runs from text to a loadable model."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from compiled import need_kernel
from tiny_run import check_resumed, check_weights, tiny_run
from toy_batches import NUM_WORDS, ToyRead, build_context, toy_batch

from raysent.config import Document, validate
from raysent.data.batches import Triplets
from raysent.data.vocabulary import Sentences, Vocabulary
from raysent.errors import CompilerError, ConfigError
from raysent.kernels.compiled import build
from raysent.models import ModelConfig, SentenceModel, load
from raysent.models.objectives import TripletBatches, build_objective
from raysent.models.objectives.sentence_decoding import Config
from raysent.training.loop import fit
from raysent.training.run import RunConfig, TrainingConfig

SKIP = {"type": "sentence_decoding"}


def rows_of(sentences):
    """The ids of each sentence."""
    return np.split(sentences.ids, np.cumsum(sentences.lengths)[:-1])


def num_trained(encoder, objective):
    """Trained parameters, for a vocabulary of 20,000."""
    config = validate(ModelConfig, Document({"encoder": encoder, "objective": objective}))
    vocabulary = Vocabulary(["<pad>", "<unk>", *(f"w{number}" for number in range(19_998))])
    model = SentenceModel.build(config, vocabulary, seed=0)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def gradients(batch, *, is_low=False, **config):
    """The loss with random parameters, and its gradients with respect to all parameters and the sentences' vectors."""
    objective, read = build_objective(Config(**config), build_context()), ToyRead(1)
    generator = torch.Generator().manual_seed(3)
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_low):
        loss = objective(read, batch)
    loss.backward()
    named = [*objective.named_parameters(), *read.named_parameters()]
    return {"loss": loss.detach()} | {name: parameter.grad for name, parameter in named}


@pytest.mark.parametrize("implementation", ["compiled", "packed", "torch"])
@pytest.mark.parametrize("shared_output", [True, False])
@pytest.mark.parametrize("decoder", ["cond", "init"])
def test_loss_equals_its_restatement(decoder, shared_output, implementation):
    """Both decoders, edges and ends, against loops over sentences and words."""
    need_kernel("gru", implementation=implementation)
    config = Config(decoder=decoder, shared_output=shared_output, implementation=implementation)
    objective = build_objective(config, build_context())
    for layer in objective.outputs:
        torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(3))
    read, batch = ToyRead(1), toy_batch(TripletBatches, 7)
    vectors = read(batch.sentences)[0].detach().double().numpy()
    table = objective.words.weight.detach().double().numpy()
    expected = 0.0
    for number, side in enumerate((batch.before, batch.after)):
        layer = objective.outputs[number if len(objective.outputs) > 1 else 0]
        output = [value.detach().double().numpy() for value in (layer.weight, layer.bias)]
        values = [
            value.detach().double().numpy() for value in objective.decoders[number].parameters()
        ]
        names = [name for name, _ in objective.decoders[number].named_parameters()]
        assert names[:3] == ["weight_ih", "weight_hh", "bias"]
        expected += sum(
            reference.decode_sentence(vector, row, table, values, output, kind=decoder)
            for vector, row in zip(vectors, rows_of(side), strict=True)
        )
    assert objective(read, batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("implementation", ["compiled", "packed"])
@pytest.mark.parametrize("output_bias", [True, False])
@pytest.mark.parametrize("shared_output", [True, False])
@pytest.mark.parametrize("decoder", ["cond", "init"])
def test_gradients_equal_the_plain_formulas(decoder, shared_output, output_bias, implementation):
    """Of every parameter, the word table and the encoded vectors."""
    need_kernel("gru", implementation=implementation)
    config = {"decoder": decoder, "shared_output": shared_output, "output_bias": output_bias}
    found, expected = (
        gradients(toy_batch(TripletBatches, 23), implementation=name, **config)
        for name in (implementation, "torch")
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-5 * value.norm(), name


@pytest.mark.parametrize("implementation", ["compiled", "packed"])
@pytest.mark.parametrize("decoder", ["cond", "init"])
def test_gradients_under_autocast_are_near_float32(decoder, implementation):
    """Products in bfloat16 change gradients little."""
    need_kernel("gru", implementation=implementation)
    batch = toy_batch(TripletBatches, 23)
    exact = gradients(batch, decoder=decoder, implementation="torch")
    low = gradients(batch, decoder=decoder, implementation=implementation, is_low=True)
    for name, value in exact.items():
        assert (low[name] - value).norm() <= 0.03 * value.norm(), name


@pytest.mark.parametrize("implementation", ["compiled", "packed"])
@pytest.mark.parametrize("decoder", ["cond", "init"])
def test_scores_equal_the_loss(decoder, implementation):
    """Without a graph the value is the same."""
    need_kernel("gru", implementation=implementation)
    objective = build_objective(
        Config(decoder=decoder, implementation=implementation), build_context()
    )
    read, batch = ToyRead(1), toy_batch(TripletBatches, 9)
    with torch.no_grad():
        found = objective.held_out_totals(read, batch)["nll"][0]
    assert found == pytest.approx(objective(read, batch).item(), rel=1e-6)


def test_compiled_decoders_raise_without_a_compiler(monkeypatch):
    """With `implementation: compiled` they do not fall back."""
    monkeypatch.setattr(
        build,
        "_outcome",
        lambda name: CompilerError(f"compiled kernel '{name}': must have a compiler"),
    )
    with pytest.raises(CompilerError, match=r"^compiled kernel 'gru': must have a compiler"):
        build_objective(Config(implementation="compiled"), build_context())


def test_loss_of_scores_that_are_all_equal_counts_every_word_and_every_end():
    """(words + sentences) * ln of the vocabulary, summed over both decoders."""
    objective, read, batch = (
        build_objective(Config(), build_context()),
        ToyRead(1),
        toy_batch(TripletBatches),
    )
    torch.nn.init.zeros_(objective.outputs[0].weight)
    num_steps = sum(
        int(side.lengths.sum()) + len(side.lengths) for side in (batch.before, batch.after)
    )
    assert objective(read, batch).item() == pytest.approx(num_steps * np.log(NUM_WORDS), rel=1e-5)
    assert objective.held_out_totals(read, batch)["nll"][1] == num_steps


def test_cond_decoder_has_no_first_state_and_init_no_matrix_for_the_vector():
    """A decoder reads the vector either at every step or as its first state."""
    cond, init = (
        build_objective(Config(decoder=word), build_context()).decoders[0]
        for word in ("cond", "init")
    )
    assert cond.weight_vh.shape == (24, 8)
    assert init.weight_vh is None
    assert Config(variant="authors").resolved_decoder == "init"


def test_initial_values_are_orthogonal_and_uniform():
    """Every recurrent block is orthogonal, the rest within 0.1."""
    objective = build_objective(Config(), build_context())
    for block in objective.decoders[1].weight_hh.detach().split(8):
        torch.testing.assert_close(block @ block.T, torch.eye(8), atol=1e-5, rtol=0)
    assert objective.outputs[0].weight.abs().max() <= 0.1
    assert not objective.decoders[0].bias.any()


def test_init_decoder_of_another_size_raises_one_clear_error():
    """Its first state is the vector."""
    with pytest.raises(
        ConfigError, match=r"^objective\.hidden_size: must be 8, .* with decoder: init; given 5"
    ):
        build_objective(Config(decoder="init", hidden_size=5), build_context())


def test_number_of_parameters_is_that_of_the_papers():
    """19.806 M for Quick-Thoughts, 57.709 M for the same encoder trained to decode."""
    encoder = {
        "type": "gru",
        "hidden_size": 1000,
        "initialization": "orthogonal",
        "embedding": {"dim": 300},
    }
    quick = num_trained(encoder, {"type": "context_prediction"})
    skip = num_trained(
        encoder, {**SKIP, "decoder": "init", "shared_output": False, "output_bias": False}
    )
    h, w, v = 1000, 300, 20_000
    assert quick == 6 * h * (h + w + 1) + 2 * v * w == 19_806_000
    assert skip == 9 * h * (h + w + 1) + v * w + 2 * h * v == 57_709_000


def test_presets_are_defaults_of_the_run(tmp_path):
    """Clip, batch and learning rate of the paper or of the released code; a given key is kept."""
    values = tiny_run(tmp_path).model_dump()
    for variant, clip in (("paper", 10.0), ("authors", 5.0)):
        given = {
            **values,
            "objective": {**SKIP, "variant": variant},
            "training": {"learning_rate": 0.5},
        }
        training = RunConfig.model_validate(given).training
        assert (training.clip, training.clip_per, training.learning_rate) == (clip, "global", 0.5)
    assert tiny_run(tmp_path).training.clip == TrainingConfig().clip


MEMBERS = {
    "uni": {
        "type": "gru",
        "hidden_size": 6,
        "initialization": "orthogonal",
        "embedding": {"dim": 5},
    },
    "bi": {"type": "gru", "bidirectional": True, "hidden_size": 6, "embedding": {"dim": 4}},
}


@pytest.mark.parametrize(
    "encoder",
    [*MEMBERS.values(), {"type": "concat", "members": MEMBERS}],
    ids=["uni", "bi", "combine"],
)
def test_skip_thoughts_learns_and_saves_no_decoders(tmp_path, encoder):
    """The likelihood of held-out neighbours rises, and one tower is encoded."""
    config = tiny_run(tmp_path, encoder=encoder, objective=SKIP, training__epochs=3.0)
    outcome = fit(config, tmp_path / "run")
    first = RunConfig.model_validate(config.model_dump()).metrics
    assert (outcome.status, first) == ("finished", ("nll",))
    assert outcome.metrics["nll"] < np.log(42)
    model = load(tmp_path / "run")
    assert model.encode(["w1 w2", ""]).shape == (2, 12 if encoder["type"] == "concat" else 6)
    assert not [name for name in model.tensors() if name.startswith("objectives")]


def test_skip_thoughts_killed_and_resumed_gives_the_same_weights(tmp_path):
    """The checkpoint holds the decoders, although the model does not."""
    check_resumed(tiny_run(tmp_path, objective=SKIP), tmp_path)


def test_row_exact_adam_follows_dense_adam_with_decoders(tmp_path):
    """The word table is read by the encoder and by both decoders."""
    for exact in (True, False):
        fit(
            tiny_run(tmp_path, objective=SKIP, training__row_exact_adam=exact),
            tmp_path / str(exact),
        )
    check_weights(tmp_path / "True", tmp_path / "False", atol=1e-4)


def test_batch_of_one_sentence_decodes():
    """One sentence of one word is enough."""
    word = Sentences(np.array([3], dtype=np.int32), np.array([1]))
    objective = build_objective(Config(), build_context())
    assert torch.isfinite(objective(ToyRead(1), Triplets(word, word, word, np.array([1]))))
