"""The fixed validation set that every trial of a sweep is scored on.

- `config`: settings of a run's validation, and the metrics that it reports
- `pool`: contexts from the corpus' validation split, `context_accuracy` and `context_nll`
- `baselines`: the same of TF-IDF and of random word vectors, which an encoder should beat
- `metrics`: held-out batches of the objective, similarities of pairs with human ratings, downstream tasks
- `validator`: all of these for one run
"""

from raysent.training.validation.baselines import BASELINES, baseline_scores
from raysent.training.validation.config import (
    FINISHED_METRICS,
    METRICS,
    NUM_DOCUMENTS,
    DownstreamConfig,
    Metric,
    ValidationConfig,
    chance_of,
    metrics_of,
)
from raysent.training.validation.metrics import count_documents, sentences_of_document
from raysent.training.validation.pool import PoolRecord, ValidationPool, block_scores, block_starts, neighbours
from raysent.training.validation.validator import Validator

__all__ = [
    "BASELINES",
    "FINISHED_METRICS",
    "METRICS",
    "NUM_DOCUMENTS",
    "DownstreamConfig",
    "Metric",
    "PoolRecord",
    "ValidationConfig",
    "ValidationPool",
    "Validator",
    "baseline_scores",
    "block_scores",
    "block_starts",
    "chance_of",
    "count_documents",
    "metrics_of",
    "neighbours",
    "sentences_of_document",
]
