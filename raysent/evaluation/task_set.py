"""`TaskSet`: the tasks of one sweep, as one thing that is resolved once, divided once and handed on whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raysent.evaluation.divided import divide_tasks
from raysent.evaluation.task import PROBED, VALIDATED, Task
from raysent.evaluation.tasks import resolve_tasks


@dataclass(frozen=True)
class TaskSet:
    """Tasks, and where their files are.

    Attributes:
        tasks: The tasks, each once.
        data: Folder of task files; None for embedded tasks and own tables alone.
        are_named: Whether the user named them; otherwise they are all whose files are there.
    """

    tasks: tuple[Task, ...] = ()
    data: Path | None = None
    are_named: bool = True

    @classmethod
    def resolve(
        cls,
        names: Iterable[str | Task] | None,
        data: str | Path | None = None,
        *,
        are_named: bool = True,
    ) -> TaskSet:
        """Return the tasks that a user names; None for those with classes whose files are there.

        Raises:
            ConfigError: If a name is unknown, or its task cannot rank models.
            DataError: If a task's files are missing or wrong.
        """
        folder = None
        if data is not None:
            folder = Path(data)
        tasks = resolve_tasks(names, folder, scorings=VALIDATED, default={"accuracy"})
        return cls(tuple(tasks), folder, are_named=are_named)

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the tasks."""
        return iter(self.tasks)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(task.name for task in self.tasks)

    @property
    def have_files(self) -> bool:
        """Whether a task reads files of the data folder."""
        return self.data is not None and any(task.files for task in self.tasks)

    @property
    def folder(self) -> str | None:
        """The data folder as a record names it, wherever it is read; None where no task reads files of it."""
        if self.data is None or not self.have_files:
            return None
        return str(self.data.resolve())

    @property
    def probed(self) -> Sequence[Task]:
        """Those that a probe is fitted to."""
        return [task for task in self.tasks if task.scoring in PROBED]

    @property
    def with_queries(self) -> Sequence[Task]:
        """Those of passages that are ranked."""
        return [task for task in self.tasks if task.scoring not in PROBED]

    def divided(self, folder: Path) -> TaskSet:
        """Return the tasks with the rows that a run's folder has of them, which are written there at the first time.

        Raises:
            DataError: If the run has divided other rows by the name of a task.
            ArtifactError: If the folder cannot be written.
        """
        tasks = divide_tasks(folder, [(task, self.data) for task in self.tasks])
        return replace(self, tasks=tuple(tasks))
