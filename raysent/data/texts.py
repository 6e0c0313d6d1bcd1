"""A file to encode -> texts: the lines of plain text, a column of a table, or the sentences of Markdown and HTML."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raysent.data.corpus.documents import passages, read_passage
from raysent.data.corpus.sources import Source
from raysent.data.tables import TEXT_COLUMNS, Table, find_text_column, is_table, open_table, read_table
from raysent.data.text_files import read_lines
from raysent.errors import ConfigError
from raysent.storage import is_remote


class Texts(NamedTuple):
    """The texts of a file in order, and the column that they are from; empty for a file without columns."""

    texts: list[str]
    column: str = ""


def read_texts(file: str | None, *, column: str | None = None) -> Texts:
    """Return the texts of a file, one for each line or row, empty ones too.

    Args:
        file: Plain text, gzipped or not; ``.csv``, ``.tsv``, ``.jsonl``, ``.parquet`` or a folder that `datasets`
            saved; ``.md`` or ``.html``, of which the sentences are returned. On disk or in ``s3://``. None for plain
            text from standard input.
        column: Column of the text; by default ``text``, else ``sentence``.

    Raises:
        ConfigError: If a column is named of a file without columns.
        DataError: If the file cannot be read, or has no such column.
    """
    if file is not None and is_table(file):
        return _from_table(file, column or TEXT_COLUMNS[0])
    if column is not None:
        raise ConfigError(f"--column {column}: must be left out for {file or 'standard input'}, which has no columns")
    kind = "text" if file is None else Source(file).kind
    if file is None or kind == "text":
        return Texts(read_lines(file))
    path = file if is_remote(file) else str(Path(file).expanduser())
    found = passages(Source(path), format="auto", text_field=TEXT_COLUMNS[0])
    return Texts([sentence for passage in found for piece in read_passage(passage) for sentence in piece.sentences])


def _from_table(name: str, wanted: str) -> Texts:
    where = f"--column: {name}"
    if Source(name).kind == "table":
        opened = open_table(name)
        column = find_text_column(opened.names, wanted=wanted, where=where)
        table = Table(name, {column: [text for (block,) in opened.blocks([column]) for text in block]}, {}, {})
    else:
        table = read_table(name)
        column = find_text_column(list(table.columns), wanted=wanted, where=where)
    return Texts(table.texts(column, key="--column"), column)
