"""The smallest size of `benchmarks/kills.py`: what it calls a violation, one kill and one damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kills import DAMAGES, Command, Ending, contents, difference, trouble

PROGRAM = """
import sys
from pathlib import Path
import raysent
from benchmarks import kills
from raysent.kernels.native import try_load
try_load("text")  # kept by the processes that are forked
def write_inputs(folder, write=kills.write_inputs):
    write(folder)
    raysent.average(folder / "words.vec", output=folder / "model")
kills.PREPARATION, kills.write_inputs = (), write_inputs
encode = kills.Command("encode model text.txt -o out.npy", ("out.npy",), damages=("model",))
kills.PARTS = {"others": ((encode,), kills.kill), "damages": ((encode,), kills.damage)}
results = kills.play({"others": 1, "damages": 1}, seed=0, folder=Path(sys.argv[1]), say=print)
print(kills.table(results))
sys.exit(sum(result["outcome"] == kills.VIOLATION for result in results))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_one_kill_and_one_damage_are_survived(tmp_path):
    """The results are kept, so the same call plays nothing again."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "kills")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = [
        json.loads(line) for line in (tmp_path / "kills" / "results.jsonl").read_text().splitlines()
    ]
    assert [(result["part"], result["number"]) for result in results] == [
        ("others", 0),
        ("damages", 0),
    ]
    assert {result["outcome"] for result in results} <= {"same", "continued", "refused", "missed"}


@pytest.mark.parametrize(
    ("ending", "is_trouble"),
    [
        (Ending(0, "", "", 1.0), False),
        (Ending(2, "", "error: model/model.json: truncated\n", 1.0), False),
        (Ending(1, "", "", 1.0), True),
        (Ending(2, "", "error: one\nerror: two\n", 1.0), True),
        (Ending(1, "", "Traceback (most recent call last):\n", 1.0), True),
        (Ending(-signal.SIGSEGV, "", "", 1.0), True),
        (Ending(None, "", "", 1.0), True),
    ],
)
def test_anything_but_one_line_is_trouble(ending, is_trouble):
    """No line, several lines, a traceback, a signal, no end."""
    assert bool(trouble(ending)) == is_trouble


def test_other_files_are_a_difference(tmp_path):
    """Every value of JSON but times, every byte of others, and files that are missing or more."""
    command = Command("x", ("out",))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.json").write_text('{"x": [1, {"y": 2}], "seconds": 3}')
    (tmp_path / "out/b.bin").write_bytes(b"b")
    expected = contents(tmp_path, command, "")
    (tmp_path / "out/a.json").write_text('{"x": [1, {"y": 2}], "seconds": 4}')
    assert difference(contents(tmp_path, command, ""), expected, loose=set()) == ""
    (tmp_path / "out/a.json").write_text('{"x": [1, {"y": 3}], "seconds": 4}')
    assert (
        difference(contents(tmp_path, command, ""), expected, loose=set())
        == "out/a.json/x/1/y: 2 became 3"
    )
    assert difference(contents(tmp_path, command, ""), expected, loose={"out/a.json/x/1/y"}) == ""
    (tmp_path / "out/b.bin").unlink()
    assert difference(
        contents(tmp_path, command, ""), expected, loose={"out/a.json/x/1/y"}
    ).startswith("out/b.bin")
    assert set(DAMAGES) >= {"flip", "cut", "empty", "zeros", "remove"}
