"""Text -> vectors: what every encoder of sentences offers, how one is loaded, and the reference without training.

A kind of encoder registers the file by which its folders are known, and `load` finds it.
The names are those of sentence-transformers, so that an encoder fits where one of theirs does.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from raysent.errors import ArtifactError, ConfigError, RaysentError
from raysent.kernels.devices import set_matmul_precision
from raysent.parallel import map_in_processes
from raysent.storage import address_of, open_folder

_PREFIX = "hash:"
_MAX_CACHED_WORDS = 100_000

Float32 = npt.NDArray[np.float32]


class SentenceEncoder(ABC):
    """Encodes sentences as float32 vectors."""

    @abstractmethod
    def encode(self, sentences: list[str], *, batch_size: int = 512, normalize_embeddings: bool = False) -> Float32:
        """Encode text.

        Args:
            sentences: Text; a sentence may be empty.
            batch_size: Sentences computed at once; without effect on the vectors.
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
        """What `similarity` compares two vectors by: `cosine`, or `hamming` for codes."""
        return "cosine"

    def similarity_pairwise(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Float32:
        """Return the cosine of every vector of `a` [rows, dim] with the same row of `b` [rows, dim], [rows]."""
        first, second = (normalize_rows(np.atleast_2d(np.asarray(side, dtype=np.float32))) for side in (a, b))
        cosine: Float32 = (first * second).sum(axis=1)
        return cosine


@dataclass(frozen=True)
class _EncodeBlock:
    """What a process does with a block of sentences."""

    encoder: SentenceEncoder
    options: dict[str, Any]

    def __call__(self, sentences: list[str]) -> Float32:
        return self.encoder.encode(sentences, **self.options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin in a process of its own: as products are chosen here, so they are there, and it has one core."""
        self.__dict__.update(state)
        torch.set_num_threads(1)
        set_matmul_precision()


def encode_blocks(
    encoder: SentenceEncoder, blocks: Iterable[list[str]], *, num_processes: int = 1, **options: Any
) -> Iterator[Float32]:
    """Yield the vectors of blocks of sentences, in order, a few blocks ahead at most.

    Args:
        encoder: Any encoder on a CPU; every process has a copy of its own.
        blocks: Sentences; a few thousand at once are encoded fastest.
        num_processes: Processes to use, one thread each; 1 encodes here, with the threads that torch has.
        options: What `encode` is to be told.
    """
    return map_in_processes(_EncodeBlock(encoder, options), blocks, num_processes=num_processes)


class HashEncoder(SentenceEncoder):
    """The mean of hash-seeded word vectors: random, yet the same on any machine. A floor for every comparison.

    A word's vector is uniform in [-1, 1), seeded by the first 8 hexadecimal digits of its lowered form's MD5; words
    are what stands between white space.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._vector = lru_cache(maxsize=_MAX_CACHED_WORDS)(self._hashed)

    def __reduce__(self) -> tuple[type[HashEncoder], tuple[int]]:
        return HashEncoder, (self._dim,)

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the encoder of ``hash:DIM``.

        Raises:
            ConfigError: If DIM is not a whole number of at least 1.
        """
        size = name.removeprefix(_PREFIX)
        if not (size.isascii() and size.isdigit() and int(size) >= 1):
            raise ConfigError(f"{name}: the size after 'hash:' must be a whole number of at least 1, as in hash:50")
        return cls(int(size))

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return self._dim

    def encode(self, sentences: list[str], *, batch_size: int = 512, normalize_embeddings: bool = False) -> Float32:
        """Return the mean of each sentence's word vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        del batch_size  # one sentence at a time
        check_sentences(sentences)
        out = np.empty((len(sentences), self._dim), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            out[row] = np.mean([self._vector(word) for word in sentence.split() or ["."]], axis=0)
        return normalize_rows(out) if normalize_embeddings else out

    def _hashed(self, word: str) -> Float32:
        """Return one word's vector [dim]."""
        seed = int(hashlib.md5(word.lower().encode(), usedforsecurity=False).hexdigest()[:8], 16)
        # The legacy generator is part of the definition.
        return np.random.RandomState(seed).uniform(-1, 1, self._dim).astype(np.float32)


Loader = Callable[[Path], SentenceEncoder]

_LOADERS: dict[str, Loader] = {}


def register_loader(file_name: str, loader: Loader) -> None:
    """Let `load` read folders that hold a file of this name.

    Args:
        file_name: File by which a folder of the kind is known, as ``ensemble.json``.
        loader: Folder -> encoder.
    """
    _LOADERS[file_name] = loader


def load(path: str | Path) -> SentenceEncoder:
    """Return whatever encodes sentences: a model's folder, a trial's, an ensemble's, or ``hash:DIM``.

    Raises:
        ArtifactError: If there is no such thing, or its files are truncated or of another kind.
        ConfigError: If ``hash:`` is not followed by a size.
    """
    if isinstance(path, str) and path.startswith("hash:"):
        return HashEncoder.parse(path)
    folder = open_folder(path)
    if not folder.is_dir():
        raise ArtifactError(
            f"{address_of(folder)}: no such folder; name a run, a trial, a model, an ensemble or hash:DIM"
        )
    for file_name, loader in _LOADERS.items():
        for place in (folder, folder / "model"):
            if (place / file_name).is_file():
                return loader(place)
    raise ArtifactError(
        f"{address_of(folder)}: holds no {' and no '.join(_LOADERS)}; name a trained model's folder or an ensemble's"
    )


def check_sentences(sentences: object) -> None:
    """Refuse what is not a list of strings.

    Raises:
        RaysentError: With the first odd item's place.
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
