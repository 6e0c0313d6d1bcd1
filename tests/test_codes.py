"""Binary codes: contracts over all methods, gradients and losses, packed bits, and runs on fixed encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import bag, hamming, threshold_bits
from tiny_run import tiny_run, write_corpus
from toy_batches import ToyRead, build_context, toy_batch

from raysent.data.pairs import Pairs
from raysent.data.vocabulary import Vocabulary
from raysent.errors import ConfigError, DataError
from raysent.models import SentenceModel, load
from raysent.models.codes import CODES, build_code, pack_bits, straight_through
from raysent.models.codes.autoencoder import Config as Autoencoder
from raysent.models.codes.principal_components import Config as PrincipalComponents
from raysent.models.codes.random_projection import Config as RandomProjection
from raysent.models.codes.threshold import Config as Threshold
from raysent.models.config import ModelConfig
from raysent.models.objectives import ContextBatches, PairBatches, build_objective
from raysent.models.objectives.reconstruction import Config as Reconstruction
from raysent.models.objectives.reconstruction import related_auc, similarity_kept
from raysent.training.loop import fit

DIM = 10
# Every configuration that the methods give as examples, so that a method from another package is tested too.
EXAMPLES = {
    f"{name}-{number}": example
    for name, module in CODES.items()
    for number, example in enumerate(module.Config.examples())
}


def generator(seed: int = 0) -> torch.Generator:
    """A source of random numbers."""
    return torch.Generator().manual_seed(seed)


def sample(rows: int = 200) -> torch.Tensor:
    """Vectors with a mean and with directions of different spread."""
    return torch.randn(rows, DIM, generator=generator()) * torch.arange(1, DIM + 1) + 0.5


@pytest.mark.parametrize("name", EXAMPLES)
def test_code_gives_zeros_and_ones_of_the_number_it_declares(name):
    """For one vector as for many; no vector changes another's code."""
    config = EXAMPLES[name]
    code = build_code(config, dim=DIM, generator=generator())
    code.fit(sample())
    bits = code(sample(9))
    assert bits.shape == (9, config.num_bits(DIM))
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(code(sample(9)[3:4]), bits[3:4])


def test_thresholds_are_those_of_paper_code_and_mean():
    """0, 0.07 and each number's mean."""
    vector = torch.tensor([[0.0, 0.01, 0.05, 0.08] + [1.0] * 6])
    for config, expected in (
        (Threshold(), [0, 1, 1, 1]),
        (Threshold(variant="authors"), [0, 0, 0, 1]),
    ):
        assert (
            build_code(config, dim=DIM, generator=generator())(vector)[0, :4].tolist() == expected
        )
    code = build_code(Threshold(threshold="mean"), dim=DIM, generator=generator())
    code.fit(sample())
    torch.testing.assert_close(code(sample()), (sample() > sample().mean(dim=0)).float())


def test_a_threshold_of_the_text_is_of_vectors_as_they_are():
    """Equal to a restatement on sums of word vectors; of 4,096 numbers of unit length none is above 0.1."""
    dim, threshold, words = 4096, 0.1, ["<pad>", "<unk>", "a", "dog", "barks"]
    table = np.random.default_rng(0).normal(size=(len(words), dim)).astype(np.float32)
    bits = {}
    for unit_length in (False, True):
        config = ModelConfig.model_validate(
            {
                "encoder": {"type": "bag", "pooling": "sum", "embedding": {"dim": dim, "vectors": "ppmi"}},
                "postprocessing": {"unit_length": unit_length},
                "code": {"type": "threshold", "threshold": threshold},
                "objective": {"type": "reconstruction"},
            }
        )  # fmt: skip
        model = SentenceModel.build(
            config, Vocabulary(words), seed=0, max_length=9, word_vectors=lambda _: table
        )
        bits[unit_length] = model.encode(["a dog", "dog barks a"])
    vectors = np.stack([bag(table[ids]) for ids in ([2, 3], [3, 4, 2])])
    np.testing.assert_array_equal(bits[False], threshold_bits(vectors, threshold))
    assert 0.4 < bits[False].mean() < 0.6
    assert bits[True].mean() < 1e-3


def test_random_projections_are_those_of_paper_and_code():
    """Uniform within 1 / sqrt(bits) without centring; normal, centred by the sample."""
    paper = build_code(RandomProjection(bits=400), dim=DIM, generator=generator())
    assert 0.049 < paper.weight.abs().max() <= 0.05
    paper.fit(sample())
    assert not paper.center.any()
    authors = build_code(
        RandomProjection(bits=400, variant="authors"), dim=DIM, generator=generator()
    )
    authors.fit(sample())
    assert authors.weight.std() == pytest.approx(1.0, abs=0.05)
    torch.testing.assert_close(
        authors.logits(sample()), (sample() - sample().mean(dim=0)) @ authors.weight.T
    )


def test_rotation_evens_out_variance_by_the_power_that_is_named():
    """Directions are orthogonal in groups of the vector's size; a sample's variance along them is a power of its own."""
    plain = build_code(
        RandomProjection(bits=15, distribution="rotation"), dim=DIM, generator=generator()
    )
    plain.fit(sample())
    torch.testing.assert_close(
        plain.weight[:DIM] @ plain.weight[:DIM].T, torch.eye(DIM), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        plain.weight[DIM:] @ plain.weight[DIM:].T, torch.eye(5), atol=1e-5, rtol=0
    )
    expected = torch.linalg.eigvalsh(sample().T.cov())
    for power in (0.5, 1.0):
        config = RandomProjection(distribution="rotation", whiten=power)
        code = build_code(config, dim=DIM, generator=generator())
        code.fit(sample())
        found = torch.linalg.eigvalsh(code.logits(sample()).T.cov())
        torch.testing.assert_close(
            found, (expected ** (1 - power)).sort().values, rtol=1e-3, atol=1e-4
        )
    with pytest.raises(
        ValueError, match=r"whiten must be 0 for distribution uniform; given 0\.5; name rotation"
    ):
        RandomProjection(whiten=0.5)


def test_principal_components_are_those_of_the_singular_value_decomposition():
    """Up to sign, of centred vectors; too few rows and too many bits raise an error."""
    code = build_code(PrincipalComponents(bits=4), dim=DIM, generator=generator())
    code.fit(sample())
    expected = np.linalg.svd((sample() - sample().mean(dim=0)).numpy(), full_matrices=False)[2][:4]
    np.testing.assert_allclose(np.abs((code.weight.numpy() * expected).sum(axis=1)), 1, atol=1e-4)
    with pytest.raises(
        DataError, match="need as many sentences as bits, 4; given 3; raise postprocessing"
    ):
        code.fit(sample(3))
    with pytest.raises(
        ConfigError, match=r"code\.bits: must be at most 10, the size of the vectors"
    ):
        build_code(PrincipalComponents(bits=11), dim=DIM, generator=generator())


def test_straight_through_is_exactly_binary_with_the_logits_gradient():
    """Forward 0 or 1, backward the identity."""
    logits = torch.randn(50, 7, generator=generator(), requires_grad=True)
    bits = straight_through(logits)
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    (bits * torch.arange(7.0)).sum().backward()
    torch.testing.assert_close(logits.grad, torch.arange(7.0).expand(50, 7))


def test_stochastic_thresholds_act_in_training_only():
    """In training a bit is 1 with its probability; otherwise the threshold is one half."""
    code = build_code(
        Autoencoder(bits=5, threshold="stochastic", sharpness=1.5), dim=DIM, generator=generator()
    )
    vectors = sample(1).expand(4000, DIM) / 20
    parts = code.binarize(vectors, generator=generator(1)).mean(dim=0)
    torch.testing.assert_close(
        parts, torch.sigmoid(1.5 * code.logits(vectors[:1]))[0], atol=0.03, rtol=0
    )
    code.eval()
    torch.testing.assert_close(code.binarize(vectors), code(vectors))


def triples(kind, batch, rows, source):
    """Return the compared pairs (a, b), (x, c) of a batch, for a source of random numbers."""
    if kind == "random":
        first, third = (torch.randperm(rows, generator=source).tolist() for _ in range(2))
        return [((i, first[i]), (i, third[i])) for i in range(rows)]
    if isinstance(batch, Pairs):
        related = [(i, i + len(batch)) for i in range(len(batch))]
    else:  # the next sentence of the same document
        related = [
            (i, i + 1) for i in range(rows - 1) if batch.documents[i] == batch.documents[i + 1]
        ]
    if kind == "disjoint":
        return [(pair, related[other]) for pair, other in zip(related, torch.randperm(len(related), generator=source).tolist(), strict=True)]  # fmt: skip
    drawn = torch.randint(0, rows, (len(related),), generator=source).tolist()
    return [(pair, (pair[0], other)) for pair, other in zip(related, drawn, strict=True)]


@pytest.mark.parametrize("distance", ["hamming", "normalized_hamming", "l2"])
@pytest.mark.parametrize(("power", "kind"), [(1, "related"), (2, "disjoint"), (1, "random")])
@pytest.mark.parametrize("text", [ContextBatches, PairBatches])
@pytest.mark.parametrize("scaled", [True, False])
def test_reconstruction_equals_its_restatement(distance, power, kind, text, scaled):
    """Squared error over the variance, of a decoder of +-1 bits, and the hinge of related pairs with its sign."""
    config = Reconstruction(
        lambda_sp=0.3, sp_distance=distance, sp_power=power, sp_triples=kind, scaled=scaled
    )
    given, read, batch = build_context(), ToyRead(1), toy_batch(text)
    objective = build_objective(config, given)
    vectors = torch.cat([read(part)[0] for part in batch.parts]).detach()
    objective.fit(vectors)
    loss = objective(read, batch, generator=generator(5)).item()
    h = vectors.double().numpy()
    bits = given.code(vectors).double().numpy()
    mean, variance = (h.mean(axis=0), h.var(axis=0).mean()) if scaled else (0.0, 1.0)
    weight, bias = (
        value.detach().double().numpy()
        for value in (objective.decoder.weight, objective.decoder.bias)
    )
    restored = mean + np.sqrt(variance) * ((2 * bits - 1) @ weight.T + bias)
    unit = h / np.linalg.norm(h, axis=1, keepdims=True)
    scale = {
        "hamming": lambda d: d,
        "normalized_hamming": lambda d: d / 12,
        "l2": lambda d: np.sqrt(d + 1e-8),
    }
    hinges = []
    for (a, b), (x, c) in triples(kind, batch, len(h), generator(5)):
        sign = 1 if unit[a] @ unit[b] >= unit[x] @ unit[c] else -1
        near, far = (scale[distance](np.abs(bits[i] - bits[j]).sum()) for i, j in ((a, b), (x, c)))
        hinges.append(max(0, sign * (near - far)) ** power)
    expected = ((h - restored) ** 2).mean() / variance + 0.3 * np.mean(hinges)
    assert loss == pytest.approx(expected, rel=1e-4)
    r2, rows = objective.held_out_totals(read, batch)["reconstruction_r2"]
    assert r2 / rows == pytest.approx(
        1 - ((h - restored) ** 2).mean() / variance, rel=1e-4, abs=1e-5
    )


def test_variants_of_reconstruction_are_those_of_paper_and_code():
    """Scaled errors and related triples; raw errors and two related pairs, squared, of tiny weight."""
    paper, authors = Reconstruction(), Reconstruction(variant="authors")
    assert (paper.is_scaled, paper.triples, paper.weight_sp, paper.power) == (
        True,
        "related",
        0.8,
        1,
    )
    assert (authors.is_scaled, authors.triples, authors.weight_sp, authors.power) == (
        False,
        "disjoint",
        1e-5,
        2,
    )


def test_bits_of_a_new_autoencoder_are_balanced_and_not_coin_flips():
    """Standardized vectors: no bit is almost always the same, and stochastic bits mostly equal the others."""
    vectors = torch.nn.functional.normalize(sample(2000) + 5, dim=1)
    agreement = {}
    for variant in ("paper", "authors"):
        config = Autoencoder(bits=DIM, threshold="stochastic", variant=variant)
        code = build_code(config, dim=DIM, generator=generator())
        code.fit(vectors)
        agreement[variant] = (
            (code.binarize(vectors, generator=generator(1)) == code(vectors)).float().mean().item()
        )
        if variant == "paper":
            assert 0.2 < code(vectors).mean(dim=0).min() < code(vectors).mean(dim=0).max() < 0.8
    assert agreement["paper"] > 0.75
    assert agreement["authors"] < 0.65


def test_related_auc_is_the_part_of_comparisons_won():
    """Against every other related sentence, ties count one half; chance without related sentences."""
    bits = (torch.rand(12, 5, generator=generator(3)) > 0.5).float()
    first, second = torch.arange(6), torch.arange(6, 12)
    wins = []
    for i in range(6):
        for j in range(6):
            if i != j:
                own, other = (float((bits[i] != bits[6 + k]).sum()) for k in (i, j))
                wins.append(1.0 if own < other else 0.5 if own == other else 0.0)
    assert related_auc(bits, first, second) == pytest.approx(np.mean(wins))
    assert related_auc(bits, first[:0], second[:0]) == 0.5


def test_semantic_term_has_the_sign_of_all_four_orders():
    """Zero if codes have the order of the vectors, positive if not, in both orders."""
    objective = build_objective(Reconstruction(sp_triples="random"), build_context(dim=2))
    none = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    right = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    wrong = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    costs = [
        [objective._semantic(vectors, bits, none, generator(seed)).item() for seed in range(20)]
        for bits in (right, wrong)
    ]
    assert max(costs[0]) == 0
    assert max(costs[1]) > 0


@pytest.mark.parametrize("num_rows", [0, 1, 2])
@pytest.mark.filterwarnings("error")
def test_similarity_kept_of_two_rows_is_nothing_and_says_nothing(num_rows):
    """As of a table of fifteen rows, of which two validate."""
    vectors, bits = torch.eye(3)[:num_rows], torch.ones(num_rows, 4)
    assert similarity_kept(vectors, bits) == 0.0


def test_similarity_kept_is_the_correlation_over_all_pairs():
    """Of cosines with minus Hamming distances; 0 for codes that never differ."""
    vectors, bits = sample(8), (sample(8) > 0).float()
    unit = torch.nn.functional.normalize(vectors, dim=1)
    pairs = [(i, j) for i in range(8) for j in range(i)]
    cosines = [float(unit[i] @ unit[j]) for i, j in pairs]
    distances = [float((bits[i] != bits[j]).sum()) for i, j in pairs]
    assert similarity_kept(vectors, bits) == pytest.approx(
        -np.corrcoef(cosines, distances)[0, 1], abs=1e-5
    )
    assert similarity_kept(vectors, torch.ones(8, 3)) == 0


def test_first_bit_is_the_highest_of_the_first_byte():
    """The layout that sentence-transformers, FAISS and usearch share."""
    assert pack_bits([[1, 0, 0, 0, 0, 0, 0, 0, 1]]).tolist() == [[128, 128]]
    with pytest.raises(DataError, match="must be bits, 0 or 1"):
        pack_bits([[0.5]])
    bits = np.random.default_rng(0).integers(0, 2, size=(9, 13))
    assert np.array_equal(np.unpackbits(pack_bits(bits.astype(np.float32)), axis=1, count=13), bits)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained model of two towers, without its first singular vectors."""
    folder = tmp_path_factory.mktemp("source")
    changes = {
        "postprocessing": {"remove_component": True, "num_sentences": 60},
        "training__max_steps": 6,
    }
    fit(tiny_run(folder, **changes), folder / "run")
    return folder


def test_sentences_that_all_stand_alone_train_a_code(tmp_path: Path) -> None:
    """None has a related one: the ranking of related sentences is chance, and the run goes on."""
    write_corpus(tmp_path, num_documents=80, num_sentences=1)
    encoder = {"type": "bag", "embedding": {"dim": 6}}
    code = Autoencoder(bits=8).model_dump(mode="json")
    ended = fit(
        tiny_run(tmp_path, encoder=encoder, code=code, objective={"type": "reconstruction"}),
        tmp_path / "run",
    )
    assert (ended.status, ended.metrics["related_auc"]) == ("finished", 0.5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_code_of_a_trained_model_trains_resumes_and_encodes(
    source: Path, tmp_path: Path, name: str
):
    """A stopped and resumed run gives the same codes; the encoder does not change; packed bits are the same bits."""
    config = tiny_run(
        source,
        initial=str(source / "run"),
        encoder=None,
        code=EXAMPLES[name].model_dump(mode="json"),
        objective={"type": "reconstruction"},
        postprocessing={"remove_component": True, "num_sentences": 60},
        training__max_steps=9,
        training__num_reports=3,
    )
    whole = fit(config, tmp_path / "whole")
    assert {"related_auc", "reconstruction_mse", "reconstruction_r2", "similarity_kept"} <= set(
        whole.metrics
    )
    fit(config, tmp_path / "halves", report=lambda report: report.index != 1)
    fit(config, tmp_path / "halves")
    one, two = (SentenceModel.load(tmp_path / folder) for folder in ("whole", "halves"))
    sentences = ["w1 w2 w3", "w5", "", "w1 w9"]
    bits = one.encode(sentences)
    assert np.array_equal(bits, two.encode(sentences))
    assert set(np.unique(bits)) <= {0.0, 1.0}
    assert bits.shape == (4, one.get_sentence_embedding_dimension()) == (4, one.num_bits)
    assert np.array_equal(one.encode_packed(sentences), pack_bits(bits))
    before, after = SentenceModel.load(source / "run"), dict(one.named_parameters())
    for tensor, value in before.kept_tensors().items():
        if tensor.startswith(("f.", "g.")):
            assert torch.equal(after[tensor], value), tensor
    distances = hamming(pack_bits(bits), pack_bits(bits))
    assert np.array_equal(one.similarity(bits, bits), -distances)
    assert np.array_equal(
        one.similarity_pairwise(bits, bits[::-1]), -np.diagonal(distances[:, ::-1])
    )


def test_threshold_code_is_trained_with_the_encoder(tmp_path: Path):
    """The end-to-end layer: context prediction on signs, with a gradient that reaches the words."""
    values = {
        "code": {"type": "threshold"},
        "encoder": {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
    }
    whole = fit(
        tiny_run(tmp_path, **values, training__max_steps=30, training__epochs=20.0),
        tmp_path / "run",
    )
    first = fit(
        tiny_run(tmp_path, **values, training__max_steps=1, training__num_reports=1),
        tmp_path / "first",
    )
    assert whole.metrics["context_nll"] < first.metrics["context_nll"]
    bits = load(tmp_path / "run").encode(["w1 w2", "w7"])
    assert bits.shape == (2, 16)
    assert set(np.unique(bits)) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objective": {"type": "reconstruction"}},
            "code.type must be set for objective reconstruction",
        ),
        (
            {"code": {"type": "autoencoder"}},
            "code must be of type threshold, at 0, with objective context_prediction",
        ),
        ({"code": {"type": "threshold", "threshold": 0.1}}, "code must be of type threshold, at 0"),
    ],
)
def test_code_mistakes_raise_one_clear_error(tmp_path: Path, changes: dict[str, Any], message: str):
    """What must hold, and the nearest fix."""
    with pytest.raises(ValueError, match=message):
        tiny_run(tmp_path, **changes)


def test_encode_writes_packed_codes_from_the_command_line(source: Path, tmp_path: Path, raysent):
    """256 bytes for 2048 bits; of a model without a code the signs of its vectors."""
    code = {"type": "autoencoder", "bits": 2048}
    changes = {
        "initial": str(source / "run"),
        "encoder": None,
        "objective": {"type": "reconstruction"},
        "code": code,
    }
    fit(
        tiny_run(source, **changes, training__max_steps=1, training__num_reports=1),
        tmp_path / "run",
    )
    (tmp_path / "text").write_text("w1 w2\nw3\n")
    arguments = (tmp_path / "text", "-o", tmp_path / "codes.npy", "--set", "precision=ubinary")
    ran = raysent("encode", tmp_path / "run", *arguments)
    assert (ran.code, "2 sentences, 256 bytes each" in ran.err) == (0, True)
    codes = np.load(tmp_path / "codes.npy")
    assert (codes.dtype, codes.shape) == (np.uint8, (2, 256))
    assert np.array_equal(codes, load(tmp_path / "run").encode_packed(["w1 w2", "w3"]))
    assert raysent("encode", source / "run", *arguments).code == 0
    assert np.array_equal(
        np.load(tmp_path / "codes.npy"),
        load(source / "run").encode(["w1 w2", "w3"], precision="ubinary"),
    )
    ran = raysent("encode", tmp_path / "run", *arguments[:-1], "precision=int8")
    assert (
        ran.code,
        "must be float32 or ubinary for a model with a code; given int8" in ran.err,
    ) == (2, True)
