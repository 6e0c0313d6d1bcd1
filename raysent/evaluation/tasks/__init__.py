"""What a vector is judged on. In: a task's name and a data folder. Out: sentences, labels and splits, hashed.

The folder is the registry: every file in it holds a table `TASKS`, one entry per data set, so a data set is added
by one entry and a family of data sets by one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from raysent.errors import ConfigError, DataError, did_you_mean
from raysent.storage import content_key

Kind = Literal["sentence", "pair", "order"]
Split = Literal["nested", "train-test", "train-validation-test"]

NO_ROWS = np.empty(0, dtype=np.int64)
NO_SCORES = np.empty(0, dtype=np.float64)


@dataclass(frozen=True)
class TaskData:
    """A task's rows in a fixed order.

    Attributes:
        task: The task's name.
        kind: One sentence a row; a pair whose order does not matter; or a pair whose order does.
        split: How the rows are divided, see `Task`.
        label_names: The classes' names [classes].
        sentences: One list of sentences [rows] per column; one column, or two for pairs.
        labels: The rows' classes, int64 [rows]; of scored pairs, the nearest mark.
        train: Rows of the given train split, int64; empty where the probe's protocol draws folds from all rows.
        validation: Rows of the given validation split; empty where there is none.
        test: Rows of the given test split; empty where there is none.
        scores: Of scored pairs, how alike people found them, float64 [rows]; else empty.
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

    @property
    def is_scored(self) -> bool:
        """Return whether rows have scores, judged by correlation, and not just classes."""
        return len(self.scores) > 0

    @cached_property
    def row_hash(self) -> str:
        """Return a name for the rows' content: sentences, labels, order and splits."""
        splits = [rows.tolist() for rows in (self.train, self.validation, self.test)]
        values = [self.labels.tolist(), *([self.scores.tolist()] if self.is_scored else [])]
        return content_key(self.kind, self.split, self.label_names, self.sentences, *values, splits)


@dataclass(frozen=True)
class Task:
    """One data set: what it is called, how it is divided, where it is published.

    Attributes:
        name: The name that users write; case, hyphens and underscores do not matter.
        kind: See `TaskData`.
        split: "nested" has no given split and is scored by nested cross-validation; "train-test" chooses by
            cross-validation within train; "train-validation-test" uses the three splits as given.
        reader: Reads the rows; takes the task and the data folder (None where the task is embedded).
        needs_data: Whether the rows come from the user's data folder.
        files: Files read, relative to the data folder.
        source: Where the data set is published.
        is_scored: Whether rows have scores, judged by correlation.
    """

    name: str
    kind: Kind
    split: Split
    reader: Callable[[Task, Path | None], TaskData]
    needs_data: bool = False
    files: tuple[str, ...] = ()
    source: str = ""
    is_scored: bool = False

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Return the rows.

        Raises:
            DataError: If a file is missing or does not hold the published number of rows.
        """
        if self.needs_data and data_dir is None:
            raise DataError(
                f"{self.name}: needs a folder in SentEval's layout; given none; name it with --data, "
                f"it must hold {self.files[0]} ({self.source})"
            )
        return self.reader(self, data_dir)

    def is_present(self, data_dir: Path) -> bool:
        """Return whether every file of the task lies in the data folder."""
        return all((data_dir / name).is_file() for name in self.files)


@cache
def known_tasks() -> dict[str, Task]:
    """Return all tasks by name, in the order of their tables."""
    found: dict[str, Task] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        table = importlib.import_module(f"{__name__}.{module.name}").TASKS
        found.update({task.name: task for task in table})
    return found


def find_task(name: str) -> Task:
    """Return the task of that name, whatever its case and hyphens.

    Raises:
        ConfigError: If there is no such task.
    """
    by_plain = {_plain(task.name): task for task in known_tasks().values()}
    task = by_plain.get(_plain(name))
    if task is None:
        # The nearest is sought among plain names, so that case alone never hides it.
        nearest = did_you_mean(_plain(name), by_plain)
        for plain, known in by_plain.items():
            nearest = nearest.replace(f"'{plain}'", f"'{known.name}'")
        if "did you mean" not in nearest:
            nearest = f"; known: {', '.join(known_tasks())}"
        raise ConfigError(f"--tasks {name}: unknown task{nearest}")
    return task


def load_task(name: str, data_dir: Path | None = None) -> TaskData:
    """Return the rows of the named task.

    Raises:
        ConfigError: If there is no such task.
        DataError: If its files are missing or not as published.
    """
    return find_task(name).load(data_dir)


def default_tasks(data_dir: Path | None = None, *, scored: bool = False) -> list[str]:
    """Return the tasks judged when none is named: those whose files are in the data folder, else the embedded.

    Args:
        data_dir: The data folder, if there is one.
        scored: Whether tasks of scored pairs count, which are judged by correlation and not by accuracy.

    Raises:
        DataError: If the data folder holds no task at all.
    """
    tasks = [task for task in known_tasks().values() if scored or not task.is_scored]
    if data_dir is None:
        return [task.name for task in tasks if not task.needs_data]
    present = [task.name for task in tasks if task.needs_data and task.is_present(data_dir)]
    if not present:
        expected = next(task.files[0] for task in tasks if task.needs_data)
        raise DataError(f"{data_dir}: must be a folder in SentEval's layout; no task found; it would hold {expected}")
    return present


def absent_tasks(data_dir: Path) -> list[str]:
    """Return the tasks whose files are not all in the data folder."""
    return [task.name for task in known_tasks().values() if task.needs_data and not task.is_present(data_dir)]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
