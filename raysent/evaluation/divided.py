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
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np

from raysent.data.languages import unspaced_language
from raysent.data.text_files import open_bytes
from raysent.errors import ArtifactError, DataError
from raysent.evaluation.division import divided
from raysent.evaluation.task import NO_ROWS, PROBED, AnyData, ProbeTask, Task, TaskData
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
# Of `TaskData`: one value a row, places of rows, and tuples.
_BY_ROW, _PLACES, _TUPLES = (
    ("labels", "scores", "folds", "units"),
    ("train", "validation", "test"),
    ("label_names", "scale"),
)


class DividedTask(ProbeTask):
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
    found = [_divide(folder, task, place, ranks=task.name in ranking) for task, place in tasks]
    forget_tables()
    return found


def _divide(folder: Path, task: Task, data_dir: Path | None, *, ranks: bool) -> Task:
    has_test_file = isinstance(task, ProbeTask) and task.has_test_file
    if task.scoring not in PROBED or has_test_file or not (task.files or isinstance(task, OwnTask)):
        return task
    rows = task.load(data_dir)
    assert isinstance(rows, TaskData)
    data = divided(rows)
    saved = _saved_division(folder, task.name)
    place = path_below(folder / DIVISIONS_FOLDER, task.name)
    version = _VERSION if saved is None else saved.get("version", 1)
    if version < _VERSION:
        data = replace(data, units=NO_ROWS)
    data = _as_divided(saved, data)
    if saved is not None and saved["row_hash"] != data.row_hash:
        raise DataError(
            f"{data.task}: must have the {saved['num_rows']} rows that {address_of(folder)} divided into train and "
            f"test; given {len(data)} rows, some of them others; restore them, or begin another run"
        )
    save_rows(Path(f"{place}{ROWS_SUFFIX}"), [replace(data.without_test(), part_of=data.row_hash)])
    save_rows(
        Path(f"{place}{TEST_SUFFIX}"),
        [replace(data.select(data.test), test=data.test, part_of=data.row_hash)],
    )
    known = {
        "row_hash": data.row_hash,
        "num_rows": len(data),
        "ranks": saved["ranks"] if saved else ranks,
        "version": version,
    }
    write_json(Path(f"{place}.json"), {**known, "is_scored": data.is_scored})
    return divided_tasks(folder)[task.name]


def divided_tasks(folder: Path) -> dict[str, Task]:
    """Return the tasks whose rows are in a run's folder, by name."""
    found = dict[str, Task]()
    for path in sorted((folder / DIVISIONS_FOLDER).glob(f"*{TEST_SUFFIX}")):
        place = path.parent / path.name.removesuffix(TEST_SUFFIX)
        if (saved := _saved_division(folder, place.name)) and "is_scored" in saved:
            reader = partial(_joined, place, saved["row_hash"])
            found[place.name] = DividedTask(place.name, reader=reader, is_scored=saved["is_scored"])
    return found


@lru_cache(maxsize=4)
def _joined(place: Path, row_hash: str, *_: object) -> TaskData:
    (kept,), (tests,) = (
        read_rows(Path(f"{place}{suffix}")) for suffix in (ROWS_SUFFIX, TEST_SUFFIX)
    )
    others = np.setdiff1d(np.arange(len(kept) + len(tests)), tests.test)
    labels, scores, folds, units = (
        np.concatenate([getattr(kept, name), getattr(tests, name)]) for name in _BY_ROW
    )
    texts = tuple(one + other for one, other in zip(kept.sentences, tests.sentences, strict=True))
    rows = replace(
        kept,
        sentences=texts,
        labels=labels,
        scores=scores,
        folds=folds,
        units=units,
        part_of="",
    )
    rows = rows.select(np.argsort(np.concatenate([others, tests.test])))
    data = replace(
        rows, train=others[kept.train], validation=others[kept.validation], test=tests.test
    )
    if data.row_hash != row_hash:
        raise _not_rows(f"{place}{TEST_SUFFIX}")
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
        trained = np.union1d(data.train, data.validation)
        texts = [[column[row] for row in trained.tolist()] for column in data.sentences]
        num_copies = len(trained) - len(np.unique(units_of(texts)))
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
    kinds = dict.fromkeys([data.kind, "pair" if data.kind == "likeness" else data.kind])
    for kind, metric in product(kinds, dict.fromkeys([data.metric, "accuracy"])):
        form = replace(data, kind=kind, metric=metric)
        if form.row_hash == saved["row_hash"]:
            return form
    return data


def _saved_division(folder: Path, task: str) -> dict[str, Any] | None:
    path = path_below(folder / DIVISIONS_FOLDER, f"{task}.json")
    if not path.is_file():
        return None
    values = read_json(path)
    if not isinstance(values, dict) or not {"row_hash", "num_rows", "ranks"} <= values.keys():
        raise ArtifactError(
            f"{address_of(path)}: not a division of a task's rows; restore it, or begin another run"
        )
    return values


def save_rows(path: Path, tasks: Sequence[TaskData]) -> None:
    """Write rows of tasks: a line about each task, then one for each row.

    Raises:
        ArtifactError: If the file cannot be written.
    """
    with atomic_write(path) as new, new.open("w", encoding="ascii") as stream:
        for data in tasks:
            columns = {
                name: getattr(data, name).tolist() for name in _BY_ROW if len(getattr(data, name))
            }
            about = {
                one.name: getattr(data, one.name) for one in fields(data) if one.name not in _BY_ROW
            }
            about |= {name: about[name].tolist() for name in _PLACES}
            about |= {
                "sentences": len(data.sentences),
                "columns": list(columns),
                "num_rows": len(data),
                "units_hash": content_key(data.units.tolist()),
            }
            rows = zip(*data.sentences, *columns.values(), strict=True)
            stream.writelines(
                json.dumps(line) + "\n"
                for line in chain([{**about, "row_hash": data.row_hash}], rows)
            )


def read_rows(path: str | Path) -> list[TaskData]:
    """Return what `save_rows` wrote, also of an ``s3://`` address.

    Raises:
        ArtifactError: If the file is missing or damaged.
    """
    found = list[TaskData]()
    try:
        with open_bytes(str(path)) as stream:
            for line in stream:
                about = parse_json(line)
                num_texts, names, row_hash = (
                    about.pop(name) for name in ("sentences", "columns", "row_hash")
                )
                units_hash = about.pop("units_hash", None)  # earlier versions had no units
                columns: list[list[Any]] = [[] for _ in range(num_texts + len(names))]
                for row in islice(stream, about.pop("num_rows")):
                    for column, value in zip(columns, parse_json(row), strict=True):
                        column.append(value)
                about |= {name: np.array(about[name], np.int64) for name in _PLACES}
                about |= {name: tuple(about[name]) for name in _TUPLES if about[name] is not None}
                for name, column in zip(names, columns[num_texts:], strict=True):
                    about[name] = np.array(column, np.float64 if name == "scores" else np.int64)
                found.append(TaskData(sentences=tuple(columns[:num_texts]), **about))
                has_other_units = content_key(found[-1].units.tolist()) != units_hash
                if found[-1].row_hash != row_hash or (units_hash and has_other_units):
                    raise ValueError("other rows than were written")
    except (OSError, TypeError, KeyError, ValueError, AttributeError):
        raise _not_rows(path) from None
    return found


def has_rows(path: str | None) -> bool:
    """Return whether a file of rows is there, in the form of this version."""
    return (
        path is not None
        and path.endswith(ROWS_SUFFIX)
        and (is_remote(path) or Path(path).is_file())
    )


def _not_rows(path: str | Path) -> ArtifactError:
    return ArtifactError(
        f"{address_of(Path(path))}: not the rows that were divided; restore it, or begin another run"
    )
