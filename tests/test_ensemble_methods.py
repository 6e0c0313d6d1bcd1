"""Methods of combining: properties that hold for all of them, and each against a slow restatement."""

import json

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import greedy_counts, penalised_nll

from raysent import ensembles as ensemble
from raysent.ensembles import METHODS, Truth, cross_fit, fit, linear_pool, pool
from raysent.ensembles.combination import read_combination
from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.methods import convex_pool, greedy
from raysent.ensembles.predictions import Answers
from raysent.errors import ArtifactError, ConfigError, DataError

ALL_METHODS = st.sampled_from(sorted(METHODS))
SEEDS = st.integers(0, 2**32 - 1)


def drawn(generator, *, members=4, rows=40, classes=3, signal=1.0):
    """Return labels and normalised log-probabilities [members, rows, classes] that know something of them."""
    labels = generator.integers(0, classes, rows)
    scores = generator.standard_normal((members, rows, classes))
    scores[:, np.arange(rows), labels] += signal * generator.uniform(0, 1, (members, 1))
    return scores - np.logaddexp.reduce(scores, axis=2, keepdims=True), labels


@st.composite
def problems(draw, *, ruled_out=False):
    """Draw answers and labels of few members, rows and classes; some -inf where asked for, never a whole row."""
    members, rows, classes = draw(st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(2, 4)))
    generator = np.random.default_rng(draw(SEEDS))
    scores, labels = drawn(generator, members=members, rows=rows, classes=classes)
    if ruled_out:
        scores[..., 1:][generator.random((members, rows, classes - 1)) < 0.3] = -np.inf
    return scores - np.logaddexp.reduce(scores, axis=2, keepdims=True), labels


@settings(max_examples=60, deadline=None)
@given(problems(ruled_out=True), ALL_METHODS)
def test_fit_shares_are_on_the_simplex(problem, method):
    """Whatever the method and whatever is ruled out, shares are not negative and sum to one."""
    shares = fit(*problem, method=method).shares
    assert shares.sum() == pytest.approx(1)
    assert (shares >= 0).all()


@settings(max_examples=60, deadline=None)
@given(problems(ruled_out=True), ALL_METHODS)
def test_combination_is_a_distribution(problem, method):
    """Exponentials sum to one, and nothing is NaN."""
    combined = fit(*problem, method=method).combination(problem[0])
    np.testing.assert_allclose(np.exp(combined).sum(axis=1), 1)


@settings(max_examples=60, deadline=None)
@given(problems(), ALL_METHODS)
def test_combination_survives_json(problem, method):
    """What is read back gives bit for bit the same."""
    combination = fit(*problem, method=method).combination
    again = read_combination(json.loads(json.dumps(combination.plain())), source="here")
    np.testing.assert_array_equal(again(problem[0]), combination(problem[0]))


@settings(max_examples=30, deadline=None)
@given(problems(ruled_out=True), st.sampled_from(["validation", "uniform", "best", "greedy", "linear"]))
def test_fit_of_one_member_is_that_member(problem, method):
    """Alone, a member answers for itself; `pool` and `stack` may still mend its calibration."""
    alone = problem[0][:1]
    np.testing.assert_allclose(fit(alone, problem[1], method=method).combination(alone), alone[0], atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(problems(), st.sampled_from(["validation", "uniform", "pool", "linear"]))
def test_fit_treats_equal_members_alike(problem, method):
    """Members that say the same get the same share."""
    alone = problem[0][:1]
    np.testing.assert_allclose(fit(np.concatenate([alone] * 3), problem[1], method=method).shares, 1 / 3, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(problems(), SEEDS, st.sampled_from(["validation", "uniform", "greedy", "linear", "stack", "pool"]))
def test_fit_follows_permutations_of_members(problem, seed, method):
    """Members in another order get their own shares; the combined answers stay."""
    answers, labels = problem
    order = np.random.default_rng(seed).permutation(len(answers))
    one, other = fit(answers, labels, method=method), fit(answers[order], labels, method=method)
    np.testing.assert_allclose(other.combination(answers[order]), one.combination(answers), atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(problems(), SEEDS, st.sampled_from(["validation", "uniform", "best", "greedy", "linear"]))
def test_fit_does_not_mind_the_order_of_rows(problem, seed, method):
    """Rows in another order give the same shares; the others draw folds, and so only nearly the same."""
    answers, labels = problem
    order = np.random.default_rng(seed).permutation(len(labels))
    shares = fit(answers[:, order], labels[order], method=method).shares
    np.testing.assert_allclose(shares, fit(answers, labels, method=method).shares, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(problems(ruled_out=True), st.sampled_from(convex_pool.STRENGTHS))
def test_convex_pool_is_certified(problem, strength):
    """The duality gap is at most a millionth of a nat, whatever is ruled out."""
    solution = convex_pool.solve(convex_pool.Odds(Answers(problem[0]), problem[1]), strength=strength)
    assert -1e-9 <= solution.gap <= 1e-6
    assert (solution.weights >= 0).all()


@pytest.mark.parametrize("strength", [1.0, 0.01, 0.0001])
def test_convex_pool_equals_a_general_solver(strength):
    """SciPy's L-BFGS-B on the plain formula finds no better weights, and the same ones."""
    answers, labels = drawn(np.random.default_rng(1))
    ours = convex_pool.solve(convex_pool.Odds(Answers(answers), labels), strength=strength)
    theirs = scipy.optimize.minimize(
        penalised_nll, np.full(4, 0.25), (answers, labels, strength), bounds=[(0, None)] * 4, tol=1e-12
    )
    assert penalised_nll(ours.weights, answers, labels, strength) <= theirs.fun + 1e-8
    np.testing.assert_allclose(ours.weights, theirs.x, atol=1e-3)


def test_convex_pool_gap_bounds_the_distance_to_the_optimum():
    """At any weights the certificate is at least what can still be gained."""
    answers, labels = drawn(np.random.default_rng(2))
    odds, pull = convex_pool.Odds(Answers(answers), labels), 0.01 * 4
    best = penalised_nll(convex_pool.solve(odds, strength=0.01).weights, answers, labels, 0.01)
    for weights in np.random.default_rng(3).exponential(size=(20, 4)):
        gradient = convex_pool._point(odds, weights).gradient
        gap = convex_pool._gap(weights, gradient, np.full(4, 0.25), pull)
        assert gap >= penalised_nll(weights, answers, labels, 0.01) - best - 1e-9


def test_convex_pool_gives_no_weight_to_who_rules_out_a_right_class():
    """Any weight would make the NLL infinite; where all do it, none is left out."""
    answers, labels = drawn(np.random.default_rng(4), members=3)
    answers[0, 0, labels[0]] = -np.inf
    assert fit(answers, labels, method="pool").combination.weights[0] == 0
    answers[:, 1, labels[1]] = -np.inf
    assert np.isfinite(fit(answers, labels, method="pool").combination.weights).all()


def test_convex_pool_mends_calibration():
    """Members that are too sure by a factor of four get weights that sum to about a quarter."""
    generator = np.random.default_rng(5)
    honest = 1.5 * generator.standard_normal((4000, 2))
    honest -= np.logaddexp.reduce(honest, axis=1, keepdims=True)
    labels = (generator.random(4000) < np.exp(honest[:, 1])).astype(int)
    sure = 4 * honest - np.logaddexp.reduce(4 * honest, axis=1, keepdims=True)
    assert fit(sure[None], labels, method="pool").diagnostics["weight_sum"] == pytest.approx(0.25, rel=0.1)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), SEEDS)
def test_greedy_selection_equals_the_plain_one(members, seed):
    """The shares are those of the slow restatement; twice as many of all is the same mean."""
    answers, labels = drawn(np.random.default_rng(seed), members=members, rows=7)
    right = np.exp(Answers(answers).of_labels(labels))
    order = np.argsort(-np.log(right).mean(axis=1))
    ours, theirs = greedy.select(right[order]), np.array(greedy_counts(right[order], max_size=greedy.MAX_SIZE))
    np.testing.assert_allclose(ours / ours.sum(), theirs / theirs.sum())


def test_greedy_bags_hold_half_of_the_members():
    """Twenty random halves of many members, all of two."""
    assert [len(bag) for bag in greedy.bags(7)] == [4] * 20
    assert [bag.tolist() for bag in greedy.bags(2)] == [[0, 1]]


def test_linear_pool_is_the_mean_of_probabilities():
    """The slow and plain formula gives the same, -inf included."""
    answers = np.log(np.array([[[0.5, 0.5]], [[1.0, 0.25]]]) / [[[1.0]], [[1.25]]])
    answers[1, 0, 1] = -np.inf
    np.testing.assert_allclose(np.exp(linear_pool(answers, [0.25, 0.75]))[0], np.array([0.725, 0.125]) / 0.85)


def test_stack_learns_what_no_weights_can():
    """A member that is always wrong of two classes tells the right one all the same."""
    generator = np.random.default_rng(6)
    labels = generator.integers(0, 2, 200)
    wrong = np.log(np.where(np.eye(2)[labels] == 1, 0.1, 0.9))[None]
    assert (fit(wrong, labels, method="stack").combination(wrong).argmax(axis=1) == labels).all()


def test_stack_refuses_more_coefficients_than_it_can_fit():
    """A thousand classes are for the pools."""
    with pytest.raises(
        ConfigError, match=r"^--method stack: must fit members x classes x classes .* use --method pool$"
    ):
        fit(np.full((1, 2, 100), -np.log(100)), np.array([0, 1]), method="stack")


def test_fit_of_scored_pairs_shares_by_correlation():
    """The base rule's scores are Pearson's correlations of the mean mark; a negative one counts as none."""
    marks = np.array([0, 1, 2, 3, 4] * 4)
    truth = Truth(marks, marks + 1.0)
    good = np.log(np.full((20, 5), 0.05) + 0.75 * np.eye(5)[marks])
    bad = np.log(np.full((20, 5), 0.05) + 0.75 * np.eye(5)[4 - marks])
    found = fit(np.stack([good, bad]), truth)
    np.testing.assert_allclose(found.scores, [1, 0], atol=1e-9)
    np.testing.assert_allclose(found.shares, [1, 0], atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems(), ALL_METHODS)
def test_cross_fit_is_never_worse_than_the_best_member(problem, method):
    """Where a method does worse under cross-fitting, the best member stands in, and it is said."""
    answers, labels = problem
    found, best = cross_fit(answers, labels, method=method), cross_fit(answers, labels, method="best")
    assert (found.held_out.argmax(1) == labels).sum() >= (best.held_out.argmax(1) == labels).sum()
    if found.is_replaced:
        np.testing.assert_array_equal(found.fit.shares, best.fit.shares)


def test_held_out_answers_come_from_fits_that_did_not_see_the_row():
    """The best of many useless members looks useful on the rows that chose it, and not on others."""
    noise = np.random.default_rng(8).integers(0, 2, 300)
    useless = Answers(drawn(np.random.default_rng(9), rows=300, classes=2, members=30)[0])
    chosen = fit(useless, noise, method="best").combination(useless)
    honest = held_out(useless, Truth(noise), method="best")
    assert (chosen.argmax(1) == noise).mean() > (honest.argmax(1) == noise).mean() + 0.02


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit(np.zeros((1, 1, 2)), np.zeros(1), method="validaton"), ConfigError, "did you mean 'validation'"),
        (lambda: fit(np.zeros((1, 2, 2)), np.zeros(1)), DataError, "must be one per row"),
        (lambda: fit(np.zeros((1, 2, 2)), np.array([0, 2])), DataError, "from 0 to 1; given 0 to 2"),
        (lambda: pool(np.full((1, 1, 2), np.nan), [1]), DataError, "given NaN or"),
        (lambda: pool(np.zeros((2, 2)), [1, 1]), DataError, r"must be \[members, rows, classes\]"),
        (lambda: pool(np.zeros((2, 1, 2)), [1]), DataError, "must be 2 finite numbers"),
        (lambda: pool(np.zeros((2, 1, 2)), [1, -1]), DataError, "must be 2 finite numbers"),
        (lambda: linear_pool(np.zeros((2, 1, 2)), [0, 0]), DataError, "must not all be 0"),
        (lambda: read_combination({"kind": "magic"}, source="x"), ArtifactError, "^x: holds no combination"),
        (lambda: ensemble.check_candidates({"a": "1", "b": "2"}), ArtifactError, "'a' has pool 1, 'b' has 2; give both"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused(call, error, message):
    """Shapes, names and values are checked in one line."""
    with pytest.raises(error, match=message):
        call()


def test_answers_refuse_a_file_that_is_none(tmp_path):
    """A truncated or missing file is named."""
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ArtifactError, match=r"a.npy: must be an array of log-probabilities \(.npy\)"):
        Answers([tmp_path / "a.npy"])
    with pytest.raises(ArtifactError, match=r"b.npy: must be an array"):
        Answers([tmp_path / "b.npy"])
