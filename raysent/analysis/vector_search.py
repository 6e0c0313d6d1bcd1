"""Nearest sentences in a folder of vectors that `raysent encode-corpus` wrote, with or without an index of FAISS.

    folder of Parquet files -> `index_vectors` -> FILE, an index of FAISS, and FILE.json, which says of which files
    queries -> `FolderVectors.search`, which reads all vectors, or with FILE only the texts of what is found

Without an index the search is exact, and memory holds one batch of rows. An index of FAISS is held in memory. It
compares unit vectors by their inner product, so by cosine, and codes by Hamming distance. Rows of an index are in the
order of the files' names and of rows. Other programs read it by `faiss.read_index` or `faiss.read_index_binary`.

Source: FAISS: Douze et al., 2024, "The Faiss library".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from raysent.analysis.neighbours import Found, Nearest, Searched, index_rows
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.members import Member
from raysent.evaluation.nearest import Measure, load_faiss, nearest_codes, nearest_vectors
from raysent.models import load
from raysent.models.codes import pack_bits
from raysent.models.sentence_encoder import normalize_rows
from raysent.models.vector_folder import VectorBatch, VectorFile, VectorFolder, VectorFormat
from raysent.parallel import Progress
from raysent.progress import ProgressLines
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


class FolderVectors(Searched):
    """The vectors of a folder, among which neighbours are searched, with an index of FAISS or without.

    Attributes:
        folder: The folder.
        format: What all vectors have in common.
        files: The files, in the order of rows.
    """

    def __init__(
        self, folder: str | Path, *, index: str | Path | None = None, progress: Progress = lambda *_: None
    ) -> None:
        """Read what is in a folder, also in ``s3://``; without an index a search compares all its vectors."""
        self.folder = VectorFolder(folder)
        self.format: VectorFormat = self.folder.format()
        self.files: tuple[VectorFile, ...] = tuple(self.folder.files())
        self.name, self.num_sentences = self.folder.name, sum(file.num_rows for file in self.files)
        # What an index is made of: the format, and every file's rows and version of its text.
        self.key = content_key(self.format.key, [[file.name, file.num_rows, file.source] for file in self.files])
        self._index_file, self._progress = None if index is None else Path(index), progress

    @property
    def is_code(self) -> bool:
        """Whether rows are compared by Hamming distance."""
        return self.format.measure == "hamming"

    @cached_property
    def index(self) -> Any:
        """The index, read from its file."""
        return _open_index(self._index_file, self) if self._index_file is not None else None

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

    def search(self, member: Member, queries: list[str], lists: Sequence[Nearest]) -> Measure:
        """Search the index, or compare all rows; in a folder without texts, a sentence is its file and row, from 1.

        Raises:
            ArtifactError: If the vectors are of another model, or the index is of other vectors.
        """
        if member.key != self.format.model_key:
            raise ArtifactError(
                f"{self.name}: holds vectors of the model {self.format.model}, not of {member.path}; name that model"
            )
        index = self.index  # a wrong file is an error before the model is loaded
        asked = list(zip(index_rows(load(member.path), queries, measure=self.format.measure), lists, strict=True))
        if index is not None:
            for query, one in asked:
                one.search(partial(self._in_index, query), index.ntotal)
            return self.format.measure
        num_done = 0
        for number, batch in enumerate(self.folder.batches()):
            rows = self.comparable(batch)
            for query, one in asked:
                one.search(partial(self._in_batch, batch, number, rows, query, one), len(rows))
            num_done += len(rows)
            self._progress("searching", num_done, None)
        return self.format.measure

    def _in_batch(
        self, batch: VectorBatch, number: int, rows: np.ndarray, query: np.ndarray, one: Nearest, size: int
    ) -> list[Found]:
        """Return the nearest rows of a batch that may be among the nearest of all, with their texts."""
        hits = (nearest_codes if self.is_code else nearest_vectors)(rows, query[np.newaxis], k=size)
        near = hits.distances[0] <= one.bound
        return [
            Found(distance, (number, row), _text(batch, row))
            for distance, row in zip(hits.distances[0][near].tolist(), hits.rows[0][near].tolist(), strict=True)
        ]

    def _in_index(self, query: np.ndarray, size: int) -> list[Found]:
        """Return the nearest rows of the index, with their texts."""
        (scores,), (rows,) = self.index.search(query[np.newaxis], size)
        scores, rows = scores[rows >= 0], rows[rows >= 0]
        starts = np.cumsum([0, *(file.num_rows for file in self.files)])
        places = np.searchsorted(starts, rows, side="right") - 1
        names = self._names([self.files[place].name for place in places], rows - starts[places])
        distances = (scores if self.is_code else -scores).tolist()
        return [Found(*row) for row in zip(distances, ((0, row) for row in rows.tolist()), names, strict=True)]

    def _names(self, files: Sequence[str], rows: np.ndarray) -> list[str]:
        """Return the sentences of rows of files, or what they are called if there are no texts."""
        if not self.format.has_text:
            return [_place(file, int(row)) for file, row in zip(files, rows, strict=True)]
        names = [""] * len(files)
        for file in dict.fromkeys(files):
            chosen = [at for at, one in enumerate(files) if one == file]
            for at, text in zip(chosen, self.folder.texts(file, [int(rows[at]) for at in chosen]), strict=True):
                names[at] = text
        return names


def _text(batch: VectorBatch, row: int) -> str:
    return _place(batch.file, batch.first_row + row) if batch.texts is None else batch.texts[row]


def _place(file: str, row: int) -> str:
    return f"{file}:{row + 1}"


def index_vectors(folder: str | Path, output: str | Path, *, ivf: bool = False, progress: bool = True) -> FaissIndex:
    """Write an index of FAISS of the vectors in a folder that `encode_corpus` wrote.

    Unit vectors are compared by inner product, so by cosine (`IndexFlatIP`), and codes by Hamming distance
    (`IndexBinaryFlat`). Rows are in the order of the files' names, then of rows. ``OUTPUT.json`` records what the index
    is made of. FAISS holds the whole index in memory.

    Args:
        folder: A folder of vectors, also in ``s3://``.
        output: The file to write.
        ivf: Whether to divide the rows into cells, 4 times the square root of their number, of which a search reads 32
            (`IndexIVFFlat`, `IndexBinaryIVF`): fast, but it may miss neighbours. Needs 10,000 rows.
        progress: Whether to show progress on standard error.

    Raises:
        ConfigError: If faiss-cpu is not installed, or there are too few rows for cells.
        DataError: If the folder has no rows, or a vector is not finite.
        ArtifactError: If the folder has no vectors, or a file is damaged or cannot be written.
    """
    faiss = load_faiss("index")
    vectors, path = FolderVectors(folder), Path(output)
    num_rows = vectors.num_sentences
    if not num_rows:
        raise DataError(f"{vectors.name}: must hold at least one vector; given none")
    num_cells = _num_cells(num_rows) if ivf else 0
    index = _new_index(faiss, vectors, num_cells)
    with ProgressLines(is_quiet=not progress) as bar:
        for batch in vectors.folder.batches(with_text=False):
            index.add(vectors.comparable(batch))
            bar("indexing", index.ntotal, num_rows)
    about = path.with_name(f"{path.name}.json")
    remove(about)  # so that it never describes another index
    with atomic_write(path) as temporary:
        (faiss.write_index_binary if vectors.is_code else faiss.write_index)(index, str(temporary))
        sha256 = file_sha256(temporary)
    values = {
        "kind": _KIND,
        "version": _FORMAT_VERSION,
        "folder": vectors.name,
        "model": vectors.format.model,
        "measure": vectors.format.measure,
        "num_rows": num_rows,
        "num_cells": num_cells,
        "key": vectors.key,
        "sha256": sha256,
    }
    write_json(about, values)
    return FaissIndex(path, num_rows, vectors.format.measure, num_cells)


def _num_cells(num_rows: int) -> int:
    """Return the number of cells that FAISS recommends, four times the square root.

    Raises:
        ConfigError: If there are too few rows.
    """
    if num_rows < MIN_IVF_ROWS:
        raise ConfigError(f"ivf: needs at least {MIN_IVF_ROWS:,} vectors; given {num_rows:,}; leave it out")
    return min(int(4 * math.sqrt(num_rows)), num_rows // _LEAST_PER_CELL)


def _new_index(faiss: Any, vectors: FolderVectors, num_cells: int) -> Any:
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
        step = max(1, vectors.num_sentences // (_TRAINED_PER_CELL * num_cells))
        batches = vectors.folder.batches(with_text=False)
        index.cp.niter = _NUM_ROUNDS
        index.train(np.concatenate([vectors.comparable(batch)[::step].copy() for batch in batches]))
        index.nprobe = min(num_cells, _NUM_PROBED)
    return index


def _open_index(path: Path, vectors: FolderVectors) -> Any:
    """Return the index of a folder.

    Raises:
        ConfigError: If FAISS is not installed.
        ArtifactError: If it is missing or damaged, or of other vectors.
    """
    faiss = load_faiss("index")
    about = read_json(path.with_name(f"{path.name}.json"))
    if not isinstance(about, dict) or about.get("kind") != _KIND or about.get("version") != _FORMAT_VERSION:
        raise ArtifactError(f"{path}: not an index of this version; run 'raysent index' again")
    again = f"run 'raysent index {vectors.name} -o {path}'"
    if about.get("key") != vectors.key:
        raise ArtifactError(f"{path}: is of other vectors than {vectors.name} has now; {again}")
    # FAISS itself finds no damage but in its headers.
    if not path.is_file() or file_sha256(path) != about.get("sha256"):
        raise ArtifactError(f"{path}: missing or damaged: must have the SHA-256 that is in {path.name}.json; {again}")
    try:
        return (faiss.read_index_binary if vectors.is_code else faiss.read_index)(str(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-100:]
        raise ArtifactError(f"{path}: cannot be read by this version of FAISS ({reason}); {again}") from None


__all__ = ["FaissIndex", "FolderVectors", "index_vectors"]
