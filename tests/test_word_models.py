"""Models made from word vectors: averages, expansion by a linear map, and the bag of a model's words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command import CommandLine
from tiny_run import tiny_run

import raysent
from raysent.data.vocabulary import Vocabulary, WordVectors, fit_linear_map, new_words, shared_words
from raysent.errors import DataError, RaysentError
from raysent.models import ModelConfig, SentenceModel, average_of_words, bag_of_words, expand, load
from raysent.training.loop import fit

VECTORS = WordVectors(["the", "cat", "sat"], np.array([[1, 2], [3, -1], [0, 5]], dtype=np.float32))


def write_files(folder: Path) -> None:
    """Write the vectors, counts and some sentences."""
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(*VECTORS, strict=True)]
    (folder / "vectors.txt").write_text("".join(lines))
    (folder / "counts.txt").write_text("the 90\ncat 9\nsat 1\n")
    (folder / "zeros.txt").write_text("the 0\n")
    (folder / "text.txt").write_text("the cat\ncat sat\nthe the sat\n")


@pytest.mark.parametrize("weighting", ["uniform", "sif"])
def test_average_equals_its_restatement(weighting):
    """Each word's vector times a / (a + p), summed over the sentence, of unit length; unknown words add nothing."""
    model = average_of_words(
        VECTORS, weighting=weighting, counts={"the": 90, "cat": 9, "sat": 1}, sif_weight=0.1
    )
    shares = np.array([0.9, 0.09, 0.01])
    weights = 0.1 / (0.1 + shares) if weighting == "sif" else np.ones(3)
    expected = weights[0] * VECTORS.vectors[0] + weights[1] * VECTORS.vectors[1]
    np.testing.assert_allclose(
        model.encode(["the cat dog"])[0], expected / np.linalg.norm(expected), atol=1e-6
    )


def test_average_removes_the_first_singular_vector(tmp_path):
    """The mean of a sentence loses its projection on the first singular vector of the text's means; the model loads and encodes."""
    write_files(tmp_path)
    raysent.average(
        tmp_path / "vectors.txt", output=tmp_path / "model", remove_component=tmp_path / "text.txt"
    )
    v = VECTORS.vectors
    means = np.stack([(v[0] + v[1]) / 2, (v[1] + v[2]) / 2, (2 * v[0] + v[2]) / 3])
    top = np.linalg.svd(means, full_matrices=False)[2][0]
    expected = means[0] - (means[0] @ top) * top
    vector = load(tmp_path / "model").encode(["the cat"])[0]
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weighting": "sif"},
            "counts: must name a file of 'word count' lines for weighting sif; given none",
        ),
        (
            {"weighting": "sif", "counts": "zeros.txt"},
            "counts: must name a file of 'word count' lines for weighting sif",
        ),
        ({"weighting": "tfidf"}, "weighting: must be uniform or sif; given 'tfidf'"),
        (
            {"weighting": "sif", "counts": "text.txt"},
            "text.txt:1: must be a word and a whole number; given 'the",
        ),
        ({"remove_component": "nowhere.txt"}, "nowhere.txt: no such file"),
    ],
)
def test_average_mistakes_raise_one_clear_error(tmp_path, monkeypatch, options, message):
    """No model is written."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RaysentError) as found:
        raysent.average("vectors.txt", output="model", **options)
    assert message in str(found.value)
    assert not (tmp_path / "model").exists()


CONCAT = {
    "type": "concat",
    "members": {
        "bi": {"type": "gru", "bidirectional": True, "hidden_size": 6, "embedding": {"dim": 5}},
        "bag": {"type": "bag", "embedding": {"dim": 4}},
    },
}


def pretrained(seed=0, dim=3):
    """Vectors for the words w0 to w39 of the tiny corpus, and for twelve others, one of them a phrase."""
    words = [
        *(f"w{number}" for number in range(40)),
        *(f"new{number}" for number in range(11)),
        "new_phrase",
    ]
    return WordVectors(words, np.random.default_rng(seed).normal(size=(52, dim)).astype(np.float32))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a trained model of two towers with two word tables each."""
    folder = tmp_path_factory.mktemp("trained")
    fit(tiny_run(folder, encoder=CONCAT, training__max_steps=3), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("has_intercept", [True, False])
def test_linear_map_is_the_least_squares_solution(has_intercept):
    """An exact linear map is recovered."""
    generator = np.random.default_rng(0)
    x, weight, intercept = (
        generator.normal(size=(50, 4)),
        generator.normal(size=(4, 3)),
        generator.normal(size=3),
    )
    y = x @ weight + has_intercept * intercept
    found = fit_linear_map(x.astype(np.float32), y.astype(np.float32), has_intercept=has_intercept)
    np.testing.assert_allclose(found.weight, weight, atol=1e-5)
    np.testing.assert_allclose(found.intercept, has_intercept * intercept, atol=1e-5)
    np.testing.assert_allclose(found(x.astype(np.float32)), y, atol=1e-4)


def test_new_words_exclude_phrases_and_unreachable_words():
    """Words of the vocabulary, phrases, words with white space, and capitalized ones if words are lower-cased."""
    vectors = WordVectors(
        ["cat", "Dog", "bird", "a_b", "fish\r"], np.ones((5, 2), dtype=np.float32)
    )
    words = ["<pad>", "<unk>", "cat", "fish"]
    assert new_words(Vocabulary(words), vectors).tolist() == [1, 2]
    assert new_words(Vocabulary(words, lowercase=True), vectors).tolist() == [2]
    ids, rows = shared_words(Vocabulary(words), vectors)
    assert (ids.tolist(), rows.tolist()) == ([2], [0])


def test_expansion_keeps_the_vectors_of_known_words(trained):
    """Sentences of known words have bit-identical vectors, in both towers and blocks."""
    model = SentenceModel.load(trained)
    expanded = expand(model, pretrained())
    assert len(expanded.vocabulary) == len(model.vocabulary) + 11
    known = ["w1 w2 w3", "w39", "nobody"]
    assert np.array_equal(model.encode(known), expanded.encode(known))
    assert not np.array_equal(model.encode(["new1 w2"]), expanded.encode(["new1 w2"]))


def test_expansion_fits_a_map_for_every_table(trained, tmp_path):
    """A new word's row is the image of its pretrained vector, in each table; the model saves and loads."""
    model, vectors = SentenceModel.load(trained), pretrained()
    expanded = expand(model, vectors)
    ids, rows = shared_words(model.vocabulary, vectors)
    for old, new in zip(model.tables, expanded.tables, strict=True):
        linear = fit_linear_map(vectors.vectors[rows], old.weight.detach()[ids].numpy())
        torch.testing.assert_close(
            new.weight[-11:].detach(), torch.from_numpy(linear(vectors.vectors[40:51]))
        )
    expanded.save(tmp_path / "expanded")
    assert np.array_equal(
        load(tmp_path / "expanded").encode(["new3 w1"]), expanded.encode(["new3 w1"])
    )


def test_expansion_with_too_few_shared_words_raises_one_clear_error(trained):
    """The map would not be determined."""
    vectors = WordVectors(["w1", "w2", "other"], np.ones((3, 5), dtype=np.float32))
    with pytest.raises(
        DataError,
        match=r"^VECTORS: must share more than 5 words with the model, .*; given 2; check",
    ):
        expand(SentenceModel.load(trained), vectors)


def test_bag_of_words_is_the_mean_of_each_table(trained):
    """One unit block for each word table of each tower."""
    model = SentenceModel.load(trained)
    bag = bag_of_words(model)
    vectors = bag.encode(["w1 w2"])
    assert vectors.shape == (1, 2 * (5 + 4))
    ids = [model.vocabulary.id(word) for word in ("w1", "w2")]
    blocks = [table.weight.detach()[ids].mean(dim=0) for table in model.tables]
    expected = torch.cat([block / block.norm() for block in blocks]).numpy()
    np.testing.assert_allclose(vectors[0], expected, atol=1e-6)


def test_bag_of_words_of_views_is_the_mean_of_their_fixed_words(tmp_path):
    """One block, as both views read the same vectors; the model's objective asks for a linear view, the bag has none."""
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(
        "".join(f"w{number} {number}.5 1.0 -{number}.0 2.0\n" for number in range(9))
    )
    words = {"dim": 4, "vectors": str(vectors), "trained": False, "unknown": "zero"}
    view = {"hidden_size": 6, "embedding": words, "encode_pooling": ["mean"]}
    run = tiny_run(
        tmp_path,
        encoder={"type": "gru", "bidirectional": True, **view},
        second_encoder={"type": "linear", **view},
        objective={"type": "view_generation"},
        training__max_steps=1,
    )
    fit(run, tmp_path / "views")
    model = SentenceModel.load(tmp_path / "views")
    found = bag_of_words(model).encode(["w1 w2"])[0]
    mean = np.array([2.0, 1.0, -1.5, 2.0])
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-6)


_GRU = {"type": "gru", "hidden_size": 6, "embedding": {"dim": 5}}


@pytest.mark.parametrize(
    ("objective", "encoder"),
    [
        ({"type": "contrast", "positives": "self"}, {**_GRU, "dropout": 0.1}),
        ({"type": "contrast", "prefixes": [5]}, {**_GRU, "dropout": 0.1}),
        ({"type": "contrast", "prefixes": [4]}, {**_GRU, "dropout": 0.1}),
        ({"type": "masked_words"}, _GRU),
    ],
    ids=["dropout", "prefix as long as a word", "shorter prefix", "states of words"],
)
def test_bag_of_words_needs_nothing_that_the_objective_asks_of_an_encoder(objective, encoder):
    """One tower, whose objective could not train a bag, and whose prefixes the bag was not trained for."""
    config = ModelConfig.model_validate({"encoder": encoder, "objective": objective})
    model = SentenceModel.build(config, Vocabulary(["<pad>", "<unk>", "a", "b"]), seed=0)
    bag = bag_of_words(model)
    mean = model.tables[0].weight.detach()[2:].mean(dim=0)
    np.testing.assert_allclose(bag.encode(["a b"])[0], mean / mean.norm(), atol=1e-6)
    assert bag.cut_sizes == (5,)


def test_average_leaves_out_what_no_word_of_a_text_can_be(tmp_path):
    """The file's `<unk>` would be a second unknown word, and a word with a line break a vocabulary that cannot be read."""
    words = ["<unk>", "the", "cat\r", "cat", "new york", "<pad>", "sat"]
    vectors = np.array([[9, 9], [1, 2], [7, 8], [3, -1], [5, 5], [4, 4], [0, 5]], dtype=np.float32)
    made = average_of_words(WordVectors(words, vectors))
    assert made.vocabulary.words == average_of_words(VECTORS).vocabulary.words
    made.save(tmp_path)
    text = ["the <unk> cat", "dog <pad>", "sat new york"]
    np.testing.assert_array_equal(
        load(tmp_path).encode(text), average_of_words(VECTORS).encode(text)
    )
    assert vectors[1].tolist() == [1, 2]


def test_average_reads_as_many_words_as_it_says():
    """Words after the first 50 change nothing."""
    text = "the cat " * 25
    np.testing.assert_array_equal(*(average_of_words(VECTORS).encode([text, text + "sat " * 50])))


def test_expand_command_writes_a_model(trained, tmp_path, monkeypatch, capsys):
    """It writes a folder that every command accepts as a model, and never overwrites one."""
    run = CommandLine(monkeypatch, capsys)
    vectors, folder = pretrained(), tmp_path / "expanded"
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(*vectors, strict=True)]
    (tmp_path / "vectors.txt").write_text("".join(lines))
    ran = run("expand", str(trained), str(tmp_path / "vectors.txt"), "-o", str(folder), "--json")
    assert (ran.code, json.loads(ran.out)["num_words"]) == (0, len(load(folder).vocabulary))
    ran = run("expand", str(trained), str(tmp_path / "vectors.txt"), "-o", str(folder))
    assert (ran.code, "holds a model already; name another folder" in ran.err) == (2, True)
    ran = run("expand", "hash:5", str(tmp_path / "vectors.txt"), "-o", str(tmp_path / "x"))
    assert (ran.code, "must be a trained model with words of its own" in ran.err) == (2, True)
