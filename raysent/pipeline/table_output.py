"""Tables that commands write, in blocks of rows: CSV, TSV, JSON lines or Parquet; CSV on standard output.

Columns of the user's own table are written as they were read. In Parquet they keep the types of a Parquet or Arrow
file; others get those that hold the values of the whole file: the first block decides nothing, and no value is changed
by a cast. What a form cannot hold is refused in one line that names the column.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TextIO, TypeAlias

import pyarrow as pa
from pyarrow import parquet

from raysent.data.cells import is_formula, without_formula
from raysent.data.tables import values_of
from raysent.errors import ConfigError, DataError, listed, shown
from raysent.platforms import is_closed
from raysent.storage import whole_file

FORMS = (".csv", ".tsv", ".jsonl", ".parquet")
# Those whose values have types.
_TYPED_FORMS = FORMS[2:]
# Types of columns without a value.
_EMPTY = {pa.null(): pa.string(), pa.list_(pa.null()): pa.list_(pa.string())}

# Values of some rows: a list, or an array of a file that has types.
Column: TypeAlias = "list[Any] | pa.Array"
Write: TypeAlias = Callable[[Sequence[Column]], None]

# What fails in this module is an error of the output, as the command line says it.
WRITES_TO_STANDARD_OUTPUT = True


@dataclass(frozen=True)
class OutputTable:
    """What a table is to hold.

    Attributes:
        names: The columns: those of the user's table, then those that are added.
        num_own: Columns that are the user's; a cell of the others is no formula.
        schema: The types of the user's columns, if their file has some.
        keeps_formulas: Whether cells of the others may be formulas.
        escaped: Texts that got an apostrophe, so that they are no formulas; filled while rows are written.
    """

    names: Sequence[str]
    num_own: int
    schema: pa.Schema | None = None
    keeps_formulas: bool = False
    escaped: set[str] = field(default_factory=set)

    @property
    def note(self) -> str:
        """What the user should know of the cells that were written; empty if nothing."""
        if not self.escaped:
            return ""
        return (
            f"labels {listed(sorted(self.escaped), most=3)} would be formulas of a spreadsheet and have an apostrophe "
            "in front; --set formulas=true leaves them as they are"
        )

    def as_text(self, column: int, value: Any) -> Any:
        """Return a value of a column as CSV and TSV have it."""
        cell = _cell(value, self.names[column])
        if self.keeps_formulas or column < self.num_own or not isinstance(cell, str):
            return cell
        if is_formula(cell):
            self.escaped.add(cell)
        return without_formula(cell)


def is_typed_output(output: str | Path | None) -> bool:
    """Return whether the values of a file of this name have types."""
    return str(output).lower().endswith(_TYPED_FORMS)


@contextmanager
def writing(output: str | Path | None, table: OutputTable) -> Iterator[Write]:
    """Yield what writes a block of rows [columns][rows]; the file replaces an older one after the block.

    Args:
        output: The file, on disk or in ``s3://``; None for CSV on standard output.
        table: What it is to hold.

    Raises:
        ConfigError: If the file's form is unknown.
        DataError: If the form cannot hold a value.
        ArtifactError: If it cannot be written.
    """
    if output is None:
        if is_closed("stdout"):
            raise ConfigError("output: must be given, as standard output is closed")
        yield _delimited(_EncodedStream(sys.stdout), table, ",")
        return
    form = next((form for form in FORMS if str(output).lower().endswith(form)), None)
    if form is None:
        raise ConfigError(f"output {output}: must end in {', '.join(FORMS[:-1])} or {FORMS[-1]}")
    with whole_file(output) as temporary, ExitStack() as stack:
        if form == ".parquet":
            yield stack.enter_context(_parquet(temporary, table))
            return
        stream = stack.enter_context(temporary.open("w", encoding="utf-8", newline=""))
        if form == ".jsonl":
            yield _objects(stream, table)
        else:
            yield _delimited(stream, table, "," if form == ".csv" else "\t")


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...


class _EncodedStream:
    """Standard output for a table: a character that it cannot hold is refused, and not written as an escape."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> object:
        encoding = self._stream.encoding or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"output: must be a file, which is UTF-8, as standard output is {encoding} and cannot hold "
                f"{text[error.start]!a}; or set PYTHONIOENCODING=utf-8"
            ) from None
        return self._stream.write(text)


def _values(column: Column, name: str) -> list[Any]:
    return values_of(column, name) if isinstance(column, pa.Array) else column


def _delimited(stream: _Stream, table: OutputTable, delimiter: str) -> Write:
    options: dict[str, Any] = {"delimiter": delimiter, "lineterminator": "\n"}
    writer = csv.writer(stream, **options)
    quoted = csv.writer(stream, quoting=csv.QUOTE_ALL, **options)

    def write_row(cells: Sequence[Any]) -> None:
        # A carriage return ends a row too, but the writer quotes only its own line end.
        ends_row = any("\r" in cell for cell in cells if isinstance(cell, str))
        (quoted if ends_row else writer).writerow(cells)

    def write(columns: Sequence[Column]) -> None:
        values = [_values(column, name) for column, name in zip(columns, table.names, strict=True)]
        for row in zip(*values, strict=True):
            write_row([table.as_text(column, value) for column, value in enumerate(row)])

    write_row(table.names)
    return write


def _cell(value: Any, name: str) -> Any:
    """Return a value as CSV has it: lists of texts joined by `|`, as task files read them, other objects as JSON."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes):
        raise _bytes_error(name, "CSV")
    if isinstance(value, list) and all(_is_joinable(item) for item in value):
        return "|".join(value)
    if isinstance(value, list | tuple | Mapping):
        return _json_text(value, name)
    return value


def _is_joinable(item: Any) -> bool:
    return isinstance(item, str) and "|" not in item


def _objects(stream: _Stream, table: OutputTable) -> Write:
    def write(columns: Sequence[Column]) -> None:
        values = [_values(column, name) for column, name in zip(columns, table.names, strict=True)]
        for row in zip(*values, strict=True):
            cells = (
                f"{json.dumps(name, ensure_ascii=False)}: {_json_text(value, name)}"
                for name, value in zip(table.names, row, strict=True)
            )
            stream.write("{" + ", ".join(cells) + "}\n")

    return write


def _json_text(value: Any, name: str) -> str:
    """Return a value as JSON, in which a NaN is null; dates, times and decimal numbers are text."""

    def as_text(other: Any) -> str:
        if isinstance(other, bytes):
            raise _bytes_error(name, "JSON")
        return str(other)

    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=as_text)
    except ValueError:
        plain = _without_nan(value, name)
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, default=as_text)


def _without_nan(value: Any, name: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise DataError(
            f"output: column '{shown(name)}': JSON has no infinite numbers; write .parquet or .csv"
        )
    if isinstance(value, Mapping):
        return {key: _without_nan(inner, name) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner, name) for inner in value]
    return value


def _bytes_error(name: str, form: str) -> DataError:
    return DataError(
        f"output: column '{shown(name)}': {form} cannot hold bytes; write .parquet, or leave out the column"
    )


@contextmanager
def _parquet(path: Path, table: OutputTable) -> Iterator[Write]:
    with ExitStack() as stack:
        parts = _ParquetParts(path, table, stack)
        yield parts
        parts.join()


class _ParquetParts:
    """Blocks of rows as parts of a Parquet file: a new part begins where values need wider types than the last."""

    def __init__(self, path: Path, table: OutputTable, stack: ExitStack) -> None:
        """Begin without a part; the first one is the file, and folders of others go with the stack."""
        self._path = path
        self._table = table
        self._stack = stack
        self._parts: list[Path] = []
        self._writer: parquet.ParquetWriter | None = None
        stack.callback(self._close)

    def __call__(self, columns: Sequence[Column]) -> None:
        named = zip(self._table.names, columns, strict=True)
        arrays = [self._array(name, column) for name, column in named]
        fields = [
            self._field(name).with_type(array.type)
            for name, array in zip(self._table.names, arrays, strict=True)
        ]
        metadata = None if self._table.schema is None else self._table.schema.metadata
        block = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata))
        if self._writer is None:
            self._begin(block.schema)
        elif block.schema.types != self._writer.schema.types:
            wider = self._wider(self._writer.schema, block.schema)
            if wider.types != self._writer.schema.types:
                self._begin(wider)
            block = _cast(block, wider)
        assert self._writer is not None
        with _parquet_errors():
            self._writer.write_table(block)

    def join(self) -> None:
        """End the file; of several parts, write all of them with the types of the last, which are the widest."""
        if self._writer is None:
            return
        self._close()
        own_schema = self._writer.schema
        fields = [own.with_type(_EMPTY.get(own.type, own.type)) for own in own_schema]
        schema = pa.schema(fields, own_schema.metadata)
        if len(self._parts) == 1 and schema.types == own_schema.types:
            return
        joined = self._further_part()
        with parquet.ParquetWriter(joined, schema) as writer:
            for part in self._parts:
                with parquet.ParquetFile(part) as file:
                    for batch in file.iter_batches():
                        writer.write_table(_cast(pa.Table.from_batches([batch]), schema))
        shutil.move(joined, self._path)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, schema: pa.Schema) -> None:
        self._close()
        self._parts.append(self._further_part() if self._parts else self._path)
        with _parquet_errors():
            self._writer = parquet.ParquetWriter(self._parts[-1], schema)

    def _further_part(self) -> Path:
        prefix = f"{self._path.name}-"
        folder = TemporaryDirectory(prefix=prefix, dir=self._path.parent)
        return Path(self._stack.enter_context(folder)) / "part.parquet"

    def _field(self, name: str) -> pa.Field:
        schema = self._table.schema
        if schema is None or name not in schema.names:
            return pa.field(name, pa.null())
        return schema.field(name)

    def _array(self, name: str, column: Column) -> pa.Array:
        if isinstance(column, pa.Array):
            return column
        own_type = self._field(name).type
        with _parquet_errors(name):
            return pa.array(column, type=None if own_type == pa.null() else own_type)

    def _wider(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        fields = []
        for own, other in zip(first, second, strict=True):
            with _parquet_errors(own.name):
                pair = [pa.schema([own]), pa.schema([other.with_metadata(own.metadata)])]
                (wider,) = pa.unify_schemas(pair, promote_options="permissive")
            fields.append(wider)
        return pa.schema(fields, first.metadata)


def _cast(block: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a block with other types; a value that would change is refused."""
    columns = []
    for own in schema:
        with _parquet_errors(own.name):
            columns.append(block[own.name].cast(own.type))
    return pa.Table.from_arrays(columns, schema=schema)


@contextmanager
def _parquet_errors(name: str = "") -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OverflowError) as error:
        column = f"column '{shown(name)}': " if name else ""
        raise DataError(
            f"output: {column}Parquet cannot hold all of its values ({shown(error)}); write .jsonl instead"
        ) from None
