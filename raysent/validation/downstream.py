"""Downstream tasks -> the mean validation score of probes on the model's vectors, in percent.

The one figure that encoders of every family share. Test rows are never looked at, and of a large task a fixed part of
the rows is taken, so that it can be asked for at every report. For the same reason a task without given splits is
scored by plain cross-validation: the nested one takes five times as long, for a test score that nobody reads here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from raysent.artifacts import content_key
from raysent.probes import fit_probe
from raysent.probes.features import Encode, task_features
from raysent.tasks import TaskData, default_tasks, load_task
from raysent.validation.config import DownstreamConfig

_SEED = 0


class Downstream:
    """Tasks, cut to size.

    Attributes:
        hash: Equal for equal rows.
        tasks: What is asked.
    """

    def __init__(self, config: DownstreamConfig) -> None:
        """Read the tasks.

        Raises:
            ConfigError: If a task is unknown.
            DataError: If its files are missing or wrong.
        """
        folder = None if config.data is None else Path(config.data)
        names = default_tasks(folder) if config.tasks is None else config.tasks
        self.tasks = [_cut_task(name, folder, config.max_rows) for name in names]
        self.hash = content_key([task.row_hash for task in self.tasks])

    def scores(self, model: Encode) -> dict[str, float]:
        """Return `downstream`, the mean over tasks."""
        found = [fit_probe(task_features(model, task), task).validation for task in self.tasks]
        return {"downstream": float(np.mean(found))}


# A process that takes trial after trial asks all of them the same.
@lru_cache(maxsize=32)
def _cut_task(name: str, folder: Path | None, max_rows: int) -> TaskData:
    """Return a task of a data folder, cut to size."""
    return cut(load_task(name, folder), max_rows=max_rows)


def cut(data: TaskData, *, max_rows: int) -> TaskData:
    """Return a task without its test rows, of at most `max_rows` rows that train and as many that validate."""
    is_nested = data.split == "nested"
    train = _some(np.arange(len(data.labels)) if is_nested else data.train, max_rows)
    validation = _some(data.validation, max_rows)
    kept = np.concatenate([train, validation])
    place = np.arange(len(kept))
    small = replace(_rows(data, kept), split="train-test") if is_nested else _rows(data, kept)
    # A probe wants rows to predict; it gets those that it may see, and what it says of them is not read.
    unread = place[len(train) :] if len(validation) else place
    return replace(small, train=place[: len(train)], validation=place[len(train) :], test=unread)


def _some(rows: np.ndarray, max_rows: int) -> np.ndarray:
    """Return at most so many of the rows, drawn once and for all, in order."""
    if len(rows) <= max_rows:
        return rows
    return np.sort(np.random.default_rng(_SEED).permutation(rows)[:max_rows])


def _rows(data: TaskData, kept: np.ndarray) -> TaskData:
    columns = tuple([column[row] for row in kept] for column in data.sentences)
    return replace(data, sentences=columns, labels=data.labels[kept])
