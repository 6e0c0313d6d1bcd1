"""What the figures alone do not tell: maps of vectors, models' disagreements, what training costs, what was reported.

In: models, runs, tasks. Out: `analyses/<kind>-<name>.json` in a run's folder, which a section of the report shows. A
kind of analysis is a module with its value (an `Analysis`) and the function that finds it.
"""

from __future__ import annotations

from raysent.analysis.efficiency import Efficiency, compare_efficiency
from raysent.analysis.files import Analysis, read_analyses, write_analysis
from raysent.analysis.parameter_effect import ParameterEffect, compare_values
from raysent.analysis.predictions import Disagreements, Examples, find_disagreements, pick_examples
from raysent.analysis.projection import Projection, project
from raysent.analysis.reported import ReportedModel, ReportedTable, notes_on, reported_for, reported_tables

__all__ = [
    "KINDS",
    "Analysis",
    "Disagreements",
    "Efficiency",
    "Examples",
    "ParameterEffect",
    "Projection",
    "ReportedModel",
    "ReportedTable",
    "compare_efficiency",
    "compare_values",
    "find_disagreements",
    "notes_on",
    "pick_examples",
    "project",
    "read_analyses",
    "reported_for",
    "reported_tables",
    "write_analysis",
]

# In the order of reading.
KINDS: tuple[type[Analysis], ...] = (Efficiency, ParameterEffect, Projection, Examples, Disagreements)
