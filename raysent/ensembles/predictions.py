"""Members' log-probabilities of the same rows.

`MemberPredictions` reads arrays or `.npy` files, [members, rows, classes], one block of rows at a time in float64. It
holds one block of all members, or all rows of one member, and never all members x rows x classes. Every block maps its
file again, so that the system can drop the pages of earlier blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from raysent.errors import ArtifactError, DataError
from raysent.evaluation.targets import Float64, Int64, Targets

# One member's log-probabilities [rows, classes], or the .npy file that holds them.
_Source = np.ndarray | Path
# Bytes of one block of all members in float64.
BLOCK_BYTES = 32 * 2**20


class MemberPredictions:
    """Log-probabilities of every member for the same rows, [members, rows, classes]; -inf is a probability of zero."""

    def __init__(self, members: Sequence[_Source] | np.ndarray) -> None:
        """Check every value once.

        Args:
            members: One array or `.npy` file [rows, classes] per member, or one array of all members.

        Raises:
            DataError: If there is no member, row or class, shapes differ, or a value is NaN or +inf.
            ArtifactError: If a file is missing or holds no array.
        """
        self._sources: list[_Source] = list(members)
        # The rows of the sources that these predictions are of; None for all, in their order.
        self._rows: Int64 | None = None
        # The one block, where all rows fit into one.
        self._only_block: Float64 | None = None
        self._prior: Float64 | None = None
        shapes = [_opened(source).shape for source in self._sources]
        distinct = sorted(set(shapes))
        if len(distinct) > 1:
            raise DataError(
                f"log_probabilities: must be [members, rows, classes], none of them 0; given {distinct}"
            )
        if not distinct or len(distinct[0]) != 2 or 0 in distinct[0]:
            shape_of_all = (len(shapes), *distinct)
            raise DataError(
                f"log_probabilities: must be [members, rows, classes], none of them 0; given {shape_of_all}"
            )
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

    @property
    def prior(self) -> Float64:
        """What each member is worth elsewhere, float64 [members] with sum 1; equal where nothing is known."""
        if self._prior is not None:
            return self._prior
        num_members = len(self._sources)
        return np.full(num_members, 1 / num_members)

    def with_prior(self, prior: npt.ArrayLike) -> Self:
        """Return the same predictions with what each member is worth elsewhere.

        Args:
            prior: Numbers of at least 0, [members], not all 0; they are divided by their sum.

        Raises:
            DataError: If they are something else.
        """
        worth = np.asarray(prior, dtype=np.float64)
        has_shape = worth.shape == (len(self._sources),)
        if not has_shape or not (np.isfinite(worth) & (worth >= 0)).all() or not worth.any():
            raise DataError(
                f"prior: must be {len(self._sources)} numbers of at least 0, not all of them 0; given {worth.tolist()}"
            )
        predictions = self._with(self._sources, self._rows)
        predictions._prior = worth / worth.sum()
        return predictions

    def take(self, rows: npt.ArrayLike) -> Self:
        """Return the same members for some of the rows, given as indices or as a mask [rows]; reads nothing yet."""
        indices = np.arange(self._num_rows)[np.asarray(rows)]
        if self._rows is not None:
            indices = self._rows[indices]
        return self._with(self._sources, indices)

    def select(self, members: Sequence[int]) -> Self:
        """Return some of the members for the same rows; reads nothing yet."""
        predictions = self._with([self._sources[member] for member in members], self._rows)
        if self._prior is not None:
            worth = self._prior[list(members)]
            predictions._prior = None
            if worth.any():
                predictions._prior = worth / worth.sum()
        return predictions

    def blocks(self) -> Iterator[tuple[slice, Float64]]:
        """Yield consecutive rows and all members' log-probabilities for them, float64 [members, block, classes].

        Do not change a block: one that holds all rows is cached.
        """
        size = max(1, BLOCK_BYTES // (8 * len(self._sources) * self._num_classes))
        if self._only_block is not None:
            yield slice(0, self._num_rows), self._only_block
            return
        opened = [_opened(source) for source in self._sources]
        for start in range(0, self._num_rows, size):
            rows = slice(start, min(start + size, self._num_rows))
            block = np.stack([self._read(array, rows) for array in opened])
            if size >= self._num_rows:
                self._only_block = block
            yield rows, block

    def members(self) -> Iterator[Float64]:
        """Yield each member's log-probabilities in turn, float64 [rows, classes]."""
        for source in self._sources:
            yield self._read(_opened(source), slice(0, self._num_rows))

    def of_labels(self, labels: np.ndarray) -> Float64:
        """Return the log-probability that each member gives the right class, float64 [members, rows]."""
        label_logs = np.empty(self.shape[:2])
        for rows, block in self.blocks():
            label_logs[:, rows] = block[:, np.arange(block.shape[1]), labels[rows]]
        return label_logs

    def member_scores(self, targets: Targets) -> Float64:
        """Return each member's score, float64 [members]; a negative correlation counts as 0."""
        member_values = np.empty(self.shape[:2])
        for rows, block in self.blocks():
            part = targets.take(rows)
            member_values[:, rows] = [part.values(of_member) for of_member in block]
        scores = [targets.score_of(of_member) for of_member in member_values]
        return np.array([max(0.0, score) for score in scores])

    def _with(self, sources: list[_Source], rows: Int64 | None) -> Self:
        """Return predictions of other sources or rows, whose values were checked before."""
        predictions = object.__new__(type(self))
        predictions._sources = sources
        predictions._rows = rows
        predictions._only_block = None
        predictions._num_rows = self._num_rows
        if rows is not None:
            predictions._num_rows = len(rows)
        predictions._num_classes = self._num_classes
        predictions._prior = self._prior
        return predictions

    def _read(self, opened: np.ndarray, rows: slice) -> Float64:
        """Return some of the rows of one member, float64 [rows, classes]."""
        source_rows: slice | Int64 = rows
        if self._rows is not None:
            source_rows = self._rows[rows]
        log_probabilities: Float64 = opened[source_rows].astype(np.float64)
        return log_probabilities


PredictionsLike = MemberPredictions | Sequence[_Source] | np.ndarray


def as_predictions(members: PredictionsLike) -> MemberPredictions:
    """Return members' log-probabilities as checked `MemberPredictions`."""
    if isinstance(members, MemberPredictions):
        return members
    return MemberPredictions(members)


def _opened(source: _Source) -> np.ndarray:
    """Return the array of a source; a file is mapped into memory, and read where it is used."""
    if not isinstance(source, Path):
        return np.asarray(source)
    try:
        mapped: np.ndarray = np.load(source, mmap_mode="r")
    except (EOFError, OSError, ValueError) as error:
        raise ArtifactError(
            f"{source}: must be an array of log-probabilities (.npy); {error}; evaluate again"
        ) from None
    return mapped


def as_targets(labels: Targets | npt.ArrayLike, predictions: MemberPredictions) -> Targets:
    """Return classes [rows] as `Targets`, checked against the shape of the predictions.

    Raises:
        DataError: If there is not one class per row, or a class is out of range.
    """
    if isinstance(labels, Targets):
        targets = labels
    else:
        targets = Targets(np.asarray(labels, dtype=np.int64))
    _, num_rows, num_classes = predictions.shape
    if targets.labels.shape != (num_rows,) or len(targets.scores) not in (0, num_rows):
        raise DataError(
            f"labels: must be one per row; given {len(targets.labels)} for {predictions.shape}"
        )
    lowest = targets.labels.min()
    highest = targets.labels.max()
    if lowest < 0 or highest >= num_classes:
        raise DataError(f"labels: must be from 0 to {num_classes - 1}; given {lowest} to {highest}")
    return targets
