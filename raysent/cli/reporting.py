"""What papers report, printed beside results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from raysent import analysis as analyses
from raysent.analysis.reported import COSTS
from raysent.cli.console import print_table, results

DASH = "–"


def print_reported(tasks: Sequence[str]) -> None:
    """Print what papers report on these tasks, a table a protocol; protocols are never mixed."""
    models = analyses.reported_for(tasks)
    for protocol in dict.fromkeys(model.protocol for model in models):
        chosen = [model for model in models if model.protocol == protocol]
        columns = [name for name in (*COSTS, *tasks) if any(name in model.figures for model in chosen)]
        rows = [
            (one.model, one.where, *(one.text_of(name, missing=DASH) for name in columns))
            for one in sorted(chosen, key=lambda one: -len(one.figures))
        ]
        results.print()
        print_table([f"as reported, protocol {protocol}", "where", *columns], rows, num_text=2)
    for where, note in analyses.notes_on(models):
        results.print(f"{where}: {note}", soft_wrap=True)


def reported_values(tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return what papers report on these tasks as plain values."""
    return [asdict(model) for model in analyses.reported_for(tasks)]
