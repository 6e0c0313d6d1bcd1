"""Similarity: correlations summarized in three ways, files as published, and SentEval's own scores."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from raysent.data.unicode_form import OF_EARLIER
from raysent.errors import DataError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.similarity import cosines, score_sets
from raysent.evaluation.task import ScoredSet
from raysent.evaluation.tasks import TASKS
from raysent.models.schemes.hash import HashEncoder
from raysent.reproduction.tasks import similarity

# SentEval's own scores for the hash-seeded bag of words of 50 dimensions: Pearson's mean and weighted mean, Spearman's.
PUBLISHED = {
    "STS12": (0.3984196, 0.3906942, 0.4222788),
    "STS13": (0.3319863, 0.4169980, 0.3440877),
    "STS14": (0.4959466, 0.5054240, 0.5107174),
    "STS15": (0.5291848, 0.5488104, 0.5253982),
}


def write_sts(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    scores: tuple[str, ...] = ("5", "1.5", "", "0"),
) -> None:
    """Write the sets of STS16 with four pairs each, one of them without a score."""
    monkeypatch.setitem(
        similarity.SET_SIZES, "STS16", dict.fromkeys(similarity.SET_SIZES["STS16"], 3)
    )
    pairs = ["a cat sat\tthe cat sat", "a dog\ta cat ran", "x\ty", "one two\tthree four five"]
    (folder / "STS/STS16-en-test").mkdir(parents=True)
    for name in TASKS["STS16"].files:
        lines = scores if "STS.gs" in name else pairs
        (folder / name).write_text("\n".join(lines) + "\n")


def test_score_sets_equals_its_restatement():
    """Means over sets, plain and weighted, and one correlation over all pairs."""
    generator, encoder = np.random.default_rng(0), HashEncoder(20)
    words = [f"w{number}" for number in range(30)]
    sets = [
        ScoredSet(
            name,
            [" ".join(generator.choice(words, 4)) for _ in range(size)],
            [" ".join(generator.choice(words, 4)) for _ in range(size)],
            generator.uniform(0, 5, size),
        )
        for name, size in (("a", 12), ("b", 30))
    ]
    score = score_sets(encoder, sets, model="m", task="t")
    cosines = []
    for one in sets:
        u, v = encoder.encode(one.first), encoder.encode(one.second)
        cosines.append((u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1))
    r = [100 * np.corrcoef(c, one.scores)[0, 1] for c, one in zip(cosines, sets, strict=True)]
    assert score.pearson == pytest.approx(np.mean(r), abs=1e-4)
    assert score.pearson_weighted == pytest.approx((12 * r[0] + 30 * r[1]) / 42, abs=1e-4)
    both = np.corrcoef(np.concatenate(cosines), np.concatenate([one.scores for one in sets]))[0, 1]
    assert score.pearson_all == pytest.approx(100 * both, abs=1e-4)


def test_score_sets_of_zeros_and_ones_classify_by_a_threshold():
    """Accuracy and F1 of the last set, by the first set's mean similarity; other scores have no such measures."""
    first = ScoredSet("train", ["a b", "a b"], ["a b", "c d"], np.array([1.0, 0.0]))
    second = ScoredSet("test", ["x", "x y z", "x"], ["x", "p q r", "w"], np.array([1.0, 1.0, 0.0]))
    encoder = HashEncoder(200)
    measures = score_sets(encoder, [first, second], model="m", task="t").measures
    u, v = encoder.encode(["a b"])[0], encoder.encode(["c d"])[0]
    mean = (1 + u @ v / np.linalg.norm(u) / np.linalg.norm(v)) / 2
    assert measures == pytest.approx(
        {"accuracy": 200 / 3, "f1": 200 / 3, "threshold": mean}, abs=1e-4
    )
    graded = ScoredSet("test", ["x", "y"], ["x", "z"], np.array([5.0, 1.0]))
    assert score_sets(encoder, [graded], model="m", task="t").measures == {}


def test_evaluate_prints_and_keeps_similarities(tmp_path, monkeypatch, raysent):
    """Pairs without a score are left out; the second time the scores are read."""
    write_sts(tmp_path / "data", monkeypatch)
    arguments = ("evaluate", "hash:20", "--data", tmp_path / "data", "--tasks", "sts16")
    first = json.loads(raysent(*arguments, "--json").out)["similarity"]
    assert (first[0]["num_pairs"], first[0]["measure"]) == (15, "cosine")
    monkeypatch.setattr(HashEncoder, "encode", None)
    assert json.loads(raysent(*arguments, "--json").out)["similarity"] == first
    assert "Pearson x 100, no probe" in raysent(*arguments).out


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            ("5", "1", "2", "0"),
            "STS16 answer-answer must have 3 scored pairs as published; given 4",
        ),
        (("5", "1"), "must hold a line for each of the 4 pairs; given 2"),
        (("5", "", "high", "0"), "scores must be numbers"),
    ],
)
def test_load_rejects_files_that_are_not_as_published(tmp_path, monkeypatch, scores, message):
    """The error names the set and both numbers."""
    write_sts(tmp_path, monkeypatch, scores=scores)
    with pytest.raises(DataError, match=message):
        TASKS["STS16"].load(tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_scores_equal_those_of_senteval(name):
    """For the hash-seeded bag of words, to six digits, even of ranks, which depend on ties in the last bit."""
    folder = Path(
        os.environ.get("RAYSENT_SENTEVAL", Path(__file__).parents[2] / "shared/data/senteval")
    )
    if not TASKS[name].is_present(folder):
        pytest.skip(
            f"{name} is not in {folder}; name SentEval's data/downstream with RAYSENT_SENTEVAL"
        )
    # SentEval reads words as they are written, and STS15 has a Greek word that is not composed.
    encoder = HashEncoder(50, unicode_form=OF_EARLIER)
    score = score_sets(encoder, TASKS[name].load(folder).sets, model="hash:50", task=name)
    correlations = (score.pearson / 100, score.pearson_weighted / 100, score.spearman / 100)
    np.testing.assert_allclose(correlations, PUBLISHED[name], atol=1e-6)


@pytest.mark.parametrize("name", PUBLISHED)
def test_composed_words_move_the_published_scores_by_less_than_their_third_digit(tmp_path, name):
    """The command reads words composed, which differs from SentEval in one pair of STS15."""
    folder = Path(
        os.environ.get("RAYSENT_SENTEVAL", Path(__file__).parents[2] / "shared/data/senteval")
    )
    if not TASKS[name].is_present(folder):
        pytest.skip(
            f"{name} is not in {folder}; name SentEval's data/downstream with RAYSENT_SENTEVAL"
        )
    (score,) = Evaluator(tmp_path, folder).evaluate(["hash:50"], [name])
    correlations = (score.pearson / 100, score.pearson_weighted / 100, score.spearman / 100)
    np.testing.assert_allclose(correlations, PUBLISHED[name], atol=1e-4)


def test_cosines_are_summed_in_one_fixed_order():
    """Lane by lane in single precision; the restatement adds one number at a time."""
    first, second = np.random.default_rng(0).standard_normal((2, 5, 70)).astype(np.float32)

    def dot(u, v):
        lanes = [np.float32(0)] * 32
        for place in range(64):
            lanes[place % 32] = np.float32(
                np.float64(lanes[place % 32]) + np.float64(u[place]) * np.float64(v[place])
            )
        eights = [
            [lanes[8 * group + n] + lanes[8 * group + 4 + n] for n in range(4)]
            for group in range(4)
        ]
        fours = [(eights[0][n] + eights[1][n]) + (eights[2][n] + eights[3][n]) for n in range(4)]
        rest = sum((np.float64(u[place] * v[place]) for place in range(64, 70)), np.float64(0))
        return np.float32(rest + np.float64((fours[0] + fours[1]) + (fours[2] + fours[3])))

    expected = [
        dot(u, v) / (np.sqrt(dot(u, u)) * np.sqrt(dot(v, v)))
        for u, v in zip(first, second, strict=True)
    ]
    assert cosines(first, second).tolist() == [float(value) for value in expected]
    assert cosines(first, np.zeros_like(first)).tolist() == [0.0] * 5
