"""`predict`: the labels of the rows of a table, of lines or of standard input, by a model that predicts a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from raysent.data.corpus.sources import Source
from raysent.data.tables import (
    Table,
    TableBlocks,
    check_header,
    check_texts,
    is_table,
    open_table,
    values_of,
)
from raysent.data.text_files import batched, iterate_lines
from raysent.data.texts import open_texts
from raysent.ensembles.calibration import Promise
from raysent.ensembles.ensemble import load_predicting, predictor_of
from raysent.ensembles.task_predictor import TaskPredictor
from raysent.errors import ConfigError, DataError, listed
from raysent.evaluation.refit import row_digests
from raysent.evaluation.targets import Float64
from raysent.evaluation.task_files.columns import text_columns
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.pipeline.file_names import check_file
from raysent.pipeline.table_output import Column, OutputTable, is_typed_output, writing
from raysent.platforms import expanded
from raysent.progress import ProgressLines, messages
from raysent.storage import is_remote

# Rows that are read, predicted and written at a time.
BLOCK_ROWS = 4096
PREDICTED = "predicted"
_TEXT = "text"
# Digits of a probability in a file.
_DIGITS = 6


@dataclass(frozen=True)
class Predicted:
    """What `predict` did.

    Attributes:
        task: The task that was predicted.
        num_rows: Rows that were read.
        counts: Label -> rows that got it, the most frequent first; empty for scores.
        num_answered: Rows that got an answer.
        promise: What was promised of them; None where all rows are answered.
    """

    task: str
    num_rows: int
    counts: dict[str, int]
    num_answered: int
    promise: Promise | None = None


class Block(NamedTuple):
    """Rows of the input: the values of each column [columns][rows], and the texts to predict [text columns][rows]."""

    values: Sequence[Column]
    texts: list[list[str]]


@dataclass(frozen=True)
class _Input:
    """What is read.

    Attributes:
        names: The columns.
        blocks: Blocks of rows.
        found: The columns of text that were found by their names.
        schema: The types of the columns, if the file has some.
        notes: As of `Table`.
    """

    names: list[str]
    blocks: Iterator[Block]
    found: tuple[str, ...] = ()
    schema: pa.Schema | None = None
    notes: tuple[str, ...] = ()


def predict(  # noqa: PLR0913 - the options of the command
    model: str | Path | SentenceEncoder,
    file: str | Path | None = None,
    *,
    output: str | Path | None = None,
    column: str | Sequence[str] | None = None,
    task: str | None = None,
    proba: bool = False,
    coverage: float | None = None,
    precision: float | None = None,
    header: bool = True,
    formulas: bool = False,
    address: str | None = None,
    progress: bool = True,
) -> Predicted:
    """Write the rows of a file with the label that a model predicts for each, in a column ``predicted``.

    Labels are as the table has them that the model was made on: text, or in ``.jsonl`` and ``.parquet`` numbers and
    truth values where its labels are such. Rows are read, predicted and written in blocks, so memory is bounded; the
    output appears whole or not at all.

    Args:
        model: A sweep, whose best model predicts; an ensemble; or a training or trial that was evaluated on the task.
        file: A table (``.csv``, ``.tsv``, ``.jsonl``, ``.parquet``, or a dataset that `datasets` saved) or text with
            one row a line, also in ``s3://``. None or ``-`` for lines from standard input.
        output: The file to write, also in ``s3://``: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; None writes CSV to
            standard output.
        column: Column of the text of a table, or two for pairs; by default those of a usual name, such as ``text``.
        task: The task to predict; None where the model has one. Several labels a row are one task by the name of their
            table, whose rows get the list of their labels.
        proba: Whether to also write the probability of each label, in columns such as ``probability_positive``.
        coverage: Answer this part of the rows, those that the model is surest of, by a threshold that is fitted on
            validation rows; the others get no label.
        precision: Answer as many rows as can be with this part of the answers right, in place of `coverage`.
        header: Whether the first line of a ``.csv`` or ``.tsv`` file names its columns; without it they are ``0``, ….
        formulas: Whether a label that a spreadsheet would take for a formula, such as ``=1+1``, is written to CSV and
            TSV as it is; by default it gets an apostrophe in front, which a line says.
        address: A running Ray cluster, whose cores predict blocks; one that is lost is predicted again.
        progress: Whether to show progress on standard error.

    Raises:
        ConfigError: If the model does not predict the task, or an argument is wrong.
        DataError: If the file cannot be read, or has no such column.
        ArtifactError: If the output cannot be written.
    """
    check_file("file", file)
    encoder = model if isinstance(model, SentenceEncoder) else load_predicting(model)
    questions = _questions(encoder, task)
    promise = None
    if coverage is not None or precision is not None:
        if len(questions) > 1:
            raise ConfigError(
                f"task: must be one of {', '.join(one.task for one in questions)} to be answered in part"
            )
        promise = questions[0].promise(coverage=coverage, precision=precision)
    answerer = Answerer(
        questions, shows_probabilities=proba, threshold=promise.level.threshold if promise else 0.0
    )
    name = None if file in (None, "-") else str(file if is_remote(file) else expanded(file))
    given = [column] if isinstance(column, str) else list(column or ())
    opened = _open(name, given, num_columns=answerer.first.num_columns, has_header=header)
    taken = next((one for one in answerer.names if one in opened.names), None)
    if taken is not None:
        raise DataError(f"{name}: must have no column '{taken}', which the output adds; rename it")
    is_typed = is_typed_output(output)
    table = OutputTable(
        [*opened.names, *answerer.names],
        num_own=len(opened.names),
        schema=opened.schema,
        keeps_formulas=formulas,
    )
    counts, num_rows, num_answered = Counter[str](), 0, 0
    fitted_rows = answerer.first.fitted_rows
    num_fitted = 0
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressLines(is_quiet=not progress or output is None))
        write = stack.enter_context(writing(output, table))
        for block, logs in _predicted(answerer, opened.blocks, address):
            answers = answerer.columns(logs)
            write([*block.values, *(answerer.typed(answers) if is_typed else answers)])
            num_rows += len(block.texts[0])
            if len(fitted_rows):
                num_fitted += int(np.isin(row_digests(block.texts), fitted_rows).sum())
            num_answered += sum(one is not None for one in answers[0])
            if not answerer.first.is_scored:
                counts.update(
                    chain.from_iterable(
                        one if isinstance(one, list) else [one]
                        for one in answers[0]
                        if one is not None
                    )
                )
            bar("predicting", num_rows, None)
        if not num_rows:
            raise DataError(f"{name or 'standard input'}: must hold text; given no row of it")
    if progress:  # last, since a mistake is one line
        _print_notes(name, opened, table)
        _print_fitted(name, num_fitted, num_rows)
    return Predicted(answerer.task, num_rows, dict(counts.most_common()), num_answered, promise)


def _print_notes(name: str | None, opened: _Input, table: OutputTable) -> None:
    lines = [f"{name}: {note}" for note in opened.notes]
    if opened.found:
        texts = " and ".join(f"'{column}'" for column in opened.found)
        lines.append(f"{name}: text = {texts} (no column was named)")
    if table.note:
        lines.append(table.note)
    for line in lines:
        messages.print(line, style="dim", soft_wrap=True)


def _print_fitted(name: str | None, num_fitted: int, num_rows: int) -> None:
    if not num_fitted:
        return
    messages.print(
        f"{name or 'standard input'}: {num_fitted:,} of the {num_rows:,} rows were used to fit the model, so accuracy "
        "on them says nothing of new rows; the report has the hold-out score",
        style="dim",
        soft_wrap=True,
    )


def _questions(encoder: SentenceEncoder, task: str | None) -> list[TaskPredictor]:
    predictor = predictor_of(encoder)
    stems = (
        {name.rpartition(".")[0] for name in predictor} if task is None else {task} - set(predictor)
    )
    stem = stems.pop() if len(stems) == 1 and len(predictor) > 1 else ""
    questions = [predictor[name] for name in predictor if stem and name.startswith(f"{stem}.")]
    if questions and all(question.label_names == ("no", "yes") for question in questions):
        return questions
    return [predictor.find(task)]


@dataclass(frozen=True)
class Answerer:
    """What answers rows.

    Attributes:
        questions: The predictors: one, or those of several labels a row.
        shows_probabilities: Whether the output has a column for each label.
        threshold: Rows of a lower confidence have no answer.
    """

    questions: list[TaskPredictor]
    shows_probabilities: bool
    threshold: float = 0.0

    @property
    def first(self) -> TaskPredictor:
        """The predictor, or the first of several labels'."""
        return self.questions[0]

    @property
    def is_multilabel(self) -> bool:
        """Whether a row gets a list of labels."""
        return len(self.questions) > 1

    @property
    def task(self) -> str:
        """The task's name; of several labels, what their names begin with."""
        return self.first.task.rpartition(".")[0] if self.is_multilabel else self.first.task

    @property
    def labels(self) -> list[str]:
        """The labels."""
        if self.is_multilabel:
            return [unquote(one.task.removeprefix(f"{self.task}.")) for one in self.questions]
        return list(self.first.label_names)

    @property
    def names(self) -> list[str]:
        """The columns that the output adds."""
        return [
            PREDICTED,
            *(f"probability_{label}" for label in self.labels if self.shows_probabilities),
        ]

    def __call__(self, texts: list[list[str]]) -> list[Float64]:
        """Return the log-probabilities of rows by each predictor, [rows, classes] each."""
        return [one.log_probabilities(texts) for one in self.questions]

    def columns(self, logs: list[Float64]) -> list[list[Any]]:
        """Return the values of the columns that the output adds, [columns][rows]."""
        yes = (
            np.exp(np.column_stack([one[:, 1] for one in logs]))
            if self.is_multilabel
            else np.exp(logs[0])
        )
        if self.is_multilabel:
            answers: list[Any] = [
                [self.labels[place] for place in np.flatnonzero(row > 0.5)] for row in yes
            ]
        elif self.first.is_scored:
            answers = list(self.first.answers(logs[0]))
        else:
            places = self.first.classes(logs[0], self.threshold)
            answers = [None if place is None else self.labels[place] for place in places]
        return [answers, *(np.round(yes, _DIGITS).T.tolist() if self.shows_probabilities else ())]

    def typed(self, columns: list[list[Any]]) -> list[list[Any]]:
        """Return what `columns` returned with labels as the table has them that the model was made on."""
        if self.is_multilabel or self.first.is_scored:
            return columns
        values = dict(zip(self.first.label_names, self.first.label_values, strict=True))
        answers, *others = columns
        return [[None if name is None else values[name] for name in answers], *others]


def _predicted(
    answerer: Answerer, blocks: Iterator[Block], address: str | None
) -> Iterator[tuple[Block, list[Float64]]]:
    """Yield blocks in their order with their log-probabilities by each predictor."""
    if address is None:
        return ((block, answerer(block.texts)) for block in blocks)
    from raysent.pipeline.ray_predictions import predicted_on_ray  # noqa: PLC0415 - Ray comes with it

    return predicted_on_ray(answerer, blocks, address)


def _open(name: str | None, given: list[str], *, num_columns: int, has_header: bool) -> _Input:
    check_header(name or "standard input", has_header=has_header)
    if name is not None and is_table(name):
        return _open_table(name, given, num_columns=num_columns, has_header=has_header)
    what = name or "standard input"
    if given:
        raise ConfigError(f"column {given[0]}: must be left out for {what}, which has no columns")
    if num_columns > 1:
        raise DataError(
            f"{what}: must be a table with the two columns of pairs; given lines of text"
        )
    lines = (
        iterate_lines(None)
        if name is None
        else chain.from_iterable(open_texts(Source(name)).blocks)
    )
    return _Input([_TEXT], (Block([block], [block]) for block in batched(lines, BLOCK_ROWS)))


def _open_table(name: str, given: list[str], *, num_columns: int, has_header: bool) -> _Input:
    table = open_table(name, has_header=has_header)
    names = list(table.names)
    blocks = table.arrays(names) if table.schema is not None else table.blocks(names)
    first: Sequence[Column] = next(iter(blocks), [[] for _ in names]) if names else []
    texts = tuple(given) or text_columns(_first_rows(table, first), num_columns)
    if len(texts) != num_columns:
        raise ConfigError(
            f"column {listed(texts)}: the task needs {num_columns} column(s); given {len(texts)}"
        )
    for column in given:
        _first_rows(table, first).column(column, key="column")
    positions = [names.index(column) for column in texts]

    def read() -> Iterator[Block]:
        num_rows = 0
        for block in chain([first], blocks):
            columns = [_python_values(block[position], name) for position in positions]
            for column, values in zip(texts, columns, strict=True):
                check_texts(
                    values, source=name, column=f"column '{column}'", first_row=num_rows + 1
                )
            if len(block[0]):
                yield Block(block, columns)
            num_rows += len(block[0])

    found = () if given else texts
    blocks_of_rows = read() if names else iter(())
    return _Input(names, blocks_of_rows, found, table.schema, table.notes)


def _python_values(column: Column, name: str) -> list[Any]:
    return values_of(column, name) if isinstance(column, pa.Array) else column


def _first_rows(table: TableBlocks, block: Sequence[Column]) -> Table:
    """Return the first rows as a table in which columns of text are found; others may have no values of Python."""
    columns = {
        name: [None] * len(column) if _is_no_text(column) else _python_values(column, table.source)
        for name, column in zip(table.names, block, strict=True)
    }
    return Table(table.source, columns, {}, {}, table.has_header)


def _is_no_text(column: Column) -> bool:
    if not isinstance(column, pa.Array):
        return False
    types = pa.types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    return not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
