"""Intervals of scores: of few rows they hold the true score as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raysent.evaluation.bootstrap import (
    BootstrapEstimate,
    Resamples,
    accuracy_interval,
    interval_of,
    mean_estimate,
)
from raysent.evaluation.targets import Targets


def _log_probabilities(is_right: np.ndarray) -> np.ndarray:
    """Return predictions of two classes that are right where they are said to be, of labels that are all 0."""
    right = np.log([0.9, 0.1])
    wrong = np.log([0.1, 0.9])
    return np.where(is_right[:, None], right, wrong).astype(np.float32)


def _estimate_of(is_right: np.ndarray) -> BootstrapEstimate:
    num_rows = len(is_right)
    targets = Targets(labels=np.zeros(num_rows, dtype=np.int64))
    predicted = _log_probabilities(is_right)
    (estimate,) = Resamples.of(0, num_rows).estimates([(np.arange(num_rows), targets, predicted)])
    return estimate


@pytest.mark.parametrize("num_rows", [6, 11, 33, 100])
@pytest.mark.parametrize("accuracy", [0.6, 0.8, 0.95])
def test_interval_of_an_accuracy_holds_the_true_one(num_rows: int, accuracy: float) -> None:
    """The chance of a number of right rows is known, so coverage is a sum. Percentiles have 0.5 to 0.9."""
    numbers = np.arange(num_rows + 1)
    chances = stats.binom.pmf(numbers, num_rows, accuracy)
    intervals = [accuracy_interval(number, num_rows) for number in numbers]
    holds = [low <= 100 * accuracy <= high for low, high in intervals]
    assert chances @ holds > 0.89


def test_interval_of_an_accuracy_is_that_of_the_literature() -> None:
    """Newcombe, 1998, table I: 81 of 263, and 0 of 20."""
    assert accuracy_interval(81, 263) == pytest.approx((25.53, 36.62), abs=0.01)
    assert accuracy_interval(0, 20) == pytest.approx((0.0, 16.11), abs=0.01)


@pytest.mark.parametrize("num_rows", range(1, 60))
def test_interval_holds_the_accuracy_itself(num_rows: int) -> None:
    """Also where rounding would put its end a digit beside it."""
    for num_right in (0, num_rows // 2, num_rows):
        low, high = accuracy_interval(num_right, num_rows)
        assert low <= 100 * (num_right / num_rows) <= high


def test_rows_that_are_all_right_leave_doubt() -> None:
    """Each resample of them is right too, so that percentiles are one point."""
    assert _estimate_of(np.ones(8, dtype=bool)).interval == pytest.approx((67.56, 100.0), abs=0.01)


def test_interval_of_many_rows_is_the_bootstrap_s() -> None:
    """Of thousands of rows both are the same."""
    is_right = np.arange(4000) % 5 > 0
    estimate = _estimate_of(is_right)
    assert estimate.interval == pytest.approx(interval_of(estimate.draws), abs=0.15)


def test_differences_of_few_rows_are_wider_than_their_percentiles() -> None:
    """Eight rows are few."""
    first = _estimate_of(np.array([1, 1, 1, 1, 0, 1, 1, 0], dtype=bool))
    second = _estimate_of(np.array([1, 0, 1, 0, 0, 0, 1, 1], dtype=bool))
    difference = first.minus(second)
    low, high = interval_of(difference.draws)
    assert difference.interval[0] < low
    assert difference.interval[1] > high
    assert difference.value == pytest.approx(25.0)


def test_mean_of_one_estimate_is_that_estimate() -> None:
    """Its interval is not made again."""
    estimate = _estimate_of(np.ones(8, dtype=bool))
    assert mean_estimate([estimate]) is estimate
