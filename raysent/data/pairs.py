"""Which file of pairs, and which of its columns.

Pairs as text, and as ids.

Reading files of pairs: tab-separated lines, PPDB's ``|||``, one JSON object a line, each also gzipped.

The sets of an STS folder in SentEval's layout.

Pairs to learn from and pairs held out, and the words of the first.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pydantic

from raysent.config import StrictModel
from raysent.data.vocabulary import (
    PAD_WORD,
    UNK_WORD,
    Sentences,
    Vocabulary,
    VocabularyConfig,
    build_vocabulary,
    ragged_indices,
)
from raysent.errors import DataError, did_you_mean
from raysent.storage import content_key

Column = int | str
"""A column's number from 0, or its name."""


class PairsConfig(StrictModel):
    """Which file of pairs, and which of its columns.

    Attributes:
        path: One file or several, each also gzipped.
        format: `tsv`; `ppdb` (fields between ``|||``, pairs in columns 1 and 2); `jsonl`. `auto` goes by the name, and
            by whether the first line holds ``|||``.
        first: Column of the first sentence: a number from 0, or a name of the header line or of a JSON key.
        second: Column of the second sentence. Both are 1 and 2 for PPDB where they are not set.
        label: Column of the pair's class; None where there is none.
        score: Column of a number that says how alike the two are; None where there is none.
        classes: Names of the classes in their order; None for those that occur, in alphabetical order.
        max_pairs: Pairs read at most.
        max_length: Tokens kept of a longer sentence.
        validation_path: Pairs to validate with; None holds some of the others out.
        validation_fraction: Share of the pairs held out.
        seed: Chooses the pairs that are held out.
    """

    path: str | list[str]
    format: Literal["auto", "tsv", "ppdb", "jsonl"] = "auto"
    first: Column = 0
    second: Column = 1
    label: Column | None = None
    score: Column | None = None
    classes: list[str] | None = None
    max_pairs: int | None = pydantic.Field(default=None, ge=4)
    max_length: int = pydantic.Field(default=50, ge=1)
    validation_path: str | None = None
    validation_fraction: float = pydantic.Field(default=0.05, gt=0, le=0.5)
    seed: int = pydantic.Field(default=0, ge=0)


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids.

    Attributes:
        first: Ragged ids of the first column.
        second: The same of the second.
        labels: int64 [pairs]; None where there are none.
        scores: float64 [pairs]; None where there are none.
    """

    first: Sentences
    second: Sentences
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.first.lengths)


@dataclass(frozen=True)
class PairTexts:
    """Pairs as text.

    Attributes:
        first: The first sentences.
        second: The second ones.
        labels: int64 [pairs]; None where there are none.
        scores: float64 [pairs]; None where there are none.
        classes: Names of the labels.
    """

    first: list[str]
    second: list[str]
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first)

    @property
    def key(self) -> str:
        """16 hexadecimal digits that name the content."""
        marks = [None if side is None else side.tolist() for side in (self.labels, self.scores)]
        return content_key(self.first, self.second, *marks, self.classes)

    def rows(self, chosen: np.ndarray) -> PairTexts:
        """Return the pairs with the given numbers, int64 [chosen]."""
        return PairTexts(
            [self.first[row] for row in chosen],
            [self.second[row] for row in chosen],
            None if self.labels is None else self.labels[chosen],
            None if self.scores is None else self.scores[chosen],
            self.classes,
        )

    def encoded(self, vocabulary: Vocabulary, *, max_length: int) -> EncodedPairs:
        """Return the pairs as ids."""
        first, second = (vocabulary.ids(side, max_length=max_length) for side in (self.first, self.second))
        return EncodedPairs(first, second, self.labels, self.scores)


def select_rows(sentences: Sentences, rows: np.ndarray) -> Sentences:
    """Return the sentences with the given numbers, int64 [rows], in that order."""
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    lengths = sentences.lengths[rows]
    return Sentences(sentences.ids[ragged_indices(starts[rows], lengths)], lengths)


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
def open_lines(path: Path) -> Iterator[Iterator[str]]:
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
    with open_lines(path) as lines:
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


def read_sts(folder: str | Path) -> dict[str, PairTexts]:
    """Read the sets of an STS folder in SentEval's layout: ``STS.input.NAME.txt`` beside ``STS.gs.NAME.txt``.

    Pairs without a score are left out.

    Raises:
        DataError: If there is no set, or a set's files do not fit.
    """
    inputs = sorted(Path(folder).rglob("STS.input.*.txt"))
    if not inputs:
        raise DataError(
            f"validation.sts: {folder}: must hold STS.input.NAME.txt and STS.gs.NAME.txt; given none; put an STS year "
            "of SentEval's data there, such as STS14-en-test"
        )
    return {path.name.removeprefix("STS.input.").removesuffix(".txt"): _read_sts_set(path) for path in inputs}


def _read_sts_set(path: Path) -> PairTexts:
    """Return the scored pairs of one set."""
    gold = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    with open_lines(path) as lines:
        pairs = [line.split("\t") for line in lines]
    with open_lines(gold) as lines:
        scores = [line.strip() for line in lines]
    if len(pairs) != len(scores):
        raise DataError(f"{gold}: must hold a line for each of the {len(pairs)} pairs; given {len(scores)}")
    scored = [(pair, float(score)) for pair, score in zip(pairs, scores, strict=True) if score]
    numbers = np.array([score for _, score in scored], dtype=np.float64)
    return PairTexts([pair[0] for pair, _ in scored], [pair[1] for pair, _ in scored], scores=numbers)


class PairCorpus:
    """Pairs to learn from and pairs held out.

    Attributes:
        train: The first.
        validation: The second.
        key: Names the text of both.
    """

    def __init__(self, config: PairsConfig) -> None:
        """Read the files.

        Raises:
            DataError: With the file and the line at fault.
        """
        pairs = read_pairs(config)
        if config.validation_path is None:
            self.train, self.validation = _hold_out(pairs, config)
        else:
            classes = list(pairs.classes) or None
            self.train = pairs
            self.validation = read_pairs(
                config.model_copy(update={"path": config.validation_path, "classes": classes}),
                path_name="validation_path",
            )
        self.key = content_key(self.train.key, self.validation.key)

    def vocabulary(self, config: VocabularyConfig) -> Vocabulary:
        """Return the words of the pairs to learn from."""
        tokens = Vocabulary([PAD_WORD, UNK_WORD], lowercase=False)
        counts: dict[str, int] = {}
        for side in (self.train.first, self.train.second):
            for row in tokens.tokenize(side):
                for word in row:
                    counts[word] = counts.get(word, 0) + 1
        return build_vocabulary(counts.items(), config)


def _hold_out(pairs: PairTexts, config: PairsConfig) -> tuple[PairTexts, PairTexts]:
    """Return the pairs to learn from and those held out; the same two sentences never stand in both."""
    number: dict[tuple[str, str], int] = {}
    distinct = [
        number.setdefault((min(pair), max(pair)), len(number)) for pair in zip(pairs.first, pairs.second, strict=True)
    ]
    order = np.random.default_rng(config.seed).permutation(len(number))
    held = np.zeros(len(number), dtype=bool)
    held[order[: max(1, round(config.validation_fraction * len(number)))]] = True
    mask = held[np.array(distinct)]
    return pairs.rows(np.flatnonzero(~mask)), pairs.rows(np.flatnonzero(mask))
