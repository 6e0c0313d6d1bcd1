"""Nearest sentences, analogies, and what papers report.

nearest.py        exact search of vectors and codes
neighbours.py     nearest sentences of a corpus
vector_search.py  nearest sentences of a folder of vectors, and its index of FAISS
analogies.py      sentence analogies
reported/         scores that papers report
"""

from __future__ import annotations

from raysent.analysis.analogies import Analogies, AnalogyScore, read_analogies, score_analogies
from raysent.analysis.neighbours import (
    Comparison,
    CorpusVectors,
    Neighbour,
    find_neighbours,
    read_comparison,
    save_comparison,
)
from raysent.analysis.reported import COSTS, ReportedModel, ReportedTable, notes_on, reported_for, reported_tables
from raysent.analysis.vector_search import FaissIndex, FolderVectors, build_index

__all__ = [
    "COSTS",
    "Analogies",
    "AnalogyScore",
    "Comparison",
    "CorpusVectors",
    "FaissIndex",
    "FolderVectors",
    "Neighbour",
    "ReportedModel",
    "ReportedTable",
    "build_index",
    "find_neighbours",
    "notes_on",
    "read_analogies",
    "read_comparison",
    "reported_for",
    "reported_tables",
    "save_comparison",
    "score_analogies",
]
