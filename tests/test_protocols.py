"""Protocols: a contract for all, `senteval` and `kiros` against restatements, and SentEval's published scores."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from raysent.errors import ConfigError
from raysent.evaluation.probes import logistic
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.probes.results import Probe, accuracy, predicted_scores
from raysent.evaluation.protocols import (
    PROTOCOLS,
    EvaluationProtocol,
    fit_probe,
    protocol_name,
)
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import load_task
from raysent.models.schemes.hash import HashEncoder
from raysent.reproduction.protocols import kiros, senteval
from raysent.reproduction.protocols.kiros import NaiveBayes, pair_features

# SentEval's own scores for the hash-seeded bag of words of 50 dimensions: validation, test, and F1 where it has one.
PROTOTYPING = {
    "TREC": (53.10, 55.6),
    "MRPC": (70.46, 69.86, 78.96),
    "SICK-E": (71.20, 71.61),
    "SST-5": (30.43, 28.69),
    "MPQA": (70.43, 70.11),
}
DEFAULT = {"MRPC": (70.14, 69.51, 80.50), "SICK-E": (71.60, 70.85), "SST-5": (30.25, 29.14)}
# Validation and test correlation, Spearman's, and the mean squared error.
RELATED = {"STS-B": (0.5732790787655831, 0.497803540757621, 0.48861847016979665, 2.036389326777286)}


def sentences_task(
    split: str = "nested", *, num_rows: int = 120, num_classes: int = 2, seed: int = 0
) -> TaskData:
    """Return a task of random sentences of one to six words; the first word mostly indicates the class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(num_classes, size=num_rows)
    words = [
        [
            f"w{(label + (generator.random() < 0.2)) % num_classes}",
            *(f"x{n}" for n in generator.integers(9, size=size)),
        ]
        for label, size in zip(labels, generator.integers(6, size=num_rows), strict=True)
    ]
    parts = np.split(np.arange(num_rows), [num_rows // 2, 3 * num_rows // 4])
    divided = {
        "nested": {},
        "train-test": {"train": np.concatenate(parts[:2]), "test": parts[2]},
        "train-validation-test": dict(zip(("train", "validation", "test"), parts, strict=True)),
    }
    names = tuple(f"class{label}" for label in range(num_classes))
    return TaskData(
        "toy",
        "sentence",
        split,
        names,
        ([" ".join(row) for row in words],),
        labels,
        **divided[split],
    )


def scored_task(num_rows: int = 90) -> TaskData:
    """Return random scored pairs: the more words they share, the higher the score."""
    generator = np.random.default_rng(0)
    shared = generator.integers(5, size=num_rows)
    first = [" ".join(f"a{n}" for n in generator.integers(30, size=4)) for _ in range(num_rows)]
    second = [
        " ".join([*one.split()[:n], *(f"b{k}" for k in range(4 - n))])
        for one, n in zip(first, shared, strict=True)
    ]
    scores = 1 + shared.astype(np.float64)
    parts = np.split(np.arange(num_rows), [num_rows // 2, 3 * num_rows // 4])
    names = tuple("12345")
    return TaskData(
        "toy",
        "pair",
        "train-validation-test",
        names,
        (first, second),
        scores.astype(np.int64) - 1,
        *parts,
        scores,
    )


def test_senteval_sorts_rows_by_length_then_label():
    """Folds are drawn in the order in which SentEval encodes rows; equal rows keep theirs."""
    data = TaskData(
        "toy",
        "sentence",
        "nested",
        ("a", "b"),
        (["x y", "x", "z", "x y", "q"],),
        np.array([1, 1, 0, 0, 1]),
    )
    assert senteval.sort_by_length(data, np.arange(5), data.labels).tolist() == [2, 1, 4, 3, 0]


@pytest.mark.parametrize("split", ["nested", "train-test", "train-validation-test"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_predicts_each_test_row_once(protocol, split):
    """By a probe that did not see the row; the score is that of these predictions."""
    data = sentences_task(split)
    result = fit_probe(task_features(HashEncoder(12), data), data, protocol=protocol)
    tested = np.concatenate([fold.test_rows for fold in result.folds])
    assert sorted(tested) == sorted(range(120) if split == "nested" else data.test)
    scores = [
        accuracy(fold.test_log_probabilities, data.labels[fold.test_rows]) for fold in result.folds
    ]
    assert result.test == pytest.approx(100 * np.mean(scores), abs=0.01)
    assert all(
        not np.intersect1d(fold.test_rows, fold.validation_rows).size for fold in result.folds
    )
    assert result.validation > 60


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_predicts_scores(protocol):
    """Pearson's correlation is the score; related pairs are found."""
    data = scored_task()
    result = fit_probe(task_features(HashEncoder(30), data), data, protocol=protocol)
    (fold,) = result.folds
    predicted, scores = predicted_scores(fold.test_log_probabilities), data.scores[fold.test_rows]
    assert (
        result.test
        == result.measures["pearson"]
        == pytest.approx(100 * np.corrcoef(predicted, scores)[0, 1])
    )
    assert result.measures["mse"] == pytest.approx(np.square(predicted - scores).mean())
    assert result.test > 50


def test_every_protocol_has_plain_settings_of_its_own():
    """Settings are part of the key of records, so two protocols with equal settings would share records."""
    assert all(isinstance(protocol, EvaluationProtocol) for protocol in PROTOCOLS.values())
    settings = [json.dumps(protocol.settings(), sort_keys=True) for protocol in PROTOCOLS.values()]
    assert len(set(settings)) == len(PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_is_found_by_name_and_configuration(protocol):
    """Either as one name or as two; the default configuration may be left out."""
    family, _, configuration = protocol.partition("/")
    assert protocol_name(protocol) == protocol_name(family, configuration or "default") == protocol


def test_senteval_stops_fits_on_few_rows_by_one_of_them():
    """A twentieth of fewer than 20 rows would be none. No warning: what reads a table names its rare classes."""
    parts = {"train": np.arange(19), "test": np.arange(19, 28)}
    task = replace(sentences_task("train-test", num_rows=28), labels=np.arange(28) % 2, **parts)
    assert (
        0 <= fit_probe(task_features(HashEncoder(8), task), task, protocol="senteval").test <= 100
    )


def test_senteval_does_not_depend_on_the_number_of_threads():
    """More threads change no bit of the predictions; the number of threads is restored."""
    data = sentences_task("train-test", num_classes=3)
    features = task_features(HashEncoder(12), data)
    before = torch.get_num_threads()
    predictions = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        (fold,) = fit_probe(features, data, protocol="senteval/prototyping").folds
        assert torch.get_num_threads() == threads
        predictions.append(fold.test_log_probabilities)
    torch.set_num_threads(before)
    assert np.array_equal(*predictions)


def test_kiros_chooses_the_first_best_strength():
    """By ten contiguous folds of train in the protocol's order, restated with scikit-learn."""
    data = sentences_task("train-test", num_rows=160)
    features = task_features(HashEncoder(12), data)
    rows = data.train.copy()
    np.random.RandomState(1234).shuffle(rows)
    means = []
    for strength in kiros.STRENGTHS:
        scores = []
        for train, out in KFold(10).split(rows):
            model = LogisticRegression(solver="liblinear", C=strength)
            model.fit(features[rows[train]].astype(np.float64), data.labels[rows[train]])
            scores.append(
                model.score(features[rows[out]].astype(np.float64), data.labels[rows[out]])
            )
        means.append(np.mean(scores))
    result = fit_probe(features, data, protocol="kiros")
    assert result.folds[0].strength == kiros.STRENGTHS[int(np.argmax(means))]
    assert result.validation == pytest.approx(100 * max(means))


@pytest.mark.parametrize("num_classes", [2, 3])
def test_kiros_solves_the_problem_of_liblinear(num_classes):
    """One against the rest with a penalty on the intercept; the test predictions are those of a fit on train at that C."""
    data = sentences_task("train-test", num_rows=160, num_classes=num_classes)
    features = task_features(HashEncoder(12), data)
    result = fit_probe(features, data, protocol="kiros")
    strength = result.folds[0].strength
    margins = []
    for label in range(1, num_classes) if num_classes == 2 else range(num_classes):
        one = LogisticRegression(solver="liblinear", C=strength, tol=1e-9)
        one.fit(features[data.train].astype(np.float64), data.labels[data.train] == label)
        margins.append(one.decision_function(features[data.test]))
    expected = np.stack(margins, axis=1)
    np.testing.assert_allclose(
        result.folds[0].test_log_probabilities,
        Probe.log_probabilities_of_margins(expected),
        rtol=1e-3,
        atol=1e-3,
    )
    again = features[data.test] @ result.probe.weights + result.probe.intercepts
    np.testing.assert_allclose(again, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("length", "rank"), [(71, 50), (245, 50), (800, 50), (500, 20)])
def test_kiros_equals_liblinear_on_features_of_any_length(length, rank):
    """As of an encoder that is not normalised; also where some directions hold rounding alone."""
    generator = np.random.default_rng(0)
    inside = generator.normal(size=(800, rank))
    features = (
        inside @ np.eye(rank, 50) if rank == 50 else inside @ generator.normal(size=(rank, 50))
    )
    features = (features * length / np.linalg.norm(features, axis=1).mean()).astype(np.float32)
    labels = (
        inside @ generator.normal(size=rank) / rank**0.5 + generator.normal(size=800) > 0
    ).astype(np.int64)
    fits = logistic.Fits(
        features,
        logistic.class_targets(labels, num_classes=2),
        trainable=np.arange(800),
        strengths=(1.0, 256.0),
        has_free_intercept=False,
    )
    everything = torch.ones(800, 1, dtype=torch.bool)
    for strength in (1.0, 16.0, 256.0):
        margins = fits.margins(fits.solve(everything, torch.tensor([strength])))[:, 0, 0].numpy()
        expected = LogisticRegression(solver="liblinear", C=strength, tol=1e-8, max_iter=10_000)
        expected.fit(features.astype(np.float64), labels)
        np.testing.assert_allclose(margins, expected.decision_function(features), atol=0.02)
    assert fits.num_unfinished == 0


def test_every_fit_at_the_step_limit_is_counted(monkeypatch):
    """Those that choose C, and those that are scored."""
    monkeypatch.setattr(logistic, "MAX_STEPS", 0)
    data = sentences_task("train-test", num_rows=160)
    result = fit_probe(task_features(HashEncoder(12), data), data, protocol="kiros")
    assert result.num_unfinished == kiros.NUM_FOLDS * len(kiros.STRENGTHS) + 1


def test_kiros_leaves_out_empty_sentences():
    """Rows without words are in no fold."""
    data = sentences_task()
    data.sentences[0][17] = ""
    result = fit_probe(task_features(HashEncoder(12), data), data, protocol="kiros")
    tested = np.concatenate([fold.test_rows for fold in result.folds])
    assert sorted(tested) == [row for row in range(120) if row != 17]


def test_pair_features():
    """Equal numbers, any equal numbers, contained numbers, words shared both ways, lengths."""
    (one,) = pair_features(["it cost 3 dollars"], ["it cost 3 big round dollars"])
    assert one.tolist() == pytest.approx([1, 1, 1, 1, 4 / 6, (4 / 6 + 6 / 4) / 2])
    (other,) = pair_features(["in 1999 and 5"], ["in 5 it was"])
    assert other.tolist() == pytest.approx([0, 0, 1, 2 / 4, 2 / 4, 1])
    assert pair_features([""], ["a b"]).tolist() == [[1, 0, 1, 0, 0, 0]]


def test_naive_bayes_features():
    """Log-ratios of smoothed fractions where a word or pair is present; 0 for those that train does not have."""
    sentences, labels = ["good film", "bad film", "good fun"], np.array([1, 0, 1])
    words = NaiveBayes(sentences, labels, torch.zeros(3, 1), torch.arange(3), is_scaled=False)
    words = words.of(torch.tensor([True, True, False])[:, None])
    ones = np.eye(words.dim, dtype=np.float32)[:, None]
    features = words.times(torch.from_numpy(ones))[:, 0].numpy()
    # Counted in train: good 1:0, bad 0:1, film 1:1, "good film" 1:0, "bad film" 0:1; both classes sum to 3 + 5.
    assert sorted(features[0][features[0] != 0]) == pytest.approx([np.log(2)] * 2)
    # Of the second sentence alone: bad and "bad film".
    assert sorted(features[1][features[1] != 0]) == pytest.approx([np.sqrt(2) * np.log(2)])
    assert sorted(features[2][features[2] != 0]) == pytest.approx([np.log(2)])


def worded(num_rows: int = 300):
    """Sentences of words that a class prefers, their vectors and their labels."""
    generator = np.random.default_rng(4)
    labels = generator.integers(0, 2, num_rows)
    chances = generator.dirichlet(np.full(80, 0.3), 2)
    sentences = [
        " ".join(f"w{word}" for word in generator.choice(80, 9, p=chances[label]))
        for label in labels
    ]
    vectors = (generator.normal(size=(num_rows, 6)) + labels[:, None] / 2).astype(np.float32)
    return sentences, vectors, labels


def test_words_of_all_problems_reach_the_objective_of_liblinear():
    """Fits of two sets of rows at three C, each with its own ratios: Newton's method on the features spelled out."""
    sentences, vectors, labels = worded()
    targets = logistic.class_targets(labels, num_classes=2)
    options = {"trainable": np.arange(300), "strengths": (1.0, 256.0), "has_free_intercept": False}
    fits = logistic.Fits(vectors, targets, scaled=partial(NaiveBayes, sentences, labels), **options)
    masks = torch.ones(300, 6, dtype=torch.bool)
    masks[:100, :3] = masks[200:, 3:] = False
    strengths = torch.tensor([1.0, 8.0, 256.0] * 2)
    solution = fits.solve(masks, strengths)
    for problem, strength in enumerate(strengths.tolist()):
        train = masks[:, problem].numpy()
        tokens = [
            [*one.split(), *zip(one.split(), one.split()[1:], strict=False)] for one in sentences
        ]
        known = sorted(
            {token for one, kept in zip(tokens, train, strict=True) if kept for token in one},
            key=str,
        )
        totals = np.array([[sum(one.count(token) for one, kept, label in zip(tokens, train, labels, strict=True)
                                if kept and label == which) for token in known] for which in (0, 1)]) + 1.0  # fmt: skip
        ratios = np.log(totals[1] / totals[1].sum()) - np.log(totals[0] / totals[0].sum())
        words = np.array([[token in one for token in known] for one in tokens]) * ratios
        rows = np.hstack([vectors, words, np.ones((300, 1))])
        expected = LogisticRegression(
            solver="newton-cholesky", C=strength, fit_intercept=False, tol=1e-12
        )
        expected.fit(rows[train], labels[train])
        weights, margins = expected.coef_[0], expected.decision_function(rows)
        ours = solution.point.weights[:, 0, problem].double().numpy()
        own_margins = solution.margins[:, 0, problem].double().numpy()
        # In double precision: where every loss is small, their sum is rounding in the solver's own.
        objectives = [
            one @ one / 2 + strength * np.logaddexp(0, -(2 * labels - 1) * of)[train].sum()
            for one, of in ((ours, own_margins), (weights, margins))
        ]
        assert objectives[0] == pytest.approx(objectives[1], rel=1e-5)
        np.testing.assert_allclose(own_margins, margins, atol=0.05)
        np.testing.assert_allclose(
            fits.probe(solution, problem, strength).weights[:, 0], weights[:6], atol=0.02
        )
    assert fits.num_unfinished == 0


def test_folds_of_words_are_solved_a_few_at_a_time():
    """Held-out scores and the choice are those of all folds at once; the probe reads vectors alone."""
    sentences, vectors, labels = worded(120)
    data = replace(sentences_task(), sentences=[sentences], labels=labels)
    few = fit_probe(vectors, data, protocol="kiros/features")
    solver = kiros._Task(vectors, data, has_extra_features=True).solver
    trains = [np.arange(120)[np.arange(120) % 25 != place] for place in range(25)]
    parts = solver.path(trains)
    solver._masks_at_once = 25
    for one, other in zip(parts, solver.path(trains), strict=True):
        # Fits that choose C stop earlier than those that are tested.
        np.testing.assert_allclose(1 / (1 + np.exp(-one)), 1 / (1 + np.exp(-other)), atol=0.01)
    assert few.probe.weights.shape == (6, 1)
    assert few.test > fit_probe(vectors, data, protocol="kiros").test


@pytest.mark.parametrize(
    ("protocol", "configuration", "message"),
    [
        ("sentevl", None, r"protocol sentevl: unknown protocol; did you mean 'senteval'\?"),
        (
            "senteval",
            "proto",
            "config proto: must be a configuration of senteval: default, prototyping",
        ),
        ("fast", "features", "config features: must be a configuration of fast: default, divided"),
    ],
)
def test_protocol_name_rejects_unknown_names(protocol, configuration, message):
    """The error gives the known names."""
    with pytest.raises(ConfigError, match=f"^{message}$"):
        protocol_name(protocol, configuration)


def senteval_data() -> Path:
    """Return the folder of published tasks, or skip."""
    folder = Path(
        os.environ.get("RAYSENT_SENTEVAL", Path(__file__).parents[2] / "shared/data/senteval")
    )
    if not folder.is_dir():
        pytest.skip(f"no {folder}; name SentEval's data/downstream with RAYSENT_SENTEVAL")
    return folder


def test_senteval_figures_on_published_data(raysent):
    """The command prints SentEval's own scores to the last digit, correlations to 1e-6."""
    data = senteval_data()
    for config, figures in (("prototyping", PROTOTYPING | RELATED), ("default", DEFAULT)):
        options = [
            "--protocol",
            f"senteval/{config}",
            "--data",
            str(data),
            "--tasks",
            ",".join(figures),
        ]
        values = json.loads(raysent("evaluate", "hash:50", *options, "--json").out)
        assert values["config"] == config
        for one in values["results"]:
            expected = figures[one["task"]]
            if one["task"] in RELATED:
                found = (
                    one["validation"] / 100,
                    one["test"] / 100,
                    one["measures"]["spearman"] / 100,
                )
                assert (*found, one["measures"]["mse"]) == pytest.approx(expected, abs=1e-6)
            else:
                published = [
                    value
                    for name, value in one["measures"].items()
                    if name not in ("macro_f1", "auroc")
                ]
                assert (one["validation"], one["test"], *published) == expected


def test_published_rows_are_read_whole():
    """SUBJ's positive class is the objective one, as SentEval has it; SST is UTF-8."""
    data = load_task("SUBJ", senteval_data())
    assert data.label_names == ("subjective", "objective")
    assert data.labels[:5000].all()
