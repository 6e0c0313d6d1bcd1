"""Scores of ensembles: intervals, calibration, diversity, costs and the front of score against cost."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import write_model
from reference import calibration_error, growing_subsets
from sklearn.metrics import f1_score
from test_ensemble_methods import SEEDS, drawn

from raysent.ensembles import Targets, combine, pool
from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.measures import NUM_BINS, ambiguity, diversity, error_correlations, measure
from raysent.ensembles.predictions import MemberPredictions
from raysent.ensembles.selection import (
    CostLimits,
    MemberCost,
    MemberSubset,
    best_within,
    find_subsets,
    member_cost,
    total_cost,
)
from raysent.ensembles.task_ensemble import fitted_folds, task_ensemble
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.bootstrap import Resamples
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, folder_name
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.records import Record, read_record
from raysent.evaluation.task_files import OwnTask
from raysent.storage import write_json


def nll(log_probabilities, labels):
    """Return the mean NLL."""
    return -log_probabilities[np.arange(len(labels)), labels].mean()


def measured(predictions, labels):
    """Return the measures of predictions of all rows of a task."""
    return measure(predictions, labels, rows=np.arange(len(labels)), resamples=Resamples.of("x", len(labels)))


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
    assert estimates["ece"].value == pytest.approx(100 * calibration_error(predictions, labels, num_bins=NUM_BINS))
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
    one, other = Resamples.of("x", 50).estimates([part, (np.arange(50), Targets(labels), 2 * predictions)])
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


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 4))
def test_ambiguity_is_what_pooling_gains(seed, members):
    """The pool's NLL is the weighted mean of its members' minus the ambiguity, whatever the labels."""
    predictions, labels = drawn(np.random.default_rng(seed), members=members)
    weights = np.random.default_rng(seed).dirichlet(np.ones(members))
    mean = weights @ [nll(member, labels) for member in predictions]
    assert nll(pool(predictions, weights), labels) == pytest.approx(
        mean - ambiguity(MemberPredictions(predictions), weights)
    )


def test_ambiguity_is_zero_if_members_agree():
    """It stays finite where a member excludes a class; a member of weight 0 has no effect."""
    predictions, _ = drawn(np.random.default_rng(5), members=1)
    assert ambiguity(
        MemberPredictions(np.concatenate([predictions, predictions])), np.array([0.3, 0.7])
    ) == pytest.approx(0)
    certain = np.array([[[0.0, -np.inf]], [[np.log(0.5)] * 2]])
    assert np.isfinite(ambiguity(MemberPredictions(certain), np.array([0.5, 0.5])))
    assert ambiguity(MemberPredictions(certain), np.array([0.0, 1.0])) == 0


def test_error_correlations_equal_numpy():
    """Pearson's correlations of errors; NaN for a member without errors."""
    predictions, labels = drawn(np.random.default_rng(6), members=2, rows=60)
    perfect = np.log(np.where(np.eye(3)[labels] == 1, 0.9, 0.05))
    found = error_correlations(MemberPredictions(np.concatenate([predictions, perfect[None]])), Targets(labels))
    wrong = predictions.argmax(axis=2) != labels
    np.testing.assert_allclose(found[:2, :2], np.corrcoef(wrong))
    assert np.isnan(found[2]).all()


def test_contributions_are_lost_points():
    """Without the only good member the score falls; without a random one it does not."""
    labels = np.random.default_rng(7).integers(0, 2, 200)
    useless = drawn(np.random.default_rng(8), members=2, rows=200, classes=2)[0]
    good = np.log(np.where(np.eye(2)[labels] == 1, 0.999, 0.001))[None]
    found = diversity(MemberPredictions(np.concatenate([good, useless])), Targets(labels), method="best", names="abc")
    assert found.contributions["a"] > 20
    assert (found.contributions["b"], found.contributions["c"]) == (0, 0)
    assert diversity(MemberPredictions(good), Targets(labels), method="best", names="a").contributions == {}


def cost(encode_ms, num_bytes, training_s):
    """Return a member's cost."""
    return MemberCost(encode_ms=encode_ms, num_bytes=num_bytes, training_s=training_s)


def some_subsets():
    """Return costs and subsets of a cheap, an expensive and a random member; the expensive one is the best."""
    generator = np.random.default_rng(9)
    labels = generator.integers(0, 2, 300)
    signals = (1.0, 2.0, 0.0)
    predictions = np.concatenate([drawn(generator, members=1, rows=300, classes=2)[0] for _ in signals])
    predictions[:, np.arange(300), labels] += np.array(signals)[:, None]
    predictions -= np.logaddexp.reduce(predictions, axis=2, keepdims=True)
    costs = {"cheap": cost(1.0, 30, 5.0), "expensive": cost(10.0, 20, None), "random": cost(20.0, 10, 1.0)}
    return costs, find_subsets([(MemberPredictions(predictions), Targets(labels))], costs)


def test_find_subsets_returns_single_members_and_all_together():
    """Costs add up; the time of training is unknown if one member's is."""
    costs, found = some_subsets()
    subsets = {frozenset(one.members): one for one in found}
    assert {frozenset([name]) for name in costs} | {frozenset(costs)} <= subsets.keys()
    total = total_cost(list(costs.values()))
    assert total == cost(31.0, 60, None)
    assert subsets[frozenset(costs)].model_dump().items() >= total.model_dump().items()
    assert [one.encode_ms for one in found] == sorted(one.encode_ms for one in found)


@pytest.mark.parametrize("attribute", ["encode_ms", "num_bytes"])
def test_find_subsets_ratings_the_front(attribute):
    """A subset is on the front exactly if no other scores the same for less, or higher for as much."""
    _, found = some_subsets()
    for one in found:
        mine = (getattr(one, attribute), -one.score)
        others = [(getattr(other, attribute), -other.score) for other in found]
        beaten = any(theirs != mine and theirs[0] <= mine[0] and theirs[1] <= mine[1] for theirs in others)
        assert (attribute in one.fronts) == (not beaten)


def test_best_within_keeps_to_the_limits():
    """The best subset that costs no more; if there is none, the error names the cheapest member."""
    _, found = some_subsets()
    assert best_within(found, CostLimits(encode_ms=5.0)).members == ("cheap",)
    assert best_within(found, CostLimits(encode_ms=10.0, num_bytes=20)).members == ("expensive",)
    message = r"^max_ms 0.5: at least one member must be within it; 'cheap' has the least, 1; raise it$"
    with pytest.raises(ConfigError, match=message):
        best_within(found, CostLimits(encode_ms=0.5))
    with pytest.raises(ConfigError, match=r"^max_bytes -1: must be at least 0$"):
        CostLimits(num_bytes=-1)


# In these draws the subsets depend on how a loss is weighed by the cost (15 and 20), and on the score of no member (29).
@pytest.mark.parametrize("seed", [0, 15, 20, 29])
def test_find_subsets_are_those_of_three_growing_paths(seed):
    """By score alone, by score per millisecond and per byte, beside every member alone; scored out of fold.

    One task is of classes, some of which a member excludes, the other one of rated pairs.
    """
    generator = np.random.default_rng(seed)
    classes, labels = drawn(generator, members=4, rows=30)
    classes[1, labels == 0, 1] = -np.inf
    ratings, levels = drawn(generator, members=4, rows=30, classes=5)
    targets = [Targets(labels), Targets(levels, levels + 1 + generator.uniform(-0.4, 0.4, 30))]
    values = [cost(*pair, 1.0) for pair in zip(generator.permutation([1.0, 2.0, 4.0, 8.0]), [3, 0, 5, 40], strict=True)]
    costs = dict(zip("abcd", values, strict=True))
    tasks = list(zip([MemberPredictions(classes), MemberPredictions(ratings)], targets, strict=True))

    scored = [(predictions, one.score) for predictions, one in zip((classes, ratings), targets, strict=True)]
    weights = [np.maximum([score(member) for member in predictions], 0) for predictions, score in scored]
    weights = [of_task / sum(of_task) for of_task in weights]
    wanted = {frozenset([member]): (member,) for member in range(4)}
    milliseconds, sizes = [one.encode_ms for one in values], [max(one.num_bytes, 1e-9) for one in values]
    for of_members in ([1.0] * 4, milliseconds, sizes):
        for members in growing_subsets(scored, weights, of_members):
            wanted.setdefault(frozenset(members), members)

    found = find_subsets(tasks, costs)
    assert sorted(one.members for one in found) == sorted(
        tuple("abcd"[member] for member in members) for members in wanted.values()
    )
    for one in found:
        members = ["abcd".index(name) for name in one.members]
        scores = [task.score(held_out(made.select(members), task, method="validation")) for made, task in tasks]
        assert one.score == pytest.approx(100 * sum(scores) / 2)
        total = total_cost([costs[name] for name in one.members])
        assert (one.encode_ms, one.num_bytes, one.training_s) == (total.encode_ms, total.num_bytes, total.training_s)
    order = [(one.encode_ms, one.num_bytes, -one.score) for one in found]
    assert order == sorted(order)


def test_find_subsets_divides_no_gain_by_zero():
    """Members without files cost no bytes; of equal ones the first is added first, and none beats the other."""
    predictions, labels = drawn(np.random.default_rng(3), members=1)
    costs = {"a": cost(1.0, 0, 0.0), "b": cost(1.0, 0, 0.0)}
    found = find_subsets([(MemberPredictions(np.concatenate([predictions] * 2)), Targets(labels))], costs)
    assert {one.members for one in found} == {("a",), ("b",), ("a", "b")}
    fronts = {one.members: one.fronts for one in found}
    assert fronts[("a",)] == fronts[("b",)] == ("encode_ms", "num_bytes")
    assert fronts[("a", "b")] == ("num_bytes",)


def test_find_subsets_puts_the_better_of_equal_cost_first():
    """And only the better one is on the fronts."""
    generator = np.random.default_rng(4)
    good, labels = drawn(generator, members=1, rows=60, signal=4.0)
    random = drawn(generator, members=1, rows=60, signal=0.0)[0]
    costs = {"random": cost(1.0, 10, 1.0), "good": cost(1.0, 10, 1.0)}
    found = find_subsets([(MemberPredictions(np.concatenate([random, good])), Targets(labels))], costs)
    assert [one.members for one in found[:2]] == [("good",), ("random",)]
    assert [one.fronts for one in found[:2]] == [("encode_ms", "num_bytes"), ()]


def subset(*members, encode_ms=1.0, num_bytes=1, score=50.0):
    """Return a subset of members."""
    return MemberSubset(
        encode_ms=encode_ms, num_bytes=num_bytes, training_s=None, members=members, score=score, fronts=()
    )


def test_best_within_takes_the_first_of_equal_scores():
    """A limit is reached, not passed; without limits the best of all is taken."""
    found = [subset("a", encode_ms=2.0), subset("b", encode_ms=3.0), subset("c", encode_ms=4.0, score=60.0)]
    assert best_within(found, CostLimits(encode_ms=3.0)).members == ("a",)
    assert best_within(found, CostLimits(encode_ms=4.0)).members == ("c",)
    assert best_within(found, CostLimits()).members == ("c",)
    assert best_within([subset("free", encode_ms=0.0, num_bytes=0)], CostLimits(0.0, 0)).members == ("free",)


def test_best_within_names_the_cheapest_member_for_each_limit():
    """Single members alone, since a limit that lets none in lets no larger subset in either."""
    found = [
        subset("small", encode_ms=3000.0, num_bytes=200_000),
        subset("fast", encode_ms=1234.5, num_bytes=300_000),
        subset("small", "fast", encode_ms=1.0, num_bytes=1),
    ]
    message = (
        r"^max_ms 0.25 max_bytes 5: at least one member must be within it; 'fast' has the least, 1,234.5; "
        r"'small' has the least, 200,000; raise it$"
    )
    with pytest.raises(ConfigError, match=message):
        best_within(found, CostLimits(encode_ms=0.25, num_bytes=5))
    with pytest.raises(ConfigError, match=r"^max_ms nan: must be at least 0$"):
        CostLimits(encode_ms=float("nan"))


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
    assert member_cost(Member("gone", str(tmp_path / "gone"), "key"), records) == cost(2000.0, 0, None)


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
        predictions = -0.5 * (np.arange(5) - ratings[:, None] - noise * generator.standard_normal((80, 1))) ** 2
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
    assert found.scores["ensemble"].test == pytest.approx(100 * np.corrcoef(ratings, scores)[0, 1], abs=1e-12)
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
        message = (
            r"^pairs: an ensemble needs log-probabilities of every row; 'b', evaluated with protocol senteval, has none"
        )
        with pytest.raises(ArtifactError, match=message):
            task_ensemble([bare], method="uniform")


def test_an_ensemble_is_scored_by_the_metric_of_its_task(tmp_path):
    """A pool that predicts the majority class loses by macro F1, as `evaluate` would say, and the line says why."""
    generator = np.random.default_rng(0)
    labels = np.where(np.arange(1500) % 10, "many", "few")
    shown = np.where((labels == "few") | (generator.uniform(size=1500) < 0.3), "red", "blue")
    texts = [f"a {word} thing w{generator.integers(40)} w{generator.integers(40)}" for word in shown]
    task = OwnTask(pd.DataFrame({"text": texts, "label": labels}), name="own", metric="macro_f1")
    result = combine(["hash:50", "hash:100", "tfidf"], output=tmp_path, tasks=[task], method="pool")
    scores = result.tasks["own"].scores
    for one in Evaluator(tmp_path / "evaluation").evaluate(["hash:50", "hash:100", "tfidf"], [task]):
        assert scores[one.model].test == pytest.approx(one.test)
        assert scores[one.model].validation == pytest.approx(one.validation)
    records = [read_record(tmp_path / "evaluation" / folder_name(name), "own") for name in result.members]
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
    assert result.remarks() == ["own: pool fits the log loss, as it cannot fit macro_f1; scores are macro_f1"]
    weights = combine(["hash:50", "hash:100"], output=tmp_path / "two", tasks=[task]).tasks["own"].fold_weights[0]
    folds = [kept_validation(tmp_path / "two", name) for name in ("hash:50", "hash:100")]
    found = np.array([f1_score(truth, predicted, average="macro") for truth, predicted in folds])
    np.testing.assert_allclose(sorted(weights), sorted(found / found.sum()))


def kept_validation(folder, model):
    """Return the labels and the predicted classes of the validation rows of the first outer fold."""
    record = read_record(folder / "evaluation" / folder_name(model), "own")
    fold = record.folds[0]
    return record.labels[fold.validation_rows], fold.validation_log_probabilities.argmax(axis=1)
