"""What `RUN/best` is worth beside two TF-IDF on ten tables, at each number of labels, on rows that nothing has read.

    python -m benchmarks.answers --data FOLDER --folder OUT [--tables MR,TREC] [--time 4m] [--draws 3] [--fresh 2000]
    python -m benchmarks.answers --folder OUT --show

Of each table fresh rows are laid aside first. One sweep of all families trains on text of the table's language, without
its labels: novels; shop reviews; or, where there is no other, the texts of the rows that are left. For each number of
labels and draw, so many rows are drawn as a user's own table, and the sweep's members, ranked by these rows alone, are
scored, combined and saved by `raysent.ensembles.save_best`. The answer and both TF-IDF, fitted on the same table,
predict the fresh rows. `--show` prints for each number of labels the answer's score minus that of the better TF-IDF on
the fresh rows (which is chosen by these rows themselves, in its favour), with 95 % intervals over rows, draws and
tables; the cells whose interval is below zero; and how many printed intervals hold the score on fresh rows, whose own
sampling error is added. Cells are kept, and the same command continues with what is missing.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import raysent
from benchmarks.common import parsed, show
from raysent.ensembles import combine, load_ensemble, save_best
from raysent.evaluation.baselines import LEXICAL
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.tasks import find_task
from raysent.storage import read_json, write_json
from raysent.sweeps import read_sweep
from raysent.sweeps.ranking import select_members
from raysent.sweeps.record import trial_folder

NOVELS = "corpus/books"
# Table -> its text; None is that of its own rows.
TABLES = {
    **dict.fromkeys(("MR", "SUBJ", "MPQA", "TREC", "SST2", "MRPC"), NOVELS),
    "languages/de/germeval2018": "languages/de/books",
    "languages/zh/hotels": "languages/zh/shopping.txt.gz",
    "languages/th/wisesight": None,
    "languages/ko/films": None,
}
SIZES = (32, 100, 300, 1000, 0)
RESAMPLES, PERCENTILES = 2000, (2.5, 97.5)


def read_table(name: str, data: Path) -> pd.DataFrame:
    """Return a table's rows: its texts, and `label`."""
    if "/" in name:
        frame = pd.read_csv(data / f"{name}.csv.gz")
        return frame.rename(columns={"text": "text_a"}).dropna().drop_duplicates("text_a")
    whole = find_task(name).load(data / "senteval")
    texts = dict(zip(("text_a", "text_b"), whole.sentences, strict=False))
    frame = pd.DataFrame({**texts, "label": [whole.label_names[label] for label in whole.labels]})
    return frame[frame["text_a"].str.strip() != ""].drop_duplicates(list(texts))


def trained(name: str, data: Path, rest: pd.DataFrame, folder: Path, limit: str) -> list[str]:
    """Sweep all families for a table, without its labels; returns the models, as the sweep itself selects members."""
    run, text = folder / "run", TABLES[name]
    if not (folder / "trained").exists():
        shutil.rmtree(run, ignore_errors=True)
        lines = folder / "text.txt"
        lines.write_text("\n".join(" ".join(one.split()) for one in rest["text_a"]), "utf-8")
        kind = (
            {} if text == NOVELS else {"vocabulary.type": "auto"}
        )  # as a sweep without a named space does
        raysent.sweep("everything", corpus=lines if text is None else data / text, run=run, tasks=[], time=limit,
                      trials=12, seed=zlib.crc32(name.encode()) % 1000, set=kind)  # fmt: skip
        (folder / "trained").touch()
    recorded = read_sweep(run)
    found = select_members(recorded.record.space, recorded.trials, num_members=6)
    return [str(trial_folder(run, one.number)) for one in found]


def cell(models: list[str], table: pd.DataFrame, fresh: pd.DataFrame) -> dict[str, Any]:
    """Return the answer on a table: its score, interval, and which fresh rows it and both TF-IDF predict rightly."""
    columns = [name for name in fresh if name != "label"]
    task = OwnTask(
        table, name="own", text=columns if len(columns) > 1 else columns[0], label="label"
    )
    with tempfile.TemporaryDirectory() as place:
        evaluator = Evaluator(Path(place) / "evaluation", divides=True)
        records = evaluator.records(expand(models), [task])
        ranked = sorted(records, key=lambda one: -records[one][0].validation)
        (found,) = save_best([one.path for one in ranked], evaluator, run=Path(place), tasks=[task])
        for name in LEXICAL:
            combine(
                [name], output=Path(place) / name.replace(":", "-"), tasks=[task], method="uniform"
            )
        right = {}
        for name in ("best", *LEXICAL):
            (predictor,) = load_ensemble(Path(place) / name.replace(":", "-")).predictors.values()
            answers = predictor.answers(
                predictor.log_probabilities([fresh[one].tolist() for one in columns])
            )
            right[name] = (np.array(answers) == fresh["label"].to_numpy()).astype(int).tolist()
    assert found.answer is not None
    taken = found.answer.candidates[found.answer.taken]
    return {"title": taken.title, "num_test": found.answer.num_test, "test": taken.test,
            "interval": list(taken.interval), "right": right}  # fmt: skip


def measure(name: str, options: Any) -> None:
    """Make the cells of a table that are missing."""
    folder = Path(options.folder) / name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    frame = read_table(name, options.data).sample(frac=1, random_state=7)
    num_fresh = min(options.fresh, len(frame) // 3)
    fresh, rest = frame[:num_fresh], frame[num_fresh:]
    models = trained(name, options.data, rest, folder, options.time)
    for size in SIZES:
        for draw in range(options.draws if size else 1):
            path = folder / f"{size}-{draw}.json"
            if not path.exists():
                write_json(
                    path, cell(models, rest.sample(size or len(rest), random_state=draw), fresh)
                )
                one = read_json(path)
                rows = {
                    key: round(100 * float(np.mean(value)), 1)
                    for key, value in one["right"].items()
                }
                print(name, size or "all", draw, one["title"], rows, f"printed {one['test']:.1f} {one['interval']}",
                      flush=True)  # fmt: skip


def summary(folder: Path) -> dict[str, Any]:
    """Return differences by number of labels and table, and how often the printed interval holds."""
    generator, found, means = (
        np.random.default_rng(0),
        dict[str, Any](),
        dict[int, list[np.ndarray]](),
    )
    held = list[bool]()
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        for size in SIZES:
            cells = [read_json(path) for path in sorted(place.glob(f"{size}-*.json"))]
            if not cells:
                continue
            right = {
                name: np.array([one["right"][name] for one in cells], float)
                for name in ("best", *LEXICAL)
            }
            rival = max(LEXICAL, key=lambda name: right[name].mean())
            difference = 100 * (right["best"] - right[rival])
            drawn = []
            for _ in range(RESAMPLES):
                rows = generator.integers(0, difference.shape[1], difference.shape[1])
                drawn.append(
                    difference[generator.integers(0, len(cells), len(cells))][:, rows].mean()
                )
            low, high = np.percentile(drawn, PERCENTILES)
            found[f"{place.name}, {size or 'all'}"] = [
                round(float(one), 2) for one in (difference.mean(), low, high)
            ]
            means.setdefault(size, []).append(np.array([difference.mean(), *drawn]))
            for one in cells:
                score = np.mean(one["right"]["best"])
                error = 196 * np.sqrt(score * (1 - score) / difference.shape[1])
                side = one["interval"][0] if 100 * score < one["test"] else one["interval"][1]
                held.append(
                    bool(abs(100 * score - one["test"]) <= np.hypot(side - one["test"], error))
                )
    rows = {}
    for size, of_size in means.items():
        value, *drawn = np.mean(of_size, axis=0)
        rows[str(size or "all")] = [
            round(float(one), 2) for one in (value, *np.percentile(drawn, PERCENTILES))
        ]
    below = [name for name, (_, _, high) in found.items() if high < 0]
    return {"cells": found, "mean over tables": rows, "tables": {str(k or "all"): len(v) for k, v in means.items()},
            "below by an interval": below, "intervals that hold, %": round(100 * float(np.mean(held)), 1),
            "intervals": len(held)}  # fmt: skip


def main() -> None:
    """Make what is missing of the tables named, and print the summary of all."""
    options = parsed(__doc__, data=Path("data"), folder=str, tables=",".join(TABLES), time="4m", draws=3, fresh=2000,
                     show=False)  # fmt: skip
    if not options.show:
        for name in options.tables.split(","):
            measure(name, options)
    show(summary(Path(options.folder)), options)


if __name__ == "__main__":
    main()
