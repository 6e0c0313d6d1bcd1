"""The sections of the report, in the order of the page.

A section is a function `Run -> Section | None`; None leaves it out. A new section is a function in a module here and a
line in `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable

from raysent.report.blocks import Section
from raysent.report.run import Run
from raysent.report.sections import (
    answer,
    classes,
    costs,
    ensemble,
    evaluation,
    summary,
    trials,
)

# Sections that are open where a run has an answer; the others then say how it was searched.
FIRST = ("answer", "classes", "mistakes", "suspects", "labels")
SECTIONS: tuple[Callable[[Run], Section | None], ...] = (
    answer.what_to_take,
    classes.classes,
    classes.mistakes,
    classes.suspects,
    evaluation.against_labels,
    summary.summary,
    trials.leaderboard,
    trials.learning_curves,
    evaluation.task_scores,
    ensemble.method_scores,
    ensemble.calibration,
    ensemble.members,
    costs.spending,
    summary.failures,
    summary.reproduction,
)
