"""Toy count: an analysis that says how many models there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from raysent.evaluation import Evaluator
from raysent.report.analyses import Analysis, Request
from raysent.report.blocks import Block, Note, Section


class Count(Analysis):
    """How many models there are."""

    SECTION: ClassVar = Section("count", "Number of models")
    number: int

    @property
    def name(self) -> str:
        """One for all."""
        return "models"

    def blocks(self) -> list[Block]:
        """Return a sentence."""
        return [Note(f"there are {self.number} models")]


class CountRequest(Request):
    """The number of models, and more."""

    RESULT: ClassVar = Count
    more: int = 0

    def compute(
        self,
        models: Sequence[str | Path],
        tasks: Sequence[str] | None,
        evaluator: Evaluator,
    ) -> list[Count]:
        """Return one count."""
        return [Count(number=len(models) + self.more)]


REQUESTS = {"toy_count": CountRequest}
