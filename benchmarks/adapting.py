"""Whether the verdict of `raysent adapt` without tasks holds on tasks of documents that nothing trained on.

    python -m benchmarks.adapting --encoders FOLDER,FOLDER,FOLDER --data FOLDER --folder OUT [--time 60s]
    python -m benchmarks.adapting --folder OUT --show

Texts are ABC's news, Brown and the presidents' addresses. In each split, three of ten documents are laid aside; a model
(of the three, in turn) is adapted to the others, judged without tasks. Sentences of those laid aside are a task, whose
rows are divided by documents: rural or science news, Brown's genres, the earlier or later half of the period. What the
adaptation chose, and every training, is compared with the given model there, by a paired interval of test rows. Beside
the judge that the product has, `information`, stands what accuracy of the same probes would have chosen and said, and
intervals over documents in place of rows. What is there is kept.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t
from sentencex import segment

import raysent
from benchmarks.common import parsed, show
from raysent.ensembles.task_ensemble import score_model
from raysent.evaluation.divided import divided_tasks
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.records import Record
from raysent.evaluation.targets import Targets
from raysent.evaluation.tasks import resolve_tasks
from raysent.storage import read_json, write_json

Documents = list[tuple[str, list[str]]]
# News has no marks between articles.
_LINES_A_DOCUMENT, _MIDDLE_YEAR = 60, 1961
_LEAST, _LAID_ASIDE, _MOST_ROWS = 0.05, 0.3, {"train": 2000, "validation": 1000, "test": 2000}


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


def _percentiles(draws: np.ndarray) -> list[float]:
    return [float(one) for one in np.percentile(draws, (2.5, 97.5))]


def _of_documents(records: dict[str, Record]) -> dict[str, dict[str, Any]]:
    """Return, for each model, differences to the first by documents, of test rows, and validation scores."""
    found, generator = dict[str, dict[str, Any]](), np.random.default_rng(0)
    first = next(iter(records.values()))
    for name, record in records.items():
        (fold,), (base,) = record.folds, first.folds
        values = {"validation": record.validation}
        for metric in ("information", "accuracy"):
            labels = np.asarray(record.labels)
            own, other = (
                100 * Targets(labels[one.test_rows], metric=metric).values(np.asarray(one.test_log_probabilities))
                for one in (fold, base)
            )
            rows = own - other
            by = [rows[labels[fold.test_rows] == one].mean() for one in range(labels.max() + 1)]
            of_rows = [rows[generator.integers(0, len(rows), len(rows))].mean() for _ in range(1000)]
            of_documents = np.array(by)[generator.integers(0, len(by), (1000, len(by)))].mean(axis=1)
            values[metric] = [float(rows.mean()), *_percentiles(np.array(of_rows))]
            values[f"{metric}, documents"] = [float(np.mean(by)), *_percentiles(of_documents)]
        chosen = Targets(np.asarray(record.labels)[fold.validation_rows])
        values["validation accuracy"] = 100 * chosen.score(np.asarray(fold.validation_log_probabilities))
        found[name] = values
    return found


def measure(encoder: Path, found: Documents, split: int, place: Path, time: str) -> dict[str, Any]:
    """Adapt to one split, and compare on the task of its documents."""
    place.mkdir(parents=True, exist_ok=True)
    text, table = divide(found, split, place)
    result = raysent.adapt(encoder, corpus=text, time=time, output=place / "adapted", seed=split, progress=False)
    names = [name for name in result.validation if name != "given" and not name.startswith("soup")]
    trials = {name: str(place / "adapted" / "trials" / name) for name in names}
    if result.objective.startswith("soup"):
        trials[result.objective] = next(str(one) for one in (place / "adapted" / "soup").glob(result.objective))
    paths = {"given": str(encoder), **trials}
    (task,) = resolve_tasks([str(table)])
    own = Evaluator(place / "evaluation", divides=True).records(expand(list(paths.values())), [task])
    own = {name: score_model(own[member][0]).tested for name, member in zip(paths, own, strict=True)}
    (judge,) = divided_tasks(place / "adapted").values()
    judged = Evaluator(place / "adapted" / "evaluation", divides=True).records(expand(list(paths.values())), [judge])
    by = _of_documents({name: judged[member][0] for name, member in zip(paths, judged, strict=True)})
    differences = {name: one.minus(own["given"]) for name, one in own.items()}
    return {
        "objective": result.objective, "helps": result.helps, "validation": result.validation,
        "left out": result.left_out, "said": [result.difference.value, *result.difference.interval],
        "given": own["given"].value,
        "models": {name: {**by[name], "task": [one.value, *one.interval]} for name, one in differences.items()},
    }  # fmt: skip


def summary(folder: Path) -> dict[str, Any]:
    """Return, for each text and judge, what its splits say; a yes is an interval from a twentieth of a point on."""
    found: dict[str, Any] = {}
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        rows = [read_json(path)["models"] for path in sorted(place.glob("*.json"))]
        for judge in ("information", "information, documents", "accuracy") if rows else ():
            key = "validation accuracy" if judge == "accuracy" else "validation"
            trained = [[one for name, one in row.items() if name != "given"] for row in rows]
            taken = [max(of_split, key=lambda one: one[key]) for of_split in trained]
            agree = [
                [(one[judge][1] >= _LEAST) == (one["task"][1] > 0) for one in models]
                for models in (taken, [one for of_split in trained for one in of_split])
            ]
            gains = np.array([[one["task"][0], one[judge][0]] for one in taken])
            half = t.ppf(0.975, len(rows) - 1) * gains[:, 0].std(ddof=1) / len(rows) ** 0.5
            together = [
                np.corrcoef([(one[judge][0], one["task"][0]) for one in row.values()], rowvar=False) for row in rows
            ]
            found[f"{place.name}, {judge}"] = {
                "splits": len(rows),
                "helps": sum(one[judge][1] >= _LEAST for one in taken),
                "helps on the task": sum(one["task"][1] > 0 for one in taken),
                "agree": sum(agree[0]),
                "all trainings that agree": f"{sum(agree[1])} of {len(agree[1])}",
                "gain on the task": [round(float(one), 2) for one in gains[:, 0].mean() + half * np.array([0, -1, 1])],
                "by documents": round(float(gains[:, 1].mean()), 2),
                "correlation": round(float(np.mean([one[0, 1] for one in together])), 2),
            }
    return found


def main() -> None:
    """Make the splits that are missing, and print the summary of all."""
    options = parsed(__doc__, encoders="", data=Path("data"), folder=Path, time="60s",
                     splits=10, first=0, texts="abc,brown,presidents", show=False)  # fmt: skip
    encoders = [Path(one) for one in options.encoders.split(",")]
    for split in () if options.show else range(options.first, options.splits):
        for text in options.texts.split(","):
            path = options.folder / text / f"{split}.json"
            if not path.exists():
                found = documents(text, options.data)
                encoder = encoders[split % len(encoders)]
                row = measure(encoder, found, split, options.folder / text / f"{split}", options.time)
                write_json(path, row)
                print(text, split, row["objective"], row["said"], row["models"][row["objective"]]["task"], flush=True)
    show(summary(options.folder), options)


if __name__ == "__main__":
    main()
