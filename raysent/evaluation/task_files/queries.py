"""A user's own queries and passages as a task of the kind `retrieval`.

    queries/           a folder in BEIR's form: corpus.jsonl, queries.jsonl, qrels/{train,dev,test}.tsv; a part may have
                       another usual name, such as validation.tsv
    questions.csv      a table of query, passage and, if some pairs are not or less relevant, relevance

All passages are candidates of every query but one: in a folder, a passage with the query's own identifier is none. A
row of a table without a query adds a passage that is a candidate alone. Queries of dev choose and those of test judge.
A part that is not given is drawn of the others by the queries' text, near-copies together; but a test part that is
given alone stays whole, and gives queries to choose by only where something is fitted or chosen, see `with_dev`.

Source: Thakur et al., 2021, "BEIR" (the files); the packages beir and mteb (identical identifiers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from raysent.data.column_names import QUERIES, SPLITS
from raysent.data.tables import Table, check_texts, read_table
from raysent.errors import DataError, listed, shown
from raysent.evaluation.division import draw_rows
from raysent.evaluation.task import NO_ROWS, Remarks, RetrievalData
from raysent.evaluation.task_files.division import split_name
from raysent.evaluation.task_files.settings import CORPUS_FILE, TaskSettings
from raysent.evaluation.units import near_copies
from raysent.platforms import expanded

_RELEVANCE = "relevance"
_QUERIES_FILE = "queries.jsonl"
# The folder of the parts, whose files have the names of parts, `dev.tsv` or `validation.tsv`.
_PARTS_FOLDER = "qrels"
_PART_SUFFIXES = (".tsv", ".tsv.gz")
_PARTS = ("train", "validation", "test")
# Of queries with no dev part beside a train part, the part that becomes dev; of test queries alone, half, if needed.
_DEV_OF_TRAIN = 0.2
_HALF = 0.5

# Query -> passage -> relevance, by their numbers.
_Relevant = dict[int, dict[int, float]]


def is_beir_folder(settings: TaskSettings) -> bool:
    """Return whether the settings name a folder in BEIR's form."""
    return isinstance(settings.path, str) and (expanded(settings.path) / CORPUS_FILE).is_file()


def is_query_table(settings: TaskSettings, table: Table) -> bool:
    """Return whether a table holds queries and passages: the settings name them, or columns have these names."""
    named_columns = (settings.query, settings.passage, settings.relevance)
    if any(column is not None for column in named_columns):
        return True
    other_columns = (settings.text, settings.text_a, settings.label, settings.score)
    names_other_kind = any(column is not None for column in other_columns)
    return not names_other_kind and set(QUERIES) <= set(table.columns)


def beir_files(folder: str) -> list[str]:
    """Return the files of a folder in BEIR's form that are there."""
    beir_folder = expanded(folder)
    part_files = [path for path, _ in _part_files(beir_folder)]
    paths = [beir_folder / CORPUS_FILE, beir_folder / _QUERIES_FILE, *part_files]
    return [str(path) for path in paths if path.is_file()]


def _part_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of the parts with the part of each, train first; files of other names are left out."""
    part_files = []
    for path in _judgements(folder):
        part = _part_name(path)
        if part is not None:
            part_files.append((path, part))
    return sorted(part_files, key=lambda file: (_PARTS.index(file[1]), file[0]))


def _judgements(folder: Path) -> list[Path]:
    """Return the files that judge passages, whether they are named as a part or not."""
    parts_folder = folder / _PARTS_FOLDER
    if not parts_folder.is_dir():
        return []
    paths = sorted(parts_folder.iterdir())
    return [path for path in paths if path.is_file() and not path.name.startswith(".")]


def _part_name(path: Path) -> str | None:
    for suffix in _PART_SUFFIXES:
        if path.name.endswith(suffix):
            return split_name(path.name.removesuffix(suffix))
    return None


def read_folder(folder: str, *, task: str) -> tuple[RetrievalData, Remarks]:
    """Read a folder in BEIR's form; a passage is its title and its text.

    Raises:
        DataError: If a file is missing or malformed, or relevant passages are not there.
    """
    beir_folder = expanded(folder)
    passage_texts = _texts_by_id(read_table(beir_folder / CORPUS_FILE))
    query_texts = _texts_by_id(read_table(beir_folder / _QUERIES_FILE))
    passages = _numbered(passage_texts)
    queries = _numbered(query_texts)
    relevant: _Relevant = {}
    parts: dict[str, list[int]] = {}
    part_files = _part_files(beir_folder)
    if not part_files:
        names = [f"{_PARTS_FOLDER}/{path.name}" for path in _judgements(beir_folder)]
        names_there = "none"
        if names:
            names_there = listed(names)
        raise DataError(
            f"{beir_folder}: must have {_PARTS_FOLDER}/test.tsv, or another part of train, dev and test; given "
            f"{names_there}"
        )
    for path, part in part_files:
        table = read_table(path)
        columns = [table.column(key, key="columns") for key in ("query-id", "corpus-id", "score")]
        # The queries of this file, each once and in their order.
        queries_of_file: dict[int, None] = {}
        for row, (query_id, passage_id, score) in enumerate(zip(*columns, strict=True)):
            if query_id not in queries:
                raise DataError(
                    f"{table.where(row)}: query-id '{query_id}' must be an _id of {_QUERIES_FILE}"
                )
            if passage_id not in passages:
                raise DataError(
                    f"{table.where(row)}: corpus-id '{passage_id}' must be an _id of {CORPUS_FILE}"
                )
            query = queries[query_id]
            queries_of_file[query] = None
            grades = relevant.setdefault(query, {})
            grades[passages[passage_id]] = _relevance(table, row, score)
        # Two files may be of one part, such as dev.tsv and validation.tsv.
        parts[part] = [*parts.get(part, ()), *queries_of_file]
    data, remarks = _data(task, str(beir_folder), passage_texts, query_texts, relevant, parts)
    return data, _remarks_of_folder(beir_folder, data, remarks)


def _numbered(texts: Iterable[Any]) -> dict[Any, int]:
    """Return the number of each text or identifier, from 0 in their order; of equal ones the first counts."""
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def _remarks_of_folder(folder: Path, data: RetrievalData, remarks: Remarks) -> Remarks:
    """Return remarks with the files that are no part, and a warning of queries that choose and judge."""
    left_out = [path.name for path in _judgements(folder) if _part_name(path) is None]
    notes = [f"{data.task}: {_PARTS_FOLDER}/{name} is no part and left out" for name in left_out]
    warnings = [*remarks.warnings]
    num_both = len(np.intersect1d(data.test, np.concatenate([data.train, data.dev])))
    if num_both:
        warnings.append(
            f"{data.task}: {num_both:,} test queries are in train or dev too; test scores are too high"
        )
    return replace(remarks, notes=(*remarks.notes, *notes), warnings=tuple(warnings))


def _texts_by_id(table: Table) -> dict[str, str]:
    """Return the texts of a file of JSON lines by their ``_id``; a title comes before the text."""
    texts = table.texts("text", key="text")
    titles = table.columns.get("title") or [None] * len(texts)
    identifiers = table.column("_id", key="_id")
    texts_by_id: dict[str, str] = {}
    for row, (identifier, title, text) in enumerate(zip(identifiers, titles, texts, strict=True)):
        if str(identifier) in texts_by_id:
            raise DataError(
                f"{table.where(row)}: _id '{identifier}' must be there once; given twice"
            )
        if title:
            text = f"{title} {text}".strip()  # noqa: PLW2901 - the text of this passage
        texts_by_id[str(identifier)] = text
    return texts_by_id


def read_queries(
    settings: TaskSettings, table: Table, *, task: str
) -> tuple[RetrievalData, Remarks]:
    """Read a table of queries and passages; the same text is the same query, or the same passage.

    Raises:
        DataError: If a column is missing, a value is no text or number, or a query is in two parts.
    """
    query_column = settings.query or QUERIES[0]
    passage_column = settings.passage or QUERIES[1]
    query_texts = [text or "" for text in table.column(query_column, key="query")]
    column = f"query '{query_column}'"
    check_texts(query_texts, source=table.source, column=column, kinds=(str, int, float))
    passages = _numbered(table.texts(passage_column, key="passage"))
    queries = _numbered(text for text in query_texts if str(text).strip())
    grades = _grades(settings, table)
    relevant: _Relevant = {}
    for row, query_text in enumerate(query_texts):
        if query_text not in queries:
            continue
        passage = passages[table.columns[passage_column][row]]
        of_query = relevant.setdefault(queries[query_text], {})
        # A pair that is there twice has the higher relevance.
        of_query[passage] = max(_relevance(table, row, grades[row]), of_query.get(passage, 0.0))
    parts = _parts_of(settings, table, [queries.get(text) for text in query_texts])
    passages_by_name = {str(number): str(text) for text, number in passages.items()}
    # In a table no query is a passage, so the names of both must differ.
    queries_by_name = {f"query {number}": str(text) for text, number in queries.items()}
    return _data(task, table.source, passages_by_name, queries_by_name, relevant, parts)


def _grades(settings: TaskSettings, table: Table) -> Sequence[object]:
    """Return how relevant each row's passage is: what its column holds, or 1 where there is no such column."""
    column = settings.relevance
    if not column and _RELEVANCE in table.columns:
        column = _RELEVANCE
    if not column:
        return [1] * len(table)
    return table.column(column, key="relevance")


def _parts_of(
    settings: TaskSettings, table: Table, queries: Sequence[int | None]
) -> dict[str, list[int]]:
    """Return the queries of each part that the table or its files give; of a table without any, all are test."""
    column: str | None = None
    is_by_name = settings.split is None and not table.parts
    if is_by_name:
        column = next((name for name in SPLITS if name in table.columns), None)
    elif isinstance(settings.split, str):
        column = settings.split
    written_parts: Sequence[object] = ["test"] * len(table)
    if table.parts:
        written_parts = _parts_of_files(table)
    elif column is not None:
        written_parts = table.column(column, key="split")
    part_of_query: dict[int, str] = {}
    for row, (query, written_part) in enumerate(zip(queries, written_parts, strict=True)):
        if query is None:
            continue
        part = split_name(written_part)
        if part is None:
            switch = ""
            if is_by_name:
                switch = "; the column was found by its name, and split=no leaves it out"
            raise DataError(
                f"{table.where(row)}: split '{column}' must be train, dev or test; given '{shown(written_part)}'"
                f"{switch}"
            )
        if part_of_query.setdefault(query, part) != part:
            raise DataError(
                f"{table.where(row)}: the query must be in one part; given {part_of_query[query]} and {part}"
            )
    queries_of_part: dict[str, list[int]] = {}
    for query, part in part_of_query.items():
        queries_of_part.setdefault(part, []).append(query)
    return queries_of_part


def _parts_of_files(table: Table) -> list[str]:
    """Return the part of each row of a table that was read from one file a part."""
    row_parts = ["test"] * len(table)
    for part, rows in table.parts.items():
        for row in rows.tolist():
            row_parts[row] = part
    return row_parts


def _relevance(table: Table, row: int, grade: object) -> float:
    """Return the relevance that is written in a row.

    Raises:
        DataError: If it is no finite number.
    """
    with suppress(ValueError):
        relevance = float(str(grade))
        if isfinite(relevance):
            return relevance
    raise DataError(f"{table.where(row)}: relevance must be a finite number; given '{grade}'")


def _data(
    task: str,
    source: str,
    passages: Mapping[str, str],
    queries: Mapping[str, str],
    relevant: _Relevant,
    parts: Mapping[str, Sequence[int]],
) -> tuple[RetrievalData, Remarks]:
    """Return a task of passages and queries by their names, with the parts that are not given drawn of the others."""
    texts = list(queries.values())
    train, dev, test = (np.array(parts.get(part, ()), np.int64) for part in _PARTS)
    notes = []
    if not len(test) and len(dev):
        test = _drawn(texts, dev)
        dev = np.setdiff1d(dev, test)
        notes.append("test drawn of dev")
    elif not len(test):
        test = _drawn(texts, train)
        train = np.setdiff1d(train, test)
        notes.append("test drawn of train")
    if not len(dev) and len(train) > len(test):
        dev = _drawn(texts, train, _DEV_OF_TRAIN)
        train = np.setdiff1d(train, dev)
        notes.append("dev drawn of train")
    if not len(test):
        raise DataError(
            f"{source}: must have at least 2 queries for dev and test; given {len(texts)}"
        )
    data = RetrievalData(
        task=task,
        passages=list(passages.values()),
        passage_ids=tuple(passages),
        queries=texts,
        query_ids=tuple(queries),
        relevant=tuple(relevant.get(query, {}) for query in range(len(texts))),
        train=train,
        dev=dev,
        test=test,
    )
    sizes = f"{len(train):,} train, {len(dev):,} dev and {len(test):,} test queries"
    note = "; ".join([f"{task}: {len(data.passages):,} passages", sizes, *notes])
    summary = f"{task}: {len(data.passages):,} passages, {len(test):,} hold-out queries"
    return data, Remarks((note,), _warnings(data), summary)


def _warnings(data: RetrievalData) -> tuple[str, ...]:
    """Return what a reader of a task's scores has to know."""
    warnings = []
    num_test = len(data.test)
    if not len(data.dev) and num_test > 1:
        # A score stands beside published ones or does not, which a reader has to see.
        num_choosing = len(with_dev(data).dev)
        warnings.append(
            f"{data.task}: no dev part: all {num_test:,} test queries are tested where nothing is chosen, and "
            f"{num_choosing:,} of them choose and {num_test - num_choosing:,} are tested where something is"
        )
    num_lacking = 0
    for query in (*data.dev, *data.test):
        grades = data.relevant[query].values()
        num_lacking += not any(grade > 0 for grade in grades)
    if num_lacking:
        warnings.append(
            f"{data.task}: {num_lacking} queries of dev and test have no relevant passage, and score 0"
        )
    return tuple(warnings)


def with_dev(data: RetrievalData) -> RetrievalData:
    """Return a task with queries of dev, by which something may be chosen: half of those that test where none is given.

    Raises:
        DataError: If there is a single query.
    """
    if len(data.dev):
        return data
    dev = _drawn(data.queries, data.test)
    test = np.setdiff1d(data.test, dev)
    if not len(dev) or not len(test):
        raise DataError(
            f"{data.task}: must have at least 2 queries for dev and test; given {len(data.test)}"
        )
    return replace(data, dev=dev, test=test)


def _drawn(texts: Sequence[str], queries: np.ndarray, share: float = _HALF) -> np.ndarray:
    """Return a part of some queries, near-copies together, int64 [queries]; none of fewer than two."""
    if len(queries) < 2:
        return NO_ROWS
    query_texts = [texts[query] for query in queries.tolist()]
    # All queries are of one stratum, as they have no classes.
    strata = np.zeros(len(queries), np.int64)
    return queries[draw_rows([query_texts], strata, near_copies(query_texts), share=share)]
