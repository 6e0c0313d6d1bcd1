"""Learning curves that are continued by a power law."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from raysent.sweeps.curves import CurveModel, CurvePrior, gain_after, octave_gain

EXACT = CurvePrior(exponent=0.5, exponent_sigma=0.0, own_gain=1.0, residual=0.0, level=0.0)


def power_law(final: float, scale: float, exponent: float, parts: list[float]) -> list[tuple[float, float]]:
    """Return points of ``final - scale * (part ** -exponent - 1)``."""
    return [(part, final - scale * (part**-exponent - 1)) for part in parts]


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.5, 1.0])
def test_gain_after_is_that_of_the_power_law(exponent):
    """The gain to the whole, in octaves before the part, of a curve with this exponent."""

    def value(part: float) -> float:
        return math.log2(part) if exponent == 0 else -(part**-exponent - 1) * math.copysign(1, exponent)

    octave = value(0.25) - value(0.125)
    assert gain_after(0.25, exponent) == pytest.approx((value(1.0) - value(0.25)) / octave)


def test_octave_gain_is_interpolated_between_reports():
    """Between half of the steps and all of them, in the logarithm of the steps."""
    assert octave_gain(((0.1, 1.0), (0.4, 3.0))) == pytest.approx(1.0)
    assert octave_gain(((0.3, 1.0), (0.4, 2.0))) == pytest.approx(1 / math.log2(4 / 3))
    assert octave_gain(((0.4, 2.0),)) is None


def test_curve_model_continues_an_exact_power_law():
    """With the right exponent and no noise, a drawn curve is the trial's own, before its end and after."""
    curve = power_law(0.7, 0.05, 0.5, [0.0625, 0.125, 0.25])
    drawn = CurveModel([curve, curve], EXACT).draw(np.random.default_rng(0))
    for part in (0.0625, 0.125, 0.25, 0.5, 1.0):
        assert drawn[1](part) == pytest.approx(0.7 - 0.05 * (part**-0.5 - 1))


def test_the_shared_error_moves_all_trials_of_a_draw_alike():
    """It has the stated spread over draws and none within one, so that the best of many is not expected higher."""
    finals = [0.5, 0.6, 0.7, 0.9]
    curves = [power_law(final, 0.05, 0.5, [0.125, 0.25]) for final in finals]
    model = CurveModel(curves, replace(EXACT, level=0.5))
    drawn = np.array([[one.final for one in model.draw(np.random.default_rng(seed))] for seed in range(400)])
    assert np.allclose(drawn - drawn[:, :1], np.array(finals) - finals[0])
    spread = 0.5 * np.std(finals, ddof=1)
    assert np.std(drawn[:, 0]) == pytest.approx(spread, rel=0.1)
    assert np.mean(drawn[:, 3]) == pytest.approx(0.9, abs=4 * spread / 20)


def test_bands_of_the_best_trial_hold_where_curves_vary():
    """Of simulated sweeps with power laws of varied exponents, 8 of 10 end inside the band, within the noise of 30."""
    prior, inside = CurvePrior(exponent=0.5, exponent_sigma=0.5, own_gain=0.5, residual=0.4, level=0.2), 0
    for number in range(30):
        truth = np.random.default_rng(number)
        exponent = truth.normal(0.5, 0.3)
        whole = [power_law(truth.normal(0.6, 0.03), 0.03, exponent, [0.0625, 0.125, 0.25, 1.0]) for _ in range(12)]
        model = CurveModel([curve[:-1] for curve in whole], prior)
        best = [max(one.final for one in model.draw(np.random.default_rng(seed))) for seed in range(40)]
        low, high = np.quantile(best, (0.1, 0.9))
        inside += bool(low <= max(curve[-1][1] for curve in whole) <= high)
    assert 0.65 <= inside / 30 <= 0.97
