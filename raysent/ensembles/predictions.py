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
Source = np.ndarray | Path
# Bytes of one block of all members in float64.
BLOCK_BYTES = 32 * 2**20


class MemberPredictions:
    """Log-probabilities of every member for the same rows, [members, rows, classes]; -inf is a probability of zero."""

    def __init__(self, members: Sequence[Source] | np.ndarray) -> None:
        """Check every value once.

        Args:
            members: One array or `.npy` file [rows, classes] per member, or one array of all members.

        Raises:
            DataError: If there is no member, row or class, shapes differ, or a value is NaN or +inf.
            ArtifactError: If a file is missing or holds no array.
        """
        self._sources: list[Source] = list(members)
        self._rows: Int64 | None = None
        self._whole: Float64 | None = None
        self._prior: Float64 | None = None
        shapes = [opened.shape for opened in map(_opened, self._sources)]
        if not shapes or any(
            len(shape) != 2 or 0 in shape or shape != shapes[0] for shape in shapes
        ):
            given = sorted(set(shapes)) if len(set(shapes)) > 1 else (len(shapes), *shapes[:1])
            raise DataError(
                f"log_probabilities: must be [members, rows, classes], none of them 0; given {given}"
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
        members = len(self._sources)
        return np.full(members, 1 / members) if self._prior is None else self._prior

    def with_prior(self, prior: npt.ArrayLike) -> Self:
        """Return the same predictions with what each member is worth elsewhere.

        Args:
            prior: Numbers of at least 0, [members], not all 0; they are divided by their sum.

        Raises:
            DataError: If they are something else.
        """
        worth = np.asarray(prior, dtype=np.float64)
        is_whole = worth.shape == (len(self._sources),)
        if not is_whole or not (np.isfinite(worth) & (worth >= 0)).all() or not worth.any():
            raise DataError(
                f"prior: must be {len(self._sources)} numbers of at least 0, not all of them 0; given {worth.tolist()}"
            )
        other = self._with(self._sources, self._rows)
        other._prior = worth / worth.sum()
        return other

    def take(self, rows: npt.ArrayLike) -> Self:
        """Return the same members for some of the rows, given as indices or as a mask [rows]; reads nothing yet."""
        chosen = np.arange(self._num_rows)[np.asarray(rows)]
        return self._with(self._sources, chosen if self._rows is None else self._rows[chosen])

    def select(self, members: Sequence[int]) -> Self:
        """Return some of the members for the same rows; reads nothing yet."""
        other = self._with([self._sources[member] for member in members], self._rows)
        if self._prior is not None:
            worth = self._prior[list(members)]
            other._prior = worth / worth.sum() if worth.any() else None
        return other

    def blocks(self) -> Iterator[tuple[slice, Float64]]:
        """Yield consecutive rows and all members' log-probabilities for them, float64 [members, block, classes].

        Do not change a block: one that holds all rows is cached.
        """
        size = max(1, BLOCK_BYTES // (8 * len(self._sources) * self._num_classes))
        if self._whole is not None:
            yield slice(0, self._num_rows), self._whole
            return
        opened = [_opened(source) for source in self._sources]
        for start in range(0, self._num_rows, size):
            rows = slice(start, min(start + size, self._num_rows))
            block = np.stack([self._read(array, rows) for array in opened])
            if size >= self._num_rows:
                self._whole = block
            yield rows, block

    def members(self) -> Iterator[Float64]:
        """Yield each member's log-probabilities in turn, float64 [rows, classes]."""
        for source in self._sources:
            yield self._read(_opened(source), slice(0, self._num_rows))

    def of_labels(self, labels: np.ndarray) -> Float64:
        """Return the log-probability that each member gives the right class, float64 [members, rows]."""
        found = np.empty(self.shape[:2])
        for rows, block in self.blocks():
            found[:, rows] = block[:, np.arange(block.shape[1]), labels[rows]]
        return found

    def member_scores(self, targets: Targets) -> Float64:
        """Return each member's score, float64 [members]; a negative correlation counts as 0."""
        values = np.empty(self.shape[:2])
        for rows, block in self.blocks():
            part = targets.take(rows)
            values[:, rows] = [part.values(member) for member in block]
        return np.array([max(0.0, targets.score_of(of_member)) for of_member in values])

    def _with(self, sources: list[Source], rows: Int64 | None) -> Self:
        other = object.__new__(type(self))
        other._sources, other._rows, other._whole = sources, rows, None
        other._num_rows = self._num_rows if rows is None else len(rows)
        other._num_classes = self._num_classes
        other._prior = self._prior
        return other

    def _read(self, opened: np.ndarray, rows: slice) -> Float64:
        read: Float64 = opened[rows if self._rows is None else self._rows[rows]].astype(np.float64)
        return read


PredictionsLike = MemberPredictions | Sequence[Source] | np.ndarray


def as_predictions(members: PredictionsLike) -> MemberPredictions:
    """Return members' log-probabilities as checked `MemberPredictions`."""
    return members if isinstance(members, MemberPredictions) else MemberPredictions(members)


def _opened(source: Source) -> np.ndarray:
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
    targets = labels if isinstance(labels, Targets) else Targets(np.asarray(labels, dtype=np.int64))
    _, rows, classes = predictions.shape
    if targets.labels.shape != (rows,) or len(targets.scores) not in (0, rows):
        raise DataError(
            f"labels: must be one per row; given {len(targets.labels)} for {predictions.shape}"
        )
    if targets.labels.min() < 0 or targets.labels.max() >= classes:
        raise DataError(
            f"labels: must be from 0 to {classes - 1}; given {targets.labels.min()} to {targets.labels.max()}"
        )
    return targets
