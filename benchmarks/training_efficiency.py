"""Quick-Thoughts against Skip-Thoughts on the same encoder: the cost of an epoch, and scores against time.

The experiment of Logeswaran and Lee, 2018, appendix C (figure 2, 6.5 against 31 hours: 4.8 times), in two parts:

- an epoch at the paper's sizes (a GRU of 1,000, words of 300, vocabulary 20,000, batch 400): processor time of a step
  of each family, alternating, on one thread. Both read 400 sentences per step, so this is the ratio of their epochs;
- at a smaller size, both train concurrently for the same time, with one thread each, and every report is evaluated on
  downstream tasks, with the vectors of the first tower only. `quick_thoughts/report.html` in the output folder has the
  curves.

    python -m benchmarks.training_efficiency --corpus PATH --data DIR --output FOLDER [--seconds 900] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.papers.table import Block
from raysent import analysis as analyses
from raysent import report
from raysent.analysis.efficiency import Curve, Efficiency
from raysent.evaluation.members import costs_of
from raysent.models import SentenceModel
from raysent.storage import read_json, write_json
from raysent.training.interruptions import Interruptions
from raysent.training.loop import fit
from raysent.training.outcome import Report
from raysent.training.run import RunConfig
from raysent.training.validation.config import DownstreamConfig
from raysent.training.validation.metrics import Downstream

OBJECTIVES = {"quick_thoughts": "context_prediction", "skip_thoughts": "sentence_decoding"}
TASKS = ["MR", "SUBJ", "MPQA", "SST-2", "TREC"]
NUM_REPORTS = 12
POINTS_FILE = "points.json"


@dataclass(frozen=True)
class Size:
    """An encoder and its batches."""

    hidden_size: int
    word_dim: int
    vocabulary: int
    batch_size: int


PAPER = Size(1000, 300, 20_000, 400)
SMALL = Size(300, 150, 20_000, 400)


def run_config(family: str, size: Size, corpus: str, *, training: dict[str, Any]) -> RunConfig:
    """Return the run of a family."""
    return RunConfig(
        corpus={"path": corpus, "max_length": 30},
        vocabulary={"size": size.vocabulary},
        encoder={"type": "gru", "hidden_size": size.hidden_size, "embedding": {"dim": size.word_dim}},
        objective={"type": OBJECTIVES[family]},
        validation={"num_sentences": 100, "num_candidates": 50},
        training={"batch_size": size.batch_size, "learning_rate": 5e-4, "epochs": 1000.0, **training},
    )


def step_seconds(family: str, size: Size, corpus: str, *, num_steps: int) -> float:
    """Return the processor time of a step: the difference of two runs that differ only in their steps."""
    taken = []
    for steps in (1, 1 + num_steps):
        config = run_config(family, size, corpus, training={"max_steps": steps, "num_reports": 1})
        with tempfile.TemporaryDirectory() as folder:
            started = time.process_time()
            fit(config, Path(folder))
            taken.append(time.process_time() - started)
    return (taken[1] - taken[0]) / num_steps


def compare_epochs(size: Size, corpus: str, *, rounds: int, num_steps: int) -> dict[str, float]:
    """Return the cost of a sentence for each family, and the ratio of medians."""
    taken: dict[str, list[float]] = {family: [] for family in OBJECTIVES}
    for _ in range(rounds):
        for family, values in taken.items():
            values.append(step_seconds(family, size, corpus, num_steps=num_steps))
    per_sentence = {family: median(values) / size.batch_size for family, values in taken.items()}
    return {
        "ratio": round(per_sentence["skip_thoughts"] / per_sentence["quick_thoughts"], 2),
        **{f"{family}_ms_per_sentence": round(1000 * value, 3) for family, value in per_sentence.items()},
    }


def train(family: str, options: argparse.Namespace) -> None:
    """Train one family at the small size for about the allowed time, in its own process."""
    folder = options.output / family
    shutil.rmtree(folder, ignore_errors=True)
    pace_s = step_seconds(family, SMALL, options.corpus, num_steps=3)
    training = {"max_steps": max(NUM_REPORTS, int(options.seconds / pace_s)), "num_reports": NUM_REPORTS}
    validation = Downstream(DownstreamConfig(tasks=TASKS, data=str(options.data)))
    begun_s, points = time.process_time(), []

    def note(_: Report) -> bool:
        nonlocal begun_s
        took_s = time.process_time() - begun_s
        # The paper evaluates the first of the two towers.
        score = validation.scores(Block(SentenceModel.load(folder), 0))["downstream"]
        points.append((took_s / 3600, score))
        begun_s = time.process_time() - took_s
        return True

    config = run_config(family, SMALL, options.corpus, training=training)
    fit(config, folder, report=note, interruptions=Interruptions(models="all"))
    write_json(folder / POINTS_FILE, points)


def compare_curves(options: argparse.Namespace) -> Efficiency:
    """Train both concurrently and return their scores against time."""
    command = [sys.executable, "-m", "benchmarks.training_efficiency", *sys.argv[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen([*command, "--family", family], env=environment) for family in OBJECTIVES]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("a training failed; see its output above")
    points = {family: read_json(options.output / family / POINTS_FILE) for family in OBJECTIVES}
    target = min(max(score for _, score in found) for found in points.values())
    curves = tuple(_curve(family, options.output / family, found, target) for family, found in points.items())
    compared = Efficiency(metric="downstream", mode="max", target=target, curves=curves)
    page = options.output / "quick_thoughts"
    analyses.write_analysis(page, compared)
    report.write(page)
    return compared


def _curve(family: str, folder: Path, points: list[tuple[float, float]], target: float) -> Curve:
    """Return a family's scores against hours, and when it reached the score that both reached."""
    hours, values = zip(*points, strict=True)
    return Curve(
        run=family,
        objective=OBJECTIVES[family],
        hours=hours,
        values=values,
        num_parameters=costs_of(folder).num_parameters,
        hours_to_target=next(hour for hour, value in points if value >= target),
    )


def main() -> None:
    """Measure both parts and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="docs", help="text to train on")
    parser.add_argument("--data", type=Path, required=True, help="tasks in SentEval's layout")
    parser.add_argument("--output", type=Path, required=True, help="folder of the two runs and the page")
    parser.add_argument("--seconds", type=float, default=900.0, help="processor time of each training")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--family", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.family:
        train(options.family, options)
        return
    epochs = compare_epochs(PAPER, options.corpus, rounds=2, num_steps=3)
    curves = compare_curves(options)
    if options.json:
        print(json.dumps({"epoch": epochs, "curves": curves.model_dump(mode="json")}))
        return
    print("an epoch at the paper's sizes: " + ", ".join(f"{key} {value}" for key, value in epochs.items()))
    for curve in curves.curves:
        reached = f"reached {curves.target:.1f} {curves.speed_up(curve):.1f} x sooner than the last; "
        points = zip(curve.hours, curve.values, strict=True)
        print(f"{curve.run}: {reached}" + ", ".join(f"{60 * hours:.1f} min {value:.1f}" for hours, value in points))


if __name__ == "__main__":
    main()
