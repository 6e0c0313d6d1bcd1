"""Nearest sentences in a folder of vectors that `raysent encode-corpus` wrote, with or without an index of FAISS.

    folder of Parquet files -> `build_index` -> FILE, an index of FAISS, and FILE.json: its SHA-256, and of which files
    queries -> `search_folder`, which reads all vectors, or with FILE only the texts of what is found

Without an index the search is exact, and memory holds one batch of rows. An index of FAISS is held in memory. It
compares unit vectors by their inner product, so by cosine, and codes by Hamming distance. Rows of an index are in the
order of the files' names and of rows. Other programs read it by `faiss.read_index` or `faiss.read_index_binary`.

Source: FAISS: Douze et al., 2024, "The Faiss library".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raysent.analysis.nearest import Hits, load_faiss, nearest_codes, nearest_vectors
from raysent.analysis.neighbours import Comparison, ModelNeighbours, Neighbour, check_queries, index_rows
from raysent.data.corpus.distinct import normalize_whitespace
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.members import Member, Model, expand
from raysent.kernels.devices import set_matmul_precision
from raysent.models import load
from raysent.models.codes import pack_bits
from raysent.models.sentence_encoder import normalize_rows
from raysent.models.vector_folder import VectorBatch, VectorFile, VectorFolder, VectorFormat
from raysent.parallel import Progress
from raysent.storage import atomic_write, content_key, file_sha256, read_json, remove, write_json

_KIND = "raysent-faiss"
_FORMAT_VERSION = 2
# The fewest rows of an index with cells: with fewer, comparing all of them is as fast.
MIN_IVF_ROWS = 10_000
# FAISS warns below 39 training vectors per cell. Cells need not be the best ones, and k-means takes most of the time.
_TRAINED_PER_CELL = 40
_NUM_ROUNDS = 10
_LEAST_PER_CELL = 39
_NUM_PROBED = 32
# Repeated sentences are listed once, so more rows than needed are asked for.
_SPARE_ROWS = 8


@dataclass(frozen=True)
class FaissIndex:
    """An index of FAISS of a folder of vectors.

    Attributes:
        path: Its file.
        num_rows: Its rows.
        measure: ``cosine`` or ``hamming``.
        num_cells: Cells of an inverted file, of which a search reads some; 0 if it reads all rows.
    """

    path: Path
    num_rows: int
    measure: str
    num_cells: int


def build_index(
    folder: str | Path, output: str | Path, *, ivf: bool = False, progress: Progress = lambda *_: None
) -> FaissIndex:
    """Write an index of FAISS of a folder of vectors; see `raysent.index_vectors`.

    Raises:
        RaysentError: If FAISS is not installed, the folder has no rows, or the file cannot be written.
    """
    faiss = load_faiss("index")
    vectors, path = _Vectors.open(folder), Path(output)
    if not vectors.num_rows:
        raise DataError(f"{vectors.folder.name}: must hold at least one vector; given none")
    num_cells = _num_cells(vectors.num_rows) if ivf else 0
    index = _new_index(faiss, vectors, num_cells)
    for batch in vectors.folder.batches(with_text=False):
        index.add(vectors.comparable(batch))
        progress("indexing", index.ntotal, vectors.num_rows)
    about = path.with_name(f"{path.name}.json")
    remove(about)  # so that it never describes another index
    with atomic_write(path) as temporary:
        (faiss.write_index_binary if vectors.is_code else faiss.write_index)(index, str(temporary))
        sha256 = file_sha256(temporary)
    values = {
        "kind": _KIND,
        "version": _FORMAT_VERSION,
        "folder": vectors.folder.name,
        "model": vectors.format.model,
        "measure": vectors.format.measure,
        "num_rows": vectors.num_rows,
        "num_cells": num_cells,
        "key": vectors.key,
        "sha256": sha256,
    }
    write_json(about, values)
    return FaissIndex(path, vectors.num_rows, vectors.format.measure, num_cells)


def search_folder(
    models: Sequence[Model],
    folder: str | Path,
    queries: Sequence[str],
    *,
    k: int = 5,
    includes_query: bool = False,
    index: str | Path | None = None,
    progress: Progress = lambda *_: None,
) -> Comparison:
    """Return the sentences of a folder of vectors that are nearest to each query.

    A repeated sentence counts once, and an empty one not at all. In a folder without texts, a sentence is named by its
    file and its row, from 1.

    Args:
        models: The model that the folder's vectors are of.
        folder: A folder of vectors, also in ``s3://``.
        queries: Sentences; they need not be in the folder.
        k: Neighbours per query.
        includes_query: Whether a query that is in the folder is its own neighbour.
        index: An index of FAISS of the folder; by default all vectors are read and compared.
        progress: Called with the progress.

    Raises:
        ConfigError: If there is no query or an empty one, `k` is below 1, or FAISS is needed and not installed.
        ArtifactError: If the vectors are of another model, or the index is of other vectors.
    """
    set_matmul_precision()
    if k < 1:
        raise ConfigError(f"k: must be at least 1; given {k}")
    asked = check_queries(queries)
    vectors = _Vectors.open(folder)
    opened = None if index is None else _open_index(Path(index), vectors)
    columns = []
    for member in expand(models):
        _check_model(member, vectors)
        rows = index_rows(load(member.path), asked, measure=vectors.format.measure)
        lists = [_Nearest(k, excluded="" if includes_query else one) for one in asked]
        if opened is None:
            _scan(vectors, rows, lists, progress)
        else:
            _search(opened, vectors, rows, lists)
        found = tuple(tuple(one.neighbours()) for one in lists)
        columns.append(ModelNeighbours(member.name, vectors.format.measure, found))
    return Comparison(vectors.folder.name, vectors.num_rows, vectors.key, tuple(asked), tuple(columns))


@dataclass(frozen=True)
class _Vectors:
    """A folder of vectors with what its files have in common.

    Attributes:
        folder: The folder.
        format: What all vectors have in common.
        files: The files, in the order of rows.
    """

    folder: VectorFolder
    format: VectorFormat
    files: tuple[VectorFile, ...]

    @classmethod
    def open(cls, name: str | Path) -> _Vectors:
        """Read what is in a folder."""
        folder = VectorFolder(name)
        return cls(folder, folder.format(), tuple(folder.files()))

    @property
    def num_rows(self) -> int:
        """All rows."""
        return sum(file.num_rows for file in self.files)

    @property
    def is_code(self) -> bool:
        """Whether rows are compared by Hamming distance."""
        return self.format.measure == "hamming"

    @property
    def key(self) -> str:
        """A hash of what an index is made of: the format, and every file's rows and version of its text."""
        return content_key(self.format.key, [[file.name, file.num_rows, file.source] for file in self.files])

    def comparable(self, batch: VectorBatch) -> np.ndarray:
        """Return rows as a search compares them: packed bits, uint8 [rows, bytes], or unit float32 [rows, dim].

        Raises:
            DataError: If a vector is not finite.
        """
        if self.is_code:
            return batch.vectors if self.format.precision == "ubinary" else pack_bits(batch.vectors)
        is_odd = ~np.isfinite(batch.vectors).all(axis=1)
        if is_odd.any():
            place = _place(batch.file, batch.first_row + int(is_odd.argmax()))
            raise DataError(f"{place}: the vector must be finite; given NaN or infinity; train the model again")
        return normalize_rows(batch.vectors)


class _Found(NamedTuple):
    """A row that may be among the nearest.

    Attributes:
        distance: Minus the cosine, or the number of differing bits.
        order: Its place among all rows.
        name: The sentence, or file and row.
    """

    distance: float
    order: tuple[int, int]
    name: str


class _Nearest:
    """The nearest distinct sentences of one query so far."""

    def __init__(self, k: int, *, excluded: str) -> None:
        self.k, self._excluded = k, excluded
        self._found: dict[str, _Found] = {}

    @property
    def is_full(self) -> bool:
        """Whether there are enough sentences."""
        return len(self._found) >= self.k

    @property
    def bound(self) -> float:
        """Only a smaller distance, or an equal one of an earlier row, has an effect."""
        return max(one.distance for one in self._found.values()) if self.is_full else math.inf

    def add(self, rows: Iterable[_Found]) -> int:
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

    def neighbours(self) -> Iterator[Neighbour]:
        """Yield the neighbours, nearest first."""
        for one in sorted(self._found.values()):
            yield Neighbour(one.name, one.distance if isinstance(one.distance, int) else -one.distance)


def _scan(vectors: _Vectors, queries: np.ndarray, lists: Sequence[_Nearest], progress: Progress) -> None:
    """Compare all rows with all queries [queries, width]."""
    nearest = nearest_codes if vectors.is_code else nearest_vectors
    num_done = 0
    for number, batch in enumerate(vectors.folder.batches()):
        rows = vectors.comparable(batch)
        for query, one in zip(queries, lists, strict=True):
            size = one.k + _SPARE_ROWS
            while True:
                hits = nearest(rows, query[np.newaxis], k=size)
                found = _of_batch(hits, batch, number, bound=one.bound)
                # A batch may repeat one sentence many times: ask for more until enough are different.
                if one.add(found) >= one.k or len(found) < size or size >= len(rows):
                    break
                size *= 4
        num_done += len(rows)
        progress("searching", num_done, None)


def _of_batch(hits: Hits, batch: VectorBatch, number: int, *, bound: float) -> list[_Found]:
    """Return the rows of a batch that a search for one query has found, up to a distance."""
    is_code = hits.scores.dtype == np.int64
    distances = hits.scores[0] if is_code else -hits.scores[0]
    rows = hits.rows[0][distances <= bound].tolist()
    texts = batch.texts
    names = (
        [_place(batch.file, batch.first_row + row) for row in rows] if texts is None else [texts[row] for row in rows]
    )
    return [
        _Found(score, (number, row), name) for score, row, name in zip(distances.tolist(), rows, names, strict=False)
    ]


def _search(index: Any, vectors: _Vectors, queries: np.ndarray, lists: Sequence[_Nearest]) -> None:
    """Search an index for all queries [queries, width], and read the texts of what is found."""
    starts = np.cumsum([0, *(file.num_rows for file in vectors.files)])
    for query, one in zip(queries, lists, strict=True):
        size = one.k + _SPARE_ROWS
        while True:
            (scores,), (rows,) = index.search(query[np.newaxis], min(size, index.ntotal))
            scores, rows = scores[rows >= 0], rows[rows >= 0]
            places = np.searchsorted(starts, rows, side="right") - 1
            names = _names(vectors, [vectors.files[place].name for place in places], rows - starts[places])
            distances = (scores if vectors.is_code else -scores).tolist()
            found = [_Found(*row) for row in zip(distances, ((0, row) for row in rows.tolist()), names, strict=True)]
            if one.add(found) >= one.k or size >= index.ntotal or len(rows) < size:
                break
            size *= 4


def _names(vectors: _Vectors, files: Sequence[str], rows: np.ndarray) -> list[str]:
    """Return the sentences of rows of files, or what they are called if there are no texts."""
    if not vectors.format.has_text:
        return [_place(file, int(row)) for file, row in zip(files, rows, strict=True)]
    names = [""] * len(files)
    for file in dict.fromkeys(files):
        chosen = [at for at, one in enumerate(files) if one == file]
        for at, text in zip(chosen, vectors.folder.texts(file, [int(rows[at]) for at in chosen]), strict=True):
            names[at] = text
    return names


def _place(file: str, row: int) -> str:
    return f"{file}:{row + 1}"


def _check_model(member: Member, vectors: _Vectors) -> None:
    if member.key != vectors.format.model_key:
        name = vectors.format.model
        raise ArtifactError(
            f"{vectors.folder.name}: holds vectors of the model {name}, not of {member.path}; name that model"
        )


def _num_cells(num_rows: int) -> int:
    """Return the number of cells that FAISS recommends, four times the square root.

    Raises:
        ConfigError: If there are too few rows.
    """
    if num_rows < MIN_IVF_ROWS:
        raise ConfigError(f"ivf: needs at least {MIN_IVF_ROWS:,} vectors; given {num_rows:,}; leave it out")
    return min(int(4 * math.sqrt(num_rows)), num_rows // _LEAST_PER_CELL)


def _new_index(faiss: Any, vectors: _Vectors, num_cells: int) -> Any:
    """Return an empty index; one with cells is trained on rows from everywhere."""
    dim = vectors.format.dim
    if vectors.is_code:
        num_bits = 8 * -(-dim // 8)
        flat = faiss.IndexBinaryFlat(num_bits)
        index = faiss.IndexBinaryIVF(flat, num_bits, num_cells) if num_cells else flat
    else:
        flat = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFFlat(flat, dim, num_cells, faiss.METRIC_INNER_PRODUCT) if num_cells else flat
    if num_cells:
        step = max(1, vectors.num_rows // (_TRAINED_PER_CELL * num_cells))
        batches = vectors.folder.batches(with_text=False)
        index.cp.niter = _NUM_ROUNDS
        index.train(np.concatenate([vectors.comparable(batch)[::step].copy() for batch in batches]))
        index.nprobe = min(num_cells, _NUM_PROBED)
    return index


def _open_index(path: Path, vectors: _Vectors) -> Any:
    """Return the index of a folder.

    Raises:
        ConfigError: If FAISS is not installed.
        ArtifactError: If it is missing or damaged, or of other vectors.
    """
    faiss = load_faiss("index")
    about = read_json(path.with_name(f"{path.name}.json"))
    if not isinstance(about, dict) or about.get("kind") != _KIND or about.get("version") != _FORMAT_VERSION:
        raise ArtifactError(f"{path}: not an index of this version; run 'raysent index' again")
    again = f"run 'raysent index {vectors.folder.name} -o {path}'"
    if about.get("key") != vectors.key:
        raise ArtifactError(f"{path}: is of other vectors than {vectors.folder.name} has now; {again}")
    # FAISS itself finds no damage but in its headers.
    if not path.is_file() or file_sha256(path) != about.get("sha256"):
        raise ArtifactError(f"{path}: missing or damaged: must have the SHA-256 that is in {path.name}.json; {again}")
    try:
        return (faiss.read_index_binary if vectors.is_code else faiss.read_index)(str(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-100:]
        raise ArtifactError(f"{path}: cannot be read by this version of FAISS ({reason}); {again}") from None


__all__ = ["FaissIndex", "build_index", "search_folder"]
