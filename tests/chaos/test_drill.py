"""A drill: a node of this machine is interrupted under a small training; by `make chaos` alone, it takes two minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.chaos
@pytest.mark.cluster
def test_drill_on_this_machine_continues_from_the_checkpoint_of_the_notice(tmp_path: Path) -> None:
    """Training receives the notice, saves before the end, and continues on the other node from there."""
    command = [sys.executable, "-m", "raysent", "cluster", "drill", "--notice", "10s", "--json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["has_continued"]
    assert 0 <= found["notice_s"] <= found["checkpoint_s"] + 0.5 < found["killed_s"] < found["continued_s"]
    assert found["continued_on"] not in ("", found["node"])
    assert found["step"] > 0
