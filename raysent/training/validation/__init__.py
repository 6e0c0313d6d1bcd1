"""The frozen examination that every trial sits, whatever it trains with.

- `config`: where its questions come from
- `pool`: contexts of a corpus' validation split, `context_accuracy` and `context_nll`
- `similarity`: pairs with scores, `pearson`
- `held_out`: the objective's own measures on held-out triplets or pairs, `nll` and `accuracy`
- `validator`: all that a run can be asked, and which figures may be compared
"""

from raysent.training.validation.config import ValidationConfig
from raysent.training.validation.metrics import Similarity, mean_pearson, pearson
from raysent.training.validation.pool import PoolRecord, ValidationPool, block_scores, block_starts, neighbours
from raysent.training.validation.validator import CONTEXT_METRICS, METRICS, Metric, Validator, metrics_of

__all__ = [
    "CONTEXT_METRICS",
    "METRICS",
    "Metric",
    "PoolRecord",
    "Similarity",
    "ValidationConfig",
    "ValidationPool",
    "Validator",
    "block_scores",
    "block_starts",
    "mean_pearson",
    "metrics_of",
    "neighbours",
    "pearson",
]
