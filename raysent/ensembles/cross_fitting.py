"""Rows -> folds for cross-fitting: stratified, drawn with a fixed seed, the same for every method.

Bootstrap over rows: figures with the draws behind them, so that differences are paired and means can be taken.

A task's rows are drawn with replacement once, as counts [resamples, rows]; every figure of that task is weighted with
the same counts. Two answers' draws may then be subtracted, and different tasks' draws averaged.

Source: Efron and Tibshirani, 1993, chapter 13 (percentile intervals).

The honest score of a method: whatever it chooses, it chooses without the rows it is scored on.

The rows are divided into stratified folds with a fixed seed; each is answered by a combination fitted on the others.
A method that does worse than the best single member, which is chosen within the same folds, is replaced by it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from raysent.ensembles.folds import divisions
from raysent.ensembles.methods import Fit, fit
from raysent.ensembles.predictions import Answers, Float64, Int64, Source, Truth, as_answers, as_truth
from raysent.evaluation.probes.results import PERCENTILES, Interval

NUM_RESAMPLES = 1000
# Resamples weighted at once: bounds the counts held as floating point.
CHUNK = 100


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure and what it was on rows drawn anew.

    Attributes:
        value: On the rows as they are.
        draws: float64 [resamples].
    """

    value: float
    draws: Float64

    @property
    def interval(self) -> Interval:
        """Return the 95 % percentile interval."""
        low, high = np.percentile(self.draws, PERCENTILES)
        return float(low), float(high)

    def minus(self, other: Figure) -> Figure:
        """Return the difference; paired where both are of the same rows."""
        return Figure(self.value - other.value, self.draws - other.draws)


def mean_figure(figures: Sequence[Figure]) -> Figure:
    """Return the mean of figures, of several tasks or of one task's folds."""
    return Figure(
        float(np.mean([figure.value for figure in figures])), np.mean([figure.draws for figure in figures], axis=0)
    )


class Draws:
    """How often each of a task's rows is drawn."""

    def __init__(self, task: str, num_rows: int) -> None:
        """Draw a task's rows; its name seeds the draws, so that tasks are drawn apart."""
        self._counts = _counts(zlib.crc32(task.encode()), num_rows)

    def means(self, parts: Sequence[tuple[Int64, Float64]]) -> list[Float64]:
        """Return the means of values over the drawn ones of some rows, each float64 [resamples, figures].

        Args:
            parts: Numbers of rows, [rows], and their values, [rows, figures].
        """
        widths = [values.shape[1] + 1 for _, values in parts]
        columns = np.zeros((self._counts.shape[1], sum(widths)))
        ends = np.cumsum(widths)
        for (rows, values), end, width in zip(parts, ends, widths, strict=True):
            columns[rows, end - width : end - 1] = values
            columns[rows, end - 1] = 1  # sums up to how many were drawn
        sums = np.concatenate(
            [
                self._counts[first : first + CHUNK].astype(np.float64) @ columns
                for first in range(0, NUM_RESAMPLES, CHUNK)
            ]
        )
        # Of very few rows none may be drawn; their figure is then 0.
        return [part[:, :-1] / np.maximum(part[:, -1:], 1) for part in np.split(sums, ends[:-1], axis=1)]

    def scores(self, parts: Sequence[tuple[Int64, Truth, Float64]]) -> list[Figure]:
        """Return the scores of answers to some of the task's rows, in percent.

        Args:
            parts: Numbers of rows [rows], what is known of them, and the answers [rows, classes].
        """
        values = [truth.values(answers) for _, truth, answers in parts]
        found = [100 * truth.score_of(value) for (_, truth, _), value in zip(parts, values, strict=True)]
        columns = [_columns(truth, value) for (_, truth, _), value in zip(parts, values, strict=True)]
        drawn = self.means([(rows, column) for (rows, _, _), column in zip(parts, columns, strict=True)])
        return [
            Figure(value, 100 * (_correlations(*means.T) if truth.is_scored else means[:, 0]))
            for (_, truth, _), value, means in zip(parts, found, drawn, strict=True)
        ]


def _columns(truth: Truth, values: Float64) -> Float64:
    """Return what a score is made of as columns whose means are enough to tell it, [rows, figures]."""
    if not truth.is_scored:
        return values[:, None]
    x, y = values - values.mean(), truth.scores - truth.scores.mean()
    return np.stack([x, y, x * x, y * y, x * y], axis=1)


def _correlations(x: Float64, y: Float64, xx: Float64, yy: Float64, xy: Float64) -> Float64:
    """Return correlations from means of values, squares and products; 0 where a side is constant."""
    spread = np.sqrt(np.maximum((xx - x * x) * (yy - y * y), 0))
    return np.divide(xy - x * y, spread, out=np.zeros_like(spread), where=spread > 0)


@lru_cache(maxsize=2)
def _counts(seed: int, num_rows: int) -> np.ndarray:
    """Return how often each row is drawn, uint8 [resamples, rows]."""
    generator = np.random.default_rng(seed)
    counts = np.empty((NUM_RESAMPLES, num_rows), dtype=np.uint8)
    for resample in counts:
        resample[:] = np.bincount(generator.integers(0, num_rows, num_rows), minlength=num_rows)
    return counts


BEST = "best"


@dataclass(frozen=True)
class CrossFitted:
    """A method on rows that trained no member.

    Attributes:
        fit: Fitted on all rows: by the method, or the best member where `is_replaced`.
        is_replaced: Whether the method did worse than the best single member.
        in_sample: Log-probabilities by the fit on all rows, float64 [rows, classes].
        held_out: Log-probabilities by fits that did not see the row, float64 [rows, classes].
    """

    fit: Fit
    is_replaced: bool
    in_sample: Float64
    held_out: Float64


def cross_fit(
    log_probabilities: Answers | Sequence[Source] | np.ndarray,
    labels: Truth | npt.ArrayLike,
    *,
    method: str = "validation",
) -> CrossFitted:
    """Fit a method and its honest answers; the best member stands in where the method does worse.

    Args:
        log_probabilities: As for `fit`.
        labels: The rows' classes, [rows]; of scored pairs a `Truth`.
        method: A name in `METHODS`.

    Raises:
        ConfigError: If the method is unknown.
        DataError: As `fit`.
    """
    answers = as_answers(log_probabilities)
    truth = as_truth(labels, answers)
    found = _as_it_is(answers, truth, method)
    if method == BEST:
        return found
    best = _as_it_is(answers, truth, BEST)
    is_worse = truth.score(found.held_out) < truth.score(best.held_out)
    return CrossFitted(best.fit, True, best.in_sample, best.held_out) if is_worse else found


def held_out(answers: Answers, truth: Truth, *, method: str) -> Float64:
    """Return the log-probabilities of each row by a fit on the other folds; of a single row, by a fit on itself."""
    answered = np.empty(answers.shape[1:])
    alone = np.arange(len(truth))
    for fitted, unseen in list(divisions(truth.labels)) or [(alone, alone)]:
        combination = fit(answers.take(fitted), truth.take(fitted), method=method).combination
        answered[unseen] = combination(answers.take(unseen))
    return answered


def _as_it_is(answers: Answers, truth: Truth, method: str) -> CrossFitted:
    fitted = fit(answers, truth, method=method)
    return CrossFitted(fitted, False, fitted.combination(answers), held_out(answers, truth, method=method))
