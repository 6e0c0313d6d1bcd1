"""Nearest sentences, and what papers report.

nearest.py        exact search of vectors and codes
neighbours.py     nearest sentences of a corpus
vector_search.py  nearest sentences of a folder of vectors, and its index of FAISS
reported/         scores that papers report
"""

from __future__ import annotations

from raysent.analysis.neighbours import (
    Comparison,
    CorpusVectors,
    Neighbour,
    find_neighbours,
    read_comparison,
    save_comparison,
)
from raysent.analysis.reported import ReportedTable, reported_tables
from raysent.analysis.vector_search import FaissIndex, FolderVectors

__all__ = [
    "Comparison",
    "CorpusVectors",
    "FaissIndex",
    "FolderVectors",
    "Neighbour",
    "ReportedTable",
    "find_neighbours",
    "read_comparison",
    "reported_tables",
    "save_comparison",
]
