"""Rows of CSV and TSV, as they are meant: where the names of the columns are, what separates values, what quotes them.

| a file may have | it is read so |
|---|---|
| ``sep=;`` in its first line, as Excel writes and reads it | it names the separator |
| a title, comments (``#``) or lines of blank cells above the names | left out where the names below are usual ones |
| commas, semicolons, tabs or ``|`` | what separates most names in the line of names |
| line ends of any system: LF, CRLF, or CR alone | all end a row |
| ``"a", "b"``: quotes after a blank | they enclose a value, where every row has the blank |

What may be meant in two ways is refused in one line that names the line and what to do: a title that cannot be
distinguished from names, the names of columns among the rows, quotes of another kind, marks inside a value that are not
written twice. A row of names is never a row of the table.

Differs from Python's csv, which also reads what is malformed: a value that is not closed, a backslash or a blank before
a mark.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from raysent.data.column_names import is_header, is_usual
from raysent.data.same_text import as_read
from raysent.data.text_files import open_bytes, reading_errors, text_blocks
from raysent.errors import DataError, listed, shown

# Characters of a row; a file that does not close a quotation mark is not read to its end.
_MAX_ROW = 1 << 24
csv.field_size_limit(_MAX_ROW)

_SEPARATORS = ",;\t|"
# Lines that decide where names are and how values are quoted.
_HEAD_LINES = 64
# Of these, lines in which names are looked for.
_MOST_ABOVE = 10
_NAMED_SEPARATOR = re.compile(r'\ufeff*"?sep=([^"\s]|\t)"?[,;\t|]*', re.IGNORECASE)
_OTHER_QUOTES = (("'", "'"), ("‘", "’"), ("“", "”"), ("„", "“"), ("«", "»"))
_NUMBER = re.compile(r"\s*[-+]?[\d.,]*\d\s*")
# What is seen as a blank, or not at all, and may stand before a quotation mark; ends of lines are none.
_BLANK = r"(?:[^\S\r\n]|[\u200b\u2060\ufeff])"
_QUOTED = re.compile(rf'{_BLANK}*"((?:[^"]|"")*)"{_BLANK}*')
# Characters by which names that are the same for a reader may differ in length: marks, blanks, a BOM.
_SAME_NAME_SLACK = 4


@dataclass(frozen=True)
class DelimitedRows:
    """A table of text whose rows are read one after another.

    Attributes:
        names: The columns.
        rows: Yields the rows below the names; every call reads the table again.
        has_header: Whether names were read from the file.
        notes: What was left out above the names, for the user.
    """

    names: tuple[str, ...]
    rows: Callable[[], Iterator[list[str]]]
    has_header: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Line:
    """A line that is not blank, without its end; the first line of a file is number 1."""

    number: int
    text: str


@dataclass(frozen=True)
class _Form:
    """How a file is written.

    Attributes:
        name: The file.
        separator: What is between values.
        start: Number of the first line that is read.
        has_header: Whether that line holds names.
        skips_blanks: Whether blanks before a value are no part of it.
    """

    name: str
    separator: str
    start: int
    has_header: bool
    skips_blanks: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the lines with their ends, from the first that is read."""
        return islice(whole_lines(self.name), self.start - 1, None)


def open_delimited(
    name: str, *, is_tsv: bool, has_header: bool, finds_header: bool = True
) -> DelimitedRows:
    """Open a file of CSV or TSV for reading.

    TSV has no quotes where all lines have equally many values; otherwise it has those of CSV.

    Args:
        name: The file, on disk or in ``s3://``.
        is_tsv: Whether tabs separate values, if the line of names has some.
        has_header: Whether a line names the columns; otherwise they are named ``0``, ``1``, ….
        finds_header: Whether names may stand below a title; otherwise the first line holds them.

    Raises:
        DataError: If the file cannot be read, is empty, or may be meant in two ways.
    """
    head = _head(name)
    separator = None
    if head:
        # A line for spreadsheets, above the names, may say what separates: `sep=;`.
        named_separator = _NAMED_SEPARATOR.fullmatch(head[0].text)
        if named_separator is not None:
            separator = named_separator[1]
            head = head[1:]
    if not head or (has_header and not head[0].text.strip(" ,;|")):
        head = [line for line in head if line.text.strip(" ,;|\t")]
    if not head:
        raise DataError(f"{name}: must name its columns in the first line; given an empty file")
    notes: tuple[str, ...] = ()
    if has_header and finds_header:
        num_above = _num_above(name, head, separator)
        if num_above:
            notes = (f"line {head[num_above].number} names the columns; what is above is left out",)
        head = head[num_above:]
    separator = separator or _separator(head, is_tsv=is_tsv, has_header=has_header)
    if has_header and finds_header:
        _refuse_title(name, head, separator)
    form = _Form(name, separator, head[0].number, has_header)
    if separator == "\t" and is_tsv and _is_even(form):
        return _named_rows(form, lambda: _plain_rows(form), notes)
    quoted = _Form(name, separator, head[0].number, has_header, _skips_blanks(form, head))
    return _named_rows(quoted, lambda: _quoted_rows(quoted), notes)


def whole_lines(name: str, *, most: int | None = _MAX_ROW) -> Iterator[str]:
    """Yield the lines of a table with their ends, which may be those of any system.

    Args:
        name: The file, on disk or in ``s3://``.
        most: Characters that a line may have; None for any number.

    Raises:
        DataError: If the file cannot be read, is no text, or has a longer line.
    """
    with reading_errors(name), open_bytes(name) as stream:
        unfinished = ""
        for text in text_blocks(stream, source=name):
            if most is not None and len(unfinished) > most:
                raise _too_long(name)
            *complete, unfinished = io.StringIO(unfinished + text, newline="")
            yield from complete
        if unfinished:
            yield unfinished


def full_lines(name: str, *, most: int | None = _MAX_ROW) -> Iterator[str]:
    """Yield the lines of a table that are not blank, without their ends; a tab separates two empty values.

    Args:
        name: As for `whole_lines`.
        most: As for `whole_lines`.
    """
    lines = (_without_end(line) for line in whole_lines(name, most=most))
    return (line for line in lines if line.strip(" "))


def _without_end(line: str) -> str:
    return line.rstrip("\r\n")


def _head(name: str) -> list[_Line]:
    numbered = enumerate(islice(whole_lines(name), _HEAD_LINES), start=1)
    lines = [_Line(number, _without_end(line)) for number, line in numbered]
    return [line for line in lines if line.text.strip(" ")]


def _cells(line: str, separator: str) -> list[str]:
    """Return the values of one line, without blanks around them."""
    row = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [cell.strip().strip("\ufeff") for cell in row]


def _widest(line: str, separators: str) -> str:
    return max(separators, key=lambda separator: len(_cells(line, separator)))


def _num_above(name: str, head: Sequence[_Line], separator: str | None) -> int:
    """Return how many lines stand above the names, all of them titles, comments or blank cells.

    Raises:
        DataError: If usual names stand below a line that may hold names or a row.
    """
    separators = separator or _SEPARATORS
    if is_usual(_cells(head[0].text, _widest(head[0].text, separators))):
        return 0
    for index in range(1, min(len(head), _MOST_ABOVE)):
        line = head[index]
        line_separator = _widest(line.text, separators)
        cells = _cells(line.text, line_separator)
        is_commented = all(above.text.lstrip().startswith("#") for above in head[:index])
        if not is_header(cells, is_alone=is_commented):
            continue
        for above in head[:index]:
            if not _is_title(above.text, line_separator):
                raise DataError(
                    f"{name}: line {line.number} names the columns, {listed(cells, most=5)}, and must be the first "
                    f"line; given '{shown(above.text)}' above it; remove what is above it"
                )
        return index
    return 0


def _is_title(line: str, separator: str) -> bool:
    filled = [cell for cell in _cells(line, separator) if cell]
    return line.lstrip().startswith("#") or len(filled) <= 1


def _separator(head: Sequence[_Line], *, is_tsv: bool, has_header: bool) -> str:
    """Return what separates most values of the first line; of several such, what other lines have equally often."""
    first = head[0].text
    if is_tsv and ("\t" in first or not has_header):
        return "\t"
    widths = {separator: len(_cells(first, separator)) for separator in _SEPARATORS}
    likely = [separator for separator in _SEPARATORS if widths[separator] > 1]
    if has_header:
        likely = [separator for separator in likely if widths[separator] == max(widths.values())]
    # The texts of a file without names may have more commas than it has values.
    even = [separator for separator in likely if _has_width(head, separator, widths[separator])]
    if even:
        return max(even, key=lambda separator: widths[separator])
    if likely and not is_tsv:
        return max(likely, key=lambda separator: widths[separator])
    return "\t" if is_tsv else ","


def _has_width(lines: Sequence[_Line], separator: str, width: int) -> bool:
    return all(len(_cells(line.text, separator)) == width for line in lines)


def _refuse_title(name: str, head: Sequence[_Line], separator: str) -> None:
    """Refuse a first line that names one column where there are more: it may be a title above the names.

    Raises:
        DataError: With the line that names the columns if it is one.
    """
    first = head[0]
    lines_below = head[1:]
    names = _cells(first.text, separator)
    filled = [cell for cell in names if cell]
    if first.text.lstrip().startswith("#") and lines_below and not is_usual(names):
        raise DataError(
            f"{name}: line {first.number}: must name the columns; given '{shown(first.text)}'; if it is a comment, "
            "remove it; if it names them, remove its #"
        )
    if len(lines_below) < 2 or len(filled) != 1 or is_usual(names):
        return
    for candidate in separator if len(names) > 1 else _SEPARATORS:
        cells = _cells(lines_below[0].text, candidate)
        if len(cells) > 1 and all(cells) and _has_width(lines_below, candidate, len(cells)):
            raise DataError(
                f"{name}: line {first.number}: must name {len(cells)} columns, as the lines below have values; "
                f"given '{shown(filled[0])}' alone; if it is a title, remove it, so that line {lines_below[0].number} "
                "names the columns"
            )


def _is_even(form: _Form) -> bool:
    lines = (_without_end(line) for line in form.lines())
    return len({line.count("\t") for line in lines if line.strip(" ")}) <= 1


def _named_rows(
    form: _Form, all_rows: Callable[[], Iterator[list[str]]], notes: tuple[str, ...]
) -> DelimitedRows:
    first = next(all_rows(), None)
    if first is None:
        raise DataError(
            f"{form.name}: must name its columns in the first line; given an empty file"
        )
    if not form.has_header:
        return DelimitedRows(tuple(map(str, range(len(first)))), all_rows, False)
    names = tuple(cell.strip().strip("\ufeff") for cell in first)
    return DelimitedRows(names, lambda: islice(all_rows(), 1, None), True, notes)


def _plain_rows(form: _Form) -> Iterator[list[str]]:
    """Yield the values between tabs; quotes are part of a value unless they enclose all of it."""
    header: list[str] = []
    for number, line in enumerate(form.lines(), start=form.start):
        text = _without_end(line)
        if not text.strip(" "):
            continue
        row = [_unquoted(cell) for cell in text.split("\t")]
        _refuse_names(form, row, header, number)
        header = header or row
        yield row


def _unquoted(value: str) -> str:
    match = None
    if '"' in value:
        match = _QUOTED.fullmatch(value)
    if match:
        return match[1].replace('""', '"')
    return value


def _quoted_rows(form: _Form) -> Iterator[list[str]]:
    """Yield the values of each row that is not blank; all have as many as the first."""
    row_lines: list[str] = []  # the lines of a row
    is_read = False

    def lines() -> Iterator[str]:
        nonlocal is_read
        for line in form.lines():
            row_lines.append(line)
            yield line
        is_read = True

    reader = csv.reader(lines(), delimiter=form.separator, skipinitialspace=form.skips_blanks)
    header: list[str] = []
    num_rows = 0
    try:
        for row in reader:
            number = form.start + reader.line_num - len(row_lines)
            # A value that is not closed swallows the rows up to the next mark, or the rest of the file.
            if (len(row_lines) > 1 or is_read) and not _closes_quotes(form, row_lines):
                raise _unclosed(form, number)
            _refuse_names(form, row, header, number)
            _check_marks(form, row_lines, number)
            row_lines.clear()
            if not row or (len(row) == 1 < len(header) and not row[0].strip()):
                continue
            num_rows += 1
            if header and len(row) != len(header):
                raise _of_other_width(form, num_rows, len(header), len(row))
            header = header or row
            yield row
    except csv.Error:  # a value is too long
        if len(row_lines) > 1:
            raise _unclosed(form, form.start + reader.line_num - len(row_lines)) from None
        raise _too_long(form.name) from None


def _refuse_names(form: _Form, row: list[str], header: list[str], number: int) -> None:
    """Refuse the names of the columns among the rows, as files that were put together have them.

    The second file may have a BOM, or write the names in another order or case.
    """
    if not form.has_header or len(row) < 2 or len(row) != len(header):
        return
    most_characters = sum(map(len, header)) + _SAME_NAME_SLACK * len(header)
    if sum(map(len, row)) <= most_characters and _plain_names(row) == _plain_names(header):
        raise DataError(
            f"{form.name}: line {number} names the columns again, {listed(row, most=5)}; if files were joined, "
            "remove that line"
        )


def _plain_names(row: Sequence[str]) -> list[str]:
    return sorted(as_read(cell).strip('"') for cell in row)


def _of_other_width(form: _Form, num_rows: int, width: int, row_width: int) -> DataError:
    kind = "header" if form.has_header else "first row"
    cure = f"put values with {form.separator!r} in double quotes"
    if width == 1 and form.has_header:
        cure += ", or remove the first line if it is a title"
    return DataError(
        f"{form.name}: row {num_rows - form.has_header}: must have {width} values, as the {kind}; given {row_width}; "
        f"{cure}"
    )


def _unclosed(form: _Form, number: int) -> DataError:
    return DataError(
        f"{form.name}: line {number}: must close the quotation mark of each value; "
        'write marks inside a value twice, as ""'
    )


def _too_long(name: str) -> DataError:
    return DataError(
        f"{name}: a row must have less than {_MAX_ROW >> 20} MiB; check its double quotes"
    )


def _closes_quotes(form: _Form, lines: Sequence[str]) -> bool:
    reader = csv.reader(
        lines, delimiter=form.separator, strict=True, skipinitialspace=form.skips_blanks
    )
    try:
        return len(list(reader)) == 1
    except csv.Error:
        return False


def _check_marks(form: _Form, lines: Sequence[str], number: int) -> None:
    r"""Refuse a row with ``\"``, or with quotes after a blank that would become a part of the value."""
    text = "".join(lines)
    if '"' not in text:
        return
    if '\\"' in text and not _closes_quotes(form, lines):
        raise DataError(
            f'{form.name}: line {number}: must have marks inside a value twice, as ""; given \\"; replace each'
        )
    separator = re.escape(form.separator)
    before_marks = re.compile(rf'(^|{separator})((?:(?!{separator}){_BLANK})+)(?=")')
    blanks = [match[2] for match in before_marks.finditer(text)]
    blank = next((blank for blank in blanks if blank.strip(" ") or not form.skips_blanks), None)
    if blank is None:
        return
    row = _seen_cells(form, lines, skips_blanks=form.skips_blanks)
    meant_lines = [before_marks.sub(r"\1 ", line) for line in lines]
    if row != _seen_cells(form, meant_lines, skips_blanks=True):
        detail = f"; given {blank!a}" if blank.strip(" ") else ""
        raise DataError(
            f"{form.name}: line {number}: must have no blank before a quotation mark that opens a value, unless all "
            f"lines have spaces there{detail}; remove it"
        )


def _seen_cells(form: _Form, lines: Sequence[str], *, skips_blanks: bool) -> list[str]:
    """Return the values of a row without any blanks, by which two readings of it are compared."""
    reader = csv.reader(lines, delimiter=form.separator, skipinitialspace=skips_blanks)
    return [re.sub(_BLANK, "", cell) for cell in next(reader, [])]


def _skips_blanks(form: _Form, head: Sequence[_Line]) -> bool:
    """Return whether a blank follows every separator of the rows, and quotes some of these.

    Raises:
        DataError: If values are quoted by other marks.
    """
    lines = head[1:] if form.has_header else head
    _refuse_other_quotes(form, lines)
    separator = re.escape(form.separator)
    mark = re.compile(rf'{separator} +"')
    if form.separator == " " or not any(mark.search(line.text) for line in lines):
        return False
    cell = rf'(?:"(?:[^"]|"")*"|[^"{separator}]*) *'
    row = re.compile(rf" *{cell}(?:{separator} +{cell})+")
    complete = [line for line in lines if line.text.count('"') % 2 == 0]
    return all(row.fullmatch(line.text) for line in complete)


def _refuse_other_quotes(form: _Form, lines: Sequence[_Line]) -> None:
    if len(lines) < 2 or '"' in "".join(line.text for line in lines):
        return
    for opening, closing in _OTHER_QUOTES:
        rows = [_cells(line.text, form.separator) for line in lines]
        if all(len(row) > 1 and _is_quoted(row, opening, closing) for row in rows):
            raise DataError(
                f'{form.name}: line {lines[0].number}: must have values in double quotes, "; given {opening} and '
                f"{closing}; replace them"
            )


def _is_quoted(row: Sequence[str], opening: str, closing: str) -> bool:
    words = [cell for cell in row if cell and not _NUMBER.fullmatch(cell)]
    return bool(words) and words[0][0] == opening and words[-1][-1] == closing
