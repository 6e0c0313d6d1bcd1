"""What holds for all tests: how they are divided among processes that run them side by side."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Processes side by side, each with a thread a core, would wait for each other's threads most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray gives its workers what the rest of the machine leaves over: beside other tests, next to nothing.
os.environ.setdefault("RAY_worker_niceness", "0")
# No test compares clocks: on a busy machine an example may take any time.
settings.register_profile("raysent", deadline=None)
settings.load_profile("raysent")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests together, as they share fixtures, and all that start Ray in one process, one after another.

    Those that start Ray take the longest, and begin first: the other processes do the rest meanwhile.
    """
    for item in items:
        group = "ray" if item.get_closest_marker("cluster") else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)
