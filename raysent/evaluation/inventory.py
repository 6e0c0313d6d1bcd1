"""A data folder -> which tasks it holds whole, which are missing or wrong, and where those are published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from raysent.errors import DataError
from raysent.evaluation.tasks import Task, known_tasks
from raysent.evaluation.tasks.similarity import SENTEVAL, SIMILARITY_TASKS, SimilarityTask

Status = Literal["whole", "missing", "wrong"]


@dataclass(frozen=True)
class Found:
    """What a data folder holds of a task.

    Attributes:
        task: The task's name.
        status: Whether its files are as published, not all there, or not as published.
        num_rows: Rows, or scored pairs; 0 unless whole.
        problem: What is missing or wrong, and where; empty if whole.
        source: Where the task is published.
    """

    task: str
    status: Status
    num_rows: int
    problem: str
    source: str


def check_data(data_dir: Path) -> list[Found]:
    """Return what the folder holds of every task that reads files, all of them read.

    Raises:
        DataError: If it is not a folder.
    """
    if not data_dir.is_dir():
        raise DataError(f"{data_dir}: no such folder; name one in SentEval's layout, as senteval/data/downstream")
    probed = [task for task in known_tasks().values() if task.needs_data]
    compared = SIMILARITY_TASKS.values()
    return [
        *(_found(task, data_dir, partial(_num_rows, task, data_dir), task.source) for task in probed),
        *(_found(task, data_dir, partial(_num_pairs, task, data_dir), SENTEVAL) for task in compared),
    ]


def _num_rows(task: Task, data_dir: Path) -> int:
    return len(task.load(data_dir).labels)


def _num_pairs(task: SimilarityTask, data_dir: Path) -> int:
    return sum(len(one.scores) for one in task.load(data_dir))


def _found(task: Task | SimilarityTask, data_dir: Path, count: Callable[[], int], source: str) -> Found:
    missing = [name for name in task.files if not (data_dir / name).is_file()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return Found(task.name, "missing", 0, f"no {missing[0]}{others}", source)
    try:
        return Found(task.name, "whole", count(), "", source)
    except DataError as error:
        return Found(task.name, "wrong", 0, str(error), source)
