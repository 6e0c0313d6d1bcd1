"""From a folder of text: a training that is killed and resumed, vectors, binary codes, and search."""

from __future__ import annotations

import os
import signal

import pytest
import yaml

SPACE = {
    "base": {
        "corpus": {"path": "books/", "validation_fraction": 0.1},
        "vocabulary": {"size": 200},
        "encoder": {"type": "gru", "hidden_size": 16, "embedding": {"dim": 16}},
        "objective": {"type": "context_prediction"},
        "training": {"batch_size": 50, "epochs": 60, "num_reports": 30, "learning_rate": 0.005},
        "validation": {"num_candidates": 20, "num_sentences": 60},
    },
    "search": {"training.learning_rate": {"loguniform": [0.001, 0.01]}},
}


@pytest.fixture
def space(user):
    """Return the user with a search space of his own."""
    (user.folder / "mine.yaml").write_text(yaml.safe_dump(SPACE))
    return user


@pytest.mark.journey
@pytest.mark.cluster
def test_a_killed_training_is_resumed_and_encodes(space, until):
    """`kill -9` in mid-training; the same command continues, and ends with the weights of one that was not killed."""
    command = ["train", "mine.yaml", "--run"]
    killed = space.start(*command, "runs/one")
    reports = space.folder / "runs" / "one" / "reports.jsonl"
    until(lambda: reports.exists() and len(reports.read_bytes().splitlines()) >= 3, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (space.folder / "runs/one/outcome.json").exists()

    space(*command, "runs/one")
    space(*command, "runs/two")
    for run in ("one", "two"):
        space("encode", f"runs/{run}", "sentences.txt", "-o", f"{run}.npy")
    assert (space.folder / "one.npy").read_bytes() == (space.folder / "two.npy").read_bytes()


@pytest.mark.journey
@pytest.mark.cluster
def test_codes_of_a_corpus_are_searched(space):
    """Train bits of the vectors of a frozen bag, encode a whole corpus by them, and search it."""
    small = [
        "--set=encoder.embedding.dim=16",
        "--set=vocabulary.size=200",
        "--set=training.epochs=1",
    ]
    code = [
        "--set=code={type: principal_components, bits: 16}",
        "--set=validation={num_sentences: 60}",
    ]
    space("train", "binary", "--corpus", "books/", "--run", "runs/codes", *small, *code)
    space("index", "runs/codes", "books", "--output", "index")
    query = ["The captain took the anchor near the wave.", "-k", "3"]
    for by in ("vectors", "words", "fused"):
        found = space("search", "index", *query, "--by", by)
        assert any(
            word in found for word in ("ship", "sail", "harbour", "tide", "crew", "rope", "deck")
        )
