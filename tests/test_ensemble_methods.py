"""Ensemble methods: properties of every registered one, and each against a slow restatement."""

import json
import sys
import types
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import greedy_counts, penalised_nll

from raysent import registry
from raysent.ensembles import METHODS, cross_fit, fit, linear_pool, pool
from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.methods import convex_pool, linear_pools
from raysent.ensembles.methods.convex_pool import Pull
from raysent.ensembles.pools import LogarithmicPool, read_combination
from raysent.ensembles.predictions import MemberPredictions
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.targets import Targets

ALL_METHODS = st.sampled_from(sorted(METHODS))
SEEDS = st.integers(0, 2**32 - 1)


def drawn(generator, *, members=4, rows=40, classes=3, signal=1.0):
    """Return normalised log-probabilities [members, rows, classes] that favour the labels, and the labels."""
    labels = generator.integers(0, classes, rows)
    scores = generator.standard_normal((members, rows, classes))
    scores[:, np.arange(rows), labels] += signal * generator.uniform(0, 1, (members, 1))
    return scores - np.logaddexp.reduce(scores, axis=2, keepdims=True), labels


@st.composite
def problems(draw, *, ruled_out=False):
    """Draw predictions and labels of few members, rows and classes; some -inf on request, never a whole row."""
    members, rows, classes = draw(
        st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(2, 4))
    )
    generator = np.random.default_rng(draw(SEEDS))
    scores, labels = drawn(generator, members=members, rows=rows, classes=classes)
    if ruled_out:
        scores[..., 1:][generator.random((members, rows, classes - 1)) < 0.3] = -np.inf
    return scores - np.logaddexp.reduce(scores, axis=2, keepdims=True), labels


@settings(max_examples=60, deadline=None)
@given(problems(ruled_out=True), ALL_METHODS)
def test_fit_weights_are_on_the_simplex(problem, method):
    """Weights are non-negative with sum 1, also where classes are excluded."""
    weights = fit(*problem, method=method).weights
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()


@settings(max_examples=60, deadline=None)
@given(problems(ruled_out=True), ALL_METHODS)
def test_combination_is_a_distribution(problem, method):
    """Exponentials sum to one, and nothing is NaN."""
    combined = fit(*problem, method=method).combination(problem[0])
    np.testing.assert_allclose(np.exp(combined).sum(axis=1), 1)


@settings(max_examples=20, deadline=None)
@given(problems(ruled_out=True), ALL_METHODS)
def test_fit_is_deterministic(problem, method):
    """The same rows give the same combination, and diagnostics are finite numbers."""
    one, other = fit(*problem, method=method), fit(*problem, method=method)
    assert one.combination.plain() == other.combination.plain()
    assert all(np.isfinite(value) for value in one.diagnostics.values())


@settings(max_examples=60, deadline=None)
@given(problems(), ALL_METHODS)
def test_combination_survives_json(problem, method):
    """The combination read back predicts the same, bit for bit."""
    combination = fit(*problem, method=method).combination
    again = read_combination(json.loads(json.dumps(combination.plain())), source="here")
    np.testing.assert_array_equal(again(problem[0]), combination(problem[0]))


@settings(max_examples=30, deadline=None)
@given(problems(ruled_out=True), st.sampled_from(["validation", "uniform", "best", "greedy"]))
def test_fit_of_one_member_is_that_member(problem, method):
    """A single member is not changed, except that `pool` may calibrate it."""
    single = problem[0][:1]
    np.testing.assert_allclose(
        fit(single, problem[1], method=method).combination(single), single[0], atol=1e-9
    )


@settings(max_examples=30, deadline=None)
@given(problems(), st.sampled_from(["validation", "uniform", "pool"]))
def test_fit_weighs_equal_members_equally(problem, method):
    """Members with the same predictions get the same weight."""
    single = problem[0][:1]
    np.testing.assert_allclose(
        fit(np.concatenate([single] * 3), problem[1], method=method).weights, 1 / 3, atol=1e-5
    )


@settings(max_examples=40, deadline=None)
@given(problems(), SEEDS, st.sampled_from(["validation", "uniform", "greedy", "pool"]))
def test_fit_follows_permutations_of_members(problem, seed, method):
    """Members in another order give the same combined predictions."""
    predictions, labels = problem
    order = np.random.default_rng(seed).permutation(len(predictions))
    one, other = (
        fit(predictions, labels, method=method),
        fit(predictions[order], labels, method=method),
    )
    np.testing.assert_allclose(
        other.combination(predictions[order]), one.combination(predictions), atol=1e-3
    )


@settings(max_examples=40, deadline=None)
@given(problems(), SEEDS, st.sampled_from(["validation", "uniform", "best", "greedy"]))
def test_fit_ignores_the_order_of_rows(problem, seed, method):
    """Rows in another order give the same weights; the other methods draw folds, so only similar ones."""
    predictions, labels = problem
    order = np.random.default_rng(seed).permutation(len(labels))
    weights = fit(predictions[:, order], labels[order], method=method).weights
    np.testing.assert_allclose(weights, fit(predictions, labels, method=method).weights, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(problems(ruled_out=True), st.sampled_from(convex_pool.STRENGTHS))
def test_convex_pool_is_certified(problem, strength):
    """The duality gap is at most a millionth of a nat, also where classes are excluded."""
    odds = convex_pool.Odds(MemberPredictions(problem[0]), problem[1])
    solution = convex_pool.solve(odds, Pull.to_equal(len(problem[0]), strength))
    assert -1e-9 <= solution.gap <= 1e-6
    assert (solution.weights >= 0).all()


@pytest.mark.parametrize("strength", [1.0, 0.01, 0.0001])
def test_convex_pool_equals_a_general_solver(strength):
    """SciPy's L-BFGS-B on the plain formula finds the same weights and none better."""
    predictions, labels = drawn(np.random.default_rng(1))
    odds = convex_pool.Odds(MemberPredictions(predictions), labels)
    ours = convex_pool.solve(odds, Pull.to_equal(4, strength))
    theirs = scipy.optimize.minimize(
        penalised_nll,
        np.full(4, 0.25),
        (predictions, labels, strength),
        bounds=[(0, None)] * 4,
        tol=1e-12,
    )
    assert penalised_nll(ours.weights, predictions, labels, strength) <= theirs.fun + 1e-8
    np.testing.assert_allclose(ours.weights, theirs.x, atol=1e-3)


def test_convex_pool_gap_bounds_the_distance_to_the_optimum():
    """At any weights the certificate is at least the possible improvement."""
    predictions, labels = drawn(np.random.default_rng(2))
    odds = convex_pool.Odds(MemberPredictions(predictions), labels)
    pull = Pull.to_equal(4, 0.01)
    best = penalised_nll(convex_pool.solve(odds, pull).weights, predictions, labels, 0.01)
    for weights in np.random.default_rng(3).exponential(size=(20, 4)):
        gradient = convex_pool._point(odds, weights).gradient
        gap = convex_pool._gap(weights, gradient, pull)
        assert gap >= penalised_nll(weights, predictions, labels, 0.01) - best - 1e-9


def leaning_nll(weights, log_p, labels, prior):
    """The NLL of all rows together and ten times the squared distance from the prior, over the number of rows."""
    nll = penalised_nll(weights, log_p, labels, 0)
    return nll + 10 / len(labels) * sum((w - p) ** 2 for w, p in zip(weights, prior, strict=True))


@pytest.mark.parametrize("prior", [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [3, 1, 1, 1]])
def test_leaning_pool_equals_a_general_solver(prior):
    """SciPy's L-BFGS-B on the plain formula finds the same weights; the prior is divided by its sum."""
    predictions, labels = drawn(np.random.default_rng(6))
    members = MemberPredictions(predictions).with_prior(prior)
    ours = fit(members, labels, method="answer")
    theirs = scipy.optimize.minimize(
        leaning_nll,
        np.full(4, 0.25),
        (predictions, labels, np.divide(prior, np.sum(prior))),
        bounds=[(0, None)] * 4,
        tol=1e-12,
    )
    np.testing.assert_allclose(ours.combination.weights, theirs.x, atol=1e-3)
    assert ours.diagnostics["duality_gap"] <= 1e-6


def test_leaning_pool_is_the_prior_on_few_rows_and_the_best_fit_on_many():
    """Two rows move the weights little; of many rows, those that the labels ask for count."""
    generator = np.random.default_rng(7)
    labels = generator.integers(0, 2, 4000)
    right = generator.standard_normal((4000, 2))
    right[np.arange(4000), labels] += 2
    noise = generator.standard_normal((4000, 2))
    members = np.stack(
        [one - np.logaddexp.reduce(one, axis=1, keepdims=True) for one in (noise, right)]
    )
    few = fit(MemberPredictions(members[:, :2]).with_prior([1, 0]), labels[:2], method="answer")
    many = fit(MemberPredictions(members).with_prior([1, 0]), labels, method="answer")
    np.testing.assert_allclose(few.combination.weights, [1, 0], atol=0.25)
    assert many.combination.weights[1] > 0.8
    assert many.combination.weights[0] < 0.1


def test_prior_follows_rows_and_members():
    """What is taken of predictions keeps what is known of the members; nothing known is equal."""
    predictions, _ = drawn(np.random.default_rng(8))
    members = MemberPredictions(predictions)
    np.testing.assert_array_equal(members.prior, [0.25] * 4)
    known = members.with_prior([2, 1, 1, 0])
    np.testing.assert_array_equal(known.take([0, 3]).prior, [0.5, 0.25, 0.25, 0])
    np.testing.assert_array_equal(known.select([1, 2]).prior, [0.5, 0.5])
    np.testing.assert_array_equal(known.select([3]).prior, [1])
    np.testing.assert_array_equal(members.prior, [0.25] * 4)


@pytest.mark.parametrize("prior", [[1, 1], [-1, 1, 1, 1], [0, 0, 0, 0], [np.nan, 1, 1, 1]])
def test_wrong_prior_is_refused(prior):
    """In one line with what must hold."""
    predictions, _ = drawn(np.random.default_rng(9))
    with pytest.raises(
        DataError, match=r"^prior: must be 4 numbers of at least 0, not all of them 0; given \["
    ):
        MemberPredictions(predictions).with_prior(prior)


def test_convex_pool_gives_no_weight_to_a_member_that_excludes_a_right_class():
    """Any weight would make the NLL infinite; if all members do so, none is left out."""
    predictions, labels = drawn(np.random.default_rng(4), members=3)
    predictions[0, 0, labels[0]] = -np.inf
    assert fit(predictions, labels, method="pool").combination.weights[0] == 0
    predictions[:, 1, labels[1]] = -np.inf
    assert np.isfinite(fit(predictions, labels, method="pool").combination.weights).all()


def test_convex_pool_calibrates():
    """Members that are overconfident by a factor of four get weights with a sum of about a quarter."""
    generator = np.random.default_rng(5)
    calibrated = 1.5 * generator.standard_normal((4000, 2))
    calibrated -= np.logaddexp.reduce(calibrated, axis=1, keepdims=True)
    labels = (generator.random(4000) < np.exp(calibrated[:, 1])).astype(int)
    overconfident = 4 * calibrated - np.logaddexp.reduce(4 * calibrated, axis=1, keepdims=True)
    assert fit(overconfident[None], labels, method="pool").diagnostics[
        "weight_sum"
    ] == pytest.approx(0.25, rel=0.1)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), SEEDS)
def test_greedy_selection_equals_the_plain_one(members, seed):
    """The weights are those of the slow restatement; doubled counts give the same mean."""
    predictions, labels = drawn(np.random.default_rng(seed), members=members, rows=7)
    right = np.exp(MemberPredictions(predictions).of_labels(labels))
    order = np.argsort(-np.log(right).mean(axis=1))
    ours, theirs = (
        linear_pools.select(right[order]),
        np.array(greedy_counts(right[order], max_size=linear_pools.MAX_SIZE)),
    )
    np.testing.assert_allclose(ours / ours.sum(), theirs / theirs.sum())


@settings(max_examples=10, deadline=None)
@given(st.integers(3, 6), SEEDS)
def test_greedy_weights_are_the_mean_over_bags(members, seed):
    """Each of twenty halves counts the same, and a member of several of them has the sum of its parts."""
    predictions, labels = drawn(np.random.default_rng(seed), members=members, rows=9)
    right = np.exp(MemberPredictions(predictions).of_labels(labels))
    order = np.argsort(-np.log(right).mean(axis=1), kind="stable")
    expected = np.zeros(members)
    for bag in linear_pools.bags(members):
        chosen = order[bag]
        counts = np.array(greedy_counts(right[chosen], max_size=linear_pools.MAX_SIZE))
        expected[chosen] += counts / counts.sum() / 20
    np.testing.assert_allclose(fit(predictions, labels, method="greedy").weights, expected)


def test_greedy_bags_hold_half_of_the_members():
    """Twenty random halves of many members, all of two."""
    assert [len(bag) for bag in linear_pools.bags(7)] == [4] * 20
    assert [bag.tolist() for bag in linear_pools.bags(2)] == [[0, 1]]


def test_linear_pool_is_the_mean_of_probabilities():
    """The plain formula gives the same, -inf included."""
    predictions = np.log(np.array([[[0.5, 0.5]], [[1.0, 0.25]]]) / [[[1.0]], [[1.25]]])
    predictions[1, 0, 1] = -np.inf
    np.testing.assert_allclose(
        np.exp(linear_pool(predictions, [0.25, 0.75]))[0], np.array([0.725, 0.125]) / 0.85
    )


def test_fit_of_rated_pairs_weighs_by_correlation():
    """The base rule's scores are Pearson's correlations of the expected rating; a negative one counts as 0."""
    ratings = np.array([0, 1, 2, 3, 4] * 4)
    targets = Targets(ratings, ratings + 1.0)
    good = np.log(np.full((20, 5), 0.05) + 0.75 * np.eye(5)[ratings])
    bad = np.log(np.full((20, 5), 0.05) + 0.75 * np.eye(5)[4 - ratings])
    found = fit(np.stack([good, bad]), targets)
    np.testing.assert_allclose(found.scores, [1, 0], atol=1e-9)
    np.testing.assert_allclose(found.weights, [1, 0], atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems(), ALL_METHODS)
def test_cross_fit_is_the_method_itself(problem, method):
    """Whatever the best member scores, the fit on all rows is the method's own."""
    predictions, labels = problem
    found = cross_fit(predictions, labels, method=method)
    assert (
        found.fitted.combination.plain()
        == fit(predictions, labels, method=method).combination.plain()
    )


def test_held_out_predictions_come_from_fits_that_did_not_see_the_row():
    """The best of many random members is better than chance on the rows that chose it, and not on others."""
    noise = np.random.default_rng(8).integers(0, 2, 300)
    useless = MemberPredictions(drawn(np.random.default_rng(9), rows=300, classes=2, members=30)[0])
    chosen = fit(useless, noise, method="best").combination(useless)
    out_of_fold = held_out(useless, Targets(noise), method="best")
    assert (chosen.argmax(1) == noise).mean() > (out_of_fold.argmax(1) == noise).mean() + 0.02


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit(np.zeros((1, 1, 2)), np.zeros(1), method="validaton"), ConfigError, "method validaton: unknown ensemble method; did you mean 'validation'"),
        (lambda: fit(np.zeros((1, 2, 2)), np.zeros(1)), DataError, "must be one per row"),
        (lambda: fit(np.zeros((1, 2, 2)), np.array([0, 2])), DataError, "from 0 to 1; given 0 to 2"),
        (lambda: pool(np.full((1, 1, 2), np.nan), [1]), DataError, "given NaN or"),
        (lambda: pool(np.zeros((2, 2)), [1, 1]), DataError, r"must be \[members, rows, classes\]"),
        (lambda: pool(np.zeros((2, 1, 2)), [1]), DataError, "must be 2 finite numbers"),
        (lambda: pool(np.zeros((2, 1, 2)), [1, -1]), DataError, "must be 2 finite numbers"),
        (lambda: linear_pool(np.zeros((2, 1, 2)), [0, 0]), DataError, "must not all be 0"),
        (lambda: read_combination({"kind": "magic"}, source="x"), ArtifactError, "^x: holds no combination"),
    ],
)  # fmt: skip
def test_fit_and_pool_refuse_malformed_arguments(call, error, message):
    """Shapes, names and values are checked, with an error of one line."""
    with pytest.raises(error, match=message):
        call()


def test_registry_takes_methods_of_another_package(monkeypatch):
    """A method that an entry point adds is fitted by its name; what it returns must be a known combination."""
    toy = types.ModuleType("toy")
    toy.METHODS = {
        "first": lambda predictions, targets: (
            LogarithmicPool(np.eye(predictions.shape[0])[0]),
            {},
        ),
        "wrong": lambda predictions, targets: (None, {}),
    }
    monkeypatch.setitem(sys.modules, "toy", toy)
    point = EntryPoint("toy", "toy", "raysent.ensemble_methods")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [point] if group == point.group else []
    )
    METHODS.refresh()
    try:
        predictions, labels = drawn(np.random.default_rng(10))
        assert fit(predictions, labels, method="first").weights.tolist() == [1, 0, 0, 0]
        with pytest.raises(
            ConfigError,
            match=r"^method wrong: must return one of LogarithmicPool, .* given NoneType$",
        ):
            fit(predictions, labels, method="wrong")
    finally:
        monkeypatch.undo()
        METHODS.refresh()
    assert "first" not in METHODS
