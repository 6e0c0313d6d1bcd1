"""Scores of ensembles: intervals, calibration, what members add and cost."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from model_folders import write_model
from reference import calibration_error
from sklearn.metrics import f1_score
from test_ensemble_methods import drawn

from raysent.ensembles import combine, pool
from raysent.ensembles.measures import NUM_BINS, contributions, measure
from raysent.ensembles.predictions import MemberPredictions
from raysent.ensembles.result import MemberCost, member_cost, total_cost
from raysent.ensembles.task_ensemble import fitted_folds, task_ensemble
from raysent.errors import ArtifactError
from raysent.evaluation.bootstrap import Resamples
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.records import Record, read_record
from raysent.evaluation.targets import Targets
from raysent.evaluation.task_files import OwnTask
from raysent.storage import safe_name, write_json


def nll(log_probabilities, labels):
    """Return the mean NLL."""
    return -log_probabilities[np.arange(len(labels)), labels].mean()


def measured(predictions, labels):
    """Return the measures of predictions of all rows of a task."""
    return measure(
        predictions, labels, rows=np.arange(len(labels)), resamples=Resamples.of("x", len(labels))
    )


def test_measures_equal_their_definitions():
    """Accuracy, NLL and Brier score are plain means; each is in its interval."""
    (predictions,), labels = drawn(np.random.default_rng(1), members=1, rows=200)
    estimates = measured(predictions, labels)[0]
    brier = ((np.exp(predictions) - np.eye(3)[labels]) ** 2).sum(axis=1).mean()
    wanted = {
        "accuracy": 100 * (predictions.argmax(1) == labels).mean(),
        "nll": nll(predictions, labels),
        "brier": brier,
    }
    for name, value in wanted.items():
        assert estimates[name].value == pytest.approx(value)
        assert estimates[name].interval[0] < value < estimates[name].interval[1]


def test_measures_calibration_error_equals_the_plain_one():
    """Bins hold equally many rows, by rising confidence."""
    (predictions,), labels = drawn(np.random.default_rng(2), members=1, rows=301)
    estimates, bins = measured(predictions, labels)
    assert estimates["ece"].value == pytest.approx(
        100 * calibration_error(predictions, labels, num_bins=NUM_BINS)
    )
    assert sum(one.num_rows for one in bins) == 301
    confidences = [one.confidence for one in bins]
    assert confidences == sorted(confidences)


def test_measures_give_an_excluded_class_a_finite_nll():
    """A right class of probability zero counts 745 nats."""
    predictions = np.array([[0.0, -np.inf], [0.0, -np.inf]])
    assert measured(predictions, np.array([0, 1]))[0]["nll"].value == pytest.approx(745 / 2)


def test_resamples_of_one_task_are_paired():
    """Predictions that are right on the same rows do not differ in any resample; another task is drawn anew."""
    (predictions,), labels = drawn(np.random.default_rng(3), members=1, rows=50)
    part = (np.arange(50), Targets(labels), predictions)
    one, other = Resamples.of("x", 50).estimates(
        [part, (np.arange(50), Targets(labels), 2 * predictions)]
    )
    assert one.minus(other).interval == (0.0, 0.0)
    assert (Resamples.of("y", 50).estimates([part])[0].draws != one.draws).any()


def test_resamples_of_rated_pairs_are_correlations():
    """The scores of resamples are Pearson's correlations on the drawn rows."""
    generator = np.random.default_rng(4)
    (predictions,), labels = drawn(generator, members=1, rows=40, classes=5, signal=3)
    scores = labels + 1 + generator.random(40)
    resamples = Resamples.of("x", 40)
    (estimate,) = resamples.estimates([(np.arange(40), Targets(labels, scores), predictions)])
    rows = np.repeat(np.arange(40), resamples._counts[7])
    ratings = np.exp(predictions) @ np.arange(1, 6)
    assert estimate.draws[7] == pytest.approx(100 * np.corrcoef(ratings[rows], scores[rows])[0, 1])
    assert estimate.value == pytest.approx(100 * np.corrcoef(ratings, scores)[0, 1])


def test_contributions_are_lost_points():
    """Without the only good member the score falls; without a random one it does not."""
    labels = np.random.default_rng(7).integers(0, 2, 200)
    useless = drawn(np.random.default_rng(8), members=2, rows=200, classes=2)[0]
    good = np.log(np.where(np.eye(2)[labels] == 1, 0.999, 0.001))[None]
    found = contributions(
        MemberPredictions(np.concatenate([good, useless])),
        Targets(labels),
        method="best",
        names="abc",
    )
    assert found["a"] > 20
    assert (found["b"], found["c"]) == (0, 0)
    assert contributions(MemberPredictions(good), Targets(labels), method="best", names="a") == {}


def cost(encode_ms, num_bytes, training_s):
    """Return a member's cost."""
    return MemberCost(encode_ms=encode_ms, num_bytes=num_bytes, training_s=training_s)


def timed(seconds, *, num_rows, kind="sentence"):
    """Return what is read of a record for its cost."""
    return SimpleNamespace(labels=np.zeros(num_rows), kind=kind, about={"seconds": seconds})


def test_member_cost_is_the_median_time_over_records():
    """Milliseconds for 1,000 sentences; older records have seconds alone, for all sentences: two in a pair."""
    member = Member("hash:8", "hash:8", "key")
    measured = timed({"encode_s": 9.0, "encode_ms_per_1000": 4.0}, num_rows=1)
    older = timed({"encode_s": 0.5}, num_rows=50)
    pairs = timed({"encode_s": 0.5}, num_rows=50, kind="pair")
    assert member_cost(member, [measured]) == cost(4.0, 0, 0.0)
    assert member_cost(member, [older]) == cost(10_000.0, 0, 0.0)
    assert member_cost(member, [older, measured, pairs]) == cost(5_000.0, 0, 0.0)


def test_member_cost_of_a_model_is_that_of_its_folder(tmp_path):
    """Bytes of its files and seconds of its training; None where its run has left no outcome."""
    folder = write_model(tmp_path / "model")
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    member, records = Member("model", str(folder), "key"), [timed({"encode_s": 0.02}, num_rows=10)]
    assert member_cost(member, records) == cost(2000.0, num_bytes, None)
    write_json(folder / "outcome.json", {"seconds": 90.0})
    assert member_cost(member, records) == cost(2000.0, num_bytes, 90.0)
    assert member_cost(Member("gone", str(tmp_path / "gone"), "key"), records) == cost(
        2000.0, 0, None
    )


def test_total_cost_adds_up():
    """The time of training too, where it is known for each."""
    assert total_cost([cost(1.0, 2, 3.0), cost(0.5, 20, 30.0)]) == cost(1.5, 22, 33.0)
    assert total_cost([cost(1.0, 2, 0.0)]) == cost(1.0, 2, 0.0)


def rated_records():
    """Return two members' records of a small task of rated pairs, with given validation and test rows."""
    generator = np.random.default_rng(10)
    ratings = generator.integers(0, 5, 80)
    scores = np.clip(ratings + 1 + generator.uniform(-0.4, 0.4, 80), 1, 5)
    rows = np.split(np.arange(80), 2)
    found = []
    for name, noise in (("a", 0.8), ("b", 2.0)):
        predictions = (
            -0.5
            * (np.arange(5) - ratings[:, None] - noise * generator.standard_normal((80, 1))) ** 2
        )
        predictions -= np.logaddexp.reduce(predictions, axis=1, keepdims=True)
        fold = FoldResult(rows[0], predictions[rows[0]], rows[1], predictions[rows[1]], 1.0)
        record = Record(name, name, "pairs", "pair", "fast", tuple("12345"), "r", name, ratings, scores, 0.0, 0.0, {}, (fold,), None, {})  # fmt: skip
        found.append(record)
    return found


def test_task_ensemble_of_rated_pairs_scores_by_correlation():
    """Relatedness: the distributions over rating levels are pooled, and the score correlates the expected rating."""
    records = rated_records()
    found = task_ensemble(records, method="uniform")
    tested = np.stack([record.folds[0].test_log_probabilities for record in records])
    ratings = np.exp(pool(tested, [0.5, 0.5])) @ np.arange(1, 6)
    alone = [np.exp(member) @ np.arange(1, 6) for member in tested]
    scores = records[0].scores[40:]
    assert found.scores["ensemble"].test == pytest.approx(
        100 * np.corrcoef(ratings, scores)[0, 1], abs=1e-12
    )
    assert found.scores["b"].test == pytest.approx(100 * np.corrcoef(alone[1], scores)[0, 1])
    low, high = found.scores["ensemble"].interval
    assert low < found.scores["ensemble"].test < high


def test_task_ensemble_needs_log_probabilities():
    """Records of a protocol that keeps scores alone are refused, with the member and what to do."""
    first, second = rated_records()
    fold = dataclasses.replace(second.folds[0], test_log_probabilities=np.empty((0, 5)))
    for folds in ((), (fold,)):
        bare = dataclasses.replace(second, protocol="senteval", folds=folds)
        message = r"^pairs: members must be evaluated on the same protocol; 'a' has fast, 'b' has senteval"
        with pytest.raises(ArtifactError, match=message):
            task_ensemble([first, bare], method="uniform")
        message = r"^pairs: an ensemble needs log-probabilities of every row; 'b', evaluated with protocol senteval, has none"
        with pytest.raises(ArtifactError, match=message):
            task_ensemble([bare], method="uniform")


def test_an_ensemble_is_scored_by_the_metric_of_its_task(tmp_path):
    """A pool that predicts the majority class loses by macro F1, as `evaluate` would say, and the line says why."""
    generator = np.random.default_rng(0)
    labels = np.where(np.arange(1500) % 10, "many", "few")
    shown = np.where((labels == "few") | (generator.uniform(size=1500) < 0.3), "red", "blue")
    # Each text is another one: what is nearly the same would be one unit.
    texts = [
        f"a {word} thing w{generator.integers(40)} w{generator.integers(40)} {row**3 * 7919}"
        for row, word in enumerate(shown)
    ]
    task = OwnTask(pd.DataFrame({"text": texts, "label": labels}), name="own", metric="macro_f1")
    result = combine(["hash:50", "hash:100", "tfidf"], output=tmp_path, tasks=[task], method="pool")
    scores = result.tasks["own"].scores
    for one in Evaluator(tmp_path / "evaluation").evaluate(
        ["hash:50", "hash:100", "tfidf"], [task]
    ):
        assert scores[one.model].test == pytest.approx(one.test)
        assert scores[one.model].validation == pytest.approx(one.validation)
    records = [
        read_record(tmp_path / "evaluation" / safe_name(name), "own") for name in result.members
    ]
    tested = []
    for number, fitted in enumerate(fitted_folds(records, method="pool")):
        folds = [record.folds[number] for record in records]
        predicted = fitted.predict([one.test_log_probabilities for one in folds]).argmax(axis=1)
        tested.append((records[0].labels[folds[0].test_rows], predicted))
    truth, predicted = (np.concatenate(part) for part in zip(*tested, strict=True))
    pooled, best = scores["ensemble"], scores[result.best_member]
    assert pooled.test == pytest.approx(100 * f1_score(truth, predicted, average="macro"))
    assert result.mean.difference.value == pytest.approx(pooled.test - best.test)
    assert pooled.measures["accuracy"].value > best.measures["accuracy"].value
    assert pooled.test < pooled.measures["accuracy"].value - 30
    assert pooled.validation < best.validation
    assert result.remarks() == [
        "own: pool fits the log loss, as it cannot fit macro_f1; scores are macro_f1"
    ]
    weights = (
        combine(["hash:50", "hash:100"], output=tmp_path / "two", tasks=[task])
        .tasks["own"]
        .fold_weights[0]
    )
    folds = [kept_validation(tmp_path / "two", name) for name in ("hash:50", "hash:100")]
    found = np.array([f1_score(truth, predicted, average="macro") for truth, predicted in folds])
    np.testing.assert_allclose(sorted(weights), sorted(found / found.sum()))


def test_correlations_have_no_place_in_the_mean_over_tasks(tmp_path):
    """It is that of the tasks with classes, of the ensemble's gain too; of scored pairs alone it is theirs."""
    generator = np.random.default_rng(0)
    texts = [f"{word} w{generator.integers(40)}" for word in ("red", "blue", "green") * 20]
    classes = OwnTask(pd.DataFrame({"text": texts, "label": ["a", "b", "c"] * 20}), name="own")
    pairs = {"text_a": texts, "text_b": texts[::-1], "score": generator.uniform(size=60)}
    scored = OwnTask(pd.DataFrame(pairs), name="near")
    result = combine(["hash:4", "hash:8"], output=tmp_path / "both", tasks=[classes, scored])
    for name, mean in result.mean.scores.items():
        assert mean.test == pytest.approx(result.tasks["own"].scores[name].test)
    scores = result.tasks["own"].scores
    assert result.mean.difference.value == pytest.approx(
        scores["ensemble"].test - scores[result.best_member].test
    )
    alone = combine(["hash:4", "hash:8"], output=tmp_path / "alone", tasks=[scored])
    assert alone.mean.scores["ensemble"].test == pytest.approx(
        alone.tasks["near"].scores["ensemble"].test
    )


def kept_validation(folder, model):
    """Return the labels and the predicted classes of the validation rows of the first outer fold."""
    record = read_record(folder / "evaluation" / safe_name(model), "own")
    fold = record.folds[0]
    return record.labels[fold.validation_rows], fold.validation_log_probabilities.argmax(axis=1)
