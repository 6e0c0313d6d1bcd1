"""What `predict --coverage` and `--precision` promise, and what new rows get.

    python -m benchmarks.coverage --data SENTEVAL [--rows 3000] [--new 4000] [--draws 3] [--coverage 0.8] [--json]

Of each task, rows are drawn at random as a user's own table, without its splits, and others as new rows. An ensemble of
TF-IDF of words, of characters and random word vectors is made of the table alone, by `raysent.ensembles.combine`. Its
thresholds are of validation rows, and each promise is compared with the answers for the new rows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import parsed, show
from raysent.ensembles import combine, load_ensemble
from raysent.errors import ConfigError
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.tasks import find_task

TASKS = ("MR", "SUBJ", "MPQA", "TREC", "SST2", "MRPC")
MEMBERS = ("tfidf", "tfidf:chars", "hash:300")
PRECISIONS = (0.8, 0.9, 0.95)


def measure(task: str, data: Path, *, num_rows: int, num_new: int, seed: int, coverage: float) -> dict[str, float]:
    """Return what is promised for new rows of a task and what they get, as parts of 1."""
    whole = find_task(task).load(data)
    texts = dict(zip(("text_a", "text_b"), whole.sentences, strict=False))
    frame = pd.DataFrame({**texts, "label": [whole.label_names[label] for label in whole.labels]})
    frame = frame.drop_duplicates(list(texts)).sample(frac=1, random_state=seed)
    num_rows = min(num_rows, len(frame) * 2 // 3)
    table, new = frame[:num_rows], frame[num_rows : num_rows + num_new]
    columns = {"text": list(texts) if len(texts) > 1 else "text_a", "label": "label"}
    with tempfile.TemporaryDirectory() as folder:
        combine(MEMBERS, output=Path(folder), tasks=[OwnTask(table, name="own", **columns)], method="pool")
        (predictor,) = load_ensemble(Path(folder)).predictors.values()
        logs = predictor.log_probabilities([new[name].tolist() for name in texts])
    right = np.array(predictor.answers(logs)) == new["label"].to_numpy()
    confidence = np.exp(logs.max(axis=1))

    def judged(threshold: float) -> tuple[float, float]:
        answered = confidence >= threshold
        return float(answered.mean()), float(right[answered].mean()) if answered.any() else 1.0

    promise = predictor.promise(coverage=coverage)
    found = dict(zip(("coverage", "precision"), judged(promise.level.threshold), strict=True))
    found |= {"promised_coverage": promise.coverage, "promised_precision": promise.precision}
    found |= {"new_rows": len(new), "accuracy": float(right.mean()), "confidence": float(confidence.mean())}
    for precision in PRECISIONS:
        try:
            level = predictor.promise(precision=precision).level
        except ConfigError:  # no threshold reaches it
            continue
        found[f"coverage at {precision}"], found[f"precision at {precision}"] = judged(level.threshold)
    return found


def main() -> None:
    """Print one row for each task and draw."""
    options = parsed(__doc__, data=Path("data"), tasks=",".join(TASKS), rows=3000, new=4000, draws=3, coverage=0.8)
    sizes = {"num_rows": options.rows, "num_new": options.new, "coverage": options.coverage}
    found = []
    for task in options.tasks.split(","):
        for seed in range(options.draws):
            found.append({"task": task, "draw": seed, **measure(task, options.data, seed=seed, **sizes)})
            print(pd.DataFrame(found[-1:]).to_json(orient="records", lines=True), end="", flush=True)
    show(found, options)


if __name__ == "__main__":
    main()
