"""`Validator`: every metric of a run, on text that is fixed by the files and the validation settings alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from raysent.data.corpus import Corpus
from raysent.data.vocabulary import Vocabulary
from raysent.errors import DataError
from raysent.models import SentenceModel
from raysent.models.objectives import CONTEXT_METRICS, PREDICTION_METRICS
from raysent.storage import content_key
from raysent.training.validation.config import ValidationConfig
from raysent.training.validation.metrics import Documents, Downstream, HeldOut, Similarity
from raysent.training.validation.pool import ValidationPool


class Validator:
    """The validation set of a run: contexts, pairs with scores, tasks and held-out batches, as its metrics need them.

    Attributes:
        pool: Contexts; None where no metric needs them.
        similarity: Pairs with scores; None where the settings name none.
        documents: Sentences of documents that a probe distinguishes; None where the settings give no number of them.
        downstream: Tasks; None where the settings name none.
        held_out: Batches for the objective's own metrics; None where it has none.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        config: ValidationConfig,
        *,
        vocabulary: Vocabulary,
        max_length: int = 50,
        corpus: Corpus | None = None,
        held_out: HeldOut | None = None,
    ) -> None:
        """Read and fix the validation set.

        Args:
            metrics: Names of the metrics, as `metrics_of` returns them.
            config: Sizes, files and tasks.
            vocabulary: The words that have an id.
            max_length: Tokens read of a longer sentence.
            corpus: The text of the contexts; None for a run on pairs.
            held_out: Batches for the objective's own metrics.

        Raises:
            DataError: If there is no text for a metric.
        """
        self._vocabulary, self._max_length = vocabulary, max_length
        has_pool = corpus is not None and set(CONTEXT_METRICS) <= set(metrics)
        self.pool = ValidationPool(corpus, config) if corpus is not None and has_pool else None
        self.similarity = Similarity(config) if "pearson" in metrics else None
        num_documents = config.documents if "document_accuracy" in metrics else None
        if num_documents is not None and corpus is None:
            raise DataError("validation.documents: needs running text, and a run on pairs has none; leave it out")
        self.documents = None if num_documents is None or corpus is None else Documents(corpus, num_documents)
        self.downstream = None if config.downstream is None else Downstream(config.downstream)
        self.held_out = held_out
        self._predicts = set(PREDICTION_METRICS) <= set(metrics)

    def metrics_of(self, model: SentenceModel) -> dict[str, float]:
        """Return every metric by name; the model must not be in training mode."""
        found: dict[str, float] = {}
        if self.pool is not None:
            found |= self.pool.context_metrics(model.comparable_vectors)
        if self.similarity is not None:
            found |= self.similarity.similarity_metrics(model.encode_ids, self._vocabulary, max_length=self._max_length)
        if self.held_out is not None:
            found |= self.held_out.objective_metrics(model.held_out_totals)
            found |= self.held_out.prediction_metrics(model.predictions) if self._predicts else {}
        if self.documents is not None:
            found |= self.documents.document_metrics(model.encode_ids)
        if self.downstream is not None:
            found |= self.downstream.downstream_metrics(model)
        return found

    def hash_of(self, metric: str) -> str:
        """Return the hash of the data behind a metric; values can be compared where the hashes are equal."""
        parts: dict[str, Any] = {
            "pearson": self.similarity,
            "document_accuracy": self.documents,
            "downstream": self.downstream,
            **dict.fromkeys(CONTEXT_METRICS, self.pool and self.pool.record),
        }
        part: Any = parts.get(metric, self.held_out)
        return "" if part is None else str(part.hash)

    def as_json(self) -> dict[str, Any]:
        """Return what is recorded beside the metrics: the hash of all data, the pool's sizes, and levels of chance."""
        pool = None if self.pool is None else self.pool.record
        parts = [part for part in (pool, self.similarity, self.held_out, self.documents, self.downstream) if part]
        about: dict[str, Any] = {} if pool is None else asdict(pool)
        about |= {} if self.documents is None else {"chance_document": self.documents.chance}
        return about if parts == [pool] else {**about, "hash": content_key([part.hash for part in parts])}
