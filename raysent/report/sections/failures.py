"""The trials that broke, with the line that says why."""

from __future__ import annotations

from raysent.report.blocks import Cell, Column, Section, Table, duration, text_of
from raysent.report.run import Run, Trial
from raysent.sweeps.trial import BROKEN


def section(run: Run) -> Section | None:
    """Return the table of failures; None where nothing broke."""
    broken = [trial for trial in run.trials if trial.status in BROKEN or trial.error]
    if not broken:
        return None
    columns = [Column("trial"), Column("status"), Column("after", "number"), Column("why"), Column("searched values")]
    rows = [
        [
            Cell(trial.name),
            Cell(trial.status, mark=trial.status),
            Cell(duration(trial.seconds), trial.seconds),
            Cell(_why(trial)),
            Cell(", ".join(f"{name}={text_of(value)}" for name, value in trial.params.items())),
        ]
        for trial in broken
    ]
    lead = "These ended badly and the sweep went on without them; none of their figures counts above."
    return Section("failures", "Failures", lead, [Table(columns, rows)])


def _why(trial: Trial) -> str:
    if trial.error:
        return trial.error
    return "the loss was not a number; the last good checkpoint is kept" if trial.status == "nan" else "–"
