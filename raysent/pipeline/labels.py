"""`label`: the rows of a table that a person should look at first, to label them or because a label may be wrong."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from raysent.data.labels import label_value
from raysent.ensembles.ensemble import load_predicting, predictor_of
from raysent.ensembles.labelling import next_rows, out_of_fold, suspicion
from raysent.ensembles.task_predictor import TaskPredictor
from raysent.errors import ConfigError, DataError
from raysent.evaluation.baselines import lexical_names
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.task import NO_ROWS, ProbeTask, TaskData
from raysent.evaluation.task_files import LabelTable, read_label_table
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.pipeline.evaluation import map_jobs
from raysent.pipeline.file_names import check_file
from raysent.pipeline.predictions import PREDICTED
from raysent.pipeline.table_output import OutputTable, writing
from raysent.progress import ProgressLines, messages
from raysent.storage import is_remote, list_s3
from raysent.storage.layout import EVALUATION_FOLDER

PROBABILITY = "probability"


@dataclass(frozen=True)
class Labelling:
    """A table in the order in which a person should look at its rows.

    Attributes:
        rows: The table; the column of the label is empty where a row has none.
        text: The columns of the text.
        label: The column of the label.
        num_first: Rows at the beginning that are to be labelled, or whose label is suspected.
    """

    rows: pd.DataFrame
    text: tuple[str, ...]
    label: str
    num_first: int


def label(
    model: str | Path | SentenceEncoder,
    table: str | Path,
    *,
    num_rows: int = 50,
    suspect: bool = False,
    task: str | None = None,
    output: str | Path | None = None,
    formulas: bool = False,
    progress: bool = True,
) -> Labelling:
    """Return a table with the rows first that a person should label next, or whose label may be wrong.

    Rows to label are those without a label, or all of a table without a column of it; see `ensembles.labelling`. The
    table that is written is a task of its labelled rows: edit its first rows, and give it to `sweep` again.

    Args:
        model: A sweep, whose best model's members disagree; an ensemble; or a trial that was evaluated on the task.
        table: The table, as a task is named: ``reviews.csv``, or ``reviews.csv:text=body,label=stars``.
        num_rows: Rows to label next, or labels that are suspected.
        suspect: Whether to look for wrong labels. The probes of the model's members, and TF-IDF, are fitted on the
            table by cross-validation; columns ``predicted`` and ``probability``, that of the row's label, are added.
        task: The model's task whose labels are wanted; None where it has one.
        output: The file to write, which must not exist: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; None for none.
        formulas: As of `predict`.
        progress: Whether to show progress on standard error.

    Raises:
        ConfigError: If the model predicts no such task, or one of scores; if the table has several labels a row, or the
            output exists.
        DataError: If the table cannot be read, or has no row to label or to suspect.
    """
    check_file("table", table)
    if num_rows < 1:
        raise ConfigError(f"num_rows={num_rows}: must be at least 1")
    if output is not None and (
        list_s3(str(output)) if is_remote(output) else Path(output).exists()
    ):
        raise ConfigError(
            f"output {output}: must not exist, as someone may have edited it; name another file"
        )
    encoder = model if isinstance(model, SentenceEncoder) else load_predicting(model)
    predictor = predictor_of(encoder).find(task)
    if predictor.is_scored:
        raise ConfigError(f"{predictor.task}: must have classes to label; it has scores of pairs")
    given = read_label_table(str(table), predictor.num_columns)
    names = list(
        dict.fromkeys(
            [*given.table.columns, given.label, *([PREDICTED, PROBABILITY] if suspect else [])]
        )
    )
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressLines(is_quiet=not progress))
        added = [PREDICTED, PROBABILITY] if suspect else []
        written = OutputTable(
            names,
            num_own=len(names) - sum(name in added for name in names),
            schema=_written_schema(given),
            keeps_formulas=formulas,
        )
        write = None if output is None else stack.enter_context(writing(output, written))
        frame, num_first = (
            _suspects(predictor, given, num_rows, bar)
            if suspect
            else _next(predictor, given, num_rows)
        )
        if write is not None:
            write([frame[name].tolist() for name in names])
    if progress and written.note:
        messages.print(written.note, style="dim", soft_wrap=True)
    return Labelling(frame, given.texts, given.label, num_first)


def _next(predictor: TaskPredictor, given: LabelTable, num_rows: int) -> tuple[pd.DataFrame, int]:
    columns = [given.table.texts(name, key="text") for name in given.texts]
    joined = ["\n".join(row) for row in zip(*columns, strict=True)]
    unlabelled = [
        row for row, name in enumerate(given.labels) if name is None and joined[row].strip()
    ]
    if not unlabelled:
        raise DataError(
            f"{given.table.source}: must have rows without a label; all {len(joined)} have one"
        )
    predictions = predictor.of_members([[column[row] for row in unlabelled] for column in columns])
    known = [text for text, name in zip(joined, given.labels, strict=True) if name is not None]
    places = next_rows(predictions, [joined[row] for row in unlabelled], num_rows, known=known)
    chosen = np.array(unlabelled)[places]
    return _ordered(_frame(given), chosen), len(chosen)


def _suspects(
    predictor: TaskPredictor, given: LabelTable, num_rows: int, progress: ProgressLines
) -> tuple[pd.DataFrame, int]:
    """Return the table with the most suspected labels first, and how many of the first have another label predicted."""
    if given.label not in given.table.columns:
        raise DataError(
            f"{given.table.source}: must have labels to suspect; it has no column '{given.label}'"
        )
    (task,) = resolve_tasks([given.name], scorings={"accuracy"})
    data = task.load()
    assert isinstance(data, TaskData)
    train = np.setdiff1d(np.arange(len(data)), data.test)
    whole = replace(
        data, split="train-test", train=train, validation=NO_ROWS, has_drawn_validation=False
    )
    with TemporaryDirectory() as folder:
        evaluator = Evaluator(
            Path(folder),
            progress=progress,
            map_jobs=map_jobs(),
            goes_on=True,
            other_outputs=tuple(
                Path(one.source) / EVALUATION_FOLDER for one in predictor.members if one.source
            ),
        )
        members = expand([*predictor.members, *lexical_names([task])])
        records = evaluator.records(members, [ProbeTask(data.task, reader=lambda *_: whole)])
    rows, predictions = out_of_fold([record for (record,) in records.values()])
    labels, best = data.labels[rows], predictions.argmax(axis=1)
    order = np.argsort(-suspicion(predictions, labels), kind="stable")
    places = np.array([row for row, name in enumerate(given.labels) if name is not None])[rows]
    predicted = np.full(len(given.table), None if given.table.is_typed else "", dtype=object)
    probability = np.full(len(given.table), None, dtype=object)
    predicted[places] = _labels_of(data, given)[best]
    probability[places] = np.exp(predictions[np.arange(len(rows)), labels]).round(4)
    frame = _frame(given).assign(**{PREDICTED: predicted, PROBABILITY: probability})
    return _ordered(frame, places[order]), int((best != labels)[order[:num_rows]].sum())


def _labels_of(data: TaskData, given: LabelTable) -> np.ndarray:
    """Return the classes as the table writes them [classes], objects."""
    if not given.table.is_typed:
        return np.array(data.label_names, dtype=object)
    values = np.empty(len(data.label_names), dtype=object)
    values[:] = [label_value(name, data.label_kind) for name in data.label_names]
    return values


def _frame(given: LabelTable) -> pd.DataFrame:
    """Return the table with its own values; a row without a label has an empty one, of the type of the others."""
    has_numbers_of_classes = given.label in given.table.class_names
    written = given.labels
    if given.label in given.table.columns and not has_numbers_of_classes:
        written = given.table.columns[given.label]
    empty = "" if all(isinstance(value, str | None) for value in written) else None
    labels = [
        empty if name is None else value for name, value in zip(given.labels, written, strict=True)
    ]
    return pd.DataFrame({**given.table.columns, given.label: labels}, dtype=object)


def _written_schema(given: LabelTable) -> Any:
    """Return the types of the table's columns, without that of numbers of classes, which are written by name."""
    schema = given.table.schema
    if schema is None or given.label not in given.table.class_names:
        return schema
    return schema.remove(schema.get_field_index(given.label)).remove_metadata()


def _ordered(frame: pd.DataFrame, first: np.ndarray) -> pd.DataFrame:
    others = np.setdiff1d(np.arange(len(frame)), first)
    return frame.iloc[np.concatenate([first, others])].reset_index(drop=True)
