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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests in one process, as they share fixtures; files that start Ray take the longest, and begin first."""
    with_ray = {item.path for item in items if item.get_closest_marker("cluster")}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: item.path not in with_ray)
