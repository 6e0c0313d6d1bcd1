"""Probabilities that are as often right as they say, and thresholds below which a row stays unanswered.

Both are fitted on validation rows, each predicted by probes and a combination that did not see it; no test row counts.
A temperature T makes log p(y) proportional to log p(y) / T. A row's confidence is the largest of its probabilities;
rows of a confidence of at least a threshold are answered. Rows that belong together, such as copies, are right or wrong
together, and count for as many rows as they tell apart.

Source: Guo et al., 2017 (temperature); Geifman and El-Yaniv, 2017 (a threshold for a promised precision); Korn and
Graubard, 1998 (the interval of a precision of rows that belong together).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import numpy as np

from raysent.ensembles.cross_fitting import CrossFitted
from raysent.ensembles.measures import CalibrationBin, reliability
from raysent.ensembles.pools import LOG_ZERO, normalize
from raysent.errors import ConfigError
from raysent.evaluation.records import Record
from raysent.evaluation.targets import Float64, Int64, Targets

# Bounds of the logarithm of a temperature.
_MOST_LOG = np.log(20.0)
# Part of the validation rows between two thresholds that are kept.
_STEPS = 100
# A promised precision is a lower bound that holds with this probability, for a threshold that is chosen before.
_CONFIDENCE = 0.95


class Answered(NamedTuple):
    """Validation rows that a threshold answers.

    Attributes:
        threshold: Of the confidence.
        num_rows: Rows of at least this confidence.
        num_right: Those of them that are predicted right.
        design_effect: How many times as large the variance of their precision is as that of as many rows on their own.
    """

    threshold: float
    num_rows: int
    num_right: int
    design_effect: float = 1.0


@dataclass(frozen=True)
class Calibration:
    """What makes the probabilities of a task's predictions true.

    Attributes:
        temperature: What log-probabilities are divided by.
        num_rows: Validation rows that it was fitted on.
        levels: What thresholds answer of these rows, by rising coverage.
        reliability: Bins of the calibrated confidence of test rows, by rising confidence; empty where none are kept.
    """

    temperature: float
    num_rows: int
    levels: tuple[Answered, ...]
    reliability: tuple[CalibrationBin, ...] = ()

    def __call__(self, log_probabilities: Float64) -> Float64:
        """Return calibrated log-probabilities [rows, classes]."""
        return tempered(log_probabilities, self.temperature)

    def for_coverage(self, coverage: float) -> Answered:
        """Return the threshold that answers at least this part of the validation rows; of all of them, 0.

        Raises:
            ConfigError: If it is not above 0 and at most 1.
        """
        _check_share("coverage", coverage)
        if coverage == 1:
            # New rows may be less sure than any validation row, and all are to be answered.
            return self.levels[-1]._replace(threshold=0.0)
        for level in self.levels:
            if level.num_rows >= coverage * self.num_rows:
                return level
        return self.levels[-1]

    def for_precision(self, precision: float) -> Answered:
        """Return the threshold that answers the most rows, of those whose answers are right often enough.

        A lower bound on the precision, one-sided with probability 0.95, is above the promised one.

        Raises:
            ConfigError: If it is not above 0 and below 1, or no threshold reaches it.
        """
        _check_share("precision", precision)
        bounds = [_lower_bound(level) for level in self.levels]
        kept_levels = [
            level for level, bound in zip(self.levels, bounds, strict=True) if bound >= precision
        ]
        if not kept_levels:
            best = int(np.argmax(bounds))
            raise ConfigError(
                f"precision {precision:g}: no threshold promises it on {self.num_rows:,} validation rows; the highest "
                f"that one promises is {np.floor(1000 * bounds[best]) / 1000:g}, for "
                f"{self.levels[best].num_rows / self.num_rows:.0%} of rows"
            )
        return kept_levels[-1]


@dataclass(frozen=True)
class Promise:
    """A threshold and what it promises of new rows.

    Attributes:
        calibration: Where it is from.
        level: The threshold, and the validation rows that it answers.
        asked: What was asked for, in words.
    """

    calibration: Calibration
    level: Answered
    asked: str

    @property
    def coverage(self) -> float:
        """The part of the validation rows that is answered."""
        return self.level.num_rows / self.calibration.num_rows

    @property
    def precision(self) -> float:
        """The part of these answers that is right."""
        return self.level.num_right / self.level.num_rows

    def __str__(self) -> str:
        """Return what was asked for, and what the validation rows promise."""
        rows = f"{self.level.num_rows:,} of {self.calibration.num_rows:,} validation rows"
        right = f"{self.precision:.1%} of them right"
        return f"{self.asked}: a confidence of {self.level.threshold:.3f} answers {rows}, {right}"


def _check_share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}: must be a number above 0 and at most 1; given {value!r:.60}")
    if not 0 < float(value) <= 1:
        raise ConfigError(f"{name} {float(value):g}: must be above 0 and at most 1")


def _lower_bound(level: Answered) -> float:
    """Return the lower end of the one-sided interval of Clopper and Pearson of a level's precision."""
    from scipy.stats import beta  # noqa: PLC0415 - a second at the start of every process that trains

    if not level.num_right:
        return 0.0
    right = level.num_right / level.design_effect
    wrong = (level.num_rows - level.num_right) / level.design_effect
    return float(beta.ppf(1 - _CONFIDENCE, right, wrong + 1))


def calibrate(
    held_out: Float64, targets: Targets, bins: tuple[CalibrationBin, ...] = ()
) -> Calibration:
    """Fit a temperature and thresholds.

    Args:
        held_out: Log-probabilities of validation rows by fits that did not see them, [rows, classes].
        targets: Their classes, and which rows belong together.
        bins: Of test rows, for the report.
    """
    temperature = fit_temperature(held_out, targets)
    calibrated = tempered(held_out, temperature)
    confidence = np.exp(calibrated.max(axis=1))
    is_right = calibrated.argmax(axis=1) == targets.labels
    order = np.argsort(-confidence, kind="stable")
    falling = confidence[order]
    num_right = np.cumsum(is_right[order])
    sizes = np.unique(np.ceil(len(order) * np.arange(1, _STEPS + 1) / _STEPS).astype(int))
    # Rows of equal confidence are answered together.
    sizes = np.unique(np.searchsorted(-falling, -falling[sizes - 1], side="right"))
    levels = []
    for size in sizes.tolist():
        answered = order[:size]
        design_effect = _design_effect(is_right[answered], targets.take(answered).units)
        threshold = float(falling[size - 1])
        levels.append(Answered(threshold, size, int(num_right[size - 1]), design_effect))
    return Calibration(temperature, len(order), tuple(levels), bins)


def _design_effect(is_right: np.ndarray, units: Int64) -> float:
    """Return the factor, at least 1, by which the variance of a mean of rows [rows] grows as those of a unit agree.

    Where all rows are right, or all wrong, nothing says how they go together, and they count as one of their unit.
    """
    num_rows = len(is_right)
    if not len(units):
        return 1.0
    numbers = np.unique(units, return_inverse=True)[1].reshape(-1)
    precision = is_right.mean()
    num_units = int(numbers.max()) + 1
    if precision in (0, 1) or num_units == 1:
        return float((np.bincount(numbers) ** 2).sum() / num_rows)
    totals = np.bincount(numbers, weights=is_right - precision)
    variance = num_units / (num_units - 1) * (totals**2).sum() / num_rows**2
    return max(1.0, float(variance * num_rows / (precision * (1 - precision))))


def calibrated_reliability(
    records: Sequence[Record], folds: Sequence[CrossFitted]
) -> tuple[CalibrationBin, ...]:
    """Return bins of the test rows of all outer folds, each with the temperature of its fold's validation rows."""
    targets = records[0].targets
    predicted = []
    test_rows = []
    for fold_index, fitted in enumerate(folds):
        member_folds = [record.folds[fold_index] for record in records]
        validated = targets.take(member_folds[0].validation_rows)
        temperature = fit_temperature(fitted.held_out, validated)
        logs = fitted.predict([fold.test_log_probabilities for fold in member_folds])
        predicted.append(tempered(logs, temperature))
        test_rows.append(member_folds[0].test_rows)
    labels = targets.labels[np.concatenate(test_rows)]
    return reliability(np.concatenate(predicted), labels)


def fit_temperature(log_probabilities: Float64, targets: Targets) -> float:
    """Return the temperature of the least log loss of rows [rows, classes].

    The logarithm of the temperature has a normal prior of variance 1, so that a few rows that are all right do not make
    probabilities of 1.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - as above

    clipped = np.maximum(log_probabilities, LOG_ZERO)
    rows = np.arange(len(targets))

    def loss(log_temperature: float) -> float:
        logs = normalize(clipped / np.exp(log_temperature))
        return float(-logs[rows, targets.labels].sum() + log_temperature**2 / 2)

    return float(np.exp(minimize_scalar(loss, bounds=(-_MOST_LOG, _MOST_LOG), method="bounded").x))


def tempered(log_probabilities: Float64, temperature: float) -> Float64:
    """Return log-probabilities over a temperature, normalized, [rows, classes]; an excluded class stays excluded."""
    return normalize(log_probabilities / temperature)
