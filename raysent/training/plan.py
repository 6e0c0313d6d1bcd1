"""What a run is made of before its first step: its model, its batches, its steps and when it reports.

What only the text and the files can show to be wrong with a run, found before any process is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic
import torch

from raysent.data.batches import AnyStream, BatchStream, PairStream, TripletStream
from raysent.data.corpus import Corpus
from raysent.data.vocabulary import Vocabulary, corpus_word_vectors, read_word_vectors
from raysent.errors import ConfigError, DataError
from raysent.models import SentenceModel, encoder_tensors
from raysent.models.embeddings import CORPUS_VECTORS, EmbeddingConfig
from raysent.storage import open_folder
from raysent.training.data import TrainingData
from raysent.training.run import RunConfig, TrainingConfig
from raysent.training.validation import Validator
from raysent.training.workers import Workers

# Vectors counted from the corpus are the corpus' own: trials with seeds of their own share them.
_VECTORS_SEED = 0


def count_steps(config: TrainingConfig, *, steps_per_epoch: int) -> int:
    """Return the steps of a whole run: at least one, at most `max_steps`."""
    steps = max(1, round(config.epochs * steps_per_epoch))
    return steps if config.max_steps is None else min(steps, config.max_steps)


def report_index(step: int, *, num_steps: int, num_reports: int) -> int:
    """Return how many equal shares of the run are done after `step` steps.

    Shares are of sentences: runs with different batch sizes report after the same number of them.
    """
    return step * num_reports // num_steps


def build_model(config: RunConfig, training_data: TrainingData) -> SentenceModel:
    """Return the run's model before its first step: a function of the configuration and the text alone."""
    corpus = training_data.corpus

    def vectors_of_corpus(dim: int) -> npt.NDArray[np.float32]:
        if corpus is None:
            raise ConfigError(
                "encoder.embedding.vectors: 'ppmi' counts vectors from a corpus, and a run on pairs has none"
            )
        return corpus_word_vectors(corpus, dim=dim, seed=_VECTORS_SEED)

    counts = torch.from_numpy(training_data.word_counts()) if config.objective.reads_counts else None
    return SentenceModel.build(
        config.model,
        training_data.vocabulary,
        seed=config.seed,
        word_vectors=vectors_of_corpus,
        max_length=training_data.max_length,
        num_classes=training_data.num_classes,
        word_counts=counts,
        initial=None if config.initial is None else encoder_tensors(open_folder(config.initial)),
    )


def open_stream(config: RunConfig, training_data: TrainingData, workers: Workers) -> AnyStream:
    """Return this worker's batches, of the kind that the objective reads.

    Raises:
        ConfigError: If the batch does not divide among the workers.
        DataError: If there is less text than one step needs.
    """
    batch_size = config.training.batch_size * (1 if config.training.gather_candidates else workers.world_size)
    share = {"batch_size": batch_size, "seed": config.seed, "rank": workers.rank, "world_size": workers.world_size}
    if training_data.pairs is not None:
        pairs = training_data.pairs.train.encoded(training_data.vocabulary, max_length=training_data.max_length)
        return PairStream(pairs, **share)
    if training_data.corpus is None:
        raise ConfigError(f"objective.type: {config.objective.type} reads {config.objective.reads}; there is no text")
    if config.objective.reads == "triplets":
        max_length = getattr(config.objective, "max_length", training_data.max_length)
        return TripletStream(training_data.corpus.train, max_length=max_length, **share)
    return _open_context(config, training_data.corpus, workers)


def _open_context(config: RunConfig, corpus: Corpus, workers: Workers) -> BatchStream:
    """Return this worker's windows."""
    batch_size, gathers = config.training.batch_size, config.training.gather_candidates
    if gathers and batch_size % workers.world_size:
        raise ConfigError(
            f"training.batch_size: must be a multiple of the {workers.world_size} workers; given {batch_size}; "
            f"nearest {max(1, batch_size // workers.world_size) * workers.world_size}"
        )
    return BatchStream(
        corpus.train,
        batch_size=batch_size // workers.world_size if gathers else batch_size,
        # Objectives that know no candidates read the text in order.
        candidates=getattr(config.objective, "candidates", "contiguous"),
        context_size=getattr(config.objective, "context_size", 1),
        seed=config.seed,
        rank=workers.rank,
        world_size=workers.world_size,
    )


def check_run(config: RunConfig, training_data: TrainingData, *, num_workers: int = 1) -> Validator:
    """Check that a run can be trained on its text.

    Args:
        config: The run.
        training_data: Its text, prepared.
        num_workers: Processes that will share every step.

    Returns:
        What it will be examined with.

    Raises:
        RaysentError: With the dotted name of the value at fault.
    """
    open_stream(config, training_data, Workers(world_size=num_workers))
    encoders = {"encoder": config.encoder, "second_encoder": config.second_encoder}
    for part, encoder in encoders.items():
        for name, embedding in _word_vectors(encoder, part):
            _check_vectors(name, embedding, training_data)
    return open_validator(config, training_data)


def open_validator(config: RunConfig, training_data: TrainingData) -> Validator:
    """Return what a run is examined with."""
    return Validator(
        config.objective,
        config.validation,
        vocabulary=training_data.vocabulary,
        corpus=training_data.corpus,
        pairs=training_data.pairs,
        max_length=training_data.max_length,
    )


def _word_vectors(part: Any, name: str) -> Iterator[tuple[str, EmbeddingConfig]]:
    """Yield every configuration of word vectors inside an encoder's, with its dotted name."""
    if isinstance(part, EmbeddingConfig):
        yield name, part
    elif isinstance(part, pydantic.BaseModel):
        for inside in type(part).model_fields:
            yield from _word_vectors(getattr(part, inside), f"{name}.{inside}")
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from _word_vectors(value, f"{name}.{key}")


def _check_vectors(name: str, embedding: EmbeddingConfig, training_data: TrainingData) -> None:
    """Refuse a file of word vectors that cannot be used, and a size that is not that of the vectors."""
    if embedding.vectors is None:
        return
    if embedding.vectors == CORPUS_VECTORS:
        if training_data.corpus is None:
            raise ConfigError(
                f"{name}.vectors: '{CORPUS_VECTORS}' counts vectors from a corpus, and a run on pairs has none; "
                "name a file of word vectors"
            )
        most = len(training_data.vocabulary)
        if embedding.dim > most:
            raise ConfigError(
                f"{name}.dim: must be at most {most} with vectors: {CORPUS_VECTORS}, the words of the vocabulary; "
                f"given {embedding.dim}"
            )
        return
    try:
        dim = _dim_of_file(embedding.vectors, training_data.vocabulary)
    except DataError as error:
        raise DataError(f"{name}.vectors: {error}") from None
    if dim != embedding.dim:
        raise ConfigError(
            f"{name}.dim: must be that of the vectors in {embedding.vectors}, {dim}; given {embedding.dim}; "
            f"set it to {dim}"
        )


# The trials of a sweep differ in much, but seldom in their files, each of which may take minutes to read.
@lru_cache(maxsize=16)
def _dim_of_file(path: str, vocabulary: Vocabulary) -> int:
    """Return the size of the vectors in a file, all of which is read."""
    return int(read_word_vectors(path, words=vocabulary.words).vectors.shape[1])
