"""Encoders: contracts over all that the registry finds, and each against its restatement."""

import copy
import pickle
import sys
import weakref
from collections import deque
from typing import Annotated, Any

import numpy as np
import pydantic
import pytest
import reference
import torch
from compiled import need_kernel
from toy_batches import NoRowsByIndex

import raysent.models.encoders as registry
from raysent.config import Document, StrictModel, validate
from raysent.data.vocabulary import PAD_ID, UNK_ID, Sentences, Vocabulary
from raysent.errors import CompilerError, ConfigError
from raysent.kernels import packed_gru as recurrence
from raysent.kernels import recurrences
from raysent.kernels.compiled import build
from raysent.kernels.packing import block_rows, pack, pack_blocks
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import (
    ENCODERS,
    AnyEncoder,
    EncoderConfig,
    build_encoder,
    count_parameters,
)
from raysent.models.encoders.bag import Config as Bag
from raysent.models.encoders.cnn import Config as Cnn
from raysent.models.encoders.concat import Config as Concat
from raysent.models.encoders.gru import Config as Gru
from raysent.models.encoders.lstm import Config as Lstm
from raysent.models.layers import word_sums
from raysent.registry import AnyOf, Registry, by_type

NUM_WORDS = 40
WORDS = EmbeddingConfig(dim=5)
VOCABULARY = Vocabulary(["<pad>", "<unk>", *(f"w{number}" for number in range(2, NUM_WORDS))])

# Every configuration that the encoders give as examples, so that an encoder from another package is tested too.
EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}")
    for name, module in ENCODERS.items()
    for number, example in enumerate(module.Config.examples())
]


class Holder(StrictModel):
    """A field that holds any encoder."""

    encoder: AnyEncoder


def holder(**encoder):
    """The encoder that YAML gives."""
    return validate(Holder, Document({"encoder": encoder})).encoder


def tables(seed=0, **settings):
    """Word tables from a seed."""
    return Tables(VOCABULARY, generator=torch.Generator().manual_seed(seed), **settings)


def batch_of(*rows):
    """Sentences from rows of ids."""
    ids = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows])
    return Sentences(ids, np.array([len(row) for row in rows], dtype=np.int64))


def random_rows(count=9, longest=7, seed=0):
    """Sentences of several lengths, with repeated words and sentences, and single words."""
    random = np.random.default_rng(seed)
    rows = [
        random.integers(1, NUM_WORDS, size=random.integers(1, longest + 1)).tolist()
        for _ in range(count)
    ]
    return [*rows, rows[0], [3], [3], [UNK_ID]]


@pytest.fixture(params=EXAMPLES)
def config(request):
    """Every example of every encoder that the registry finds."""
    return request.param


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_examples_are_of_its_type(name):
    """Each encoder has at least one."""
    assert {example.type for example in ENCODERS[name].Config.examples()} == {name}


def test_encoder_num_parameters_are_those_of_its_tower(config):
    """The formula counts what is built, word table included."""
    built = sum(parameter.numel() for parameter in build_encoder(config, tables()).parameters())
    assert config.num_parameters(NUM_WORDS) == built
    # An encoder without a formula of its own is built without values and counted.
    assert EncoderConfig.num_parameters(config, NUM_WORDS) == built


def test_encoder_activations_are_at_least_its_word_vectors(config):
    """A token adds its word vectors to what a step keeps."""
    assert config.activations_per_token >= max(
        1, sum(table.dim for table in config.word_tables().values())
    )


def test_fixed_word_table_counts_once_for_all_that_read_it():
    """As members of a composition, and as two towers."""
    fixed = {"dim": 5, "vectors": "ppmi", "trained": False}
    gru = {"type": "gru", "hidden_size": 4, "embedding": fixed}
    config = holder(
        type="concat",
        members={"one": gru, "other": gru, "bag": {"type": "bag", "embedding": {"dim": 3}}},
    )
    tower = build_encoder(config, tables(corpus_vectors=_random_vectors))
    assert config.num_parameters(NUM_WORDS) == sum(
        parameter.numel() for parameter in tower.parameters()
    )
    trained, shared = count_parameters([config, config], NUM_WORDS)
    assert shared == 5 * NUM_WORDS
    assert trained == 2 * (config.num_parameters(NUM_WORDS) - shared)
    assert set(config.word_tables()) == {
        "members.one.embedding",
        "members.other.embedding",
        "members.bag.embedding",
    }


def test_encoder_gives_one_finite_vector_a_sentence(config):
    """[batch, dim], and the blocks add up to dim."""
    with NoRowsByIndex():
        vectors = build_encoder(config, tables())(pack(batch_of(*random_rows())))
    assert vectors.shape == (len(random_rows()), config.dim)
    assert torch.isfinite(vectors).all()
    assert sum(config.block_dims) == sum(config.loss_dims) == config.dim


def test_encoder_vector_does_not_depend_on_the_batch(config):
    """A sentence alone and in a batch has the same vector."""
    encoder, rows = build_encoder(config, tables()), random_rows()
    together = encoder(pack(batch_of(*rows)))
    alone = torch.cat([encoder(pack(batch_of(row))) for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_encoder_reads_blocks_that_share_their_words(config):
    """Projected once for several blocks, as `encode` does, the vectors are the same."""
    encoder, sentences = build_encoder(config, tables()), batch_of(*random_rows())
    expected = encoder(pack(sentences))
    blocks = list(pack_blocks(sentences, batch_size=4))
    projected = encoder.project(blocks[0].words)
    for rows, packed in zip(block_rows(sentences.lengths, batch_size=4), blocks, strict=True):
        torch.testing.assert_close(
            encoder.read(packed, projected), expected[rows], rtol=0, atol=1e-6
        )


def test_encoder_depends_on_its_seed_only(config):
    """Two builds are equal, and nothing is drawn from torch's global generator."""
    state = torch.get_rng_state()
    first, second = (dict(build_encoder(config, tables()).named_parameters()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_encoder_config_round_trips_through_json(config):
    """Written and read, it is equal."""
    assert Holder.model_validate_json(Holder(encoder=config).model_dump_json()).encoder == config


def test_encoder_schema_names_every_type():
    """The JSON Schema selects encoders by `type`."""
    schema = Holder.model_json_schema()
    assert set(schema["properties"]["encoder"]["discriminator"]["mapping"]) == set(ENCODERS)


def test_registry_finds_a_new_file_of_the_folder(tmp_path, monkeypatch):
    """Configuration and building need no other line."""
    (tmp_path / "first_word.py").write_text(
        "from typing import Literal\n"
        "from raysent.models.encoders import Tower, WordEncoderConfig\n"
        "class Config(WordEncoderConfig):\n"
        "    type: Literal['first'] = 'first'\n"
        "    @property\n"
        "    def dim(self): return self.embedding.dim\n"
        "class Encoder(Tower):\n"
        "    def __init__(self, config, tables):\n"
        "        super().__init__()\n"
        "        self.words = tables.table(config.embedding)\n"
        "    def project(self, words): return self.words(words)\n"
        "    def read(self, packed, projected): return projected[packed.sentence_tokens[packed.sentence_starts]]\n"
    )
    monkeypatch.setattr(registry, "__path__", [*registry.__path__, str(tmp_path)])
    modules = Registry(
        "encoder", package=registry.__name__, folders=registry.__path__, read=by_type
    )
    monkeypatch.setattr(registry, "ENCODERS", modules)
    members = pydantic.TypeAdapter(Annotated[Any, AnyOf(modules)]).validate_python(
        {"type": "first", "embedding": {"dim": 3}}
    )
    vectors = build_encoder(members, tables())(pack(batch_of([5, 6], [7])))
    assert vectors.shape == (2, 3)
    sys.modules.pop("raysent.models.encoders.first_word")


@pytest.mark.parametrize("reset", ["after", "before"])
@pytest.mark.parametrize("implementation", ["compiled", "packed", "torch"])
def test_gru_equals_its_restatement(implementation, reset):
    """Both directions, sentence by sentence, against loops over words."""
    need_kernel("gru", implementation=implementation)
    config = Gru(
        embedding=WORDS,
        hidden_size=6,
        bidirectional=True,
        implementation=implementation,
        reset=reset,
    )
    encoder, rows = build_encoder(config, tables()), random_rows()
    for parameter in encoder.gru.parameters():  # biases that tell the gates apart
        parameter.data += (
            torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3
        )
    vectors = encoder(pack(batch_of(*rows))).detach().numpy()
    table = encoder.words.weight.detach().double().numpy()
    for row, vector in zip(rows, vectors, strict=True):
        both = [
            reference.gru_last_state(
                table[row],
                [p.detach().numpy() for p in parameters],
                reset=reset,
                backwards=backwards == 1,
            )
            for backwards, parameters in enumerate(encoder.gru.all_weights)
        ]
        np.testing.assert_allclose(vector, np.concatenate(both), rtol=0, atol=2e-6)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bag_equals_its_restatement(pooling):
    """Sums and means over each sentence."""
    encoder, rows = build_encoder(Bag(embedding=WORDS, pooling=pooling), tables()), random_rows()
    vectors = encoder(pack(batch_of(*rows))).detach().numpy()
    table = encoder.words.weight.detach().numpy()
    expected = [reference.bag(table[row], pooling=pooling) for row in rows]
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("activation", ["linear", "tanh"])
@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
@pytest.mark.parametrize("implementation", ["auto", "windows"])
def test_cnn_equals_its_restatement(implementation, pooling, activation):
    """Every window at every place, also in sentences shorter than the window."""
    config = Cnn(
        embedding=WORDS,
        num_filters=3,
        windows=[1, 2, 3, 5],
        pooling=pooling,
        activation=activation,
        implementation=implementation,
    )
    encoder, rows = build_encoder(config, tables()), random_rows()
    for bias in encoder.biases:
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(1))
    vectors = encoder(pack(batch_of(*rows))).detach().numpy()
    table = encoder.words.weight.detach().double().numpy()
    blocks = [
        [
            reference.convolution(table[row], weight, bias, pooling=pooling, activation=activation)
            for weight, bias in zip(
                [weight.detach().double().numpy().reshape(-1, 3, 5) for weight in encoder.weights],
                [bias.detach().double().numpy() for bias in encoder.biases],
                strict=True,
            )
        ]
        for row in rows
    ]
    np.testing.assert_allclose(
        vectors, [np.concatenate(block) for block in blocks], rtol=0, atol=2e-6
    )


@pytest.mark.parametrize(
    "rows", [random_rows(), [[3]], [[3], [4], [3]], random_rows(60, 20)], ids=len
)
@pytest.mark.parametrize("pooling", ["max", "mean", "last"])
@pytest.mark.parametrize("implementation", ["packed", "compiled"])
def test_packed_lstm_has_torchs_gradients(implementation, pooling, rows):
    """Within 1e-5 of each gradient's norm, both directions; the vectors too, also in a second step."""
    need_kernel("gru", implementation=implementation)
    expected = lstm_gradients("torch", rows, pooling)
    for found in (
        lstm_gradients(implementation, rows, pooling),
        lstm_gradients(implementation, rows, pooling, steps=2),
    ):
        for name, value in expected.items():
            assert (found[name] - value).norm() <= 1e-5 * value.norm(), name


@pytest.mark.parametrize("pooling", ["max", "last"])
def test_compiled_lstm_has_the_gradients_of_the_packed_one_in_bfloat16(pooling):
    """Within 4e-3 of each gradient's norm; without gradients, the vectors are the same bits."""
    need_kernel("gru")
    rows = random_rows(60, 20)
    compiled, packed = (
        lstm_gradients(one, rows, pooling, low=torch.bfloat16) for one in ("compiled", "packed")
    )
    for name, expected in packed.items():
        assert (compiled[name] - expected).norm() <= 4e-3 * expected.norm(), name
    assert torch.equal(compiled["vectors"], compiled["encoded"])


def lstm_gradients(implementation, rows, pooling, *, steps=1, low=None):
    """Return the vectors with and without gradients, and the gradients of the last of some steps on the same batch."""
    config = Lstm(embedding=WORDS, hidden_size=8, pooling=pooling, implementation=implementation)
    encoder = build_encoder(config, tables())
    with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
        with torch.no_grad():
            encoded = encoder(pack(batch_of(*rows)))
        for _ in range(steps):
            encoder.zero_grad()
            vectors = encoder(pack(batch_of(*rows)))
            (
                vectors * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
            ).sum().backward()
    named = {name: p.grad.to_dense() for name, p in encoder.named_parameters()}
    return {**named, "vectors": vectors.detach(), "encoded": encoded}


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("windows", [[1], [1, 2, 3], [6, 2]], ids=str)
def test_cnn_of_sums_has_the_gradients_of_windows(windows, pooling):
    """Within 1e-5 of each gradient's norm."""
    gradients = {}
    for implementation in ("summed", "windows"):
        config = Cnn(
            embedding=WORDS,
            num_filters=3,
            windows=windows,
            pooling=pooling,
            implementation=implementation,
        )
        encoder = build_encoder(config, tables())
        vectors = encoder(pack(batch_of(*random_rows())))
        (
            vectors * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
        ).sum().backward()
        gradients[implementation] = {
            name: p.grad.to_dense() for name, p in encoder.named_parameters()
        }
    for name, expected in gradients["windows"].items():
        assert (gradients["summed"][name] - expected).norm() <= 1e-5 * expected.norm(), name


def test_gru_orthogonal_initialization_is_skip_thoughts():
    """Recurrent blocks are orthogonal, biases 0, and the recurrent bias is not trained."""
    gru = build_encoder(
        Gru(embedding=WORDS, hidden_size=6, initialization="orthogonal"), tables()
    ).gru
    for block in gru.weight_hh_l0.detach().split(6):
        torch.testing.assert_close(block @ block.T, torch.eye(6), atol=1e-5, rtol=0)
    assert gru.weight_ih_l0.abs().max() <= 0.1
    assert not gru.bias_ih_l0.any()
    assert not gru.bias_hh_l0.requires_grad


@pytest.mark.parametrize(
    "rows", [random_rows(), [[3]], [[3], [4], [3]], random_rows(60, 20)], ids=len
)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("implementation", ["packed", "compiled"])
def test_packed_gru_has_torchs_gradients(implementation, trained, bidirectional, rows):
    """Within 1e-5 of each gradient's norm."""
    need_kernel("gru", implementation=implementation)
    ours, expected = (
        gradients_of(one, rows, trained=trained, bidirectional=bidirectional)
        for one in (implementation, "torch")
    )
    assert ("words.weight" in ours) == trained
    for name, gradient in expected.items():
        assert (ours[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def gradients_of(implementation, rows, *, trained=True, bidirectional=False, low=None):
    """Gradients of random weights of the vectors, and the vectors themselves."""
    embedding = EmbeddingConfig(dim=5, trained=trained, vectors=None if trained else "ppmi")
    config = Gru(
        embedding=embedding,
        hidden_size=38,
        bidirectional=bidirectional,
        implementation=implementation,
    )
    encoder = build_encoder(config, tables(corpus_vectors=_random_vectors))
    for bias in (bias for direction in encoder.gru.all_weights for bias in direction[2:]):
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low is not None):
        vectors = encoder(pack(batch_of(*rows)))
    (
        vectors * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
    ).sum().backward()
    named = {name: p.grad.to_dense() for name, p in encoder.named_parameters() if p.requires_grad}
    return {**named, "vectors": vectors.detach()}


@pytest.mark.parametrize("implementation", ["packed", "compiled"])
def test_packed_gru_in_bfloat16_is_near_float32(implementation):
    """Each gradient is within 2 % of its norm, and not equal."""
    need_kernel("gru", implementation=implementation)
    rows = random_rows(60, 20)
    low, exact = (
        gradients_of(implementation, rows, bidirectional=True, low=low)
        for low in (torch.bfloat16, None)
    )
    errors = [float((low[name] - exact[name]).norm() / exact[name].norm()) for name in exact]
    assert 1e-4 < max(errors) < 0.02


def test_compiled_gru_equals_the_packed_one_in_bfloat16():
    """The same products in the same type: nearer to each other than to float32."""
    need_kernel("gru")
    compiled, packed = (
        gradients_of(one, random_rows(60, 20), low=torch.bfloat16) for one in ("compiled", "packed")
    )
    for name, gradient in packed.items():
        assert (compiled[name] - gradient).norm() <= 4e-3 * gradient.norm(), name


@pytest.mark.parametrize("implementation", ["packed", "compiled"])
def test_packed_gru_is_the_same_without_gradients(implementation):
    """Without a graph the vectors are the same."""
    need_kernel("gru", implementation=implementation)
    config = Gru(embedding=WORDS, hidden_size=38, bidirectional=True, implementation=implementation)
    encoder, packed = build_encoder(config, tables()), pack(batch_of(*random_rows(60, 20)))
    expected = encoder(packed).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(encoder(packed).clone(), expected, rtol=0, atol=1e-6)


def test_packed_gru_of_a_wide_state_has_torchs_gradients(monkeypatch):
    """A wide state computes the weight's gradient by another product."""
    need_kernel("gru")
    monkeypatch.setattr(recurrence, "_WIDE", 1)
    ours, expected = (
        gradients_of(one, random_rows(60, 20))["gru.weight_hh_l0"] for one in ("compiled", "torch")
    )
    assert ours.is_contiguous()
    assert (ours - expected).norm() <= 1e-5 * expected.norm()


NAN_WORD = 7


def encoded_with_nan_word(implementation, *, dim, hidden, value=torch.nan, low=True):
    """Return the vectors of 20 sentences by a GRU in which every third sentence has a word with this value."""
    config = Gru(
        embedding=EmbeddingConfig(dim=dim), hidden_size=hidden, implementation=implementation
    )
    encoder = build_encoder(config, tables())
    encoder.words.weight.data[NAN_WORD] = value
    others = [number for number in range(2, NUM_WORDS) if number != NAN_WORD]
    rows = [
        [others[number], NAN_WORD if number % 3 == 0 else others[-number], 11][: 2 + number % 2]
        for number in range(20)
    ]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        return encoder(pack(batch_of(*rows)))


HAS_NAN = torch.arange(20) % 3 == 0


@pytest.mark.parametrize("implementation", ["packed", "compiled"])
@pytest.mark.parametrize(
    ("size", "low"), [(5, False), (37, False), (38, False), (69, False), (32, True), (64, True)]
)
def test_packed_gru_keeps_nan_in_its_sentence(implementation, size, low):
    """A NaN word makes its own sentences NaN and no others; in bfloat16 if all sizes are multiples of 32."""
    need_kernel("gru", implementation=implementation)
    vectors = encoded_with_nan_word(implementation, dim=size, hidden=size, low=low)
    assert torch.equal(vectors.isnan().all(dim=1), HAS_NAN)
    assert torch.equal(vectors.isnan().any(dim=1), HAS_NAN)


@pytest.mark.parametrize("implementation", ["packed", "compiled"])
def test_packed_gru_in_bfloat16_never_loses_a_nan(implementation):
    """At odd sizes a CPU with AMX may spread NaN to other sentences, but keeps it, and changes no finite value."""
    need_kernel("gru", implementation=implementation)
    for size in range(5, 70, 2):
        vectors = encoded_with_nan_word(implementation, dim=size, hidden=size)
        finite = encoded_with_nan_word(implementation, dim=size, hidden=size, value=0.5)
        is_nan = vectors.isnan().any(dim=1)
        assert is_nan[HAS_NAN].all()
        assert finite.isfinite().all()
        assert torch.equal(vectors[~is_nan], finite[~is_nan])


@pytest.mark.parametrize("implementation", ["packed", "compiled"])
def test_packed_gru_accepts_huge_inputs(implementation):
    """Saturated gates do not overflow."""
    need_kernel("gru", implementation=implementation)
    config = Gru(embedding=WORDS, hidden_size=38, implementation=implementation)
    encoder = build_encoder(config, tables())
    encoder.gru.weight_ih_l0.data *= 1e6
    torch_encoder = build_encoder(config.model_copy(update={"implementation": "torch"}), tables())
    torch_encoder.load_state_dict(encoder.state_dict())
    packed = pack(batch_of(*random_rows()))
    torch.testing.assert_close(encoder(packed), torch_encoder(packed), rtol=0, atol=1e-5)


def test_packed_gru_reuses_its_buffers():
    """Steps reuse one workspace for each direction; a copy and a pickle have none."""
    need_kernel("gru")
    encoder = build_encoder(
        Gru(embedding=WORDS, hidden_size=6, bidirectional=True, implementation="compiled"), tables()
    )
    for rows in (random_rows(), random_rows(60, 20), random_rows()):
        encoder(pack(batch_of(*rows))).sum().backward()
    assert len(encoder._workspaces._free) == 2
    assert (
        copy.deepcopy(encoder)._workspaces._free
        == pickle.loads(pickle.dumps(encoder))._workspaces._free
        == deque()
    )


def test_packed_gru_frees_buffers_without_a_backward():
    """A forward whose result is discarded frees its buffers at once."""
    need_kernel("gru")
    encoder = build_encoder(
        Gru(embedding=WORDS, hidden_size=6, implementation="compiled"), tables()
    )
    made = []
    acquire = encoder._workspaces.acquire
    encoder._workspaces.acquire = lambda shape: (
        made.append(weakref.ref(workspace := acquire(shape))) or workspace
    )
    encoder(pack(batch_of(*random_rows())))
    assert [reference() for reference in made] == [None]


def test_gru_compiled_raises_without_a_compiler(monkeypatch):
    """With `implementation: compiled` it does not fall back; with `auto` it does."""
    monkeypatch.setattr(
        build,
        "_outcome",
        lambda name: CompilerError(f"compiled kernel '{name}': must have a compiler"),
    )
    monkeypatch.setattr(recurrences, "try_load", lambda name: None)
    with pytest.raises(CompilerError, match=r"^compiled kernel 'gru': must have a compiler"):
        build_encoder(Gru(embedding=WORDS, hidden_size=6, implementation="compiled"), tables())
    assert torch.isfinite(
        build_encoder(Gru(embedding=WORDS, hidden_size=6), tables())(pack(batch_of([5, 6])))
    ).all()


def _random_vectors(dim):
    return np.random.default_rng(0).normal(size=(NUM_WORDS, dim)).astype(np.float32)


def test_packed_gru_does_not_mix_two_passes():
    """Two forwards before their backwards, one of them without a backward, do not share buffers."""
    encoder = build_encoder(Gru(embedding=WORDS, hidden_size=6), tables())
    first, second = pack(batch_of(*random_rows(seed=1))), pack(batch_of(*random_rows(seed=2)))
    encoder(first).sum().backward()
    expected = encoder.gru.weight_hh_l0.grad.clone()
    encoder.zero_grad()
    waiting = encoder(first).sum()
    encoder(second).sum()
    with torch.inference_mode():
        encoder(second)
    waiting.backward()
    assert torch.equal(encoder.gru.weight_hh_l0.grad, expected)


def test_packed_gru_refuses_a_second_backward():
    """Its buffers belong to the next step."""
    encoder = build_encoder(Gru(embedding=WORDS, hidden_size=6), tables())
    total = encoder(pack(batch_of([3, 4]))).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="keeps no values after a backward"):
        total.backward()


def test_gru_initial_values_are_the_released_codes():
    """Glorot's ranges of the whole kernels, gate bias 1."""
    gru = build_encoder(Gru(embedding=EmbeddingConfig(dim=620), hidden_size=600), tables()).gru
    for weight in (gru.weight_ih_l0, gru.weight_hh_l0):
        gates, candidate = weight[:1200].abs().max().item(), weight[1200:].abs().max().item()
        assert 0.0497 < gates <= 0.0498
        assert 0.0573 < candidate <= 0.0575
    assert gru.bias_ih_l0.tolist() == [1.0] * 1200 + [0.0] * 600
    assert not gru.bias_hh_l0.any()


def test_authors_gru_has_one_bias():
    """As TensorFlow's cell; the second bias is not trained."""
    encoder = build_encoder(
        Gru(embedding=WORDS, hidden_size=6, bidirectional=True, variant="authors"), tables()
    )
    assert not any(
        p.requires_grad for name, p in encoder.gru.named_parameters() if name.startswith("bias_hh")
    )


def test_dropout_of_the_paper_rescales():
    """One mask per sentence and tower; values that are kept are rescaled."""
    config = Gru(hidden_size=400, dropout=0.5)
    f, g = config.dropout_masks(50, generator=torch.Generator().manual_seed(0))
    assert f.shape == (50, 400)
    assert set(f.unique().tolist()) == {0.0, 2.0}
    assert f.mean().item() == pytest.approx(1.0, abs=0.03)
    assert not torch.equal(f, g)


def test_dropout_of_the_authors_is_one_mask_without_rescaling():
    """Shared by the batch and by both towers."""
    config = Concat(
        members={
            "a": Gru(hidden_size=40, dropout=0.3, variant="authors"),
            "b": Bag(embedding=WORDS),
        }
    )
    f, g = config.dropout_masks(3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(f, g)
    assert torch.equal(f[0], f[2])
    assert set(f.unique().tolist()) == {0.0, 1.0}
    assert f[:, 40:].all()


def test_tables_share_fixed_vectors_only():
    """Two towers have two trained tables, and one fixed table without gradient."""
    made = tables(corpus_vectors=_random_vectors)
    assert made.table(WORDS).weight is not made.table(WORDS).weight
    frozen = EmbeddingConfig(dim=5, vectors="ppmi", trained=False)
    assert made.table(frozen) is made.table(frozen)
    assert not made.table(frozen).weight.requires_grad


def test_trained_table_starts_uniform():
    """Within 0.1 of zero; the padding is zero."""
    weight = tables().table(EmbeddingConfig(dim=50)).weight.detach()
    assert 0.099 < weight.abs().max() <= 0.1
    assert not weight[PAD_ID].any()


def test_fixed_vectors_give_missing_words_the_unknown_vector(tmp_path):
    """Missing words share the unknown word's vector, uniform in [0, 1)."""
    path = tmp_path / "vectors.txt"
    path.write_text("w3 1 2 3\nelsewhere 9 9 9\nw5 4 5 6\n")
    weight = tables().table(EmbeddingConfig(dim=3, vectors=str(path), trained=False)).weight
    assert weight[3].tolist() == [1, 2, 3]
    assert weight[5].tolist() == [4, 5, 6]
    assert torch.equal(weight[4], weight[UNK_ID])
    assert 0 <= weight[UNK_ID].min() < weight[UNK_ID].max() < 1


def test_ppmi_vectors_need_a_corpus():
    """`ppmi` without a corpus."""
    with pytest.raises(
        ConfigError, match=r"^encoder\.embedding\.vectors: 'ppmi' counts vectors from a corpus"
    ):
        tables().table(EmbeddingConfig(dim=5, vectors="ppmi"))


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"type": "gruu"}, r"^encoder\.type: unknown type 'gruu'; did you mean 'gru'\?"),
        (
            {"type": "gru", "droput": 0.1},
            r"^encoder\.droput: unknown name; did you mean 'dropout'\?",
        ),
        (
            {"type": "gru", "hidden_size": 5, "bidirectional": True},
            r"^encoder: hidden_size must be even",
        ),
        (
            {"type": "gru", "num_layers": 2, "variant": "authors"},
            r"^encoder: num_layers must be 1 with reset: before",
        ),
        (
            {"type": "cnn", "pooling": "max", "implementation": "summed"},
            "^encoder: implementation must not be summed",
        ),
        (
            {"type": "gru", "num_layers": 2, "implementation": "packed"},
            r"^encoder: num_layers must be 1 with impl",
        ),
        (
            {"type": "gru", "embedding": {"trained": False}},
            r"^encoder\.embedding: fixed vectors .* need `vectors`",
        ),
        (
            {"type": "bag", "embedding": {"trained": False, "vectors": "ppmi"}},
            r"^encoder: a bag of words has nothing",
        ),
        ({"type": "concat", "members": {}}, r"^encoder\.members: "),
        (
            {"type": "concat", "members": {"a": {"type": "bag", "poling": "sum"}}},
            r"^encoder\.members\.a\.poling: unkn",
        ),
    ],
)
def test_encoder_mistakes_raise_one_clear_error(encoder, message):
    """Path, what must hold, nearest fix."""
    with pytest.raises(ConfigError, match=message):
        holder(**encoder)


def test_word_dropout_acts_in_training_only():
    """The configured fraction is zero, the rest rescaled; the same generator gives the same mask."""
    table = tables().table(EmbeddingConfig(dim=400, dropout=0.25))
    words, plain = torch.arange(2, 30), table.weight.detach()[2:30]
    masks = []
    for _ in range(2):
        table.generator = torch.Generator().manual_seed(1)
        masks.append(table(words).detach())
    assert torch.equal(*masks)
    kept = masks[0] != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(masks[0][kept], plain[kept] / 0.75)
    table.eval()
    assert torch.equal(table(words), plain)


def test_word_sums_have_torchs_gradient():
    """The gradient of a sum over words is a sum over sentences."""
    packed = pack(Sentences(np.array([3, 9, 9, 5, 3, 9], dtype=np.int32), np.array([3, 1, 2])))
    vectors = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = torch.arange(15.0).reshape(3, 5)
    (ours,) = torch.autograd.grad((word_sums(packed.sentences, vectors) * weights).sum(), vectors)
    plain = torch.nn.functional.embedding_bag(
        packed.sentence_tokens, vectors, packed.sentence_starts, mode="sum"
    )
    (theirs,) = torch.autograd.grad((plain * weights).sum(), vectors)
    torch.testing.assert_close(ours, theirs)
