"""Multi-view: pooling, agreement, generation, the stored singular vector, and runs from text to encoded views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from tiny_run import tiny_run
from toy_batches import ToyRead, build_context, toy_batch

from raysent.data.vocabulary import Sentences, Vocabulary
from raysent.errors import DataError
from raysent.kernels.packing import pack
from raysent.models import ModelConfig, SentenceModel
from raysent.models.embeddings import EmbeddingConfig, EmptyTables, Tables, WordTable
from raysent.models.encoders import build_encoder
from raysent.models.encoders.gru import Config as Gru
from raysent.models.encoders.linear import Config as Linear
from raysent.models.objectives import ContextBatches, build_objective
from raysent.models.objectives.self_agreement import Config as SelfAgreement
from raysent.models.objectives.view_agreement import Config as Agreement
from raysent.models.objectives.view_generation import Config as Generation
from raysent.models.objectives.view_generation import next_words, orthonormalize
from raysent.models.objectives.view_joint import Config as Joint
from raysent.models.postprocessing import first_singular_vector
from raysent.sweeps.space import find_space, read_space
from raysent.training.loop import fit
from raysent.training.run import RunConfig

FIXED = {"dim": 6, "vectors": "ppmi", "trained": False, "unknown": "zero"}
POOLINGS = ["max", "mean", "min", "last"]
VIEWS: dict[str, Any] = {
    "encoder": {
        "type": "gru",
        "bidirectional": True,
        "hidden_size": 8,
        "embedding": FIXED,
        "initialization": "he",
    },
    "second_encoder": {"type": "linear", "hidden_size": 8, "embedding": FIXED},
    "postprocessing": {"remove_component": True, "num_sentences": 50},
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "D": {"objective": {"type": "view_agreement", "context_size": 2}},
    "G": {"objective": {"type": "view_generation"}},
    "GD": {
        "objective": {"type": "view_joint"},
        "second_encoder": {**VIEWS["second_encoder"], "num_maps": 2},
    },
    "f1f2": {"objective": {"type": "view_agreement"}, "second_encoder": None},
    "g1g2": {
        "objective": {"type": "view_agreement"},
        "encoder": VIEWS["second_encoder"],
        "second_encoder": None,
    },
    "single f": {"objective": {"type": "self_agreement"}, "second_encoder": None},
    "single g": {
        "objective": {"type": "self_agreement"},
        "encoder": VIEWS["second_encoder"],
        "second_encoder": None,
    },
    "not invertible": {"objective": {"type": "view_generation", "beta": 0.0}},
}


def views_run(folder: Path, name: str, **changes: Any) -> RunConfig:
    """Return a run of one of the paper's rows."""
    return tiny_run(folder, **{**VIEWS, **OBJECTIVES[name], **changes})


@pytest.mark.parametrize("implementation", ["auto", "packed", "torch"])
def test_pooled_states_equal_their_restatement(implementation):
    """Maximum, mean, minimum and last of every sentence's states, in any batch and by any implementation."""
    config = Gru(
        embedding=EmbeddingConfig(dim=5), hidden_size=6, bidirectional=True, encode_pooling=POOLINGS
    )
    config = config.model_copy(update={"implementation": implementation})
    vocabulary = Vocabulary(["<pad>", "<unk>", *(f"w{number}" for number in range(2, 30))])
    encoder = build_encoder(config, Tables(vocabulary, generator=torch.Generator().manual_seed(0)))
    rows = [[3, 4, 5, 9], [7], [8, 2]]
    ids = np.array([word for row in rows for word in row], dtype=np.int32)
    with torch.no_grad():
        encoded = encoder.encoded(pack(Sentences(ids, np.array([4, 1, 2]))))
    for row, vector in zip(rows, encoded, strict=True):
        states = encoder.gru(encoder.words(torch.tensor(row))[:, None])[0][:, 0]
        last = torch.cat([states[-1, :3], states[0, 3:]])
        expected = torch.cat([states.amax(0), states.mean(0), states.amin(0), last])
        torch.testing.assert_close(vector, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("pooling", ["last", "mean", "max", "min"])
def test_linear_equals_its_restatement(pooling):
    """A map of each word, pooled; `encode` concatenates poolings, with a block for each map."""
    config = Linear(
        embedding=EmbeddingConfig(dim=5),
        hidden_size=4,
        pooling=pooling,
        encode_pooling=POOLINGS,
        num_maps=2,
    )
    vocabulary = Vocabulary(["<pad>", "<unk>", *(f"w{number}" for number in range(2, 30))])
    encoder = build_encoder(config, Tables(vocabulary, generator=torch.Generator().manual_seed(0)))
    packed = pack(Sentences(np.array([3, 4, 9, 7], dtype=np.int32), np.array([3, 1])))
    words = encoder.words.weight.detach()[[3, 4, 9]].numpy()
    mapped = [words @ weight.detach().numpy().T for weight in encoder.maps]
    by_name = {
        "last": lambda m: m[-1],
        "mean": lambda m: m.mean(0),
        "max": lambda m: m.max(0),
        "min": lambda m: m.min(0),
    }
    np.testing.assert_allclose(encoder(packed)[0].detach(), by_name[pooling](mapped[0]), atol=1e-6)
    expected = np.concatenate([by_name[name](one) for one in mapped for name in POOLINGS])
    np.testing.assert_allclose(encoder.encoded(packed)[0].detach(), expected, atol=1e-6)
    assert config.encoded_dims == (16, 16)


@pytest.mark.parametrize("shape", [(60, 25), (25, 60)])
def test_first_singular_vector_is_the_same_by_both_products(shape):
    """Ten iterations compute without the second-moment matrix, forty with it; iteration stops after convergence."""
    torch.manual_seed(0)
    vectors = torch.randn(shape, dtype=torch.float64) + 2
    start = torch.nn.functional.normalize(vectors.mean(dim=0), dim=0)
    few, many, ended = (
        first_singular_vector(vectors, start, num_iterations=count, tolerance=tolerance)
        for count, tolerance in ((10, 0.0), (40, 0.0), (4000, 1e-14))
    )
    assert torch.allclose(few, many, atol=1e-8)
    assert torch.allclose(ended, many, atol=1e-12)


@pytest.mark.parametrize("shape", [(40, 9), (9, 40)])
def test_first_singular_vector_equals_numpys(shape):
    """For both Gram matrices, if the first singular value is clearly the largest."""
    generator = torch.Generator().manual_seed(0)
    strong = torch.outer(
        torch.randn(shape[0], generator=generator), torch.randn(shape[1], generator=generator)
    )
    vectors = 3 * strong + torch.randn(shape, generator=generator)
    start = torch.nn.functional.normalize(torch.randn(shape[1], generator=generator), dim=0)
    found = first_singular_vector(vectors, start, num_iterations=5)
    expected = torch.linalg.svd(vectors, full_matrices=False).Vh[0]
    assert abs(found @ expected).item() > 0.999
    assert torch.equal(first_singular_vector(torch.zeros(shape), start, num_iterations=5), start)


@pytest.mark.parametrize("includes_itself", [True, False])
def test_agreement_equals_its_restatement(includes_itself):
    """Cosines in both directions, a softmax at the temperature, neighbours in the same document."""
    config = Agreement(
        context_size=2, temperature=0.5, power_iterations=0, includes_itself=includes_itself
    )
    read, batch = ToyRead(2), toy_batch(ContextBatches)
    loss = build_objective(config, build_context())(read, batch)
    f, g = (tower.detach().double().numpy() for tower in read(batch.sentences))
    expected = reference.view_agreement(
        f,
        g,
        batch.positions,
        batch.documents,
        context_size=2,
        temperature=0.5,
        includes_itself=includes_itself,
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_self_agreement_excludes_the_sentence_itself():
    """One view; the diagonal is no candidate; the temperature has a gradient."""
    read, batch = ToyRead(1), toy_batch(ContextBatches)
    objective = build_objective(SelfAgreement(context_size=1, power_iterations=0), build_context())
    loss = objective(read, batch)
    (f,) = (tower.detach().double().numpy() for tower in read(batch.sentences))
    expected = reference.self_agreement(f, batch.positions, batch.documents, context_size=1)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert objective.agreement.log_temperature.grad.abs() > 0


def test_agreement_ignores_the_first_singular_vector():
    """Vectors along one strong direction: the loss is that of the rest."""
    objective = build_objective(Agreement(power_iterations=30, context_size=1), build_context())
    vectors = torch.randn(12, 8, generator=torch.Generator().manual_seed(3))
    strong = torch.zeros(8)
    strong[0] = 100.0
    vectors -= vectors.mean(dim=0)
    vectors[:, 0] = 0.0
    unit = objective.agreement.unit(vectors + strong)
    assert unit[:, 0].abs().max() < 0.05
    torch.testing.assert_close(
        unit, torch.nn.functional.normalize(vectors, dim=1), atol=0.05, rtol=0
    )


def _generation(**changes: Any):
    """An objective over 30 words that occur equally often, its read function, its map and its words."""
    given = build_context(word_dim=5)
    table = WordTable(given.words.weight.detach().clone(), trained=False)
    weight = torch.nn.Parameter(torch.randn(8, 5, generator=torch.Generator().manual_seed(4)))
    counts = torch.ones(30)
    values = {
        **vars(given),
        "words": table,
        "second_parameters": (weight,),
        "word_counts": lambda: counts,
    }
    return (
        build_objective(Generation(**changes), type(given)(**values)),
        ToyRead(2),
        weight,
        table.weight,
    )


def test_generation_equals_its_restatement():
    """Every word of the next sentence against the negatives of its sentence."""
    objective, read, weight, table = _generation(num_negatives=3)
    batch = toy_batch(ContextBatches)
    drawn = objective._draw(12, torch.Generator().manual_seed(7))
    loss = objective(read, batch, generator=torch.Generator().manual_seed(7))
    f = read(batch.sentences)[0].detach().double().numpy()
    rows = np.split(batch.sentences.ids, np.cumsum(batch.sentences.lengths)[:-1])
    expected = reference.view_generation(
        f,
        rows,
        batch.documents,
        drawn,
        weight.detach().double().numpy(),
        table.detach().double().numpy(),
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert drawn.min() >= 2


def test_generation_of_unknown_words_alone_is_refused():
    """No word has a probability, from which negatives are drawn."""
    given = build_context(word_dim=5)
    values = {
        **vars(given),
        "second_parameters": (torch.zeros(8, 5),),
        "word_counts": lambda: torch.tensor([0, 9, 0]),
    }
    with pytest.raises(
        DataError, match="^corpus: must have words with a vector; given unknown words alone; name "
    ):
        build_objective(Generation(), type(given)(**values))


def test_joint_loss_is_the_sum_of_both_as_published():
    """Agreement as the paper's sum over neighbours, 2 c + 1 times as large as a mean, beside the generation loss."""
    given = build_context(word_dim=5)
    table = WordTable(given.words.weight.detach().clone(), trained=False)
    weight = torch.nn.Parameter(torch.randn(8, 5, generator=torch.Generator().manual_seed(4)))
    values = {
        **vars(given),
        "words": table,
        "second_parameters": (weight,),
        "word_counts": lambda: torch.ones(30),
    }
    config = Joint(
        agreement=Agreement(power_iterations=0, context_size=3),
        generation=Generation(num_negatives=3),
    )
    objective, read, batch = (
        build_objective(config, type(given)(**values)),
        ToyRead(2),
        toy_batch(ContextBatches),
    )
    loss = objective(read, batch, generator=torch.Generator().manual_seed(7)).item()
    drawn = objective.generation._draw(12, torch.Generator().manual_seed(7))
    f, g = (tower.detach().double().numpy() for tower in read(batch.sentences))
    rows = np.split(batch.sentences.ids, np.cumsum(batch.sentences.lengths)[:-1])
    words = (weight.detach().double().numpy(), table.weight.detach().double().numpy())
    agreement = reference.view_agreement(f, g, batch.positions, batch.documents, context_size=3)
    generation = reference.view_generation(f, rows, batch.documents, drawn, *words)
    assert loss == pytest.approx(agreement + generation, rel=1e-5)


def test_next_words_are_of_the_same_document():
    """The last sentence of a document has none."""
    batch = toy_batch(ContextBatches)
    rows, words = next_words(batch)
    assert set(rows.tolist()) == {0, 1, 2, 3, 4, 6, 7, 8, 9, 10}
    assert len(words) == batch.sentences.lengths[[1, 2, 3, 4, 5, 7, 8, 9, 10, 11]].sum()


@pytest.mark.parametrize("shape", [(20, 6), (6, 20)])
def test_orthonormalize_makes_the_smaller_side_orthonormal(shape):
    """Many of Parseval's steps."""
    weight = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 10)
    for _ in range(3000):
        orthonormalize(weight, beta=0.01)
    gram = weight.T @ weight if shape[0] > shape[1] else weight @ weight.T
    torch.testing.assert_close(gram.detach(), torch.eye(min(shape)), atol=1e-3, rtol=0)


def test_every_searched_beta_is_stable_from_the_start_of_the_published_size():
    """2,048 units and words of 300 numbers: no step makes the decoder larger than it starts."""
    config = Linear(embedding=EmbeddingConfig(dim=300), hidden_size=2048)
    tables = EmptyTables(Vocabulary(["<pad>", "<unk>"]), generator=torch.Generator().manual_seed(0))
    start = build_encoder(config, tables).maps[0].detach()
    for beta in read_space(find_space("multiview_generative")).domains["objective.beta"].options:
        weight = torch.nn.Parameter(start.clone())
        for _ in range(5):
            orthonormalize(weight, beta=beta)
        assert weight.norm() <= start.norm()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_views_train_resume_save_and_encode(tmp_path: Path, name: str):
    """Every row of the ablation: a stopped and resumed run gives the same model, and a loaded model the same vectors."""
    config = views_run(tmp_path, name, training__max_steps=6, training__num_reports=3)
    whole = fit(config, tmp_path / "whole")
    assert whole.status == "finished"
    fit(config, tmp_path / "halves", report=lambda report: report.index != 1)
    fit(config, tmp_path / "halves")
    one, two = (SentenceModel.load(tmp_path / folder) for folder in ("whole", "halves"))
    sentences = ["w1 w2 w3", "w4", ""]
    assert np.array_equal(one.encode(sentences), two.encode(sentences))
    assert one.encode(sentences).shape == (3, one.get_sentence_embedding_dimension())
    assert np.allclose(one.encode(["w4"]), one.encode(sentences)[1:2], atol=1e-6)


def test_average_of_views_is_the_mean_of_the_unit_blocks(tmp_path: Path):
    """Of three views, f, g and the inverse decoder; each without its first singular vector."""
    changes = {
        "postprocessing": {"remove_component": True, "num_sentences": 50, "combine": "average"}
    }
    fit(views_run(tmp_path, "GD", training__max_steps=3, **changes), tmp_path / "average")
    fit(views_run(tmp_path, "GD", training__max_steps=3), tmp_path / "concat")
    average, concat = (SentenceModel.load(tmp_path / folder) for folder in ("average", "concat"))
    blocks = concat.encode(["w1 w2 w3"]).reshape(3, 8)
    np.testing.assert_allclose(average.encode(["w1 w2 w3"])[0], blocks.mean(axis=0), atol=1e-6)
    for block, component in zip(blocks, concat.postprocessing.components, strict=True):
        assert abs(block @ component.numpy()) < 1e-5


def test_number_of_parameters_is_that_of_the_paper():
    """F of 1024 units a direction, g of 2048 x 300, without words: 8.76 million."""
    words = EmbeddingConfig(dim=300, vectors="ppmi", trained=False)
    config = ModelConfig(
        encoder=Gru(hidden_size=2048, bidirectional=True, embedding=words, initialization="he"),
        second_encoder=Linear(hidden_size=2048, embedding=words),
        objective=Agreement(),
    )
    vocabulary = Vocabulary(["<pad>", "<unk>", "word"])
    model = SentenceModel.build(
        config, vocabulary, seed=0, word_vectors=lambda dim: np.zeros((3, dim), dtype=np.float32)
    )
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert count == 6 * 1024 * (300 + 1024 + 1) + 2048 * 300 + 1
    assert round(count / 1e6, 2) == 8.76


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"second_encoder": None},
            "second_encoder must be of type linear with num_maps: 1 and the embedding of encod",
        ),
        (
            {"encoder": {**VIEWS["encoder"], "embedding": {"dim": 6}}},
            "encoder.embedding.trained must be false with obj",
        ),
        (
            {
                "postprocessing": {"combine": "average"},
                "encoder": {**VIEWS["encoder"], "encode_pooling": POOLINGS},
            },
            "postprocessing.combine must be concat with blocks of several sizes",
        ),
        (
            {"encoder": {**VIEWS["encoder"], "pooling": "max", "implementation": "packed"}},
            "pooling must be last with",
        ),
    ],
)
def test_view_mistakes_raise_one_clear_error(tmp_path: Path, changes: dict[str, Any], message: str):
    """What must hold, and what was given."""
    with pytest.raises(ValueError, match=message):
        views_run(tmp_path, "G", **changes)
