"""Temperatures and thresholds against slow restatements; what is promised is kept on new rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import binom

from raysent.ensembles.calibration import (
    Answered,
    Calibration,
    Promise,
    calibrate,
    fit_temperature,
    tempered,
)
from raysent.errors import ConfigError
from raysent.evaluation.targets import Targets


def drawn(
    num_rows: int, *, sharpness: float, seed: int = 0, classes: int = 3
) -> tuple[np.ndarray, Targets]:
    """Return log-probabilities that are too sure by `sharpness`, and labels drawn from the true ones."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(scale=1.5, size=(num_rows, classes))
    true = np.exp(margins) / np.exp(margins).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(classes, p=row) for row in true])
    return tempered(np.log(true), 1 / sharpness), Targets(labels)


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_temperature_undoes_what_made_probabilities_wrong(sharpness) -> None:
    """It is that of the least penalized log loss on a fine grid, and near the true one."""
    logs, targets = drawn(4000, sharpness=sharpness)
    found = fit_temperature(logs, targets)
    assert found == pytest.approx(sharpness, rel=0.1)
    grid = np.exp(np.linspace(np.log(found) - 0.2, np.log(found) + 0.2, 401))

    def loss(temperature: float) -> float:
        scaled = logs / temperature
        each = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        return (
            -sum(each[row, label] for row, label in enumerate(targets.labels))
            + np.log(temperature) ** 2 / 2
        )

    assert grid[np.argmin([loss(one) for one in grid])] == pytest.approx(found, rel=2e-3)


def test_few_rows_that_are_all_right_do_not_make_certainty() -> None:
    """The prior bounds the temperature; an excluded class stays excluded."""
    logs = np.log(
        [[0.6, 0.4, 0.0]] * 5,
        where=np.array([[True, True, False]] * 5),
        out=np.full((5, 3), -np.inf),
    )
    calibration = calibrate(logs, Targets(np.zeros(5, dtype=np.int64)))
    assert 0.6 < np.exp(calibration(logs)[0, 0]) < 0.95
    assert np.isneginf(calibration(logs)[:, 2]).all()


def test_levels_answer_rows_of_at_least_their_threshold() -> None:
    """Each counts what it says, with ties together; a coverage takes the first that answers enough."""
    logs, targets = drawn(250, sharpness=2.0)
    logs[100:120] = logs[100]
    calibration = calibrate(logs, targets)
    calibrated = calibration(logs)
    confidence, right = np.exp(calibrated.max(axis=1)), calibrated.argmax(axis=1) == targets.labels
    for threshold, num_rows, num_right, design_effect in calibration.levels:
        assert design_effect == 1
        is_answered = confidence >= threshold
        assert (is_answered.sum(), right[is_answered].sum()) == (num_rows, num_right)
    assert calibration.levels[-1].num_rows == 250
    for coverage in (0.01, 0.5, 0.8, 1.0):
        level = calibration.for_coverage(coverage)
        smaller = [one for one in calibration.levels if one.num_rows < level.num_rows]
        assert level.num_rows >= 250 * coverage
        assert not smaller or smaller[-1].num_rows < 250 * coverage
    again = Calibration(
        **{**json.loads(json.dumps(vars(calibration))), "levels": calibration.levels}
    )
    np.testing.assert_array_equal(again(logs), calibrated)


def test_precision_is_promised_by_a_bound_and_refused_where_none_reaches_it() -> None:
    """The bound is where so many right answers would be a chance of 5 %."""
    levels = (Answered(0.9, 100, 99), Answered(0.8, 200, 190), Answered(0.5, 300, 240))
    calibration = Calibration(1.0, 300, levels)

    def is_promised(level: Answered, precision: float) -> bool:
        return bool(binom.sf(level.num_right - 1, level.num_rows, precision) <= 0.05)

    for precision in (0.7, 0.8, 0.9, 0.94, 0.95):
        assert (
            calibration.for_precision(precision)
            == [one for one in levels if is_promised(one, precision)][-1]
        )
    with pytest.raises(
        ConfigError,
        match=r"^precision 0\.99: no threshold promises it on 300 validation rows; .* 33% of",
    ):
        calibration.for_precision(0.99)
    with pytest.raises(ConfigError, match=r"^coverage 80: must be above 0 and at most 1$"):
        calibration.for_coverage(80)
    shown = str(Promise(calibration, levels[1], "60% of rows answered"))
    assert shown == (
        "60% of rows answered: a confidence of 0.800 answers 200 of 300 validation rows, 95.0% of them right"
    )


def test_promises_are_kept_on_new_rows() -> None:
    """Fitted on some draws and judged on others: coverage and precision in the mean, a promised precision mostly."""
    differences, kept = [], []
    for seed in range(40):
        calibration = calibrate(*drawn(400, sharpness=2.0, seed=seed))
        logs, targets = drawn(2000, sharpness=2.0, seed=1000 + seed)
        calibrated = calibration(logs)
        confidence, right = (
            np.exp(calibrated.max(axis=1)),
            calibrated.argmax(axis=1) == targets.labels,
        )
        level = calibration.for_coverage(0.8)
        is_answered = confidence >= level.threshold
        differences.append(
            (is_answered.mean() - 0.8, right[is_answered].mean() - level.num_right / level.num_rows)
        )
        kept.append(right[confidence >= calibration.for_precision(0.75).threshold].mean() >= 0.75)
    assert np.abs(np.mean(differences, axis=0)).max() < 0.02
    assert np.mean(kept) >= 0.9
