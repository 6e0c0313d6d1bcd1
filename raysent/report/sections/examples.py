"""What models answer, beside what is right."""

from __future__ import annotations

from collections.abc import Sequence

from raysent.analysis import Examples
from raysent.analysis.predictions import Example
from raysent.report.blocks import Cell, Column, Section, Table, fixed, number
from raysent.report.run import Run


def section(run: Run) -> Section | None:
    """Return the samples and the worst answers; None where none were picked."""
    found = run.analyses_of(Examples)
    if not found:
        return None
    lead = (
        "Rows of tasks with the right answer and the model's: a sample drawn by a seed, then those it is farthest off. "
        "A score is off by points; a class by the nats that its log-probability falls short of certainty."
    )
    tables = [
        table for one in found for table in (_table(one, one.sample, "a sample"), _table(one, one.worst, "the worst"))
    ]
    return Section("examples", "Answers", lead, tables)


def _table(found: Examples, rows: Sequence[Example], title: str) -> Table:
    is_score = found.unit == "points"
    columns = [
        *sentence_columns(rows[0].sentences if rows else ("",)),
        Column("right", "number" if is_score else "text"),
        Column("answer", "number" if is_score else "text"),
        Column("off", "number", f"in {found.unit}"),
    ]
    cells = [
        [
            *map(Cell, row.sentences),
            Cell(row.gold, number(row.gold) if is_score else None),
            Cell(row.answer, number(row.answer) if is_score else None),
            Cell(fixed(row.error), row.error),
        ]
        for row in rows
    ]
    return Table(columns, cells, caption=f"{found.task}, {found.model}: {title} of {found.num_rows:,} rows")


def sentence_columns(sentences: Sequence[str]) -> list[Column]:
    """Return the columns of a row's sentences."""
    return [Column("sentence")] if len(sentences) == 1 else [Column("first sentence"), Column("second sentence")]
