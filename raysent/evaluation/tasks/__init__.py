"""Tasks: the data sets that models are evaluated on. In: names and a data folder. Out: rows with labels or scores.

`TASKS` is the registry: every file in this folder, and every module that an entry point of the group ``raysent.tasks``
names, holds a table `TASKS`, name -> task. A user's own tasks are files (`task_files`). `resolve_tasks` turns what a
user names into tasks; every command uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from raysent.errors import ConfigError, DataError, shown
from raysent.evaluation.task import PROBED, SCORINGS, ProbeTask, Scoring, Task, TaskData
from raysent.evaluation.task_files import is_task_file, open_tasks
from raysent.registry import Registry, by_table

__all__ = [
    "TASKS",
    "FilesStatus",
    "absent_tasks",
    "check_data",
    "find_task",
    "load_task",
    "resolve_tasks",
]

TASKS: Registry[Task] = Registry("task", package=__name__, folders=__path__, read=by_table("TASKS"))


def resolve_tasks(
    names: Iterable[str | Task] | None,
    data_dir: Path | None = None,
    *,
    scorings: Collection[Scoring] = SCORINGS,
    default: Collection[Scoring] | None = None,
    option: str = "tasks ",
) -> list[Task]:
    """Return the tasks to evaluate on, each once.

    Args:
        names: What the user named: names of tasks, files of own tasks (see `task_files`), or tasks. None for all tasks
            whose files the data folder holds, or without a data folder those that need none.
        data_dir: Folder in SentEval's layout.
        scorings: The scorings that the caller can use.
        default: Of these, the scorings of tasks taken if the user named none; by default all.
        option: Begins messages about names.

    Raises:
        ConfigError: If a name is unknown, its task is scored in a way that the caller cannot use, or two different
            tasks have the same name.
        DataError: If a task's files are missing or wrong, or the data folder holds no task.
    """
    if names is None:
        if default is None:
            default = scorings
        return _present_tasks(data_dir, default)
    if isinstance(names, str | Task):
        names = [names]
    tasks: dict[str, Task] = {}
    for name in names:
        for task in _tasks_of(name, scorings, option):
            task.check_files(data_dir)
            # Files are named by tasks, and some systems take capital and small letters for one.
            first = tasks.setdefault(task.name.casefold(), task)
            if first != task:
                same = "this name"
                if first.name != task.name:
                    same += f" but for case: {first.name}"
                raise ConfigError(
                    f"{option}{task.name}: two different tasks have {same}; rename one"
                )
    return list(tasks.values())


def find_task(
    name: str | Task, *, scorings: Collection[Scoring] = SCORINGS, option: str = "tasks "
) -> Task:
    """Return the task that a user names, whether its files exist or not; a task is returned as it is.

    Names become tasks here and nowhere else. Case, hyphens and underscores do not matter.

    Raises:
        ConfigError: If there is none, it is scored in another way, or the name stands for several.
        DataError: If a file of an own task cannot be read.
    """
    tasks = _tasks_of(name, scorings, option)
    if len(tasks) > 1:
        # Scores of an own file are predicted by a probe; the similarity of vectors is a second task of the same rows.
        probed = [task for task in tasks if task.scoring in PROBED]
        if len(probed) == 1:
            return probed[0]
        names = ", ".join(task.name for task in tasks)
        raise ConfigError(f"{option}{name}: must be one task; given {names}; name one label")
    return tasks[0]


def _tasks_of(name: str | Task, scorings: Collection[Scoring], option: str) -> list[Task]:
    """Return the tasks that a name stands for; a file of several labels stands for one task for each."""
    if not isinstance(name, str | Task):
        raise ConfigError(
            f"{option}must be a name, a file or raysent.Task(TABLE, ...); given {type(name).__name__}"
        )
    if isinstance(name, Task):
        tasks: list[Task] = [name]
    elif is_task_file(name, known={_plain(registered) for registered in TASKS}):
        tasks = list(open_tasks(name))
    else:
        tasks = [_registered_task(name, scorings, option)]
    variants = [variant for task in tasks for variant in task.variants(scorings)]
    if not variants:
        raise ConfigError(
            f"{option}{tasks[0].name}: must be scored by {' or '.join(sorted(scorings))}; "
            f"it is scored by {tasks[0].scoring}"
        )
    return variants


def load_task(
    name: str | Task, data_dir: Path | None = None, *, with_test: bool = True
) -> TaskData:
    """Return the rows of a task with a probe; those of a published test file, which stays closed else, at `with_test`.

    Raises:
        ConfigError: If there is no such task.
        DataError: If its files are missing or not as published.
    """
    task = find_task(name, scorings=PROBED)
    if isinstance(task, ProbeTask) and task.has_test_file and not with_test:
        task = replace(task, files=(*task.files[:-1], ""))
    data = task.load(data_dir)
    assert isinstance(data, TaskData)
    return data


def absent_tasks(data_dir: Path) -> list[str]:
    """Return the names of the tasks whose files are not all in the data folder."""
    return [task.name for task in TASKS.values() if not task.is_present(data_dir)]


def _registered_task(name: str, scorings: Collection[Scoring], option: str) -> Task:
    """Return the task of the registry that has a name, however it is written.

    Raises:
        ConfigError: If there is none.
    """
    by_plain = {_plain(registered): registered for registered in TASKS}
    registered_name = by_plain.get(_plain(name))
    if registered_name is not None or name in TASKS.broken:
        return TASKS.find(registered_name or name, where=f"{option}{name}")
    # Close names are searched among plain names, so that case alone never hides one.
    close = get_close_matches(_plain(name), by_plain, n=1)
    if close:
        hint = f"did you mean '{by_plain[close[0]]}'?"
    else:
        usable = [task.name for task in TASKS.values() if task.scoring in scorings]
        hint = f"known: {', '.join(usable)}"
    raise ConfigError(f"{option}{shown(name)}: unknown task; {hint}{TASKS.failures}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _present_tasks(data_dir: Path | None, scorings: Collection[Scoring]) -> list[Task]:
    tasks = [task for task in TASKS.values() if task.scoring in scorings]
    if data_dir is None:
        return [task for task in tasks if not task.files]
    present = [task for task in tasks if task.files and task.is_present(data_dir)]
    if not present:
        expected = next(task.files[0] for task in tasks if task.files)
        raise DataError(
            f"{data_dir}: must be a folder in SentEval's layout; no task found; it would hold {expected}"
        )
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
        raise DataError(
            f"{data_dir}: no such folder; name one in SentEval's layout, as senteval/data/downstream"
        )
    return [_files_status(task, data_dir) for task in TASKS.values() if task.files]


def _files_status(task: Task, data_dir: Path) -> FilesStatus:
    missing = task.missing_files(data_dir)
    if missing:
        problem = f"no {missing[0]}"
        if len(missing) > 1:
            problem += f" and {len(missing) - 1} more"
        return FilesStatus(task.name, "missing", 0, problem, task.source)
    try:
        return FilesStatus(task.name, "complete", len(task.load(data_dir)), "", task.source)
    except DataError as error:
        return FilesStatus(task.name, "wrong", 0, str(error), task.source)
