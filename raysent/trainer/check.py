"""What only the text and the files can show to be wrong with a run, found before any process is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pydantic

from raysent.corpus import Corpus
from raysent.embeddings import CORPUS_VECTORS, EmbeddingConfig
from raysent.errors import ConfigError, DataError
from raysent.run import RunConfig
from raysent.trainer.plan import open_stream
from raysent.trainer.workers import Workers
from raysent.validation import ValidationPool
from raysent.vocabulary import read_word_vectors


def check_run(config: RunConfig, corpus: Corpus, *, num_workers: int = 1) -> ValidationPool:
    """Check that a run can be trained on its corpus.

    Args:
        config: The run.
        corpus: Its corpus, prepared.
        num_workers: Processes that will share every step.

    Returns:
        The pool that it will be scored on.

    Raises:
        RaysentError: With the dotted name of the value at fault.
    """
    open_stream(config, corpus, Workers(world_size=num_workers))
    for name, embedding in _word_vectors(config.encoder, "encoder"):
        _check_vectors(name, embedding, corpus)
    return ValidationPool(corpus, config.validation)


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


def _check_vectors(name: str, embedding: EmbeddingConfig, corpus: Corpus) -> None:
    """Refuse a file of word vectors that cannot be used, and a size that is not that of the vectors."""
    if embedding.vectors is None:
        return
    if embedding.vectors == CORPUS_VECTORS:
        most = len(corpus.vocabulary)
        if embedding.dim > most:
            raise ConfigError(
                f"{name}.dim: must be at most {most} with vectors: {CORPUS_VECTORS}, the words of the vocabulary; "
                f"given {embedding.dim}"
            )
        return
    try:
        dim = _dim_of_file(embedding.vectors, corpus)
    except DataError as error:
        raise DataError(f"{name}.vectors: {error}") from None
    if dim != embedding.dim:
        raise ConfigError(
            f"{name}.dim: must be that of the vectors in {embedding.vectors}, {dim}; given {embedding.dim}; "
            f"set it to {dim}"
        )


# The trials of a sweep differ in much, but seldom in their files, each of which may take minutes to read.
@lru_cache(maxsize=16)
def _dim_of_file(path: str, corpus: Corpus) -> int:
    """Return the size of the vectors in a file, all of which is read."""
    return int(read_word_vectors(path, words=corpus.vocabulary.words).vectors.shape[1])
