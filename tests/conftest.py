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


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give all tests of a run a cache of their own: what earlier code left in the user's cache is not found."""
    folder = tmp_path_factory.getbasetemp()
    os.environ["RAYSENT_CACHE"] = str((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that start Ray, as they take the longest; a file's tests stay together (`--dist loadfile`)."""
    with_ray = {item.path for item in items if item.get_closest_marker("cluster")}
    items.sort(key=lambda item: item.path not in with_ray)
