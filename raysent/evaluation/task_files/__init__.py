"""A user's own labelled data as a task: a table of texts with classes, pairs, scores or several labels.

    reviews.csv                                    columns are found by their names
    reviews.csv:text=body,label=stars,split=part   or named
    tickets=support/2024.parquet                   the task has another name than the file
    reviews.yaml                                   a task file: the same keys, one task or several below `tasks`
    questions.csv, queries/                        queries and passages, see `queries`

Rows are divided by a column, by files, by the splits of a `datasets` folder, or by fractions; without any of these a
fixed part of them tests (see `evaluation.division`), and the others are cross-validated, with rows of one group in one
fold. Several labels a row are as many tasks with the same test rows, each a yes/no question. Scores of pairs are two
tasks: a probe's predictions, and the similarity of the model's own vectors.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from raysent.config import Document, validate
from raysent.data.column_names import LABELS
from raysent.data.languages import unspaced_language
from raysent.data.tables import TABLE_SUFFIXES, Table, as_labels, read_table
from raysent.errors import ConfigError, DataError, shown
from raysent.evaluation.task import (
    NO_SCORES,
    AnyData,
    Kind,
    Metric,
    Remarks,
    RetrievalData,
    ScoredSet,
    Scoring,
    SimilarityData,
    TaskData,
)
from raysent.evaluation.task import Task as AnyTask
from raysent.evaluation.task_files.columns import (
    Columns,
    find_columns,
    labelled_rows,
    labels_of,
    read_targets,
    strata_of,
    text_columns,
)
from raysent.evaluation.task_files.division import (
    Division,
    divide,
    division_warnings,
    has_train_rows,
    known_splits,
    split_name,
    tested_alone,
)
from raysent.evaluation.task_files.in_memory import is_paths, table_in_memory
from raysent.evaluation.task_files.queries import (
    beir_files,
    is_beir_folder,
    is_query_table,
    read_folder,
    read_queries,
)
from raysent.evaluation.task_files.settings import (
    TaskSettings,
    is_task_file,
    name_of_file,
    read_settings,
)
from raysent.platforms import expanded
from raysent.reading import parse_json
from raysent.storage import MAX_NAME_BYTES, is_remote, list_s3, shortened_name

__all__ = [
    "LabelTable",
    "OwnTask",
    "Task",
    "TaskSettings",
    "is_task_file",
    "open_tasks",
    "read_label_table",
]

SIMILARITY_SUFFIX = "-similarity"
# Characters: of a longer text the warning says that encoders read its first words.
_LONG_TEXT = 100_000
# Of a label in the name of its task.
_MAX_LABEL_BYTES = 150
# Of a task's rows: where the largest class has more, its name alone has a high accuracy.
_LARGEST_SHARE = 0.8


def open_tasks(name: str) -> list[OwnTask]:
    """Return the tasks of a table or a task file; see `settings.read_settings`.

    Raises:
        ConfigError: If a setting is wrong.
    """
    if name.startswith("{"):
        # What the property `spec` of a task returned.
        try:
            spec = parse_json(name)
        except ValueError as error:
            raise ConfigError(f"tasks {name}: must be a task's settings as JSON: {error}") from None
        only = spec.pop("only", "")
        is_similarity = spec.pop("is_similarity", False)
        settings = validate(TaskSettings, Document(spec, source="task"))
        return [OwnTask(settings=settings, only=only, is_similarity=is_similarity)]
    return [OwnTask(settings=settings) for settings in read_settings(name)]


@dataclass(frozen=True, init=False)
class OwnTask(AnyTask):
    """A task of a user's own table: `raysent.Task`.

    Attributes:
        settings: The table and its columns.
        only: The label that this task asks for, where a row has several; empty for other tasks.
        is_similarity: Whether the similarity of a model's own vectors is compared with the scores; no probe.
    """

    settings: TaskSettings = field(hash=False)
    only: str = ""
    is_similarity: bool = False
    table: Table | None = field(default=None, repr=False)

    def __init__(
        self,
        data: object = None,
        *,
        name: str | None = None,
        settings: TaskSettings | None = None,
        only: str = "",
        is_similarity: bool = False,
        table: Table | None = None,
        **columns: Any,
    ) -> None:
        """Describe a task; rows are read when it is used.

        Args:
            data: A table's path, also in ``s3://``, or a table in memory: a data frame, a list of dicts, a dict of
                columns, a table of Arrow, Polars or `datasets`. One of these for each of ``train``, ``validation`` and
                ``test``, too.
            name: The task's name; by default the file's. Required for a table in memory.
            settings: All settings at once, instead of the other arguments.
            only: As the attribute.
            is_similarity: As the attribute.
            table: The rows, if they are in memory.
            columns: `text`, `label`, `score`, `split`, `folds`, `group`, `metric` and others of `TaskSettings`.

        Raises:
            ConfigError: If a setting is wrong.
        """
        if settings is None:
            if data is None:
                raise ConfigError("Task: data: must be a path or a table; given nothing")
            if not is_paths(data):
                if name is None:
                    raise ConfigError("Task: name: must be given for a table in memory")
                table = table_in_memory(name, data)
                data = name
            settings = _described(data, name, columns)
        task_name = _name_of_label(settings.name or _stem(settings.path), only)
        if is_similarity:
            task_name += SIMILARITY_SUFFIX
        # The class is frozen, so that its own fields cannot be assigned.
        attributes = {
            "name": task_name,
            "files": (),
            "source": "",
            "settings": settings,
            "only": only,
            "is_similarity": is_similarity,
            "table": table,
        }
        for attribute, content in attributes.items():
            object.__setattr__(self, attribute, content)

    @property
    def path(self) -> str:
        """The table, or the first of them."""
        return _first_path(self.settings.path)

    @property
    def summary(self) -> str:
        """How models are scored on it, and where it is."""
        return f"{self.scoring}; {self.path}"

    @property
    def scoring(self) -> Scoring:
        """How models are scored on it."""
        if self.is_similarity:
            return "similarity"
        if self.is_retrieval:
            return "retrieval"
        if self._columns.score is not None:
            return "correlation"
        return "accuracy"

    @property
    def spec(self) -> str:
        """The absolute path, or the settings as one line of JSON.

        Raises:
            ConfigError: If the rows are in memory alone.
        """
        if self.table is not None:
            raise ConfigError(
                f"{self.name}: must be a file to be used here; save the table as .parquet or .jsonl"
            )
        spec = self.settings.model_dump(mode="json", exclude_defaults=True)
        path = self.settings.path
        if isinstance(path, str):
            spec["path"] = _absolute(path)
        else:
            spec["path"] = {part: _absolute(file) for part, file in path.items()}
        if self.only:
            spec["only"] = self.only
        if self.is_similarity:
            spec["is_similarity"] = True
        # A path alone stays readable, and is found by whatever copies the files of a search space.
        if set(spec) == {"path"} and isinstance(path, str):
            return _absolute(path)
        return json.dumps(spec)

    def variants(self, scorings: Collection[Scoring]) -> Sequence[AnyTask]:
        """Return one task for each of several labels, and a second task of similarities for scores."""
        return [task for task in self._all_variants() if task.scoring in scorings]

    def _all_variants(self) -> list[OwnTask]:
        if self.is_retrieval:
            return [self]
        columns = self._columns
        if columns.is_multilabel and not self.only:
            labels = labels_of(self.settings, self._table, columns)
            return [replace_task(self, only=label) for label in labels]
        if columns.score is not None and not self.is_similarity:
            similarity = replace_task(self, is_similarity=True)
            if has_train_rows(self._table, columns):
                return [self, similarity]
            # Without rows to train on, no probe can be fitted.
            return [similarity]
        return [self]

    def load(self, data_dir: Path | None = None) -> AnyData:
        """Return the rows; see `Task`."""
        del data_dir
        rows = self._rows.data
        if self.is_similarity and isinstance(rows, TaskData):
            return _similarity_data(rows)
        return rows

    @property
    def is_retrieval(self) -> bool:
        """Whether it has queries and passages."""
        is_folder = self.table is None and is_beir_folder(self.settings)
        return is_folder or is_query_table(self.settings, self._table)

    @property
    def remarks(self) -> Remarks:
        """Which columns were guessed, and what may make scores misleading."""
        return self._rows.remarks

    @property
    def unspaced_language(self) -> str | None:
        """The code of the language of its texts if that writes no blanks between words."""
        rows = self._rows.data
        if isinstance(rows, RetrievalData):
            return None
        return unspaced_language(rows.sentences[0])

    @property
    def _table(self) -> Table:
        if self.table is not None:
            return self.table
        return _read(self.settings)

    @property
    def _columns(self) -> Columns:
        return find_columns(self.settings, self._table)

    @property
    def _rows(self) -> _Rows:
        if self.table is not None:
            return _read_rows(self)
        return _cached_rows(self, _stamp(self.settings), self.only, self.is_similarity)

    def __hash__(self) -> int:
        return hash((self.name, str(self.settings.path), self.only))


# As the public API names it.
Task = OwnTask


@dataclass(frozen=True)
class LabelTable:
    """A table that a person labels.

    Attributes:
        name: What names it, as a task.
        table: The table.
        texts: The columns of the text: one, or two of pairs.
        label: The column of the class, which the table need not have yet.
        labels: The class of each row [rows]; None where it has none.
    """

    name: str
    table: Table
    texts: tuple[str, ...]
    label: str
    labels: list[str | None]


_ONE_CLASS = "{name}: must be one file with a class a row, so that a person can edit it"


def read_label_table(name: str, num_columns: int) -> LabelTable:
    """Return a table of one class a row, some or all of them missing.

    Args:
        name: What names the table, as a task.
        num_columns: One, or two for pairs of texts.

    Raises:
        ConfigError: If a setting is wrong, or names several tables or labels.
        DataError: If the table cannot be read, or has no such column.
    """
    task, *further_tasks = open_tasks(name)
    settings = task.settings
    table = task._table
    is_divided = bool(further_tasks) or bool(table.parts)
    has_several_labels = isinstance(settings.label, list) or bool(settings.separator)
    if is_divided or has_several_labels or settings.score:
        raise ConfigError(_ONE_CLASS.format(name=name))
    texts = _named_texts(settings) or text_columns(table, num_columns)
    if len(texts) != num_columns:
        raise ConfigError(
            f"{name}: text: must name {num_columns} column(s), as of the model's task; given {len(texts)}"
        )
    assert not isinstance(settings.label, list)
    usual_labels = (column for column in table.columns if column.lower() in LABELS)
    label = settings.label or next(usual_labels, LABELS[0])
    for column in texts:
        table.texts(column, key="text")
    cells: Sequence[Any] = [None] * len(table)
    if settings.label is not None or label in table.columns:
        cells = table.column(label, key="label")
    if any(isinstance(cell, list) for cell in cells):
        raise ConfigError(_ONE_CLASS.format(name=name))
    return LabelTable(name, table, texts, label, as_labels(cells, table.class_names.get(label)))


def _named_texts(settings: TaskSettings) -> tuple[str, ...]:
    """Return the columns of text that settings name; none where they name none."""
    pair = tuple(column for column in (settings.text_a, settings.text_b) if column)
    if pair:
        return pair
    text = settings.text or ()
    if isinstance(text, str):
        return (text,)
    return tuple(text)


def forget_tables() -> None:
    """Free the memory of the tables that were read, which later readers read again."""
    _cached_table.cache_clear()
    _cached_rows.cache_clear()


def replace_task(task: OwnTask, *, only: str = "", is_similarity: bool = False) -> OwnTask:
    """Return a task of the same table."""
    return OwnTask(settings=task.settings, table=task.table, only=only, is_similarity=is_similarity)


@dataclass(frozen=True)
class _Rows:
    """The rows of a task and what should be known of them."""

    data: AnyData
    remarks: Remarks


def _described(data: object, name: str | None, columns: Mapping[str, Any]) -> TaskSettings:
    """Return the settings of a table by its path, or of its parts by their paths."""
    settings: dict[str, Any] = {"path": str(data), **columns}
    if isinstance(data, Mapping):
        settings["path"] = {part: str(path) for part, path in data.items()}
    if name is not None:
        settings["name"] = name
    return validate(TaskSettings, Document(settings, source="Task"))


def _absolute(path: str) -> str:
    if is_remote(path):
        return path
    return str(expanded(path).absolute())


def _first_path(path: str | Mapping[str, str]) -> str:
    if isinstance(path, str):
        return path
    return next(iter(path.values()))


def _stem(path: str | Mapping[str, str]) -> str:
    """Return the name of a table's file without its ends, as a task's name."""
    name = Path(_first_path(path).removesuffix(".gz")).name
    for suffix in TABLE_SUFFIXES:
        name = name.removesuffix(suffix)
    return name_of_file(name)


def _name_of_label(name: str, label: str) -> str:
    """Return the name of the task of one of several labels; of all rows' one task, its name. All fit for files."""
    max_bytes = MAX_NAME_BYTES - len(SIMILARITY_SUFFIX)
    if not label:
        return shortened_name(name, max_bytes)
    # Letters of all languages stay as they are, which `quote` alone would escape.
    escaped = "".join(sign if sign.isalnum() else quote(sign, safe=" ") for sign in label)
    short_label = shortened_name(escaped.replace(".", "%2E"), _MAX_LABEL_BYTES)
    return shortened_name(f"{name}.{short_label}", max_bytes)


def _paths(settings: TaskSettings) -> list[str]:
    if is_beir_folder(settings):
        return beir_files(str(settings.path))
    if isinstance(settings.path, str):
        return [settings.path]
    return list(settings.path.values())


def _stamp(settings: TaskSettings) -> tuple[object, ...]:
    """Return what changes whenever a file of a task does: the key of what is kept of it."""
    stamps: list[object] = []
    for path in _paths(settings):
        if is_remote(path):
            stamps += list_s3(path)
            continue
        try:
            status = expanded(path).stat()
        except FileNotFoundError:
            stamps.append((path,))
        except (OSError, ValueError) as error:
            # The file is closed to us, or the text is no path.
            raise DataError(f"{shown(path)}: cannot be read: {shown(error)}") from None
        else:
            stamps.append((path, status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def _read(settings: TaskSettings) -> Table:
    stamp = _stamp(settings)
    if isinstance(settings.path, str):
        return _cached_table(stamp, settings.path, settings.header)
    return _cached_table(stamp, tuple(settings.path.items()), settings.header)


# A command asks for a task's scoring, its remarks and its rows, one after another.
@lru_cache(maxsize=4)
def _cached_table(
    stamp: object, path: str | tuple[tuple[str, str], ...], header: bool | None
) -> Table:
    del stamp
    # Who says that there is a header says that it is the first line.
    has_header = header is not False
    finds_header = header is None
    if isinstance(path, str):
        return read_table(path, has_header=has_header, finds_header=finds_header)
    tables = {
        part: read_table(file, has_header=has_header, finds_header=finds_header)
        for part, file in path
    }
    unknown = next((part for part in tables if split_name(part) is None), None)
    if unknown is not None:
        raise ConfigError(
            f"{path[0][1]}: path: must name train, validation and test; given '{unknown}'"
        )
    return _joined(tables)


def _joined(tables: Mapping[str, Table]) -> Table:
    """Return the tables of the parts as one, with the columns of the first.

    Raises:
        DataError: If a table lacks one of the columns.
    """
    first = next(iter(tables.values()))
    columns: dict[str, list[Any]] = {name: [] for name in first.columns}
    parts = {}
    notes = []
    num_rows = 0
    for part, table in tables.items():
        missing = [name for name in columns if name not in table.columns]
        if missing:
            raise DataError(
                f"{table.source}: must have the columns of {first.source}; it has no '{missing[0]}'"
            )
        for name, cells in columns.items():
            cells.extend(table.columns[name])
        parts[part] = np.arange(num_rows, num_rows + len(table))
        num_rows += len(table)
        notes += [f"{table.source}: {note}" for note in table.notes]
    is_typed = all(table.is_typed for table in tables.values())
    return replace(first, columns=columns, parts=parts, is_typed=is_typed, notes=tuple(notes))


@lru_cache(maxsize=64)
def _cached_rows(task: OwnTask, stamp: object, only: str, is_similarity: bool) -> _Rows:
    del stamp, only, is_similarity
    return _read_rows(task)


def _read_rows(task: OwnTask) -> _Rows:
    """Read, check and divide the rows of a task."""
    settings = task.settings
    if task.is_retrieval:
        if task.table is None and is_beir_folder(settings):
            return _Rows(*read_folder(str(settings.path), task=task.name))
        return _Rows(*read_queries(settings, task._table, task=task.name))
    table, left_out = known_splits(task._table)
    columns = find_columns(settings, table)
    if len(table) == 0:
        raise DataError(f"{table.source}: must have rows; given only the names of columns")
    table, unlabelled = labelled_rows(table, columns)
    texts = tuple(table.texts(name, key="text") for name in columns.texts)
    warnings = unlabelled + _text_warnings(table, texts)
    targets = read_targets(settings, table, columns, only=task.only)
    labels = targets.labels
    scores = targets.scores
    is_scored = scores is not None
    if scores is None:
        scores = NO_SCORES
    warnings += targets.warnings
    groups = None
    if columns.group is not None:
        groups = as_labels(table.column(columns.group, key="group"))
    division = None
    if task.is_similarity:
        division = tested_alone(settings, table, columns)
    if division is None:
        division = divide(
            settings,
            table,
            columns,
            texts=texts,
            labels=labels,
            strata=strata_of(settings, table, columns, labels),
            is_scored=is_scored,
            groups=groups,
        )
        warnings += division.warnings + division_warnings(
            settings, texts, division, labels, groups, targets.names, is_scored=is_scored
        )
        _check_classes(table, targets.names, labels, division, is_scored=is_scored)
    metric, metric_notes = _metric(settings, targets.names, labels, is_scored=is_scored)
    data = TaskData(
        task=_name_of_rows(task),
        kind=_kind(texts, settings),
        split=division.split,
        label_names=targets.names,
        label_kind=targets.kind,
        sentences=texts,
        labels=labels,
        train=division.train,
        validation=division.validation,
        test=division.test,
        folds=division.folds,
        units=division.units,
        has_drawn_validation=division.has_drawn_validation,
        has_drawn_test=division.has_drawn_test,
        metric=metric,
        scores=scores,
        scale=targets.scale,
    )
    notes = [*table.notes]
    if columns.notes:
        notes.append(", ".join(columns.notes))
    notes += [f"{len(table):,} rows", *targets.notes, *metric_notes]
    language = unspaced_language(texts[0])
    if language is not None:
        notes.append(
            f"in {language}, without blanks between words: the baseline is 'tfidf:chars', not 'tfidf'"
        )
    notes += [division.note, *left_out]
    note = f"{task.name}: {'; '.join(notes)}"
    named_warnings = tuple(f"{task.name}: {warning}" for warning in warnings)
    summary = _summary(task.name, data, columns, targets.notes)
    return _Rows(data, Remarks((note,), named_warnings, summary))


def _name_of_rows(task: OwnTask) -> str:
    """Return the name of a task's rows: the task of similarities has those of the task with a probe."""
    if task.is_similarity:
        return task.name.removesuffix(SIMILARITY_SUFFIX)
    return task.name


def _summary(name: str, data: TaskData, columns: Columns, targets: Sequence[str]) -> str:
    """Return what a task's rows are, in one short line: `reviews: 3,000 rows of 'text', 2 classes of 'label' …`."""
    texts = " and ".join(f"'{column}'" for column in columns.texts)
    contents = ", ".join([f"{len(data):,} rows of {texts}", *targets])
    return f"{name}: {contents}; {len(data.test):,} rows are held out"


def _metric(
    settings: TaskSettings, names: Sequence[str], labels: np.ndarray, *, is_scored: bool
) -> tuple[Metric, list[str]]:
    """Return what counts on a task, and a note where no one named it and it is not accuracy."""
    if settings.metric is not None:
        return settings.metric, []
    if is_scored or not len(labels):
        return "accuracy", []
    counts = np.bincount(labels)
    largest = int(counts.argmax())
    share = counts[largest] / len(labels)
    if share <= _LARGEST_SHARE:
        return "accuracy", []
    note = (
        f"{share:.0%} of the rows are '{names[largest]}', so the score is macro F1; metric=accuracy "
        "keeps accuracy"
    )
    return "macro_f1", [note]


def _kind(texts: Sequence[list[str]], settings: TaskSettings) -> Kind:
    if len(texts) == 1:
        return "sentence"
    if settings.ordered:
        return "order"
    return "likeness"


def _text_warnings(table: Table, texts: Sequence[list[str]]) -> list[str]:
    """Return warnings of empty and of very long texts.

    Raises:
        DataError: If all are empty.
    """
    warnings = []
    num_empty = sum(not text.strip() for column in texts for text in column)
    if num_empty == sum(map(len, texts)):
        raise DataError(f"{table.source}: text: must hold text; all {num_empty} values are empty")
    if num_empty:
        warnings.append(f"{num_empty} texts are empty")
    longest = max(len(text) for column in texts for text in column)
    if longest > _LONG_TEXT:
        warnings.append(
            f"the longest text has {longest:,} characters; encoders read the first words of it"
        )
    return warnings


def _check_classes(
    table: Table, names: Sequence[str], labels: np.ndarray, division: Division, *, is_scored: bool
) -> None:
    if is_scored:
        return
    missing = [names[label] for label in np.setdiff1d(np.unique(labels), labels[division.train])]
    if missing:
        raise DataError(
            f"{table.source}: label: train must have rows of every class; it has none of {', '.join(missing[:5])}"
        )


def _similarity_data(data: TaskData) -> SimilarityData:
    """Return the test rows as a set of scored pairs: all rows where no part was given, as nothing is fitted."""
    test_rows = data.select(data.test)
    first, second = test_rows.sentences
    name = f"{data.task}{SIMILARITY_SUFFIX}"
    return SimilarityData(name, (ScoredSet("test", first, second, test_rows.scores),))
