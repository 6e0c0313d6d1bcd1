"""What log-probabilities are worth beside the score: NLL, Brier score and calibration error, each with its draws.

Source: Brier, 1950; Nguyen and O'Connor, 2015 (calibration error over bins of equal mass).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raysent.ensemble.answers import Float64, Int64
from raysent.ensemble.pooling import LOG_OF_NOUGHT
from raysent.ensemble.resampling import Draws, Figure

NUM_BINS = 15


@dataclass(frozen=True)
class Bin:
    """Rows of neighbouring confidence.

    Attributes:
        confidence: Mean probability of the likeliest class.
        accuracy: Share of rows that were right.
        num_rows: How many they are.
    """

    confidence: float
    accuracy: float
    num_rows: int


@dataclass(frozen=True)
class Measures:
    """Figures of one way to answer, by their names on the page, and the bins of the calibration error.

    Attributes:
        figures: `accuracy` in percent; `nll` in nats per row, where a right class that was ruled out counts as the
            logarithm of the smallest number; `brier`, the mean over rows of the sum over classes of squared errors,
            from 0 to 2; `ece` in points of percent, the mean distance of confidence and accuracy over bins.
        reliability: The bins, by rising confidence.
    """

    figures: Mapping[str, Figure]
    reliability: tuple[Bin, ...]


def measure(log_probabilities: Float64, labels: np.ndarray, *, rows: Int64, draws: Draws) -> Measures:
    """Return all figures of answers.

    Args:
        log_probabilities: [rows, classes].
        labels: The rows' classes, [rows].
        rows: Which of the task's rows they are, [rows].
        draws: The task's.
    """
    probabilities, places = np.exp(log_probabilities), np.arange(len(labels))
    likeliest = log_probabilities.argmax(axis=1)
    right, confidence = (likeliest == labels).astype(np.float64), probabilities[places, likeliest]
    nll = -np.maximum(log_probabilities[places, labels], LOG_OF_NOUGHT)
    brier = (probabilities**2).sum(axis=1) + 1 - 2 * probabilities[places, labels]
    bins = equal_mass_bins(confidence)
    columns = np.column_stack([100 * right, nll, brier, 100 * (right - confidence)[:, None] * bins])
    values, (drawn,) = columns.mean(axis=0), draws.means([(rows, columns)])
    figures = {name: Figure(float(values[n]), drawn[:, n]) for n, name in enumerate(("accuracy", "nll", "brier"))}
    figures["ece"] = Figure(float(np.abs(values[3:]).sum()), np.abs(drawn[:, 3:]).sum(axis=1))
    return Measures(figures, _reliability(right, confidence, bins))


def equal_mass_bins(confidence: Float64) -> Float64:
    """Return which bin each row is in, a column a bin, float64 [rows, bins]; rows of equal confidence stay in order."""
    order = np.argsort(confidence, kind="stable")
    bins = np.zeros((len(confidence), min(NUM_BINS, len(confidence))))
    for number, rows in enumerate(np.array_split(order, bins.shape[1])):
        bins[rows, number] = 1
    return bins


def _reliability(right: Float64, confidence: Float64, bins: Float64) -> tuple[Bin, ...]:
    sizes = bins.sum(axis=0)
    found = zip(confidence @ bins / sizes, right @ bins / sizes, sizes, strict=True)
    return tuple(Bin(float(mean), float(share), int(size)) for mean, share, size in found)
