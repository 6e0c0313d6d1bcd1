"""A folder of passages that is searched: vectors or codes, as `encode_corpus` writes them, and words.

    texts -> `raysent index` -> DIR: a Parquet file for each file of text, and .search/: an index of BM25, which rows
                                are blank, and int8.npy
    queries -> `SearchIndex.search` -> the best passages of each query: by vectors, by words, or by both

The search is exact by float32 vectors of unit length, compared by cosine, or by the bits of a model with a code, by
Hamming distance. Of other precisions memory holds the signs of the vectors, an eighth of a byte a number: the nearest
by Hamming distance are ordered by their cosine with the query's own vector, of int8 as a memory map reads it from the
disk, else of the signs. What is in .search/ is made again wherever it is not of the files that are there, or is not as
it was written, so that a folder in a bucket needs none. It also has the files that were indexed: one that is gone
is named at every search, until `raysent index` is given again.

A blank passage keeps its row and is never found: its vector is that of any word that the model does not know. Where the
folder keeps no texts, blank passages are not known.

Source: Yamada et al., 2021, "Efficient Passage Retrieval with Hashing" (signs, and scores by the query's vector);
sentence-transformers' "Embedding Quantization" (int8 on the disk).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from raysent.data import read_lines
from raysent.data.same_text import as_read, is_blank
from raysent.data.tables import check_texts, is_table, read_table
from raysent.errors import ArtifactError, ConfigError, DataError, RaysentError, listed
from raysent.evaluation.fusion import DEPTH, Ranking, fuse
from raysent.evaluation.members import load_saved, shared_name
from raysent.evaluation.nearest import Hits, nearest_codes, nearest_vectors
from raysent.models.codes import pack_bits
from raysent.models.schemes.bm25 import VERSION as WORDS_VERSION
from raysent.models.schemes.bm25 import Bm25Index
from raysent.models.sentence_encoder import (
    SentenceEncoder,
    as_sentences,
    check_size,
    normalize_rows,
)
from raysent.models.vector_folder import VectorBatch, VectorFolder
from raysent.passages.derived_files import DerivedFiles
from raysent.progress import messages
from raysent.storage import content_key

By = Literal["vectors", "words", "fused"]

_DERIVED_FOLDER = ".search"
_INT8_FILE = "int8.npy"
_BLANK_FILE = "blank.npy"
_FORMAT_VERSION = 4
# Key of the files that were indexed.
_INDEXED = "indexed"
# What reading files that are not what they seem may raise.
_UNREADABLE = (ArtifactError, OSError, ValueError, KeyError, TypeError, IndexError, EOFError)
# Signs whose cosine with the query's vector is computed, for each passage that is asked for, and at least. With too few
# of them, Hamming distance alone decides which passages are scored, and good ones are missed.
_RESCORED = 10
_LEAST_RESCORED = 500
_QUERIES_AT_ONCE = 1024


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Attributes:
        file: Its file, below the folder that was indexed.
        row: Its line or row, from 0.
        score: Higher is better: the cosine, minus the number of differing bits, the score of BM25, or of both.
        text: The passage; None if the folder keeps no texts.
    """

    file: str
    row: int
    score: float
    text: str | None

    @property
    def place(self) -> str:
        """Where it is, for people: the line of a file of text, as editors read it, or the row of a table, from 1."""
        between = ", row " if is_table(self.file) else ":"
        return f"{self.file}{between}{self.row + 1}"


class SearchIndex:
    """A folder of passages, read at the first search.

    Attributes:
        folder: The folder.
        num_passages: The number of its passages.
    """

    def __init__(self, folder: str | Path, *, model: str | Path | None = None) -> None:
        """Open a folder that `index` or `encode_corpus` wrote, also in ``s3://``.

        Args:
            folder: The folder.
            model: The model that encoded it, if it is elsewhere by now.

        Raises:
            ArtifactError: If it is none, or damaged.
        """
        self.folder = VectorFolder(folder)
        self.format = self.folder.format()
        self._files = self.folder.files()
        self._starts = np.cumsum([0, *(file.num_rows for file in self._files)])
        self.num_passages = int(self._starts[-1])
        self._model = shared_name(self.format.model if model is None else str(model))
        self._say_what_is_gone()

    @staticmethod
    def check_ranking(*, by: object, weight: object) -> None:
        """Refuse what is not one of the ways to rank passages, or no weight.

        Raises:
            ConfigError: If it is neither None nor right.
        """
        if by not in (None, *get_args(By)):
            raise ConfigError(f"by: must be {', '.join(get_args(By))}; given {by!r:.60}")
        if weight is None:
            return
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= float(weight) <= 1:
            raise ConfigError(f"weight: must be from 0 to 1; given {weight!r:.60}")

    def search(
        self,
        queries: str | Sequence[str],
        *,
        k: int = 10,
        by: str | None = None,
        weight: float | None = None,
    ) -> list[list[Hit]]:
        """Return the best passages of each query, best first.

        Args:
            queries: One query, or several.
            k: Passages of each query.
            by: ``vectors``; ``words``, by BM25; or ``fused``, by both. By default as the model says, else vectors.
            weight: For ``fused``, the weight of words from 0 to 1; by default the model's, else reciprocal ranks.

        Raises:
            ConfigError: If an argument is wrong, or bm25s or FAISS is needed and not installed.
            ArtifactError: If the model is missing or another one, or a file is damaged.
        """
        texts = as_sentences(queries, name="queries")
        size = min(check_size("k", k), self.num_passages)
        self.check_ranking(by=by, weight=weight)
        for number, query in enumerate(texts):
            if not query.strip():
                raise ConfigError(f"queries[{number}]: must be text; given nothing")
        if not texts or not size or not len(self.candidates):
            return [[] for _ in texts]
        by = by or self.by
        if weight is not None and by != "fused":
            raise ConfigError(f"weight: must be given with by=fused; given by={by}")
        if by == "vectors":
            return self._hits(self._ranked_by_vectors(texts, size))
        if by == "words":
            return self._hits(self._ranked_by_words(texts, size))
        # A passage that only one of both ranks high must be in the other's list to be fused.
        depth = min(max(size, DEPTH), self.num_passages)
        ranking = fuse(
            self._ranked_by_vectors(texts, depth),
            self._ranked_by_words(texts, depth),
            weight=self.word_weight if weight is None else weight,
            depth=size,
        )
        return self._hits(ranking)

    def prepare(self) -> None:
        """Read what a search needs, so that the first one does not wait; of words only where bm25s is installed."""
        _ = self.encoder, self.vectors, self.candidates
        if self.format.precision == "int8":
            _ = self.int8
        if self.format.has_text and find_spec("bm25s") is not None:
            _ = self.words

    @property
    def by(self) -> By:
        """What passages are ranked by where a search does not say: as the model was chosen, else vectors."""
        return "fused" if self.encoder.fuses_words else "vectors"

    @property
    def word_weight(self) -> float | None:
        """The weight of words that was fitted for the model; None for one without, and for reciprocal ranks."""
        return self.encoder.word_weight

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The model, by which queries are encoded."""
        try:
            local = self.folder.local
            encoder = load_saved(self._model, self.format.model_key, beside=local)
        except ArtifactError as error:
            raise ArtifactError(
                f"{self.folder.name}: its model cannot be read ({error}); give model=PATH"
            ) from None
        if encoder is None:
            remedy = "before it changed; index into another folder"
            if self._model != shared_name(self.format.model):
                remedy = f"not of {self._model}; name that"
            raise ArtifactError(f"{self.folder.name}: is of {self.format.model}, {remedy}")
        return encoder

    @cached_property
    def vectors(self) -> np.ndarray:
        """The candidates' vectors as they are compared.

        Of length 1, float32 [candidates, dim], or bits, uint8 [candidates, bytes].
        """
        is_bits = self.format.measure == "hamming" or self.format.precision != "float32"
        if is_bits:
            num_bytes = -(-self.format.dim // 8)
            vectors = np.empty((len(self.candidates), num_bytes), np.uint8)
        else:
            vectors = np.empty((len(self.candidates), self.format.dim), np.float32)
        is_candidate = np.zeros(self.num_passages, bool)
        is_candidate[self.candidates] = True
        first = first_row = 0
        for batch in self._batches():
            last_row = first_row + len(batch.vectors)
            rows = batch.vectors[is_candidate[first_row:last_row]]
            first_row = last_row
            if self.format.precision == "float32" and not np.isfinite(rows).all():
                raise DataError(
                    f"{self.folder.name}: {batch.file}: vectors must be finite; train the model again"
                )
            # Bits are on the disk as they are compared.
            if self.format.precision != "ubinary":
                if is_bits:
                    rows = pack_bits(rows > 0)
                else:
                    rows = normalize_rows(rows)
            vectors[first : first + len(rows)] = rows
            first += len(rows)
        return vectors

    @cached_property
    def candidates(self) -> np.ndarray:
        """The rows that can be found, int64 [candidates]: all but those of blank passages."""
        if not self.format.has_text:
            return np.arange(self.num_passages)
        is_blank_row = None
        if self._is_derived_whole:
            is_blank_row = self._loaded(_BLANK_FILE, shape=(self.num_passages,), dtype=np.bool_)
        if is_blank_row is None:
            is_blank_row = self._blank_rows()
        return np.flatnonzero(~is_blank_row)

    def _blank_rows(self) -> np.ndarray:
        texts = (text for batch in self._batches(with_text=True) for text in batch.texts or ())
        return np.fromiter((is_blank(text) for text in texts), bool, count=self.num_passages)

    @cached_property
    def int8(self) -> np.ndarray:
        """What orders the nearest signs of a folder of this precision, int8 [passages, dim]: on the disk, or read."""
        if self._is_derived_whole:
            # A memory map, of which a search reads the rows that it orders.
            shape = (self.num_passages, self.format.dim)
            mapped = self._loaded(_INT8_FILE, shape=shape, dtype=np.int8)
            if mapped is not None:
                return mapped
        return self._all_int8()

    def _all_int8(self) -> np.ndarray:
        return np.concatenate(
            [np.empty((0, self.format.dim), np.int8), *(batch.vectors for batch in self._batches())]
        )

    def _batches(self, *, with_text: bool = False) -> Iterator[VectorBatch]:
        return self.folder.batches(with_text=with_text, files=[file.name for file in self._files])

    @cached_property
    def words(self) -> Bm25Index:
        """The index of words, read or made."""
        if not self.format.has_text:
            raise ConfigError(
                f"{self.folder.name}: holds no texts to search by words; index with keeps_text=true"
            )
        if self._is_derived_whole:
            with contextlib.suppress(*_UNREADABLE):
                return Bm25Index.load(self._derived.folder, num_passages=self.num_passages)
        return self._all_words()

    def _all_words(self) -> Bm25Index:
        return Bm25Index.of(
            [text for batch in self._batches(with_text=True) for text in batch.texts or ()]
        )

    def _loaded(
        self, name: str, *, shape: tuple[int, ...], dtype: type[np.generic]
    ) -> np.ndarray | None:
        """Return an array that is mapped from a derived file; None where the file has another one."""
        with contextlib.suppress(*_UNREADABLE):
            array = np.load(self._derived.folder / name, mmap_mode="r", allow_pickle=False)
            if array.shape == shape and array.dtype == dtype:
                return np.asarray(array)
        return None

    def _say_what_is_gone(self) -> None:
        """Print a line of files that were indexed and are not there: removed on purpose, or lost."""
        gone = sorted(self._indexed_files.keys() - {file.name for file in self._files})
        if gone:
            num_passages = sum(self._indexed_files[name] for name in gone)
            names = listed([f"{name}.parquet" for name in gone], most=3)
            messages.print(
                f"{self.folder.name}: {names} was indexed and is gone, with {num_passages:,} passages that are not "
                "found; 'raysent index' into this folder makes it again, or takes its end for meant",
                soft_wrap=True,
            )

    @cached_property
    def _indexed_files(self) -> dict[str, int]:
        """The passages of each file that the last `raysent index` has left, as far as that is known."""
        recorded = None
        if self.folder.local is not None:
            derived_folder = self.folder.local / _DERIVED_FOLDER
            recorded = DerivedFiles(derived_folder, made_of={}).recorded(_INDEXED)
        return recorded if isinstance(recorded, dict) else {}

    @property
    def _derived(self) -> DerivedFiles:
        derived_folder = (self.folder.local or Path()) / _DERIVED_FOLDER
        return DerivedFiles(derived_folder, made_of=self._about)

    @cached_property
    def _is_derived_whole(self) -> bool:
        """Whether derived files can be read: they are of the files that are there, and as they were written.

        Where they are not, they are made again for this search, and are written if there were any.
        """
        if self.folder.local is None or not self._derived.exist():
            return False
        if self._derived.are_current():
            damaged = self._derived.damaged()
            if damaged is None:
                return True
            messages.print(
                f"{self._derived.folder / damaged}: is not as it was written; made again",
                soft_wrap=True,
            )
        with contextlib.suppress(RaysentError, OSError):
            self._write_derived()
            return True
        return False

    @property
    def _about(self) -> dict[str, object]:
        files = [[file.name, file.num_rows, file.source] for file in self._files]
        versions = {"version": _FORMAT_VERSION, "words": WORDS_VERSION}
        return {
            **versions,
            "key": content_key(self.format.key, files),
            "num_passages": self.num_passages,
            _INDEXED: {
                **self._indexed_files,
                **{file.name: file.num_rows for file in self._files},
            },
        }

    def save_derived(self) -> None:
        """Write the index of words, and of int8 vectors what a search maps, of the files there; not into a bucket.

        Raises:
            ArtifactError: If the folder cannot be written.
        """
        if self.folder.local is None:
            return
        self._indexed_files = {}  # what is gone is meant
        if not self._derived.are_current() or self._derived.damaged() is not None:
            self._write_derived()

    def _write_derived(self) -> None:
        assert self.folder.local is not None
        self._derived.write(self._write_files, below=self.folder.local)

    def _write_files(self, folder: Path) -> None:
        if self.format.has_text:
            self._all_words().save(folder)
            np.save(folder / _BLANK_FILE, self._blank_rows())
        if self.format.precision == "int8":
            np.save(folder / _INT8_FILE, self._all_int8())

    def _ranked_by_vectors(self, queries: list[str], k: int) -> Ranking:
        hits = self._nearest(queries, min(k, len(self.candidates)))
        return _ranking_of(Hits(self.candidates[hits.rows], hits.scores))

    def _ranked_by_words(self, queries: list[str], k: int) -> Ranking:
        return _ranking_of(Hits(*self.words.search(queries, k)))

    def _nearest(self, queries: list[str], k: int) -> Hits:
        """Return the nearest candidates, by their places among the candidates."""
        vectors = self.encoder.encode_query(queries)
        if self.format.measure == "hamming":
            return nearest_codes(self.vectors, pack_bits(vectors), k=k)
        if self.format.precision == "float32":
            return nearest_vectors(self.vectors, normalize_rows(vectors), k=k)
        rows = np.empty((len(queries), k), np.int64)
        scores = np.empty((len(queries), k))
        depth = max(_LEAST_RESCORED, _RESCORED * k)
        # In blocks, so that memory does not grow with the number of queries.
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            part = vectors[first : first + _QUERIES_AT_ONCE]
            near = nearest_codes(self.vectors, np.packbits(part > 0, axis=1), k=depth)
            query_vectors = normalize_rows(part)
            pairs = zip(query_vectors, near.rows, strict=True)
            for number, (vector, near_rows) in enumerate(pairs, start=first):
                points = normalize_rows(self._rescored(near_rows)) @ vector
                # Of equal points the first passage is the first, so that answers do not depend on the search before.
                order = np.lexsort((near_rows, -points))[:k]
                rows[number] = near_rows[order]
                scores[number] = points[order]
        return Hits(rows, scores)

    def _rescored(self, rows: np.ndarray) -> np.ndarray:
        if self.format.precision == "int8":
            return np.asarray(self.int8[self.candidates[rows]], np.float32)
        bits = np.unpackbits(self.vectors[rows], axis=1, count=self.format.dim)
        return bits.astype(np.float32) * 2 - 1  # -1 or 1

    def _hits(self, ranking: Ranking) -> list[list[Hit]]:
        found_rows = np.unique(ranking.rows[ranking.rows >= 0])
        texts: dict[int, str] = {}
        files_with_text = self._files if self.format.has_text else ()
        for number, source in enumerate(files_with_text):
            first = self._starts[number]
            last = self._starts[number + 1]
            rows_of_file = found_rows[(found_rows >= first) & (found_rows < last)]
            if len(rows_of_file):
                texts_of_file = self.folder.texts(source, (rows_of_file - first).tolist())
                texts.update(zip(rows_of_file.tolist(), texts_of_file, strict=True))
        starts = self._starts.tolist()
        file_numbers = np.searchsorted(self._starts, ranking.rows, side="right") - 1
        hits_of_queries = []
        for rows, numbers, scores in zip(
            ranking.rows.tolist(), file_numbers.tolist(), ranking.scores.tolist(), strict=True
        ):
            hits = []
            for row, number, score in zip(rows, numbers, scores, strict=True):
                # A ranking of fewer passages than its width ends with rows of -1.
                if row >= 0:
                    name = self._files[number].name
                    hits.append(Hit(name, row - starts[number], score, texts.get(row)))
            hits_of_queries.append(hits)
        return hits_of_queries


def _ranking_of(hits: Hits) -> Ranking:
    """Return hits of queries as a ranking, whose scores are higher for what is nearer."""
    return Ranking(np.arange(len(hits.rows)), hits.rows, -hits.distances)


def read_queries(file: str) -> list[str]:
    """Return the lines of a file, or each query of a table once: its column ``query``, else ``text``; no blank ones.

    Raises:
        DataError: If it cannot be read, or the table has no such column.
    """
    if not is_table(file):
        return [line for line in read_lines(file) if line.strip()]
    table = read_table(file)
    name = "query"
    if "text" in table.columns and "query" not in table.columns:
        name = "text"
    cells = [cell for cell in table.column(name, key="query") if cell is not None]
    check_texts(cells, source=table.source, column=f"query '{name}'", kinds=(str, int, float))
    # Queries that a model reads alike are one query, in the form that comes first.
    queries: dict[str, str] = {}
    for cell in cells:
        queries.setdefault(as_read(str(cell)), str(cell))
    return [query for query in queries.values() if query.strip()]
