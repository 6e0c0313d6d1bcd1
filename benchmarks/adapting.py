"""Whether the verdict of `raysent adapt` without tasks holds on tasks of documents that nothing trained on.

    python -m benchmarks.adapting --encoder FOLDER --data FOLDER --folder OUT [--time 4m] [--splits 10] [--texts brown]
    python -m benchmarks.adapting --folder OUT --show

Texts are ABC's news, Brown and the presidents' addresses. In each split, three of ten documents are laid aside; the
encoder (`benchmarks.pretrain` makes one) is adapted to the others, judged without tasks. Sentences of those laid aside
are a task, whose rows are divided by documents: rural or science news, Brown's genres, the earlier or later half of the
period. What the adaptation chose is compared with the given model there, by a paired interval of test rows.

In the first three splits all trainings are scored on that task too: the best by validation, their ensembles, and the
soup that its validation rows choose. `--show` prints both. What is there is kept.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sentencex import segment

import raysent
from benchmarks.common import parsed, show
from raysent.ensembles.soup import save_soup
from raysent.ensembles.task_ensemble import fitted_folds, score_folds, score_model
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, expand
from raysent.evaluation.tasks import resolve_tasks
from raysent.storage import read_json, write_json

Documents = list[tuple[str, list[str]]]
# News has no marks between articles.
_LINES_A_DOCUMENT, _MIDDLE_YEAR = 60, 1961
_LAID_ASIDE, _MOST_ROWS, _WITH_ENSEMBLES = 0.3, {"train": 2000, "validation": 1000, "test": 2000}, 3
METHODS = ("uniform", "pool", "greedy")


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().split("\n")


def _sentences(paragraphs: Iterator[str]) -> list[str]:
    return [one.strip() for text in paragraphs for one in segment("en", text) if one.strip()]


def documents(text: str, data: Path) -> Documents:
    """Return each document's label and sentences."""
    folder = data / "corpus" / "nonfiction"
    if text == "abc":
        found: Documents = []
        for label in ("rural", "science"):
            lines = [one for one in _lines(folder / f"abc-{label}.txt.gz") if one.strip()]
            places = range(0, len(lines), _LINES_A_DOCUMENT)
            found += [(label, _sentences(iter(lines[one : one + _LINES_A_DOCUMENT]))) for one in places]
        return found
    rows = [json.loads(line) for line in _lines(folder / f"{text}.jsonl.gz") if line]
    if text == "brown":
        return [(row["category"], [one for part in row["paragraphs"] for one in part]) for row in rows]
    halves = ["later" if int(row["doc"][:4]) > _MIDDLE_YEAR else "earlier" for row in rows]
    return [(half, _sentences(iter(row["paragraphs"]))) for half, row in zip(halves, rows, strict=True)]


def divide(found: Documents, split: int, place: Path) -> tuple[Path, Path]:
    """Write the text to adapt to and the task of the documents that are laid aside; each label is in each part."""
    generator, parts = np.random.default_rng(split), dict[str, Documents]()
    for label in sorted({label for label, _ in found}):
        of_label = [one for one in found if one[0] == label]
        generator.shuffle(of_label)
        aside = max(3, round(_LAID_ASIDE * len(of_label)))
        ends = [max(1, round(share * aside)) for share in (0.4, 0.2)]
        for name, first, last in (
            ("train", 0, ends[0]), ("validation", ends[0], sum(ends)), ("test", sum(ends), aside),
            ("text", aside, len(of_label)),
        ):  # fmt: skip
            parts.setdefault(name, []).extend(of_label[first:last])
    text, table = place / "text.txt", place / "task.csv"
    generator.shuffle(parts["text"])
    text.write_text("\n\n".join("\n".join(sentences) for _, sentences in parts["text"]), "utf-8")
    frames = []
    for name, most in _MOST_ROWS.items():
        rows = [(one, label, name) for label, sentences in parts[name] for one in sentences]
        frame = pd.DataFrame(rows, columns=["text", "label", "split"]).drop_duplicates("text")
        frames.append(frame.sample(min(most, len(frame)), random_state=split))
    pd.concat(frames).to_csv(table, index=False)
    return text, table


def measure(encoder: Path, found: Documents, split: int, place: Path, time: str) -> dict[str, Any]:
    """Adapt to one split, and compare on the task of its documents."""
    place.mkdir(parents=True, exist_ok=True)
    text, table = divide(found, split, place)
    result = raysent.adapt(encoder, corpus=text, time=time, output=place / "adapted", seed=split, progress=False)
    names = [name for name in result.validation if name != "given" and not name.startswith("soup")]
    trials = [str(place / "adapted" / "trials" / name) for name in names]
    (task,) = resolve_tasks([str(table)])
    evaluator = Evaluator(place / "evaluation", divides=True)
    (chosen,) = [
        one for one in (*trials, *map(str, (place / "adapted" / "soup").glob("*-*")))
        if Path(one).name == result.objective or (result.objective.startswith("soup") and one not in trials)
    ]  # fmt: skip
    wanted = list(dict.fromkeys([f"start:{trials[0]}", chosen, *(trials if split < _WITH_ENSEMBLES else ())]))
    known = {one: of_task[0] for one, of_task in evaluator.records(expand(wanted), [task]).items()}
    tested = {one.path: score_model(record).tested for one, record in known.items()}
    difference = tested[chosen].minus(tested[wanted[0]])
    row: dict[str, Any] = {
        "objective": result.objective, "helps": result.helps, "validation": result.validation,
        "documents": [result.difference.value, *result.difference.interval],
        "task": [difference.value, *difference.interval], "given": tested[wanted[0]].value,
    }  # fmt: skip
    if split < _WITH_ENSEMBLES:
        of_trials = {one: record for one, record in known.items() if one.path in trials}
        row["ensembles"] = ensembles(of_trials, evaluator, place, task)
    return row


def ensembles(records: dict[Member, Any], evaluator: Evaluator, place: Path, task: Any) -> dict[str, float]:
    """Return test scores of the best training by validation, of their combinations, and of a soup."""
    ordered = sorted(records.values(), key=lambda one: -one.validation)
    scores = {"best": score_model(ordered[0]).tested.value}
    for method in METHODS:
        scores[method] = score_folds(ordered, fitted_folds(ordered, method=method)).tested.value
    soup = save_soup({one: [record] for one, record in records.items()}, evaluator, run=place, tasks=[task])
    return {**scores, "soup": scores["best"] if soup is None else score_model(soup[1][0]).tested.value}


def summary(folder: Path) -> dict[str, Any]:
    """Return, for each text, what its splits say."""
    found: dict[str, Any] = {}
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not (rows := [read_json(path) for path in sorted(place.glob("*.json"))]):
            continue
        verdicts = [(row["documents"][1] > 0, row["task"][1] > 0) for row in rows]
        means = {name: np.mean([row[name][0] for row in rows]) for name in ("documents", "task")}
        scores = [row["ensembles"] for row in rows if "ensembles" in row]
        gains = {name: np.mean([one[name] - one["best"] for one in scores]) for name in (*METHODS, "soup") if scores}
        found[place.name] = {
            "splits": len(rows), "helps": sum(one for one, _ in verdicts),
            "on the task": sum(one for _, one in verdicts), "agree": sum(one == other for one, other in verdicts),
            "of one sign": sum(row["documents"][0] * row["task"][0] > 0 for row in rows),
            **{f"difference by {name}": round(float(value), 2) for name, value in means.items()},
            "objectives": pd.Series([row["objective"] for row in rows]).value_counts().to_dict(),
            "gain over the best training": {name: round(float(value), 2) for name, value in gains.items()},
        }  # fmt: skip
    return found


def main() -> None:
    """Make the splits that are missing, and print the summary of all."""
    options = parsed(__doc__, encoder=Path("runs/pretrained/encoder"), data=Path("data"), folder=Path, time="4m",
                     splits=10, first=0, texts="abc,brown,presidents", show=False)  # fmt: skip
    for text in () if options.show else options.texts.split(","):
        found = documents(text, options.data)
        for split in range(options.first, options.splits):
            path = options.folder / text / f"{split}.json"
            if not path.exists():
                row = measure(options.encoder, found, split, options.folder / text / f"{split}", options.time)
                write_json(path, row)
                print(text, split, row, flush=True)
    show(summary(options.folder), options)


if __name__ == "__main__":
    main()
