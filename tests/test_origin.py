"""What cards and records say of a model's training: nothing that did not happen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model_folders import sign
from tiny_run import tiny_run

import raysent
from raysent.data.vocabulary import WordVectors
from raysent.models import SentenceModel, average_of_words, load
from raysent.training.loop import fit

GRU = {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6, "vectors": "ppmi"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Return the folder of a training of a GRU with word vectors that are counted and trained."""
    folder = tmp_path_factory.mktemp("origin")
    fit(tiny_run(folder, encoder=GRU), folder / "run")
    return folder / "run"


def card_of(model, folder: Path) -> str:
    """Return the model card of an export."""
    raysent.export(model, folder)
    return (folder / "README.md").read_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ("words:start:", "mean of the word vectors that a gru begins with, untrained;"),
        ("words:", "mean of the word vectors of a gru trained for context_prediction;"),
        ("start:", "gru as it was before its first training step;"),
    ],
)
def test_card_says_what_was_trained(run, tmp_path, scheme, said):
    """Also that of a copy, as a sweep saves it; no objective stands for none in its record."""
    model = load(f"{scheme}{run}")
    model.save(tmp_path / "copy")
    for number, one in enumerate((model, tmp_path / "copy")):
        card = card_of(one, tmp_path / str(number))
        assert f"- {said}" in card
        assert "paraphrase" not in card
        assert f"encoder {'trained' if scheme == 'words:' else 'made'} with raysent" in card
    record = json.loads((tmp_path / "copy/model.json").read_text())
    assert (record["config"]["objective"] is None) == scheme.startswith("words")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_card_of_a_training_says_for_what(run, tmp_path):
    """The settings beside it have the rest; a copy without them says it in a line."""
    SentenceModel.load(run).save(tmp_path / "copy")
    assert "- gru trained for context_prediction;" in card_of(tmp_path / "copy", tmp_path / "out")
    card = card_of(run, tmp_path / "other")
    assert "Settings: gru(" in card
    assert "trained with raysent" in card


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_card_of_averaged_vectors_names_no_training(tmp_path):
    """Vectors of a file are averaged and nothing is trained."""
    vectors = WordVectors(["the", "cat"], np.ones((2, 3), dtype=np.float32))
    average_of_words(vectors).save(tmp_path / "model")
    card = card_of(tmp_path / "model", tmp_path / "out")
    assert "- mean of the word vectors of a file, untrained;" in card
    assert "made with raysent" in card


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_card_of_fixed_word_vectors_says_that_they_are_untrained(tmp_path):
    """A training that leaves word vectors as they are adds nothing to their mean."""
    fixed = {**GRU, "embedding": {**GRU["embedding"], "trained": False}}
    fit(tiny_run(tmp_path, encoder=fixed), tmp_path / "run")
    card = card_of(f"words:{tmp_path / 'run'}", tmp_path / "out")
    assert "- mean of the word vectors that a gru begins with, untrained;" in card


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_card_of_a_code_says_that_the_encoder_was_not_trained(tmp_path):
    """Its objective trains the code alone."""
    bag = {"type": "bag", "pooling": "mean", "embedding": {"dim": 6, "vectors": "ppmi"}}
    parts = {"objective": {"type": "reconstruction"}, "code": {"type": "autoencoder", "bits": 8}}
    fit(tiny_run(tmp_path, encoder=bag, **parts), tmp_path / "run")
    SentenceModel.load(tmp_path / "run").save(tmp_path / "copy")
    card = card_of(tmp_path / "copy", tmp_path / "out")
    assert "- bag as it was, with a code that was made for reconstruction;" in card


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_models_of_an_earlier_version_are_described_by_the_run_beside_them(run, tmp_path):
    """Their records name an objective whatever they are: of a mean of word vectors a placeholder."""
    vectors = WordVectors(["w1", "w2"], np.array([[1, 2, 3], [3, 1, 2]], dtype=np.float32))
    means = {
        "paraphrase_margin": average_of_words(vectors),
        "context_prediction": load(f"words:start:{run}"),
    }
    for objective, mean in means.items():
        mean.save(tmp_path / objective)
        config = json.loads((tmp_path / objective / "model.json").read_text())["config"]
        before = {**config, "objective": {"type": objective}, "second_encoder": None}
        sign(tmp_path / objective, config=before, origin=None)
        card = card_of(tmp_path / objective, tmp_path / f"of_{objective}")
        assert "- bag, of which no training is recorded;" in card
        assert "made with raysent" in card
        encoded = load(tmp_path / objective).encode(["w1 w2"])
        np.testing.assert_array_equal(encoded, mean.encode(["w1 w2"]))
    SentenceModel.load(run).save(tmp_path / "trained")
    sign(tmp_path / "trained", origin=None)
    assert "no training" in card_of(tmp_path / "trained", tmp_path / "alone")
    (tmp_path / "trained/run.json").write_bytes((run / "run.json").read_bytes())
    assert SentenceModel.load(tmp_path / "trained").origin == SentenceModel.load(run).origin


def test_retrain_names_what_a_mean_of_word_vectors_lacks(run, tmp_path):
    """It holds no training to repeat."""
    load(f"words:{run}").save(tmp_path / "mean")
    with pytest.raises(raysent.ArtifactError, match="must be a training; given a model without a"):
        raysent.retrain(tmp_path / "mean", run=tmp_path / "out")
