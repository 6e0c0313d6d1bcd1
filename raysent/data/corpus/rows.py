"""Tables and JSON lines -> rows of text and the documents that they belong to.

Rows with the same value of the column of documents are one document and must follow one another. Memory holds one
block of rows, and the identifiers of all documents read so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from raysent.data.corpus.sources import Source
from raysent.data.tables import TableBlocks, check_texts, find_text_column, open_table
from raysent.errors import DataError, did_you_mean


class Row(NamedTuple):
    """The text of a row, and whether the column of documents has another value than in the row before."""

    text: str
    begins_document: bool


@dataclass(frozen=True)
class TableRows:
    """The rows of a table.

    Attributes:
        source: The table.
        text_field: Column of the text.
        document_field: Column of documents; None if the table has none.
    """

    source: Source
    text_field: str
    document_field: str | None = None

    @cached_property
    def table(self) -> TableBlocks:
        """The table.

        Raises:
            DataError: If it cannot be opened.
        """
        return open_table(self.source.path)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The column of the text, and that of documents if one is named.

        Raises:
            DataError: If the table has no such column.
        """
        names = self.table.names
        text = find_text_column(names, wanted=self.text_field, where=f"corpus.text_field: {self.source.path}")
        if self.document_field is None:
            return (text,)
        if self.document_field not in names:
            raise DataError(
                f"corpus.document_field: {self.source.path}: must name a column; given "
                f"'{self.document_field}'{did_you_mean(self.document_field, names)}"
            )
        return text, self.document_field

    def blocks(self) -> Generator[list[Row]]:
        """Yield the rows in blocks.

        Raises:
            DataError: If a row is malformed, has no text or no document, or continues an earlier document.
        """
        documents = None if self.document_field is None else DocumentOrder(self.document_field)
        number = 1
        for texts, *identifiers in self.table.blocks(self.columns):
            check_texts(texts, source=self.source.path, column=f"'{self.columns[0]}'", first_row=number)
            begins = [False] * len(texts)
            if documents is not None:
                begins = [
                    documents.begins(one, self._where, row) for row, one in enumerate(identifiers[0], start=number)
                ]
            yield list(map(Row, texts, begins))
            number += len(texts)

    def _where(self, row: int) -> str:
        return f"{self.source.path}: row {row}"


class DocumentOrder:
    """Finds where documents begin, by the values of a column.

    Args:
        field: Name of the column, for messages.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self._current: Any = None
        self._seen: set[Any] = set()

    def begins(self, value: Any, where: Callable[[int], str], row: int) -> bool:
        """Return whether the next row begins a document.

        Args:
            value: The row's value of the column: text or a number.
            where: Number of a row -> its place, for messages.
            row: Number of the row.

        Raises:
            DataError: If the value is missing, or the document has ended before.
        """
        if self._current is not None and value == self._current:
            return False
        place = where(row)
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            raise DataError(f"{place}: '{self._field}' must identify a document; given nothing")
        if not isinstance(value, (str, int, float)):
            raise DataError(f"{place}: '{self._field}' must be text or a number; given {type(value).__name__}")
        if value in self._seen:
            raise DataError(
                f"{place}: rows of one document must follow one another; '{value}' was before; "
                f"sort the rows by '{self._field}'"
            )
        self._seen.add(value)
        self._current = value
        return True
