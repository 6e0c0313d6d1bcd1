"""What several models find nearest to the same sentences: a table a query, a column a model."""

from __future__ import annotations

from collections.abc import Sequence

from raysent.analysis.neighbours import Comparison, Neighbour
from raysent.report.blocks import Cell, Column, Section, Table, counted, fixed
from raysent.report.run import Run

_MEASURES = {"cosine": "cosine, higher is nearer", "hamming": "differing bits of the codes, lower is nearer"}


def section(run: Run) -> Section | None:
    """Return the tables of the last answer of `raysent neighbours`; nothing where it was never asked."""
    found = run.neighbours
    if found is None:
        return None
    lead = (
        f"The sentences nearest to {counted(len(found.queries), 'sentence')}, among {found.num_sentences:,} of "
        f"{found.corpus}, found exactly; a sentence that occurs several times is shown once."
    )
    blocks = [_table(found, number) for number in range(len(found.queries))]
    return Section("neighbours", "Nearest sentences", lead, blocks)


def _table(found: Comparison, number: int) -> Table:
    """Return one query's neighbours."""
    columns = [Column("", "number", "rank")]
    for column in found.columns:
        columns += [Column(column.model), Column(column.measure, "number", _MEASURES[column.measure])]
    answers = [column.neighbours[number] for column in found.columns]
    rows = [
        [Cell(str(rank + 1), rank + 1), *(cell for answer in answers for cell in _cells(answer, rank))]
        for rank in range(max(map(len, answers)))
    ]
    return Table(columns, rows, caption=found.queries[number])


def _cells(answer: Sequence[Neighbour], rank: int) -> tuple[Cell, Cell]:
    """Return a neighbour's sentence and figure; blanks where fewer were found."""
    if rank >= len(answer):
        return Cell(""), Cell("")
    one = answer[rank]
    text = str(one.score) if isinstance(one.score, int) else fixed(one.score, 4)
    return Cell(one.sentence), Cell(text, one.score)
