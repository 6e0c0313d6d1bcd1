"""Scores that papers report, one YAML file per paper in this folder, to compare results with.

A table's columns are `<task>` or `<task> <measure>`; a task without a measure has the percentage of rows right. Further
columns are `dim`, `hours`, `parameters` or means over tasks. Numbers are as printed, except that the columns in
`fractions` hold correlations from 0 to 1, which become percentages. A table that quotes other papers keeps the quoted
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import Field

from raysent.config import StrictModel, read_yaml, validate

REPORTED_FOLDER = Path(__file__).parent
# The measure of rated pairs.
MEASURE = "pearson"
# The measure printed beside a percentage of rows right.
F1 = "f1"
# Columns about the model, not about a task.
COSTS = ("dim", "hours")


class ReportedTable(StrictModel):
    """One table of one paper.

    Attributes:
        table: Its number there.
        protocol: The evaluation: a protocol of raysent; `similarity`, without training; or `fine-tuned`.
        columns: See the module's docstring.
        rows: Model -> a number per column; None where the paper has none.
        fractions: Columns whose numbers are from 0 to 1 in the file; here they are percentages.
        note: A remark for readers.
        is_ablation: Whether it compares variants of one model, on few tasks or on means of tasks.
        paper: Authors and year, which the file gives once.
    """

    table: str
    protocol: str
    columns: list[str]
    rows: dict[str, list[float | None]]
    fractions: list[str] = Field(default_factory=list)
    note: str = ""
    is_ablation: bool = False
    paper: str = ""

    def of(self, paper: str) -> ReportedTable:
        """Return the table with its paper's name, in percent."""
        scales = [100.0 if column in self.fractions else 1.0 for column in self.columns]
        rows = {
            name: [
                None if figure is None else round(figure * scale, 4) for figure, scale in zip(row, scales, strict=True)
            ]
            for name, row in self.rows.items()
        }
        return self.model_copy(update={"paper": paper, "rows": rows})


class _Paper(StrictModel):
    """A file."""

    paper: str
    source: str
    tables: list[ReportedTable] = Field(min_length=1)


@dataclass(frozen=True)
class ReportedModel:
    """What a paper reports about a model under one protocol.

    Attributes:
        model: Its name in the paper.
        paper: Authors and year.
        tables: The tables' numbers.
        protocol: See `ReportedTable`.
        figures: Task -> percent right, or Pearson's correlation in percent; `<task> f1`; `dim`, `hours`.
    """

    model: str
    paper: str
    tables: tuple[str, ...]
    protocol: str
    figures: dict[str, float]

    def text_of(self, column: str, *, missing: str) -> str:
        """Return a column's number as text, with the F1 beside an accuracy; `missing` if there is none."""
        figure, f1 = self.figures.get(column), self.figures.get(f"{column} {F1}")
        if figure is None:
            return missing
        return f"{figure:g}" if column in COSTS else f"{figure:.1f}" + (f"/{f1:.1f}" if f1 is not None else "")

    @property
    def where(self) -> str:
        """The paper and its tables, as text."""
        return f"{self.paper}, {'table' if len(self.tables) == 1 else 'tables'} {' and '.join(self.tables)}"


@cache
def reported_tables() -> tuple[ReportedTable, ...]:
    """Return every table of every paper, the oldest paper first."""
    papers = [validate(_Paper, read_yaml(path)) for path in sorted(REPORTED_FOLDER.glob("*.yaml"))]
    papers.sort(key=lambda paper: (paper.paper[-4:], paper.paper))
    return tuple(table.of(paper.paper) for paper in papers for table in paper.tables)


def reported_for(tasks: Sequence[str]) -> list[ReportedModel]:
    """Return the models for which papers' main tables report a score on any of these tasks, paper by paper.

    A model in several tables of a paper under one protocol is one entry, unless the tables contradict each other.
    """
    found: list[ReportedModel] = []
    for table in reported_tables():
        if table.is_ablation:
            continue
        for name, row in table.rows.items():
            figures = {c: f for c, f in zip(map(_task_of, table.columns), row, strict=True) if f is not None}
            wanted = (*tasks, *(f"{task} {F1}" for task in tasks), *COSTS)
            kept = {column: figure for column, figure in figures.items() if column in wanted}
            if any(task in kept for task in tasks):
                _add(found, ReportedModel(name, table.paper, (table.table,), table.protocol, kept))
    return found


def notes_on(models: Sequence[ReportedModel]) -> list[tuple[str, str]]:
    """Return the notes on the models' tables: paper and table, and the note."""
    used = {(model.paper, table) for model in models for table in model.tables}
    return [
        (f"{table.paper}, table {table.table}", table.note)
        for table in reported_tables()
        if table.note and not table.is_ablation and (table.paper, table.table) in used
        if table.protocol in {model.protocol for model in models}
    ]


def _task_of(column: str) -> str:
    """Return a column without the measure that rated pairs always have."""
    return column.removesuffix(f" {MEASURE}")


def _add(found: list[ReportedModel], model: ReportedModel) -> None:
    """Add a model, or merge it with the entry of another table of the paper if the two agree."""
    for place, known in enumerate(found):
        if (known.model, known.paper, known.protocol) != (model.model, model.paper, model.protocol):
            continue
        if all(known.figures.get(column, figure) == figure for column, figure in model.figures.items()):
            tables = tuple(dict.fromkeys((*known.tables, *model.tables)))
            found[place] = replace(known, tables=tables, figures={**known.figures, **model.figures})
            return
    found.append(model)
