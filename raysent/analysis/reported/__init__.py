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

REPORTED_FOLDER = Path(__file__).parent
# The measure by which scored pairs are judged.
MEASURE = "pearson"
# Stands beside a percentage of rows right.
F1 = "f1"
# Columns that are about the model.
COSTS = ("dim", "hours")


class _Table(StrictModel):
    """A table as its file holds it."""

    table: str
    protocol: str
    columns: list[str]
    rows: dict[str, list[float | None]]
    fractions: list[str] = Field(default_factory=list)
    note: str = ""
    is_ablation: bool = False


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
        is_ablation: Whether it compares variants of one model, on few tasks or means of tasks.
    """

    paper: str
    table: str
    protocol: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[float | None, ...]]
    note: str = ""
    is_ablation: bool = False


@dataclass(frozen=True)
class ReportedModel:
    """What a paper reports of a model under one protocol.

    Attributes:
        model: Its name there.
        paper: Authors and year.
        tables: Where.
        protocol: See `ReportedTable`.
        figures: Task -> percent right, or Pearson's correlation in percent; `<task> f1`; `dim`, `hours`.
    """

    model: str
    paper: str
    tables: tuple[str, ...]
    protocol: str
    figures: dict[str, float]

    def shown(self, column: str, *, missing: str) -> str:
        """Return a figure as a table shows it, an F1 beside its accuracy; `missing` where there is none."""
        figure, f1 = self.figures.get(column), self.figures.get(f"{column} {F1}")
        if figure is None:
            return missing
        return f"{figure:g}" if column in COSTS else f"{figure:.1f}" + (f"/{f1:.1f}" if f1 is not None else "")

    @property
    def where(self) -> str:
        """The paper and the tables."""
        return f"{self.paper}, {'table' if len(self.tables) == 1 else 'tables'} {' and '.join(self.tables)}"


@cache
def reported_tables() -> tuple[ReportedTable, ...]:
    """Return every table of every paper, the oldest paper first."""
    papers = [validate(_Paper, read_yaml(path)) for path in sorted(REPORTED_FOLDER.glob("*.yaml"))]
    papers.sort(key=lambda paper: (paper.paper[-4:], paper.paper))
    return tuple(_table(paper, table) for paper in papers for table in paper.tables)


def reported_for(tasks: Sequence[str]) -> list[ReportedModel]:
    """Return the models of which papers' main tables report a figure on these tasks, paper by paper.

    A model that several tables of a paper show under one protocol is one, unless they contradict each other.
    """
    found: list[ReportedModel] = []
    for table in reported_tables():
        if table.is_ablation:
            continue
        for name, row in table.rows.items():
            figures = {c: f for c, f in zip(map(_plain, table.columns), row, strict=True) if f is not None}
            wanted = (*tasks, *(f"{task} {F1}" for task in tasks), *COSTS)
            kept = {column: figure for column, figure in figures.items() if column in wanted}
            if any(task in kept for task in tasks):
                _add(found, ReportedModel(name, table.paper, (table.table,), table.protocol, kept))
    return found


def notes_on(models: Sequence[ReportedModel]) -> list[tuple[str, str]]:
    """Return what a reader must know of the models' tables: paper and table, and the note."""
    used = {(model.paper, table) for model in models for table in model.tables}
    return [
        (f"{table.paper}, table {table.table}", table.note)
        for table in reported_tables()
        if table.note and not table.is_ablation and (table.paper, table.table) in used
        if table.protocol in {model.protocol for model in models}
    ]


def _plain(column: str) -> str:
    """Return a column's task; the measure that judges it goes without saying."""
    return column.removesuffix(f" {MEASURE}")


def _add(found: list[ReportedModel], model: ReportedModel) -> None:
    """Add a model, to what another table of the paper says of it where the two agree."""
    for place, known in enumerate(found):
        if (known.model, known.paper, known.protocol) != (model.model, model.paper, model.protocol):
            continue
        if all(known.figures.get(column, figure) == figure for column, figure in model.figures.items()):
            tables = tuple(dict.fromkeys((*known.tables, *model.tables)))
            found[place] = replace(known, tables=tables, figures={**known.figures, **model.figures})
            return
    found.append(model)


def _table(paper: _Paper, table: _Table) -> ReportedTable:
    scales = [100.0 if column in table.fractions else 1.0 for column in table.columns]
    rows = {
        name: tuple(
            None if figure is None else round(figure * scale, 4) for figure, scale in zip(row, scales, strict=True)
        )
        for name, row in table.rows.items()
    }
    return ReportedTable(
        paper.paper, table.table, table.protocol, tuple(table.columns), rows, table.note, table.is_ablation
    )
