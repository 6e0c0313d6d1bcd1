"""All that a run is asked after each share of its training, frozen by the text and the settings alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from raysent.data.corpus import Corpus
from raysent.data.pairs import PairCorpus
from raysent.data.vocabulary import Vocabulary
from raysent.models import SentenceModel
from raysent.models.objectives import ObjectiveConfig
from raysent.storage import content_key
from raysent.training.validation.config import ValidationConfig
from raysent.training.validation.metrics import (
    Downstream,
    HeldOut,
    Similarity,
    held_out_pairs,
    held_out_sentences,
    held_out_triplets,
)
from raysent.training.validation.pool import ValidationPool

CONTEXT_METRICS = ("context_accuracy", "context_nll")

Metric = Literal[
    "context_accuracy",
    "context_nll",
    "pearson",
    "accuracy",
    "nll",
    "score_pearson",
    "score_mse",
    "reconstruction_mse",
    "similarity_kept",
    "downstream",
]

METRICS: dict[str, Literal["max", "min"]] = {
    "context_accuracy": "max",
    "context_nll": "min",
    "pearson": "max",
    "accuracy": "max",
    "nll": "min",
    "score_pearson": "max",
    "score_mse": "min",
    "reconstruction_mse": "min",
    "similarity_kept": "max",
    "downstream": "max",
}
"""What a sweep may be ranked by, and whether more or less is better."""


def metrics_of(objective: ObjectiveConfig, validation: ValidationConfig) -> tuple[str, ...]:
    """Return the names of the figures that a run is going to report.

    Contexts are asked where two towers were trained on them, `pearson` where there are scored pairs, the
    objective's own where it has any, and `downstream` where tasks are named.
    """
    has_pool = objective.reads == "context" and objective.num_towers == 2 and not objective.trains_code
    has_scores = validation.sts is not None or validation.similarity is not None
    return (
        *(CONTEXT_METRICS if has_pool else ()),
        *(("pearson",) if has_scores else ()),
        *objective.metrics,
        *objective.predicted_metrics,
        *(("downstream",) if validation.downstream is not None else ()),
    )


class Validator:
    """Contexts, scored pairs and held-out text, as far as a run has them.

    Attributes:
        pool: Contexts; None where the objective has none.
        similarity: Scored pairs; None where the configuration names none.
        downstream: Tasks; None where the configuration names none.
        held_out: Text for the objective's own measures; None where it has none.
    """

    def __init__(
        self,
        objective: ObjectiveConfig,
        config: ValidationConfig,
        *,
        vocabulary: Vocabulary,
        corpus: Corpus | None = None,
        pairs: PairCorpus | None = None,
        max_length: int = 50,
    ) -> None:
        """Freeze what the run is asked.

        Raises:
            DataError: If the text holds no question.
        """
        names = metrics_of(objective, config)
        self._vocabulary, self._max_length = vocabulary, max_length
        self.pool = ValidationPool(corpus, config) if corpus is not None and "context_nll" in names else None
        self.similarity = Similarity(config) if "pearson" in names else None
        self.downstream = None if config.downstream is None else Downstream(config.downstream)
        self.held_out: HeldOut | None = None
        if objective.metrics and objective.reads == "triplets" and corpus is not None:
            self.held_out = held_out_triplets(
                corpus.validation,
                max_length=getattr(objective, "max_length", max_length),
                num_sentences=config.num_sentences,
            )
        if objective.metrics and objective.reads == "context" and corpus is not None:
            self.held_out = held_out_sentences(corpus.validation, num_sentences=config.num_sentences)
        self._predicts = bool(objective.predicted_metrics)
        if (objective.metrics or objective.predicted_metrics) and pairs is not None:
            self.held_out = held_out_pairs(
                pairs.validation, vocabulary, max_length=max_length, num_sentences=config.num_sentences
            )

    def scores(self, model: SentenceModel) -> dict[str, float]:
        """Return every figure by name; the model must not be in training."""
        found: dict[str, float] = {}
        if self.pool is not None:
            found |= self.pool.scores(lambda sentences: _two(model.comparable_vectors(sentences)))
        if self.similarity is not None:
            found |= self.similarity.scores(model.encode_ids, self._vocabulary, max_length=self._max_length)
        if self.held_out is not None:
            found |= (
                self.held_out.predicted(model.predictions) if self._predicts else self.held_out.scores(model.scores)
            )
        if self.downstream is not None:
            found |= self.downstream.scores(model)
        return found

    def hash_of(self, metric: str) -> str:
        """Return what names the questions behind a figure; figures may be compared where these are equal."""
        parts: dict[str, Any] = {
            "pearson": self.similarity,
            "downstream": self.downstream,
            **dict.fromkeys(CONTEXT_METRICS, self.pool and self.pool.record),
        }
        part: Any = parts.get(metric, self.held_out)
        return "" if part is None else str(part.hash)

    def as_json(self) -> dict[str, Any]:
        """Return what must be known beside the figures, as plain values."""
        if self.pool is not None and self.similarity is None and self.held_out is None and self.downstream is None:
            return asdict(self.pool.record)
        about: dict[str, Any] = {} if self.pool is None else asdict(self.pool.record)
        hashes = [
            part.hash
            for part in (self.pool and self.pool.record, self.similarity, self.held_out, self.downstream)
            if part
        ]
        return {**about, "hash": content_key(hashes)}


def _two(vectors: Any) -> Any:
    """Return the vectors of f and of g."""
    f, g = vectors
    return f, g
