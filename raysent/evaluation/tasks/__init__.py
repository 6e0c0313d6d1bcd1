"""Tasks: the data sets that models are evaluated on. In: names and a data folder. Out: rows with labels or scores.

`TASKS` is the registry: every file in this folder, and every module that an entry point of the group ``raysent.tasks``
names, holds a table `TASKS`, name -> task. `resolve_tasks` turns what a user names into tasks; every command uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from raysent.errors import ConfigError, DataError
from raysent.registry import Registry, by_table
from raysent.storage import content_key

Kind = Literal["sentence", "pair", "order"]
Split = Literal["nested", "train-test", "train-validation-test"]
# How a model is scored on a task: by a probe, in percent of correct rows or by the correlation of predicted with true
# scores; or without a probe, by the correlation of the similarity of its own vectors with true scores.
Scoring = Literal["accuracy", "correlation", "similarity"]

PROBED: frozenset[Scoring] = frozenset({"accuracy", "correlation"})
SCORINGS: frozenset[Scoring] = PROBED | {"similarity"}

NO_ROWS = np.empty(0, dtype=np.int64)
NO_SCORES = np.empty(0, dtype=np.float64)


@dataclass(frozen=True)
class TaskData:
    """The rows of a task with a probe, in a fixed order.

    Attributes:
        task: The task's name.
        kind: One sentence per row; a pair; or a pair whose order matters.
        split: "nested" has no given split and is scored by nested cross-validation; "train-test" chooses by
            cross-validation within train; "train-validation-test" uses the three splits as given.
        label_names: The names of the classes [classes].
        sentences: One list of sentences [rows] per column: one column, or two for pairs.
        labels: The class of each row, int64 [rows]; for scored pairs the nearest rating level.
        train: Rows of the given train split, int64; empty where a protocol draws folds from all rows.
        validation: Rows of the given validation split; empty if there is none.
        test: Rows of the given test split; empty if there is none.
        scores: For scored pairs, the human rating of their similarity, float64 [rows]; else empty.
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

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    @property
    def is_scored(self) -> bool:
        """Whether rows have scores, predicted and evaluated by correlation, and not only classes."""
        return len(self.scores) > 0

    @cached_property
    def row_hash(self) -> str:
        """A hash of the rows: sentences, labels, order and splits."""
        splits = [rows.tolist() for rows in (self.train, self.validation, self.test)]
        values = [self.labels.tolist(), *([self.scores.tolist()] if self.is_scored else [])]
        return content_key(self.kind, self.split, self.label_names, self.sentences, *values, splits)


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
        return sum(len(one.scores) for one in self.sets)

    @property
    def sentences(self) -> tuple[list[str], list[str]]:
        """The first and the second sentences of all sets, [rows] each."""
        first = [sentence for one in self.sets for sentence in one.first]
        return first, [sentence for one in self.sets for sentence in one.second]

    @property
    def scores(self) -> np.ndarray:
        """The scores of all sets, float64 [rows]."""
        return np.concatenate([one.scores for one in self.sets])

    @cached_property
    def row_hash(self) -> str:
        """A hash of the pairs and their scores."""
        return content_key([(one.name, one.first, one.second, one.scores.tolist()) for one in self.sets])


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

    @abstractmethod
    def load(self, data_dir: Path | None = None) -> TaskData | SimilarityData:
        """Return the rows.

        Raises:
            DataError: If a file is missing or not as published.
        """

    @property
    def summary(self) -> str:
        """How models are scored on it, and where it is published."""
        how = "similarity of the vectors" if self.scoring == "similarity" else f"{self.scoring} of a probe"
        return f"{how}; {self.source or 'embedded'}"

    def missing_files(self, data_dir: Path) -> list[str]:
        """Return the files that the data folder lacks."""
        return [name for name in self.files if not (data_dir / name).is_file()]

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
                f"{self.name}: needs a folder in SentEval's layout; given none; name it with --data, "
                f"it must hold {self.files[0]} ({self.source})"
            )
        for name in self.missing_files(data_dir):
            raise DataError(f"{data_dir / name}: no such file; {self.name} needs it, published at {self.source}")


@dataclass(frozen=True)
class ProbeTask(Task):
    """A task whose labels or scores a probe predicts.

    Attributes:
        reader: Reads the rows; takes the task and the data folder (None for a task without files).
        is_scored: Whether the probe predicts scores of pairs instead of classes.
    """

    reader: Callable[[ProbeTask, Path | None], TaskData] = field(kw_only=True)
    is_scored: bool = field(default=False, kw_only=True)

    @property
    def scoring(self) -> Scoring:
        """How models are scored on it."""
        return "correlation" if self.is_scored else "accuracy"

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Return the rows; see `Task`."""
        self.check_files(data_dir)
        return self.reader(self, data_dir)


@dataclass(frozen=True)
class SimilarityTask(Task):
    """A task on which the similarity of a model's own vectors is compared with scores; nothing is trained.

    Attributes:
        reader: Reads the sets; takes the task and the data folder.
    """

    reader: Callable[[SimilarityTask, Path | None], Iterable[ScoredSet]] = field(kw_only=True)

    @property
    def scoring(self) -> Scoring:
        """How models are scored on it."""
        return "similarity"

    def load(self, data_dir: Path | None = None) -> SimilarityData:
        """Return the rows; see `Task`."""
        self.check_files(data_dir)
        return SimilarityData(self.name, tuple(self.reader(self, data_dir)))


TASKS: Registry[Task] = Registry("task", package=__name__, folders=__path__, read=by_table("TASKS"))


def resolve_tasks(
    names: Iterable[str | Task] | None,
    data_dir: Path | None = None,
    *,
    scorings: Collection[Scoring] = SCORINGS,
    default: Collection[Scoring] | None = None,
    option: str = "--tasks ",
) -> list[Task]:
    """Return the tasks to evaluate on, each once.

    Args:
        names: What the user named; None for all tasks whose files the data folder holds, or without a data folder
            those that need none.
        data_dir: Folder in SentEval's layout.
        scorings: The scorings that the caller can use.
        default: Of these, the scorings of tasks taken if the user named none; by default all.
        option: Begins messages about names.

    Raises:
        ConfigError: If a name is unknown, its task is scored in a way that the caller cannot use, or two different
            tasks have the same name.
        DataError: If a task's files are missing, or the data folder holds no task.
    """
    if names is None:
        return _present_tasks(data_dir, scorings if default is None else default)
    tasks: dict[str, Task] = {}
    for name in names:
        task = find_task(name, scorings=scorings, option=option)
        task.check_files(data_dir)
        if tasks.setdefault(task.name, task) != task:
            raise ConfigError(f"{option}{task.name}: two different tasks have this name; rename one")
    return list(tasks.values())


def find_task(name: str | Task, *, scorings: Collection[Scoring] = SCORINGS, option: str = "--tasks ") -> Task:
    """Return the task that a user names, whether its files exist or not; a task is returned as it is.

    Names become tasks here and nowhere else. Case, hyphens and underscores do not matter.

    Raises:
        ConfigError: If there is none, or it is scored in another way.
    """
    task = name if isinstance(name, Task) else _registered_task(name, scorings, option)
    if task.scoring not in scorings:
        raise ConfigError(
            f"{option}{task.name}: must be scored by {' or '.join(sorted(scorings))}; it is scored by {task.scoring}"
        )
    return task


def load_task(name: str | Task, data_dir: Path | None = None) -> TaskData:
    """Return the rows of a task with a probe.

    Raises:
        ConfigError: If there is no such task.
        DataError: If its files are missing or not as published.
    """
    data = find_task(name, scorings=PROBED).load(data_dir)
    assert isinstance(data, TaskData)
    return data


def absent_tasks(data_dir: Path) -> list[str]:
    """Return the names of the tasks whose files are not all in the data folder."""
    return [task.name for task in TASKS.values() if not task.is_present(data_dir)]


def _registered_task(name: str, scorings: Collection[Scoring], option: str) -> Task:
    by_plain = {_plain(known): known for known in TASKS}
    known = by_plain.get(_plain(name))
    if known is not None or name in TASKS.broken:
        return TASKS.find(known or name, where=f"{option}{name}")
    # Close names are searched among plain names, so that case alone never hides one.
    close = get_close_matches(_plain(name), by_plain, n=1)
    usable = [task.name for task in TASKS.values() if task.scoring in scorings]
    hint = f"did you mean '{by_plain[close[0]]}'?" if close else f"known: {', '.join(usable)}"
    raise ConfigError(f"{option}{name}: unknown task; {hint}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _present_tasks(data_dir: Path | None, scorings: Collection[Scoring]) -> list[Task]:
    tasks = [task for task in TASKS.values() if task.scoring in scorings]
    if data_dir is None:
        return [task for task in tasks if not task.files]
    present = [task for task in tasks if task.files and task.is_present(data_dir)]
    if not present:
        expected = next(task.files[0] for task in tasks if task.files)
        raise DataError(f"{data_dir}: must be a folder in SentEval's layout; no task found; it would hold {expected}")
    return present


@dataclass(frozen=True)
class FilesStatus:
    """What a data folder holds of a task.

    Attributes:
        task: The task's name.
        status: Whether its files are as published, not all there, or not as published.
        num_rows: Rows, or scored pairs; 0 unless complete.
        problem: What is missing or wrong, and where; empty if complete.
        source: Where the task is published.
    """

    task: str
    status: Literal["complete", "missing", "wrong"]
    num_rows: int
    problem: str
    source: str


def check_data(data_dir: Path) -> list[FilesStatus]:
    """Return what the folder holds of every task that reads files; all files are read.

    Raises:
        DataError: If it is not a folder.
    """
    if not data_dir.is_dir():
        raise DataError(f"{data_dir}: no such folder; name one in SentEval's layout, as senteval/data/downstream")
    return [_files_status(task, data_dir) for task in TASKS.values() if task.files]


def _files_status(task: Task, data_dir: Path) -> FilesStatus:
    missing = task.missing_files(data_dir)
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return FilesStatus(task.name, "missing", 0, f"no {missing[0]}{others}", task.source)
    try:
        return FilesStatus(task.name, "complete", len(task.load(data_dir)), "", task.source)
    except DataError as error:
        return FilesStatus(task.name, "wrong", 0, str(error), task.source)
