"""Vectors of texts by pretrained encoders, kept by content: each text is encoded once, for all commands of a user.

    vectors/KEY/SHARD.npz   digests of texts and their vectors; KEY is that of the encoder's content

In: an encoder that is read as it is. Out: the same vectors, up to the last digits: those of a text depend in them on
the texts that are encoded beside it. What is damaged in the cache is encoded again. An encoder's folder has at most
`MAX_BYTES`; the shards that were written first are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np

from raysent.errors import ArtifactError
from raysent.evaluation.members import Member
from raysent.evaluation.probes.features import Encode
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import cache_folder, load_arrays, save_arrays

MAX_BYTES = 2**30
_FOLDER = "vectors"
_DIGEST_BYTES = 16


def stored(encoder: SentenceEncoder, member: Member, *, is_kept: bool) -> Encode:
    """Return what encodes by an encoder: with its vectors in the user's cache if they are to be kept, else itself.

    Args:
        encoder: The encoder.
        member: What it was loaded from.
        is_kept: Whether its vectors are kept, as those of models that no training changes are.
    """
    if not is_kept or member.encoder is not None:
        return encoder
    return StoredEncoder(encoder, cache_folder() / _FOLDER / member.key)


class StoredEncoder:
    """An encoder that looks texts up in a folder before it encodes the others.

    Args:
        encoder: What encodes texts that are not there.
        folder: The folder of shards.
    """

    def __init__(self, encoder: SentenceEncoder, folder: Path) -> None:
        self._encoder = encoder
        self._folder = folder

    def encode(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return vectors of sentences, float32 [sentences, dim]; new ones are written into the folder."""
        dim = self._encoder.get_sentence_embedding_dimension()
        digests = [_digest(sentence) for sentence in sentences]
        vectors = np.empty((len(sentences), dim), dtype=np.float32)
        cached_vectors = self._read(dim)
        missing = []
        for row, digest in enumerate(digests):
            if digest in cached_vectors:
                vectors[row] = cached_vectors[digest]
            else:
                missing.append(row)
        if missing:
            texts = [sentences[row] for row in missing]
            vectors[missing] = self._encoder.encode(texts, batch_size=batch_size)
            self._write([digests[row] for row in missing], vectors[missing])
        return vectors

    def _read(self, dim: int) -> dict[bytes, np.ndarray]:
        """Return the vectors of all intact shards, by the digests of their texts."""
        cached_vectors: dict[bytes, np.ndarray] = {}
        for shard in self._folder.glob("*.npz"):
            # A damaged shard is passed over: its texts are encoded again.
            with contextlib.suppress(ArtifactError, KeyError):
                arrays = load_arrays(shard)
                digests = arrays["digests"]
                vectors = arrays["vectors"]
                are_digests = digests.dtype == np.uint8 and digests.shape[1:] == (_DIGEST_BYTES,)
                has_shape = vectors.shape == (len(digests), dim)
                are_vectors = vectors.dtype == np.float32 and has_shape
                if are_digests and are_vectors and np.isfinite(vectors).all():
                    cached_vectors.update(zip(map(bytes, digests), vectors, strict=True))
        return cached_vectors

    def _write(self, digests: Sequence[bytes], vectors: np.ndarray) -> None:
        packed = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
        arrays = {"digests": packed, "vectors": vectors}
        # The folder is a cache: what cannot be kept is encoded again.
        with contextlib.suppress(ArtifactError, OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(packed.nbytes + vectors.nbytes)
            # A random name, as several processes may write at once.
            save_arrays(self._folder / f"{uuid4().hex}.npz", arrays)

    def _make_room(self, num_bytes: int) -> None:
        shards = sorted(self._folder.glob("*.npz"), key=lambda shard: shard.stat().st_mtime)
        total = num_bytes + sum(shard.stat().st_size for shard in shards)
        for shard in shards:
            if total <= MAX_BYTES:
                return
            total -= shard.stat().st_size
            shard.unlink(missing_ok=True)


def _digest(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).digest()
