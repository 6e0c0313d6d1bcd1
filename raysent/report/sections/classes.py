"""What the answer gets right and wrong: classes, what is confused, the worst mistakes, labels that may be wrong."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from raysent.ensembles.answer_rows import AnswerRows
from raysent.report.blocks import Block, Cell, Column, Note, Section, Table, fixed, percent, whole
from raysent.report.run import PredictedTask, Run
from raysent.storage import address_of

# More classes than this have a list of what is confused in place of a matrix.
_MATRIX_CLASSES = 10
_SHOWN_PAIRS = 15
_SHOWN_CLASSES = 200
_SHOWN_ROWS = 20
_SHOWN_CHARACTERS = 300
# A label whose class has less than this probability, by a fit without the row, is looked at.
_SUSPECT_BELOW = 0.15


def classes(run: Run) -> Section | None:
    """Return figures of each class and which classes are confused; None where no answer has classes."""
    blocks: list[Block] = []
    for task in run.predicted_tasks:
        blocks += [_class_table(task), _confusion(task)]
    if not blocks:
        return None
    lead = (
        "Of hold-out rows. Precision: of the rows that are predicted as the class, how many are of it. "
        "Recall: of the rows of the class, how many are found. F1: their harmonic mean."
    )
    return Section("classes", "Each class", lead, blocks)


def mistakes(run: Run) -> Section | None:
    """Return the hold-out rows that are most surely wrong, with their text; None where there is none."""
    blocks = _row_tables(run, [task.rows.held_out() for task in run.predicted_tasks])
    if not blocks:
        return None
    lead = "Hold-out rows whose own class the model thinks least likely: what it does not know, or a wrong label."
    return Section("mistakes", "The worst mistakes", lead, blocks)


def suspects(run: Run) -> Section | None:
    """Return rows whose label may be wrong, by fits without them; None where there is none."""
    parts = [task.rows.cross_validated().unlikely(_SUSPECT_BELOW) for task in run.predicted_tasks]
    blocks = _row_tables(run, parts)
    if not blocks:
        return None
    lead = (
        "Rows whose label has little probability by a fit without the row. Correct what is wrong in the table, and "
        "sweep again."
    )
    command = f"raysent label {shlex.quote(address_of(run.folder))} TABLE --suspect"
    return Section(
        "suspects",
        "Labels that may be wrong",
        lead,
        [*blocks, Note("To have all of them in a table:", command)],
    )


def _class_table(task: PredictedTask) -> Table:
    confusion = task.rows.held_out().confusion(len(task.names))
    counts = np.bincount(task.rows.labels, minlength=len(task.names))
    columns = [
        Column("class"),
        Column("labelled rows", "number", "all of them; the bar is the part of the largest class"),
        Column("hold-out", "number"),
        Column("precision", "number"),
        Column("recall", "number"),
        Column("F1", "number"),
    ]
    rows = []
    for place in np.argsort(-counts, kind="stable")[:_SHOWN_CLASSES].tolist():
        right = float(confusion[place, place])
        precision = _part(right, confusion[:, place].sum())
        recall = _part(right, confusion[place].sum())
        f1 = _part(2 * right, confusion[place].sum() + confusion[:, place].sum())
        rows.append(
            [
                Cell(task.names[place]),
                Cell(whole(counts[place]), float(counts[place]), counts[place] / counts.max()),
                Cell(whole(confusion[place].sum()), float(confusion[place].sum())),
                *(Cell(_score(value), value) for value in (precision, recall, f1)),
            ]
        )
    share = counts.max() / counts.sum()
    caption = (
        f"{task.name}: {len(task.names)} classes; the largest has {percent(share)} of the rows"
    )
    return Table(columns, rows, caption, is_tall=len(rows) > _MATRIX_CLASSES)


def _part(count: float, total: float) -> float | None:
    return None if not total else 100 * count / float(total)


def _score(value: float | None) -> str:
    return fixed(value, 1)


def _confusion(task: PredictedTask) -> Table:
    """Return the confusion matrix; of many classes the pairs that are confused most."""
    confusion = task.rows.held_out().confusion(len(task.names))
    totals = np.maximum(1, confusion.sum(axis=1))
    if len(task.names) > _MATRIX_CLASSES:
        return _confused_pairs(task, confusion, totals)
    columns = [
        Column("true class", title="each row of the matrix is a class, each column a prediction"),
        *(Column(name, "number", "predicted as this class") for name in task.names),
    ]
    rows = [
        [
            Cell(name),
            *(
                Cell(
                    whole(count),
                    float(count),
                    count / totals[place],
                    mark="best" if place == column else "",
                    title=f"{percent(count / totals[place])} of '{name}'",
                )
                for column, count in enumerate(confusion[place].tolist())
            ),
        ]
        for place, name in enumerate(task.names)
    ]
    return Table(columns, rows, f"{task.name}: confusion matrix, hold-out rows by predicted class")


def _confused_pairs(task: PredictedTask, confusion: np.ndarray, totals: np.ndarray) -> Table:
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_SHOWN_PAIRS]
    pairs = [divmod(int(place), len(task.names)) for place in order]
    rows = [
        [
            Cell(task.names[label]),
            Cell(task.names[predicted]),
            Cell(whole(wrong[label, predicted]), float(wrong[label, predicted])),
            Cell(percent(wrong[label, predicted] / totals[label])),
        ]
        for label, predicted in pairs
        if wrong[label, predicted]
    ]
    columns = [
        Column("true class"),
        Column("predicted"),
        Column("rows", "number"),
        Column("of the class", "number"),
    ]
    return Table(columns, rows, f"{task.name}: what is confused most, of hold-out rows")


def _row_tables(run: Run, parts: Sequence[AnswerRows]) -> list[Block]:
    """Return a table of the worst rows of each task that has some."""
    tables: list[Block] = []
    for task, part in zip(run.predicted_tasks, parts, strict=True):
        worst = part.worst(_SHOWN_ROWS)
        if not len(worst.rows):
            continue
        columns = [
            Column("text"),
            Column("label"),
            Column("predicted"),
            Column("sure", "number", "probability of the predicted class"),
        ]
        rows = [
            [
                Cell(_shortened(task.text(row))),
                Cell(task.names[label]),
                Cell(task.names[predicted]),
                Cell(percent(float(probability)), float(probability)),
            ]
            for row, label, predicted, probability in zip(
                worst.rows.tolist(),
                worst.labels.tolist(),
                worst.predicted.tolist(),
                worst.probability.tolist(),
                strict=True,
            )
        ]
        num_wrong = int((part.predicted != part.labels).sum())
        caption = f"{task.name}: {len(rows)} of {num_wrong:,}"
        tables.append(Table(columns, rows, caption, is_tall=True))
    return tables


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
