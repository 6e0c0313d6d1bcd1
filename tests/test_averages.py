"""Averages of a file's word vectors: plain, weighted, and without their top component."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import CommandLine

from raysent.data.vocabulary import WordVectors
from raysent.models import average_of_words, load

VECTORS = WordVectors(["the", "cat", "sat"], np.array([[1, 2], [3, -1], [0, 5]], dtype=np.float32))


def write_files(folder: Path) -> None:
    """Write the vectors, counts and some sentences."""
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(*VECTORS, strict=True)]
    (folder / "vectors.txt").write_text("".join(lines))
    (folder / "counts.txt").write_text("the 90\ncat 9\nsat 1\n")
    (folder / "text.txt").write_text("the cat\ncat sat\nthe the sat\n")


@pytest.mark.parametrize("weighting", ["uniform", "sif"])
def test_average_is_its_restatement(weighting):
    """Each word's vector times a / (a + p), summed over the sentence, of unit length; unknown words add nothing."""
    model = average_of_words(VECTORS, weighting=weighting, counts={"the": 90, "cat": 9, "sat": 1}, sif_weight=0.1)
    shares = np.array([0.9, 0.09, 0.01])
    weights = 0.1 / (0.1 + shares) if weighting == "sif" else np.ones(3)
    expected = weights[0] * VECTORS.vectors[0] + weights[1] * VECTORS.vectors[1]
    np.testing.assert_allclose(model.encode(["the cat dog"])[0], expected / np.linalg.norm(expected), atol=1e-6)


def test_average_without_its_component_from_the_command_line(tmp_path, monkeypatch, capsys):
    """The first singular vector of the text's means is gone; the model loads and encodes."""
    write_files(tmp_path)
    raysent = CommandLine(monkeypatch, capsys)
    files = (tmp_path / "vectors.txt", "-o", tmp_path / "model")
    ran = raysent("average", *files, "--remove-component", tmp_path / "text.txt", "--json")
    assert (ran.code, json.loads(ran.out)["dim"]) == (0, 2)
    v = VECTORS.vectors
    means = np.stack([(v[0] + v[1]) / 2, (v[1] + v[2]) / 2, (2 * v[0] + v[2]) / 3])
    top = np.linalg.svd(means, full_matrices=False)[2][0]
    expected = means[0] - (means[0] @ top) * top
    vector = load(tmp_path / "model").encode(["the cat"])[0]
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--weighting", "sif"), "--counts: must name a file of 'word count' lines for --weighting sif; given none"),
        (("--weighting", "tfidf"), "--weighting: must be uniform or sif; given 'tfidf'"),
        (("--weighting", "sif", "--counts", "text.txt"), "text.txt:1: must be a word and a whole number; given 'the"),
        (("--remove-component", "nowhere.txt"), "nowhere.txt: no such file"),
    ],
)
def test_average_mistakes_are_one_clear_line(tmp_path, monkeypatch, capsys, arguments, message):
    """Exit code 2, and no model is written."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    ran = CommandLine(monkeypatch, capsys)("average", "vectors.txt", "-o", "model", *arguments)
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert not (tmp_path / "model").exists()
