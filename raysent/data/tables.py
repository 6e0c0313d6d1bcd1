"""Tables of text: a file or folder -> named columns of equal length.

| name ends in | read as |
|---|---|
| `.csv` | comma-separated values, or semicolons or tabs where the header has more of them |
| `.tsv` | tab-separated values; quotes are part of a value unless they enclose all of it |
| `.jsonl` | one JSON object a line |
| `.parquet` | Parquet |
| a folder | what Hugging Face `datasets` wrote with `save_to_disk`, one part for each of its splits |

CSV, TSV and JSON lines may be gzipped. Text is UTF-8, with or without a BOM, or UTF-16 with a BOM; lines may end in
CRLF; blank lines count for nothing. The first line of CSV and TSV names the columns, unless a table is read without a
header: then they are named ``0``, ``1``, …. Every value of CSV and TSV is text: "NA" is a value, and "" is one too, but
for a label, which is missing then.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from raysent.data.text_files import (
    batched,
    iterate_lines,
    open_bytes,
    parse_object,
    reading_errors,
    text_blocks,
)
from raysent.errors import DataError, did_you_mean
from raysent.reading import parse_json
from raysent.storage import address_of, check_name, is_remote, open_folder

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_DELIMITED = TABLE_SUFFIXES[:2]
# Usual names of a column of text, the most usual first.
TEXT_COLUMNS = (
    "text", "sentence", "content", "body", "review", "comment", "question", "utterance", "message", "document",
)  # fmt: skip
# The columns that are read without being named.
_GUESSED = TEXT_COLUMNS[:2]
_MAX_SHOWN = 20
# What `datasets` writes into the folder of a dataset, and into a folder of several splits.
DATASET_FILE, SPLITS_FILE = "dataset_info.json", "dataset_dict.json"
_BATCH_ROWS = 1024
# Characters of a value of CSV; a file that does not close a quotation mark is not read to its end.
_MAX_ROW = 1 << 24
csv.field_size_limit(_MAX_ROW)


@dataclass(frozen=True)
class Table:
    """Named columns of one file or folder.

    Attributes:
        source: The file or folder, for messages.
        columns: Name -> values [rows]: text from CSV and TSV, any value from other formats; None where one is missing.
        parts: Name of a `datasets` split -> its rows, int64; empty for other formats.
        class_names: Column -> the names of its classes, for columns that hold numbers of classes.
        has_header: Whether the first line of a CSV or TSV file was taken for the names of the columns.
        places: The row of the file that each row is, for messages, int64; None where all are here.
        is_typed: Whether values have types; those of CSV and TSV are text.
    """

    source: str
    columns: Mapping[str, list[Any]]
    parts: Mapping[str, np.ndarray]
    class_names: Mapping[str, list[str]]
    has_header: bool = False
    places: np.ndarray | None = None
    is_typed: bool = True

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def where(self, row: int) -> str:
        """Return the file and the row, as messages begin."""
        return f"{self.source}: row {(row if self.places is None else self.places[row]) + 1}"

    def take(self, rows: np.ndarray) -> Table:
        """Return some of the rows, int64, in the order given."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
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
        if name not in self.columns:
            raise DataError(
                f"{self.source}: {key}: must name a column; given '{name}'{did_you_mean(name, self.columns)}"
            )
        return self.columns[name]

    def texts(self, name: str, *, key: str) -> list[str]:
        """Return a column of text [rows].

        Raises:
            DataError: If there is no such column, or a value is not text.
        """
        values = self.column(name, key=key)
        check_texts(values, source=self.source, column=f"{key} '{name}'")
        return values


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
    wrong = next((row for row, value in enumerate(values) if not isinstance(value, kinds)), None)
    if wrong is not None:
        wanted = "text" if kinds == (str,) else "text or a number"
        given = "nothing" if values[wrong] is None else type(values[wrong]).__name__
        raise DataError(
            f"{source}: row {first_row + wrong}: {column} must be {wanted}; given {given}"
        )


def is_table(path: str | Path) -> bool:
    """Return whether a path names a table: by its suffix, or as a folder that `datasets` saved."""
    name = str(path)
    if name.removesuffix(".gz").lower().endswith(TABLE_SUFFIXES):
        return True
    return not is_remote(name) and is_dataset_folder(Path(name).expanduser())


def is_dataset_folder(path: Path) -> bool:
    """Return whether `datasets` saved this folder."""
    return any((path / name).is_file() for name in (DATASET_FILE, SPLITS_FILE))


def open_table(
    path: str | Path, *, kind: str | None = None, has_header: bool = True
) -> TableBlocks:
    """Open a file of rows or the folder of one `datasets` dataset, on disk or in ``s3://``, for reading.

    Args:
        path: The file or folder.
        kind: One of `TABLE_SUFFIXES`; by default the end of its name.
        has_header: Whether the first line of CSV and TSV names the columns; others name them always. The columns of
            JSON lines are the keys of the first object.

    Raises:
        DataError: If there is no such file, or its columns cannot be read.
    """
    name, kind = str(path), kind or _kind(path)
    if kind in _DELIMITED:
        opened = (_open_csv if kind == ".csv" else _open_tsv)(name, has_header)
        return replace(opened, names=_checked_names(name, opened.names))
    check_header(name, has_header=has_header)
    if kind == ".jsonl":
        return _open_json_lines(name, list(next(_json_objects(name), {})))
    return _open_parquet(name) if kind == ".parquet" else _open_dataset(name)


def _kind(path: str | Path) -> str:
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def check_header(name: str, *, has_header: bool) -> None:
    """Refuse to read a file without a header where only a format with names, or without columns, is possible."""
    if not has_header and _kind(name) not in _DELIMITED:
        raise DataError(
            f"{name}: only {' and '.join(_DELIMITED)} may be read without a line of names"
        )


def read_table(path: str | Path, *, has_header: bool = True) -> Table:
    """Read a table, on disk or in ``s3://``.

    Args:
        path: The file or folder.
        has_header: As for `open_table`.

    Raises:
        DataError: If there is no such file, its form is unknown, or a row is malformed.
    """
    name, kind = str(path), _kind(path)
    check_header(name, has_header=has_header)
    if kind == ".jsonl":
        names = list(dict.fromkeys(key for value in _json_objects(name) for key in value))
        opened = {"": _open_json_lines(name, names)}
    elif kind in TABLE_SUFFIXES:
        opened = {"": open_table(name, has_header=has_header)}
    else:
        folder = open_folder(path) if is_remote(name) else Path(name).expanduser()
        name, opened = address_of(folder), _open_splits(folder)
    first = next(iter(opened.values()))
    columns: dict[str, list[Any]] = {column: [] for column in first.names}
    starts = [0]
    for split, one in opened.items():
        if set(one.names) != set(first.names):
            raise DataError(
                f"{name}: splits must have the same columns; '{split}' has {', '.join(one.names)}"
            )
        for block in one.blocks(first.names):
            for column, values in zip(first.names, block, strict=True):
                columns[column] += values
        starts.append(len(next(iter(columns.values()), [])))
    parts = {
        split: np.arange(start, stop)
        for split, start, stop in zip(opened, starts, starts[1:], strict=False)
        if split
    }
    is_typed = kind not in _DELIMITED
    return Table(name, columns, parts, first.class_names, first.has_header, is_typed=is_typed)


@dataclass(frozen=True)
class TableBlocks:
    """A table whose rows are read in blocks, so that memory holds one of them.

    Attributes:
        source: The file or folder, for messages.
        names: The columns.
        read: Positions of columns -> blocks of their values [columns][rows]; every call reads the table again.
        class_names: As of `Table`.
        has_header: As of `Table`.
    """

    source: str
    names: tuple[str, ...]
    read: Callable[[Sequence[int]], Iterator[list[list[Any]]]] = field(repr=False)
    class_names: Mapping[str, list[str]] = field(default_factory=dict)
    has_header: bool = False

    def blocks(self, names: Sequence[str]) -> Iterator[list[list[Any]]]:
        """Yield the values of some columns, [columns][rows], in blocks of rows.

        Raises:
            DataError: If a row is malformed.
        """
        yield from self.read([self.names.index(name) for name in names])


def find_text_column(
    names: Sequence[str], *, wanted: str = TEXT_COLUMNS[0], where: str, otherwise: str = ""
) -> str:
    """Return the column of text: the wanted one; in place of ``text``, the default, also the only ``sentence``.

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
            f"{where}: must name a column; given '{wanted}'{did_you_mean(wanted, names)}"
        )
    usual = {name.lower(): name for name in reversed(names) if name.lower() in TEXT_COLUMNS}
    guess = next((usual[name] for name in _GUESSED if name in usual), None)
    if guess is not None:
        return guess
    likely = next(
        (usual[name] for name in TEXT_COLUMNS if name in usual),
        names[0] if len(names) == 1 else "NAME",
    )
    shown = ", ".join([*names[:_MAX_SHOWN], *(["…"] if len(names) > _MAX_SHOWN else [])])
    raise DataError(
        f"{where}: must name the column of text; the columns are {shown}; name one, as {shlex.quote(likely)}{otherwise}"
    )


_NUMBER_OR_SENTENCE = re.compile(r"^\s*[-+]?[\d.,]*\d\s*$|[.!?…。！？]\s*$")
_MOST_WORDS, _MOST_CHARACTERS = 4, 40


def data_among(names: Sequence[str]) -> str | None:
    """Return the first name of a column that looks like a value, a number or a sentence; None where all are names."""
    for name in names:
        is_long = len(name.split()) > _MOST_WORDS or len(name) > _MOST_CHARACTERS
        if is_long or _NUMBER_OR_SENTENCE.search(name) is not None:
            return name
    return None


def _open_csv(name: str, has_header: bool) -> TableBlocks:
    header = next(_full_lines(name), "")
    return _open_delimited(name, max(",;\t", key=header.count), has_header)


def _open_delimited(name: str, delimiter: str, has_header: bool) -> TableBlocks:
    return _open_rows(name, lambda: _csv_rows(name, delimiter, has_header), has_header=has_header)


def _open_rows(
    name: str, rows: Callable[[], Iterator[list[str]]], *, has_header: bool
) -> TableBlocks:
    """Return rows of text as a table; each call of `rows` begins with the first."""
    first = next(rows(), None)
    if first is None or (has_header and not "".join(first).strip() and len(first) == 1):
        raise DataError(f"{name}: must name its columns in the first line; given an empty file")

    def read(columns: Sequence[int]) -> Iterator[list[list[Any]]]:
        num_rows = 0
        for block in batched(islice(rows(), int(has_header), None), _BATCH_ROWS):
            short = next(
                (place for place, row in enumerate(block) if len(row) <= max(columns)), None
            )
            if short is not None:
                given = f"given {len(block[short])}"
                raise DataError(
                    f"{name}: row {num_rows + short + 1}: must have {max(columns) + 1} values; {given}"
                )
            yield [[row[column] for row in block] for column in columns]
            num_rows += len(block)

    names = [column.strip() for column in first] if has_header else map(str, range(len(first)))
    return TableBlocks(name, tuple(names), read, has_header=has_header)


def _csv_rows(name: str, delimiter: str, has_header: bool) -> Iterator[list[str]]:
    """Yield the values of each row that is not blank; all have as many as the first."""
    taken: list[str] = []  # the lines of a row
    is_read = False

    def lines() -> Iterator[str]:
        nonlocal is_read
        for line in _whole_lines(name):
            taken.append(line)
            yield line
        is_read = True

    reader, num_rows, width = csv.reader(lines(), delimiter=delimiter), 0, 0
    try:
        for row in reader:
            # A value that is not closed swallows the rows up to the next mark, or the rest of the file.
            if (len(taken) > 1 or is_read) and not _closes_quotes(taken, delimiter):
                raise _unclosed(name, reader.line_num - len(taken))
            taken.clear()
            if not row:
                continue
            width, num_rows = width or len(row), num_rows + 1
            if len(row) != width:
                kind = "header" if has_header else "first row"
                raise DataError(
                    f"{name}: row {num_rows - has_header}: must have {width} values, as the {kind}; given {len(row)}; "
                    f"put values with {delimiter!r} in double quotes"
                )
            yield row
    except csv.Error:  # a value is too long
        raise (
            _unclosed(name, reader.line_num - len(taken)) if len(taken) > 1 else _too_long(name)
        ) from None


def _unclosed(name: str, num_before: int) -> DataError:
    return DataError(
        f"{name}: line {num_before + 1}: must close the quotation mark of each value; "
        'write marks inside a value twice, as ""'
    )


def _closes_quotes(lines: Sequence[str], delimiter: str) -> bool:
    try:
        return len(list(csv.reader(lines, delimiter=delimiter, strict=True))) == 1
    except csv.Error:
        return False


def _whole_lines(name: str) -> Iterator[str]:
    """Yield the lines of a file with their ends, which may be those of any system; a value may hold some."""
    with reading_errors(name), open_bytes(name) as stream:
        rest = ""
        for text in text_blocks(stream, source=name):
            if len(rest) > _MAX_ROW:
                raise _too_long(name)
            *complete, rest = io.StringIO(rest + text, newline="")
            yield from complete
        if rest:
            yield rest


def _too_long(name: str) -> DataError:
    return DataError(
        f"{name}: a row must have less than {_MAX_ROW >> 20} MiB; check its double quotes"
    )


def _open_tsv(name: str, has_header: bool) -> TableBlocks:
    """Open TSV without quotes if all lines have equally many values; otherwise with quotes, as CSV."""
    if len({line.count("\t") for line in _full_lines(name)}) > 1:
        return _open_delimited(name, "\t", has_header)
    return open_lines(name, "\t", has_header=has_header, convert=_unquoted)


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
        return (list(map(convert, line.split(separator))) for line in _full_lines(name))

    return _open_rows(name, rows, has_header=has_header)


def _full_lines(name: str) -> Iterator[str]:
    """Yield the lines of a file that are not blank; a tab separates two empty values."""
    return (line for line in iterate_lines(name) if line.strip(" "))


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def _unquoted(value: str) -> str:
    found = _QUOTED.fullmatch(value)
    return found[1].replace('""', '"') if found else value


def _checked_names(source: str, names: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in names)
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(
            f"{source}: columns must have different names; given '{repeated}' twice; rename one"
        )
    return names


def _json_objects(name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(iterate_lines(name), start=1):
        if line.strip():
            yield parse_object(f"{name}:{number}", line)


def _open_json_lines(name: str, names: Sequence[str]) -> TableBlocks:
    def read(columns: Sequence[int]) -> Iterator[list[list[Any]]]:
        for block in batched(_json_objects(name), _BATCH_ROWS):
            yield [[value.get(names[column]) for value in block] for column in columns]

    return TableBlocks(name, tuple(names), read)


def _open_parquet(name: str) -> TableBlocks:
    with _parquet_file(name) as file:
        schema = file.schema_arrow

    def read(columns: Sequence[int]) -> Iterator[list[list[Any]]]:
        chosen = [schema.names[column] for column in columns]
        with _parquet_file(name) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=chosen, use_threads=False):
                yield [_values(batch.column(column), name) for column in chosen]

    return TableBlocks(name, _checked_names(name, schema.names), read, _class_names(schema))


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


def _values(column: Any, name: str) -> list[Any]:
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

    def read(columns: Sequence[int]) -> Iterator[list[list[Any]]]:
        for file in files:
            with _arrow_reader(file, name) as reader:
                if set(reader.schema.names) != set(schema.names):
                    raise DataError(
                        f"{name}: files must have the same columns; {Path(file).name} has others"
                    )
                for batch in reader:
                    yield [_values(batch.column(schema.names[column]), name) for column in columns]

    return TableBlocks(name, _checked_names(name, schema.names), read, _class_names(schema))


def arrow_files(folder: str, *, name: str = "") -> list[str]:
    """Return the files of rows of one `datasets` dataset, on disk or in ``s3://``, in order.

    Args:
        folder: The folder.
        name: Its name in messages; by default the folder.

    Raises:
        DataError: If the folder is not one, or is incomplete.
    """
    place = folder.rstrip("/")
    with _dataset_errors(name or place), open_bytes(f"{place}/state.json") as stream:
        names = [str(one["filename"]) for one in parse_json(stream.read())["_data_files"]]
    if not names:
        raise DataError(f"{name or place}: must have rows; given none")
    for file in names:
        check_name(file, where=f"{place}/state.json")
    return [f"{place}/{file}" for file in names]


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
        raise DataError(f"{name}: must be a {', '.join(TABLE_SUFFIXES)} file or a folder that datasets saved; "
                        "save it as .csv, or with save_to_disk")  # fmt: skip
    splits = split_names(str(folder)) if (folder / SPLITS_FILE).is_file() else [""]
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
        features = parse_json(about)["info"]["features"] if about else {}
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
        return class_names[value] if 0 <= value < len(class_names) else None
    return str(value).strip() or None
