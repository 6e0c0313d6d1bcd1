"""Tasks as a run has divided them, so that no test row is opened before the evaluation that scores it.

    divisions/TASK.json   the hash of the task's rows
    divisions/TASK.rows   the rows that train and choose, which trials read
    divisions/TASK.test   the rows that test, which the last evaluation is the first to open

The division writes them, and nothing of the run opens the task's own table after it. A published test file is not
copied, and stays closed as long. Files of rows have a line of JSON a row: no reader or writer holds a second copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from raysent.data.languages import unspaced_language
from raysent.data.text_files import open_bytes
from raysent.errors import ArtifactError, DataError
from raysent.evaluation.division import divided
from raysent.evaluation.task import (
    NO_ROWS,
    PROBED,
    AnyData,
    Kind,
    Metric,
    ProbeTask,
    Task,
    TaskData,
)
from raysent.evaluation.task_files import OwnTask, forget_tables
from raysent.evaluation.units import units_of
from raysent.reading import parse_json
from raysent.storage import (
    address_of,
    atomic_write,
    content_key,
    is_remote,
    path_below,
    read_json,
    write_json,
)
from raysent.storage.layout import DIVISIONS_FOLDER, ROWS_SUFFIX, TEST_SUFFIX

# Of a division: 2 keeps copies together in the folds that choose, which earlier versions parted.
_VERSION = 2
# Attributes of `TaskData`: those with a number for each row, those with indices of rows, and tuples.
_BY_ROW = ("labels", "scores", "folds", "units")
_ROW_INDICES = ("train", "validation", "test")
_TUPLES = ("label_names", "scale")


class _DividedTask(ProbeTask):
    """A task with its rows in a run's folder; to load it opens those that test."""

    @property
    def unspaced_language(self) -> str | None:
        """As of a user's own table."""
        return unspaced_language(self.load().sentences[0])


def divide_tasks(
    folder: Path, tasks: Iterable[tuple[Task, Path | None]], *, ranking: Collection[str] = ()
) -> list[Task]:
    """Write the rows of tasks, each with its data folder, into a run's folder, and return the tasks that read them.

    Tasks without a probe, embedded ones, and those with a published test file are returned as they are.

    Raises:
        DataError: If the run has divided other rows by the name of a task, or its files are missing or wrong.
        ArtifactError: If the folder cannot be written.
    """
    divided_ones = []
    for task, data_dir in tasks:
        divided_ones.append(_divide(folder, task, data_dir, ranks=task.name in ranking))
    # Nothing of the run opens the tables again.
    forget_tables()
    return divided_ones


def _divide(folder: Path, task: Task, data_dir: Path | None, *, ranks: bool) -> Task:
    has_test_file = isinstance(task, ProbeTask) and task.has_test_file
    if task.scoring not in PROBED or has_test_file or not (task.files or isinstance(task, OwnTask)):
        return task
    rows = task.load(data_dir)
    assert isinstance(rows, TaskData)
    data = divided(rows)
    saved = _saved_division(folder, task.name)
    version = _VERSION
    if saved is not None:
        version = saved.get("version", 1)
    if version < _VERSION:
        data = replace(data, units=NO_ROWS)
    data = _as_divided(saved, data)
    if saved is not None and saved["row_hash"] != data.row_hash:
        raise DataError(
            f"{data.task}: must have the {saved['num_rows']} rows that {address_of(folder)} divided into train and "
            f"test; given {len(data)} rows, some of them others; restore them, or begin another run"
        )
    if saved:
        ranks = saved["ranks"]
    # Of the file names without their ends.
    stem = path_below(folder / DIVISIONS_FOLDER, task.name)
    without_test = replace(data.without_test(), part_of=data.row_hash)
    save_rows(Path(f"{stem}{ROWS_SUFFIX}"), [without_test])
    test_alone = replace(data.select(data.test), test=data.test, part_of=data.row_hash)
    save_rows(Path(f"{stem}{TEST_SUFFIX}"), [test_alone])
    about = {
        "row_hash": data.row_hash,
        "num_rows": len(data),
        "ranks": ranks,
        "version": version,
        "is_scored": data.is_scored,
    }
    write_json(Path(f"{stem}.json"), about)
    return divided_tasks(folder)[task.name]


def divided_tasks(folder: Path) -> dict[str, Task]:
    """Return the tasks whose rows are in a run's folder, by name."""
    tasks = dict[str, Task]()
    for path in sorted((folder / DIVISIONS_FOLDER).glob(f"*{TEST_SUFFIX}")):
        name = path.name.removesuffix(TEST_SUFFIX)
        saved = _saved_division(folder, name)
        if saved and "is_scored" in saved:
            reader = partial(_joined, path.parent / name, saved["row_hash"])
            tasks[name] = _DividedTask(name, reader=reader, is_scored=saved["is_scored"])
    return tasks


@lru_cache(maxsize=4)
def _joined(stem: Path, row_hash: str, *_: object) -> TaskData:
    """Return all rows of a task, in the order of its table, of the two files that begin with this path."""
    (without_test,) = read_rows(Path(f"{stem}{ROWS_SUFFIX}"))
    (test_alone,) = read_rows(Path(f"{stem}{TEST_SUFFIX}"))
    num_rows = len(without_test) + len(test_alone)
    # The rows of the table that the file without test rows has, in its order.
    table_rows = np.setdiff1d(np.arange(num_rows), test_alone.test)

    def by_row(name: str) -> np.ndarray:
        return np.concatenate([getattr(without_test, name), getattr(test_alone, name)])

    columns = zip(without_test.sentences, test_alone.sentences, strict=True)
    texts = tuple(before + of_test for before, of_test in columns)
    joined = replace(
        without_test,
        sentences=texts,
        labels=by_row("labels"),
        scores=by_row("scores"),
        folds=by_row("folds"),
        units=by_row("units"),
        part_of="",
    )
    joined = joined.select(np.argsort(np.concatenate([table_rows, test_alone.test])))
    data = replace(
        joined,
        train=table_rows[without_test.train],
        validation=table_rows[without_test.validation],
        test=test_alone.test,
    )
    if data.row_hash != row_hash:
        raise _not_rows(f"{stem}{TEST_SUFFIX}")
    return data


def kept_divisions(folder: Path) -> list[str]:
    """Return a line about each task that an earlier version divided in a run's folder otherwise than this one would."""
    lines = []
    for name, task in divided_tasks(folder).items():
        saved = _saved_division(folder, name)
        if saved is None or saved.get("version", 1) >= _VERSION:
            continue
        data = task.load()
        assert isinstance(data, TaskData)
        fitted_rows = np.union1d(data.train, data.validation)
        texts = [[column[row] for row in fitted_rows.tolist()] for column in data.sentences]
        num_copies = len(fitted_rows) - len(np.unique(units_of(texts)))
        if num_copies:
            lines.append(
                f"{name}: an earlier version divided its rows, and the run keeps its folds, which may part "
                f"{num_copies} copies and near-copies from the rows that they repeat; another run keeps them together"
            )
    return lines


def is_ranked_by_other_rows(folder: Path, task: Task, load: Callable[[Task], AnyData]) -> bool:
    """Return whether a run ranked trials by a task of this name whose train and test rows were others.

    Args:
        folder: The run's folder.
        task: The task.
        load: Returns its rows; called only where the run ranked by one of the name.
    """
    saved = _saved_division(folder, task.name)
    if saved is None or not saved["ranks"]:
        return False
    data = load(task)
    if isinstance(data, TaskData):
        data = _as_divided(saved, data)
    return bool(saved["row_hash"] != data.row_hash)


def _as_divided(saved: Mapping[str, Any] | None, data: TaskData) -> TaskData:
    """Return rows in the form in which a run divided them.

    Earlier versions took accuracy for every table, and gave pairs no feature of their likeness.
    """
    if saved is None:
        return data
    kinds: list[Kind] = [data.kind]
    if data.kind == "likeness":
        kinds.append("pair")
    metrics: list[Metric] = [data.metric]
    if data.metric != "accuracy":
        metrics.append("accuracy")
    for kind, metric in product(kinds, metrics):
        form = replace(data, kind=kind, metric=metric)
        if form.row_hash == saved["row_hash"]:
            return form
    return data


def _saved_division(folder: Path, task: str) -> dict[str, Any] | None:
    path = path_below(folder / DIVISIONS_FOLDER, f"{task}.json")
    if not path.is_file():
        return None
    about = read_json(path)
    if not isinstance(about, dict) or not {"row_hash", "num_rows", "ranks"} <= about.keys():
        raise ArtifactError(
            f"{address_of(path)}: not a division of a task's rows; restore it, or begin another run"
        )
    return about


def save_rows(path: Path, tasks: Sequence[TaskData]) -> None:
    """Write rows of tasks: a line about each task, then one for each row.

    Raises:
        ArtifactError: If the file cannot be written.
    """
    with atomic_write(path) as new, new.open("w", encoding="ascii") as stream:
        for data in tasks:
            attributes = {
                attribute.name: getattr(data, attribute.name) for attribute in fields(data)
            }
            by_row = {name: attributes.pop(name).tolist() for name in _BY_ROW}
            columns = {name: numbers for name, numbers in by_row.items() if numbers}
            about = {
                **attributes,
                **{name: attributes[name].tolist() for name in _ROW_INDICES},
                "sentences": len(data.sentences),
                "columns": list(columns),
                "num_rows": len(data),
                "units_hash": content_key(by_row["units"]),
                "row_hash": data.row_hash,
            }
            stream.write(json.dumps(about) + "\n")
            for row in zip(*data.sentences, *columns.values(), strict=True):
                stream.write(json.dumps(row) + "\n")


def read_rows(path: str | Path) -> list[TaskData]:
    """Return what `save_rows` wrote, also of an ``s3://`` address.

    Raises:
        ArtifactError: If the file is missing or damaged.
    """
    tasks = list[TaskData]()
    try:
        with open_bytes(str(path)) as stream:
            for line in stream:
                tasks.append(_read_task(parse_json(line), stream))
    except (OSError, TypeError, KeyError, ValueError, AttributeError):
        raise _not_rows(path) from None
    return tasks


def _read_task(about: dict[str, Any], stream: Iterable[bytes]) -> TaskData:
    """Return a task of the line about it, and of the lines of its rows, which follow in the stream.

    Raises:
        ValueError: If they are not what was written.
    """
    num_texts = about.pop("sentences")
    names = about.pop("columns")
    row_hash = about.pop("row_hash")
    # Earlier versions had no units.
    units_hash = about.pop("units_hash", None)
    columns: list[list[Any]] = [[] for _ in range(num_texts + len(names))]
    for row in islice(stream, about.pop("num_rows")):
        for column, cell in zip(columns, parse_json(row), strict=True):
            column.append(cell)
    about |= {name: np.array(about[name], np.int64) for name in _ROW_INDICES}
    about |= {name: tuple(about[name]) for name in _TUPLES if about[name] is not None}
    for name, column in zip(names, columns[num_texts:], strict=True):
        dtype: type = np.int64
        if name == "scores":
            dtype = np.float64
        about[name] = np.array(column, dtype)
    data = TaskData(sentences=tuple(columns[:num_texts]), **about)
    has_same_units = not units_hash or content_key(data.units.tolist()) == units_hash
    if data.row_hash != row_hash or not has_same_units:
        raise ValueError("other rows than were written")
    return data


def has_rows(path: str | None) -> bool:
    """Return whether a file of rows is there, in the form of this version."""
    if path is None or not path.endswith(ROWS_SUFFIX):
        return False
    return is_remote(path) or Path(path).is_file()


def _not_rows(path: str | Path) -> ArtifactError:
    return ArtifactError(
        f"{address_of(Path(path))}: not the rows that were divided; restore it, or begin another run"
    )
