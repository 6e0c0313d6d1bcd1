"""Bootstrap: rows drawn with replacement, and scores with intervals from them.

Rows are drawn once, as counts [resamples, rows], and every measure of the rows is computed from the same counts. So
differences between predictions are paired, and draws of several tasks can be averaged.

Source: Efron and Tibshirani, 1993, chapter 13 (percentile intervals).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pydantic

from raysent.evaluation.probes.results import ProbeResult
from raysent.evaluation.targets import Float64, Int64, Targets
from raysent.evaluation.task import TaskData

Interval = tuple[float, float]

PERCENTILES = (2.5, 97.5)
NUM_RESAMPLES = 1000
# Of accuracies, where a resample is one draw of a multinomial distribution.
NUM_OUTCOME_RESAMPLES = 10_000
# Resamples weighted at once: bounds the memory of counts in floating point.
_CHUNK = 100


def interval_of(draws: Float64) -> Interval:
    """Return the 95 % percentile interval of draws [resamples]."""
    low, high = np.percentile(draws, PERCENTILES)
    return float(low), float(high)


@dataclass(frozen=True)
class BootstrapEstimate:
    """A value and its 95 % bootstrap interval; files keep no draws.

    Attributes:
        value: On the original rows.
        interval: From the 2.5th to the 97.5th percentile of the draws.
        draws: On resampled rows, float64 [resamples]; None if it was read from a file.
    """

    value: float
    interval: Interval
    draws: Annotated[Any, pydantic.Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )

    @classmethod
    def of(cls, value: float, draws: Float64) -> BootstrapEstimate:
        """Return the estimate of a value whose draws are known."""
        return cls(value, interval_of(draws), draws)

    def minus(self, other: BootstrapEstimate) -> BootstrapEstimate:
        """Return the difference; paired if both are of the same rows."""
        return BootstrapEstimate.of(self.value - other.value, self.draws - other.draws)


def mean_estimate(estimates: Sequence[BootstrapEstimate]) -> BootstrapEstimate:
    """Return the mean of estimates of several tasks, or of one task's folds."""
    value = float(np.mean([estimate.value for estimate in estimates]))
    return BootstrapEstimate.of(value, np.mean([estimate.draws for estimate in estimates], axis=0))


class Resamples:
    """How often each row occurs in each resample."""

    def __init__(self, counts: np.ndarray) -> None:
        """Hold counts, integers [resamples, rows]."""
        self._counts = counts

    @classmethod
    def of(cls, seed: str | int, num_rows: int) -> Resamples:
        """Draw resamples; the seed of a task's is its name, so that tasks are drawn independently."""
        return cls(_counts(zlib.crc32(seed.encode()) if isinstance(seed, str) else seed, num_rows))

    def means(self, parts: Sequence[tuple[Int64, Float64]]) -> list[Float64]:
        """Return the mean of values over the drawn rows of each part, float64 [resamples, columns] per part.

        Args:
            parts: Some of the rows, [rows], and their values, [rows, columns].
        """
        widths = [values.shape[1] + 1 for _, values in parts]
        columns = np.zeros((self._counts.shape[1], sum(widths)))
        ends = np.cumsum(widths)
        for (rows, values), end, width in zip(parts, ends, widths, strict=True):
            columns[rows, end - width : end - 1] = values
            columns[rows, end - 1] = 1  # sums to the number of drawn rows
        chunks = [
            self._counts[first : first + _CHUNK] for first in range(0, len(self._counts), _CHUNK)
        ]
        sums = np.concatenate([chunk.astype(np.float64) @ columns for chunk in chunks])
        # A resample may hold none of very few rows; their mean is then 0.
        return [
            part[:, :-1] / np.maximum(part[:, -1:], 1) for part in np.split(sums, ends[:-1], axis=1)
        ]

    def estimates(
        self, parts: Sequence[tuple[Int64, Targets, np.ndarray]]
    ) -> list[BootstrapEstimate]:
        """Return the score of each part in percent.

        Args:
            parts: Some of the rows [rows], their targets, and log-probabilities [rows, classes].
        """
        values = [targets.values(predicted) for _, targets, predicted in parts]
        columns = [
            targets.columns(value) for (_, targets, _), value in zip(parts, values, strict=True)
        ]
        drawn = self.means(
            [(rows, column) for (rows, _, _), column in zip(parts, columns, strict=True)]
        )
        return [
            BootstrapEstimate.of(
                100 * targets.score_of(value), 100 * targets.scores_of_means(means)
            )
            for (_, targets, _), value, means in zip(parts, values, drawn, strict=True)
        ]


@lru_cache(maxsize=2)
def _counts(seed: int, num_rows: int) -> np.ndarray:
    """Return how often each row is drawn, uint8 [resamples, rows]."""
    generator = np.random.default_rng(seed)
    counts = np.empty((NUM_RESAMPLES, num_rows), dtype=np.uint8)
    for resample in counts:
        resample[:] = np.bincount(generator.integers(0, num_rows, num_rows), minlength=num_rows)
    return counts


def score_interval(result: ProbeResult, data: TaskData) -> Interval:
    """Return the 95 % interval of a probe's test score on a task, in percent."""
    rows = np.concatenate([fold.test_rows for fold in result.folds])
    predicted = np.concatenate([fold.test_log_probabilities for fold in result.folds])
    targets = Targets.of(data).take(rows)
    if not targets.is_scored and targets.metric == "accuracy":
        right = int(targets.values(predicted).sum())
        shares = [right / len(rows), 0.0, (len(rows) - right) / len(rows)]
        counts = np.random.default_rng(0).multinomial(len(rows), shares, size=NUM_OUTCOME_RESAMPLES)
        return interval_of(100 * (counts[:, 0] / len(rows)))
    return (
        Resamples.of(0, len(rows))
        .estimates([(np.arange(len(rows)), targets, predicted)])[0]
        .interval
    )
