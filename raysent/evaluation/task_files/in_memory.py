"""Tables in memory -> `Table`: data frames, rows, columns, Arrow, and what can be made into one of these.

Values keep their types. A table of another library is read by what it offers: a stream of Arrow (``pyarrow``, Polars,
DuckDB), ``to_pandas`` (Hugging Face `datasets`), or ``__dataframe__``. What has no columns is refused in one line.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from raysent.data.tables import Table
from raysent.errors import ConfigError, listed, shown
from raysent.evaluation.task_files.division import split_name

if TYPE_CHECKING:
    import pandas as pd

_FORMS = "a path, a data frame, a list of dicts, a dict of columns, or a table of Arrow or datasets"


@runtime_checkable
class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


@runtime_checkable
class _ToPandas(Protocol):
    def to_pandas(self) -> Any: ...


@runtime_checkable
class _Interchanged(Protocol):
    def __dataframe__(self) -> Any: ...


@runtime_checkable
class _WithFeatures(Protocol):
    """A dataset that says what numbers of classes stand for."""

    features: Mapping[str, Any]


@runtime_checkable
class _ClassLabel(Protocol):
    names: Sequence[str]


def is_paths(data: object) -> bool:
    """Return whether data is a path, or a path for each part."""
    if isinstance(data, Mapping):
        return bool(data) and all(isinstance(path, str | Path) for path in data.values())
    return isinstance(data, str | Path)


def table_in_memory(name: str, data: Any) -> Table:
    """Return data in memory as a table.

    Args:
        name: The name of its task.
        data: The rows; or a mapping of ``train``, ``validation`` and ``test`` to the rows of each.

    Raises:
        ConfigError: If it has no columns, or two of one name.
    """
    if isinstance(data, Mapping) and data and all(map(_is_part, data.items())):
        return _of_parts(name, data)
    columns = _columns(data)
    if not columns:
        raise ConfigError("Task: data: must have columns of text and of labels; given none")
    lengths = {len(cells) for cells in columns.values()}
    if len(lengths) > 1:
        raise ConfigError(
            f"Task: data: must have columns of one length; given {listed(sorted(lengths))}"
        )
    return Table(name, columns, {}, _class_names(data))


def _is_part(part: tuple[object, object]) -> bool:
    key, rows = part
    is_column = isinstance(rows, list | tuple | np.ndarray) and not _is_rows(rows)
    return isinstance(key, str) and split_name(key) is not None and not is_column


def _is_rows(data: object) -> bool:
    return (
        isinstance(data, list | tuple)
        and bool(data)
        and all(isinstance(row, Mapping) for row in data)
    )


def _of_parts(name: str, data: Mapping[str, Any]) -> Table:
    tables = {part: table_in_memory(name, rows) for part, rows in data.items()}
    first = next(iter(tables.values()))
    for part, table in tables.items():
        if set(table.columns) != set(first.columns):
            raise ConfigError(
                f"Task: data: parts must have the same columns; '{part}' has {listed(table.columns)}, another one "
                f"{listed(first.columns)}"
            )
    columns: dict[str, list[Any]] = {column: [] for column in first.columns}
    parts = {}
    num_rows = 0
    for part, table in tables.items():
        for column, cells in columns.items():
            cells.extend(table.columns[column])
        parts[part] = np.arange(num_rows, num_rows + len(table))
        num_rows += len(table)
    return replace(first, columns=columns, parts=parts)


def _columns(data: Any) -> dict[str, list[Any]]:
    import pandas as pd  # noqa: PLC0415 - half a second that tables of files need not wait for

    if isinstance(data, pd.Series):
        raise ConfigError(
            "Task: data: must have columns of text and of labels; given a Series, which is one; give a data frame"
        )
    if _is_rows(data):
        names = dict.fromkeys(key for row in data for key in row)
        return _named((key, [row.get(key) for row in data]) for key in names)
    if isinstance(data, Mapping):
        return _named((key, _as_list(key, cells)) for key, cells in data.items())
    if isinstance(data, pd.DataFrame):
        return _of_frame(data)
    if isinstance(data, _ArrowStream):
        return _of_arrow(data)
    if isinstance(data, _ToPandas):
        return _of_frame(data.to_pandas())
    if isinstance(data, _Interchanged):
        with warnings.catch_warnings():
            # pandas reads it, and says that other protocols are newer.
            warnings.simplefilter("ignore")
            return _of_frame(pd.api.interchange.from_dataframe(data))
    is_sequence = isinstance(data, list | tuple | np.ndarray) and len(data) > 0
    if not is_sequence or isinstance(data[0], str):
        raise ConfigError(f"Task: data: must be {_FORMS}; given {_described(data)}")
    try:
        frame = pd.DataFrame(data)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"Task: data: must be {_FORMS}; given {_described(data)}: {shown(error)}"
        ) from None
    return _of_frame(frame)


def _of_arrow(data: _ArrowStream) -> dict[str, list[Any]]:
    import pyarrow as pa  # noqa: PLC0415 - as above

    table = pa.table(data)
    return _named(
        (name, column.to_pylist())
        for name, column in zip(table.column_names, table.columns, strict=True)
    )


def _described(data: object) -> str:
    kind = type(data).__name__
    if isinstance(data, list | tuple) and data:
        return f"a {kind} of {type(data[0]).__name__}"
    return f"a {kind}"


def _as_list(key: object, cells: Any) -> list[Any]:
    if isinstance(cells, np.ndarray):
        # With the types of Python, which a list of the array would not have.
        return list(cells.tolist())
    if isinstance(cells, str) or not isinstance(cells, Iterable):
        raise ConfigError(
            f"Task: data: must have a list of values in column '{shown(key)}'; given {type(cells).__name__}"
        )
    return list(cells)


def _of_frame(frame: pd.DataFrame) -> dict[str, list[Any]]:
    return _named((column, _of_series(frame.iloc[:, index])) for index, column in enumerate(frame))


def _of_series(series: pd.Series) -> list[Any]:
    cells: list[Any] = series.astype(object).where(series.notna(), None).tolist()
    for row, cell in enumerate(cells):
        # Lists of labels are arrays in frames that were read of Parquet or made of Arrow.
        if isinstance(cell, np.ndarray):
            cells[row] = cell.tolist()
    return cells


def _named(columns: Iterable[tuple[object, list[Any]]]) -> dict[str, list[Any]]:
    """Return columns by their names as text.

    Raises:
        ConfigError: If two have the same name.
    """
    by_name: dict[str, list[Any]] = {}
    for column, cells in columns:
        name = str(column)
        if name in by_name:
            raise ConfigError(
                f"Task: data: must have columns of different names; given '{shown(name)}' twice"
            )
        by_name[name] = cells
    return by_name


def _class_names(data: object) -> dict[str, list[str]]:
    if not isinstance(data, _WithFeatures) or not isinstance(data.features, Mapping):
        return {}
    return {
        str(column): list(feature.names)
        for column, feature in data.features.items()
        if isinstance(feature, _ClassLabel) and not isinstance(feature, type)
    }
