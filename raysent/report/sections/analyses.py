"""The analyses of `report/analyses`, and nearest sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from raysent.analysis.neighbours import Comparison, Neighbour
from raysent.report.analyses import ANALYSES, Analysis
from raysent.report.blocks import Cell, Column, Section, Table, counted, fixed
from raysent.report.run import Run

_MEASURES = {"cosine": "cosine similarity, higher is nearer", "hamming": "differing bits, lower is nearer"}


def sections() -> list[Callable[[Run], Section | None]]:
    """Return a section for each kind of analysis."""
    return [_section_of(request.RESULT) for request in ANALYSES.values()]


def _section_of(kind: type[Analysis]) -> Callable[[Run], Section | None]:
    def section(run: Run) -> Section | None:
        blocks = [block for one in run.analyses if isinstance(one, kind) for block in one.blocks()]
        return replace(kind.SECTION, blocks=blocks) if blocks else None

    return section


def nearest_sentences(run: Run) -> Section | None:
    """Return a table per query with a column per model: the last answer of `raysent neighbours`; None without one."""
    found = run.neighbours
    if found is None:
        return None
    lead = (
        f"The nearest of {found.num_sentences:,} sentences of {found.corpus} to "
        f"{counted(len(found.queries), 'query', 'queries')}, by exact search. Equal sentences are shown once."
    )
    tables = [_neighbours(found, query) for query in range(len(found.queries))]
    return Section("neighbours", "Nearest sentences", lead, tables)


def _neighbours(found: Comparison, query: int) -> Table:
    columns = [Column("", "number", "rank")]
    for column in found.columns:
        columns += [Column(column.model), Column(column.measure, "number", _MEASURES[column.measure])]
    answers = [column.neighbours[query] for column in found.columns]
    rows = [
        [Cell(str(rank + 1), rank + 1), *(cell for answer in answers for cell in _neighbour(answer, rank))]
        for rank in range(max(map(len, answers)))
    ]
    return Table(columns, rows, caption=found.queries[query])


def _neighbour(answer: Sequence[Neighbour], rank: int) -> tuple[Cell, Cell]:
    """Return a neighbour's sentence and score; empty cells if fewer were found."""
    if rank >= len(answer):
        return Cell(""), Cell("")
    one = answer[rank]
    text = str(one.score) if isinstance(one.score, int) else fixed(one.score, 4)
    return Cell(one.sentence), Cell(text, one.score)
