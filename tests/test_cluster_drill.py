"""`raysent cluster drill`: what it prints, and what it rejects; `chaos/test_drill.py` interrupts a node."""

from __future__ import annotations

import json

import pytest
from command import CommandLine

from raysent import cluster
from raysent.cluster import DrillResult

CONTINUED = DrillResult("aaa", 1.25, 1.5, 12.0, continued_s=20.0, continued_on="bbb", step=1200, steps_lost=0)
ENDED = DrillResult("aaa", None, None, 12.0)


@pytest.fixture
def drilled(monkeypatch, capsys):
    """The command line with a drill of a given result."""

    def install(outcome: DrillResult) -> CommandLine:
        monkeypatch.setattr(cluster, "drill", lambda *_, **__: outcome)
        return CommandLine(monkeypatch, capsys)

    return install


def test_drill_prints_what_happened_in_order(drilled):
    """Exit code 0 if training continued."""
    ran = drilled(CONTINUED)("cluster", "drill", "--address", "127.0.0.1:1", "--yes")
    assert ran.code == 0
    assert [line.split("  ")[0] for line in ran.out.splitlines()[1:]] == [
        "the training received the notice", "a checkpoint was saved", "node aaa was killed",
        "training continued on node bbb", "from step", "repeated steps",
    ]  # fmt: skip
    assert "1,200" in ran.out


def test_drill_fails_if_training_does_not_continue(drilled):
    """Exit code 1, with `never` for what did not happen."""
    ran = drilled(ENDED)("cluster", "drill", "--address", "127.0.0.1:1", "--yes")
    assert ran.code == 1
    assert ran.out.count("never") == 3
    assert not json.loads(drilled(ENDED)("cluster", "drill", "--address", "127.0.0.1:1", "--yes", "--json").out)[
        "has_continued"
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--address", "127.0.0.1:1"], "error: 127.0.0.1:1: one of its nodes will be killed; confirm with --yes"),
        (["cluster.yaml", "--address", "127.0.0.1:1"], "error: FILE: must not stand beside --address or --run"),
        (["--address", "127.0.0.1:1", "--yes", "--run", "."], "error: .: must be empty; name another --run"),
        (["--notice", "soon"], "error: a duration must look like 90s, 30m, 2h or 1h30m; given 'soon'"),
    ],
)
def test_drill_rejects(drilled, options, said, tmp_path, monkeypatch):
    """Errors of one line, before a node is interrupted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    ran = drilled(CONTINUED)("cluster", "drill", *options)
    assert (ran.code, ran.err.strip()) == (2, said)
