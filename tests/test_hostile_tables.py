"""Two hundred hostile tables made by rules, and each reader of them.

A rule says how a table is written: its form, encoding, line ends, separator, quotes, what stands above the names, the
type of the labels and the form of the texts. It writes down the rows and labels that are meant, or the line that refuses
the table. Tables that mean the same rows are the same task, with the same folds and scores.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import unicodedata
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from tables import save_dataset

from raysent import evaluate, predict
from raysent.data.corpus.sources import Source
from raysent.data.pairs import PairsConfig, read_pairs
from raysent.data.tables import open_table, read_table
from raysent.data.texts import open_texts, read_texts
from raysent.ensembles import combine
from raysent.ensembles.ensemble import load_predicting
from raysent.errors import DataError, RaysentError
from raysent.evaluation.task_files import OwnTask, forget_tables

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
NEWLINES = {"LF": "\n", "CRLF": "\r\n", "CR": "\r"}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")
# How values are quoted: only where they must be, all, all after a blank, or not at all, where none must be.
QUOTES = ("minimal", "all", "blank", "none")
HEADERS = {
    "plain": [],
    "title": ["Survey 2024"],
    "padded title": ["Survey 2024{separator}"],
    "comment": ["# exported, by {separator} hand", "# and again"],
    "blank cells": ["{separator}"],
    "sep=": ["sep={separator}"],
}  # fmt: skip
LABELS = {
    "words": ("good", "bad"),
    "numbers": (1, 0),
    "fractions": (0.5, 1.5),
    "truth": (True, False),
    "signs": ("+", "-1"),
    "blanks": ("not so good", "NA"),
}  # fmt: skip
FORMS = ("NFC", "NFD", "emoji", "scripts")
_WORDS = {
    "NFC": ("café", "naïve", "Größe", "señor", "lamp", "train"),
    "emoji": ("🙂", "👩‍👩‍👧", "lamp", "❤️", "train", "soft\u00adware"),
    "scripts": ("房间", "книга", "한국어", "lamp", "كتاب", "train"),
}


@dataclass(frozen=True)
class Rule:
    """How a table is written, and whether its texts hold its own separators, quotes and line ends."""

    suffix: str = ".csv"
    encoding: str = "utf-8"
    newline: str = "LF"
    separator: str = "comma"
    quotes: str = "minimal"
    header: str = "plain"
    labels: str = "words"
    form: str = "NFC"
    is_rough: bool = False
    fault: str = ""

    def rows(self) -> list[tuple[str, object]]:
        """Return the texts and labels that the table means."""
        return rows_of(self.labels, self.form, is_rough=self.is_rough)

    def __str__(self) -> str:
        return "-".join(str(part) for part in vars(self).values() if part)


def rows_of(labels: str, form: str, *, is_rough: bool) -> list[tuple[str, object]]:
    """Return texts, no two of them alike, and their labels."""
    words = _WORDS["NFC" if form == "NFD" else form]
    marks = (' "so" it,\twas; ', " a|b ", '""', "' ", " \\ ") if is_rough else (" ",)
    rows = []
    for number in range(30):
        first, second = words[number % 6], words[(number * 5 + number // 6) % 6]
        text = f"{first}{marks[number % len(marks)]}{second} {'abcdefghij'[number % 10] * 4}{number * 37} end"
        rows.append(
            (
                unicodedata.normalize("NFD" if form == "NFD" else "NFC", text),
                LABELS[labels][number % 2],
            )
        )
    return rows


def _cell(value: str, separator: str, quotes: str) -> str:
    must = any(mark in value for mark in (separator, '"', "\n", "\r")) or value != value.strip()
    if quotes == "none" or (quotes == "minimal" and not must):
        return value
    return '"' + value.replace('"', '""') + '"'


def lines_of(rule: Rule) -> list[str]:
    """Return the lines of a table of CSV or TSV."""
    separator = SEPARATORS[rule.separator]
    between = separator + " " if rule.quotes == "blank" else separator
    lines = [line.format(separator=separator) for line in HEADERS[rule.header]]
    lines.append(between.join(("text", "label")))
    for text, label in rule.rows():
        lines.append(
            between.join(_cell(str(value), separator, rule.quotes) for value in (text, label))
        )
    return lines


def _single_quotes(lines: list[str]) -> list[str]:
    return [lines[0], *(line.replace('"', "'") for line in lines[1:])]


# What is wrong -> what makes it of the lines, and the line that refuses it.
FAULTS = {
    "title of two cells": (lambda lines: ["Exported on May 1, 2024; by|me\tnow", *lines], r"line 2 names the columns, text, label, and must be the first line; given 'Exported .*; remove what is above it$"),
    "title above unusual names": (lambda lines: ["Survey 2024", lines[0].replace("text", "Kommentar").replace("label", "Note"), *lines[1:]], r"line 1: must name 2 columns.*; if it is a title, remove it"),
    "comment above unusual names": (lambda lines: ["# a", lines[0].replace("text", "Kommentar").replace("label", "Note"), *lines[1:]], r"line 1: must name the columns; .*; if it is a comment, remove it"),
    "names again": (lambda lines: [*lines, *lines], r"line 32 names the columns again, text, label; if files were joined, remove that line$"),
    "row of one value": (lambda lines: [*lines, "alone"], r"row 31: must have 2 values, as the header; given 1; put values with"),
    "names twice": (lambda lines: [lines[0].replace("text", "label"), *lines[1:]], r"columns must have different names; given 'label' twice; rename one$"),
    "single quotes": (_single_quotes, r"line 2: must have values in double quotes, .*replace them$"),
    "open quotes": (lambda lines: [*lines, lines[-1][:-1]], r"line 32: must close the quotation mark of each value; write marks inside"),
    "backslash": (lambda lines: [lines[0], '"\\"' + lines[1][1:], *lines[2:]], r'line 2: must have marks inside a value twice, as ""; given'),
    "blank before some quotes": (lambda lines: [*lines, lines[-1].replace('end"', 'end" ', 1)[::1].replace('" ' + lines[-1][lines[-1].index('end"') + 4], '"' + lines[-1][lines[-1].index('end"') + 4] + " ")], r"line 32: must have no blank before"),
}  # fmt: skip
ENCODING_FAULTS = {
    "latin-1": (lambda text: text.encode("latin-1"), r":\d+: must be UTF-8; given byte 0x.*; convert it with iconv$"),
    "utf-16 without a BOM": (lambda text: text.encode("utf-16-le"), r":\d: must be (plain text; given a NUL byte: .* Convert|UTF-8; given byte 0xe9; convert) it with iconv$"),
    "bytes cut off": (lambda text: text.encode("utf-16")[:-1], r"must be UTF-16; given byte 0x.*; convert it with iconv$"),
}  # fmt: skip
# Readers that find no column are asked for one; a table of JSON lines has other faults.
JSON_FAULTS = {
    "list": ('[{"text": "a", "label": "b"}]\n', r":1: must be a JSON object; given list; write one object a line$"),
    "NaN": ('{"text": "a", "label": NaN}\n', r":1: must be one JSON object a line; NaN is not a JSON value$"),
    "cut off": ('{"text": "a", "label": "b"}\n{"text": "a", "la', r":2: must be one JSON object a line; "),
}  # fmt: skip


def rules() -> list[Rule]:
    """Return the rules of all tables that are read as they are meant."""
    made = [
        *(Rule(encoding=encoding, newline=newline, separator=separator, header=header)
          for (encoding, newline, separator), header in zip(product(ENCODINGS, NEWLINES, SEPARATORS), [*HEADERS] * 8, strict=True)),
        *(Rule(separator=separator, quotes=quotes, newline=newline, is_rough=quotes != "none")
          for separator, quotes, newline in product(SEPARATORS, QUOTES, NEWLINES)),
        *(Rule(suffix=suffix, separator=separator, header=header, newline=newline)
          for suffix, separator, header, newline in product((".tsv", ".csv.gz"), ("tab", "semicolon"), HEADERS, ("CR", "CRLF"))
          if (suffix, separator, header) not in ((".tsv", "semicolon", "title"), (".tsv", "semicolon", "plain"))),
        *(Rule(suffix=suffix, labels=labels, form=form)
          for suffix, labels, form in zip([".csv", ".tsv", ".jsonl", ".parquet", ""] * 6, [*LABELS] * 5, [*FORMS, *FORMS, *FORMS, *FORMS, *FORMS, *FORMS, *FORMS, "NFC", "NFD"], strict=False)),
        *(Rule(suffix=".jsonl", encoding=encoding, newline=newline, is_rough=True) for encoding, newline in product(ENCODINGS, NEWLINES)),
    ]  # fmt: skip
    return list(dict.fromkeys(_sensible(rule) for rule in made))


def _sensible(rule: Rule) -> Rule:
    """Return a rule whose values can be written as it says."""
    separator = "tab" if rule.suffix == ".tsv" and rule.labels != "words" else rule.separator
    return Rule(**{**vars(rule), "separator": separator})


def refused_rules() -> list[Rule]:
    """Return the rules of all tables that are refused."""
    faults = [
        Rule(fault=fault, quotes="all", separator=separator)
        for fault, separator in product(FAULTS, ("comma", "semicolon"))
    ]
    return [
        *faults,
        *(Rule(fault=fault, newline=newline) for fault, newline in product(ENCODING_FAULTS, ("LF", "CR"))),
        *(Rule(suffix=".jsonl", fault=fault) for fault in JSON_FAULTS),
    ]  # fmt: skip


def write(rule: Rule, folder: Path) -> Path:
    """Write a rule's table and return its path."""
    path = folder / f"x{rule.suffix}"
    frame = pd.DataFrame(rule.rows(), columns=["text", "label"])
    if rule.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=7)
    elif rule.suffix == "":
        save_dataset(path, pa.Table.from_pandas(frame))
    else:
        newline = NEWLINES[rule.newline]
        if rule.suffix == ".jsonl":
            lines = [
                json.dumps({"text": text, "label": label}, ensure_ascii=False)
                for text, label in rule.rows()
            ]
        else:
            lines = lines_of(rule)
        if rule.fault in FAULTS:
            lines = FAULTS[rule.fault][0](lines)
        text = (
            JSON_FAULTS[rule.fault][0] if rule.fault in JSON_FAULTS else newline.join([*lines, ""])
        )
        encode = (
            ENCODING_FAULTS[rule.fault][0]
            if rule.fault in ENCODING_FAULTS
            else lambda text: text.encode(rule.encoding)
        )
        content = encode(text)
        path.write_bytes(gzip.compress(content) if rule.suffix.endswith(".gz") else content)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that predicts, in memory."""
    folder = tmp_path_factory.mktemp("model") / "own"
    frame = pd.DataFrame(rows_of("words", "NFC", is_rough=False), columns=["text", "label"])
    combine(["hash:10"], output=folder, tasks=[OwnTask(frame, name="own")])
    return load_predicting(folder)


MEANT = {str(rule): rule for rule in rules()}
REFUSED = {str(rule): rule for rule in refused_rules()}


def test_there_are_two_hundred_tables():
    """At least 150 of them can be read as they are meant, and none is there twice."""
    assert len(MEANT) >= 170
    assert len(MEANT) + len(REFUSED) >= 200


def _task(path: Path):
    forget_tables()
    return OwnTask(str(path), name="own").load()


@pytest.fixture(scope="module")
def tasks():
    """Rows -> their task by a data frame in memory; made once for all tables of these rows."""
    return {}


def _expected(rule: Rule, tasks):
    key = (rule.labels, rule.form, rule.is_rough)
    if key not in tasks:
        frame = pd.DataFrame(rule.rows(), columns=["text", "label"])
        tasks[key] = OwnTask(frame, name="own").load()
    return tasks[key]


def _as_meant(value: object, rule: Rule) -> object:
    return value if rule.suffix in (".jsonl", ".parquet", "") else str(value)


@pytest.mark.parametrize("name", MEANT)
def test_table_is_read_as_it_is_meant(tmp_path, name, model, tasks):
    """By tasks, `predict`, `encode`, pairs and corpora; its task is that of the same rows in memory."""
    rule = MEANT[name]
    path = write(rule, tmp_path)
    texts = [text for text, _ in rule.rows()]
    labels = [_as_meant(label, rule) for _, label in rule.rows()]
    assert dict(read_table(path).columns) == {"text": texts, "label": labels}
    opened = open_table(path)
    blocks = list(opened.blocks(["label", "text"]))
    assert [value for _, block in blocks for value in block] == texts
    assert read_texts(str(path)).texts == texts
    plain = _expected(rule, tasks)
    data = _task(path)
    assert data.sentences == plain.sentences
    assert data.label_names == plain.label_names
    assert data.label_kind == plain.label_kind
    for part in ("labels", "train", "test", "folds", "units"):
        assert getattr(data, part).tolist() == getattr(plain, part).tolist()
    predict(model, path, output=tmp_path / "out.parquet", progress=False)
    out = read_table(tmp_path / "out.parquet").columns
    assert (out["text"], out["label"]) == (texts, labels)
    assert out["predicted"] == model.predict(texts)
    if rule.suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        pairs = read_pairs(PairsConfig(path=str(path), first="text", second="text", label="label"))
        assert pairs.first == [text.strip() for text in texts]
        assert len(pairs.labels) == len(texts)
    is_dataset = rule.suffix == ""
    corpus = open_texts(Source(str(path), is_dataset=is_dataset), splits_sentences=True)
    words = " ".join(sentence for block in corpus.blocks for sentence in block)
    assert all(text.split()[-2] in words for text in texts)


@pytest.mark.parametrize("name", REFUSED)
def test_table_of_two_meanings_is_one_line_with_its_cure(tmp_path, name, model):
    """Every reader refuses it by the same line, which names the line and what to do."""
    rule = REFUSED[name]
    path = write(rule, tmp_path)
    message = {**FAULTS, **ENCODING_FAULTS, **JSON_FAULTS}[rule.fault][1]
    readers = (
        lambda: _task(path),
        lambda: list(open_table(path).blocks(open_table(path).names)),
        lambda: read_texts(str(path), column="text"),
        lambda: predict(model, path, column="text", output=tmp_path / "out.csv", progress=False),
        lambda: read_pairs(PairsConfig(path=str(path), first="text", second="text", label="label")),
    )
    for read in readers:
        with pytest.raises(RaysentError) as error:
            read()
        assert isinstance(error.value, DataError)
        assert re.search(message, str(error.value)), str(error.value)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 400
    assert not (tmp_path / "out.csv").exists()


SAME = [
    Rule(),
    Rule(suffix=".tsv", separator="tab", encoding="utf-16", newline="CR"),
    Rule(separator="semicolon", header="sep=", quotes="all"),
    Rule(suffix=".jsonl"),
    Rule(suffix=".parquet"),
    Rule(suffix=""),
]  # fmt: skip


def test_same_rows_have_the_same_scores_in_every_form(tmp_path):
    """Of a model that is evaluated on each."""
    scores = []
    for number, rule in enumerate(SAME):
        folder = tmp_path / str(number)
        folder.mkdir()
        task = OwnTask(str(write(rule, folder)), name="own")
        table = evaluate(
            "hash:20",
            tasks=[task],
            output=folder / "scores",
            baselines=False,
            processes=1,
            progress=False,
        )
        scores.append(table.to_csv())
    assert len(set(scores)) == 1


def test_what_is_written_is_read_as_it_was(tmp_path, model):
    """A table of any rule goes through CSV, TSV and JSON lines unchanged."""
    rule = Rule(is_rough=True, form="scripts")
    path = write(rule, tmp_path)
    texts = [text for text, _ in rule.rows()]
    for suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        predict(model, path, output=tmp_path / f"out{suffix}", progress=False)
        assert read_table(tmp_path / f"out{suffix}").columns["text"] == texts
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as stream:
        assert [row[0] for row in csv.reader(io.StringIO(stream.read()))][1:] == texts
