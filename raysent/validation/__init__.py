"""The frozen examination that every trial sits, whatever it trains with.

- `config`: where its questions come from
- `pool`: contexts of a corpus' validation split, `context_accuracy` and `context_nll`
- `similarity`: pairs with scores, `pearson`
- `held_out`: the objective's own measures on held-out triplets or pairs, `nll` and `accuracy`
- `examination`: all that a run can be asked, and which figures may be compared
"""

from raysent.validation.config import ValidationConfig
from raysent.validation.examination import CONTEXT_METRICS, METRICS, Examination, Metric, metrics_of
from raysent.validation.pool import PoolRecord, ValidationPool, block_scores, block_starts, neighbours
from raysent.validation.similarity import Similarity, mean_pearson, pearson

__all__ = [
    "CONTEXT_METRICS",
    "METRICS",
    "Examination",
    "Metric",
    "PoolRecord",
    "Similarity",
    "ValidationConfig",
    "ValidationPool",
    "block_scores",
    "block_starts",
    "mean_pearson",
    "metrics_of",
    "neighbours",
    "pearson",
]
