"""Settings of a run's validation, and the metrics that a run reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from raysent.config import StrictModel
from raysent.data.pairs import PairsConfig
from raysent.models.objectives import CONTEXT_METRICS, ObjectiveConfig

NUM_DOCUMENTS = 10
"""Documents that `document_accuracy` distinguishes by default."""


class DownstreamConfig(StrictModel):
    """Tasks whose probes' validation score is a metric of the run.

    Attributes:
        tasks: Names of tasks; None for those whose files are in the data folder, or without a folder the embedded ones.
        data: Folder in SentEval's layout.
        max_rows: Rows of a task that train a probe, and rows that validate it, at most; or queries of dev, ranked among
            ten times as many passages.
        rows: File of these rows, which a sweep's division writes; while it is there, no task's own file is opened.
    """

    tasks: list[str] | None = pydantic.Field(default=None, min_length=1)
    data: str | None = None
    max_rows: int = pydantic.Field(default=2000, ge=100)
    rows: str | None = None


class ValidationConfig(StrictModel):
    """The validation set and its own definition of context, independent of the settings that a trial trains with.

    Attributes:
        num_candidates: Sentences of a block of the pool; each is scored against all others of its block.
        num_sentences: Sentences of all blocks together, at most; also the limit on held-out triplets and pairs.
        context_size: Sentences on each side that count as neighbours.
        seed: Seed of the choice of blocks.
        sts: Folder of STS sets in SentEval's layout; adds `pearson`, the mean over the sets.
        similarity: File of pairs with scores; adds `pearson` too, as one more set.
        documents: Adds `document_accuracy`, the validation score in percent of a probe that says from which of so many
            of the largest training documents a sentence is. It needs no labels, and was seen to order encoders for
            tasks almost as probes on labelled rows do, where `context_accuracy` does not.
        downstream: Tasks; adds `downstream`, the mean validation score of probes on the vectors, or nDCG@10 of queries,
            in percent.
    """

    num_candidates: int = pydantic.Field(default=1000, ge=3, le=1_000_000)
    num_sentences: int = pydantic.Field(default=10_000, ge=3, le=1_000_000_000)
    context_size: int = pydantic.Field(default=1, ge=1, le=1_000)
    seed: int = pydantic.Field(default=0, ge=0)
    sts: str | None = None
    similarity: PairsConfig | None = None
    documents: int | None = pydantic.Field(default=None, ge=2, le=100)
    downstream: DownstreamConfig | None = None


def chance_of(metric: str, pool: Mapping[str, Any]) -> float | None:
    """Return a metric's value if all answers are equally likely; None if it is unknown.

    Args:
        metric: The metric.
        pool: What is recorded of the validation set, as `Validator.as_json` returns it.
    """
    names = {
        "context_accuracy": "chance_accuracy",
        "context_nll": "chance_nll",
        "document_accuracy": "chance_document",
    }
    return pool.get(names.get(metric, ""))


def metrics_of(objective: ObjectiveConfig, validation: ValidationConfig) -> tuple[str, ...]:
    """Return the names of the metrics that a run reports.

    These are the objective's, `pearson` where the settings name pairs with scores, `document_accuracy` where they give
    a number of documents, and `downstream` where they name tasks.
    """
    names = [name for name in objective.metrics if name in CONTEXT_METRICS]
    if validation.sts is not None or validation.similarity is not None:
        names.append("pearson")
    names += [name for name in objective.metrics if name not in CONTEXT_METRICS]
    if validation.documents is not None:
        names.append("document_accuracy")
    if validation.downstream is not None:
        names.append("downstream")
    return tuple(names)
