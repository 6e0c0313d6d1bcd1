"""Whitening: the transform against NumPy, its place in a model and its training, and the command that adds it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command import CommandLine
from reference import whitened
from tiny_run import tiny_run

import raysent
from raysent.config import Document
from raysent.errors import ConfigError, DataError
from raysent.models import SentenceModel, Whitening, load
from raysent.models.postprocessing import Postprocessing, PostprocessingConfig, whitening_directions
from raysent.sweeps.space.reading import parse_space
from raysent.training.data import open_training_data
from raysent.training.loop import fit


def skewed(rows: int = 200, dim: int = 6, seed: int = 0) -> np.ndarray:
    """Return vectors with a mean and a different variance in each direction, float32 [rows, dim]."""
    generator = np.random.default_rng(seed)
    mixed = (
        generator.normal(size=(rows, dim))
        * np.arange(dim, 0, -1)
        @ generator.normal(size=(dim, dim))
    )
    return (mixed + 5 * generator.normal(size=dim)).astype(np.float32)


def test_whitened_sample_has_zero_mean_and_identity_covariance():
    """NumPy's covariance of the transformed sample, on every number of kept directions."""
    sample = skewed()
    center, directions = whitening_directions(torch.from_numpy(sample))
    found = (sample - center.numpy()) @ directions.numpy()
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(found.T), np.eye(6), atol=1e-6)
    np.testing.assert_allclose(np.cov(found[:, :3].T), np.eye(3), atol=1e-6)


def test_whitening_of_other_vectors_equals_a_restatement():
    """Of vectors outside the sample, up to the sign of each axis; a sample in chunks is the same sample."""
    sample, other = skewed(rows=5000), skewed(rows=20, seed=1)
    center, directions = whitening_directions(torch.from_numpy(sample))
    found = (other - center.numpy()) @ directions.numpy()
    expected = whitened(sample.astype(np.float64), other, kept=6)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-6)


def test_vectors_that_do_not_vary_in_a_direction_have_a_lower_rank():
    """A sum of other columns, and a column of float32 rounding, are no directions of their own."""
    sample = skewed(dim=4)
    rounding = 1e-6 * np.random.default_rng(2).normal(size=(len(sample), 1)).astype(np.float32)
    wide = np.hstack([sample, sample[:, :1] + sample[:, 1:2], rounding])
    _, directions = whitening_directions(torch.from_numpy(wide))
    assert directions.shape == (6, 4)
    assert torch.isfinite(directions).all()
    assert whitening_directions(torch.ones(9, 3))[1].shape == (3, 0)


def test_postprocessing_whitens_the_joined_blocks_of_unit_length():
    """Blocks of 4 and 2; cosines equal those of the restatement, and lengths are 1."""
    sample, other = skewed(), skewed(rows=10, seed=1)
    module = Postprocessing(PostprocessingConfig(whitening=3), (4, 2))
    module.fit(torch.from_numpy(sample))

    def joined(vectors: np.ndarray) -> np.ndarray:
        blocks = np.split(vectors.astype(np.float64), [4], axis=1)
        return np.hstack([block / np.linalg.norm(block, axis=1, keepdims=True) for block in blocks])

    expected = whitened(joined(sample), joined(other), kept=3)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = module(torch.from_numpy(other)).numpy()
    assert module.dim() == 3
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)


def test_postprocessing_refuses_more_dimensions_than_the_sample_has():
    """Three sentences vary in two directions."""
    module = Postprocessing(PostprocessingConfig(whitening=3), (4,))
    with pytest.raises(
        DataError,
        match=r"^postprocessing.whitening: must be at most 2, .*; given 3; lower it or give",
    ):
        module.fit(torch.from_numpy(skewed(rows=3, dim=4)))


@pytest.mark.parametrize(
    ("postprocessing", "message"),
    [
        (
            {"whitening": 17},
            "postprocessing.whitening must be at most 16, the size of the vector; given 17",
        ),
        (
            {"whitening": 9, "combine": "average"},
            "must be at most 8, the size of the vector; given 9",
        ),
        ({"whitening": 5, "num_sentences": 5}, "num_sentences must be above whitening, 5; given 5"),
    ],
)
def test_run_refuses_a_whitening_that_cannot_be_fitted(tmp_path, postprocessing, message):
    """Two towers of 8 are vectors of 16, and their average one of 8."""
    with pytest.raises(ValueError, match=message):
        tiny_run(tmp_path, postprocessing=postprocessing)


def test_run_without_whitening_has_the_key_of_earlier_versions(tmp_path):
    """A field that is not used leaves checkpoints and records valid."""
    key = tiny_run(tmp_path, corpus={"path": "text.txt"}).key
    assert (
        key
        == tiny_run(tmp_path, corpus={"path": "text.txt"}, postprocessing={"whitening": None}).key
    )
    assert (
        key != tiny_run(tmp_path, corpus={"path": "text.txt"}, postprocessing={"whitening": 4}).key
    )
    assert key == "2604ef856a80793f"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return the folder of a run of two towers of 8, with scored pairs as its validation set."""
    folder = tmp_path_factory.mktemp("whitening")
    generator = np.random.default_rng(3)
    lines = []
    for _ in range(60):
        first, second = generator.integers(0, 40, 4), generator.integers(0, 40, 4)
        same = generator.integers(0, 5)
        second[:same] = first[:same]
        lines.append(
            "\t".join(
                [*(" ".join(f"w{word}" for word in side) for side in (first, second)), str(same)]
            )
        )
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n")
    similarity = {"path": str(folder / "pairs.tsv"), "score": 2}
    fit(tiny_run(folder, validation__similarity=similarity), folder / "run")
    return folder


def test_sample_of_a_smaller_text_is_the_text(trained):
    """Each sentence once."""
    data = open_training_data(tiny_run(trained))
    train, sampled = data.corpus.train, data.sample(1000)
    assert len(sampled.lengths) == len(train)
    np.testing.assert_array_equal(sampled.ids, train.sentences(0, len(train)).ids)


def test_training_stores_the_whitening_of_its_own_text(trained, tmp_path):
    """The saved model's vectors are those of its unwhitened twin under the restatement."""
    config = tiny_run(trained, postprocessing={"whitening": 5, "num_sentences": 200})
    fit(config, tmp_path / "run")
    model, plain = SentenceModel.load(tmp_path / "run"), SentenceModel.load(trained / "run")
    sample = plain.encode_ids(open_training_data(config).sample(200)).numpy().astype(np.float64)
    text = ["w1 w2 w3", "w7", "w9 w30 w2 w2"]
    expected = whitened(sample, plain.encode(text).astype(np.float64), kept=5)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert model.get_sentence_embedding_dimension() == 5
    np.testing.assert_allclose(
        model.encode(text) @ model.encode(text).T, expected @ expected.T, atol=1e-4
    )
    with pytest.raises(ConfigError, match="towers: must be 'both' for a model with whitening"):
        model.encode(text, towers="f")


def test_whiten_again_equals_whitening_once(trained, tmp_path):
    """A whitened model is whitened again from the vectors below it; other text is another whitening."""
    text = str(trained / "text.txt")
    options = {
        "corpus": text,
        "num_sentences": 200,
        "progress": False,
        "set": {"corpus.format": "sentences"},
    }
    plain = SentenceModel.load(trained / "run")
    once = raysent.whiten(plain, dimension=5, **options).model
    again = raysent.whiten(
        raysent.whiten(plain, dimension="full", **options).model, dimension=5, **options
    ).model
    np.testing.assert_array_equal(once.encode(["w1 w2 w9"]), again.encode(["w1 w2 w9"]))
    lines = (trained / "text.txt").read_text().splitlines(keepends=True)
    (tmp_path / "half.txt").write_text("".join(lines[: len(lines) // 2]))
    other = raysent.whiten(
        plain, dimension=5, **{**options, "corpus": str(tmp_path / "half.txt")}
    ).model
    assert np.abs(once.encode(["w1 w2 w9"]) - other.encode(["w1 w2 w9"])).max() > 1e-3


def test_whiten_refuses_what_cannot_be_whitened(trained, tmp_path):
    """A code, too many dimensions, and no text."""
    plain = SentenceModel.load(trained / "run")
    options = {"corpus": str(trained / "text.txt"), "num_sentences": 50, "progress": False}
    with pytest.raises(ConfigError, match="dimension: must be from 1 to .*; given 17"):
        raysent.whiten(plain, dimension=17, **options)
    with pytest.raises(
        ConfigError, match=r"corpus: must name text, because the model's folder has no run.json"
    ):
        raysent.whiten(plain, dimension=4, progress=False)
    fit(tiny_run(trained, code={"type": "threshold"}, training__max_steps=2), tmp_path / "bits")
    coded = SentenceModel.load(tmp_path / "bits")
    with pytest.raises(ConfigError, match="MODEL: its vectors are bits"):
        Whitening(coded, coded.vocabulary.ids(["w1", "w2"], max_length=5))


def test_whiten_command_saves(trained, tmp_path, monkeypatch, capsys):
    """A dimension that is named, and all."""
    run = CommandLine(monkeypatch, capsys)
    named = run(
        "whiten",
        trained / "run",
        "--dimension",
        4,
        "--set",
        "num_sentences=200",
        "-o",
        tmp_path / "four",
    )
    assert named.code == 0, named.err
    assert " dimensions, whitened on 200 sentences" in named.out
    assert load(tmp_path / "four").get_sentence_embedding_dimension() == 4
    whole = run(
        "whiten", trained / "run", "--set", "num_sentences=300", "-o", tmp_path / "best", "--json"
    )
    values = json.loads(whole.out)
    assert values["dimension"] == values["rank"]
    assert run("whiten", trained / "run", "-o", tmp_path / "best").code == 2
    wrong = run("whiten", trained / "run", "-o", tmp_path / "new", "--dimension", "0")
    assert (
        wrong.err.strip() == "error: --dimension: must be a positive whole number or full; given 0"
    )


def test_search_over_whitening_needs_a_metric_that_reads_it(tmp_path):
    """`none` is a choice, and each trial has its own transform."""
    base = tiny_run(tmp_path).model_dump(mode="json")
    values = {
        "base": base,
        "search": {"postprocessing.whitening": {"choice": {"none": None, 4: 4, 8: 8}}},
    }
    with pytest.raises(
        ConfigError, match=r"search.postprocessing.whitening: needs a metric of whitened vectors"
    ):
        parse_space(Document(values=values), name="space")
    base["validation"]["similarity"] = {"path": "pairs.tsv", "score": 2}
    space = parse_space(Document(values={**values, "metric": "pearson"}), name="space")
    options = space.domains["postprocessing.whitening"].options
    found = [
        space.config({"postprocessing.whitening": option}).postprocessing.whitening
        for option in options
    ]
    assert found == [None, 4, 8]
