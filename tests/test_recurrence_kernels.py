"""Every kernel of a recurrence gives the same states and gradients; one owner chooses among them.

The padded kernels are those of a GPU; a CPU runs the same code without recording launches.
"""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from compiled import need_kernel
from test_encoders import VOCABULARY, WORDS, batch_of, random_rows, tables
from tiny_run import tiny_run

from raysent.data.batches import Triplets
from raysent.kernels import padding, recurrences
from raysent.kernels.devices import acting_as_gpu, is_gpu, to_device_together
from raysent.kernels.packing import pack, pack_blocks
from raysent.kernels.padding import Cut, TokenOrder, lay_out_padded, similar_lengths
from raysent.kernels.recurrences import Cell, chosen_kernel
from raysent.models import ModelConfig, SentenceModel
from raysent.models.encoders import build_encoder
from raysent.models.encoders.gru import Config as Gru
from raysent.models.encoders.lstm import Config as Lstm
from raysent.models.objectives.sentence_decoding import Config as SentenceDecoding
from raysent.training.loop import fit

CPU = torch.device("cpu")
ROWS = {"several": random_rows(), "one word": [[3]], "long": random_rows(60, 20)}


def gradients(config, rows, *, steps=1, low=False):
    """Vectors with and without gradient, and all gradients of the last of some steps on one batch."""
    encoder = build_encoder(config, tables())
    for parameter in encoder.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(
                parameter.data, std=0.5, generator=torch.Generator().manual_seed(1)
            )
    packed = pack(batch_of(*rows))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        with torch.inference_mode():
            encoded = encoder.encoded(pack(batch_of(*rows)))
        for _ in range(steps):
            encoder.zero_grad()
            vectors = encoder(packed)
            weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
            (vectors * weights).sum().backward()
    assert vectors.dtype == encoded.dtype == torch.float32
    named = {
        name: parameter.grad.to_dense()
        for name, parameter in encoder.named_parameters()
        if parameter.requires_grad
    }
    return {**named, "vectors": vectors.detach(), "encoded": encoded.clone()}


def check_equal(ours, expected, *, within=1e-5):
    """Assert that each value is within a part of its norm."""
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert (ours[name] - value).norm() <= within * value.norm(), name


GRUS = {
    "one direction": {},
    "two directions": {"bidirectional": True},
    "several layers": {"bidirectional": True, "num_layers": 3},
    "layers of one direction": {"num_layers": 2},
    "states": {"bidirectional": True, "pooling": "mean"},
    "other poolings of encode": {"bidirectional": True, "encode_pooling": ["last", "max", "mean"]},
    "one bias": {"initialization": "orthogonal"},
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("settings", GRUS.values(), ids=GRUS)
def test_padded_gru_has_torchs_gradients(settings, rows):
    """The vectors, those of `encode` and each gradient, also in a third step, which reads the second one's buffers."""
    config = Gru(embedding=WORDS, hidden_size=12, implementation="torch", **settings)
    expected = gradients(config, rows)
    padded = config.model_copy(update={"implementation": "cudnn"})
    check_equal(gradients(padded, rows), expected)
    check_equal(gradients(padded, rows, steps=3), expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(
    "settings",
    [settings for settings in GRUS.values() if "num_layers" not in settings],
    ids=[name for name, settings in GRUS.items() if "num_layers" not in settings],
)
def test_loop_of_groups_has_torchs_gradients(settings, rows):
    """As torch's recurrence on padded groups."""
    config = Gru(embedding=WORDS, hidden_size=12, implementation="torch", **settings)
    expected = gradients(config, rows)
    loop = config.model_copy(update={"implementation": "graph"})
    check_equal(gradients(loop, rows, steps=3), expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_loop_of_the_papers_cell_has_the_gradients_of_the_plain_one(bidirectional, rows):
    """With the reset gate before the product, in float32 and near it in bfloat16."""
    config = Gru(embedding=WORDS, hidden_size=12, variant="authors", bidirectional=bidirectional)
    expected = gradients(config, rows)
    loop = config.model_copy(update={"implementation": "graph"})
    check_equal(gradients(loop, rows, steps=3), expected)
    check_equal(gradients(loop, rows, low=True), expected, within=0.03)


def test_loop_in_bfloat16_equals_the_packed_one():
    """The same products in the same type: nearer to each other than to float32."""
    config = Gru(embedding=WORDS, hidden_size=38, bidirectional=True, implementation="packed")
    expected = gradients(config, random_rows(60, 20), low=True)
    loop = config.model_copy(update={"implementation": "graph"})
    check_equal(gradients(loop, random_rows(60, 20), low=True), expected, within=6e-3)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("pooling", ["max", "mean", "last"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_padded_lstm_has_torchs_gradients(bidirectional, pooling, rows):
    """As the GRU."""
    config = Lstm(
        embedding=WORDS,
        hidden_size=12,
        pooling=pooling,
        bidirectional=bidirectional,
        implementation="torch",
    )
    expected = gradients(config, rows)
    padded = config.model_copy(update={"implementation": "cudnn"})
    check_equal(gradients(padded, rows, steps=2), expected)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_padded_recurrences_in_bfloat16_are_near_float32(kind):
    """Each gradient is within 3 % of its norm, and not equal."""
    # The maximum over states of 8 bits has ties, which share the gradient.
    settings = {"bidirectional": True, "pooling": "last", "implementation": "cudnn"}
    config = {"gru": Gru, "lstm": Lstm}[kind](embedding=WORDS, hidden_size=38, **settings)
    low, exact = (gradients(config, random_rows(60, 20), low=low) for low in (True, False))
    check_equal(low, exact, within=0.03)
    assert not torch.equal(low["vectors"], exact["vectors"])


def test_compiled_gru_equals_the_padded_one():
    """The kernel of a CPU against that of a GPU, which no test compares through a third one."""
    need_kernel("gru")
    config = Gru(embedding=WORDS, hidden_size=38, bidirectional=True, implementation="compiled")
    expected = gradients(config, random_rows(60, 20))
    padded = config.model_copy(update={"implementation": "cudnn"})
    check_equal(gradients(padded, random_rows(60, 20)), expected)


def test_padded_states_of_words_are_torchs():
    """`tokens`, in the order of the sentences, of both directions."""
    rows = random_rows(60, 20)
    config = Gru(embedding=WORDS, hidden_size=12, bidirectional=True, implementation="torch")
    expected, ours = (
        build_encoder(config.model_copy(update={"implementation": name}), tables()).tokens(
            pack(batch_of(*rows))
        )
        for name in ("torch", "cudnn")
    )
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def test_padded_blocks_of_encode_share_their_words():
    """A block has words of other blocks; its states are those of its own sentences."""
    rows = random_rows(60, 20)
    config = Gru(embedding=WORDS, hidden_size=12, bidirectional=True, implementation="cudnn")
    encoder = build_encoder(config, tables())
    with torch.inference_mode():
        whole = encoder(pack(batch_of(*rows)))
        blocks = list(pack_blocks(batch_of(*rows), batch_size=10))
        projected = encoder.project(blocks[0].words)
        parts = torch.cat([encoder.read(block, projected) for block in blocks])
    order = np.argsort(-np.array([len(row) for row in rows]), kind="stable")
    torch.testing.assert_close(parts, whole[order], rtol=0, atol=1e-6)


def test_padded_recurrence_keeps_runs_for_later_steps():
    """Steps reuse the runs of a shape; two passes before their backwards share none; a copy and a pickle have none."""
    encoder = build_encoder(
        Gru(embedding=WORDS, hidden_size=6, bidirectional=True, implementation="cudnn"), tables()
    )
    packed, other = pack(batch_of(*random_rows(30, 9))), pack(batch_of(*random_rows(30, 9, seed=3)))
    [recurrence] = encoder._padded_layers
    for _ in range(3):
        encoder(packed).sum().backward()
    num_groups = len(packed.padded(next(iter(packed._padded))[0]).groups)
    assert len(recurrence.kept) == num_groups
    encoder.zero_grad()
    encoder(packed).sum().backward()
    expected = encoder.gru.weight_hh_l0.grad.clone()
    encoder.zero_grad()
    waiting = encoder(packed).sum()
    encoder(other).sum().backward()
    encoder.zero_grad()
    waiting.backward()
    assert torch.equal(encoder.gru.weight_hh_l0.grad, expected)
    for copied in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert len(copied._padded_layers[0].kept) == 0
        assert torch.equal(copied(packed), encoder(packed))


def test_padded_recurrence_refuses_a_second_backward():
    """Its buffers belong to the next step."""
    encoder = build_encoder(Gru(embedding=WORDS, hidden_size=6, implementation="cudnn"), tables())
    total = encoder(pack(batch_of([3, 4]))).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="keeps no values after a backward"):
        total.backward()


def test_gradients_of_two_backwards_add_up():
    """The second backward overwrites the buffers that the first one returned gradients from."""
    encoder = build_encoder(Gru(embedding=WORDS, hidden_size=6, implementation="cudnn"), tables())
    packed = pack(batch_of(*random_rows()))
    encoder(packed).sum().backward()
    once = {name: p.grad.clone() for name, p in encoder.named_parameters()}
    encoder(packed).sum().backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(parameter.grad.to_dense(), 2 * once[name].to_dense())


DECODERS = [
    {"decoder": "cond"},
    {"decoder": "init"},
    {"decoder": "cond", "hidden_size": 5, "shared_output": False},
]


@pytest.mark.parametrize("implementation", ["cudnn", "graph"])
@pytest.mark.parametrize("settings", DECODERS, ids=str)
def test_padded_decoders_have_the_gradients_of_the_plain_formulas(settings, implementation):
    """Loss and all gradients, the encoder's through the first state or through every step."""

    def trained(kind):
        config = ModelConfig(
            encoder=Gru(embedding=WORDS, hidden_size=8, implementation="torch"),
            objective=SentenceDecoding(implementation=kind, **settings),
        )
        model = SentenceModel.build(config, VOCABULARY, seed=0)
        batch = Triplets(
            batch_of(*[[3, 4, 5]] * 24),
            batch_of(*random_rows(20, 9, seed=1)),
            batch_of(*random_rows(20, 9, seed=2)),
            positions=np.arange(24),
        )
        loss = model.loss(batch)
        loss.backward()
        named = {
            name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None
        }
        return {**named, "loss": loss.detach()[None]}

    check_equal(trained(implementation), trained("torch"))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("rows_per_word", [1, 2])
@pytest.mark.parametrize("is_coarse", [False, True])
def test_padded_layout_restates_sentences(directions, rows_per_word, is_coarse):
    """Place by place against loops: words, last places, tokens, sums by row."""
    rows = random_rows(30, 12)
    sentences = batch_of(*rows)
    words, tokens = np.unique(sentences.ids, return_inverse=True)
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    order = TokenOrder(sentences.lengths, starts, np.arange(12), tokens, len(words))
    cut = Cut(directions, rows_per_word, 1.0, is_coarse, has_states=True, has_gradient=True)
    layout = lay_out_padded(order, cut, None)
    assert len(layout.groups) <= padding.NUM_CUTS
    assert [group.end for group in layout.groups][-1] == len(rows)
    read = layout.rows.numpy() // rows_per_word
    ends = layout.ends.view(-1, directions)
    places = layout.tokens.view(-1, directions)
    for number, row in enumerate(rows):
        [group] = [
            group
            for group in layout.groups
            if number in layout.sentences[group.first : group.end].tolist()
        ]
        assert len(row) <= group.length
        for direction in range(directions):
            own = places[starts[number] : starts[number] + len(row), direction].tolist()
            in_time = own[::-1] if direction else own
            assert np.diff(in_time).tolist() == [group.rows] * (len(row) - 1)
            assert words[read[own]].tolist() == row
            assert int(ends[number, direction]) == in_time[-1]
    if rows_per_word == directions == 2:
        assert (layout.rows[places[:, 1]] % 2).tolist() == [1] * len(tokens)
    _check_inverse(layout.ends, layout.ending)
    _check_inverse(layout.tokens, layout.token_of)
    values = torch.randn(sum(layout.sizes), 3, dtype=torch.float64)
    expected = torch.zeros(len(words) * rows_per_word, 3, dtype=torch.float64)
    expected.index_add_(0, layout.rows[layout.tokens], values[layout.tokens])
    torch.testing.assert_close(layout.by_row(values), expected)


def _check_inverse(places, numbers):
    assert torch.equal(numbers[places], torch.arange(len(places)))
    assert int((numbers < len(places)).sum()) == len(places)


def test_frequent_words_are_summed_in_parts():
    """More places of one row than are added at once."""
    lengths = np.full(100, 3)
    order = TokenOrder(lengths, 3 * np.arange(100), np.arange(3), np.zeros(300, dtype=np.int64), 2)
    layout = lay_out_padded(order, Cut(has_gradient=True), None)
    assert len(layout.by_row.parts) == 10
    assert layout.by_row(torch.ones(300, 1)).tolist() == [[300.0], [0.0]]


def test_groups_have_the_least_cost():
    """Of all ways to cut at the quarters, restated by trying each."""
    random = np.random.default_rng(0)
    for _ in range(20):
        lengths = np.sort(random.integers(1, 40, size=16))[::-1]
        step_cost = float(random.integers(0, 9))
        ends = np.array([4, 8, 12, 16])
        found = similar_lengths(lengths, group_cost=3, step_cost=step_cost, ends=ends)

        def cost(groups, lengths=lengths, step_cost=step_cost):
            return sum(lengths[first] * (end - first + step_cost) + 3 for first, end in groups)

        ways = []
        for chosen in range(8):
            cuts = [0, *(4 * (i + 1) for i in range(3) if chosen >> i & 1), 16]
            ways.append(list(pairwise(cuts)))
        assert cost(found) == min(map(cost, ways))


CHOICES = [
    # cell, implementation, on a CPU with a compiler, without one, on a GPU
    (Cell("gru"), "auto", "compiled", "packed", "cudnn"),
    (Cell("lstm"), "auto", "compiled", "torch", "cudnn"),
    (Cell("gru", num_layers=2), "auto", "torch", "torch", "cudnn"),
    (Cell("gru", pools_states=True), "auto", "torch", "torch", "cudnn"),
    (Cell("gru", resets_before=True), "auto", "packed", "packed", "graph"),
    (Cell("gru", resets_before=True), "compiled", "packed", "packed", "packed"),
    (Cell("gru", resets_before=True), "graph", "graph", "graph", "graph"),
    (Cell("gru"), "packed", "packed", "packed", "packed"),
    (Cell("gru"), "torch", "torch", "torch", "torch"),
    (Cell("gru"), "cudnn", "cudnn", "cudnn", "cudnn"),
    (Cell("gru"), "graph", "graph", "graph", "graph"),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_one_owner_chooses_the_kernel(monkeypatch, choice):
    """By cell, setting, compiler and device."""
    cell, implementation, compiled, plain, on_gpu = choice
    for library, expected in ((object(), compiled), (None, plain)):
        monkeypatch.setattr(recurrences, "try_load", lambda name, library=library: library)
        assert chosen_kernel(cell, implementation, CPU) == expected
        with acting_as_gpu():
            assert chosen_kernel(cell, implementation, CPU) == on_gpu
    assert not is_gpu(CPU)


def test_arrays_are_copied_together(monkeypatch):
    """To a GPU in one tensor, with their shapes."""
    arrays = {
        "one": np.arange(6, dtype=np.int64).reshape(2, 3),
        "none": np.empty(0, dtype=np.int32),
    }
    copied = to_device_together(arrays, torch.device("meta"))
    assert {name: tuple(tensor.shape) for name, tensor in copied.items()} == {
        "one": (2, 3),
        "none": (0,),
    }
    here = to_device_together(arrays, None)
    assert here["one"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_training_with_padded_groups_gives_the_weights_of_the_other_kernels(tmp_path):
    """A whole run, with dropout, reports and `encode`."""
    models = {}
    for kind in ("torch", "cudnn"):
        encoder = {
            "type": "gru",
            "hidden_size": 8,
            "bidirectional": True,
            "implementation": kind,
            "embedding": {"dim": 6},
        }
        config = tiny_run(tmp_path, encoder=encoder, corpus__max_length=12)
        fit(config, tmp_path / kind, device=CPU)
        models[kind] = SentenceModel.load(tmp_path / kind)
    for name, value in models["torch"].tensors().items():
        torch.testing.assert_close(models["cudnn"].tensors()[name], value, rtol=0, atol=1e-4)
    text = ["w1 w2 w3", "w4", "w5 w6 w7 w8"]
    torch.testing.assert_close(
        *(torch.from_numpy(model.encode(text)) for model in models.values()), rtol=0, atol=1e-4
    )
