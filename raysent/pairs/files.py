"""Reading files of pairs: tab-separated lines, PPDB's ``|||``, one JSON object a line, each also gzipped."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from raysent.errors import DataError, did_you_mean
from raysent.pairs.config import Column, PairsConfig
from raysent.pairs.texts import PairTexts

# What SNLI writes where its annotators did not agree.
_NO_LABEL = "-"
_LEAST = 4  # Two to learn from and two to hold out.


def read_pairs(config: PairsConfig, *, name: str = "pairs", path_name: str = "path") -> PairTexts:
    """Read all pairs of the files.

    Args:
        config: Which files and columns.
        name: Dotted name of the configuration, for messages.
        path_name: Which of its names the file is from, for messages.

    Raises:
        DataError: If a file is missing or truncated, a column is not there, or a label or score is none.
    """
    paths = [config.path] if isinstance(config.path, str) else config.path
    try:
        kept = list(islice((row for path in paths for row in _read_file(Path(path), config)), config.max_pairs))
    except DataError as error:
        raise DataError(f"{name}.{path_name}: {error}") from None
    if len(kept) < _LEAST:
        raise DataError(f"{name}.{path_name}: {', '.join(paths)}: must hold at least {_LEAST} pairs; given {len(kept)}")
    names = [row[2] for row in kept]
    classes = tuple(config.classes or sorted({name for name in names if name is not None}))
    return PairTexts(
        [row[0] for row in kept],
        [row[1] for row in kept],
        None if config.label is None else _class_numbers(names, classes, name=name),
        None if config.score is None else np.array([row[3] for row in kept], dtype=np.float64),
        classes if config.label is not None else (),
    )


def _class_numbers(names: Sequence[str | None], classes: tuple[str, ...], *, name: str) -> np.ndarray:
    """Return the number of each class, int64 [pairs]."""
    number = {name: index for index, name in enumerate(classes)}
    odd = next((label for label in names if label not in number), None)
    if odd is not None:
        raise DataError(f"{name}.classes: must name every class of the file; given '{odd}'{did_you_mean(odd, classes)}")
    return np.array([number[label] for label in names if label is not None], dtype=np.int64)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Iterator[str]]:
    """Open a file of text, unpacked, with one line for whatever is wrong with it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield _lines(path, stream)  # type: ignore[arg-type]  # GzipFile reads like any other
    except FileNotFoundError:
        raise DataError(f"{path}: no such file of pairs; put one with a pair a line there, or name another") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or not gzip ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _lines(path: Path, stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file without their ends."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: must be UTF-8; {error.reason}") from None


def _read_file(path: Path, config: PairsConfig) -> Iterator[tuple[str, str, str | None, float | None]]:
    """Yield the pairs of one file that have all that is asked for."""
    columns: list[Column | None] = [config.first, config.second, config.label, config.score]
    with opened(path) as lines:
        for where, fields in _fields(path, lines, config, columns):
            first, second, label, score = fields
            if label == _NO_LABEL or not first.strip() or not second.strip():
                continue
            yield first.strip(), second.strip(), label, None if score is None else _number(where, score)


def _number(where: str, text: str) -> float:
    """Return a score."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(f"{where}: the score must be a finite number; given '{text}'")
    return number


def _fields(
    path: Path, lines: Iterator[str], config: PairsConfig, columns: list[Column | None]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield place and the wanted fields of every line."""
    kind = config.format
    if kind == "auto" and path.name.removesuffix(".gz").endswith((".jsonl", ".json")):
        kind = "jsonl"
    places: list[int | None] | None = None
    separator = "\t"
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        if kind == "jsonl":
            yield where, _of_object(where, line, columns)
            continue
        if number == 1:
            is_ppdb = kind == "ppdb" or (kind == "auto" and "\t" not in line and "|||" in line)
            separator = "|||" if is_ppdb else "\t"
            if is_ppdb and not {"first", "second"} & config.model_fields_set:
                columns = [1, 2, *columns[2:]]
        fields = line.split(separator)
        if places is None:
            places = [_place(where, column, fields) for column in columns]
            if any(isinstance(column, str) for column in columns):
                continue  # that was the header line
        yield where, [_field(where, place, fields) for place in places]


def _of_object(where: str, line: str, columns: list[Column | None]) -> list[str | None]:
    """Return the wanted values of one JSON object."""
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: must be a JSON object; {error.msg}") from None
    if not isinstance(values, dict):
        raise DataError(f"{where}: must be a JSON object; given {type(values).__name__}")
    for column in columns:
        if column is not None and str(column) not in values:
            raise DataError(f"{where}: no such key: '{column}'{did_you_mean(str(column), map(str, values))}")
    return [None if column is None else str(values[str(column)]) for column in columns]


def _place(where: str, column: Column | None, header: list[str]) -> int | None:
    """Return the number of a column."""
    if column is None or isinstance(column, int):
        return column
    names = [name.strip() for name in header]
    if column not in names:
        raise DataError(f"{where}: no such column: '{column}'{did_you_mean(column, names)}")
    return names.index(column)


def _field(where: str, place: int | None, fields: list[str]) -> str | None:
    """Return one field of a line."""
    if place is None:
        return None
    if not 0 <= place < len(fields):
        raise DataError(f"{where}: must hold column {place}, counted from 0; given {len(fields)} columns")
    return fields[place]
