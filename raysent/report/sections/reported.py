"""What papers report on the tasks that were evaluated; one table a protocol, apart from the run's own figures."""

from __future__ import annotations

from collections.abc import Sequence

from raysent.analysis import ReportedModel, notes_on, reported_for
from raysent.analysis.reported import COSTS, F1
from raysent.report.blocks import DASH, Block, Cell, Column, Note, Section, Table
from raysent.report.run import Run


def section(run: Run) -> Section | None:
    """Return the reported figures; None where nothing was evaluated, or no paper tells of these tasks."""
    models = reported_for(sorted({score.task for score in run.scores}))
    if not models:
        return None
    lead = (
        "Figures as papers print them; correlations × 100, hours on the hardware of their time. Other corpora and "
        "machines, another protocol where its name is another: a yardstick, not a race."
    )
    protocols = dict.fromkeys(model.protocol for model in models)
    blocks = [_table(protocol, [model for model in models if model.protocol == protocol]) for protocol in protocols]
    notes = [Note(f"{where}: {note}") for where, note in notes_on(models)]
    return Section("reported", "What papers report", lead, [*blocks, *notes])


def _table(protocol: str, models: Sequence[ReportedModel]) -> Block:
    found = {name for model in models for name in model.figures if not name.endswith(F1)}
    names = [*(name for name in COSTS if name in found), *sorted(found - set(COSTS))]
    columns = [Column("model"), Column("where"), *(Column(name, "number") for name in names)]
    rows = [
        [Cell(model.model), Cell(model.where), *(_cell(model, name) for name in names)]
        for model in sorted(models, key=lambda model: -len(model.figures))
    ]
    return Table(columns, rows, caption=f"protocol {protocol}", is_tall=True)


def _cell(model: ReportedModel, name: str) -> Cell:
    return Cell(model.text_of(name, missing=DASH), model.figures.get(name))
