"""Learning curves of a space's trials, fitted to pilots: what a whole trial should reach, and how certain that is.

In: curves of pilots, (part of a whole training, value), and their families. Out: draws of the curves of new trials.

The curve of a trial is a power law of the part ``t`` of its training that is done. ``g`` is the gain of a pilot's last
octave, from half of its steps to all of them, and ``t0`` the part that the pilot ended at::

    value(t) = final - g * t0**c * (t**-c - 1) / (2**c - 1)

Gains are shrunk towards the mean of all pilots. The exponent ``c`` cannot be read from a pilot: each simulated sweep
draws it from a distribution that was fitted to finished trials (`benchmarks/forecast.py`). A new trial is a pilot of
its family, drawn with the weights of a Bayesian bootstrap, plus noise, shrunk to the family's mean so that the noise
adds no variance: a smoothed bootstrap over configurations. What all trials of a sweep miss their curves by together,
such as the probes' rows and a text on which curves bend differently, is one more draw for each sweep: it widens the
forecast without raising the best of many trials.

Source: T. Domhan, J. T. Springenberg and F. Hutter, "Speeding up automatic hyperparameter optimization of deep neural
networks by extrapolation of learning curves", IJCAI 2015, table 1 (``pow3``); D. B. Rubin, "The Bayesian bootstrap",
Annals of Statistics 9, 1981; B. W. Silverman and G. A. Young, "The bootstrap: to smooth or not to smooth?", Biometrika
74, 1987.
Differs: One family of curves instead of eleven, and a fitted distribution of its exponent instead of a Markov chain for
each curve, as pilots have few points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from raysent.sweeps.pilots import Curve

_ALMOST_ZERO = 1e-6
_LEAST_EXPONENT = -1.0


@dataclass(frozen=True)
class CurvePrior:
    """What is known of curves before a pilot is seen.

    Attributes:
        exponent: Mean exponent of the power law.
        exponent_sigma: Its standard deviation over sweeps.
        own_gain: Weight of a pilot's own gain against the mean of all pilots, 0 to 1.
        residual: Standard deviation of what a trial gains after the pilot's end, as a fraction of the mean gain and of
            the spread of the pilots' gains together.
        width: Noise of the smoothed bootstrap, as a fraction of the standard deviation within families.
        level: Standard deviation of the error that all trials of a sweep share, as a fraction of the standard deviation
            of the pilots' expected finals.
    """

    exponent: float
    exponent_sigma: float
    own_gain: float
    residual: float
    width: float
    level: float


@dataclass(frozen=True)
class Priors:
    """What finished sweeps say, before a pilot is seen.

    Attributes:
        metric: Of the curves of the ranking metric.
        score: Of the curves of the mean test score.
        gain: Points by which an ensemble is better than its best member.
        gain_sigma: The standard deviation of that over sweeps.
        gain_weight: How many measured gains `gain` is worth.
        noise_correlation: Correlation of the smoothing noises of a trial's metric and score, 0 to 1.
    """

    metric: CurvePrior
    score: CurvePrior
    gain: float
    gain_sigma: float
    gain_weight: float = 1.0
    noise_correlation: float = 0.5


# What three corpora of finished trials say; see `benchmarks/results/forecast.md`.
PRIORS: Priors = Priors(
    metric=CurvePrior(exponent=1.0, exponent_sigma=0.5, own_gain=0.5, residual=0.5, width=0.2, level=0.2),
    score=CurvePrior(exponent=1.0, exponent_sigma=0.5, own_gain=0.5, residual=0.5, width=0.1, level=0.2),
    gain=1.1,
    gain_sigma=0.6,
)


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
    """The curve of a simulated trial.

    Attributes:
        final: Value after the whole training.
        gain: Gain of the octave before `part`.
        part: Where the pilot ended that the trial was drawn from.
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
    """The curves of one measure over a space's trials."""

    def __init__(self, curves: Sequence[Curve], families: Sequence[str], prior: CurvePrior) -> None:
        """Fit the curves.

        Args:
            curves: Of each pilot, at least one point [pilots].
            families: The pilots' families [pilots].
            prior: What is known before.
        """
        self._prior = prior
        self._parts = [curve[-1][0] for curve in curves]
        self._levels = [curve[-1][1] for curve in curves]
        own = [octave_gain(curve) for curve in curves]
        known = [gain for gain in own if gain is not None]
        mean = sum(known) / len(known) if known else 0.0
        self._gains = [mean + prior.own_gain * ((mean if one is None else one) - mean) for one in own]
        self._gain_spread = float(np.std(known, ddof=1)) if len(known) > 1 else abs(mean)
        self._gain_error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else abs(mean)
        finals = [
            level + gain * gain_after(part, prior.exponent)
            for level, gain, part in zip(self._levels, self._gains, self._parts, strict=True)
        ]
        self._means = {family: _mean_of(family, finals, families) for family in families}
        self._deviations = [final - self._means[family] for final, family in zip(finals, families, strict=True)]
        # Without two pilots of one family, families vary as much as pilots.
        self._overall = [final - sum(finals) / len(finals) for final in finals]
        is_pooled = len(finals) > len(self._means)
        free = len(finals) - len(self._means) if is_pooled else max(1, len(finals) - 1)
        spread = self._deviations if is_pooled else self._overall
        self._within = math.sqrt(sum(value**2 for value in spread) / free)
        self._between = math.sqrt(sum(value**2 for value in self._overall) / max(1, len(finals) - 1))

    def sweep(self, generator: np.random.Generator) -> Callable[..., DrawnCurve]:
        """Return a function that draws trials of one simulated sweep.

        Its arguments are the pilot to draw from, whether that is of another family, and a standard normal number for
        the noise.

        Args:
            generator: Source of randomness.
        """
        prior = self._prior
        exponent = max(_LEAST_EXPONENT, generator.normal(prior.exponent, prior.exponent_sigma))
        shift = generator.normal(0.0, self._gain_error)
        level = generator.normal(0.0, prior.level * self._between)
        after = [gain_after(part, exponent) for part in self._parts]
        mean_gain = float(np.mean([(g + shift) * times for g, times in zip(self._gains, after, strict=True)]))
        residual = prior.residual * math.hypot(mean_gain, self._gain_spread)
        kept = 1 / math.sqrt(1 + prior.width**2)

        def draw(pilot: int, *, is_other_family: bool, noise: float) -> DrawnCurve:
            gain = self._gains[pilot] + shift
            final = self._levels[pilot] + gain * after[pilot] + level
            deviation = self._overall[pilot] if is_other_family else self._deviations[pilot]
            width = prior.width * (self._between if is_other_family else self._within)
            final += (kept - 1) * deviation + kept * width * noise
            final += residual * generator.normal()
            return DrawnCurve(final, gain, self._parts[pilot], exponent)

        return draw


def _mean_of(family: str, finals: Sequence[float], families: Sequence[str]) -> float:
    own = [final for final, one in zip(finals, families, strict=True) if one == family]
    return sum(own) / len(own)
