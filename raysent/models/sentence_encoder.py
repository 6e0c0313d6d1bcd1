"""`SentenceEncoder`: text -> vectors, the interface of every model, with the names of sentence-transformers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raysent.errors import RaysentError
from raysent.kernels.devices import set_matmul_precision
from raysent.parallel import map_in_processes

Float32 = npt.NDArray[np.float32]


class SentenceEncoder(ABC):
    """Encodes sentences as float32 vectors.

    Attributes:
        source: The name that `load` returned this encoder for; None for one that was not loaded.
    """

    source: str | None = None

    @abstractmethod
    def encode(self, sentences: list[str], *, batch_size: int = 512, normalize_embeddings: bool = False) -> Float32:
        """Encode text.

        Args:
            sentences: Text; a sentence may be empty.
            batch_size: Sentences computed at once; does not change the vectors.
            normalize_embeddings: Whether each vector gets unit length.

        Returns:
            float32 [sentences, dim].
        """

    @abstractmethod
    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Float32:
        """Return the cosine of every vector of `a` [rows, dim] with every one of `b` [columns, dim], [rows, columns].

        A vector of zeros has cosine 0 with all.
        """
        first, second = (normalize_rows(np.atleast_2d(np.asarray(side, dtype=np.float32))) for side in (a, b))
        cosine: Float32 = first @ second.T
        return cosine

    @property
    def similarity_measure(self) -> str:
        """The measure of `similarity`: `cosine`, or `hamming` for codes."""
        return "cosine"

    def similarity_pairwise(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Float32:
        """Return the cosine of every vector of `a` [rows, dim] with the same row of `b` [rows, dim], [rows]."""
        first, second = (normalize_rows(np.atleast_2d(np.asarray(side, dtype=np.float32))) for side in (a, b))
        cosine: Float32 = (first * second).sum(axis=1)
        return cosine


@dataclass(frozen=True)
class _EncodeBlock:
    """Encodes a block of sentences in another process."""

    encoder: SentenceEncoder
    options: dict[str, Any]

    def __call__(self, sentences: list[str]) -> Float32:
        return self.encoder.encode(sentences, **self.options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set up the process: one thread, and the same precision of products as in this one."""
        self.__dict__.update(state)
        torch.set_num_threads(1)
        set_matmul_precision()


def encode_blocks(
    encoder: SentenceEncoder, blocks: Iterable[list[str]], *, num_processes: int = 1, **options: Any
) -> Iterator[Float32]:
    """Yield the vectors of blocks of sentences in order; at most a few blocks are encoded ahead.

    Args:
        encoder: Any encoder on a CPU; every process gets a copy.
        blocks: Sentences; blocks of a few thousand are encoded fastest.
        num_processes: Processes to use, one thread each; 1 encodes in this process, with torch's threads.
        options: Keyword arguments of `encode`.
    """
    return map_in_processes(_EncodeBlock(encoder, options), blocks, num_processes=num_processes)


def check_sentences(sentences: object) -> None:
    """Refuse what is not a list of strings.

    Raises:
        RaysentError: With the index of the first item that is no string.
    """
    if not isinstance(sentences, list):
        raise RaysentError(f"sentences: must be a list of strings; given {type(sentences).__name__}; write [sentence]")
    for row, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise RaysentError(f"sentences[{row}]: must be a string; given {type(sentence).__name__}")


def normalize_rows(vectors: Float32) -> Float32:
    """Return vectors [rows, dim] with unit length; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(length == 0, 1.0, length)).astype(np.float32, copy=False)
