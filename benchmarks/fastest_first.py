"""A plugin of pytest for `benchmarks.mutants`: tests in the order of the time that mutmut saw them take.

Most mutants are found by many tests; those that take milliseconds come before those that take seconds.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest

# Written by mutmut once it has run every test unchanged, in the folder where the tests run.
_STATISTICS = Path("mutmut-stats.json")


@lru_cache(maxsize=1)
def _durations() -> dict[str, float]:
    if not _STATISTICS.is_file():
        return {}
    seconds: dict[str, float] = json.loads(_STATISTICS.read_text())["duration_by_test"]
    return seconds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests of a mutant; without times they stay as they are."""
    seconds = _durations()
    items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
