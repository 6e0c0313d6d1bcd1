"""Sweeps on a new text, taught by others, beside random search: the answers of both, on rows that chose nothing.

    python -m benchmarks.taught --data DATA --text FOLDER --teachers RUN,RUN --output OUT [--limit 4m] [--seeds 1,2,3]

Both search the space `everything` without tasks, twelve trials in so much time, one after the other for each seed. The
answer is the combination that `greedy` makes of all finished trials by 2,000 rows each of five tables, and the same
with TF-IDF among them; scores are of 1,200 others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import raysent
from benchmarks.answers import read_table
from benchmarks.common import parsed, show
from raysent.ensembles import combine
from raysent.ensembles.methods import ENSEMBLE
from raysent.evaluation.task_files import OwnTask
from raysent.storage import read_json, write_json
from raysent.sweeps import read_sweep
from raysent.sweeps.record import trial_folder

TABLES, TRAIN, TEST = ("MR", "SUBJ", "MPQA", "SST2", "TREC"), 2000, 1200


def tasks(data: Path, output: Path, seed: int) -> list[OwnTask]:
    """Return the tables' rows that train and judge, others for each seed."""
    found = []
    for name in TABLES:
        frame = read_table(name, data).sample(TRAIN + TEST, random_state=seed)
        path = output / f"{name}-{seed}.csv"
        frame.assign(split=["train"] * TRAIN + ["test"] * TEST)[["text_a", "label", "split"]].to_csv(path, index=False)
        found.append(OwnTask(str(path), name=name, text="text_a", label="label", split="split"))
    return found


def main() -> None:
    """Run what is missing, and print the scores of each sweep."""
    options = parsed(
        __doc__, data=Path("data"), text=Path("text"), teachers=str, output=Path, limit="4m", seeds="1,2,3"
    )
    found = {}
    options.output.mkdir(parents=True, exist_ok=True)
    for seed in map(int, options.seeds.split(",")):
        rivals = {
            "taught": {"learn_from": options.teachers.split(",")},
            "random": {"set": {"limits.sampler": "random"}},
        }
        for name in sorted(rivals, reverse=seed % 2 == 0):
            run, scored = options.output / f"{name}-{seed}", options.output / f"{name}-{seed}.json"
            if not (run / "report.html").exists():
                raysent.sweep("everything", corpus=options.text, run=run, tasks=[], time=options.limit, trials=12,
                              seed=seed, **rivals[name])  # fmt: skip
            if not scored.exists():
                trials = [one for one in read_sweep(run).trials if one.status == "finished"]
                models = [str(trial_folder(run, one.number)) for one in trials]
                given = tasks(options.data, options.output, seed)
                one = combine(models, output=options.output / f"{name}-{seed}-own", tasks=given, method="greedy")
                more = [*models, "tfidf", "tfidf:chars"]
                all_ = combine(more, output=options.output / f"{name}-{seed}-all", tasks=given, method="greedy")
                values = {"trials": len(trials)}
                for key, made in (("own", one), ("all", all_)):
                    values[key] = {task: made.tasks[task].scores[ENSEMBLE].test for task in TABLES}
                write_json(scored, values)
            values = read_json(scored)
            found[f"{name} {seed}"] = {"trials": values["trials"]} | {
                key: round(float(np.mean([*values[key].values()])), 2) for key in ("own", "all")
            }
            print(name, seed, found[f"{name} {seed}"], flush=True)
    show(found, options)


if __name__ == "__main__":
    main()
