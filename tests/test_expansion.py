"""More words for a trained model by a linear map, and the bag of its words."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from command import CommandLine
from tiny_run import tiny_run

from raysent.data.vocabulary import Vocabulary, WordVectors, fit_linear_map, new_words, shared_words
from raysent.errors import DataError
from raysent.models import SentenceModel, bag_of_words, expand, load
from raysent.training.loop import fit

CONCAT = {
    "type": "concat",
    "members": {
        "bi": {"type": "gru", "bidirectional": True, "hidden_size": 6, "embedding": {"dim": 5}},
        "bag": {"type": "bag", "embedding": {"dim": 4}},
    },
}


def pretrained(seed=0, dim=3):
    """Vectors for the words w0 to w39 of the tiny corpus, and for twelve more, one of them a phrase."""
    words = [*(f"w{number}" for number in range(40)), *(f"new{number}" for number in range(11)), "new_phrase"]
    return WordVectors(words, np.random.default_rng(seed).normal(size=(52, dim)).astype(np.float32))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained model of two towers with two word tables each; its folder."""
    folder = tmp_path_factory.mktemp("trained")
    fit(tiny_run(folder, encoder=CONCAT, training__max_steps=3), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("has_intercept", [True, False])
def test_linear_map_is_the_least_squares_solution(has_intercept):
    """The normal equations hold, and an exact map is found again."""
    generator = np.random.default_rng(0)
    x, weight, intercept = generator.normal(size=(50, 4)), generator.normal(size=(4, 3)), generator.normal(size=3)
    y = x @ weight + has_intercept * intercept
    found = fit_linear_map(x.astype(np.float32), y.astype(np.float32), has_intercept=has_intercept)
    np.testing.assert_allclose(found.weight, weight, atol=1e-5)
    np.testing.assert_allclose(found.intercept, has_intercept * intercept, atol=1e-5)
    np.testing.assert_allclose(found(x.astype(np.float32)), y, atol=1e-4)


def test_new_words_leave_out_phrases_and_what_no_sentence_reaches():
    """Words of the vocabulary, phrases, and with a lowered vocabulary those with capitals."""
    vectors = WordVectors(["cat", "Dog", "bird", "a_b"], np.ones((4, 2), dtype=np.float32))
    words = ["<pad>", "<unk>", "cat", "fish"]
    assert new_words(Vocabulary(words), vectors).tolist() == [1, 2]
    assert new_words(Vocabulary(words, lowercase=True), vectors).tolist() == [2]
    ids, rows = shared_words(Vocabulary(words), vectors)
    assert (ids.tolist(), rows.tolist()) == ([2], [0])


def test_expansion_keeps_the_words_that_were_there(trained):
    """Sentences of known words have the same vectors to the last bit, in both towers and blocks."""
    model = SentenceModel.load(trained)
    expanded = expand(model, pretrained())
    assert len(expanded.vocabulary) == len(model.vocabulary) + 11
    known = ["w1 w2 w3", "w39", "nobody"]
    assert np.array_equal(model.encode(known), expanded.encode(known))
    assert not np.array_equal(model.encode(["new1 w2"]), expanded.encode(["new1 w2"]))


def test_expansion_maps_every_table_by_itself(trained, tmp_path):
    """A new word's row is the image of its pretrained vector, in each table; the model saves and loads."""
    model, vectors = SentenceModel.load(trained), pretrained()
    expanded = expand(model, vectors)
    ids, rows = shared_words(model.vocabulary, vectors)
    for old, new in zip(model.tables, expanded.tables, strict=True):
        linear = fit_linear_map(vectors.vectors[rows], old.weight.detach()[ids].numpy())
        torch.testing.assert_close(new.weight[-11:].detach(), torch.from_numpy(linear(vectors.vectors[40:51])))
    expanded.save(tmp_path / "expanded")
    assert np.array_equal(load(tmp_path / "expanded").encode(["new3 w1"]), expanded.encode(["new3 w1"]))


def test_expansion_with_too_few_shared_words_is_one_clear_line(trained):
    """The map would not be determined."""
    vectors = WordVectors(["w1", "w2", "other"], np.ones((3, 5), dtype=np.float32))
    with pytest.raises(DataError, match=r"^VECTORS: must share more than 5 words with the model, .*; given 2; check"):
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


def test_expand_and_bag_from_the_command_line(trained, tmp_path, monkeypatch, capsys):
    """Both write a folder that every command takes for a model, and never over one."""
    raysent = CommandLine(monkeypatch, capsys)
    vectors, folder = pretrained(), tmp_path / "expanded"
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(*vectors, strict=True)]
    (tmp_path / "vectors.txt").write_text("".join(lines))
    ran = raysent("expand", str(trained), str(tmp_path / "vectors.txt"), "-o", str(folder), "--json")
    assert (ran.code, json.loads(ran.out)["num_words"]) == (0, len(load(folder).vocabulary))
    ran = raysent("bag", str(trained), "-o", str(tmp_path / "bag"))
    assert ran.code == 0
    assert "18 numbers" in ran.out
    ran = raysent("bag", str(trained), "-o", str(folder))
    assert (ran.code, "holds a model already; name another folder with -o" in ran.err) == (2, True)
    ran = raysent("expand", "hash:5", str(tmp_path / "vectors.txt"), "-o", str(tmp_path / "x"))
    assert (ran.code, "must be a trained model with words of its own" in ran.err) == (2, True)
