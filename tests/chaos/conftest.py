"""The tables that a run of the kill matrix, and one of the cloud of this computer, end with."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from chaos.faults import FAULTS
from chaos.matrix import SEED, SENSELESS
from chaos.moments import MOMENTS

_found: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
# Cells of the cloud of this computer: name, how it ended, seconds; and what was planned and paid.
_cloud: list[tuple[tuple[str, str, float], dict[str, float]]] = []


def pytest_runtest_logreport(report: Any) -> None:
    """Keep how a cell ended."""
    told = dict(report.user_properties)
    if "lab" in told and report.when == "call":
        _cloud.append((told["lab"], told["bill"]))
    if "cell" in told and (report.when == "call" or report.failed):
        how = f"{told.get('how', '')} {report.duration:.0f} s" if report.passed else "FAILED"
        _found[told["where"]][tuple(told["cell"])] = how.strip()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a table of those that ran, and why others make no sense."""
    for where, found in _found.items():
        terminalreporter.section(f"kill matrix, {where}, seed {SEED}")
        for line in _table(found):
            terminalreporter.write_line(line)
    if _cloud:
        terminalreporter.section("the cloud of this computer")
        for line in (*_cloud_table(), "", *_bills()):
            terminalreporter.write_line(line)
    if _found:
        for reason in dict.fromkeys(SENSELESS.values()):
            terminalreporter.write_line(f"–: {reason}")


def _table(found: dict[tuple[str, str], str]) -> list[str]:
    """Return the lines of a table in Markdown: a row a fault, a column a moment."""
    lines = ["| fault | " + " | ".join(MOMENTS) + " |", "|---" * (1 + len(MOMENTS)) + "|"]
    for fault in FAULTS:
        if any(cell[0] == fault for cell in found):
            cells = [
                found.get((fault, moment), "–" if (fault, moment) in SENSELESS else "")
                for moment in MOMENTS
            ]
            lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    return lines


def _cloud_table() -> list[str]:
    rows = [f"| {name} | {how} | {seconds / 60:.1f} |" for (name, how, seconds), _ in _cloud]
    return ["| cell | how it ended | minutes |", "|---|---|---|", *rows]


def _bills() -> list[str]:
    """Return a table of the plan of each whole sweep beside its bill, in dollars."""
    names = ("hourly", "bound", "first", "ledger", "cloud")
    rows = [
        f"| {cell[0]} | " + " | ".join(f"{bill[name]:g}" for name in names) + " |"
        for cell, bill in _cloud
        if bill
    ]
    head = "| sweep | an hour at most | bound | head and first worker | ledger | cloud's seconds |"
    return [head, "|---" * (1 + len(names)) + "|", *rows]


@pytest.fixture
def tell(record_property: Any) -> Any:
    """Tell the table of a cell."""

    def told(**values: Any) -> None:
        for name, value in values.items():
            record_property(name, value)

    return told
