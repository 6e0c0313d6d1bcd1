"""CSV and TSV as they are meant: where names stand, what separates values and quotes them, and what is refused."""

from __future__ import annotations

import pytest

from raysent.data.tables import open_table, read_table
from raysent.data.texts import read_texts
from raysent.errors import DataError
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.tasks import find_task

ROWS = [
    (f"The {noun} was {word}, and the {other} too", "pos" if word in ("kind", "warm") else "neg")
    for noun in ("lamp", "train", "river", "hotel", "garden")
    for other in ("chair", "phone")
    for word in ("kind", "warm", "slow", "cold")
]


def lines_of(separator: str, *, quoted: bool = True, blank: str = "") -> list[str]:
    """Return the rows as lines."""
    mark = '"' if quoted else ""
    return [f"{mark}{text}{mark}{separator}{blank}{mark}{label}{mark}" for text, label in ROWS]


READ = {
    "sep=;": ("x.csv", ["sep=;", "text;label", *lines_of(";")]),
    "sep in marks": ("x.csv", ['"sep=;"', "text;label", *lines_of(";")]),
    "sep of a tab": ("x.tsv", ["sep=\t", "text\tlabel", *lines_of("\t")]),
    "sep against what is more frequent": ("x.csv", ["sep=;", "text;label", *lines_of(";", quoted=False)]),
    "title with blank cells": ("x.csv", ["Survey 2024,", "text,label", *lines_of(",")]),
    "title alone": ("x.csv", ["Survey 2024", "", "text;label", *lines_of(";")]),
    "two titles": ("x.tsv", ["Survey 2024\t", "All shops\t", "text\tlabel", *lines_of("\t")]),
    "comment": ("x.csv", ["# exported 2024-05-01, by me", "text,label", *lines_of(",")]),
    "blank cells": ("x.csv", [",", "text,label", *lines_of(",")]),
    "|": ("x.csv", ["text|label", *lines_of("|", quoted=False)]),
    "blank before quotes": ("x.csv", ["text, label", *lines_of(",", blank=" ")]),
    "blank before quotes of a TSV": ("x.tsv", ["text\tlabel", *lines_of("\t", blank=" ")]),
    "other blanks before quotes of a TSV": ("x.tsv", ["text\tlabel", *lines_of("\t", blank="\u00a0")]),
    "commas in a TSV": ("x.tsv", ["text,label", *lines_of(",")]),
    "separator in a name": ("x.csv", ['"text";"label, final"', *lines_of(";")]),
}  # fmt: skip


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("case", READ)
def test_table_is_read_as_it_is_meant(tmp_path, case, newline):
    """Rows and labels are those that were written; no name of a column is a class."""
    name, lines = READ[case]
    path = tmp_path / name
    path.write_bytes(newline.join([*lines, ""]).encode())
    task = OwnTask(str(path))
    data = task.load()
    assert data.sentences == ([text for text, _ in ROWS],)
    assert [data.label_names[label] for label in data.labels] == [label for _, label in ROWS]
    assert read_texts(str(path)).texts == [text for text, _ in ROWS]
    is_below = lines[0][:6] in ("Survey", "# expo")
    assert ("names the columns; what is above is left out" in task.remarks.notes[0]) == is_below


REFUSED = {
    "title of two cells": (["Exported on May 1, 2024", "text,label", *lines_of(",")],
                           r"line 2 names the columns, text, label, and must be the first line; given 'Exported on May 1, "
                           r"2024' above it; remove what is above it$"),
    "title above unusual names": (["Survey 2024,", "Kommentar,Note", *lines_of(",")],
                                  r"line 1: must name 2 columns, as the lines below have values; given 'Survey 2024' alone; "
                                  r"if it is a title, remove it, so that line 2 names the columns$"),
    "title alone above unusual names": (["Survey 2024", "Kommentar;Note", *lines_of(";")],
                                        r"line 1: must name 2 columns"),
    "comment above unusual names": (["# exported, by me", "Kommentar,Note", *lines_of(",")],
                                    r"line 1: must name the columns; given '# exported, by me'; if it is a comment, remove it"),
    "names again": (["text,label", *lines_of(","), "text,label", *lines_of(",")],
                    r"line 42 names the columns again, text, label; if files were joined, remove that line$"),
    "names again with a BOM": (["text,label", *lines_of(","), '\ufeff"text",label', *lines_of(",")],
                               r"line 42 names the columns again, "),
    "names again in another order and case": (["text,label", *lines_of(","), "Label , TEXT", *lines_of(",")],
                                              r"line 42 names the columns again, Label, TEXT; if files were joined"),
    "tab before quotes": (["text,label", *lines_of(",", blank="\t")],
                          r"line 2: must have no blank before a quotation mark that opens a value, .*; given '\\t'; remove it$"),
    "no-break spaces before quotes": (["text,label", *lines_of(",", blank="\u00a0")],
                                      r"line 2: must have no blank before .*; given '\\xa0'; remove it$"),
    "invisible character before some quotes": (["text,label", *lines_of(","), *lines_of(",", blank="\u200b")],
                                               r"line 42: must have no blank before .*; given '\\u200b'; remove it$"),
    "tab before quotes, where others have spaces": (["text,label", *lines_of(",", blank=" ") * 2, *lines_of(",", blank="\t")],
                                                    r"line 82: must have no blank before .*; given '\\t'; remove it$"),
    "blank before the first quotes of some lines": (["label,text", '"pos","a lamp"', ' "neg","a train"', '"neg","a river"'],
                                                    r"line 3: must have no blank before a quotation mark"),
    "blank before some quotes": (["text,label", *lines_of(","), *lines_of(",", blank=" ")],
                                 r"line 42: must have no blank before a quotation mark that opens a value, unless all lines have spaces there; remove it$"),
    "backslash before a mark": (["text,label", r'"He said \"no\" twice",neg', *lines_of(",")],
                                r'line 2: must have marks inside a value twice, as ""; given \\"; replace each$'),
    "single quotes": (["text,label", *(line.replace('"', "'") for line in lines_of(","))],
                      r"line 2: must have values in double quotes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_table_of_two_meanings_is_refused_in_one_line(tmp_path, case):
    """By a task, `encode` and whatever else reads it; the line is named, and what to do."""
    lines, message = REFUSED[case]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=message) as error:
        OwnTask(str(path)).load()
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=message):
        list(open_table(path).blocks(open_table(path).names))


def test_header_that_is_said_to_be_the_first_line_is(tmp_path):
    """Usual words in a row below make no header of it then."""
    path = tmp_path / "words.csv"
    path.write_text("\n".join(["Word,Related", "Topic,Question", *["a,b"] * 9]))
    with pytest.raises(DataError, match="line 2 names the columns, Topic, Question, and must be"):
        read_table(path)
    assert list(read_table(path, finds_header=False).columns) == ["Word", "Related"]


def test_quotes_after_a_blank_inside_of_a_value_are_a_part_of_it(tmp_path):
    """They follow a comma of the text, and the value has marks of its own."""
    path = tmp_path / "x.csv"
    path.write_text('text,label\n"He said, ""no"", twice",a\n" ""No"" he said, ""no""",b\n')
    assert read_table(path).columns["text"] == ['He said, "no", twice', ' "No" he said, "no"']


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_message_of_a_table_is_short_whatever_it_holds(tmp_path, encoding):
    """A name, a cell or a number of columns may be as long as a file."""
    path = tmp_path / "x.csv"
    for end in ("", "x" * 500):
        names = [f"column {number} a{end}" for number in range(3000)]
        path.write_bytes(("\n".join([",".join(names), ",".join(["y"] * 3000)])).encode(encoding))
        for read in (
            lambda: find_task(f"{path}:header=yes").load(),
            lambda: read_texts(str(path)),
            lambda: find_task(f"{path}:text=nothing at all").load(),
        ):
            with pytest.raises(DataError, match=r"\(3,000 in all\)") as error:
                read()
            assert len(str(error.value)) < 8000


def test_byte_that_is_no_utf_8_is_named_with_its_line_where_carriage_returns_end_lines(tmp_path):
    """They are the only ends of lines."""
    path = tmp_path / "x.csv"
    path.write_bytes(b"text,label\ra,b\rcaf\xe9,b\r")
    with pytest.raises(DataError, match=r"x\.csv:3: must be UTF-8; given byte 0xe9"):
        read_table(path)
