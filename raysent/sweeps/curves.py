"""Learning curves of unfinished trials, continued: what each should reach, and how certain that is.

In: curves of trials, (part of a whole training, value). Out: draws of the same trials' whole curves.

The curve of a trial is a power law of the part ``t`` of its training that is done. ``g`` is the gain of its last
octave, from half of its steps so far to all of them, and ``t0`` the part that is done::

    value(t) = final - g * t0**c * (t**-c - 1) / (2**c - 1)

Gains are shrunk towards the mean of all trials. The exponent ``c`` cannot be read from few points: each draw takes one
from a distribution that was fitted to finished trials (`benchmarks/results/forecast.md`). What all trials of a sweep
miss their curves by together, such as a text on which curves bend differently, is one more draw: it widens what is
expected without raising the best of many trials.

Source: T. Domhan, J. T. Springenberg and F. Hutter, "Speeding up automatic hyperparameter optimization of deep neural
networks by extrapolation of learning curves", IJCAI 2015, table 1 (``pow3``).
Differs: One family of curves instead of eleven, and a fitted distribution of its exponent instead of a Markov chain for
each curve, as trials have few points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ALMOST_ZERO = 1e-6
_LEAST_EXPONENT = -1.0


Curve = Sequence[tuple[float, float]]
"""A measure at parts of a whole training: (part, value), by rising part; a whole training is part 1."""


@dataclass(frozen=True)
class CurvePrior:
    """What finished sweeps say of curves; the defaults are of the ranking metrics of trials on three texts.

    Attributes:
        exponent: Mean exponent of the power law.
        exponent_sigma: Its standard deviation over sweeps.
        own_gain: Weight of a trial's own gain against the mean of all trials, 0 to 1.
        residual: Standard deviation of what a trial gains from now on, as a fraction of the mean gain and of the spread
            of gains together.
        level: Standard deviation of the error that all trials of a sweep share, as a fraction of the standard deviation
            of their expected finals.
    """

    exponent: float = 1.0
    exponent_sigma: float = 0.5
    own_gain: float = 0.5
    residual: float = 0.5
    level: float = 0.2


def octave_gain(curve: Curve) -> float | None:
    """Return by how much a curve rose while its steps doubled to the last ones; None if it has a single point."""
    if len(curve) < 2:
        return None
    octaves, values = [math.log2(part) for part, _ in curve], [value for _, value in curve]
    width = min(1.0, octaves[-1] - octaves[0])
    return (values[-1] - float(np.interp(octaves[-1] - width, octaves, values))) / width


def gain_after(part: float, exponent: float) -> float:
    """Return the gain from a part of a training to its whole, in units of the gain of the octave before that part."""
    if abs(exponent) < _ALMOST_ZERO:
        return -math.log2(part)
    return float((1 - part**exponent) / (2**exponent - 1))


@dataclass(frozen=True)
class DrawnCurve:
    """The continued curve of a trial.

    Attributes:
        final: Value after the whole training.
        gain: Gain of the octave before `part`.
        part: The part of the training that is known.
        exponent: Exponent of the power law.
    """

    final: float
    gain: float
    part: float
    exponent: float

    def __call__(self, part: float) -> float:
        """Return the value after a part of the training."""
        if abs(self.exponent) < _ALMOST_ZERO:
            return self.final + self.gain * math.log2(part)
        before = self.part**self.exponent * (part**-self.exponent - 1) / (2**self.exponent - 1)
        return float(self.final - self.gain * before)


class CurveModel:
    """The curves of one measure over a sweep's trials."""

    def __init__(self, curves: Sequence[Curve], prior: CurvePrior = CurvePrior()) -> None:
        """Fit the curves.

        Args:
            curves: Of each trial, at least one point [trials].
            prior: What is known before.
        """
        self._prior = prior
        self._parts = np.array([curve[-1][0] for curve in curves])
        self._values = np.array([curve[-1][1] for curve in curves])
        own = [octave_gain(curve) for curve in curves]
        known = [gain for gain in own if gain is not None]
        mean = float(np.mean(known)) if known else 0.0
        self._gains = np.array([mean + prior.own_gain * ((mean if one is None else one) - mean) for one in own])
        self._gain_sigma = float(np.std(known, ddof=1)) if len(known) > 1 else abs(mean)
        finals = self._values + self._gains * [gain_after(part, prior.exponent) for part in self._parts]
        self._final_sigma = float(np.std(finals, ddof=1)) if len(finals) > 1 else 0.0
        self._gain_error = self._gain_sigma / math.sqrt(max(1, len(known)))

    def draw(self, generator: np.random.Generator) -> list[DrawnCurve]:
        """Return one draw of the whole curves of all trials [trials]."""
        prior = self._prior
        exponent = max(_LEAST_EXPONENT, generator.normal(prior.exponent, prior.exponent_sigma))
        gains = self._gains + generator.normal(0.0, self._gain_error)
        rises = gains * [gain_after(part, exponent) for part in self._parts]
        level = generator.normal(0.0, prior.level * self._final_sigma)
        residual = prior.residual * math.hypot(float(np.mean(rises)), self._gain_sigma)
        finals = self._values + rises + level + residual * generator.normal(size=len(rises))
        curves = zip(finals.tolist(), gains.tolist(), self._parts.tolist(), strict=True)
        return [DrawnCurve(final, gain, part, exponent) for final, gain, part in curves]
