"""Analyses of models and trainings beyond their scores.

An analysis is a value (an `Analysis`) and the function that computes it from models, runs or tasks. `write_analysis`
stores it as `analyses/<kind>-<name>.json`, and a section of the report shows it.

To add an analysis: write a module with a subclass of `Analysis` and its function, add the class to `ANALYSES` below,
and add a section to `raysent/report/sections`.

efficiency.py        score against training time for several runs
parameter_effect.py  score against one setting of several runs
projection.py        a task's sentences on a plane, by t-SNE
predictions.py       examples of predictions, and rows on which two models differ
nearest.py           exact search of vectors and codes
neighbours.py        nearest sentences of a corpus
vector_search.py     nearest sentences of a folder of vectors, and its index of FAISS
analogies.py         sentence analogies
reported/            scores that papers report
"""

from __future__ import annotations

from pathlib import Path

from raysent.analysis.analogies import Analogies, AnalogyScore, read_analogies, score_analogies
from raysent.analysis.efficiency import Efficiency, compare_efficiency
from raysent.analysis.files import Analysis, write_analysis
from raysent.analysis.files import read_kind as _read_kind
from raysent.analysis.neighbours import Comparison, Neighbour, find_neighbours, read_comparison, save_comparison
from raysent.analysis.parameter_effect import ParameterEffect, compare_values
from raysent.analysis.predictions import Disagreements, Examples, find_disagreements, pick_examples
from raysent.analysis.projection import Projection, project
from raysent.analysis.reported import COSTS, ReportedModel, ReportedTable, notes_on, reported_for, reported_tables
from raysent.analysis.vector_search import FaissIndex, build_index, search_folder

__all__ = [
    "ANALYSES",
    "COSTS",
    "Analogies",
    "AnalogyScore",
    "Analysis",
    "Comparison",
    "Disagreements",
    "Efficiency",
    "Examples",
    "FaissIndex",
    "Neighbour",
    "ParameterEffect",
    "Projection",
    "ReportedModel",
    "ReportedTable",
    "build_index",
    "compare_efficiency",
    "compare_values",
    "find_disagreements",
    "find_neighbours",
    "notes_on",
    "pick_examples",
    "project",
    "read_analogies",
    "read_analyses",
    "read_comparison",
    "reported_for",
    "reported_tables",
    "save_comparison",
    "score_analogies",
    "search_folder",
    "write_analysis",
]

# Every stored kind, in the order in which `read_analyses` returns them.
ANALYSES: tuple[type[Analysis], ...] = (Efficiency, ParameterEffect, Projection, Examples, Disagreements)


def read_analyses(folder: Path) -> tuple[Analysis, ...]:
    """Return all analyses in a folder, in the order of `ANALYSES`, then by name.

    Raises:
        ArtifactError: If a file is truncated or of another version.
    """
    return tuple(found for kind in ANALYSES for found in _read_kind(folder, kind))
