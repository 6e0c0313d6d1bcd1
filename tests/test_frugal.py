"""Proposals per dollar: a function of what was observed, better where scores are, and cheaper where dollars tell."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from raysent.config import parse_yaml
from raysent.errors import ConfigError
from raysent.sweeps.samplers import make_sampler
from raysent.sweeps.samplers.cost_aware import (
    NOISE,
    CostAwareSampler,
    _Gains,
    _Seen,
    axis_of,
    expected_improvement,
    fit_costs,
    fit_scores,
)
from raysent.sweeps.samplers.optuna_samplers import OptunaSampler
from raysent.sweeps.space import parse_space

TEXT = """
base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}
search:
  encoder.hidden_size: {quniform: [10, 100, 10]}
  training.learning_rate: {loguniform: [1e-4, 1e-2]}
limits: {trials: 40, sampler: ei_per_usd}
cost: {usd_per_hour: 1.0}
"""
SPACE = parse_space(parse_yaml(TEXT), name="toy")


def _searched(num: int, *, usd) -> list[dict]:
    """Return the proposals where the score is best at a learning rate of 1e-3, whatever the width."""
    proposals = CostAwareSampler(SPACE, seed=1)
    drawn = []
    for number in range(num):
        params, attempts = proposals.ask(number)
        assert attempts == 1
        score = -abs(math.log10(params["training.learning_rate"]) + 3)
        proposals.on_report(number, index=1, score=score, usd=usd(params["encoder.hidden_size"]))
        proposals.complete(number, status="finished", score=score)
        drawn.append(params)
    return drawn


def test_fit_scores_is_a_gaussian_process():
    """Mean and deviation equal the textbook's formulas with the inverse written out."""
    known, values, asked = np.array([[0.0], [0.3], [1.0]]), np.array([1.0, 2.0, 0.0]), np.array([[0.2], [5.0]])
    fitted = fit_scores(known, values)

    def kernel(left, right):
        scale = 2 * fitted.length_scale**2
        return np.array([[math.exp(-((a - b) ** 2) / scale) for b in right[:, 0]] for a in left[:, 0]])

    inverse = np.linalg.inv(kernel(known, known) + NOISE * np.eye(3))
    scaled = (values - values.mean()) / values.std()
    mean, deviation = fitted.predict(asked)
    assert mean == pytest.approx(values.mean() + values.std() * kernel(asked, known) @ inverse @ scaled)
    left = 1 - np.diag(kernel(asked, known) @ inverse @ kernel(asked, known).T)
    assert deviation == pytest.approx(values.std() * np.sqrt(left))
    assert fitted.mean(asked) == pytest.approx(mean)


def test_fit_scores_takes_the_likeliest_length_scale():
    """A line is smooth; a wave of many turns is not."""
    places = np.linspace(0, 1, 30)[:, None]
    assert fit_scores(places, places[:, 0]).length_scale > fit_scores(places, np.sin(30 * places[:, 0])).length_scale


def test_believing_keeps_the_mean_and_takes_the_doubt_away():
    """Where a trial is under way nothing new is expected."""
    fitted = fit_scores(np.array([[0.0], [0.1], [0.9]]), np.array([0.0, 0.2, 1.0]))
    place = np.array([[0.5]])
    before, after = fitted.predict(place), fitted.believing(place).predict(place)
    assert after[0] == pytest.approx(before[0], rel=0.2)
    assert after[1][0] < 0.6 * before[1][0]


def test_fit_costs_finds_a_power_law():
    """Dollars that grow with a power of a size, from noisy trials, at sizes not seen; never past a decade beyond."""
    chance = np.random.default_rng(0)
    size = chance.uniform(0, 1, (40, 1))
    dollars = np.exp(3.0 * size[:, 0] - 2.0 + chance.normal(0, 0.05, 40))
    told = fit_costs(size, dollars, np.array([[0.25], [0.75], [100.0]]))
    assert told[:2] == pytest.approx(np.exp(3.0 * np.array([0.25, 0.75]) - 2.0), rel=0.05)
    assert told[2] <= 10.001 * dollars.max()


def test_expected_improvement_is_the_mean_of_what_exceeds_the_best():
    """The closed form equals an average over draws."""
    draws = np.random.default_rng(0).normal(0.3, 0.5, 400_000)
    closed = expected_improvement(np.array([0.3]), np.array([0.5]), best=0.6)
    assert closed[0] == pytest.approx(np.maximum(draws - 0.6, 0).mean(), rel=0.01)


def test_gains_lay_early_scores_on_the_last_report():
    """What others gained later is added to a trial that was stopped."""
    gains, whole, stopped = _Gains(), _Seen([], {}), _Seen([], {})
    for seen, scores in ((whole, (0.1, 0.3, 0.4)), (stopped, (0.2,))):
        for index, score in enumerate(scores, start=1):
            gains.learn(seen.scores, index, score)
            seen.scores[index] = score
    assert (gains.final(whole), gains.final(stopped)) == (0.4, pytest.approx(0.2 + 0.3))


def test_coordinates_tell_sizes_from_labels():
    """A choice of positive numbers is an axis of ratios; labels are apart from each other; unsearched is 0."""
    space = parse_space(
        parse_yaml(
            "base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}\n"
            "search: {encoder.hidden_size: {choice: [100, 200, 400]}, encoder.bidirectional: {choice: [false, true]}}"
        ),
        name="toy",
    )
    size, label = map(axis_of, space.domains.values())
    assert [size.coordinates(value) for value in (100, 200, 400, None)] == [[0.0], [0.5], [1.0], [0.0]]
    assert label.coordinates(True) == [0.0, 0.5]


def test_near_stays_in_the_domain():
    """Draws near a value keep to its bounds and its steps."""
    size, rate = map(axis_of, SPACE.domains.values())
    chance = random.Random(0)
    assert {size.near(100, chance) for _ in range(200)} <= set(range(10, 101, 10))
    assert all(1e-4 <= rate.near(1e-2, chance) <= 1e-2 for _ in range(200))


def test_frugal_proposals_find_where_scores_are():
    """After some trials the proposals gather around the optimum, and none comes twice."""
    drawn = _searched(30, usd=lambda width: 1.0)
    late = [abs(math.log10(params["training.learning_rate"]) + 3) for params in drawn[20:]]
    assert np.median(late) < 0.3
    assert len({repr(params) for params in drawn}) == 30


def test_frugal_proposals_prefer_what_is_cheap():
    """Where a report of a wide trial costs more and gains nothing, narrow ones are proposed."""
    cheap = _searched(30, usd=lambda width: (width / 10) ** 2)
    widths = [params["encoder.hidden_size"] for params in cheap[10:]]
    assert np.mean(widths) < 50


def test_frugal_proposals_are_taken_up_as_they_were():
    """Repeating what the journal says gives the next proposal that there would have been."""
    whole = CostAwareSampler(SPACE, seed=2)
    again = CostAwareSampler(SPACE, seed=2)
    for number in range(14):
        params, attempts = whole.ask(number)
        again.repeat(number, params, attempts=attempts)
        for one in (whole, again):
            one.on_report(number, index=2, score=params["training.learning_rate"], usd=1.0)
    assert whole.ask(14) == again.ask(14)


def test_make_searcher_takes_the_space_at_its_word():
    """A sampler of Optuna's, or dollars; and dollars need a price."""
    assert isinstance(make_sampler(SPACE, seed=0), CostAwareSampler)
    plain = parse_space(parse_yaml(TEXT.replace("ei_per_usd", "tpe")), name="toy")
    assert isinstance(make_sampler(plain, seed=0), OptunaSampler)
    with pytest.raises(ConfigError, match="limits.sampler: ei_per_usd needs a price; set cost.usd_per_hour"):
        parse_space(parse_yaml(TEXT.replace("cost: {usd_per_hour: 1.0}", "")), name="toy")
