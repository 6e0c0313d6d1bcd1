"""Tables of text: a file or folder -> named columns of equal length.

| name ends in | read as |
|---|---|
| `.csv` | comma-separated values, or semicolons or tabs where the header has more of them |
| `.tsv` | tab-separated values; quotes are part of a value unless they enclose all of it |
| `.jsonl` | one JSON object a line |
| `.parquet` | Parquet |
| a folder | what Hugging Face `datasets` wrote with `save_to_disk`, one part for each of its splits |

CSV, TSV and JSON lines may be gzipped. Text is UTF-8, with or without a BOM, or UTF-16 with a BOM; lines may end in
CRLF. The first line of CSV and TSV names the columns. Every value of CSV and TSV is text: "NA" and "" are values.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, ipc, parquet

from raysent.errors import DataError, did_you_mean
from raysent.storage import address_of, is_remote, open_folder, s3_errors

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}
_DATASET_FILES = ("dataset_info.json", "dataset_dict.json")
# pyarrow reads blocks of at most this many bytes.
_MAX_BLOCK = (1 << 31) - 2


@dataclass(frozen=True)
class Table:
    """Named columns of one file or folder.

    Attributes:
        source: The file or folder, for messages.
        columns: Name -> values [rows]: text from CSV and TSV, any value from other formats; None where one is missing.
        parts: Name of a `datasets` split -> its rows, int64; empty for other formats.
        class_names: Column -> the names of its classes, for columns that hold numbers of classes.
        first_line: The line of the first row in the file; 0 where rows are not lines.
    """

    source: str
    columns: Mapping[str, list[Any]]
    parts: Mapping[str, np.ndarray]
    class_names: Mapping[str, list[str]]
    first_line: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def where(self, row: int) -> str:
        """Return the file and the row, as messages begin."""
        return f"{self.source}: row {row + 1}"

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
        wrong = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            given = "nothing" if values[wrong] is None else type(values[wrong]).__name__
            raise DataError(f"{self.where(wrong)}: {key} '{name}' must be text; given {given}")
        return values


def is_table(path: str | Path) -> bool:
    """Return whether a path names a table: by its suffix, or as a folder that `datasets` saved."""
    name = str(path)
    if name.removesuffix(".gz").lower().endswith(TABLE_SUFFIXES):
        return True
    return not is_remote(name) and is_dataset_folder(Path(name).expanduser())


def is_dataset_folder(path: Path) -> bool:
    """Return whether `datasets` saved this folder."""
    return any((path / name).is_file() for name in _DATASET_FILES)


def read_table(path: str | Path) -> Table:
    """Read a table, on disk or in ``s3://``.

    Raises:
        DataError: If there is no such file, its form is unknown, or a row is malformed.
    """
    name = str(path)
    kind = Path(name.removesuffix(".gz")).suffix.lower()
    if kind not in TABLE_SUFFIXES:
        return _read_dataset(open_folder(path) if is_remote(name) else Path(name).expanduser())
    data = _content(name)
    if kind == ".parquet":
        return _from_parquet(name, data)
    text = decode(data, source=name)
    if kind == ".jsonl":
        return _from_json_lines(name, text)
    return _from_csv(name, text) if kind == ".csv" else _from_tsv(name, text)


def _content(name: str) -> bytes:
    """Return a file's bytes, decompressed if it is gzipped."""
    data = _bytes(name)
    if not name.endswith(".gz"):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: truncated or not gzip ({error}); fetch it again") from None


def _bytes(name: str) -> bytes:
    """Return the bytes of a file, on disk or in a bucket."""
    try:
        if is_remote(name):
            import smart_open  # noqa: PLC0415 - a third of a second that only a remote path needs

            with s3_errors(name, kind=DataError), smart_open.open(name, "rb", compression="disable") as stream:
                return bytes(stream.read())
        return Path(name).expanduser().read_bytes()
    except FileNotFoundError:
        raise DataError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{name}: must be a file; given a folder") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None


def decode(data: bytes, *, source: str) -> str:
    """Return text as a file stores it: UTF-8, or UTF-16 with a BOM.

    Raises:
        DataError: If it is neither, or holds NUL characters.
    """
    encoding = next((name for bom, name in _BOMS.items() if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"0x{data[error.start]:02x}" if error.start < len(data) else "no more bytes"
        raise DataError(f"{source}:{line}: must be {encoding.removesuffix('-sig').upper()}; given byte {byte}; "
                        "convert it with iconv") from None  # fmt: skip
    if (nul := text.find("\0")) >= 0:
        line = text.count("\n", 0, nul) + 1
        raise DataError(f"{source}:{line}: must be plain text; given a NUL character; is this a binary file?")
    return text


def _from_csv(name: str, text: str) -> Table:
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    return _parse(name, text, delimiter=delimiter)


def _from_tsv(name: str, text: str) -> Table:
    """Read TSV without quotes if all lines then have equally many values; otherwise with quotes, as CSV."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if len({line.count("\t") for line in lines}) > 1:
        return _parse(name, text, delimiter="\t")
    rows = [line.split("\t") for line in lines if line]
    if not rows:
        raise DataError(f"{name}: must name its columns in the first line; given an empty file")
    names = _checked_names(name, [_unquoted(value) for value in rows[0]])
    columns = {column: [_unquoted(row[place]) for row in rows[1:]] for place, column in enumerate(names)}
    return Table(name, columns, {}, {}, first_line=2)


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def _unquoted(value: str) -> str:
    found = _QUOTED.fullmatch(value)
    return found[1].replace('""', '"') if found else value


def _parse(name: str, text: str, *, delimiter: str) -> Table:
    """Read quoted text with a delimiter."""
    if not text.strip():
        raise DataError(f"{name}: must name its columns in the first line; given an empty file")
    data = text.encode()
    # One block: a value may be longer than any smaller block.
    block = csv.ReadOptions(block_size=min(len(data) + 1, _MAX_BLOCK), use_threads=False)
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        names = csv.open_csv(io.BytesIO(data), block, parsing).schema.names
        types = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
        table = csv.read_csv(io.BytesIO(data), block, parsing, types)
    except pa.ArrowInvalid as error:
        raise DataError(f"{name}: {_csv_problem(str(error), delimiter)}") from None
    names = _checked_names(name, list(table.column_names))
    columns = {column: values.to_pylist() for column, values in zip(names, table.columns, strict=True)}
    return Table(name, columns, {}, {}, first_line=2)


_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


def _csv_problem(error: str, delimiter: str) -> str:
    found = _RAGGED.search(error)
    if found:
        row, expected, given = found.groups()
        return (
            f"row {int(row) - 1}: must have {expected} values, as the header; given {given}; "
            f"put values with {delimiter!r} in double quotes"
        )
    return f"not valid CSV ({' '.join(error.split())[:120]}); check its double quotes"


def _checked_names(source: str, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{source}: columns must have different names; given '{repeated}' twice; rename one")
    return names


def _from_json_lines(name: str, text: str) -> Table:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}:{number}: must be one JSON object a line; {error}") from None
        if not isinstance(value, dict):
            raise DataError(f"{name}:{number}: must be a JSON object; given {type(value).__name__}")
        rows.append(value)
    names = list(dict.fromkeys(key for row in rows for key in row))
    return Table(name, {key: [row.get(key) for row in rows] for key in names}, {}, {}, first_line=1)


def _from_parquet(name: str, data: bytes) -> Table:
    try:
        table = parquet.read_table(pa.BufferReader(data))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{name}: not a Parquet file, or truncated ({' '.join(str(error).split())[:100]})") from None
    return _from_arrow(name, {"": table})


def _read_dataset(folder: Path) -> Table:
    """Read a folder of `datasets`: one dataset, or one below the name of each split."""
    name = address_of(folder)
    if not folder.exists():
        raise DataError(f"{name}: no such file or folder")
    if not is_dataset_folder(folder):
        raise DataError(f"{name}: must be a {', '.join(TABLE_SUFFIXES)} file or a folder that datasets saved; "
                        "save it with save_to_disk or to_parquet")  # fmt: skip
    if (folder / "dataset_dict.json").is_file():
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        return _from_arrow(name, {split: _arrow_files(folder / split) for split in splits})
    return _from_arrow(name, {"": _arrow_files(folder)})


def _arrow_files(folder: Path) -> pa.Table:
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return pa.concat_tables(
            [ipc.open_stream(pa.memory_map(str(folder / one["filename"]))).read_all() for one in state["_data_files"]]
        )
    except (OSError, KeyError, ValueError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())[:100]
        raise DataError(
            f"{address_of(folder)}: not a folder of datasets, or incomplete ({reason}); save it again"
        ) from None


def _from_arrow(name: str, tables: Mapping[str, pa.Table]) -> Table:
    """Join the tables of splits; columns must be those of the first."""
    ends = np.cumsum([0, *(table.num_rows for table in tables.values())])
    parts = {
        split: np.arange(start, stop) for split, start, stop in zip(tables, ends[:-1], ends[1:], strict=True) if split
    }
    first = next(iter(tables.values()))
    names = _checked_names(name, list(first.column_names))
    for split, table in tables.items():
        if set(table.column_names) != set(first.column_names):
            raise DataError(f"{name}: splits must have the same columns; '{split}' has {', '.join(table.column_names)}")
    columns = {column: [value for table in tables.values() for value in table[column].to_pylist()] for column in names}
    return Table(name, columns, parts, _class_names(first.schema))


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the classes' names that `datasets` stores in the schema, by column."""
    about = (schema.metadata or {}).get(b"huggingface")
    features = json.loads(about)["info"]["features"] if about else {}
    return {
        column: list(feature["names"])
        for column, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def as_labels(values: Sequence[Any], class_names: Sequence[str] | None = None) -> list[str | None]:
    """Return labels as text [rows], None where one is missing: empty, null or NaN.

    Args:
        values: Text, numbers or truth values.
        class_names: The names of the classes that numbers stand for; -1 is then a missing label.
    """
    return [_as_label(value, class_names) for value in values]


def _as_label(value: Any, class_names: Sequence[str] | None) -> str | None:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if class_names is not None and isinstance(value, int):
        return class_names[value] if 0 <= value < len(class_names) else None
    text = str(value).strip()
    return None if text.lower() in ("", "nan") else text
