"""The names of the metrics that a run reports; asking for help reads them, so nothing is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

METRICS: dict[str, Literal["max", "min"]] = {
    "context_accuracy": "max",
    "context_nll": "min",
    "pearson": "max",
    "accuracy": "max",
    "nll": "min",
    "score_pearson": "max",
    "score_mse": "min",
    "related_auc": "max",
    "reconstruction_mse": "min",
    "reconstruction_r2": "max",
    "similarity_kept": "max",
    "target_cosine": "max",
    "document_accuracy": "max",
    "downstream": "max",
}
"""The metrics that a sweep can be ranked by, and whether higher or lower values are better."""

if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[tuple(METRICS)]

FINISHED_METRICS = ("pearson", "document_accuracy", "downstream", "related_auc")
"""The metrics that compare finished vectors, after postprocessing; the others compare what the objective trains."""
