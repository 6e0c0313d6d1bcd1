"""Ensembles: properties of the pool, what cannot be combined, the folder and its file, and predictions after loading."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import log_opinion_pool
from tiny_run import tiny_run

import raysent
from raysent import models as model
from raysent.cli.evaluate import print_ensemble
from raysent.ensembles import combine, default_folder, fit, pool, read_result
from raysent.ensembles.pools import read_combination
from raysent.ensembles.task_ensemble import fitted_folds, task_ensemble
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation import evaluate
from raysent.evaluation.bootstrap import score_interval
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.task import TaskData
from raysent.models.schemes.hash import HashEncoder
from raysent.reproduction.tasks import senteval
from raysent.storage import read_json, write_json
from raysent.training.loop import fit as fit_model

MEMBERS = ["hash:4", "hash:8", "hash:16"]


@st.composite
def predictions(draw, *, ruled_out: bool = False):
    """Draw normalised log-probabilities [members, rows, classes]; some -inf on request, never a whole row."""
    members, rows, classes = draw(
        st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 4))
    )
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = 5 * generator.standard_normal((members, rows, classes))
    if ruled_out:
        scores[..., 1:][generator.random((members, rows, classes - 1)) < 0.4] = -np.inf
    return scores - np.logaddexp.reduce(scores, axis=2, keepdims=True)


@given(predictions(ruled_out=True))
def test_pool_is_a_distribution(predicted):
    """Probabilities sum to one and nothing is NaN, also where classes are excluded."""
    pooled = pool(predicted, np.ones(len(predicted)))
    np.testing.assert_allclose(np.exp(pooled).sum(axis=1), 1)


@given(predictions(ruled_out=True), st.floats(0.1, 1))
def test_pool_of_equal_members_is_the_member(predicted, weight):
    """A single member is unchanged, and so are two equal ones of any weights that sum to one."""
    single = predicted[:1]
    np.testing.assert_allclose(pool(single, [1.0]), single[0], atol=1e-9)
    twice = np.concatenate([single, single])
    np.testing.assert_allclose(pool(twice, [weight, 1 - weight]), single[0], atol=1e-9)


@given(predictions(ruled_out=True), st.randoms(use_true_random=False))
def test_pool_follows_permutations(predicted, random):
    """Permuted rows give permuted rows; members permuted with their weights give the same."""
    weights = np.arange(1.0, len(predicted) + 1)
    rows, members = (
        random.sample(range(size), size) for size in (predicted.shape[1], len(predicted))
    )
    pooled = pool(predicted, weights)
    np.testing.assert_array_equal(pool(predicted[:, rows], weights), pooled[rows])
    np.testing.assert_allclose(pool(predicted[members], weights[members]), pooled)


@given(predictions())
def test_pool_is_the_weighted_geometric_mean(predicted):
    """The plain formula gives the same."""
    weights = np.full(len(predicted), 1 / len(predicted))
    product = np.prod(
        [np.exp(member) ** weight for member, weight in zip(predicted, weights, strict=True)],
        axis=0,
    )
    np.testing.assert_allclose(
        np.exp(pool(predicted, weights)), product / product.sum(axis=1, keepdims=True)
    )


def test_pool_keeps_excluded_classes():
    """A class that one member excludes stays excluded, unless that member has no weight."""
    predictions_of_two = np.log([[[0.5, 0.5]], [[1.0, 1e-300]]])
    predictions_of_two[1, 0, 1] = -np.inf
    assert pool(predictions_of_two, [0.5, 0.5])[0].tolist() == [0.0, -np.inf]
    np.testing.assert_allclose(pool(predictions_of_two, [1.0, 0.0]), predictions_of_two[0])


def test_pool_of_members_that_exclude_every_class():
    """If members exclude all classes together, the class with the least weight against it wins."""
    certain = np.array([[[0.0, -np.inf]], [[-np.inf, 0.0]]])
    assert pool(certain, [0.6, 0.4]).argmax() == 0
    assert pool(certain, [0.4, 0.6]).argmax() == 1
    np.testing.assert_allclose(pool(certain, [0.5, 0.5]), np.log([[0.5, 0.5]]))


def test_fit_weighs_by_validation_accuracy():
    """The base rule: w_m = s_m / sum of s."""
    right, wrong = np.log([0.9, 0.1]), np.log([0.1, 0.9])
    predicted = np.array([[right, right, right, right], [right, right, wrong, wrong]])
    found = fit(predicted, np.zeros(4, dtype=int))
    np.testing.assert_allclose(found.scores, [1, 0.5])
    np.testing.assert_allclose(found.weights, [2 / 3, 1 / 3])
    assert fit(predicted, np.zeros(4, dtype=int), method="best").weights.tolist() == [1, 0]


def test_fit_weighs_equally_if_all_scores_are_zero():
    """Scores of zero cannot be normalised."""
    assert fit(np.log([[[0.9, 0.1]], [[0.8, 0.2]]]), np.array([1])).weights.tolist() == [0.5, 0.5]


@settings(max_examples=20)
@given(st.integers(20, 400), st.floats(0.1, 0.9))
def test_interval_holds_the_score(rows, accuracy):
    """The score is inside, and the width is that of the binomial distribution."""
    right = np.arange(rows) < accuracy * rows
    rows, none = np.arange(rows), np.empty(0, int)
    predicted = np.log(np.where(right[:, None], [[0.9, 0.1]], [[0.1, 0.9]]))
    data = TaskData(
        "own", "sentence", "nested", ("no", "yes"), ([""] * len(rows),), np.zeros(len(rows), int)
    )
    low, high = score_interval(
        SimpleNamespace(folds=[FoldResult(none, predicted[:0], rows, predicted, None)]), data
    )
    score = right.mean()
    assert low <= 100 * score <= high
    width = 100 * 2 * 1.96 * np.sqrt(score * (1 - score) / len(rows))
    assert high - low == pytest.approx(width, rel=0.25, abs=150 / len(rows))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a folder with small data of CR and TREC and an ensemble of references, its result, and all records."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(senteval, "NUM_ROWS", dict.fromkeys(senteval.NUM_ROWS, 60))
        write_tasks(folder / "data")
        result = combine(
            MEMBERS, output=folder, tasks=["CR", "TREC"], data_dir=folder / "data", top=2
        )
        evaluator = Evaluator(folder / "evaluation", folder / "data", divides=True)
        found = evaluator.records(expand(MEMBERS), ["CR", "TREC"])
    return folder, result, found


def write_tasks(data) -> None:
    """Write CR and TREC of sixty lines per file; some of the words determine the class, the others are of the line."""
    generator = np.random.default_rng(0)
    word_of_line = (f"{number}{chr(97 + number % 26)}" for number in generator.permutation(1000))
    for folder in ("CR", "TREC"):
        (data / folder).mkdir(parents=True)
    for name, word in (("pos", "good"), ("neg", "bad")):
        lines = [
            f"{word if generator.random() < 0.7 else 'thing'} {next(word_of_line)}"
            for _ in range(60)
        ]
        (data / f"CR/custrev.{name}").write_text("\n".join(lines) + "\n")
    for name in ("train_5500", "TREC_10"):
        words = [("NUM", "many"), ("LOC", "where"), ("HUM", "who")]
        lines = [
            f"{label}:x {word} {next(word_of_line)}" for label, word in words for _ in range(20)
        ]
        (data / f"TREC/{name}.label").write_text("\n".join(lines) + "\n")


def kept_records(run, task: int):
    """Return the members' records of a task."""
    _, result, found = run
    by_name = {member.name: kept[task] for member, kept in found.items()}
    return [by_name[name] for name in result.members]


def test_combine_keeps_the_best_by_validation(run):
    """`top` keeps members by their mean validation score, best first."""
    _, result, found = run
    means = {
        member.name: np.mean([record.validation for record in kept])
        for member, kept in found.items()
    }
    assert list(result.members) == sorted(means, key=means.get, reverse=True)[:2]
    assert result.best_member == result.members[0]


def test_result_has_scores_with_intervals(run):
    """Scores of ensemble, baselines and members on every task and on the mean; weights by name."""
    _, result, _ = run
    for task in ("CR", "TREC"):
        scores = result.tasks[task].scores
        assert list(scores) == ["ensemble", "answer", "uniform", "best", *result.members]
        assert all(
            score.interval[0] <= score.test <= score.interval[1] for score in scores.values()
        )
        assert sum(result.tasks[task].weights.values()) == pytest.approx(1)
    means, gain = result.mean.scores, result.mean.difference
    assert gain.value == pytest.approx(means["ensemble"].test - means[result.best_member].test)
    assert gain.interval[0] <= gain.value <= gain.interval[1]


def test_result_is_read_as_it_was_returned(run):
    """`read_result` gives every value that `combine` returned."""
    folder, result, _ = run
    assert read_result(folder) == result


def test_result_that_does_not_say_its_metric_is_refused(tmp_path):
    """Earlier versions scored every task by accuracy, whatever it asked for; the line names the key that is wrong."""
    path, refused = (
        tmp_path / "ensemble.json",
        r"ensemble.json: not an ensemble of this version of raysent",
    )
    earlier = json.loads(json.dumps(EARLIER))
    del earlier["tasks"]["docs-neighbours"]["metric"]
    path.write_text(json.dumps(earlier))
    with pytest.raises(
        ArtifactError, match=refused + r" \(tasks.docs-neighbours.metric: .*; make it again$"
    ):
        read_result(tmp_path)
    path.write_text(json.dumps(EARLIER))
    result = read_result(tmp_path)
    again = json.loads(result.model_dump_json())
    assert {
        name: EARLIER[name] for name in ("paths", "keys", "members", "costs")
    }.items() <= again.items()
    assert again["mean"]["difference"] == EARLIER["mean"]["difference"]
    assert result.tasks["docs-neighbours"].diversity.contributions == {"a": 1.0, "hash:8": 0.0}
    assert result.tasks["docs-neighbours"].scores["a"].reliability[0].accuracy == 0.5
    path.write_text(json.dumps({name: value for name, value in EARLIER.items() if name != "costs"}))
    with pytest.raises(ArtifactError, match=refused + r" \(costs: "):
        read_result(tmp_path)


_MEASURES = {
    name: {"value": 0.5, "interval": [0.25, 0.75]} for name in ("accuracy", "nll", "brier", "ece")
}
_MEAN = {
    "validation": 60.0,
    "cross_fitted": {"value": 55.5, "interval": [50.0, 61.0]},
    "optimism": 4.5,
    "test": 54.0,
    "interval": [49.0, 60.0],
    "measures": _MEASURES,
}
EARLIER = {
    "kind": "raysent ensemble",
    "paths": {"a": "../../elsewhere/a", "hash:8": "hash:8"},
    "keys": {"a": "1", "hash:8": "2"},
    "method": "validation",
    "protocol": "fast",
    "members": ["a", "hash:8"],
    "best_member": "a",
    "replaced": [],
    "costs": {
        "a": {"encode_ms": 1.5, "num_bytes": 10, "training_s": None},
        "hash:8": {"encode_ms": 2.5, "num_bytes": 0, "training_s": 0.0},
    },
    "choices": [
        {
            "members": ["a"],
            "encode_ms": 1.5,
            "num_bytes": 10,
            "training_s": None,
            "score": 50.0,
            "fronts": ["encode_ms"],
        }
    ],
    "tasks": {
        "docs-neighbours": {
            "weights": {"a": 0.75, "hash:8": 0.25},
            "fold_weights": [[0.75, 0.25]],
            "is_replaced": False,
            "diagnostics": {},
            "diversity": {
                "ambiguity": None,
                "error_correlations": [[1.0, None], [None, 1.0]],
                "contributions": {"a": 1.0, "hash:8": 0.0},
            },
            "scores": {
                name: {**_MEAN, "num_replaced": 0, "reliability": [[0.75, 0.5, 20]]}
                for name in ("ensemble", "uniform", "best", "a", "hash:8")
            },
            "combination": {"kind": "logarithmic", "weights": [0.75, 0.25]},
            "keys": {"a": "3", "hash:8": "4"},
            "row_hash": "5",
            "metric": "accuracy",
            "label_names": ["no", "yes"],
        }
    },
    "mean": {
        "scores": dict.fromkeys(("ensemble", "uniform", "best", "a", "hash:8"), _MEAN),
        "difference": {"value": 0.5, "interval": [-1.0, 2.0]},
        "over_baseline": {"baseline": "tfidf"},
    },
}


def test_weights_come_from_the_validation_rows_of_each_fold(run):
    """In every outer fold w_m = s_m / sum of s on the fold's validation rows; a divided task has one fold."""
    _, result, _ = run
    kept, task = kept_records(run, 0), result.tasks["CR"]
    assert np.shape(task.fold_weights) == (1, 2)
    for fold in range(1):
        accuracies = [
            (
                r.folds[fold].validation_log_probabilities.argmax(1)
                == r.labels[r.folds[fold].validation_rows]
            ).mean()
            for r in kept
        ]
        np.testing.assert_allclose(task.fold_weights[fold], np.array(accuracies) / sum(accuracies))
    assert result.protocol == "fast/divided"


@pytest.mark.parametrize("method", ["validation", "uniform"])
@pytest.mark.parametrize("task", [0, 1])
def test_rows_follow_the_rule_of_their_name(run, task, method):
    """The rows `validation` and `uniform` equal the published rule restated in NumPy, row by row, to 1e-12."""
    _, result, _ = run
    kept, name = kept_records(run, task), list(result.tasks)[task]
    right = []
    for found, *folds in zip(
        fitted_folds(kept, method=method), *(record.folds for record in kept), strict=True
    ):
        labels = kept[0].labels[folds[0].validation_rows]
        scores = [np.mean(fold.validation_log_probabilities.argmax(1) == labels) for fold in folds]
        expected = log_opinion_pool(
            [fold.test_log_probabilities for fold in folds],
            scores if method == "validation" else [1.0, 1.0],
        )
        pooled = found.fitted.combination([fold.test_log_probabilities for fold in folds])
        np.testing.assert_allclose(pooled, expected, rtol=0, atol=1e-12)
        right.extend(expected.argmax(1) == kept[0].labels[folds[0].test_rows])
    row = "ensemble" if method == result.method else method
    assert result.tasks[name].scores[row].test == pytest.approx(100 * np.mean(right), abs=1e-12)


def test_task_ensemble_of_one_member_scores_as_the_member(run):
    """An ensemble of one has the scores of its record."""
    record = kept_records(run, 0)[0]
    found = task_ensemble([record], method="validation")
    assert found.scores["ensemble"].test == pytest.approx(record.test)
    assert found.scores["ensemble"].validation == pytest.approx(record.validation)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"row_hash": "other"}, "rows"),
        ({"label_names": ("a", "b")}, "classes"),
        ({"protocol": "senteval"}, "protocol"),
        ({"task": "MR"}, "task"),
    ],
)
def test_task_ensemble_refuses_incompatible_records(run, change, word):
    """Other rows, classes, protocols or tasks: an error of one line that names both members."""
    _, _, found = run
    first, second = (kept[0] for kept in list(found.values())[:2])
    message = rf"^CR: members must be evaluated on the same {word}; 'hash:4' has .*, 'hash:8' has .*; evaluate them together$"
    with pytest.raises(ArtifactError, match=message):
        task_ensemble([first, dataclasses.replace(second, **change)], method="validation")


def test_ensemble_encodes_after_its_folder_moved(run):
    """`load` gives an encoder whose vectors are the members' unit vectors one after another."""
    folder, result, _ = run
    moved = folder.parent / "moved"
    shutil.copytree(folder, moved, dirs_exist_ok=True)
    loaded = model.load(moved)
    sizes = [int(name.removeprefix("hash:")) for name in result.members]
    vectors = loaded.encode(["who is it", ""])
    assert vectors.shape == (2, loaded.get_sentence_embedding_dimension()) == (2, sum(sizes))
    first = HashEncoder(sizes[0]).encode(["who is it", ""], normalize_embeddings=True)
    np.testing.assert_array_equal(vectors[:, : sizes[0]], first)
    assert np.linalg.norm(loaded.encode(["who is it"], normalize_embeddings=True)) == pytest.approx(
        1
    )


def test_ensemble_predicts_as_the_combination_of_its_records(run):
    """On the test rows the loaded ensemble predicts what the combination of the records' probes does."""
    folder, result, _ = run
    kept = kept_records(run, 1)
    sentences = [
        line.partition(" ")[2]
        for line in (folder / "data/TREC/TREC_10.label").read_text().splitlines()
    ]
    of_members = np.stack([record.folds[0].test_log_probabilities for record in kept])
    expected = read_combination(result.tasks["TREC"].combination, source="here")(of_members)
    loaded = model.load(folder)
    np.testing.assert_allclose(loaded.predictors["TREC"].combined([sentences]), expected, atol=1e-4)
    calibrated = result.tasks["TREC"].calibration(expected)
    np.testing.assert_allclose(
        loaded.predict_log_probabilities("TREC", sentences), calibrated, atol=1e-3
    )
    np.testing.assert_allclose(loaded.predict_proba("TREC", sentences).sum(axis=1), 1)
    assert loaded.predict("TREC", sentences) == [
        kept[0].label_names[best] for best in expected.argmax(axis=1)
    ]
    assert loaded.tasks == ["CR", "TREC"]


def test_load_ensemble_refuses_what_changed(run, tmp_path):
    """A member or a record that changed since is an error."""
    shutil.copytree(run[0], tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/evaluation/hash%3A16")
    with pytest.raises(
        ArtifactError,
        match=r"hash%3A16/fast-divided/TREC.json: missing or changed since the ensemble was made",
    ):
        model.load(tmp_path / "copy").predict("TREC", ["a"])
    about = read_json(tmp_path / "copy/ensemble.json")
    about["keys"]["hash:16"] = "other"
    write_json(tmp_path / "copy/ensemble.json", about, sealed=True)
    with pytest.raises(
        ArtifactError, match=r"ensemble.json: member 'hash:16' changed since the ensemble was made"
    ):
        model.load(tmp_path / "copy")
    (tmp_path / "copy/ensemble.json").write_text("{}")
    with pytest.raises(
        ArtifactError, match=r"ensemble.json: not an ensemble of this version of raysent"
    ):
        model.load(tmp_path / "copy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, r"^top 0: must be at least 1$"),
        ({"method": "bets"}, r"^method bets: unknown ensemble method; did you mean 'best'\?$"),
    ],
)
def test_combine_refuses_wrong_options(tmp_path, options, message):
    """Options are checked before anything is encoded."""
    with pytest.raises(ConfigError, match=message):
        combine(["hash:4"], output=tmp_path, **options)


@pytest.mark.parametrize("file", ["model.json", "model/model.json", "run.json"])
def test_combine_refuses_the_folder_of_a_model(tmp_path, file):
    """Loading such a folder would give the model, not the ensemble."""
    (tmp_path / "a" / file).parent.mkdir(parents=True)
    (tmp_path / "a" / file).write_text("{}")
    message = (
        r"^output .*a: must be a folder without a model; given the folder of one; name another$"
    )
    with pytest.raises(ConfigError, match=message):
        combine(["hash:4"], output=tmp_path / "a")
    assert not (tmp_path / "a/ensemble.json").exists()


def test_combine_uses_records_in_the_members_folders(tmp_path, monkeypatch):
    """What was evaluated in a model's folder is copied, not evaluated again."""
    fit_model(tiny_run(tmp_path), tmp_path / "a")
    first = Evaluator(tmp_path / "a/evaluation").records(
        expand([tmp_path / "a"]), ["docs-neighbours"]
    )
    monkeypatch.setattr(evaluate.Job, "run", Mock(side_effect=AssertionError("evaluated again")))
    result = combine([tmp_path / "a"], output=tmp_path / "both", tasks=["docs-neighbours"])
    (record,) = next(iter(first.values()))
    assert result.tasks["docs-neighbours"].keys == {"a": record.key}
    assert model.load(tmp_path / "both").label_names("docs-neighbours") == record.label_names


def test_combine_saves_members_in_memory(tmp_path):
    """The ensemble's folder holds a copy of a model in memory; an encoder that cannot be saved is refused."""
    fit_model(tiny_run(tmp_path), tmp_path / "a")
    encoder = model.load(tmp_path / "a")
    encoder.source = None
    result = combine([encoder, "hash:4"], output=tmp_path / "both", tasks=["docs-neighbours"])
    assert result.paths == {"SentenceModel": "members/SentenceModel", "hash:4": "hash:4"}
    (tmp_path / "both").rename(tmp_path / "moved")
    place = result.members.index("SentenceModel")
    vectors = model.load(tmp_path / "moved").members[place].encoder.encode(["a cat"])
    np.testing.assert_array_equal(vectors, encoder.encode(["a cat"]))
    message = r"^models: an ensemble needs models that can be loaded again; given a HashEncoder in memory; name its folder"
    with pytest.raises(ConfigError, match=message):
        combine([HashEncoder(4)], output=tmp_path / "other", tasks=["docs-neighbours"])


@pytest.mark.parametrize("models", ["hash:4", Path("hash:4"), HashEncoder(4), iter(["hash:4"])])
def test_models_are_one_or_several_of_any_kind(monkeypatch, models):
    """A name is no list of letters, and a generator is read once."""
    combined = Mock()
    monkeypatch.setattr("raysent.pipeline.evaluation.combine", combined)
    monkeypatch.setattr("raysent.pipeline.evaluation.load_ensemble", Mock())
    raysent.ensemble(models, tasks="docs-neighbours", progress=False)
    [[one]] = combined.call_args.args
    assert isinstance(one, HashEncoder) or str(one) == "hash:4"


def test_default_folder_is_a_new_one_or_the_sweeps(tmp_path):
    """An ensemble of one sweep's trials is kept in the sweep's folder, any other one in a new folder."""
    (tmp_path / "sweep.json").write_text("{}")
    assert default_folder([tmp_path]) == tmp_path
    for models in (["hash:4"], [tmp_path, "hash:4"]):
        assert re.fullmatch(r"runs/ensemble-\d{8}-\d{6}", default_folder(models).as_posix())


def test_rule_of_a_sweeps_answer_stands_beside_the_method(run, capsys):
    """A line says where it is better by cross-fitting, and how to save it."""
    _, result, _ = run
    scores = result.mean.scores
    gain = scores["answer"].cross_fitted.value - scores["ensemble"].cross_fitted.value
    assert result.gain_of_answer() == (gain if gain > 0 else None)
    better = scores["answer"].cross_fitted.value + 100.0
    above = dataclasses.replace(
        scores["answer"],
        cross_fitted=dataclasses.replace(scores["answer"].cross_fitted, value=better),
    )
    mean = dataclasses.replace(result.mean, scores={**scores, "answer": above})
    print_ensemble(result.model_copy(update={"mean": mean}))
    printed = capsys.readouterr()
    lines = " ".join((printed.out + printed.err).split())
    assert "points above validation by cross-fitting" in lines
    assert "--method answer' saves it" in lines
