"""A file to encode -> texts: the lines of plain text, a column of a table, or the sentences of Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from raysent.data.column_names import TEXT_COLUMNS
from raysent.data.corpus.documents import passages, read_passage
from raysent.data.corpus.sources import Source
from raysent.data.tables import (
    check_header,
    check_texts,
    find_text_column,
    is_dataset_folder,
    is_table,
    open_table,
    read_table,
)
from raysent.data.text_files import read_lines
from raysent.errors import ConfigError, DataError
from raysent.platforms import expanded
from raysent.storage import is_remote


class Texts(NamedTuple):
    """The texts of a file in order, and the column that they are from; empty for a file without columns."""

    texts: list[str]
    column: str = ""


class TextBlocks(NamedTuple):
    """The texts of a file in order, in blocks, and the column that they are from; memory holds one block."""

    blocks: Iterator[list[str]]
    column: str = ""


def read_texts(file: str | None, *, column: str | None = None, has_header: bool = True) -> Texts:
    """Return the texts of a file, one for each line or row, empty ones too.

    Args:
        file: Plain text, gzipped or not; ``.csv``, ``.tsv``, ``.jsonl``, ``.parquet`` or a folder that `datasets`
            saved; ``.md`` or ``.html``, of which the sentences are returned. On disk or in ``s3://``. None for plain
            text from standard input.
        column: Column of the text; by default ``text``, else ``sentence``.
        has_header: Whether the first line of a ``.csv`` or ``.tsv`` file names its columns. Without it they are named
            ``0``, ``1``, …, and the only one is the text.

    Raises:
        ConfigError: If a column is named of a file without columns.
        DataError: If the file cannot be read, or has no such column.
    """
    check_header(file or "standard input", has_header=has_header)
    if file is None or (not is_table(file) and Source(file).kind == "text"):
        _check_no_column(column, file or "standard input")
        return Texts(read_lines(file))
    if is_remote(file):
        path = file
    else:
        path = str(expanded(file))
    if not is_remote(path) and is_dataset_folder(Path(path)):
        table = read_table(path)
        text_field = column or TEXT_COLUMNS[0]
        where = f"column: {table.source}"
        name = find_text_column(list(table.columns), wanted=text_field, where=where)
        return Texts(table.texts(name, key="column"), name)
    opened = open_texts(Source(path), column=column, has_header=has_header)
    return Texts(list(chain.from_iterable(opened.blocks)), opened.column)


def open_texts(
    source: Source,
    *,
    column: str | None = None,
    splits_sentences: bool = False,
    has_header: bool = True,
) -> TextBlocks:
    """Open a file for reading as `read_texts` does, but in blocks, so that memory is bounded.

    Args:
        source: The file, or the folder of one dataset.
        column: Column of the text; by default ``text``, else ``sentence``.
        splits_sentences: Whether to return the sentences of running text, as training reads it, instead of lines or
            rows.
        has_header: As for `read_texts`.

    Raises:
        ConfigError: If a column is named of a file without columns.
        DataError: If the file cannot be opened, or has no such column; while reading also for a malformed row.
    """
    text_field = column or TEXT_COLUMNS[0]
    where = f"column: {source.path}"
    if source.kind in ("text", "markdown", "html"):
        _check_no_column(column, source.path)
    if splits_sentences or source.kind in ("markdown", "html"):
        source_passages = passages(source, format="auto", text_field=text_field)
        return TextBlocks(
            piece.sentences for passage in source_passages for piece in read_passage(passage)
        )
    if source.kind == "text":
        return TextBlocks(source.blocks(keeps_lines=True))
    table = open_table(source.path, has_header=has_header)
    if not table.names:  # JSON lines without a key
        if next(iter(table.blocks([])), None) is not None:
            raise DataError(
                f"{source.path}: objects must have the field '{text_field}'; given {{}}"
            )
        return TextBlocks(iter(()), column or "")
    is_only = not has_header and column is None and len(table.names) == 1
    otherwise = ""
    if table.has_header:
        otherwise = " or, if the first line is a row, set header=false"
    if is_only:
        name = table.names[0]
    else:
        name = find_text_column(table.names, wanted=text_field, where=where, otherwise=otherwise)
    return TextBlocks(
        _checked((block for (block,) in table.blocks([name])), source.path, name), name
    )


def _check_no_column(column: str | None, name: str) -> None:
    if column is not None:
        raise ConfigError(f"column {column}: must be left out for {name}, which has no columns")


def _checked(blocks: Iterable[list[Any]], name: str, column: str) -> Iterator[list[str]]:
    num_rows = 0
    for block in blocks:
        check_texts(block, source=name, column=f"column '{column}'", first_row=num_rows + 1)
        yield block
        num_rows += len(block)
