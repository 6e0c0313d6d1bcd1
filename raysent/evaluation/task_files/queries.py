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

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path

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

RELEVANCE = "relevance"
_TEXT_FILES = (CORPUS_FILE, "queries.jsonl")
# The folder of the parts, whose files have the names of parts, `dev.tsv` or `validation.tsv`.
_PARTS_FOLDER, _PART_SUFFIXES = "qrels", (".tsv", ".tsv.gz")
_PARTS = ("train", "validation", "test")
# Of queries with no dev part beside a train part, the part that becomes dev; of test queries alone, half, if needed.
_DEV_OF_TRAIN, _HALF = 0.2, 0.5

# Query -> passage -> relevance, by place.
Relevant = dict[int, dict[int, float]]


def is_beir_folder(settings: TaskSettings) -> bool:
    """Return whether the settings name a folder in BEIR's form."""
    return isinstance(settings.path, str) and (expanded(settings.path) / CORPUS_FILE).is_file()


def is_query_table(settings: TaskSettings, table: Table) -> bool:
    """Return whether a table holds queries and passages: the settings name them, or columns have these names."""
    named = (settings.query, settings.passage, settings.relevance)
    others = (settings.text, settings.text_a, settings.label, settings.score)
    is_plain = all(one is None for one in others) and set(QUERIES) <= set(table.columns)
    return is_plain or any(one is not None for one in named)


def beir_files(folder: str) -> list[str]:
    """Return the files of a folder in BEIR's form that are there."""
    parts = _part_files(expanded(folder))
    paths = [*(expanded(folder) / name for name in _TEXT_FILES), *(path for path, _ in parts)]
    return [str(path) for path in paths if path.is_file()]


def _part_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of the parts with the part of each, train first; others have no place here."""
    files = [(path, _part_name(path)) for path in _judgements(folder)]
    named = [(path, part) for path, part in files if part is not None]
    return sorted(named, key=lambda file: (_PARTS.index(file[1]), file[0]))


def _judgements(folder: Path) -> list[Path]:
    parts_folder = folder / _PARTS_FOLDER
    paths = sorted(parts_folder.iterdir()) if parts_folder.is_dir() else []
    return [path for path in paths if path.is_file() and not path.name.startswith(".")]


def _part_name(path: Path) -> str | None:
    suffix = next((suffix for suffix in _PART_SUFFIXES if path.name.endswith(suffix)), None)
    return None if suffix is None else split_name(path.name.removesuffix(suffix))


def read_folder(folder: str, *, task: str) -> tuple[RetrievalData, Remarks]:
    """Read a folder in BEIR's form; a passage is its title and its text.

    Raises:
        DataError: If a file is missing or malformed, or relevant passages are not there.
    """
    place = expanded(folder)
    corpus, asked = (_texts_by_id(read_table(place / name)) for name in _TEXT_FILES)
    passages, queries = (
        {name: number for number, name in enumerate(one)} for one in (corpus, asked)
    )
    relevant: Relevant = {}
    parts: dict[str, list[int]] = {}
    files = _part_files(place)
    if not files:
        names = [f"{_PARTS_FOLDER}/{path.name}" for path in _judgements(place)]
        given = listed(names) if names else "none"
        raise DataError(
            f"{place}: must have {_PARTS_FOLDER}/test.tsv, or another part of train, dev and test; given {given}"
        )
    for path, part in files:
        table = read_table(path)
        columns = [table.column(key, key="columns") for key in ("query-id", "corpus-id", "score")]
        here: dict[int, None] = {}
        for row, (query, passage, score) in enumerate(zip(*columns, strict=True)):
            if query not in queries or passage not in passages:
                what, of = (
                    (f"query-id '{query}'", 1)
                    if query not in queries
                    else (f"corpus-id '{passage}'", 0)
                )
                raise DataError(f"{table.where(row)}: {what} must be an _id of {_TEXT_FILES[of]}")
            here[queries[query]] = None
            relevant.setdefault(queries[query], {})[passages[passage]] = _number(table, row, score)
        parts[part] = [*parts.get(part, ()), *here]
    data, remarks = _data(task, str(place), corpus, asked, relevant, parts)
    return data, _remarks_of_folder(place, data, remarks)


def _remarks_of_folder(folder: Path, data: RetrievalData, remarks: Remarks) -> Remarks:
    """Return remarks with the files that are no part, and a warning of queries that choose and judge."""
    left_out = [path.name for path in _judgements(folder) if _part_name(path) is None]
    notes = [f"{data.task}: {_PARTS_FOLDER}/{name} is no part and left out" for name in left_out]
    num_both = len(np.intersect1d(data.test, np.concatenate([data.train, data.dev])))
    warnings = (
        [
            f"{data.task}: {num_both:,} test queries are in train or dev too; test scores are too high"
        ]
        if num_both
        else []
    )
    return replace(
        remarks,
        notes=(*remarks.notes, *notes),
        warnings=(*remarks.warnings, *warnings),
    )


def _texts_by_id(table: Table) -> dict[str, str]:
    """Return the texts of a file of JSON lines by their ``_id``; a title comes before the text."""
    texts = table.texts("text", key="text")
    titles = table.columns.get("title") or [None] * len(texts)
    found: dict[str, str] = {}
    for row, (name, title, text) in enumerate(
        zip(table.column("_id", key="_id"), titles, texts, strict=True)
    ):
        if str(name) in found:
            raise DataError(f"{table.where(row)}: _id '{name}' must be there once; given twice")
        found[str(name)] = f"{title} {text}".strip() if title else text
    return found


def read_queries(
    settings: TaskSettings, table: Table, *, task: str
) -> tuple[RetrievalData, Remarks]:
    """Read a table of queries and passages; the same text is the same query, or the same passage.

    Raises:
        DataError: If a column is missing, a value is no text or number, or a query is in two parts.
    """
    query, passage = settings.query or QUERIES[0], settings.passage or QUERIES[1]
    asked = [one or "" for one in table.column(query, key="query")]
    check_texts(asked, source=table.source, column=f"query '{query}'", kinds=(str, int, float))
    passages = {
        text: number
        for number, text in enumerate(dict.fromkeys(table.texts(passage, key="passage")))
    }
    queries = {
        text: number
        for number, text in enumerate(dict.fromkeys(text for text in asked if str(text).strip()))
    }
    name = settings.relevance or (RELEVANCE if RELEVANCE in table.columns else None)
    grades = [1] * len(table) if name is None else table.column(name, key="relevance")
    relevant: Relevant = {}
    for row, (text, found) in enumerate(zip(asked, table.columns[passage], strict=True)):
        if text in queries:
            here = relevant.setdefault(queries[text], {})
            here[passages[found]] = max(
                _number(table, row, grades[row]), here.get(passages[found], 0.0)
            )
    parts = _parts_of(settings, table, [queries.get(text) for text in asked])
    names = [
        {str(number): str(text) for text, number in one.items()} for one in (passages, queries)
    ]
    # Of a table, no query is a passage: numbers of both are not compared.
    asked_by = {f"query {name}": text for name, text in names[1].items()}
    return _data(task, table.source, names[0], asked_by, relevant, parts)


def _parts_of(
    settings: TaskSettings, table: Table, queries: Sequence[int | None]
) -> dict[str, list[int]]:
    """Return the queries of each part that the table or its files give; of a table without any, all are test."""
    column = settings.split if isinstance(settings.split, str) else None
    is_found = settings.split is None and not table.parts
    if is_found:
        column = next((name for name in SPLITS if name in table.columns), None)
    values: list[object] = ["test"] * len(table)
    if table.parts:
        for part, rows in table.parts.items():
            for row in rows.tolist():
                values[row] = part
    elif column is not None:
        values = table.column(column, key="split")
    found: dict[int, str] = {}
    for row, (query, value) in enumerate(zip(queries, values, strict=True)):
        if query is None:
            continue
        given = split_name(value)
        if given is None:
            switch = "; the column was found by its name, and split=no leaves it out"
            raise DataError(
                f"{table.where(row)}: split '{column}' must be train, dev or test; given '{shown(value)}'"
                f"{switch if is_found else ''}"
            )
        if found.setdefault(query, given) != given:
            raise DataError(
                f"{table.where(row)}: the query must be in one part; given {found[query]} and {given}"
            )
    return {
        part: [query for query, one in found.items() if one == part]
        for part in dict.fromkeys(found.values())
    }


def _number(table: Table, row: int, value: object) -> float:
    with suppress(ValueError):
        if isfinite(number := float(str(value))):
            return number
    raise DataError(f"{table.where(row)}: relevance must be a finite number; given '{value}'")


def _data(
    task: str,
    source: str,
    passages: Mapping[str, str],
    queries: Mapping[str, str],
    relevant: Relevant,
    parts: Mapping[str, Sequence[int]],
) -> tuple[RetrievalData, Remarks]:
    texts = list(queries.values())
    train, dev, test = (
        np.array(parts.get(part, ()), np.int64) for part in ("train", "validation", "test")
    )
    notes = []
    if not len(test):
        kept, of = (dev, "dev") if len(dev) else (train, "train")
        test = _drawn(texts, kept)
        if len(dev):
            dev = np.setdiff1d(dev, test)
        else:
            train = np.setdiff1d(train, test)
        notes.append(f"test drawn of {of}")
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
        relevant=tuple(relevant.get(place, {}) for place in range(len(texts))),
        train=train,
        dev=dev,
        test=test,
    )
    lacking = sum(
        not any(grade > 0 for grade in relevant.get(place, {}).values()) for place in (*dev, *test)
    )
    undivided = []
    if not len(dev) and len(test) > 1:
        chosen = len(with_dev(data).dev)
        # A score stands beside published ones or does not, which a reader has to see.
        undivided.append(
            f"{task}: no dev part: all {len(test):,} test queries are tested where nothing is chosen, and {chosen:,} "
            f"of them choose and {len(test) - chosen:,} are tested where something is"
        )
    sizes = f"{len(train):,} train, {len(dev):,} dev and {len(test):,} test queries"
    about = "; ".join([f"{task}: {len(data.passages):,} passages", sizes, *notes])
    warnings = (
        [f"{task}: {lacking} queries of dev and test have no relevant passage, and score 0"]
        if lacking
        else []
    )
    summary = f"{task}: {len(data.passages):,} passages, {len(test):,} hold-out queries"
    return data, Remarks((about,), (*undivided, *warnings), summary)


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


def _drawn(texts: Sequence[str], places: np.ndarray, share: float = _HALF) -> np.ndarray:
    if len(places) < 2:
        return NO_ROWS
    inside = [texts[place] for place in places.tolist()]
    strata = np.zeros(len(places), np.int64)
    return places[draw_rows([inside], strata, near_copies(inside), share=share)]
