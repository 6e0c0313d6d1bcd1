"""One row -> a model in its folder, and its training time; runs in its own process, on one thread."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.papers.rows import Row
from raysent.storage import read_json, write_json
from raysent.training.loop import fit
from raysent.training.run import RunConfig

TIME_FILE = "time.json"
# The smallest difference of two runs that is trusted, in seconds.
_LEAST_S = 3.0
_FEWEST_STEPS, _MOST_STEPS = 4, 4000


def make(row: Row, *, models: Path, seconds: float) -> dict[str, Any]:
    """Train or make a model, unless it exists; return steps, sentences and processor seconds."""
    folder = models / row.name
    if (folder / TIME_FILE).exists():
        return dict(read_json(folder / TIME_FILE))
    if row.view is not None:
        taken = {"status": "evaluated", "num_steps": 0, "sentences": 0, "seconds": 0.0}
    else:
        taken = _train(row, folder, seconds=seconds) if row.run else _command(row, folder)
    write_json(folder / TIME_FILE, taken)
    return taken


def _train(row: Row, folder: Path, *, seconds: float) -> dict[str, Any]:
    """Train for as many steps as the allowed processor time permits."""
    num_steps = row.num_steps or max(2, int(seconds / seconds_per_step(row, folder.with_name(f"{row.name}-trial"))))
    started = time.process_time()
    outcome = fit(_config(row, num_steps=num_steps, num_reports=2), folder)
    return {
        "status": outcome.status,
        "num_steps": outcome.step,
        "sentences": outcome.sentences,
        "seconds": round(time.process_time() - started, 1),
        "metrics": outcome.metrics,
    }


def seconds_per_step(row: Row, folder: Path) -> float:
    """Return the cost of a step: the difference of two short runs that differ only in their number of steps."""
    num_steps, before = _FEWEST_STEPS, _time_of(row, folder, num_steps=2)
    while True:
        taken = _time_of(row, folder, num_steps=2 + num_steps) - before
        if taken > _LEAST_S or num_steps > _MOST_STEPS:
            return taken / num_steps
        num_steps *= 4


def _time_of(row: Row, folder: Path, *, num_steps: int) -> float:
    """Return the processor seconds of a whole short run."""
    shutil.rmtree(folder, ignore_errors=True)
    started = time.process_time()
    fit(_config(row, num_steps=num_steps, num_reports=1), folder)
    taken = time.process_time() - started
    shutil.rmtree(folder)
    return taken


def _config(row: Row, *, num_steps: int, num_reports: int) -> RunConfig:
    """Return the run of a row with its number of steps."""
    # Epochs are a limit too; the number of steps must decide.
    length = {"max_steps": num_steps, "epochs": 1000.0, "num_reports": min(num_reports, num_steps)}
    return RunConfig(**{**row.run, "training": {**row.run.get("training", {}), **length}})


def _command(row: Row, folder: Path) -> dict[str, Any]:
    """Run the command of a row."""
    started = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "raysent", *row.make, "-o", str(folder)], check=True)
    return {"status": "made", "num_steps": 0, "sentences": 0, "seconds": round(time.perf_counter() - started, 1)}
