"""What a run is made of before its first step: its model, its batches, its steps and when it reports."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from raysent.artifacts import open_folder
from raysent.batches import AnyStream, BatchStream, PairStream, TripletStream
from raysent.corpus import Corpus
from raysent.errors import ConfigError
from raysent.material import Material
from raysent.model import SentenceModel, encoder_tensors
from raysent.run import RunConfig, TrainingConfig
from raysent.trainer.workers import Workers
from raysent.vocabulary import corpus_word_vectors

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


def build_model(config: RunConfig, material: Material) -> SentenceModel:
    """Return the run's model before its first step: a function of the configuration and the text alone."""
    corpus = material.corpus

    def vectors_of_corpus(dim: int) -> npt.NDArray[np.float32]:
        if corpus is None:
            raise ConfigError(
                "encoder.embedding.vectors: 'ppmi' counts vectors from a corpus, and a run on pairs has none"
            )
        return corpus_word_vectors(corpus, dim=dim, seed=_VECTORS_SEED)

    counts = torch.from_numpy(material.word_counts()) if config.objective.reads_counts else None
    return SentenceModel.build(
        config.model,
        material.vocabulary,
        seed=config.seed,
        word_vectors=vectors_of_corpus,
        max_length=material.max_length,
        num_classes=material.num_classes,
        word_counts=counts,
        initial=None if config.initial is None else encoder_tensors(open_folder(config.initial)),
    )


def open_stream(config: RunConfig, material: Material, workers: Workers) -> AnyStream:
    """Return this worker's batches, of the kind that the objective reads.

    Raises:
        ConfigError: If the batch does not divide among the workers.
        DataError: If there is less text than one step needs.
    """
    batch_size = config.training.batch_size * (1 if config.training.gather_candidates else workers.world_size)
    share = {"batch_size": batch_size, "seed": config.seed, "rank": workers.rank, "world_size": workers.world_size}
    if material.pairs is not None:
        pairs = material.pairs.train.encoded(material.vocabulary, max_length=material.max_length)
        return PairStream(pairs, **share)
    if material.corpus is None:
        raise ConfigError(f"objective.type: {config.objective.type} reads {config.objective.reads}; there is no text")
    if config.objective.reads == "triplets":
        max_length = getattr(config.objective, "max_length", material.max_length)
        return TripletStream(material.corpus.train, max_length=max_length, **share)
    return _open_context(config, material.corpus, workers)


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


def dropout_generator(seed: int, step: int, rank: int) -> torch.Generator:
    """Return the source of one step's dropout masks on one worker."""
    mixed = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed >> np.uint64(1)))
