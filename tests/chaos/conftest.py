"""The table of cells that a run of the kill matrix ends with."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from chaos.faults import FAULTS
from chaos.matrix import SEED, SENSELESS
from chaos.moments import MOMENTS

_found: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)


def pytest_runtest_logreport(report: Any) -> None:
    """Keep how a cell ended."""
    told = dict(report.user_properties)
    if "cell" in told and (report.when == "call" or report.failed):
        how = f"{told.get('how', '')} {report.duration:.0f} s" if report.passed else "FAILED"
        _found[told["where"]][tuple(told["cell"])] = how.strip()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a table of those that ran, and why others make no sense."""
    for where, found in _found.items():
        terminalreporter.section(f"kill matrix, {where}, seed {SEED}")
        for line in _table(found):
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


@pytest.fixture
def tell(record_property: Any) -> Any:
    """Tell the table of a cell."""

    def told(**values: Any) -> None:
        for name, value in values.items():
            record_property(name, value)

    return told
