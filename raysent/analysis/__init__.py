"""What papers report.

reported/         scores that papers report
"""

from __future__ import annotations

from raysent.analysis.reported import ReportedTable, reported_tables

__all__ = [
    "ReportedTable",
    "reported_tables",
]
