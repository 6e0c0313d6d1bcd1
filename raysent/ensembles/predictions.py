"""Members' log-probabilities, read a block of rows at a time. In: arrays or `.npy` files. Out: float64 blocks.

What is held at once is one block of all members, or all rows of one member: never members x rows x classes. A file
is mapped anew for every block, so that the pages of those before go back to the system.

What is known of rows: their classes, and of scored pairs their scores; and how answers are judged by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from raysent.errors import ArtifactError, DataError
from raysent.evaluation.probes.results import pearson, predicted_scores
from raysent.evaluation.tasks import NO_SCORES

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


@dataclass(frozen=True, eq=False)
class Truth:
    """Rows' classes, and where rows are pairs that people scored, the scores.

    Answers to rows with scores are judged by Pearson's correlation of the mean mark, sum over k of k p(k), with them;
    answers to all others by the share of right rows. NLL is of the classes in both cases.

    Attributes:
        labels: Classes from 0, int64 [rows]; of scored pairs the nearest mark, counted from 0.
        scores: float64 [rows], or empty.
    """

    labels: Int64
    scores: Float64 = field(default_factory=lambda: NO_SCORES)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    @property
    def is_scored(self) -> bool:
        """Return whether a correlation judges, and not a share of rows."""
        return len(self.scores) > 0

    def take(self, rows: np.ndarray | slice) -> Self:
        """Return what is known of some of the rows, given by number, as flags [rows] or as a slice."""
        return type(self)(self.labels[rows], self.scores[rows] if self.is_scored else self.scores)

    def values(self, log_probabilities: np.ndarray) -> Float64:
        """Return what a score is made of, float64 [rows]: 1 for a right row and 0 for a wrong one, or the mean mark."""
        if self.is_scored:
            return predicted_scores(log_probabilities)
        right: Float64 = (log_probabilities.argmax(axis=1) == self.labels).astype(np.float64)
        return right

    def score_of(self, values: Float64) -> float:
        """Return the score of answers by what it is made of [rows]: at most 1."""
        return pearson(values, self.scores) if self.is_scored else float(values.mean())

    def score(self, log_probabilities: np.ndarray) -> float:
        """Return the score of answers [rows, classes]: at most 1."""
        return self.score_of(self.values(log_probabilities))

    def member_scores(self, answers: Answers) -> Float64:
        """Return each member's score, float64 [members]; a negative correlation counts as 0."""
        values = np.empty(answers.shape[:2])
        for places, block in answers.blocks():
            part = self.take(places)
            values[:, places] = [part.values(member) for member in block]
        return np.array([max(0.0, self.score_of(of_member)) for of_member in values])


def as_truth(labels: Truth | npt.ArrayLike, answers: Answers) -> Truth:
    """Return rows' classes [rows] as `Truth`, checked against what is answered.

    Raises:
        DataError: If they are not one per row, or not among the classes.
    """
    truth = labels if isinstance(labels, Truth) else Truth(np.asarray(labels, dtype=np.int64))
    _, rows, classes = answers.shape
    if truth.labels.shape != (rows,) or len(truth.scores) not in (0, rows):
        raise DataError(f"labels: must be one per row; given {len(truth.labels)} for {answers.shape}")
    if truth.labels.min() < 0 or truth.labels.max() >= classes:
        raise DataError(f"labels: must be from 0 to {classes - 1}; given {truth.labels.min()} to {truth.labels.max()}")
    return truth
