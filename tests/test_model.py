"""`SentenceModel`: losses over blocks, encoding, saving and loading."""

import shutil

import numpy as np
import pytest
import torch
from model_folders import sign

from raysent.config import Document, validate
from raysent.data.batches import Batch
from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, RaysentError
from raysent.kernels.row_adam import RowAdam, gradient_values
from raysent.models import ModelConfig, SentenceModel, load
from raysent.models import model as encoding
from raysent.models.objectives import build_objective, places_of
from raysent.models.schemes.hash import HashEncoder
from raysent.models.sentence_encoder import encode_blocks
from raysent.storage import load_tensors, read_json, save_tensors

WORDS = [f"word{number}" for number in range(40)]
VOCABULARY = Vocabulary(["<pad>", "<unk>", *WORDS])
TEXT = [
    "word1 word2 word3",
    "",
    "word4",
    "word9 nobody word9 word1 word1",
    "word2",
    "word2 word7 word8 word5",
]

GRU = {"type": "gru", "hidden_size": 6, "bidirectional": True, "embedding": {"dim": 5}}
BAG = {"type": "bag", "embedding": {"dim": 4}}
FIXED = {
    "type": "gru",
    "hidden_size": 4,
    "embedding": {"dim": 3, "vectors": "ppmi", "trained": False},
}
CONCAT = {"type": "concat", "members": {"gru": GRU, "bag": BAG, "fixed": FIXED}}


def corpus_vectors(dim):
    """The same vectors every time."""
    return np.random.default_rng(0).normal(size=(len(VOCABULARY), dim)).astype(np.float32)


def build(encoder=CONCAT, seed=0, **objective):
    """A small model."""
    values = {"encoder": encoder, "objective": {"type": "context_prediction", **objective}}
    config = validate(ModelConfig, Document(values))
    return SentenceModel.build(config, VOCABULARY, seed=seed, word_vectors=corpus_vectors)


def batch(step=0, size=12):
    """Contiguous sentences of random words."""
    random = np.random.default_rng(step)
    text = [" ".join(random.choice(WORDS, size=random.integers(1, 8))) for _ in range(size)]
    return Batch(
        VOCABULARY.ids(text, max_length=50), np.arange(size) + 100 * step, np.arange(size) // 7
    )


def train(model, steps=4):
    """Adam with a clip on each tensor; returns the weights by name."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(batch(step)).backward()
        for parameter in parameters:
            torch.nn.utils.clip_grad_norm_([parameter], 0.05)
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_vectors_are_of_both_towers_with_gradient():
    """F and g differ and have parameters of their own."""
    model = build()
    f, g = model.vectors(batch().sentences)
    assert f.shape == g.shape == (12, 6 + 4 + 4)
    assert not torch.allclose(f, g)
    assert f.requires_grad


def test_fixed_table_is_shared_and_has_no_gradient():
    """Both towers read the same matrix."""
    model = build(FIXED)
    model.loss(batch()).backward()
    assert model.f.words is model.g.words
    assert model.f.words.weight.grad is None
    assert model.tables == []


def test_loss_of_separate_members_is_the_sum_of_theirs():
    """Each block has a loss of its own, or all have one."""
    separate = build(CONCAT)
    f, g = separate.vectors(batch().sentences)
    blocks = zip(f.split([6, 4, 4], dim=1), g.split([6, 4, 4], dim=1), strict=True)
    places = places_of(batch().positions, batch().documents, torch.device("cpu"))
    objective = build_objective(separate.config.objective)
    alone = [objective.compare(tuple(block), places, slice(None)) for block in blocks]
    assert _loss(separate, f, g).item() == pytest.approx(sum(alone).item(), rel=1e-6)
    joint = build({**CONCAT, "training": "joint"})
    assert _loss(joint, f, g).item() == pytest.approx(
        objective.compare((f, g), places, slice(None)).item(), rel=1e-6
    )


def _loss(model, *vectors):
    """The loss of a batch whose vectors are known."""
    reader, known = model.step_reader(), batch()
    reader.add(known.sentences, vectors)
    return model.loss(known, reader=reader)


def test_separate_training_equals_each_member_alone():
    """With per-tensor clipping and Adam, members do not affect each other."""
    together, alone = build({"type": "concat", "members": {"bag": BAG, "gru": GRU}}), build(GRU)
    with torch.no_grad():  # the same first values
        for tower in "fg":
            for name, parameter in getattr(alone, tower).named_parameters():
                parameter.copy_(together.get_parameter(f"{tower}.members.1.{name}"))
    whole, single = train(together), train(alone)
    for name, expected in single.items():
        member = whole[f"{name[0]}.members.1.{name[2:]}"]
        torch.testing.assert_close(member, expected, rtol=0, atol=1e-6, msg=name)


def test_row_exact_training_equals_dense_training():
    """Sparse gradients and `RowAdam` on the tables, against Adam on all."""
    dense, model = train(build()), build()
    model.use_sparse_gradients()
    tables = [RowAdam(table.weight, learning_rate=1e-2) for table in model.tables]
    weights = {id(table.weight) for table in model.tables}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam([p for p in trained if id(p) not in weights], lr=1e-2)
    for step in range(4):
        packed = model.pack(batch(step).sentences)
        for adam in tables:
            adam.catch_up(packed.words)
        model.zero_grad()
        model.loss(batch(step)).backward()
        for parameter in trained:
            values = gradient_values(parameter)
            values.mul_((0.05 / (values.norm() + 1e-6)).clamp(max=1.0))
        for one in [*tables, optimizer]:
            one.step()
    for adam in tables:
        adam.flush()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), dense[name], rtol=0, atol=2e-5, msg=name)


def test_dropout_depends_on_the_generator_and_acts_in_training_only():
    """The same generator gives the same masks; evaluation has none."""
    model, sentences = build({**BAG, "dropout": 0.5}), batch().sentences
    first, second = (
        model.vectors(sentences, generator=torch.Generator().manual_seed(3))[0] for _ in range(2)
    )
    assert torch.equal(first, second)
    assert (first == 0).any()
    assert not (model.eval().vectors(sentences)[0] == 0).any()


def test_encode_gives_unit_blocks_of_both_towers():
    """Three blocks of two towers, each of length 1."""
    vectors = build().encode(TEXT)
    assert vectors.dtype == np.float32
    assert (
        vectors.shape == (len(TEXT), 28) == (len(TEXT), build().get_sentence_embedding_dimension())
    )
    for block in np.split(vectors, [6, 10, 14, 20, 24], axis=1):
        np.testing.assert_allclose(np.linalg.norm(block, axis=1), 1, atol=1e-6)


def test_encode_options_choose_towers_and_length():
    """The vector of f is the first half; the whole vector may have length 1."""
    model = build()
    both = model.encode(TEXT)
    np.testing.assert_array_equal(model.encode(TEXT, towers="f"), both[:, :14])
    whole = model.encode(TEXT, normalize_embeddings=True)
    np.testing.assert_allclose(whole, both / np.sqrt(6), atol=1e-6)


def test_encode_vector_depends_on_its_sentence_only():
    """Alone, in another order and in other blocks the vectors are the same."""
    model = build()
    expected = model.encode(TEXT)
    np.testing.assert_allclose(
        np.concatenate([model.encode([text]) for text in TEXT]), expected, atol=1e-6
    )
    np.testing.assert_allclose(model.encode(TEXT[::-1])[::-1], expected, atol=1e-6)
    np.testing.assert_allclose(model.encode(TEXT * 9, batch_size=4)[:6], expected, atol=1e-6)


@pytest.mark.parametrize("encoder", [GRU, BAG, CONCAT, {"type": "cnn", "embedding": {"dim": 4}}])
def test_encode_in_bfloat16_is_close(encoder):
    """Products in bfloat16 hardly change the direction of a block, and the result is finite float32."""
    model = build(encoder)
    exact, close = model.encode(TEXT), model.encode(TEXT, bfloat16=True)
    assert close.dtype == np.float32
    assert (exact * close).sum(axis=1).min() >= 0.9999 * (exact * exact).sum(axis=1).max()


def test_encode_in_processes_gives_the_same_vectors(monkeypatch):
    """For any kind of encoder and any number of processes."""
    monkeypatch.setattr(encoding, "_CHUNK", 4)
    model = build()
    text = TEXT * 4
    found = model.encode(
        text, num_processes=2, normalize_embeddings=True, towers="f"
    )  # options reach them too
    np.testing.assert_allclose(
        found, model.encode(text, normalize_embeddings=True, towers="f"), atol=1e-6
    )
    model.prompts, model.default_prompt_name = {"of": f"{TEXT[0]} "}, "of"
    for options in ({}, {"prompt": f"{TEXT[1]} {TEXT[1]} "}):  # once before each text
        found = model.encode(text, num_processes=2, **options)
        np.testing.assert_allclose(found, model.encode(text, **options), atol=1e-6)
    blocks = encode_blocks(
        HashEncoder(8), [TEXT, TEXT[:2]], num_processes=2, normalize_embeddings=True
    )
    expected = HashEncoder(8).encode(TEXT, normalize_embeddings=True)
    assert [block.tolist() for block in blocks] == [expected.tolist(), expected[:2].tolist()]


def test_encode_agrees_with_vectors():
    """Training and encoding compute the same vectors."""
    model = build(GRU).eval()
    f = model.vectors(VOCABULARY.ids(TEXT, max_length=50))[0].detach()
    expected = torch.nn.functional.normalize(f, dim=1).numpy()
    np.testing.assert_allclose(model.encode(TEXT, towers="f"), expected, atol=1e-6)


def test_encode_accepts_an_empty_list_and_keeps_the_mode():
    """No sentence, no row."""
    model = build()
    assert model.encode([]).shape == (0, 28)
    assert model.training


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (b"one", r"^sentences: must be a string or a sequence of strings; given bytes$"),
        (["good", 3], r"^sentences\[1\]: must be a string; given int$"),
        ([None], r"^sentences\[0\]: must be a string; given NoneType$"),
    ],
)
@pytest.mark.parametrize("encoder", [build(BAG), HashEncoder(4)], ids=["model", "hash"])
def test_encode_refuses_anything_but_a_list_of_strings(encoder, sentences, message):
    """One line with what was given."""
    with pytest.raises(RaysentError, match=message):
        encoder.encode(sentences)


def test_similarity_is_the_cosine():
    """Of every row with every row; zeros have cosine 0."""
    cosine = HashEncoder(2).similarity([[1, 0], [0, 0]], [[2, 0], [0, 3], [1, 1]])
    np.testing.assert_allclose(cosine, [[1, 0, np.sqrt(0.5)], [0, 0, 0]], atol=1e-6)


def test_loaded_model_encodes_bit_for_bit(tmp_path):
    """Also by `load`, of the folder or of its parent."""
    model = build()
    train(model)
    model.save(tmp_path / "model")
    expected = model.encode(TEXT)
    for loaded in (
        SentenceModel.load(tmp_path / "model"),
        load(tmp_path),
        load(str(tmp_path / "model")),
    ):
        np.testing.assert_array_equal(loaded.encode(TEXT), expected)


@pytest.mark.parametrize(
    "encoder", [BAG, {**CONCAT, "members": {"gru": {**GRU, "hidden_size": 8}}}]
)
def test_tensors_of_another_model_are_refused(tmp_path, encoder):
    """Other names, or other shapes."""
    build(GRU if encoder is BAG else {**CONCAT, "members": {"gru": GRU}}).save(tmp_path / "one")
    build(encoder).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "one")
    sign(tmp_path / "one")
    with pytest.raises(ArtifactError, match=r"model\.safetensors: of another model"):
        load(tmp_path / "one")


def test_json_with_an_unknown_name_is_refused(tmp_path):
    """The error gives the name."""
    build(BAG).save(tmp_path)
    about = read_json(tmp_path / "model.json")
    about["config"]["encoder"]["pole"] = 1
    sign(tmp_path, config=about["config"])
    with pytest.raises(
        ArtifactError, match=r"model\.json: changed or of another version \(.*encoder\.pole"
    ):
        load(tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    """NaN is never replaced by a number."""
    build(BAG).save(tmp_path)
    tensors = load_tensors(tmp_path / "model.safetensors")
    tensors["f.words.weight"][3, 1] = torch.nan
    save_tensors(tmp_path / "model.safetensors", tensors)
    sign(tmp_path)
    with pytest.raises(ArtifactError, match=r"'f\.words\.weight' holds values that are not finite"):
        load(tmp_path)


def test_load_error_names_the_files_it_reads(tmp_path):
    """An empty folder, and a missing one."""
    with pytest.raises(ArtifactError, match=r"holds no model\.json"):
        load(tmp_path)
    with pytest.raises(
        ArtifactError, match=r"nowhere: no such folder; name a run, a trial, a model, an ensemble, "
    ):
        load(tmp_path / "nowhere")
