"""The answer of a sweep with trials that learn the labels, and without, on a few rows of each class.

    python -m benchmarks.few_labels --data SENTEVAL --folder OUT --task SST2 --rows 8 --draw 0

Both read the same rows and are compared on the same fresh ones, by a paired bootstrap over these.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import raysent
from benchmarks.common import parsed
from raysent.ensembles import read_answers
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import load_task

ENCODER, STEPS, TRIALS = "all-MiniLM-L6-v2", 50, 2


def main() -> None:
    """Print what both answers have as JSON."""
    options = parsed(
        __doc__, data=str, folder=str, task="SST2", rows=8, draw=0, fresh=400, encoder=ENCODER
    )
    data = load_task(options.task, Path(options.data))
    train, fresh = drawn(data, options.rows, options.draw, options.fresh)
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / f"{options.task}-{options.rows}-{options.draw}.csv"
    write(table, data, {"train": train, "test": fresh})
    texts = [data.sentences[0][row] for row in fresh]
    labels = np.array([data.label_names[data.labels[row]] for row in fresh])
    found: dict[str, Any] = {"task": options.task, "rows": options.rows, "draw": options.draw}
    right = {}
    for name, trials in (("without", 0), ("with", TRIALS)):
        run = folder / f"{table.stem}-{name}"
        started = time.perf_counter()
        sweep(table, run, trials, options.encoder)
        model = raysent.load(run / "best")
        right[name] = np.array([str(one) for one in model.predict(texts)]) == labels
        found[name] = {
            "accuracy": round(100 * float(right[name].mean()), 1),
            "seconds": round(time.perf_counter() - started),
            "alone": alone(run),
        }
    gains = 100.0 * (right["with"].astype(float) - right["without"])
    means = np.random.default_rng(0).choice(gains, (2000, len(gains))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    found["gain"] = [round(float(one), 1) for one in (gains.mean(), low, high)]
    print(json.dumps(found, indent=None if options.json else 2))


def sweep(table: Path, run: Path, trials: int, encoder: str) -> None:
    """Sweep a table with so many trials, which learn its labels."""
    raysent.sweep(
        tasks=[str(table)],
        run=run,
        trials=trials,
        time="2h",
        labels=[],
        pretrained=[encoder],
        set={"training.steps": STEPS} if trials else None,
        progress=False,
    )


def alone(run: Path) -> dict[str, float]:
    """Return the accuracy of each model alone on the fresh rows, in percent."""
    ((_, answer),) = read_answers(run)
    singles = [one for one in answer.candidates if len(one.members) == 1]
    return {one.title: round(one.test, 1) for one in singles}


def drawn(data: TaskData, rows: int, draw: int, fresh: int) -> tuple[list[int], list[int]]:
    """Return so many rows of each class, and fresh rows that are none of them."""
    generator = np.random.default_rng((rows, draw))
    pool = data.train if len(data.train) else np.arange(len(data))
    order = generator.permutation(pool)
    train = [
        row for label in range(len(data.label_names)) for row in _some(order, data, label, rows)
    ]
    others = data.test if len(data.test) else np.setdiff1d(pool, train)
    return train, [*np.random.default_rng(9).permutation(others)[:fresh].tolist()]


def _some(order: np.ndarray, data: TaskData, label: int, rows: int) -> Sequence[int]:
    found: list[int] = order[data.labels[order] == label][:rows].tolist()
    return found


def write(path: Path, data: TaskData, parts: dict[str, list[int]]) -> None:
    """Write a table of rows, each with its part."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label", "split"])
        for part, rows in parts.items():
            for row in rows:
                label = data.label_names[data.labels[row]]
                table.writerow([data.sentences[0][row], label, part])


if __name__ == "__main__":
    main()
