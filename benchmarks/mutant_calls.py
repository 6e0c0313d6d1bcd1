"""A plugin of pytest for `benchmarks.mutants`: which functions each test calls, how long, and whether it passes.

It runs in the folder of the mutants, where every function asks for the mutant under test and notes its call. What it
sees of a test file is written into ``<folder>/<test file>.json``; the folder is the environment variable's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

from benchmarks.mutants import FOLDER_VARIABLE


class _Calls:
    """The calls of the tests of each file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        state()._stats.clear()
        self._tests[nodeid] = {"functions": [], "seconds": 0.0, "passes": True}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests[report.nodeid]
        test["seconds"] += report.duration
        test["passes"] = test["passes"] and not report.failed

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._tests[item.nodeid]["functions"] = sorted(state()._stats)

    def pytest_sessionfinish(self) -> None:
        by_file: dict[str, dict[str, Any]] = {}
        for name, test in self._tests.items():
            by_file.setdefault(name.partition("::")[0], {})[name] = test
        for file, tests in by_file.items():
            path = self._folder / f"{Path(file).name}.json"
            path.write_text(json.dumps(tests))


def pytest_configure(config: pytest.Config) -> None:
    """Note calls, where the folder is named."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        set_mutant_under_test("stats")
        config.pluginmanager.register(_Calls(Path(folder)), "raysent-mutant-calls")
