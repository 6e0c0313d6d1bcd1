"""The fixed validation set that every trial of a sweep is scored on.

- `config`: settings of a run's validation, and the metrics that it reports
- `pool`: contexts from the corpus' validation split, `context_accuracy` and `context_nll`
- `baselines`: `context_accuracy` of TF-IDF and of random word vectors, which an encoder should beat
- `metrics`: held-out batches of the objective, similarities of pairs with human ratings, downstream tasks
- `validator`: all of these for one run
"""

from raysent.training.validation.baselines import baseline_accuracies
from raysent.training.validation.config import (
    FINISHED_METRICS,
    METRICS,
    Metric,
    ValidationConfig,
    metrics_of,
)
from raysent.training.validation.pool import PoolRecord, ValidationPool, block_scores, block_starts, neighbours
from raysent.training.validation.validator import Validator

__all__ = [
    "FINISHED_METRICS",
    "METRICS",
    "Metric",
    "PoolRecord",
    "ValidationConfig",
    "ValidationPool",
    "Validator",
    "baseline_accuracies",
    "block_scores",
    "block_starts",
    "metrics_of",
    "neighbours",
]
