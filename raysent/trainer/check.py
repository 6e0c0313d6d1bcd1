"""What only the text and the files can show to be wrong with a run, found before any process is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pydantic

from raysent.embeddings import CORPUS_VECTORS, EmbeddingConfig
from raysent.errors import ConfigError, DataError
from raysent.material import Material
from raysent.run import RunConfig
from raysent.trainer.plan import open_stream
from raysent.trainer.workers import Workers
from raysent.validation import Examination
from raysent.vocabulary import Vocabulary, read_word_vectors


def check_run(config: RunConfig, material: Material, *, num_workers: int = 1) -> Examination:
    """Check that a run can be trained on its text.

    Args:
        config: The run.
        material: Its text, prepared.
        num_workers: Processes that will share every step.

    Returns:
        What it will be examined with.

    Raises:
        RaysentError: With the dotted name of the value at fault.
    """
    open_stream(config, material, Workers(world_size=num_workers))
    encoders = {"encoder": config.encoder, "second_encoder": config.second_encoder}
    for part, encoder in encoders.items():
        for name, embedding in _word_vectors(encoder, part):
            _check_vectors(name, embedding, material)
    return open_examination(config, material)


def open_examination(config: RunConfig, material: Material) -> Examination:
    """Return what a run is examined with."""
    return Examination(
        config.objective,
        config.validation,
        vocabulary=material.vocabulary,
        corpus=material.corpus,
        pairs=material.pairs,
        max_length=material.max_length,
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


def _check_vectors(name: str, embedding: EmbeddingConfig, material: Material) -> None:
    """Refuse a file of word vectors that cannot be used, and a size that is not that of the vectors."""
    if embedding.vectors is None:
        return
    if embedding.vectors == CORPUS_VECTORS:
        if material.corpus is None:
            raise ConfigError(
                f"{name}.vectors: '{CORPUS_VECTORS}' counts vectors from a corpus, and a run on pairs has none; "
                "name a file of word vectors"
            )
        most = len(material.vocabulary)
        if embedding.dim > most:
            raise ConfigError(
                f"{name}.dim: must be at most {most} with vectors: {CORPUS_VECTORS}, the words of the vocabulary; "
                f"given {embedding.dim}"
            )
        return
    try:
        dim = _dim_of_file(embedding.vectors, material.vocabulary)
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
