"""Sources of validation metrics, each fixed once and scored for any model; and `Validator`, all of them for one run.

    ValidationPool  contexts of held-out text, see `pool`

    HeldOut      batches of held-out text -> the objective's own metrics, each a mean over its cases
    Similarity   pairs with human ratings -> `pearson`, the mean over sets of the correlation of cosines with scores
    Documents    sentences of some documents -> `document_accuracy` of a probe that says which one a sentence is from
    Downstream   tasks -> `downstream`, the mean validation score of probes on the model's vectors, in percent; of tasks
                 with queries nDCG@10

`downstream` is the metric that encoders of every family share. Test rows are never read: a task without given splits
is divided first (see `evaluation.division`). A fixed sample of the rows of a large task is used, so that it can be
computed at every report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from raysent.data.batches import AnyBatch, Batch, SentenceTargets, Triplets, TripletStream
from raysent.data.corpus import Corpus, CorpusSplit
from raysent.data.pairs import Pairs, PairTexts, read_pairs, read_sts
from raysent.data.vocabulary import Sentences, Vocabulary
from raysent.errors import ConfigError, DataError
from raysent.evaluation.divided import has_rows, read_rows
from raysent.evaluation.division import divided
from raysent.evaluation.own_layer import learns_layer, own_validation
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.probes.results import pearson
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.retrieval import some_passages, validation_score
from raysent.evaluation.task import NO_ROWS, VALIDATED, RetrievalData, Task, TaskData
from raysent.evaluation.task_files.queries import with_dev
from raysent.evaluation.tasks import load_task, resolve_tasks
from raysent.models import SentenceModel
from raysent.models.objectives import CONTEXT_METRICS, PREDICTION_METRICS
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import content_key
from raysent.training.labels import LabelledRows
from raysent.training.validation.config import NUM_DOCUMENTS, DownstreamConfig, ValidationConfig
from raysent.training.validation.pool import ValidationPool

Score = Callable[[AnyBatch], dict[str, tuple[float, int]]]
"""A batch -> the sum and the number of cases of each metric."""

Predict = Callable[[AnyBatch], npt.NDArray[np.float64]]
"""A batch of pairs -> the predicted score of each."""

_BATCH = 128
# What metrics are of texts that have no case for them.
_CHANCE = {"related_auc": 0.5}


class HeldOut:
    """A fixed list of held-out batches.

    Attributes:
        hash: Equal for equal text and settings.
        batches: Yields the batches.
    """

    def __init__(self, key: str, make: Callable[[], Iterator[AnyBatch]]) -> None:
        """Store the key of the batches, and the function that yields them."""
        self.hash = key
        self.batches = make

    def objective_metrics(self, score: Score) -> dict[str, float]:
        """Return each metric's mean over all cases; chance where a text has none, such as related sentences.

        Raises:
            DataError: If the text has none, and there is no chance: no word to predict.
        """
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for batch in self.batches():
            for name, (total, count) in score(batch).items():
                totals[name] = totals.get(name, 0.0) + total
                counts[name] = counts.get(name, 0) + count
        metrics = {}
        for name, count in counts.items():
            if count:
                metrics[name] = totals[name] / count
            elif name in _CHANCE:
                metrics[name] = _CHANCE[name]
            else:
                raise DataError(
                    f"validation: the held-out text must have something to predict, and {name} found nothing; set "
                    "corpus.validation_fraction or validation.num_sentences higher"
                )
        return metrics

    def prediction_metrics(self, predict: Predict) -> dict[str, float]:
        """Return the correlation and the mean squared difference of predictions and the pairs' scores."""
        batch_predictions = []
        batch_scores = []
        for batch in self.batches():
            batch_predictions.append(predict(batch))
            batch_scores.append(np.asarray(getattr(batch, "scores", None), dtype=np.float64))
        predictions = np.concatenate(batch_predictions)
        scores = np.concatenate(batch_scores)
        mse = float(np.mean((predictions - scores) ** 2))
        return {"score_pearson": pearson(predictions, scores), "score_mse": mse}


def held_out_triplets(split: CorpusSplit, *, max_length: int, num_sentences: int) -> HeldOut:
    """Return the first triplets of a fixed random order of a split.

    Raises:
        DataError: If the split has none.
    """
    stream = TripletStream(split, batch_size=_BATCH, max_length=max_length, seed=0)
    num_batches = max(1, min(stream.num_batches, num_sentences // _BATCH))

    def make() -> Iterator[Triplets]:
        return (stream.batch(step) for step in range(num_batches))

    key = content_key(split.corpus.text_key, split.text_hash, max_length, num_batches)
    return HeldOut(key, make)


def held_out_sentences(
    split: CorpusSplit, targets: SentenceTargets | None, *, num_sentences: int
) -> HeldOut:
    """Return the first sentences of a split in `_blocks`, each with what a teacher returned for it if there is one."""
    stop = min(len(split), num_sentences)
    parts = [split.corpus.text_key, split.text_hash, stop]
    blocks = partial(_blocks, split, num_sentences=stop)
    if targets is None:
        return HeldOut(content_key(*parts), blocks)
    return HeldOut(content_key(*parts, targets.key), lambda: map(targets.of, blocks()))


def _blocks(split: CorpusSplit, *, num_sentences: int) -> Iterator[Batch]:
    """Yield the first sentences of a split in blocks, without a last block of one sentence."""
    for start in range(0, num_sentences - 1, _BATCH):
        end = min(start + _BATCH, num_sentences)
        positions = split.first + np.arange(start, end)
        yield Batch(split.sentences(start, end), positions, split.documents(start, end))


def held_out_pairs(
    pairs: PairTexts, vocabulary: Vocabulary, *, max_length: int, num_sentences: int
) -> HeldOut:
    """Return the first held-out pairs."""
    first_pairs = pairs.select(np.arange(min(len(pairs), num_sentences)))
    encoded = first_pairs.encode(vocabulary, max_length=max_length)

    def make() -> Iterator[Pairs]:
        rows = np.arange(len(encoded))
        for start in range(0, len(rows), _BATCH):
            yield encoded.select(rows[start : start + _BATCH])

    return HeldOut(first_pairs.key, make)


EncodeUnit = Callable[[Sentences], Tensor]
"""Sentences -> what the model's `encode` returns for them [batch, dim], without gradient."""

_CHUNK = 512


class Similarity:
    """Sets of pairs with scores.

    Attributes:
        hash: Equal for equal pairs and scores.
        sets: The pairs by the set's name.
    """

    def __init__(self, config: ValidationConfig) -> None:
        """Read the sets.

        Raises:
            DataError: If a set has no scores, or all its scores are equal.
        """
        self.sets: dict[str, PairTexts] = {}
        if config.sts is not None:
            self.sets = read_sts(config.sts)
        if config.similarity is not None:
            if config.similarity.score is None:
                raise DataError(
                    "validation.similarity.score: must name the column of the scores; given none"
                )
            self.sets["similarity"] = read_pairs(config.similarity, name="validation.similarity")
        for name, pairs in self.sets.items():
            if pairs.scores is None or len(set(pairs.scores.tolist())) < 2:
                raise DataError(
                    f"validation.sts: {name}: must hold two different scores; given fewer"
                )
        self.hash = content_key({name: pairs.key for name, pairs in self.sets.items()})

    def similarity_metrics(
        self, encode: EncodeUnit, vocabulary: Vocabulary, *, max_length: int
    ) -> dict[str, float]:
        """Return `pearson`, the mean over the sets."""
        correlations = []
        for pairs in self.sets.values():
            encoded = pairs.encode(vocabulary, max_length=max_length)
            first = _encode(encoded.first, encode)
            second = _encode(encoded.second, encode)
            correlations.append(pearson(cosines(first, second), np.asarray(pairs.scores)))
        return {"pearson": float(np.mean(correlations))}


def cosines(
    first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """Return the cosine of each row of one with the same row of the other, float64 [rows]; 0 for a vector of zeros."""
    first_rows = first.astype(np.float64)
    second_rows = second.astype(np.float64)
    products: npt.NDArray[np.float64] = (first_rows * second_rows).sum(axis=1)
    lengths = np.linalg.norm(first_rows, axis=1) * np.linalg.norm(second_rows, axis=1)
    return products / np.where(lengths == 0, 1.0, lengths)


def _encode(sentences: Sentences, encode: EncodeUnit) -> npt.NDArray[np.float32]:
    """Return vectors, float32 [sentences, dim]; memory holds the states of one chunk."""
    chunks = [encode(chunk).float().cpu().numpy() for chunk in sentences.split(_CHUNK)]
    return np.concatenate(chunks)


_SEED = 0
_DOCUMENT_ROWS = 1000
# Candidates among which a task's queries are ranked at each report, for each row that a probe would train on.
_PASSAGES_PER_QUERY = 10


def count_documents(sizes: npt.NDArray[np.int64], num_documents: int = NUM_DOCUMENTS) -> int:
    """Return how many documents have enough sentences to be one of so many that a probe distinguishes.

    Args:
        sizes: Sentences for training of each document [documents].
        num_documents: Documents that the probe distinguishes.
    """
    return int((sizes >= sentences_of_document(num_documents)).sum())


def sentences_of_document(num_documents: int = NUM_DOCUMENTS) -> int:
    """Return how many sentences are drawn of each of so many documents."""
    return _DOCUMENT_ROWS // num_documents


class Documents:
    """Sentences of the largest training documents; half of each document's train a probe, half are its validation.

    Attributes:
        hash: Equal for equal sentences.
        sentences: The sentences, those that train the probe first.
        chance: `document_accuracy` of a guess, in percent.
    """

    def __init__(self, corpus: Corpus, num_documents: int) -> None:
        """Draw the sentences.

        Raises:
            DataError: If the text has too few documents with enough sentences.
        """
        num_drawn = sentences_of_document(num_documents)
        split = corpus.train
        bounds = np.clip(corpus.document_starts - split.first, 0, len(split))
        lengths = np.diff(bounds)
        num_large = count_documents(lengths, num_documents)
        if num_large < num_documents:
            raise DataError(
                f"validation.documents: must be at most {num_large}, the documents of the text with {num_drawn} "
                f"sentences for training; given {num_documents}"
            )
        largest = np.argsort(-lengths, kind="stable")[:num_documents]
        generator = np.random.default_rng(_SEED)
        drawn_positions = []
        for document in largest:
            inside = generator.permutation(lengths[document])[:num_drawn]
            drawn_positions.append(bounds[document] + inside)
        # [documents, sentences], halved along the sentences
        train, validation = np.array_split(np.stack(drawn_positions), 2, axis=1)
        positions = np.concatenate([train.ravel(), validation.ravel()])
        documents = np.arange(num_documents)
        labels = np.concatenate([documents.repeat(half.shape[1]) for half in (train, validation)])
        self.sentences = split.sentences_at(positions)
        self.chance = 100.0 / num_documents
        self._rows = _probed_rows(labels, num_train=train.size)
        self.hash = content_key(corpus.text_key, positions.tolist())

    def document_metrics(self, encode: EncodeUnit) -> dict[str, float]:
        """Return `document_accuracy`, in percent."""
        return {"document_accuracy": self.accuracy(_encode(self.sentences, encode))}

    def accuracy(self, features: npt.NDArray[np.float32]) -> float:
        """Return the validation score, in percent, of a probe on features of the sentences [sentences, dim]."""
        return fit_probe(features, self._rows).validation


def _probed_rows(labels: np.ndarray, *, num_train: int) -> TaskData:
    """Return the rows of a task of which only the classes are known; the first ones train."""
    rows = np.arange(len(labels))
    num_classes = int(labels.max()) + 1
    return TaskData(
        task="document",
        kind="sentence",
        split="train-validation-test",
        label_names=tuple(str(number) for number in range(num_classes)),
        sentences=([],),
        labels=labels,
        train=rows[:num_train],
        validation=rows[num_train:],
        # A probe needs test rows; its predictions for them are not read.
        test=rows[num_train:],
    )


class Downstream:
    """Tasks with a limited number of rows.

    Attributes:
        hash: Equal for equal rows.
        tasks: The tasks.
    """

    def __init__(self, config: DownstreamConfig, learned: LabelledRows | None = None) -> None:
        """Read the tasks.

        Args:
            config: Which tasks, and how many of their rows.
            learned: The rows that a run learns; on their task those that it leaves out are the validation rows.

        Raises:
            ConfigError: If a task is unknown.
            DataError: If its files are missing or malformed.
        """
        self.tasks: list[TaskData | RetrievalData]
        if config.rows is not None and has_rows(config.rows):
            self.tasks = [*read_rows(config.rows)]
        else:
            folder = None if config.data is None else Path(config.data)
            tasks = resolve_tasks(
                config.tasks,
                folder,
                scorings=VALIDATED,
                default={"accuracy"},
                option="validation.downstream.tasks: ",
            )
            self.tasks = [_sampled_task(task, folder, config.max_rows) for task in tasks]
        self.hash = content_key([_rows_key(task) for task in self.tasks])
        if learned is not None:
            self.tasks = [_without(task, learned) for task in self.tasks]

    def downstream_metrics(self, model: SentenceEncoder) -> dict[str, float]:
        """Return `downstream`, the mean over tasks."""
        scores = [_task_score(model, task) for task in self.tasks]
        return {"downstream": float(np.mean(scores))}


def _task_score(model: SentenceEncoder, task: TaskData | RetrievalData) -> float:
    """Return the validation score of a task.

    It is that of a ranking of passages, of a probe, or of the layer that a model has learned the task's classes with,
    if that is higher.
    """
    if isinstance(task, RetrievalData):
        return validation_score(model, task)
    probe_score = fit_probe(task_features(model, task), task).validation
    if not isinstance(model, SentenceModel) or not learns_layer(model):
        return probe_score
    learned_task = next(iter(model.learned_tasks), None)
    if learned_task != task.task:
        return probe_score
    return max(probe_score, own_validation(model, task))


def _without(task: TaskData | RetrievalData, learned: LabelledRows) -> TaskData | RetrievalData:
    """Return a task whose validation rows are those that a run leaves out, where it is the one that the run learns.

    Raises:
        ConfigError: If the run leaves none out.
    """
    if not isinstance(task, TaskData) or task.task != learned.task or not learned.has_parts:
        return task
    if not learned.held_out:
        raise ConfigError(
            f"labels.held_out: must leave out a part of {task.task}, whose other rows train a run that "
            "validation.downstream ranks by it; given none"
        )
    texts = task.sentences[0]
    is_left_out = np.array([text in learned.held_out for text in texts])
    validation = np.flatnonzero(is_left_out)
    return replace(
        task,
        split="train-validation-test",
        train=np.flatnonzero(~is_left_out),
        validation=validation,
        # A probe needs test rows; its predictions for them are not read.
        test=validation,
        folds=NO_ROWS,
        has_drawn_validation=False,
    )


def _rows_key(task: TaskData | RetrievalData) -> str:
    """Return a key of the rows and of what keeps them together; without units, that of earlier versions."""
    if isinstance(task, TaskData) and len(task.units):
        return content_key(task.row_hash, task.units.tolist())
    return task.row_hash


# A process that runs trial after trial needs the same tasks for each.
@lru_cache(maxsize=32)
def _sampled_task(task: Task, folder: Path | None, max_rows: int) -> TaskData | RetrievalData:
    if task.scoring != "retrieval":
        return sample_rows(load_task(task, folder, with_test=False), max_rows=max_rows)
    retrieval = task.load(folder)
    assert isinstance(retrieval, RetrievalData)
    return some_passages(
        with_dev(retrieval), max_queries=max_rows, max_passages=_PASSAGES_PER_QUERY * max_rows
    )


def sample_rows(data: TaskData, *, max_rows: int) -> TaskData:
    """Return a task without its test rows, with at most `max_rows` rows for training and as many for validation."""
    task = divided(data)
    train = _sampled_rows(task.train, max_rows)
    validation = _sampled_rows(task.validation, max_rows)
    sampled = task.select(np.concatenate([train, validation]))
    rows = np.arange(len(train) + len(validation))
    # A probe needs test rows; it gets rows that it has seen, and its predictions for them are not read.
    unread = rows[len(train) :] if len(validation) else rows
    return replace(sampled, train=rows[: len(train)], validation=rows[len(train) :], test=unread)


def _sampled_rows(rows: np.ndarray, max_rows: int) -> np.ndarray:
    """Return at most `max_rows` rows, in their order."""
    if len(rows) <= max_rows:
        return rows
    return np.sort(np.random.default_rng(_SEED).permutation(rows)[:max_rows])


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
        learned: LabelledRows | None = None,
    ) -> None:
        """Read and fix the validation set.

        Args:
            metrics: Names of the metrics, as `metrics_of` returns them.
            config: Sizes, files and tasks.
            vocabulary: The words that have an id.
            max_length: Tokens read of a longer sentence.
            corpus: The text of the contexts; None for a run on pairs.
            held_out: Batches for the objective's own metrics.
            learned: The rows of a task that the run learns.

        Raises:
            DataError: If there is no text for a metric.
        """
        self._vocabulary = vocabulary
        self._max_length = max_length
        self.pool: ValidationPool | None = None
        self.similarity: Similarity | None = None
        self.documents: Documents | None = None
        self.downstream: Downstream | None = None
        if corpus is not None and set(CONTEXT_METRICS) <= set(metrics):
            self.pool = ValidationPool(corpus, config)
        if "pearson" in metrics:
            self.similarity = Similarity(config)
        if "document_accuracy" in metrics and config.documents is not None:
            if corpus is None:
                raise DataError(
                    "validation.documents: needs running text, and a run on pairs has none; leave it out"
                )
            self.documents = Documents(corpus, config.documents)
        if config.downstream is not None:
            self.downstream = Downstream(config.downstream, learned)
        self.held_out = held_out
        self._predicts = set(PREDICTION_METRICS) <= set(metrics)

    def metrics_of(self, model: SentenceModel) -> dict[str, float]:
        """Return every metric by name; the model must not be in training mode."""
        metrics: dict[str, float] = {}
        if self.pool is not None:
            metrics |= self.pool.context_metrics(model.comparable_vectors)
        if self.similarity is not None:
            metrics |= self.similarity.similarity_metrics(
                model.encode_ids, self._vocabulary, max_length=self._max_length
            )
        if self.held_out is not None:
            metrics |= self.held_out.objective_metrics(model.held_out_totals)
        if self.held_out is not None and self._predicts:
            metrics |= self.held_out.prediction_metrics(model.predictions)
        if self.documents is not None:
            metrics |= self.documents.document_metrics(model.encode_ids)
        if self.downstream is not None:
            metrics |= self.downstream.downstream_metrics(model)
        return metrics

    def hash_of(self, metric: str) -> str:
        """Return the hash of the data behind a metric; values can be compared where the hashes are equal."""
        parts: dict[str, Any] = {
            "pearson": self.similarity,
            "document_accuracy": self.documents,
            "downstream": self.downstream,
            **dict.fromkeys(CONTEXT_METRICS, self.pool),
        }
        part: Any = parts.get(metric, self.held_out)
        if part is None:
            return ""
        return str(part.hash)

    def as_json(self) -> dict[str, Any]:
        """Return what is recorded beside the metrics: the hash of all data, the pool's sizes, and levels of chance."""
        parts = [
            part
            for part in (self.pool, self.similarity, self.held_out, self.documents, self.downstream)
            if part
        ]
        about: dict[str, Any] = {}
        if self.pool is not None:
            about |= self.pool.facts
        if self.documents is not None:
            about["chance_document"] = self.documents.chance
        if parts != [self.pool]:
            # The hash among the pool's facts is that of the pool alone.
            about["hash"] = content_key([part.hash for part in parts])
        return about
