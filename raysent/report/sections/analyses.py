"""The analyses of `report/analyses`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raysent.report.analyses import ANALYSES, Analysis
from raysent.report.blocks import Section
from raysent.report.run import Run


def sections() -> list[Callable[[Run], Section | None]]:
    """Return a section for each kind of analysis."""
    return [_section_of(request.RESULT) for request in ANALYSES.values()]


def _section_of(kind: type[Analysis]) -> Callable[[Run], Section | None]:
    def section(run: Run) -> Section | None:
        blocks = [block for one in run.analyses if isinstance(one, kind) for block in one.blocks()]
        return replace(kind.SECTION, blocks=blocks) if blocks else None

    return section
