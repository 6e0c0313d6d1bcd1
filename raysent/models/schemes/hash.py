"""`hash:DIM`: the mean of word vectors that are drawn from each word's hash, a floor for every comparison.

A word's vector is uniform in [-1, 1), seeded with the first 8 hexadecimal digits of the MD5 of the lower-cased word.
Words are separated by white space and read composed (NFC); a lone surrogate counts as a question mark. The vectors are
random, and the same on every machine. An ensemble of an earlier version reads words as they are written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache, partial
from threading import Lock

import numpy as np

from raysent.data.unicode_form import OF_EARLIER, OF_NEW, UnicodeForm, in_form
from raysent.errors import ConfigError
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.storage import content_key

FORM = "hash:DIM"

_CACHE_BYTES = 64 << 20
# What a word that is kept takes beside the numbers of its vector, and its characters at most.
_WORD_BYTES = 400
_MOST_CHARACTERS = 64
_MAX_DIGITS = 6
# Characters of a size that a message shows.
_MAX_SHOWN = 40


def label(rest: str) -> str:
    """Return the name itself."""
    return f"hash:{_dim(rest)}"


def key(rest: str) -> str:
    """Return a key of the name, which determines the vectors."""
    return content_key(f"hash:{_dim(rest)}", OF_NEW)


def load(rest: str) -> HashEncoder:
    """Return the encoder of ``hash:DIM``.

    Raises:
        ConfigError: If DIM is not a whole number of at least 1.
    """
    return HashEncoder(_dim(rest))


def load_earlier(rest: str, key: str) -> HashEncoder | None:
    """Return the encoder that an earlier version knew by a key; None where it knew none."""
    dim = _dim(rest)
    if key != content_key(f"hash:{dim}"):
        return None
    return HashEncoder(dim, unicode_form=OF_EARLIER)


def _dim(rest: str) -> int:
    if not (rest.isascii() and rest.isdigit() and len(rest) <= _MAX_DIGITS and int(rest) >= 1):
        shown = rest if len(rest) <= _MAX_SHOWN else f"{rest[:_MAX_SHOWN]}…"
        raise ConfigError(
            f"hash:{shown}: the size must be a whole number from 1 to 999999, as in hash:50"
        )
    return int(rest)


class HashEncoder(SentenceEncoder):
    """The mean of hash-seeded word vectors."""

    def __init__(self, dim: int, *, unicode_form: UnicodeForm = OF_NEW) -> None:
        """Make an encoder of vectors of `dim` numbers that reads text in a form of Unicode."""
        self._dim = dim
        self._unicode_form: UnicodeForm = unicode_form
        # The legacy generator is part of the definition.
        self._random = np.random.RandomState()
        self._lock = Lock()
        num_kept = _CACHE_BYTES // (4 * dim + _WORD_BYTES)
        self._kept = lru_cache(maxsize=num_kept)(self._hashed)

    def __reduce__(self) -> tuple[Callable[[int], HashEncoder], tuple[int]]:
        return partial(HashEncoder, unicode_form=self._unicode_form), (self._dim,)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return self._dim

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the mean of each sentence's word vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        del batch_size  # one sentence at a time
        out = np.empty((len(sentences), self._dim), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            words = in_form(sentence, self._unicode_form).split() or ["."]
            out[row] = np.mean([self._vector(word) for word in words], axis=0)
        return out

    def _vector(self, word: str) -> Float32:
        # A very long word, which would fill the cache, hardly occurs twice.
        if len(word) > _MOST_CHARACTERS:
            return self._hashed(word)
        return self._kept(word)

    def _hashed(self, word: str) -> Float32:
        characters = word.lower().encode(errors="replace")
        digest = hashlib.md5(characters, usedforsecurity=False).hexdigest()
        seed = int(digest[:8], 16)
        with self._lock:  # a new generator would take twenty times as long as a seed
            self._random.seed(seed)
            return self._random.uniform(-1, 1, self._dim).astype(np.float32)
