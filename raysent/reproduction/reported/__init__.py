"""Scores that papers report, one YAML file per paper in this folder, to compare results with.

A table's columns are `<task>` or `<task> <measure>`; a task without a measure has the percentage of rows right. Further
columns are `dim`, `hours`, `parameters` or means over tasks. Numbers are as printed, except that the columns in
`fractions` hold correlations from 0 to 1, which become percentages. A table that quotes other papers keeps the quoted
rows.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from raysent.config import StrictModel, read_yaml, validate

_REPORTED_FOLDER = Path(__file__).parent
# The measure of rated pairs.
MEASURE = "pearson"


class _ReportedTable(StrictModel):
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

    def of(self, paper: str) -> _ReportedTable:
        """Return the table with its paper's name, in percent."""
        scales = [100.0 if column in self.fractions else 1.0 for column in self.columns]
        rows = {
            name: [
                None if figure is None else round(figure * scale, 4)
                for figure, scale in zip(row, scales, strict=True)
            ]
            for name, row in self.rows.items()
        }
        return self.model_copy(update={"paper": paper, "rows": rows})


class _Paper(StrictModel):
    paper: str
    source: str
    tables: list[_ReportedTable] = Field(min_length=1)


@cache
def reported_tables() -> tuple[_ReportedTable, ...]:
    """Return every table of every paper, the oldest paper first."""
    papers = [validate(_Paper, read_yaml(path)) for path in sorted(_REPORTED_FOLDER.glob("*.yaml"))]
    papers.sort(key=lambda paper: (paper.paper[-4:], paper.paper))
    return tuple(table.of(paper.paper) for paper in papers for table in paper.tables)
