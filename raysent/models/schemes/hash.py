"""`hash:DIM`: the mean of word vectors that are drawn from each word's hash, a floor for every comparison.

A word's vector is uniform in [-1, 1), seeded with the first 8 hexadecimal digits of the MD5 of the lower-cased word.
Words are separated by white space; a lone surrogate counts as a question mark. The vectors are random, and the same on
every machine.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from threading import Lock

import numpy as np

from raysent.errors import ConfigError
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.storage import content_key

FORM = "hash:DIM"

_CACHE_BYTES = 64 << 20
_MAX_DIGITS, _MAX_SHOWN = 6, 40


def label(rest: str) -> str:
    """Return the name itself."""
    return f"hash:{_dim(rest)}"


def key(rest: str) -> str:
    """Return a key of the name, which determines the vectors."""
    return content_key(f"hash:{_dim(rest)}")


def load(rest: str) -> HashEncoder:
    """Return the encoder of ``hash:DIM``.

    Raises:
        ConfigError: If DIM is not a whole number of at least 1.
    """
    return HashEncoder(_dim(rest))


def _dim(rest: str) -> int:
    if not (rest.isascii() and rest.isdigit() and len(rest) <= _MAX_DIGITS and int(rest) >= 1):
        given = rest if len(rest) <= _MAX_SHOWN else f"{rest[:_MAX_SHOWN]}…"
        raise ConfigError(
            f"hash:{given}: the size must be a whole number from 1 to 999999, as in hash:50"
        )
    return int(rest)


class HashEncoder(SentenceEncoder):
    """The mean of hash-seeded word vectors."""

    def __init__(self, dim: int) -> None:
        """Make an encoder of vectors of `dim` numbers."""
        self._dim = dim
        # The legacy generator is part of the definition.
        self._random, self._lock = np.random.RandomState(), Lock()
        self._vector = lru_cache(maxsize=max(1, _CACHE_BYTES // (4 * dim)))(self._hashed)

    def __reduce__(self) -> tuple[type[HashEncoder], tuple[int]]:
        return HashEncoder, (self._dim,)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return self._dim

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the mean of each sentence's word vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        del batch_size  # one sentence at a time
        out = np.empty((len(sentences), self._dim), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            out[row] = np.mean([self._vector(word) for word in sentence.split() or ["."]], axis=0)
        return out

    def _hashed(self, word: str) -> Float32:
        seed = int(
            hashlib.md5(word.lower().encode(errors="replace"), usedforsecurity=False).hexdigest()[
                :8
            ],
            16,
        )
        with self._lock:  # a new generator would take twenty times as long as a seed
            self._random.seed(seed)
            return self._random.uniform(-1, 1, self._dim).astype(np.float32)
