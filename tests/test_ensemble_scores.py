"""Ensembles' figures: intervals, calibration, diversity, costs and the front of score against cost."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import calibration_error
from test_ensemble_methods import SEEDS, drawn

from raysent.ensembles import Truth, pool
from raysent.ensembles.cost import Cost, best_within, choices, total_cost
from raysent.ensembles.cross_fitting import Draws
from raysent.ensembles.measures import NUM_BINS, ambiguity, diversity, error_correlations, measure
from raysent.ensembles.outcomes import task_outcome
from raysent.ensembles.predictions import Answers
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.records import Record


def nll(log_probabilities, labels):
    """Return the mean NLL."""
    return -log_probabilities[np.arange(len(labels)), labels].mean()


def measured(answers, labels):
    """Return all figures of answers to all rows of a task."""
    return measure(answers, labels, rows=np.arange(len(labels)), draws=Draws("x", len(labels)))


def test_measures_equal_their_definitions():
    """Accuracy, NLL and Brier are plain means; each lies in its interval."""
    (answers,), labels = drawn(np.random.default_rng(1), members=1, rows=200)
    figures = measured(answers, labels).figures
    brier = ((np.exp(answers) - np.eye(3)[labels]) ** 2).sum(axis=1).mean()
    wanted = {"accuracy": 100 * (answers.argmax(1) == labels).mean(), "nll": nll(answers, labels), "brier": brier}
    for name, value in wanted.items():
        assert figures[name].value == pytest.approx(value)
        assert figures[name].interval[0] < value < figures[name].interval[1]


def test_measures_calibration_error_equals_the_plain_one():
    """Bins of equally many rows, by rising confidence."""
    (answers,), labels = drawn(np.random.default_rng(2), members=1, rows=301)
    found = measured(answers, labels)
    assert found.figures["ece"].value == pytest.approx(100 * calibration_error(answers, labels, num_bins=NUM_BINS))
    assert sum(one.num_rows for one in found.reliability) == 301
    confidences = [one.confidence for one in found.reliability]
    assert confidences == sorted(confidences)


def test_measures_charge_a_ruled_out_class_a_finite_price():
    """NLL stays a number."""
    answers = np.array([[0.0, -np.inf], [0.0, -np.inf]])
    assert measured(answers, np.array([0, 1])).figures["nll"].value == pytest.approx(745 / 2)


def test_draws_of_one_task_are_paired():
    """Two ways that are right on the same rows differ by nothing, in every draw; another task is drawn apart."""
    (answers,), labels = drawn(np.random.default_rng(3), members=1, rows=50)
    part = (np.arange(50), Truth(labels), answers)
    one, other = Draws("x", 50).scores([part, (np.arange(50), Truth(labels), 2 * answers)])
    assert one.minus(other).interval == (0.0, 0.0)
    assert (Draws("y", 50).scores([part])[0].draws != one.draws).any()


def test_draws_of_scored_pairs_are_correlations():
    """The drawn figures are Pearson's correlations on the drawn rows."""
    generator = np.random.default_rng(4)
    (answers,), labels = drawn(generator, members=1, rows=40, classes=5, signal=3)
    scores = labels + 1 + generator.random(40)
    draws = Draws("x", 40)
    (figure,) = draws.scores([(np.arange(40), Truth(labels, scores), answers)])
    rows = np.repeat(np.arange(40), draws._counts[7])
    marks = np.exp(answers) @ np.arange(1, 6)
    assert figure.draws[7] == pytest.approx(100 * np.corrcoef(marks[rows], scores[rows])[0, 1])
    assert figure.value == pytest.approx(100 * np.corrcoef(marks, scores)[0, 1])


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 4))
def test_ambiguity_is_what_pooling_gains(seed, members):
    """The pool's NLL is the weighted mean of its members' less the ambiguity, whatever the labels."""
    answers, labels = drawn(np.random.default_rng(seed), members=members)
    weights = np.random.default_rng(seed).dirichlet(np.ones(members))
    mean = weights @ [nll(member, labels) for member in answers]
    assert nll(pool(answers, weights), labels) == pytest.approx(mean - ambiguity(Answers(answers), weights))


def test_ambiguity_is_nought_where_members_agree_and_infinite_where_one_is_alone():
    """What a member rules out and the pool does not cannot be; a member without weight is not asked."""
    answers, _ = drawn(np.random.default_rng(5), members=1)
    assert ambiguity(Answers(np.concatenate([answers, answers])), np.array([0.3, 0.7])) == pytest.approx(0)
    certain = np.array([[[0.0, -np.inf]], [[np.log(0.5)] * 2]])
    assert np.isfinite(ambiguity(Answers(certain), np.array([0.5, 0.5])))
    assert ambiguity(Answers(certain), np.array([0.0, 1.0])) == 0


def test_error_correlations_equal_numpy_s():
    """Pearson's correlations of errors; unknown beside a member without errors."""
    answers, labels = drawn(np.random.default_rng(6), members=2, rows=60)
    perfect = np.log(np.where(np.eye(3)[labels] == 1, 0.9, 0.05))
    found = error_correlations(Answers(np.concatenate([answers, perfect[None]])), Truth(labels))
    wrong = answers.argmax(axis=2) != labels
    np.testing.assert_allclose(found[:2, :2], np.corrcoef(wrong))
    assert np.isnan(found[2]).all()


def test_contributions_tell_who_is_missed():
    """Without the one member that knows anything the score falls; without a useless one it does not."""
    labels = np.random.default_rng(7).integers(0, 2, 200)
    useless = drawn(np.random.default_rng(8), members=2, rows=200, classes=2)[0]
    good = np.log(np.where(np.eye(2)[labels] == 1, 0.999, 0.001))[None]
    found = diversity(Answers(np.concatenate([good, useless])), Truth(labels), method="best")
    assert found.contributions[0] > 20
    assert found.contributions[1:].tolist() == [0, 0]
    assert diversity(Answers(good), Truth(labels), method="best").contributions.size == 0


def some_choices():
    """Return costs and choices of a cheap, a dear and a useless member, the dear one the best."""
    generator = np.random.default_rng(9)
    labels = generator.integers(0, 2, 300)
    signals = (1.0, 2.0, 0.0)
    answers = np.concatenate([drawn(generator, members=1, rows=300, classes=2)[0] for _ in signals])
    answers[:, np.arange(300), labels] += np.array(signals)[:, None]
    answers -= np.logaddexp.reduce(answers, axis=2, keepdims=True)
    costs = [Cost(1.0, 30, 5.0), Cost(10.0, 20, None), Cost(20.0, 10, 1.0)]
    return costs, choices([(Answers(answers), Truth(labels))], costs)


def test_choices_hold_every_member_alone_and_all_together():
    """Costs add up; what training took is unknown where a member's is."""
    costs, found = some_choices()
    sets = {frozenset(one.members): one.cost for one in found}
    assert {frozenset([0]), frozenset([1]), frozenset([2]), frozenset([0, 1, 2])} <= sets.keys()
    assert sets[frozenset([0, 1, 2])] == Cost(31.0, 60, None) == total_cost(costs)
    assert [one.cost.encode_ms for one in found] == sorted(one.cost.encode_ms for one in found)


@pytest.mark.parametrize("price", ["encode_ms", "num_bytes"])
def test_front_holds_whatever_nothing_beats(price):
    """A set is on the front exactly when none is as good for less, or better for as much."""
    _, found = some_choices()
    for one in found:
        mine = (getattr(one.cost, price), -one.score)
        others = [(getattr(other.cost, price), -other.score) for other in found]
        beaten = any(theirs != mine and theirs[0] <= mine[0] and theirs[1] <= mine[1] for theirs in others)
        assert (price in one.fronts) == (not beaten)


def test_best_within_keeps_to_the_limits():
    """The best set of those that cost no more; where there is none, the cheapest member is named."""
    _, found = some_choices()
    names = ["cheap", "dear", "useless"]
    assert best_within(found, names, {"--max-ms": 5.0, "--max-bytes": None}).members == (0,)
    assert best_within(found, names, {"--max-ms": 10.0, "--max-bytes": 20}).members == (1,)
    message = r"^--max-ms 0.5: at least one member must be within it; 'cheap' has the least, 1; raise it$"
    with pytest.raises(ConfigError, match=message):
        best_within(found, names, {"--max-ms": 0.5})


def scored_records():
    """Return two members' records of a small task of scored pairs, with given validation and test rows."""
    generator = np.random.default_rng(10)
    marks = generator.integers(0, 5, 80)
    scores = np.clip(marks + 1 + generator.uniform(-0.4, 0.4, 80), 1, 5)
    rows = np.split(np.arange(80), 2)
    found = []
    for name, noise in (("a", 0.8), ("b", 2.0)):
        answers = -0.5 * (np.arange(5) - marks[:, None] - noise * generator.standard_normal((80, 1))) ** 2
        answers -= np.logaddexp.reduce(answers, axis=1, keepdims=True)
        fold = FoldResult(rows[0], answers[rows[0]], rows[1], answers[rows[1]], 1.0)
        record = Record(name, name, "pairs", "pair", "fast", tuple("12345"), "r", name, marks, scores, 0.0, 0.0, {}, (fold,), None, {})  # fmt: skip
        found.append(record)
    return found


def test_outcome_of_scored_pairs_is_a_correlation():
    """Relatedness: the distributions over marks are pooled, and the mean mark's correlation is the score."""
    records = scored_records()
    outcome = task_outcome(records, method="uniform")
    tested = np.stack([record.folds[0].test_log_probabilities for record in records])
    marks = np.exp(pool(tested, [0.5, 0.5])) @ np.arange(1, 6)
    alone = [np.exp(member) @ np.arange(1, 6) for member in tested]
    scores = records[0].scores[40:]
    wanted = alone[0] if outcome.is_replaced else marks
    assert outcome.ensemble.test.value == pytest.approx(100 * np.corrcoef(wanted, scores)[0, 1])
    assert outcome.members[1].test.value == pytest.approx(100 * np.corrcoef(alone[1], scores)[0, 1])
    assert outcome.ensemble.test.interval[0] < outcome.ensemble.test.value < outcome.ensemble.test.interval[1]


def test_outcome_needs_log_probabilities():
    """A protocol that keeps scores alone cannot be combined; one line says which member and what to do."""
    first, second = scored_records()
    fold = dataclasses.replace(second.folds[0], test_log_probabilities=np.empty((0, 5)))
    for folds in ((), (fold,)):
        bare = dataclasses.replace(second, protocol="senteval", folds=folds)
        message = r"^pairs: members must be judged on the same protocol; 'a' has fast, 'b' has senteval"
        with pytest.raises(ArtifactError, match=message):
            task_outcome([first, bare], method="uniform")
        message = (
            r"^pairs: an ensemble needs log-probabilities of every row; 'b', judged by protocol senteval, has none"
        )
        with pytest.raises(ArtifactError, match=message):
            task_outcome([bare], method="uniform")
