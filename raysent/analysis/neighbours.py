"""Nearest sentences of a corpus, by exact search with cosine or Hamming distance.

`find_neighbours` compares several models on the same queries. An `Index` holds a model's vectors of a corpus' distinct
sentences: float32 unit rows, or the packed bits of a code. It is a folder ``neighbours/<key>/`` of the cache, with
``vectors.bin`` (rows without a header, memory-mapped) and ``index.json``, which is written last. The key is made of the
model's content, the sentences and the format, so the same question again costs the search alone. Vectors are written in
blocks, and an interrupted index is continued.

`nearest.py` searches it; rows of equal distance are in the order of the corpus.

Source: nearest neighbours as in Logeswaran and Lee, 2018, Kiros et al., 2015, and Shen et al., 2019 (table 2).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raysent.analysis.nearest import Hits, Measure, check_search, nearest_codes, nearest_vectors
from raysent.data.corpus import CorpusConfig
from raysent.data.corpus.cache import locked
from raysent.data.corpus.distinct import DistinctSentences, distinct_sentences, normalize_whitespace
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Load
from raysent.evaluation.members import Member, expand
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


@dataclass(frozen=True)
class Neighbour:
    """A sentence found, and its cosine or the number of bits in which its code differs."""

    sentence: str
    score: float


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


def find_neighbours(
    models: Sequence[str | Path],
    corpus: CorpusConfig,
    queries: Sequence[str],
    *,
    k: int = 5,
    includes_query: bool = False,
    load: Load | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return the sentences nearest to each query, by each model.

    A repeated sentence counts once; sentences that differ in white space alone are the same.

    Args:
        models: Folders of models, ``hash:DIM``, or a sweep's folder, which stands for its trials with a model.
        corpus: The sentences to search.
        queries: Sentences; they need not be in the corpus.
        k: Neighbours per query.
        includes_query: Whether a query that is in the corpus is its own neighbour.
        load: Path -> encoder; `raysent.models.load` by default.
        progress: Called with the progress.

    Raises:
        ConfigError: If there is no query or an empty one, `k` is below 1, or FAISS is needed and not installed.
        DataError: If the corpus cannot be read, or a model gives NaN.
        ArtifactError: If a model cannot be loaded, or the cache cannot be written.
    """
    set_matmul_precision()
    if k < 1:
        raise ConfigError(f"k: must be at least 1; given {k}")
    checked = check_queries(queries)
    members = expand(models)
    sentences = distinct_sentences(corpus, progress=progress)
    columns = []
    for member in members:
        encoder = (load or load_model)(member.path)
        check_search(measure_of(encoder))
        index = open_index(member, encoder, sentences, cache_dir=corpus.cache_dir, progress=progress)
        vectors = index_rows(encoder, checked, measure=index.measure)
        # One more than needed, because the query itself may be among them.
        hits = index.search(vectors, k=k + (not includes_query))
        columns.append(_of_model(member, index, hits, excluded=None if includes_query else checked, k=k))
    name = corpus.path if isinstance(corpus.path, str) else ", ".join(corpus.path)
    return Comparison(name, len(sentences), sentences.key, tuple(checked), tuple(columns))


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
        if values["kind"] != _KIND:
            raise KeyError("kind")
        columns = tuple(_read_column(column) for column in values["columns"])
        names = ("corpus", "num_sentences", "sentences_key")
        return Comparison(**{name: values[name] for name in names}, queries=tuple(values["queries"]), columns=columns)
    except (KeyError, TypeError):
        raise ArtifactError(
            f"{address_of(path)}: not a table of neighbours of this version; run 'raysent neighbours' again"
        ) from None


def _read_column(values: Mapping[str, Any]) -> ModelNeighbours:
    found = tuple(tuple(Neighbour(**one) for one in of_query) for of_query in values["neighbours"])
    return ModelNeighbours(values["model"], values["measure"], found)


def check_queries(queries: Sequence[str]) -> list[str]:
    """Return the queries with single blanks.

    Raises:
        ConfigError: If there is none, or one is empty.
    """
    checked = [normalize_whitespace(query) for query in queries]
    if not checked:
        raise ConfigError("queries: must be at least one sentence; given none")
    if "" in checked:
        raise ConfigError(f"queries: must be sentences; number {checked.index('') + 1} is empty")
    return checked


def _of_model(member: Member, index: Index, hits: Hits, *, excluded: list[str] | None, k: int) -> ModelNeighbours:
    """Return the sentences of the rows found; `excluded` holds each query that is not its own neighbour."""
    found = []
    for number, (rows, scores) in enumerate(zip(hits.rows, hits.scores, strict=True)):
        texts = index.sentences.texts(rows.tolist())
        of_query = [Neighbour(text, score) for text, score in zip(texts, scores.tolist(), strict=True)]
        if excluded is not None:
            of_query = [one for one in of_query if one.sentence != excluded[number]]
        found.append(tuple(of_query[:k]))
    return ModelNeighbours(member.name, index.measure, tuple(found))


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
