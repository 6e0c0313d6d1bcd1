"""Tables of text: a file or folder -> named columns of equal length.

| name ends in | read as |
|---|---|
| `.csv` | comma-separated values, or what else separates the names of its columns |
| `.tsv` | tab-separated values; quotes are part of a value unless they enclose all of it |
| `.jsonl` | one JSON object a line; the columns are the keys of all objects |
| `.parquet` | Parquet |
| a folder | what Hugging Face `datasets` wrote with `save_to_disk`, one part for each of its splits |

CSV, TSV and JSON lines may be gzipped. Text is UTF-8, with or without a BOM, or UTF-16 or UTF-32 with a BOM; lines may
end as on any system; blank lines count for nothing. A line of CSV and TSV names the columns, see `delimited`, unless a
table is read without a header: then they are named ``0``, ``1``, …. Every value of CSV and TSV is text: "NA" is a
value, and "" is one too, but for a label, which is missing then.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from raysent.data.column_names import TEXT_COLUMNS, plain_name
from raysent.data.delimited import DelimitedRows, full_lines, open_delimited, whole_lines
from raysent.data.text_files import batched, open_bytes, parse_object, reading_errors
from raysent.data.unicode_form import in_form
from raysent.errors import DataError, did_you_mean, listed, shown
from raysent.platforms import expanded
from raysent.reading import parse_json
from raysent.storage import address_of, check_name, is_remote, open_folder

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_DELIMITED = TABLE_SUFFIXES[:2]
# The columns that are read without being named.
_GUESSED = (*TEXT_COLUMNS[:2], "passage")
# What `datasets` writes into the folder of a dataset, and into a folder of several splits.
DATASET_FILE = "dataset_info.json"
SPLITS_FILE = "dataset_dict.json"
_BATCH_ROWS = 1024


@dataclass(frozen=True)
class Table:
    """Named columns of one file or folder.

    Attributes:
        source: The file or folder, for messages.
        columns: Name -> values [rows]: text from CSV and TSV, any value from other formats; None where one is missing.
        parts: Name of a `datasets` split -> its rows, int64; empty for other formats.
        class_names: Column -> the names of its classes, for columns that hold numbers of classes.
        has_header: Whether a line of a CSV or TSV file was taken for the names of the columns.
        places: The row of the file that each row is, for messages, int64; None where all are here.
        is_typed: Whether values have types; those of CSV and TSV are text.
        notes: What was left out of the file, in words.
        schema: As of `TableBlocks`.
    """

    source: str
    columns: Mapping[str, list[Any]]
    parts: Mapping[str, np.ndarray]
    class_names: Mapping[str, list[str]]
    has_header: bool = False
    places: np.ndarray | None = None
    is_typed: bool = True
    notes: tuple[str, ...] = ()
    schema: Any = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def where(self, row: int) -> str:
        """Return the file and the row, as messages begin."""
        file_row = row if self.places is None else self.places[row]
        return f"{self.source}: row {file_row + 1}"

    def take(self, rows: np.ndarray) -> Table:
        """Return some of the rows, int64, in the order given."""
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        parts = {name: np.flatnonzero(np.isin(rows, part)) for name, part in self.parts.items()}
        return replace(
            self,
            columns=columns,
            parts=parts,
            places=rows if self.places is None else self.places[rows],
        )

    def column(self, name: str, *, key: str) -> list[Any]:
        """Return a column's values [rows].

        Args:
            name: The column's name.
            key: The setting that names it, for the message.

        Raises:
            DataError: If there is no such column.
        """
        if name in self.columns:
            return self.columns[name]
        # A file may have the name in another form of Unicode than a keyboard types.
        alike = [
            column_name
            for column_name in self.columns
            if in_form(column_name, "NFC") == in_form(name, "NFC")
        ]
        if len(alike) == 1:
            return self.columns[alike[0]]
        raise DataError(
            f"{self.source}: {key}: must name a column; given '{shown(name)}'{did_you_mean(name, self.columns)}"
        )

    def texts(self, name: str, *, key: str) -> list[str]:
        """Return a column of text [rows].

        Raises:
            DataError: If there is no such column, or a value is not text.
        """
        texts = self.column(name, key=key)
        check_texts(texts, source=self.source, column=f"{key} '{name}'")
        return texts


def check_texts(
    values: Sequence[Any],
    *,
    source: str,
    column: str,
    first_row: int = 1,
    kinds: tuple[type, ...] = (str,),
) -> None:
    """Refuse values of a column that are not text.

    Args:
        values: Some rows.
        source: The table, for the message.
        column: The column, for the message.
        first_row: Number of the first of them in the table.
        kinds: What they may be; labels may also be numbers, or missing.

    Raises:
        DataError: With the row of the first value that is not.
    """
    wrong_row = next(
        (row for row, value in enumerate(values) if not isinstance(value, kinds)), None
    )
    if wrong_row is not None:
        expected = "text" if kinds == (str,) else "text or a number"
        shown_type = "nothing"
        if values[wrong_row] is not None:
            shown_type = type(values[wrong_row]).__name__
        raise DataError(
            f"{source}: row {first_row + wrong_row}: {column} must be {expected}; given {shown_type}"
        )


def is_table(path: str | Path) -> bool:
    """Return whether a path names a table: by its suffix, or as a folder that `datasets` saved."""
    name = str(path)
    if name.removesuffix(".gz").lower().endswith(TABLE_SUFFIXES):
        return True
    return not is_remote(name) and is_dataset_folder(expanded(name))


def is_dataset_folder(path: Path) -> bool:
    """Return whether `datasets` saved this folder."""
    try:
        return any((path / name).is_file() for name in (DATASET_FILE, SPLITS_FILE))
    except OSError:  # a text that is no path
        return False


def open_table(
    path: str | Path,
    *,
    kind: str | None = None,
    has_header: bool = True,
    finds_header: bool = True,
) -> TableBlocks:
    """Open a file of rows or the folder of one `datasets` dataset, on disk or in ``s3://``, for reading.

    Args:
        path: The file or folder.
        kind: One of `TABLE_SUFFIXES`; by default the end of its name.
        has_header: Whether a line of CSV and TSV names the columns; others name them always. The columns of JSON lines
            are the keys of all objects.
        finds_header: Whether names of CSV and TSV may stand below a title; otherwise the first line holds them.

    Raises:
        DataError: If there is no such file, or its columns cannot be read.
    """
    name = str(path)
    kind = kind or _kind(path)
    if kind in _DELIMITED:
        is_tsv = kind == ".tsv"
        rows = open_delimited(name, is_tsv=is_tsv, has_header=has_header, finds_header=finds_header)
        return _blocks_of_rows(name, replace(rows, names=_checked_names(name, rows.names)))
    check_header(name, has_header=has_header)
    if kind == ".jsonl":
        return _open_json_lines(name)
    if kind == ".parquet":
        return _open_parquet(name)
    return _open_dataset(name)


def _kind(path: str | Path) -> str:
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def check_header(name: str, *, has_header: bool) -> None:
    """Refuse to read a file without a header where only a format with names, or without columns, is possible."""
    if not has_header and _kind(name) not in _DELIMITED:
        raise DataError(
            f"{name}: only {' and '.join(_DELIMITED)} may be read without a line of names"
        )


def read_table(path: str | Path, *, has_header: bool = True, finds_header: bool = True) -> Table:
    """Read a table, on disk or in ``s3://``.

    Args:
        path: The file or folder.
        has_header: As for `open_table`.
        finds_header: As for `open_table`.

    Raises:
        DataError: If there is no such file, its form is unknown, or a row is malformed.
    """
    name = str(path)
    kind = _kind(path)
    check_header(name, has_header=has_header)
    if kind in TABLE_SUFFIXES:
        splits = {"": open_table(name, has_header=has_header, finds_header=finds_header)}
    else:
        if is_remote(name):
            folder = open_folder(path)
        else:
            folder = expanded(name)
        name = address_of(folder)
        splits = _open_splits(folder)
    first = next(iter(splits.values()))
    columns: dict[str, list[Any]] = {column: [] for column in first.names}
    starts = [0]
    for split, blocks in splits.items():
        if set(blocks.names) != set(first.names):
            raise DataError(
                f"{name}: splits must have the same columns; '{split}' has {listed(blocks.names)}"
            )
        for block in blocks.blocks(first.names):
            for column, cells in zip(first.names, block, strict=True):
                columns[column] += cells
        starts.append(len(next(iter(columns.values()), [])))
    parts = {
        split: np.arange(start, stop)
        for split, start, stop in zip(splits, starts, starts[1:], strict=False)
        if split
    }
    return Table(
        name,
        columns,
        parts,
        first.class_names,
        first.has_header,
        is_typed=first.is_typed,
        notes=first.notes,
        schema=first.schema,
    )


@dataclass(frozen=True)
class TableBlocks:
    """A table whose rows are read in blocks, so that memory holds one of them.

    Attributes:
        source: The file or folder, for messages.
        names: The columns.
        read: Positions of columns -> blocks of their values [columns][rows]; every call reads the table again.
        class_names: As of `Table`.
        has_header: As of `Table`.
        is_typed: As of `Table`.
        notes: As of `Table`.
        schema: The types of the columns, a schema of Arrow, of a file that has types; else None.
        read_arrays: As `read`, but yields arrays of Arrow with these types.
    """

    source: str
    names: tuple[str, ...]
    read: Callable[[Sequence[int]], Iterator[list[list[Any]]]] = field(repr=False)
    class_names: Mapping[str, list[str]] = field(default_factory=dict)
    has_header: bool = False
    is_typed: bool = True
    notes: tuple[str, ...] = ()
    schema: Any = None
    read_arrays: Callable[[Sequence[int]], Iterator[list[Any]]] | None = field(
        default=None, repr=False
    )

    def arrays(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """Yield the values of some columns of a file that has types as arrays of Arrow, in blocks of rows."""
        assert self.read_arrays is not None
        yield from self.read_arrays([self.names.index(name) for name in names])

    def blocks(self, names: Sequence[str]) -> Iterator[list[list[Any]]]:
        """Yield the values of some columns, [columns][rows], in blocks of rows.

        Raises:
            DataError: If a row is malformed.
        """
        yield from self.read([self.names.index(name) for name in names])


def find_text_column(
    names: Sequence[str], *, wanted: str = TEXT_COLUMNS[0], where: str, otherwise: str = ""
) -> str:
    """Return the column of text: the wanted one; in place of ``text``, the default, also ``sentence`` or ``passage``.

    Args:
        names: The columns.
        wanted: The column to read.
        where: Begins the message: the setting and the table.
        otherwise: Ends the message: what else may be done.

    Raises:
        DataError: If there is no such column; the message lists the columns and how to name one.
    """
    if wanted in names:
        return wanted
    if wanted != TEXT_COLUMNS[0]:
        raise DataError(
            f"{where}: must name a column; given '{shown(wanted)}'{did_you_mean(wanted, names)}"
        )
    names_by_plain_name = {plain_name(name): name for name in reversed(names)}
    text_column = next(
        (names_by_plain_name[name] for name in _GUESSED if name in names_by_plain_name), None
    )
    if text_column is not None:
        return text_column
    likely_names = [
        names_by_plain_name[name] for name in TEXT_COLUMNS if name in names_by_plain_name
    ]
    if likely_names:
        suggestion = likely_names[0]
    elif len(names) == 1:
        suggestion = names[0]
    else:
        suggestion = "NAME"
    raise DataError(
        f"{where}: must name the column of text; the columns are {listed(names)}; "
        f"name one, as {shlex.quote(shown(suggestion))}{otherwise}"
    )


_NUMBER_OR_SENTENCE = re.compile(r"^\s*[-+]?[\d.,]*\d\s*$|[.!?…。！？]\s*$")
_MOST_WORDS = 4
_MOST_CHARACTERS = 40


def data_among(names: Sequence[str]) -> str | None:
    """Return the first name of a column that looks like a value, a number or a sentence; None where all are names."""
    for name in names:
        is_long = len(name.split()) > _MOST_WORDS or len(name) > _MOST_CHARACTERS
        if is_long or _NUMBER_OR_SENTENCE.search(name) is not None:
            return name
    return None


def open_lines(
    name: str, separator: str, *, has_header: bool, convert: Callable[[str], str] = str
) -> TableBlocks:
    """Open lines of values, of which each has as many as are read, or more.

    Args:
        name: The file.
        separator: Between values; quotes have no meaning.
        has_header: Whether the first line names the columns.
        convert: Value as it is written -> value.

    Raises:
        DataError: If the file cannot be read, or is empty.
    """

    def rows() -> Iterator[list[str]]:
        lines = islice(full_lines(name), int(has_header), None)
        return (list(map(convert, line.split(separator))) for line in lines)

    first = next(full_lines(name), None)
    if first is None:
        raise DataError(f"{name}: must name its columns in the first line; given an empty file")
    cells = first.split(separator)
    names: Iterable[str]
    if has_header:
        names = [cell.strip() for cell in cells]
    else:
        names = map(str, range(len(cells)))
    return _blocks_of_rows(name, DelimitedRows(tuple(names), rows, has_header))


def _blocks_of_rows(name: str, opened: DelimitedRows) -> TableBlocks:
    """Return rows of text as a table."""

    def read(columns: Sequence[int]) -> Iterator[list[list[Any]]]:
        num_rows = 0
        width = max(columns, default=-1) + 1
        for block in batched(opened.rows(), _BATCH_ROWS):
            short_row = next((index for index, row in enumerate(block) if len(row) < width), None)
            if short_row is not None:
                raise DataError(
                    f"{name}: row {num_rows + short_row + 1}: must have {width} values; given {len(block[short_row])}"
                )
            yield [[row[column] for row in block] for column in columns]
            num_rows += len(block)

    return TableBlocks(
        name, opened.names, read, has_header=opened.has_header, notes=opened.notes, is_typed=False
    )


def _checked_names(source: str, names: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in names)
    repeated_name = next((name for name in names if names.count(name) > 1), None)
    if repeated_name is not None:
        raise DataError(
            f"{source}: columns must have different names; given '{shown(repeated_name)}' twice; rename one"
        )
    return names


def _json_objects(name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(whole_lines(name, most=None), start=1):
        if line.strip():
            yield parse_object(f"{name}:{number}", line)


def _open_json_lines(name: str) -> TableBlocks:
    """Open JSON lines; an object need not have all columns, so that all objects are read to find them."""
    names = list(dict.fromkeys(key for record in _json_objects(name) for key in record))

    def read(columns: Sequence[int]) -> Iterator[list[list[Any]]]:
        for records in batched(_json_objects(name), _BATCH_ROWS):
            yield [[record.get(names[column]) for record in records] for column in columns]

    return TableBlocks(name, tuple(names), read)


def _open_parquet(name: str) -> TableBlocks:
    with _parquet_file(name) as file:
        schema = file.schema_arrow

    def read_arrays(columns: Sequence[int]) -> Iterator[list[Any]]:
        column_names = [schema.names[column] for column in columns]
        with _parquet_file(name) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=column_names, use_threads=False):
                yield [batch.column(column) for column in column_names]

    return _blocks_of_arrays(name, schema, read_arrays)


def _blocks_of_arrays(
    name: str, schema: Any, read_arrays: Callable[[Sequence[int]], Iterator[list[Any]]]
) -> TableBlocks:
    def read(columns: Sequence[int]) -> Iterator[list[list[Any]]]:
        for arrays in read_arrays(columns):
            yield [values_of(array, name) for array in arrays]

    names = _checked_names(name, schema.names)
    return TableBlocks(
        name, names, read, _class_names(schema), schema=schema, read_arrays=read_arrays
    )


@contextlib.contextmanager
def _parquet_file(name: str) -> Iterator[Any]:
    from pyarrow import ArrowException, parquet  # noqa: PLC0415 - late, as processes that load a model import this file

    with reading_errors(name), open_bytes(name) as stream:
        try:
            yield parquet.ParquetFile(stream)
        except (ArrowException, OSError) as error:
            raise DataError(
                f"{name}: not a Parquet file, or truncated ({' '.join(str(error).split())[:100]})"
            ) from None


def values_of(column: Any, name: str) -> list[Any]:
    """Return the values of an array of Arrow.

    Args:
        column: The array.
        name: The table, for messages.

    Raises:
        DataError: If a text is damaged, or a date has no value in Python.
    """
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: text must be UTF-8; given byte 0x{error.object[error.start]:02x}"
        ) from None
    except OverflowError:
        raise DataError(
            f"{name}: dates must be in the years 1 to 9999; one is not; leave out its column"
        ) from None


def _open_dataset(folder: str, name: str = "") -> TableBlocks:
    name = name or folder
    files = arrow_files(folder, name=name)
    with _arrow_reader(files[0], name) as reader:
        schema = reader.schema

    def read_arrays(columns: Sequence[int]) -> Iterator[list[Any]]:
        for file in files:
            with _arrow_reader(file, name) as reader:
                for field in schema:
                    if (
                        field.name not in reader.schema.names
                        or field.type != reader.schema.field(field.name).type
                    ):
                        raise DataError(
                            f"{name}: files must have the same columns, of the same types; {Path(file).name} has not, "
                            f"see '{shown(field.name)}'; save it again"
                        )
                for batch in reader:
                    yield [batch.column(schema.names[column]) for column in columns]

    return _blocks_of_arrays(name, schema, read_arrays)


def arrow_files(folder: str, *, name: str = "") -> list[str]:
    """Return the files of rows of one `datasets` dataset, on disk or in ``s3://``, in order.

    Args:
        folder: The folder.
        name: Its name in messages; by default the folder.

    Raises:
        DataError: If the folder is not one, or is incomplete.
    """
    dataset_folder = folder.rstrip("/")
    with (
        _dataset_errors(name or dataset_folder),
        open_bytes(f"{dataset_folder}/state.json") as stream,
    ):
        names = [str(file["filename"]) for file in parse_json(stream.read())["_data_files"]]
    if not names:
        raise DataError(f"{name or dataset_folder}: must have rows; given none")
    for file in names:
        check_name(file, where=f"{dataset_folder}/state.json")
    return [f"{dataset_folder}/{file}" for file in names]


@contextlib.contextmanager
def _dataset_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError) as error:
        # An ArrowInvalid is a ValueError.
        reason = " ".join(str(error).split())[:100]
        raise DataError(
            f"{folder}: not a folder of datasets, or incomplete ({reason}); save it again"
        ) from None


@contextlib.contextmanager
def _arrow_reader(file: str, folder: str) -> Iterator[Any]:
    from pyarrow import ipc, memory_map  # noqa: PLC0415 - as above

    with _dataset_errors(folder), open_bytes(file) as stream:
        yield ipc.open_stream(stream if is_remote(file) else memory_map(file))


def _open_splits(folder: Path) -> dict[str, TableBlocks]:
    """Open a folder of `datasets`: one dataset, named "", or one below the name of each split."""
    name = address_of(folder)
    if not folder.exists():
        raise DataError(f"{name}: no such file or folder")
    if not is_dataset_folder(folder):
        raise DataError(
            f"{name}: must be a {', '.join(TABLE_SUFFIXES)} file or a folder that datasets saved; "
            "save it as .csv, or with save_to_disk"
        )
    if (folder / SPLITS_FILE).is_file():
        splits = split_names(str(folder))
    else:
        splits = [""]
    return {
        split: _open_dataset(str(folder / split), address_of(folder / split)) for split in splits
    }


def split_names(folder: str) -> list[str]:
    """Return the names of the splits of a folder that `datasets` saved, on disk or in ``s3://``.

    Raises:
        DataError: If its list of splits is damaged.
    """
    path = f"{folder.rstrip('/')}/{SPLITS_FILE}"
    try:
        with reading_errors(path), open_bytes(path) as stream:
            names = [str(split) for split in parse_json(stream.read())["splits"]]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: must list the splits of a dataset; save it again") from None
    for name in names:
        check_name(name, where=path)
    return names


def _class_names(schema: Any) -> dict[str, list[str]]:
    about = (schema.metadata or {}).get(b"huggingface")
    try:
        features: dict[str, Any] = {}
        if about:
            features = parse_json(about)["info"]["features"]
    except (ValueError, TypeError, KeyError):  # of another tool
        features = {}
    return {
        column: list(feature["names"])
        for column, feature in features.items()
        if isinstance(feature, dict)
        and feature.get("_type") == "ClassLabel"
        and feature.get("names")
    }


def as_labels(values: Sequence[Any], class_names: Sequence[str] | None = None) -> list[str | None]:
    """Return labels as text [rows], None where one is missing: empty, null or NaN.

    Args:
        values: Text, numbers or truth values.
        class_names: The names of the classes that numbers stand for; -1 is then a missing label.
    """
    return [_as_label(value, class_names) for value in values]


def _as_label(value: Any, class_names: Sequence[str] | None) -> str | None:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if class_names is not None and isinstance(value, int):
        if 0 <= value < len(class_names):
            return class_names[value]
        return None
    return str(value).strip() or None
