"""Bootstrap: rows drawn with replacement, and scores with intervals from them.

Rows are drawn once, as counts [resamples, rows], and every measure of the rows is computed from the same counts. So
differences between predictions are paired, and draws of several tasks can be averaged.

Percentiles of few rows leave the true score out too often, and where every row is right they are one point. So an
accuracy has the score interval of its binomial distribution, and other percentiles are widened as if by Student's t.

Sources: Efron and Tibshirani, 1993, chapter 13 (percentile intervals); Wilson, 1927 (the interval of a share);
Hesterberg, 2015, What teachers should know about the bootstrap, section 5.3 (expanded percentiles).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
import pydantic

from raysent.evaluation.probes.results import ProbeResult
from raysent.evaluation.targets import Float64, Int64, Targets
from raysent.evaluation.task import TaskData

Interval = tuple[float, float]

PERCENTILES = (2.5, 97.5)
NUM_RESAMPLES = 1000
# Resamples weighted at once: bounds the memory of counts in floating point.
_CHUNK = 100


def interval_of(draws: Float64, num_rows: int | None = None) -> Interval:
    """Return the 95 % percentile interval of draws [resamples], widened for the number of rows that were drawn."""
    percentiles = PERCENTILES
    if num_rows is not None:
        percentiles = _expanded_percentiles(num_rows)
    low, high = np.percentile(draws, percentiles)
    return float(low), float(high)


def accuracy_interval(num_right: float, num_rows: int) -> Interval:
    """Return the 95 % score interval, in percent, of the accuracy that so many right rows of all show."""
    normal = NormalDist().inv_cdf(PERCENTILES[1] / 100)
    share = num_right / num_rows
    weight = normal**2 / num_rows
    center = (share + weight / 2) / (1 + weight)
    half = math.sqrt(share * (1 - share) * weight + weight**2 / 4) / (1 + weight)
    # Rounding must not leave the accuracy itself out, where no row or every row is right.
    low = max(0.0, min(center - half, share))
    high = min(1.0, max(center + half, share))
    return 100 * low, 100 * high


@lru_cache
def _expanded_percentiles(num_rows: int) -> tuple[float, float]:
    """Return the percentiles at which an interval of few rows is as wide as that of Student's t."""
    from scipy.special import stdtrit  # noqa: PLC0415 - a tenth of a second for every process that loads a model

    if num_rows < 2:
        return 0.0, 100.0
    student = float(stdtrit(num_rows - 1, PERCENTILES[1] / 100))
    low = 100 * NormalDist().cdf(-math.sqrt(num_rows / (num_rows - 1)) * student)
    return low, 100 - low


@dataclass(frozen=True)
class BootstrapEstimate:
    """A value and its 95 % bootstrap interval; files keep no draws.

    Attributes:
        value: On the original rows.
        interval: That of an accuracy from its rows, else percentiles of the draws.
        draws: On resampled rows, float64 [resamples]; None if it was read from a file.
        num_rows: How many rows were drawn; None for means of several tasks or folds.
    """

    value: float
    interval: Interval
    draws: Annotated[Any, pydantic.Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )
    num_rows: Annotated[int | None, pydantic.Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )

    @classmethod
    def of(cls, value: float, draws: Float64, num_rows: int | None = None) -> BootstrapEstimate:
        """Return the estimate of a value whose draws are known."""
        return cls(value, interval_of(draws, num_rows), draws, num_rows)

    def minus(self, other: BootstrapEstimate) -> BootstrapEstimate:
        """Return the difference; paired if both are of the same rows."""
        difference = self.value - other.value
        draws = self.draws - other.draws
        if self.num_rows == other.num_rows:
            return BootstrapEstimate.of(difference, draws, self.num_rows)
        return BootstrapEstimate.of(difference, draws)


def mean_estimate(estimates: Sequence[BootstrapEstimate]) -> BootstrapEstimate:
    """Return the mean of estimates of several tasks, or of one task's folds."""
    if len(estimates) == 1:
        return estimates[0]
    mean = float(np.mean([estimate.value for estimate in estimates]))
    return BootstrapEstimate.of(mean, np.mean([estimate.draws for estimate in estimates], axis=0))


class Resamples:
    """How often each row occurs in each resample."""

    def __init__(self, counts: np.ndarray) -> None:
        """Hold counts, integers [resamples, rows]."""
        self._counts = counts

    @classmethod
    def of(cls, seed: str | int, num_rows: int) -> Resamples:
        """Draw resamples; the seed of a task's is its name, so that tasks are drawn independently."""
        if isinstance(seed, str):
            seed = zlib.crc32(seed.encode())
        return cls(_counts(seed, num_rows))

    def means(self, parts: Sequence[tuple[Int64, Float64]]) -> list[Float64]:
        """Return the mean of values over the drawn rows of each part, float64 [resamples, columns] per part.

        Args:
            parts: Some of the rows, [rows], and their values, [rows, columns].
        """
        # The columns of all parts stand side by side, so that one product with the counts sums them all. The last one
        # of each part is 1 in its rows, and sums to the number of them that are drawn.
        widths = [of_rows.shape[1] + 1 for _, of_rows in parts]
        columns = np.zeros((self._counts.shape[1], sum(widths)))
        ends = np.cumsum(widths)
        for (rows, of_rows), end, width in zip(parts, ends, widths, strict=True):
            columns[rows, end - width : end - 1] = of_rows
            columns[rows, end - 1] = 1
        chunk_sums = []
        for first in range(0, len(self._counts), _CHUNK):
            counts = self._counts[first : first + _CHUNK].astype(np.float64)
            chunk_sums.append(counts @ columns)
        sums = np.concatenate(chunk_sums)
        means = []
        for part_sums in np.split(sums, ends[:-1], axis=1):
            # A resample may hold none of very few rows; their mean is then 0.
            num_drawn = np.maximum(part_sums[:, -1:], 1)
            means.append(part_sums[:, :-1] / num_drawn)
        return means

    def estimates(
        self, parts: Sequence[tuple[Int64, Targets, np.ndarray]]
    ) -> list[BootstrapEstimate]:
        """Return the score of each part in percent.

        Args:
            parts: Some of the rows [rows], their targets, and log-probabilities [rows, classes].
        """
        row_values = [targets.values(predicted) for _, targets, predicted in parts]
        columns = []
        for (rows, targets, _), of_rows in zip(parts, row_values, strict=True):
            columns.append((rows, targets.columns(of_rows)))
        estimates = []
        for (_, targets, _), of_rows, means in zip(
            parts, row_values, self.means(columns), strict=True
        ):
            draws = 100 * targets.scores_of_means(means)
            estimates.append(_estimate(targets, of_rows, draws))
        return estimates


def _estimate(targets: Targets, row_values: Float64, draws: Float64) -> BootstrapEstimate:
    """Return the score of some rows in percent, with its interval."""
    num_rows = len(targets)
    score = 100 * targets.score_of(row_values)
    if not _is_accuracy(targets):
        return BootstrapEstimate.of(score, draws, num_rows)
    interval = accuracy_interval(float(row_values.sum()), num_rows)
    return BootstrapEstimate(score, interval, draws, num_rows)


def _is_accuracy(targets: Targets) -> bool:
    """Return whether the score is the share of rows that are right."""
    return not targets.is_scored and targets.metric == "accuracy"


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
    if _is_accuracy(targets):
        return accuracy_interval(float(targets.values(predicted).sum()), len(rows))
    parts = [(np.arange(len(rows)), targets, predicted)]
    return Resamples.of(0, len(rows)).estimates(parts)[0].interval
