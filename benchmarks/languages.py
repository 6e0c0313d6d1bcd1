"""Sub-words, words, TF-IDF and the answer in Chinese, Thai, Korean and German, on rows that nothing has read.

    python -m benchmarks.languages --data FOLDER --folder OUT [--tables languages/zh/hotels] [--time 10m] [--draws 3]
    python -m benchmarks.languages --folder OUT --show

One sweep of all families a table and type of vocabulary, without its labels, as `benchmarks.answers` makes it; fresh
rows are the last ones of the same order. Of a user's table of so many rows: the answer of the sweep with sub-words,
both TF-IDF, and the ensembles of the encoders alone, by sub-words and by words (`pool`; `greedy` with 100 labels).
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import raysent
from benchmarks.answers import PERCENTILES, RESAMPLES, TABLES, read_table
from benchmarks.common import parsed, show
from raysent.ensembles import combine, load_ensemble, save_best
from raysent.evaluation.baselines import lexical_names
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.task_files import OwnTask
from raysent.storage import read_json, write_json
from raysent.sweeps import read_sweep
from raysent.sweeps.ranking import select_members
from raysent.sweeps.record import trial_folder

NAMES = [name for name in TABLES if "/" in name]
WITH_WORDS = ("languages/zh/hotels", "languages/th/wisesight")
SIZES, FRESH = (100, 300, 1000, 0), 2000


def trained(name: str, kind: str, data: Path, rest: pd.DataFrame, folder: Path, limit: str) -> list[str]:
    """Sweep all families for a table, without its labels; returns the models that the sweep itself selects."""
    run, text = folder / f"run-{kind}", TABLES[name]
    if not (folder / f"trained-{kind}").exists():
        lines = folder / "text.txt"
        lines.write_text("\n".join(" ".join(one.split()) for one in rest["text_a"]), "utf-8")
        raysent.sweep("everything", corpus=lines if text is None else data / text, run=run, tasks=[], time=limit,
                      trials=12, seed=zlib.crc32(name.encode()) % 1000, set={"vocabulary.type": kind})  # fmt: skip
        (folder / f"trained-{kind}").touch()
    recorded = read_sweep(run)
    found = select_members(recorded.record.space, recorded.trials, num_members=6)
    return [str(trial_folder(run, one.number)) for one in found]


def cell(models: dict[str, list[str]], table: pd.DataFrame, fresh: pd.DataFrame, size: int) -> dict[str, Any]:
    """Return which fresh rows each model predicts rightly, and the answer's printed score and interval."""
    task = OwnTask(table, name="own", text="text_a", label="label")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        evaluator = Evaluator(folder / "evaluation", divides=True)
        records = evaluator.records(expand(models["auto"]), [task])
        ranked = sorted(records, key=lambda one: -records[one][0].validation)
        (found,) = save_best([one.path for one in ranked], evaluator, run=folder, tasks=[task])
        for name in lexical_names([task]):
            combine([name], output=folder / name.replace(":", "-"), tasks=[task], method="uniform")
        for kind, members in models.items():
            combine(members, output=folder / kind, tasks=[task], method="greedy" if size == SIZES[0] else "pool")
        right = {}
        for name in ("best", *lexical_names([task]), *models):
            (predictor,) = load_ensemble(folder / name.replace(":", "-")).predictors.values()
            answers = predictor.answers(predictor.log_probabilities([fresh["text_a"].tolist()]))
            right[name] = (np.array(answers) == fresh["label"].to_numpy()).astype(int).tolist()
    assert found.answer is not None
    taken = found.answer.candidates[found.answer.taken]
    majority = (fresh["label"] == table["label"].mode()[0]).astype(int).tolist()
    return {"title": taken.title, "test": taken.test, "interval": list(taken.interval),
            "right": {**right, "majority": majority}}  # fmt: skip


def measure(name: str, options: Any) -> None:
    """Make the cells of a table that are missing."""
    folder = Path(options.folder) / name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    frame = read_table(name, options.data).sample(frac=1, random_state=7)
    num_fresh = min(FRESH, len(frame) // 3)
    fresh, rest = frame[-num_fresh:], frame[:-num_fresh]
    kinds = ("auto", "words") if name in WITH_WORDS else ("auto",)
    models = {kind: trained(name, kind, options.data, rest, folder, options.time) for kind in kinds}
    for size in SIZES:
        for draw in range(options.draws if size else 1):
            path = folder / f"{size}-{draw}.json"
            if not path.exists():
                write_json(path, cell(models, rest.sample(size or len(rest), random_state=draw), fresh, size))


def difference(cells: list[dict[str, Any]], one: str, other: str) -> list[float]:
    """Return the points by which one model is above another, with a 95 % interval over rows and draws."""
    points = np.array([[*map(float, found["right"][one])] for found in cells])
    points = 100 * (points - np.array([[*map(float, found["right"][other])] for found in cells]))
    generator, drawn = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        rows = generator.integers(0, points.shape[1], points.shape[1])
        drawn.append(points[generator.integers(0, len(points), len(points))][:, rows].mean())
    return [round(float(value), 2) for value in (points.mean(), *np.percentile(drawn, PERCENTILES))]


def summary(folder: Path) -> dict[str, Any]:
    """Return accuracies of each cell, and the differences that matter."""
    found, gains = dict[str, Any](), []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        for size in SIZES:
            cells = [read_json(path) for path in sorted(place.glob(f"{size}-*.json"))]
            if not cells:
                continue
            names = cells[0]["right"]
            row: dict[str, Any] = {
                name: round(100 * float(np.mean([one["right"][name] for one in cells])), 1) for name in names
            }
            rival = max((name for name in names if name.startswith("tfidf")), key=lambda name: row[name])
            row["answer - TF-IDF"] = difference(cells, "best", rival)
            row["answer - TF-IDF of characters"] = difference(cells, "best", "tfidf:chars")
            row["sub-words - most frequent class"] = difference(cells, "auto", "majority")
            if "words" in names:
                row["sub-words - words"] = difference(cells, "auto", "words")
            gains.append(row["answer - TF-IDF of characters"][0])
            found[f"{place.name}, {size or 'all'}"] = row
    return {"cells": found, "mean of answer - TF-IDF of characters": round(float(np.mean(gains)), 2)}


def main() -> None:
    """Make what is missing of the tables named, and print the summary of all."""
    options = parsed(
        __doc__, data=Path("data"), folder=str, tables=",".join(NAMES), time="10m", draws=3, show=False
    )  # fmt: skip
    if not options.show:
        for name in options.tables.split(","):
            measure(name, options)
    show(summary(Path(options.folder)), options)


if __name__ == "__main__":
    main()
