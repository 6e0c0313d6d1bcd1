"""Progress in a log: how much is done, the time left, and that a long step lives."""

from __future__ import annotations

import time

import pytest

from raysent import progress
from raysent.progress import ProgressLines


def test_lines_say_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the speed since the first step of the same total; another total begins anew, and few steps say nothing."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    bar = ProgressLines(prefix="evaluating ")
    for done, total in ((4, 10), (7, 10), (8, 10), (1, 3), (2, 3)):
        bar("MR", done, total)
        clock[0] += 61.0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "evaluating MR: 7 of 10, about 1m01s left",
        "evaluating MR: 8 of 10, about 1m01s left",
        "evaluating MR: 1 of 3",
        "evaluating MR: 2 of 3",
    ]


def test_a_long_step_is_shown_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until it has ended; nothing is printed after the last."""
    monkeypatch.setattr(ProgressLines, "REPEAT_S", 0.05)
    with ProgressLines() as bar:
        bar("MR", 1, 2)
        deadline, seen = time.monotonic() + 600, ""
        while "MR: 1 of 2" not in seen and time.monotonic() < deadline:
            time.sleep(0.01)
            seen += capsys.readouterr().err
        assert "MR: 1 of 2" in seen
        bar("done", 2, 2)
    assert "done" not in capsys.readouterr().err
