"""A model's vectors of a text's distinct sentences, memory-mapped: float32 unit rows, or the packed bits of a code.

A folder ``neighbours/<key>/`` of the cache, the key made of the model's content, the sentences and the format:
``vectors.bin`` (rows, no header) and ``index.json``, whose presence says that the vectors are whole. Vectors are
written in blocks; what a killed process leaves behind is gone on with.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raysent.artifacts import cache_folder, content_key, read_json, storage_errors, write_json
from raysent.corpus import Progress
from raysent.corpus.cache import locked
from raysent.corpus.distinct import DistinctSentences
from raysent.errors import ArtifactError, DataError
from raysent.evaluate import Member
from raysent.neighbours.search import Hits, nearest_codes, nearest_vectors
from raysent.packed_codes import pack_bits
from raysent.sentence_encoder import SentenceEncoder, normalize_rows

Measure = Literal["cosine", "hamming"]

_FORMAT_VERSION = 1
_BLOCK_SENTENCES = 4096
_SUMMARY = "index.json"
_VECTORS = "vectors.bin"


@dataclass(frozen=True)
class Index:
    """What is searched.

    Attributes:
        folder: Where the vectors are.
        sentences: The sentence of every row.
        measure: ``hamming`` for packed bits, ``cosine`` for unit vectors.
        width: Bytes of a code, or dimensions of a vector.
    """

    folder: Path
    sentences: DistinctSentences
    measure: Measure
    width: int

    def search(self, queries: np.ndarray, *, k: int) -> Hits:
        """Return the k nearest rows of every query, which `encoded` gives [queries, width]."""
        if self.measure == "hamming":
            return nearest_codes(self.rows, queries, k=k)
        return nearest_vectors(self.rows, queries, k=k)

    @cached_property
    def rows(self) -> np.ndarray:
        """Codes, uint8, or vectors, float32 [sentences, width], memory-mapped; what is written stays in memory."""
        shape = (len(self.sentences), self.width)
        return np.asarray(np.memmap(self.folder / _VECTORS, dtype=_dtype(self.measure), mode="c", shape=shape))


def measure_of(encoder: SentenceEncoder) -> Measure:
    """Return what an encoder's sentences are compared by: the bits of a code, else the angle."""
    return "hamming" if encoder.similarity_measure == "hamming" else "cosine"


def encoded(encoder: SentenceEncoder, sentences: list[str], *, measure: Measure, name: str) -> np.ndarray:
    """Return sentences as rows of an index: packed bits, uint8 [sentences, bytes], or unit float32 [sentences, dim].

    Raises:
        DataError: If a vector has a value that is not finite.
    """
    vectors = encoder.encode(sentences)
    if measure == "hamming":
        return pack_bits(vectors)
    is_odd = ~np.isfinite(vectors).all(axis=1)
    if is_odd.any():
        sentence = sentences[int(is_odd.argmax())]
        raise DataError(f"{name}: '{sentence[:40]}': the vector must be finite; given NaN or infinity; train it again")
    return normalize_rows(vectors)


def open_index(
    member: Member,
    encoder: SentenceEncoder,
    sentences: DistinctSentences,
    *,
    measure: Measure | None = None,
    cache_dir: str | None = None,
    progress: Progress | None = None,
) -> Index:
    """Return a model's index of a text, made or gone on with where it is not whole yet.

    Args:
        member: The model's name and content key.
        encoder: The model.
        sentences: What to search.
        measure: What to compare by; by default what the encoder is compared by.
        cache_dir: Where indexes are kept; default ``$RAYSENT_CACHE``, else the user's cache folder.
        progress: Told ``indexing``, the sentences done and all of them.

    Raises:
        DataError: If the model gives a value that is not finite.
        ArtifactError: If the cache cannot be written.
    """
    measure = measure or measure_of(encoder)
    key = content_key(_FORMAT_VERSION, member.key, sentences.key, measure)
    cache, name = cache_folder(cache_dir), f"neighbours/{key}"
    folder = cache / name
    dim = encoder.get_sentence_embedding_dimension()
    index = Index(folder, sentences, measure, -(-dim // 8) if measure == "hamming" else dim)
    if not _is_whole(index):
        with locked(cache, name), storage_errors(folder):
            if not _is_whole(index):
                _write(index, member, encoder, progress)
    return index


def _dtype(measure: Measure) -> type[np.generic]:
    return np.uint8 if measure == "hamming" else np.float32


def _row_bytes(index: Index) -> int:
    return index.width * np.dtype(_dtype(index.measure)).itemsize


def _is_whole(index: Index) -> bool:
    """Whether the vectors are all there; a file of another size than was written is made again."""
    try:
        about: dict[str, Any] = read_json(index.folder / _SUMMARY)
        return bool((index.folder / _VECTORS).stat().st_size == about["num_bytes"])
    except (ArtifactError, OSError, KeyError, TypeError):
        return False


def _write(index: Index, member: Member, encoder: SentenceEncoder, progress: Progress | None) -> None:
    """Write the vectors block by block, after the whole blocks that are there."""
    index.folder.mkdir(parents=True, exist_ok=True)
    path, num_rows, row_bytes = index.folder / _VECTORS, len(index.sentences), _row_bytes(index)
    (index.folder / _SUMMARY).unlink(missing_ok=True)
    with path.open("ab") as stream:
        # The last block may have been written in part when the power went.
        num_blocks = max(stream.tell() // (row_bytes * _BLOCK_SENTENCES) - 1, 0)
        stream.truncate(num_blocks * _BLOCK_SENTENCES * row_bytes)
        for first in range(num_blocks * _BLOCK_SENTENCES, num_rows, _BLOCK_SENTENCES):
            last = min(first + _BLOCK_SENTENCES, num_rows)
            block = index.sentences.texts(range(first, last))
            stream.write(encoded(encoder, block, measure=index.measure, name=member.name).data)
            stream.flush()
            os.fsync(stream.fileno())
            if progress:
                progress("indexing", last, num_rows)
    about = {
        "kind": "raysent-neighbours",
        "model": member.name,
        "model_key": member.key,
        "sentences": index.sentences.key,
        "num_sentences": num_rows,
        "measure": index.measure,
        "width": index.width,
        "num_bytes": num_rows * row_bytes,
    }
    write_json(index.folder / _SUMMARY, about)
