"""The list of benchmarks: each is there and takes its smallest sizes; and what the runner makes of their output."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as runner
from benchmarks import answers, peers
from raysent.models.known import encoder_at_hand
from raysent.storage import read_json, write_json


class _ParsedError(Exception):
    """The arguments are valid."""


@pytest.mark.parametrize("name", runner.BENCHMARKS)
def test_benchmark_takes_its_smallest_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a module whose command accepts them; nothing is measured."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, *arguments: object) -> None:
        parse(self, *arguments)  # type: ignore[call-overload]
        raise _ParsedError

    for needed in runner.PEERS.get(name, ()):
        pytest.importorskip(needed, reason="pip install raysent[bench]")
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [name, *runner.BENCHMARKS[name]])
    with pytest.raises(_ParsedError):
        importlib.import_module(f"benchmarks.{name}").main()


@pytest.mark.parametrize("name", ["decisions", "row_adam"])
def test_benchmark_measures_at_its_smallest_size(name: str) -> None:
    """The quickest ones in seconds; all of them are `make bench`."""
    found = runner.run(name, runner.BENCHMARKS[name])
    assert found is not None
    assert all(value > 0 for _, value in found)


def test_runner_names_modules_of_its_folder() -> None:
    """The text that benchmarks read is among them."""
    assert set(runner.READS_TEXT) | set(runner.PEERS) <= set(runner.BENCHMARKS)
    assert Path(runner.BENCHMARKS["corpus"][1]).is_dir()


def test_a_benchmark_that_fails_does_not_end_the_others(monkeypatch, capsys) -> None:
    """Whether it ends with an error, prints no JSON where it must, or JSON without a ratio; the exit code says so."""
    outcomes = {
        "encoding": SimpleNamespace(returncode=1, stdout=""),
        "probes": SimpleNamespace(returncode=0, stdout="no JSON"),
        "kills": SimpleNamespace(returncode=0, stdout='{"seconds": 3}'),
        "row_adam": SimpleNamespace(
            returncode=0, stdout='{"rows": {"ratio_over_dense": 2.0}, "seconds": 3}'
        ),
    }
    monkeypatch.setattr(
        runner.subprocess, "run", lambda command, **_: outcomes[command[2].split(".")[1]]
    )
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", ",".join(outcomes)])
    assert runner.main() == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0].startswith("| encoding | failed: python -m benchmarks.encoding --sentences ")
    assert lines[1].startswith("| probes | failed: ")
    assert lines[2].startswith("| kills | figures that are not ratios: ")
    assert lines[3] == "| row_adam | rows, ratio over dense | 2.00 |"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "kills,row_adam"])
    assert runner.main() == 0


def test_answers_are_compared_with_the_better_of_two_tfidf_and_their_intervals_counted(
    tmp_path: Path,
) -> None:
    """A cell that is below by its interval is named; a printed interval far from the score on fresh rows is not held."""
    rows = 400
    for table, right, printed in (("good", 0.9, 90.0), ("bad", 0.5, 80.0)):
        for draw in range(3):
            places = [place % 10 < 10 * right for place in range(rows)]
            worse, better = (
                [int(place % 10 < tenths) for place in range(rows)] for tenths in (6, 8)
            )
            cell = {
                "title": "x",
                "num_test": 100,
                "test": printed,
                "interval": [printed - 3, printed + 3],
            }
            cell["right"] = {"best": list(map(int, places)), "tfidf": worse, "tfidf:chars": better}
            write_json(tmp_path / table / f"100-{draw}.json", cell)
    found = answers.summary(tmp_path)
    assert found["cells"]["good, 100"][0] == 10.0
    assert found["cells"]["bad, 100"][0] == -30.0
    assert found["mean over tables"]["100"][0] == -10.0
    assert found["below by an interval"] == ["bad, 100"]
    assert (found["intervals"], found["intervals that hold, %"]) == (6, 50.0)


def test_peers_are_compared_on_the_example_table(tmp_path, monkeypatch, capsys):
    """At the smallest size, with the pretrained encoder that the set-up installs."""
    if encoder_at_hand("en") is None:
        pytest.skip("no pretrained encoder is installed")
    arguments = ["peers", "--folder", str(tmp_path), "--sizes", "32", "--draws", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    peers.main()
    printed = capsys.readouterr().out
    (cell,) = tmp_path.glob("*.json")
    compared = read_json(cell)
    assert {"raysent", "minilm", "tfidf", "tfidf:chars"} <= set(compared)
    assert len(compared["raysent"]["right"]) == len(compared["minilm"]["right"])
    assert "| tickets | minilm |" in printed
