"""Nearest sentences of a corpus, by exact search with cosine or Hamming distance.

`find_neighbours` compares several models on the same queries, among the sentences of a corpus (`CorpusVectors`) or of a
folder of vectors (`vector_search.FolderVectors`).

An `Index` holds a model's vectors of a corpus' distinct sentences: float32 unit rows, or the packed bits of a code. It
is a folder ``neighbours/<key>/`` of the cache, with ``vectors.bin`` (rows without a header, memory-mapped) and
``index.json``, which is written last. The key is made of the model's content, the sentences and the format, so the same
question again costs the search alone. Vectors are written in blocks, and an interrupted index is continued.

`nearest.py` searches it; rows of equal distance are in the order of the corpus.

Source: nearest neighbours as in Logeswaran and Lee, 2018, Kiros et al., 2015, and Shen et al., 2019 (table 2).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic

from raysent.data.corpus import CorpusConfig
from raysent.data.corpus.cache import locked
from raysent.data.corpus.distinct import DistinctSentences, distinct_sentences, normalize_whitespace
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Load
from raysent.evaluation.members import Member, Model, expand
from raysent.evaluation.nearest import Hits, Measure, check_search, nearest_codes, nearest_vectors
from raysent.kernels.devices import set_matmul_precision
from raysent.models import load as load_model
from raysent.models.codes import pack_bits
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows
from raysent.parallel import Progress
from raysent.storage import address_of, cache_folder, content_key, read_json, storage_errors, write_json
from raysent.storage.layout import NEIGHBOURS_FILE

_KIND = "raysent-neighbours-table"
_FORMAT_VERSION = 1
_BLOCK_SENTENCES = 4096
_SUMMARY = "index.json"
_VECTORS = "vectors.bin"
# Repeated sentences are listed once, so more rows than needed are asked for.
_SPARE_ROWS = 8


@dataclass(frozen=True)
class Neighbour:
    """A sentence found, and its cosine or the number of bits in which its code differs."""

    sentence: str
    score: int | float


@dataclass(frozen=True)
class ModelNeighbours:
    """What one model finds.

    Attributes:
        model: The model's name.
        measure: ``cosine``, or ``hamming`` for a model with a code.
        neighbours: Of every query, nearest first.
    """

    model: str
    measure: Measure
    neighbours: tuple[tuple[Neighbour, ...], ...]


@dataclass(frozen=True)
class Comparison:
    """What several models find for the same queries among the same sentences.

    Attributes:
        corpus: The corpus as the user named it.
        num_sentences: The number of its distinct sentences.
        sentences_key: Hash of the sentences.
        queries: The queries.
        columns: One per model.
    """

    corpus: str
    num_sentences: int
    sentences_key: str
    queries: tuple[str, ...]
    columns: tuple[ModelNeighbours, ...]

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class Found(NamedTuple):
    """A row that may be among the nearest.

    Attributes:
        distance: Minus the cosine, or the number of differing bits.
        order: Its place among all rows.
        name: The sentence, or file and row.
    """

    distance: float
    order: tuple[int, int]
    name: str


class Nearest:
    """The nearest distinct sentences of one query so far."""

    def __init__(self, k: int, *, excluded: str) -> None:
        """Begin without any.

        Args:
            k: Sentences to find.
            excluded: A sentence that does not count.
        """
        self.k, self._excluded = k, excluded
        self._found: dict[str, Found] = {}

    @property
    def bound(self) -> float:
        """Only a smaller distance, or an equal one of an earlier row, has an effect."""
        is_full = len(self._found) >= self.k
        return max(one.distance for one in self._found.values()) if is_full else math.inf

    def search(self, ask: Callable[[int], list[Found]], num_rows: int) -> None:
        """Add the nearest of some rows; one sentence may stand in many of them, so that more are asked for.

        Args:
            ask: A number of rows -> the nearest rows, at most so many.
            num_rows: The number of rows that there are.
        """
        size = self.k + _SPARE_ROWS
        while True:
            rows = ask(min(size, num_rows))
            if self.add(rows) >= self.k or len(rows) < size or size >= num_rows:
                break
            size *= 4

    def add(self, rows: Iterable[Found]) -> int:
        """Add rows, and return how many different sentences they have that count."""
        names = set()
        for row in rows:
            name = normalize_whitespace(row.name)
            if not name or name == self._excluded:
                continue
            names.add(name)
            if name not in self._found or row[:2] < self._found[name][:2]:
                self._found[name] = row._replace(name=name)
        self._found = {one.name: one for one in sorted(self._found.values())[: self.k]}
        return len(names)

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Return the neighbours, nearest first."""
        return tuple(
            Neighbour(one.name, one.distance if isinstance(one.distance, int) else -one.distance)
            for one in sorted(self._found.values())
        )


class Searched:
    """Sentences among which neighbours are searched.

    Attributes:
        name: The text or the folder as the user named it.
        num_sentences: The number of its sentences.
        key: Hash of the sentences.
    """

    name: str
    num_sentences: int
    key: str

    def search(self, member: Member, queries: list[str], lists: Sequence[Nearest]) -> Measure:
        """Add the sentences that a model finds for each query to the query's list; returns how it compares.

        Raises:
            RaysentError: If FAISS is needed and not installed, or the model or its vectors cannot be used.
        """
        raise NotImplementedError


def find_neighbours(
    models: Sequence[Model], searched: Searched, queries: Sequence[str], *, k: int = 5, includes_query: bool = False
) -> Comparison:
    """Return the sentences nearest to each query, by each model.

    A repeated sentence counts once, and an empty one not at all; sentences that differ in white space alone are the
    same.

    Args:
        models: Folders of models, ``hash:DIM``, or a sweep's folder, which stands for its trials with a model.
        searched: The sentences to search.
        queries: Sentences; they need not be among those.
        k: Neighbours per query.
        includes_query: Whether a query that is among them is its own neighbour.

    Raises:
        ConfigError: If there is no query or an empty one, `k` is below 1, or FAISS is needed and not installed.
        DataError: If the corpus cannot be read, or a model gives NaN.
        ArtifactError: If a model cannot be loaded, the cache cannot be written, or vectors are of another model.
    """
    set_matmul_precision()
    if k < 1:
        raise ConfigError(f"k: must be at least 1; given {k}")
    asked = [normalize_whitespace(query) for query in queries]
    if not asked:
        raise ConfigError("queries: must be at least one sentence; given none")
    if "" in asked:
        raise ConfigError(f"queries: must be sentences; number {asked.index('') + 1} is empty")
    columns = []
    for member in expand(models):
        lists = [Nearest(k, excluded="" if includes_query else one) for one in asked]
        measure = searched.search(member, asked, lists)
        columns.append(ModelNeighbours(member.name, measure, tuple(one.neighbours() for one in lists)))
    return Comparison(searched.name, searched.num_sentences, searched.key, tuple(asked), tuple(columns))


def save_comparison(folder: Path, comparison: Comparison) -> Path:
    """Write `neighbours.json`, which a report shows, and return its path.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    path = folder / NEIGHBOURS_FILE
    write_json(path, {"kind": _KIND, **comparison.values()})
    return path


def read_comparison(folder: Path) -> Comparison | None:
    """Return the comparison in a folder, or None if there is none.

    Raises:
        ArtifactError: If the file is truncated or of another kind.
    """
    path = folder / NEIGHBOURS_FILE
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        if values.pop("kind") != _KIND:
            raise KeyError("kind")
        return pydantic.TypeAdapter(Comparison).validate_python(values)
    except (AttributeError, KeyError, TypeError, pydantic.ValidationError):
        raise ArtifactError(
            f"{address_of(path)}: not a table of neighbours of this version; run 'raysent neighbours' again"
        ) from None


class CorpusVectors(Searched):
    """The distinct sentences of a text; each model's vectors of them are made at the first search, and cached."""

    def __init__(self, config: CorpusConfig, progress: Progress | None = None, *, load: Load = load_model) -> None:
        """Read a text, as `distinct_sentences` does; `load` loads a model."""
        self.name = config.path if isinstance(config.path, str) else ", ".join(config.path)
        self.sentences = distinct_sentences(config, progress=progress)
        self.num_sentences, self.key = len(self.sentences), self.sentences.key
        self._cache_dir, self._progress, self._load = config.cache_dir, progress, load

    def search(self, member: Member, queries: list[str], lists: Sequence[Nearest]) -> Measure:
        """Search all vectors by cosine, or codes by Hamming distance."""
        sentences, encoder = self.sentences, self._load(member.path)
        check_search(measure_of(encoder))
        index = open_index(member, encoder, sentences, cache_dir=self._cache_dir, progress=self._progress)
        # One more than needed, because the query itself may be among them.
        hits = index.search(index_rows(encoder, queries, measure=index.measure), k=lists[0].k + 1)
        for one, rows, distances in zip(lists, hits.rows.tolist(), hits.distances.tolist(), strict=True):
            texts = sentences.texts(rows)
            one.add(Found(*row) for row in zip(distances, ((0, row) for row in rows), texts, strict=True))
        return index.measure


@dataclass(frozen=True)
class Index:
    """A model's vectors of a corpus' distinct sentences.

    Attributes:
        folder: The folder of the vectors.
        sentences: The sentence of every row.
        measure: ``hamming`` for packed bits, ``cosine`` for unit vectors.
        width: Bytes of a code, or dimensions of a vector.
    """

    folder: Path
    sentences: DistinctSentences
    measure: Measure
    width: int

    def search(self, queries: np.ndarray, *, k: int) -> Hits:
        """Return the k nearest rows of every query, as `index_rows` returns them [queries, width]."""
        if self.measure == "hamming":
            return nearest_codes(self.rows, queries, k=k)
        return nearest_vectors(self.rows, queries, k=k)

    @cached_property
    def rows(self) -> np.ndarray:
        """Codes, uint8, or vectors, float32 [sentences, width], memory-mapped; changes stay in memory."""
        shape = (len(self.sentences), self.width)
        return np.asarray(np.memmap(self.folder / _VECTORS, dtype=_dtype(self.measure), mode="c", shape=shape))


def measure_of(encoder: SentenceEncoder) -> Measure:
    """Return the measure that compares an encoder's sentences: Hamming distance for codes, else the cosine."""
    return "hamming" if encoder.similarity_measure == "hamming" else "cosine"


def index_rows(encoder: SentenceEncoder, sentences: list[str], *, measure: Measure) -> np.ndarray:
    """Return sentences as rows of an index: packed bits, uint8 [sentences, bytes], or unit float32 [sentences, dim]."""
    vectors = encoder.encode(sentences)
    if measure == "hamming":
        return pack_bits(vectors)
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
    """Return a model's index of a corpus; builds it, or continues an interrupted build.

    Args:
        member: The model's name and content key.
        encoder: The model.
        sentences: The sentences to search.
        measure: The measure to compare by; by default the encoder's.
        cache_dir: Folder of indexes; by default ``$RAYSENT_CACHE``, else the user's cache folder.
        progress: Called with ``indexing``, the number of sentences done, and of all.

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
    if not _is_complete(index):
        with locked(cache, name), storage_errors(folder):
            if not _is_complete(index):
                _build(index, member, encoder, progress)
    return index


def _dtype(measure: Measure) -> type[np.generic]:
    return np.uint8 if measure == "hamming" else np.float32


def _is_complete(index: Index) -> bool:
    """Return whether the vectors are complete: the summary exists and has the size of their file."""
    try:
        about: dict[str, Any] = read_json(index.folder / _SUMMARY)
        return bool((index.folder / _VECTORS).stat().st_size == about["num_bytes"])
    except (ArtifactError, OSError, KeyError, TypeError):
        return False


def _build(index: Index, member: Member, encoder: SentenceEncoder, progress: Progress | None) -> None:
    """Write the vectors block by block, after the complete blocks of an earlier build."""
    index.folder.mkdir(parents=True, exist_ok=True)
    path, num_rows = index.folder / _VECTORS, len(index.sentences)
    row_bytes = index.width * np.dtype(_dtype(index.measure)).itemsize
    (index.folder / _SUMMARY).unlink(missing_ok=True)
    with path.open("ab") as stream:
        # A crash may have written the last block in part.
        num_blocks = max(stream.tell() // (row_bytes * _BLOCK_SENTENCES) - 1, 0)
        stream.truncate(num_blocks * _BLOCK_SENTENCES * row_bytes)
        for first in range(num_blocks * _BLOCK_SENTENCES, num_rows, _BLOCK_SENTENCES):
            last = min(first + _BLOCK_SENTENCES, num_rows)
            block = index.sentences.texts(range(first, last))
            stream.write(index_rows(encoder, block, measure=index.measure).data)
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
