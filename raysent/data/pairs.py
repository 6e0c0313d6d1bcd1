"""Sentence pairs, optionally labelled or scored: tables -> text -> ids; also the STS folders of SentEval.

Pairs are read as `raysent.data.tables` reads rows. Files of lines are read as they are published, since tools that
write them do not quote: a value is what stands between two tabs, or between ``|||`` in PPDB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import pydantic

from raysent.config import StrictModel
from raysent.data.delimited import full_lines
from raysent.data.languages import main_language
from raysent.data.same_text import as_read
from raysent.data.tables import (
    TableBlocks,
    as_labels,
    check_texts,
    is_table,
    open_lines,
    open_table,
)
from raysent.data.text_files import iterate_lines
from raysent.data.unicode_form import OF_EARLIER, OF_NEW, UnicodeForm
from raysent.data.vocabulary import (
    PAD_WORD,
    UNK_ID,
    UNK_WORD,
    Sentences,
    Vocabulary,
    VocabularyConfig,
    VocabularyType,
    build_vocabulary,
    choose_type,
    train_subwords,
)
from raysent.errors import DataError, did_you_mean
from raysent.kernels.ragged import ragged_indices
from raysent.storage import content_key

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Texts of which the language is found, and which part of all is held out to decide between words and sub-words.
_LANGUAGE_TEXTS = 500
_HELD_OUT = 10
_ANY_LENGTH = 1 << 20

Examples = TypeVar("Examples", bound="DataclassInstance")
Column = int | str
"""Index of a column, from 0, or its name."""


class PairsConfig(StrictModel):
    """Files of sentence pairs and how to read them.

    Attributes:
        path: One file or several, on disk or in ``s3://``; may be gzipped.
        format: `tsv`; `ppdb` (fields separated by ``|||``, pairs in columns 1 and 2); `jsonl`. `auto` decides by the
            file name, which may also end in ``.csv`` or ``.parquet`` or be a folder that `datasets` saved; and for
            files of lines by ``|||`` in the first one.
        first: Column of the first sentence: index from 0, or name in the header line or JSON key. With an index for
            each column, a file of lines has no header.
        second: Column of the second sentence. For PPDB, the defaults of `first` and `second` are 1 and 2.
        positives: Columns of further partners of the first sentence, for objective `contrast`; a cell may be empty.
        negatives: Columns of sentences that are close to the first one and no partners, for the same; as `positives`.
        label: Column of the class of a pair, or None.
        score: Column of the similarity score of a pair, or None.
        classes: Names of the classes in order; None uses the classes that occur, in alphabetical order.
        max_pairs: Maximum number of pairs to read.
        max_length: Maximum number of tokens of a sentence; longer ones are truncated.
        validation_path: File of validation pairs; None holds out a fraction of the pairs.
        validation_fraction: Fraction of the pairs to hold out.
        seed: Seed of the choice of held-out pairs.
    """

    path: str | list[str]
    format: Literal["auto", "tsv", "ppdb", "jsonl"] = "auto"
    first: Column = 0
    second: Column = 1
    positives: list[Column] = pydantic.Field(default=[])
    negatives: list[Column] = pydantic.Field(default=[])
    label: Column | None = None
    score: Column | None = None
    classes: list[str] | None = None
    max_pairs: int | None = pydantic.Field(default=None, ge=4)
    max_length: int = pydantic.Field(default=50, ge=1)
    validation_path: str | None = None
    validation_fraction: float = pydantic.Field(default=0.05, gt=0, le=0.5)
    seed: int = pydantic.Field(default=0, ge=0)


@dataclass(frozen=True)
class Pairs:
    """Pairs as ids: all of a file, or those of one step.

    Attributes:
        first: Ragged ids of the first sentences.
        second: Ragged ids of the second sentences.
        labels: Class of each pair, int64 [pairs], or None if the file has no labels.
        scores: Similarity of each pair, float64 [pairs], or None if the file has no scores.
        rows: The pairs' rows among those of all workers, where a loss compares them with these; None where the pairs
            are all there are.
        positives: Columns of further partners of the first sentences; a row without one repeats its second sentence.
        negatives: Columns of sentences that are no partners; a row without one repeats its second sentence.
        texts: `number_texts` of all workers' pairs, where `rows` is given.
    """

    first: Sentences
    second: Sentences
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    rows: slice | None = None
    positives: tuple[Sentences, ...] = ()
    negatives: tuple[Sentences, ...] = ()
    texts: tuple[np.ndarray, ...] | None = None

    @property
    def parts(self) -> tuple[Sentences, ...]:
        """All sentences, a column after another."""
        return (self.first, self.second, *self.positives, *self.negatives)

    def __len__(self) -> int:
        return len(self.first.lengths)

    def select(self, indices: np.ndarray) -> Pairs:
        """Return the pairs with the given indices, int64 [selected], in that order."""
        return select_fields(self, indices)


@dataclass(frozen=True)
class PairTexts:
    """Pairs as text.

    Attributes:
        first: The first sentences.
        second: The second sentences.
        labels: Class of each pair, int64 [pairs], or None.
        scores: Similarity of each pair, float64 [pairs], or None.
        classes: Names of the classes.
        positives: Columns of further partners of the first sentences.
        negatives: Columns of sentences that are no partners.
    """

    first: list[str]
    second: list[str]
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    positives: tuple[list[str], ...] = ()
    negatives: tuple[list[str], ...] = ()

    def __len__(self) -> int:
        return len(self.first)

    @property
    def key(self) -> str:
        """Hash of the content, 16 hexadecimal digits."""
        parts: list[Any] = [self.first, self.second]
        for targets in (self.labels, self.scores):
            parts.append(None if targets is None else targets.tolist())
        parts.append(self.classes)
        # Pairs without further columns keep the key that they had before there were any.
        if self.positives or self.negatives:
            parts += [self.positives, self.negatives]
        return content_key(*parts)

    @property
    def columns(self) -> tuple[list[str], ...]:
        """All sentences, a column after another."""
        return (self.first, self.second, *self.positives, *self.negatives)

    def select(self, indices: np.ndarray) -> PairTexts:
        """Return the pairs with the given indices, int64 [selected]."""
        return select_fields(self, indices)

    def encode(self, vocabulary: Vocabulary, *, max_length: int) -> Pairs:
        """Return the pairs as ids; sentences are truncated to `max_length` tokens."""
        first, second, *further = (
            vocabulary.ids(column, max_length=max_length) for column in self.columns
        )
        positives = tuple(further[: len(self.positives)])
        negatives = tuple(further[len(self.positives) :])
        return Pairs(
            first, second, self.labels, self.scores, positives=positives, negatives=negatives
        )


# The metadata of a field whose array has no value for each example.
NOT_OF_ROWS = {"of_rows": False}


def select_rows(sentences: Sentences, rows: np.ndarray) -> Sentences:
    """Return the sentences with the given indices, int64 [rows], in that order."""
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    lengths = sentences.lengths[rows]
    return Sentences(sentences.ids[ragged_indices(starts[rows], lengths)], lengths)


def select_fields(examples: Examples, rows: np.ndarray) -> Examples:
    """Return the examples of a dataclass with the given indices, int64 [rows]; fields that are no rows stay."""

    def of(value: Any) -> Any:
        if isinstance(value, Sentences):
            return select_rows(value, rows)
        if isinstance(value, Mapping):
            return {name: of(field_value) for name, field_value in value.items()}
        if isinstance(value, tuple):
            return tuple(map(of, value))
        if isinstance(value, list):
            return [value[row] for row in rows]
        if isinstance(value, np.ndarray):
            return value[rows]
        return value

    names = [field.name for field in fields(examples) if field.metadata != NOT_OF_ROWS]
    return replace(examples, **{name: of(getattr(examples, name)) for name in names})


def number_texts(*columns: Sentences) -> tuple[np.ndarray, ...]:
    """Return a number for each sentence, int64 [rows] a column; equal sentences of all columns have equal numbers."""
    text_numbers: dict[bytes, int] = {}
    numbers = []
    for column in columns:
        ids = np.ascontiguousarray(column.ids)
        ends = np.cumsum(column.lengths).tolist()
        rows = (ids[start:end].tobytes() for start, end in zip([0, *ends], ends, strict=False))
        numbers.append(
            np.array(
                [text_numbers.setdefault(row, len(text_numbers)) for row in rows], dtype=np.int64
            )
        )
    return tuple(numbers)


# SNLI's label of a pair whose annotators did not agree.
_NO_LABEL = "-"
_KINDS: dict[str, tuple[type, ...]] = {
    "first": (str,),
    "second": (str,),
    "label": (str, int, float, type(None)),
    "positives": (str, type(None)),
    "negatives": (str, type(None)),
}
_MIN_PAIRS = 4  # two for training, two for validation


def read_pairs(config: PairsConfig, *, name: str = "pairs", path_name: str = "path") -> PairTexts:
    """Read all pairs of the files.

    Args:
        config: Files and columns.
        name: Dotted name of the configuration, for error messages.
        path_name: Name of the field that gives the file, for error messages.

    Raises:
        DataError: If a file is missing or truncated, a column is missing, or a label or score is invalid.
    """
    paths = [config.path] if isinstance(config.path, str) else config.path
    try:
        rows = list(
            islice((row for path in paths for row in _read_file(path, config)), config.max_pairs)
        )
    except DataError as error:
        raise DataError(f"{name}.{path_name}: {error}") from None
    if len(rows) < _MIN_PAIRS:
        raise DataError(
            f"{name}.{path_name}: {', '.join(paths)}: must contain at least {_MIN_PAIRS} pairs; given {len(rows)}"
        )
    first, second, names, scores, further = (list(column) for column in zip(*rows, strict=True))
    columns = tuple(list(column) for column in zip(*further, strict=True))
    labels = None
    classes: tuple[str, ...] = ()
    if config.label is not None:
        classes = tuple(config.classes or sorted(set(filter(None, names))))
        labels = _class_numbers(names, classes, name=name)
    return PairTexts(
        first,
        second,
        labels,
        None if config.score is None else np.array(scores, dtype=np.float64),
        classes,
        columns[: len(config.positives)],
        columns[len(config.positives) :],
    )


def _class_numbers(
    names: Sequence[str | None], classes: tuple[str, ...], *, name: str
) -> np.ndarray:
    index = {name: number for number, name in enumerate(classes)}
    unknown = next((label for label in names if label not in index), None)
    if unknown is not None:
        raise DataError(
            f"{name}.classes: must name every class of the file; given '{unknown}'{did_you_mean(unknown, classes)}"
        )
    return np.array([index[label] for label in names if label is not None], dtype=np.int64)


_Row: TypeAlias = tuple[str, str, str | None, float | None, tuple[str, ...]]


def _read_file(path: str, config: PairsConfig) -> Iterator[_Row]:
    """Yield the pairs of one file that have two sentences and, if required, a label; then further columns' cells."""
    table, columns = _open(path, config)
    positions = [_position(table, column) for column in columns.values()]
    label_names = None
    if config.label is not None:
        label_column = table.names[positions[list(columns).index("label")]]
        label_names = table.class_names.get(label_column)
    num_rows = 0
    for block in table.read(positions):
        block_columns = dict(zip(columns, block, strict=True))
        for name, column in columns.items():
            kinds = _KINDS.get(name.split(".")[0])
            if kinds:
                check_texts(
                    block_columns[name],
                    source=path,
                    column=f"'{column}'",
                    first_row=num_rows + 1,
                    kinds=kinds,
                )
        missing = [None] * len(block[0])
        labels = as_labels(block_columns.get("label", missing), label_names)
        further_columns = [block_columns[name] for name in columns if "." in name]
        cells: Iterable[tuple[Any, ...]] = ((),) * len(missing)
        if further_columns:
            cells = zip(*further_columns, strict=True)
        rows = zip(
            block_columns["first"],
            block_columns["second"],
            labels,
            block_columns.get("score", missing),
            cells,
            strict=True,
        )
        for row, (first, second, label, score, further_cells) in enumerate(
            rows, start=num_rows + 1
        ):
            if (
                first.strip()
                and second.strip()
                and not ("label" in columns and label in (None, _NO_LABEL))
            ):
                number = None
                if "score" in columns:
                    number = _number(f"{path}: row {row}", score)
                filled = tuple((cell or "").strip() or second.strip() for cell in further_cells)
                yield first.strip(), second.strip(), label, number, filled
        num_rows += len(missing)


def _open(path: str, config: PairsConfig) -> tuple[TableBlocks, dict[str, Column]]:
    columns: dict[str, Column] = {}
    for name in ("first", "second", "label", "score"):
        column = getattr(config, name)
        if column is not None:
            columns[name] = column
    for name in ("positives", "negatives"):
        for number, column in enumerate(getattr(config, name)):
            columns[f"{name}.{number}"] = column
    has_header = any(isinstance(column, str) for column in columns.values())
    name = path.removesuffix(".gz").lower()
    kind = config.format
    if kind == "jsonl" or (kind == "auto" and name.endswith((".jsonl", ".json"))):
        return open_table(path, kind=".jsonl"), {
            role: str(column) for role, column in columns.items()
        }
    if kind == "auto" and is_table(path) and not name.endswith((".csv", ".tsv")):
        return open_table(path), columns
    # The name does not say how lines are written: the first one does.
    line = next(filter(str.strip, full_lines(path)), "")
    is_ppdb = kind == "ppdb" or (kind == "auto" and "\t" not in line and "|||" in line)
    is_named = name.endswith((".csv", ".tsv")) and has_header
    is_csv = name.endswith(".csv") and "\t" not in line
    if kind == "auto" and (is_named or is_csv) and not is_ppdb:
        return open_table(path, has_header=has_header), columns
    if is_ppdb and not {"first", "second"} & config.model_fields_set:
        # The first field of PPDB is the kind of phrase.
        columns["first"] = 1
        columns["second"] = 2
    return open_lines(path, "|||" if is_ppdb else "\t", has_header=has_header), columns


def _position(table: TableBlocks, column: Column) -> int:
    if isinstance(column, str):
        if column in table.names:
            return table.names.index(column)
        raise DataError(
            f"{table.source}: no such column: '{column}'{did_you_mean(column, table.names)}"
        )
    if 0 <= column < len(table.names):
        return column
    raise DataError(
        f"{table.source}: must have column {column}, counted from 0; given {len(table.names)} columns"
    )


def _number(where: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        shown = "nothing" if value is None else repr(value)
        raise DataError(f"{where}: the score must be a finite number; given {shown}")
    return number


def read_sts(folder: str | Path) -> dict[str, PairTexts]:
    """Read the sets of an STS folder in SentEval's layout: ``STS.input.NAME.txt`` beside ``STS.gs.NAME.txt``.

    Pairs without a score are left out.

    Raises:
        DataError: If there is no set, or the two files of a set differ in length.
    """
    inputs = sorted(Path(folder).rglob("STS.input.*.txt"))
    if not inputs:
        raise DataError(
            f"validation.sts: {folder}: must contain STS.input.NAME.txt and STS.gs.NAME.txt; given none; name a folder "
            "of SentEval's STS data, such as STS14-en-test"
        )
    return {
        path.name.removeprefix("STS.input.").removesuffix(".txt"): _read_sts_set(path)
        for path in inputs
    }


def _read_sts_set(path: Path) -> PairTexts:
    gold = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    pairs = [line.split("\t") for line in iterate_lines(str(path))]
    scores = [line.strip() for line in iterate_lines(str(gold))]
    if len(pairs) != len(scores):
        raise DataError(
            f"{gold}: must have one line for each of the {len(pairs)} pairs; given {len(scores)}"
        )
    for number, pair in enumerate(pairs, start=1):
        if len(pair) < 2:
            raise DataError(f"{path}:{number}: must have two columns; given {len(pair)}")
    scored = [
        (pair, _number(f"{gold}:{number}", score))
        for number, (pair, score) in enumerate(zip(pairs, scores, strict=True), start=1)
        if score
    ]
    numbers = np.array([score for _, score in scored], dtype=np.float64)
    return PairTexts(
        [pair[0] for pair, _ in scored], [pair[1] for pair, _ in scored], scores=numbers
    )


class PairCorpus:
    """Training pairs and validation pairs.

    Attributes:
        train: Training pairs.
        validation: Validation pairs.
        key: Hash of the content of both.
    """

    def __init__(self, config: PairsConfig, *, unicode_form: UnicodeForm = OF_NEW) -> None:
        """Read the files.

        Args:
            config: The files, and how to read them.
            unicode_form: The form of Unicode that the run reads. One that an earlier version began, which reads text as
                it is written, holds out the pairs that it held out.

        Raises:
            DataError: With the file and line of the error.
        """
        pairs = read_pairs(config)
        if config.validation_path is None:
            joins_same_text = unicode_form != OF_EARLIER
            self.train, self.validation = _hold_out(pairs, config, joins_same_text=joins_same_text)
        else:
            classes = list(pairs.classes) or None
            self.train = pairs
            self.validation = read_pairs(
                config.model_copy(update={"path": config.validation_path, "classes": classes}),
                path_name="validation_path",
            )
        self.key = content_key(self.train.key, self.validation.key)

    def vocabulary(self, config: VocabularyConfig) -> Vocabulary:
        """Return the vocabulary of the training pairs."""
        return vocabulary_of(self.train.columns, config)


def vocabulary_of(columns: Sequence[list[str]], config: VocabularyConfig) -> Vocabulary:
    """Return the vocabulary of columns of text; see `vocabulary_type_of`."""
    if vocabulary_type_of(columns, config)[0] == "words":
        return _words_of(columns, config)
    texts = [text for column in columns for text in column]
    order = np.random.default_rng(0).permutation(len(texts))
    return train_subwords((texts[position] for position in order.tolist()), config)


def vocabulary_type_of(
    columns: Sequence[list[str]], config: VocabularyConfig
) -> tuple[VocabularyType, str]:
    """Return the type of vocabulary that ``auto`` takes for columns of text, and why, in words."""

    def unknown_share() -> float:
        held_out = [text for column in columns for text in column[::_HELD_OUT]]
        counted = [
            [text for row, text in enumerate(column) if row % _HELD_OUT] for column in columns
        ]
        ids = _words_of(counted, config).ids(held_out, max_length=_ANY_LENGTH).ids
        return float((ids == UNK_ID).mean())

    return choose_type(
        config,
        language=lambda: main_language(columns[0][:_LANGUAGE_TEXTS]),
        unknown_share=unknown_share,
    )


def _words_of(columns: Sequence[list[str]], config: VocabularyConfig) -> Vocabulary:
    """Return the vocabulary of words that columns of text have."""
    tokenizer = Vocabulary([PAD_WORD, UNK_WORD], unicode_form=config.unicode_form)
    counts: Counter[str] = Counter()
    for column in columns:
        for words in tokenizer.tokenize(column):
            counts.update(words)
    return build_vocabulary(counts.items(), config)


def _hold_out(
    pairs: PairTexts, config: PairsConfig, *, joins_same_text: bool
) -> tuple[PairTexts, PairTexts]:
    """Return training and validation pairs; the same pair, in either order, is never divided between the two."""
    index: dict[tuple[str, str], int] = {}
    # Equal pairs have one number, in whichever order their sentences stand.
    distinct = [
        index.setdefault((min(pair), max(pair)), len(index))
        for pair in zip(pairs.first, pairs.second, strict=True)
    ]
    order = np.random.default_rng(config.seed).permutation(len(index))
    is_held_out = np.zeros(len(index), dtype=bool)
    is_held_out[order[: max(1, round(config.validation_fraction * len(index)))]] = True
    if joins_same_text:
        # Equal pairs are drawn, and what says the same goes with them, so that pairs without any are drawn as ever.
        keys = [tuple(sorted(map(as_read, pair))) for pair in index]
        held_out = {keys[position] for position in np.flatnonzero(is_held_out).tolist()}
        with_same = np.array([key in held_out for key in keys], dtype=bool)
        if not with_same.all():
            is_held_out = with_same
    mask = is_held_out[np.array(distinct)]
    return pairs.select(np.flatnonzero(~mask)), pairs.select(np.flatnonzero(mask))
