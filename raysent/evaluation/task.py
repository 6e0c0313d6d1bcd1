"""What a task is: a data set that models are evaluated on, and its rows. Names of tasks are resolved in `tasks`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from raysent.data.labels import LabelKind
from raysent.errors import DataError
from raysent.storage import content_key

Kind = Literal["sentence", "pair", "likeness", "order"]
Split = Literal["nested", "train-test", "train-validation-test"]
# How a model is scored on a task: by a probe, in percent of correct rows or by the correlation of predicted with true
# scores; or without a probe, by the correlation of the similarity of its own vectors with true scores, or by the places
# of relevant passages among all by similarity to a query.
Scoring = Literal["accuracy", "correlation", "similarity", "retrieval"]
# What counts on a task with classes: the fraction of correct rows, or the mean over classes of their F1.
Metric = Literal["accuracy", "macro_f1", "information"]

PROBED: frozenset[Scoring] = frozenset({"accuracy", "correlation"})
SCORINGS: frozenset[Scoring] = PROBED | {"similarity", "retrieval"}
# Those with a validation score, by which trials may be ranked.
VALIDATED: frozenset[Scoring] = PROBED | {"retrieval"}

NO_ROWS = np.empty(0, dtype=np.int64)
NO_SCORES = np.empty(0, dtype=np.float64)


@dataclass(frozen=True)
class TaskData:
    """The rows of a task with a probe, in a fixed order.

    Attributes:
        task: The task's name.
        kind: One sentence per row; a pair; a pair whose own likeness counts too; or a pair whose order matters.
        split: "nested" has no given split and is scored by nested cross-validation; "train-test" chooses by
            cross-validation within train; "train-validation-test" uses the three splits as given.
        label_names: The names of the classes [classes].
        label_kind: The type of the labels, which answers have.
        sentences: One list of sentences [rows] per column: one column, or two for pairs.
        labels: The class of each row, int64 [rows]; for scored pairs the nearest rating level.
        train: Rows of the given train split, int64; empty where a protocol draws folds from all rows.
        validation: Rows of the given validation split; empty if there is none.
        test: Rows of the given test split; empty if there is none.
        scores: For scored pairs, the human rating of their similarity, float64 [rows]; else empty.
        scale: The scores that the first and the last rating level stand for, where ratings were mapped to the levels.
        folds: Where the task gives them, the fold of each row from 0, int64 [rows], for cross-validation; else empty,
            and the protocol draws them.
        units: Which rows belong together, int64 [rows], see `units`: no division parts them; empty where each row is
            one of its own, as of published protocols.
        metric: What counts, for tasks with classes.
        is_drawn: Whether `division.divided` drew the test rows.
        has_drawn_validation: Whether the validation rows were drawn one by one of those that may train, without copies
            among them, so that what did not learn from the others may be fitted to both.
        has_drawn_test: Whether the test rows of a user's table were drawn of its rows, and not named by it.
        part_of: Of rows that a run divided, the hash of all rows of the task.
    """

    task: str
    kind: Kind
    split: Split
    label_names: tuple[str, ...]
    sentences: tuple[list[str], ...]
    labels: np.ndarray
    train: np.ndarray = field(default_factory=lambda: NO_ROWS)
    validation: np.ndarray = field(default_factory=lambda: NO_ROWS)
    test: np.ndarray = field(default_factory=lambda: NO_ROWS)
    scores: np.ndarray = field(default_factory=lambda: NO_SCORES)
    scale: tuple[float, float] | None = None
    folds: np.ndarray = field(default_factory=lambda: NO_ROWS)
    units: np.ndarray = field(default_factory=lambda: NO_ROWS)
    metric: Metric = "accuracy"
    is_drawn: bool = False
    has_drawn_validation: bool = False
    has_drawn_test: bool = False
    part_of: str = ""
    label_kind: LabelKind = "text"

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    def select(self, rows: np.ndarray) -> TaskData:
        """Return some of the rows, int64 [selected], without splits."""
        return replace(
            self,
            sentences=tuple([column[row] for row in rows] for column in self.sentences),
            labels=self.labels[rows],
            scores=_selected(self.scores, rows),
            folds=_selected(self.folds, rows),
            units=_selected(self.units, rows),
            train=NO_ROWS,
            validation=NO_ROWS,
            test=NO_ROWS,
        )

    def without_test(self) -> TaskData:
        """Return the rows that do not test; those that train and validate are indices among them."""
        not_test = np.setdiff1d(np.arange(len(self)), self.test)
        return replace(
            self.select(not_test),
            train=np.searchsorted(not_test, self.train),
            validation=np.searchsorted(not_test, self.validation),
        )

    def cross_validated(self) -> TaskData:
        """Return the rows with those that validate among those that train."""
        return replace(
            self,
            split="train-test",
            train=np.union1d(self.train, self.validation),
            validation=NO_ROWS,
        )

    def is_any_of(self, hashes: Collection[str]) -> bool:
        """Return whether one of these is the `row_hash` of all rows, or of those that do not test."""
        return self.row_hash in hashes or (bool(hashes) and self.without_test().row_hash in hashes)

    @property
    def is_scored(self) -> bool:
        """Whether rows have scores, predicted and evaluated by correlation, and not only classes."""
        return len(self.scores) > 0

    @cached_property
    def row_hash(self) -> str:
        """A hash of the rows: sentences, labels, order and splits."""
        # What a task does not have is left out, so that hashes of earlier versions stay.
        optional: list[list[object]] = []
        if self.is_scored:
            optional.append(self.scores.tolist())
        if self.scale:
            optional.append(list(self.scale))
        if len(self.folds):
            optional.append(self.folds.tolist())
        if self.metric != "accuracy":
            optional.append([self.metric])
        splits = [rows.tolist() for rows in (self.train, self.validation, self.test)]
        return content_key(
            self.kind,
            self.split,
            self.label_names,
            self.sentences,
            self.labels.tolist(),
            *optional,
            splits,
        )


def _selected(by_row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return some of what a task has for each row; a task without it stays without."""
    if not len(by_row):
        return by_row
    selected: np.ndarray = by_row[rows]
    return selected


@dataclass(frozen=True)
class ScoredSet:
    """A named set of pairs with scores.

    Attributes:
        name: The name of the set.
        first: The first sentences [rows].
        second: The second sentences [rows].
        scores: The human ratings of their similarity, float64 [rows].
    """

    name: str
    first: list[str]
    second: list[str]
    scores: np.ndarray


@dataclass(frozen=True)
class SimilarityData:
    """The rows of a task without a probe: sets of scored pairs that are reported together.

    Attributes:
        task: The task's name.
        sets: The sets.
    """

    task: str
    sets: tuple[ScoredSet, ...]

    def __len__(self) -> int:
        """Return the number of pairs of all sets."""
        return sum(len(scored_set.scores) for scored_set in self.sets)

    @property
    def sentences(self) -> tuple[list[str], list[str]]:
        """The first and the second sentences of all sets, [rows] each."""
        first: list[str] = []
        second: list[str] = []
        for scored_set in self.sets:
            first += scored_set.first
            second += scored_set.second
        return first, second

    @property
    def scores(self) -> np.ndarray:
        """The human ratings of all sets, float64 [rows]."""
        return np.concatenate([scored_set.scores for scored_set in self.sets])

    @cached_property
    def row_hash(self) -> str:
        """A hash of the pairs and their scores."""
        contents = []
        for scored_set in self.sets:
            pairs = (scored_set.first, scored_set.second, scored_set.scores.tolist())
            contents.append((scored_set.name, *pairs))
        return content_key(contents)


@dataclass(frozen=True)
class RetrievalData:
    """The queries and the passages of a task of the kind `retrieval`.

    Attributes:
        task: The task's name.
        passages: The texts of the passages, all of which are candidates of every query.
        passage_ids: Their identifiers; a passage with a query's own identifier is no candidate of that query.
        queries: The texts of the queries.
        query_ids: Their identifiers.
        relevant: Of each query, the relevance of passages by their index; those above 0 are relevant.
        train: Indices of queries to train on, int64; empty if there are none.
        dev: Indices of the queries that choose.
        test: Indices of the queries that judge.
    """

    task: str
    passages: list[str]
    passage_ids: tuple[str, ...]
    queries: list[str]
    query_ids: tuple[str, ...]
    relevant: tuple[Mapping[int, float], ...]
    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray

    def __len__(self) -> int:
        """Return the number of texts to encode."""
        return len(self.passages) + len(self.dev) + len(self.test)

    @cached_property
    def row_hash(self) -> str:
        """A hash of the texts, the identifiers, what is relevant, and the parts."""
        texts = (self.passages, self.passage_ids, self.queries, self.query_ids)
        parts = [rows.tolist() for rows in (self.train, self.dev, self.test)]
        relevant = [sorted(grades.items()) for grades in self.relevant]
        return content_key(*texts, relevant, parts)


AnyData = TaskData | SimilarityData | RetrievalData


@dataclass(frozen=True)
class Remarks:
    """What a user should know of a task's rows.

    Attributes:
        notes: What was guessed, such as which column holds the text.
        warnings: What may make scores misleading, such as the same text in train and test.
        summary: What the rows are in one short line, for a plan; empty for tasks that are no table of a user.
    """

    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    summary: str = ""


@dataclass(frozen=True)
class Task(ABC):
    """A data set that models are evaluated on.

    Call order: `resolve_tasks` finds it by name and calls `check_files`; then `load` once per evaluation.

    A task made from a user's own file is an instance like any other.

    Attributes:
        name: The name that users write; case, hyphens and underscores do not matter.
        files: The files that it reads, relative to the data folder; empty if it needs no data folder.
        source: Where the data set is published.
    """

    name: str
    files: tuple[str, ...] = field(default=(), kw_only=True)
    source: str = field(default="", kw_only=True)

    @property
    @abstractmethod
    def scoring(self) -> Scoring:
        """How models are scored on it."""

    def variants(self, scorings: Collection[Scoring]) -> Sequence[Task]:
        """Return the tasks that the name stands for, of those that are scored in one of these ways."""
        if self.scoring in scorings:
            return [self]
        return []

    @property
    def spec(self) -> str:
        """What `resolve_tasks` turns into this task again, on any machine that has its files: its name."""
        return self.name

    @property
    def remarks(self) -> Remarks:
        """What a user should know of the task's rows before scores are read."""
        return Remarks()

    @property
    def unspaced_language(self) -> str | None:
        """The code of the language of its texts if that writes no blanks between words: TF-IDF of words is no use."""
        return None

    @abstractmethod
    def load(self, data_dir: Path | None = None) -> AnyData:
        """Return the rows.

        Raises:
            DataError: If a file is missing or not as published.
        """

    @property
    def summary(self) -> str:
        """How models are scored on it, and where it is published."""
        scored_by = f"{self.scoring} of a probe"
        if self.scoring == "similarity":
            scored_by = "similarity of the vectors"
        return f"{scored_by}; {self.source or 'embedded'}"

    def missing_files(self, data_dir: Path) -> list[str]:
        """Return the files that the data folder lacks."""
        return [name for name in self.files if name and not (data_dir / name).is_file()]

    def is_present(self, data_dir: Path) -> bool:
        """Return whether the data folder holds every file."""
        return not self.missing_files(data_dir)

    def check_files(self, data_dir: Path | None) -> None:
        """Check that every file exists.

        Raises:
            DataError: If one does not, or the task needs a data folder and none is given.
        """
        if not self.files:
            return
        if data_dir is None:
            raise DataError(
                f"{self.name}: needs a folder in SentEval's layout as data; given none; "
                f"it must hold {self.files[0]} ({self.source})"
            )
        for name in self.missing_files(data_dir):
            raise DataError(
                f"{data_dir / name}: no such file; {self.name} needs it, published at {self.source}"
            )


@dataclass(frozen=True)
class ProbeTask(Task):
    """A task whose labels or scores a probe predicts.

    Attributes:
        reader: Reads the rows; takes the task and the data folder (the working folder for a task without files).
        is_scored: Whether the probe predicts scores of pairs instead of classes.
        has_test_file: Whether the last file holds the test rows; a file without a name has no rows.
    """

    reader: Callable[[ProbeTask, Path], TaskData] = field(kw_only=True)
    is_scored: bool = field(default=False, kw_only=True)
    has_test_file: bool = field(default=False, kw_only=True)

    @property
    def scoring(self) -> Scoring:
        """How models are scored on it."""
        if self.is_scored:
            return "correlation"
        return "accuracy"

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Return the rows; see `Task`."""
        self.check_files(data_dir)
        return self.reader(self, data_dir or Path())


@dataclass(frozen=True)
class SimilarityTask(Task):
    """A task on which the similarity of a model's own vectors is compared with scores; nothing is trained.

    Attributes:
        reader: Reads the sets; takes the task and the data folder.
    """

    reader: Callable[[SimilarityTask, Path], Iterable[ScoredSet]] = field(kw_only=True)

    @property
    def scoring(self) -> Scoring:
        """How models are scored on it."""
        return "similarity"

    def load(self, data_dir: Path | None = None) -> SimilarityData:
        """Return the rows; see `Task`."""
        self.check_files(data_dir)
        return SimilarityData(self.name, tuple(self.reader(self, data_dir or Path())))
