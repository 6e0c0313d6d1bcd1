"""A drill: a node of this machine is interrupted under a small training; by `make chaos` alone, it takes two minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.drill import drill, local_cluster


@pytest.mark.chaos
@pytest.mark.cluster
def test_drill_on_this_machine_continues_from_the_checkpoint_of_the_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training receives the notice, saves before the end, and continues on the other node from there."""
    tests = Path(__file__).resolve().parent.parent
    monkeypatch.setenv(
        "PYTHONPATH", f"{tests}:{os.environ.get('PYTHONPATH', tests.parent)}"
    )  # for Ray's workers
    with local_cluster() as address:
        found = drill(address, tmp_path / "run", notice_s=10.0)
    assert found.has_continued
    assert None not in (found.notice_s, found.checkpoint_s, found.continued_s)
    assert 0 <= found.notice_s <= found.checkpoint_s + 0.5 < found.killed_s < found.continued_s
    assert found.continued_on not in ("", found.node)
    assert found.step > 0
