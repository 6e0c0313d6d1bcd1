"""Members' log-probabilities, read a block of rows at a time. In: arrays or `.npy` files. Out: float64 blocks.

What is held at once is one block of all members, or all rows of one member: never members x rows x classes. A file
is mapped anew for every block, so that the pages of those before go back to the system.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from raysent.errors import ArtifactError, DataError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
# One member's log-probabilities [rows, classes], or the .npy file that holds them.
Source = np.ndarray | Path
# Bytes of one block of all members in float64.
BLOCK_BYTES = 32 * 2**20


class Answers:
    """What every member says about the same rows: log-probabilities [members, rows, classes].

    A sequence or an iterable of members is taken, or one array of all; -inf is a probability of nought.
    """

    def __init__(self, members: Sequence[Source] | np.ndarray) -> None:
        """Take members and check every value once.

        Raises:
            DataError: If there is no member, row or class, shapes differ, or a value is NaN or +inf.
            ArtifactError: If a file is missing or no array.
        """
        self._sources: list[Source] = list(members)
        self._rows: Int64 | None = None
        self._whole: Float64 | None = None
        shapes = [opened.shape for opened in map(_opened, self._sources)]
        if not shapes or any(len(shape) != 2 or 0 in shape or shape != shapes[0] for shape in shapes):
            given = sorted(set(shapes)) if len(set(shapes)) > 1 else (len(shapes), *shapes[:1])
            raise DataError(f"log_probabilities: must be [members, rows, classes], none of them 0; given {given}")
        self._num_rows, self._num_classes = shapes[0]
        for _, block in self.blocks():
            if np.isnan(block).any() or np.isposinf(block).any():
                raise DataError(
                    "log_probabilities: must be logarithms of probabilities; given NaN or +inf; evaluate again"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of members, rows and classes."""
        return len(self._sources), self._num_rows, self._num_classes

    def take(self, rows: npt.ArrayLike) -> Self:
        """Return the same members on some of the rows, given by number or as flags [rows]; nothing is read yet."""
        chosen = np.arange(self._num_rows)[np.asarray(rows)]
        return self._with(self._sources, chosen if self._rows is None else self._rows[chosen])

    def select(self, members: Sequence[int]) -> Self:
        """Return some of the members on the same rows."""
        return self._with([self._sources[member] for member in members], self._rows)

    def _with(self, sources: list[Source], rows: Int64 | None) -> Self:
        other = object.__new__(type(self))
        other._sources, other._rows, other._whole = sources, rows, None
        other._num_rows = self._num_rows if rows is None else len(rows)
        other._num_classes = self._num_classes
        return other

    def blocks(self) -> Iterator[tuple[slice, Float64]]:
        """Yield places of consecutive rows and what members say about them, float64 [members, block, classes].

        Blocks are not to be changed: where one holds all rows, it is kept for the next reading.
        """
        size = max(1, BLOCK_BYTES // (8 * len(self._sources) * self._num_classes))
        if size >= self._num_rows:
            if self._whole is None:
                self._whole = self._stacked(slice(0, self._num_rows))
            yield slice(0, self._num_rows), self._whole
            return
        for start in range(0, self._num_rows, size):
            places = slice(start, min(start + size, self._num_rows))
            yield places, self._stacked(places)

    def members(self) -> Iterator[Float64]:
        """Yield each member's log-probabilities in turn, float64 [rows, classes]."""
        for source in self._sources:
            yield self._read(source, slice(0, self._num_rows))

    def _stacked(self, places: slice) -> Float64:
        return np.stack([self._read(source, places) for source in self._sources])

    def _read(self, source: Source, places: slice) -> Float64:
        rows = places if self._rows is None else self._rows[places]
        read: Float64 = _opened(source)[rows].astype(np.float64)
        return read

    def of_labels(self, labels: np.ndarray) -> Float64:
        """Return the log-probability that each member gives the right class, float64 [members, rows]."""
        found = np.empty(self.shape[:2])
        for places, block in self.blocks():
            found[:, places] = block[:, np.arange(block.shape[1]), labels[places]]
        return found


def as_answers(members: Answers | Sequence[Source] | np.ndarray) -> Answers:
    """Return members' log-probabilities as `Answers`, checked if they are not yet."""
    return members if isinstance(members, Answers) else Answers(members)


def _opened(source: Source) -> np.ndarray:
    """Return an array as it is, a file mapped into memory."""
    if not isinstance(source, Path):
        return np.asarray(source)
    try:
        mapped: np.ndarray = np.load(source, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{source}: must be an array of log-probabilities (.npy); {error}; evaluate again"
        ) from None
    return mapped
