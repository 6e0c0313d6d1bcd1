"""95 % intervals of scores, by the bootstrap.

Drawing rows with replacement and counting those that were right is a binomial draw, and for a difference of two
classifiers on the same rows (won, drawn, lost) a multinomial one; so the counts are drawn, never the rows.

Source: Efron and Tibshirani, 1993, chapter 13 (percentile intervals).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysent.evaluation.probes.relatedness import pearson, predicted_scores
from raysent.evaluation.probes.results import ProbeResult
from raysent.evaluation.tasks import TaskData

NUM_RESAMPLES = 10_000


# A correlation is not a count: its rows have to be drawn.
NUM_CORRELATIONS = 1000


PERCENTILES = (2.5, 97.5)


Interval = tuple[float, float]


def mean_interval(outcomes: Sequence[np.ndarray], *, seed: int = 0) -> Interval:
    """Return the interval of the mean over tasks of the mean outcome, in percent.

    Args:
        outcomes: Per task the rows' outcomes, [rows]: right 1 and wrong 0, or of a pair of classifiers on the same
            rows 1 where the first alone is right, -1 where the second alone is, else 0.
        seed: Fixes the draws.
    """
    generator = np.random.default_rng(seed)
    total = np.zeros(NUM_RESAMPLES)
    for values in outcomes:
        wins, losses = int((values > 0).sum()), int((values < 0).sum())
        shares = np.array([wins, losses, len(values) - wins - losses]) / len(values)
        counts = generator.multinomial(len(values), shares, size=NUM_RESAMPLES)
        total += (counts[:, 0] - counts[:, 1]) / len(values)
    low, high = np.percentile(100 * total / len(outcomes), PERCENTILES)
    return float(low), float(high)


def correlation_interval(predicted: np.ndarray, scores: np.ndarray, *, seed: int = 0) -> Interval:
    """Return the interval of Pearson's correlation times 100 of predicted scores with people's, both [rows]."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(NUM_CORRELATIONS):
        rows = generator.integers(len(scores), size=len(scores))
        found.append(100 * pearson(predicted[rows], scores[rows]))
    low, high = np.percentile(found, PERCENTILES)
    return float(low), float(high)


def score_interval(result: ProbeResult, data: TaskData) -> Interval:
    """Return the interval of a probe's test score on a task."""
    if data.is_scored:
        (fold,) = result.folds
        return correlation_interval(predicted_scores(fold.test_log_probabilities), data.scores[fold.test_rows])
    right = [fold.test_log_probabilities.argmax(axis=1) == data.labels[fold.test_rows] for fold in result.folds]
    return mean_interval([np.concatenate(right)])
