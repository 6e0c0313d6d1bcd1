"""Where two models differ most."""

from __future__ import annotations

from raysent.analysis import Disagreements
from raysent.analysis.predictions import Disagreement
from raysent.report.blocks import Block, Cell, Column, Note, Section, Table, fixed, number
from raysent.report.run import Run
from raysent.report.sections.examples import sentence_columns

CERTAIN = 0.05


def section(run: Run) -> Section | None:
    """Return the comparisons of errors; None where none was made."""
    found = run.analyses_of(Disagreements)
    if not found:
        return None
    lead = (
        "The rows on which one model is far better than the other: of classes, one is right and the other wrong, "
        "ordered by the gap of the right class's log-probabilities; of scores, by how much nearer one comes. The "
        "better answer is marked."
    )
    return Section(
        "errors", "Where models differ", lead, [block for one in found for block in (_told(one), _table(one))]
    )


def _told(found: Disagreements) -> Block:
    """Say how often each is better, and whether that can be told from chance."""
    first, second = found.models
    verdict = "farther apart" if found.p_value < CERTAIN else "no farther apart"
    return Note(
        f"{found.task}: of {found.num_rows:,} rows, {first} is better on {found.num_first:,} and {second} on "
        f"{found.num_second:,}, {verdict} than chance would put them (sign test, p = {found.p_value:.2g})."
    )


def _table(found: Disagreements) -> Table:
    kind = "number" if found.unit == "points" else "text"
    columns = [
        *sentence_columns(found.rows[0].sentences if found.rows else ("",)),
        Column("right", kind),  # type: ignore[arg-type]
        *(Column(model, kind) for model in found.models),  # type: ignore[arg-type]
        Column("gap", "number", f"how much less {found.models[0]} errs, in {found.unit}"),
    ]
    return Table(columns, [_row(found, row) for row in found.rows], caption=f"{found.task}, {found.protocol}")


def _row(found: Disagreements, row: Disagreement) -> list[Cell]:
    is_score = found.unit == "points"
    answers = [
        Cell(answer, number(answer) if is_score else None, mark="best" if is_better else "")
        for answer, is_better in ((row.first, row.gap > 0), (row.second, row.gap < 0))
    ]
    gold = Cell(row.gold, number(row.gold) if is_score else None)
    return [*map(Cell, row.sentences), gold, *answers, Cell(fixed(row.gap, sign=True), row.gap)]
