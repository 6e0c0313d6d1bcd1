"""The parts of a run before its first step: model, batches, validation set, number of steps and reports.

`check_run` finds the mistakes that only the text and the files show, before any process is started.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raysent.data.batches import (
    AnyStream,
    BatchStream,
    LabelStream,
    PairStream,
    TargetStream,
    TripletStream,
)
from raysent.data.corpus import Corpus, corpus_word_vectors
from raysent.data.vocabulary import Vocabulary
from raysent.ensembles.ensemble import predictor_of
from raysent.errors import ConfigError, DataError
from raysent.models import SentenceModel, encoder_tensors
from raysent.models import load as load_model
from raysent.models.embeddings import CORPUS_VECTORS, EmbeddingConfig, given_vectors
from raysent.models.encoders import encoders_in
from raysent.models.files import read_record
from raysent.models.objectives import (
    CONTEXT_METRICS,
    ContextBatches,
    LabelBatches,
    PairBatches,
    TargetBatches,
    TripletBatches,
)
from raysent.models.origin import trained
from raysent.storage import open_folder, save_tensors
from raysent.storage.layout import START_FILE
from raysent.training.data import TrainingData, read_part
from raysent.training.run import RunConfig, TrainingConfig
from raysent.training.validation import Validator
from raysent.training.validation.metrics import (
    HeldOut,
    held_out_pairs,
    held_out_sentences,
    held_out_triplets,
)
from raysent.training.workers import Workers, gathers_candidates

# Vectors counted from the corpus do not depend on the trial's seed, so that all trials share them.
_VECTORS_SEED = 0


def count_steps(config: TrainingConfig, *, steps_per_epoch: int) -> int:
    """Return the steps of a whole run: at least one, at most `max_steps`."""
    steps = config.steps or max(1, round(config.epochs * steps_per_epoch))
    if config.max_steps is None:
        return steps
    return min(steps, config.max_steps)


def report_index(step: int, *, num_steps: int, num_reports: int) -> int:
    """Return how many reports are due after `step` steps.

    Reports come after equal numbers of sentences, whatever the batch size of a run is.
    """
    return step * num_reports // num_steps


def build_model(
    config: RunConfig, training_data: TrainingData, *, counts_vectors: bool = True
) -> SentenceModel:
    """Return the run's model before its first step, a function of the configuration and the text only.

    Args:
        config: The run.
        training_data: Its text, prepared.
        counts_vectors: Whether word vectors of `vectors: ppmi` are counted from the text, which takes longer than many
            steps; otherwise they are drawn at random, for a model whose steps are only timed.
    """
    corpus = training_data.corpus
    vectors_of = _counted_vectors if counts_vectors else _drawn_vectors
    targets = training_data.targets
    lengths = [tower.encoded_length(training_data.max_length) for tower in config.model.towers]
    initial = None
    if config.initial is not None:
        initial = encoder_tensors(open_folder(config.initial))
    model = SentenceModel.build(
        config.model,
        training_data.vocabulary,
        seed=config.seed,
        word_vectors=None if corpus is None else partial(vectors_of, corpus),
        max_length=min(lengths),
        num_classes=training_data.num_classes,
        targets=None if targets is None else targets.sizes,
        word_counts=lambda: torch.from_numpy(training_data.word_counts()),
        initial=initial,
    )
    model.learned_tasks = _learned_tasks(config, training_data)
    model.origin = trained(config.model)  # what is saved has taken a step
    return model


def _learned_tasks(config: RunConfig, training_data: TrainingData) -> dict[str, str]:
    """Return the tasks whose labels a run's model learned: also its start, or its teacher, which may predict it."""
    # The task whose classes the run learns comes first, and its rows count, whatever others have learned it.
    learned: dict[str, str] = {}
    if training_data.labels is not None:
        learned[training_data.labels.task] = training_data.labels.row_hash
    if config.initial is not None:
        start = read_record(open_folder(config.initial))
        for task, row_hash in start.learned_tasks.items():
            learned.setdefault(task, row_hash)
    batches = config.objective.batches
    if isinstance(batches, TargetBatches) and batches.teacher is not None:
        for task, row_hash in _taught_tasks(batches.teacher, training_data).items():
            learned.setdefault(task, row_hash)
    return learned


def _taught_tasks(teacher_name: str, training_data: TrainingData) -> dict[str, str]:
    """Return the tasks that a teacher has learned, and those whose probabilities it gives for each sentence."""
    teacher = load_model(teacher_name)
    taught = dict(teacher.learned_tasks)
    for task in read_part(training_data.targets).log_probabilities:
        taught[task] = predictor_of(teacher)[task].records[0].row_hash
    return taught


def keep_counted_vectors(config: RunConfig, training_data: TrainingData, folder: Path) -> None:
    """Write the word vectors that were counted from the text and are then trained: `start:PATH` begins with them.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    path = folder / START_FILE
    corpus = training_data.corpus
    if corpus is None or config.initial is not None or path.is_file():
        return
    dims = set()
    for tower in config.model.towers:
        for table in tower.word_tables().values():
            if table.vectors == CORPUS_VECTORS and table.trained:
                dims.add(table.dim)
    if dims:
        vectors = {str(dim): _counted_vectors(corpus, dim) for dim in sorted(dims)}
        tensors = {dim: torch.from_numpy(counted) for dim, counted in vectors.items()}
        save_tensors(path, tensors, sealed=True)


def _counted_vectors(corpus: Corpus, dim: int) -> npt.NDArray[np.float32]:
    return corpus_word_vectors(corpus, dim=dim, seed=_VECTORS_SEED)


def _drawn_vectors(corpus: Corpus, dim: int) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(_VECTORS_SEED)
    return generator.standard_normal((len(corpus.vocabulary), dim), dtype=np.float32)


def open_stream(config: RunConfig, training_data: TrainingData, workers: Workers) -> AnyStream:
    """Return this worker's batches, of the kind that the objective reads.

    Raises:
        ConfigError: If the batch has less than one sentence for each worker.
        DataError: If there is less text than one step needs.
    """
    gathers = gathers_candidates(config, workers)
    batch_size = config.training.batch_size
    if not config.training.gather_candidates:
        # Each worker then has a batch of its own.
        batch_size *= workers.world_size
    if batch_size < workers.world_size:
        raise ConfigError(
            f"training.batch_size: must be at least the {workers.world_size} workers; given {batch_size}; raise it"
        )
    share: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": config.seed,
        "rank": workers.rank,
        "world_size": workers.world_size,
    }
    match config.objective.batches:
        case PairBatches():
            pairs = read_part(training_data.pairs).train
            encoded = pairs.encode(training_data.vocabulary, max_length=training_data.max_length)
            return PairStream(encoded, gathers=gathers, **share)
        case LabelBatches():
            rows = read_part(training_data.labels)
            texts = rows.encode(training_data.vocabulary, max_length=training_data.max_length)
            return LabelStream(*texts, gathers=gathers, **share)
        case TripletBatches(max_length):
            max_length = max_length or training_data.max_length
            return TripletStream(training_data.text.train, max_length=max_length, **share)
        case ContextBatches(context_size, candidates):
            contexts: dict[str, Any] = {
                "context_size": context_size,
                "candidates": candidates,
                "gathers": gathers,
            }
            return BatchStream(training_data.text.train, **contexts, **share)
        case TargetBatches():
            sentences = BatchStream(
                training_data.text.train, context_size=0, candidates="random", **share
            )
            return TargetStream(sentences, read_part(training_data.targets))


def open_validator(config: RunConfig, training_data: TrainingData) -> Validator:
    """Return the validation set of a run.

    Raises:
        DataError: If there is no text for a metric.
    """
    return Validator(
        config.metrics,
        config.validation,
        vocabulary=training_data.vocabulary,
        max_length=training_data.max_length,
        corpus=training_data.corpus,
        held_out=_open_held_out(config, training_data),
        learned=training_data.labels,
    )


def _open_held_out(config: RunConfig, training_data: TrainingData) -> HeldOut | None:
    if set(config.objective.metrics) <= set(CONTEXT_METRICS):
        return None
    num_sentences = config.validation.num_sentences
    max_length = training_data.max_length
    match config.objective.batches:
        case PairBatches():
            return held_out_pairs(
                read_part(training_data.pairs).validation,
                training_data.vocabulary,
                max_length=max_length,
                num_sentences=num_sentences,
            )
        case TripletBatches(longest):
            return held_out_triplets(
                training_data.text.validation,
                max_length=longest or max_length,
                num_sentences=num_sentences,
            )
        case ContextBatches() | TargetBatches():
            return held_out_sentences(
                training_data.text.validation,
                training_data.targets,
                num_sentences=num_sentences,
            )
        case LabelBatches():
            return None  # validation rows are read by `downstream`


def check_run(config: RunConfig, training_data: TrainingData, *, num_workers: int = 1) -> Validator:
    """Check that a run can be trained on its text.

    Args:
        config: The run.
        training_data: Its text, prepared.
        num_workers: Processes that share every step.

    Returns:
        The validation set of the run.

    Raises:
        RaysentError: With the dotted name of the wrong value.
    """
    open_stream(config, training_data, Workers(world_size=num_workers))
    parts = (("encoder", config.encoder), ("second_encoder", config.second_encoder))
    for part, encoder in parts:
        limits = [
            member.token_limit for member in encoders_in(encoder) if member.token_limit is not None
        ]
        if limits and training_data.max_length > min(limits):
            raise ConfigError(
                f"{part}: must read at least the longest sentence, {training_data.max_length}; given "
                f"{min(limits)}; lower {config.source_name}.max_length"
            )
    for part, encoder in parts:
        # The weights of a trained model have the vectors.
        if encoder is None or config.initial is not None:
            continue
        for name, embedding in encoder.word_tables().items():
            _check_vectors(f"{part}.{name}", embedding, training_data)
    batches = config.objective.batches
    pairs = training_data.pairs
    if isinstance(batches, PairBatches) and batches.num_levels is not None and pairs is not None:
        scores = np.concatenate([pairs.train.scores, pairs.validation.scores])
        if scores.min() < 1 or scores.max() > batches.num_levels:
            raise ConfigError(
                f"pairs.score: must be from 1 to {batches.num_levels} for objective {config.objective.type}; given "
                f"{scores.min():g} to {scores.max():g}; rescale the column or set objective.num_levels"
            )
    return open_validator(config, training_data)


def _check_vectors(name: str, embedding: EmbeddingConfig, training_data: TrainingData) -> None:
    """Refuse word vectors that a run's text does not have, or of another size than its file has."""
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


# The trials of a sweep often share their files, each of which may take minutes to read.
@lru_cache(maxsize=16)
def _dim_of_file(path: str, vocabulary: Vocabulary) -> int:
    return int(given_vectors(path, vocabulary).vectors.shape[1])
