"""What papers report: facts in `reported/`, a file a paper, beside which results are read.

A table of a paper has columns `<task>` or `<task> <measure>` (a task without one is the percentage of rows right),
and further `dim`, `hours`, `parameters` or means over tasks. Figures stand as they are printed; correlations printed
as fractions of one are named in `fractions` and read as percentages. What a paper quotes from another is in its table
as it quotes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import Field

from raysent.config import StrictModel, read_yaml, validate

REPORTED_FOLDER = Path(__file__).parent / "reported"
# The measure that stands first for a kind of task, and so for a task's name alone.
MEASURES = ("pearson",)


class _Table(StrictModel):
    """A table as its file holds it."""

    table: str
    protocol: str
    columns: list[str]
    rows: dict[str, list[float | None]]
    fractions: list[str] = Field(default_factory=list)
    note: str = ""


class _Paper(StrictModel):
    """A file."""

    paper: str
    source: str
    tables: list[_Table] = Field(min_length=1)


@dataclass(frozen=True)
class ReportedTable:
    """One table of one paper.

    Attributes:
        paper: Authors and year.
        table: Its number there.
        protocol: How it was judged: a protocol of ours; `similarity`, nothing trained; or `fine-tuned` as a whole.
        columns: See the module.
        rows: Model -> a figure for every column; None where the paper has none.
        note: What a reader must know.
    """

    paper: str
    table: str
    protocol: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[float | None, ...]]
    note: str = ""


@cache
def reported_tables() -> tuple[ReportedTable, ...]:
    """Return every table of every paper, the oldest paper first."""
    papers = [validate(_Paper, read_yaml(path)) for path in sorted(REPORTED_FOLDER.glob("*.yaml"))]
    papers.sort(key=lambda paper: (paper.paper[-4:], paper.paper))
    return tuple(_table(paper, table) for paper in papers for table in paper.tables)


def reported_for(tasks: Sequence[str]) -> list[ReportedTable]:
    """Return the tables that say something of these tasks, cut to them, with `dim` and `hours` where they are known."""
    return [cut for table in reported_tables() if (cut := _cut(table, tasks)) is not None]


def _table(paper: _Paper, table: _Table) -> ReportedTable:
    scales = [100.0 if column in table.fractions else 1.0 for column in table.columns]
    rows = {
        name: tuple(
            None if figure is None else round(figure * scale, 4) for figure, scale in zip(row, scales, strict=True)
        )
        for name, row in table.rows.items()
    }
    return ReportedTable(paper.paper, table.table, table.protocol, tuple(table.columns), rows, table.note)


def _cut(table: ReportedTable, tasks: Sequence[str]) -> ReportedTable | None:
    wanted = [*tasks, *(f"{task} {measure}" for task in tasks for measure in MEASURES)]
    judged = [column for column in table.columns if column in wanted]
    if not judged:
        return None
    columns = tuple(column for column in table.columns if column in (*judged, "dim", "hours"))
    places = [table.columns.index(column) for column in columns]
    rows = {name: tuple(row[place] for place in places) for name, row in table.rows.items()}
    is_judged = [column in judged for column in columns]
    told = {
        name: row
        for name, row in rows.items()
        if any(figure is not None for figure, counts in zip(row, is_judged, strict=True) if counts)
    }
    return replace(table, columns=columns, rows=told)
