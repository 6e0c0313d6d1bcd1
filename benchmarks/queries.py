"""Queries on Flickr's captions and Quora's questions: what trains for them, and what smaller vectors lose.

    python -m benchmarks.queries --data DATA --folder OUT --what flickr            the set
    python -m benchmarks.queries --data DATA --folder OUT --what search --part 0   random settings of both objectives
    python -m benchmarks.queries --data DATA --folder OUT --what final --seed 1    the best of each, a fresh seed
    python -m benchmarks.queries --data DATA --folder OUT --what quora             a task for `raysent evaluate`
    python -m benchmarks.queries --folder OUT --what show

Queries are the captions of Flickr30k's validation pictures; relevant are the other captions of the same picture, among
all captions of both parts. Half of the pictures choose settings, the other half judges; intervals resample pictures.
Training pairs are of the other pictures, without those that share a caption with one of these. `search` trains
`contrast` and `paraphrase_margin` with as many random settings and equal processor time each, a bag of 300 numbers from
random vectors. What is there is kept.
"""

from __future__ import annotations

import csv
import gzip
import json
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks.common import parsed, show
from raysent.evaluation.fusion import fuse
from raysent.evaluation.retrieval import fit_weight, measure, rank
from raysent.evaluation.task import RetrievalData
from raysent.models import load
from raysent.models.schemes.bm25 import Bm25Model
from raysent.storage import read_json, write_json
from raysent.training import loop
from raysent.training.data import TrainingData, open_training_data
from raysent.training.run import RunConfig

SECONDS, TRIALS = 40.0, 16
OBJECTIVES = ("contrast", "paraphrase_margin")
Change = Callable[[np.ndarray], np.ndarray]
_OPENED: dict[str, TrainingData] = {}


def _opened(config: RunConfig, **options: Any) -> TrainingData:
    """Return the pairs of a run, which all runs of a process share."""
    key = str(config.pairs)
    if key not in _OPENED:
        _OPENED[key] = open_training_data(config, **options)
    return _OPENED[key]


loop.open_training_data = _opened


def flickr(data: Path, folder: Path) -> RetrievalData:
    """Return the queries; write the pairs to train on where there are none."""
    with gzip.open(data / "captions" / "flickr30k_captions.jsonl.gz", "rt", encoding="utf-8") as file:
        pictures = [json.loads(line) for line in file]
    passages, names, groups = [], [], defaultdict(list)
    for picture in pictures:
        for place, caption in enumerate(picture["captions"]):
            groups[picture["image"]].append(len(passages))
            passages.append(caption)
            names.append(f"{picture['image']}-{place}")
    held = sorted(one["image"] for one in pictures if one["split"] == "val")
    np.random.default_rng(0).shuffle(held)
    queries = [row for image in held for row in groups[image]]
    relevant = tuple({row: 1.0 for row in groups[image] if row != own} for image in held for own in groups[image])
    half = len(queries) // 2 // 5 * 5
    pairs = folder / "flickr.csv"
    if not pairs.exists():
        known = {passages[row].lower().strip() for row in queries}
        others = [one["captions"] for one in pictures if one["split"] != "val"]
        kept = [some for some in others if not any(one.lower().strip() in known for one in some)]
        _write_pairs(pairs, [pair for some in kept for pair in combinations(some, 2)])
        print(f"{len(passages):,} passages; {len(kept):,} of {len(others):,} pictures to train on", flush=True)
    return RetrievalData(
        "flickr", passages, tuple(names), [passages[row] for row in queries], tuple(names[row] for row in queries),
        relevant, np.empty(0, np.int64), np.arange(half), np.arange(half, len(queries)),
    )  # fmt: skip


def quora(data: Path, folder: Path) -> None:
    """Write questions as a task: the first of a group of duplicates asks for the others, among all questions."""
    with gzip.open(data / "pairs" / "quora_dev.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    texts = sorted({text for row in rows for text in row[:2]})
    place = {text: number for number, text in enumerate(texts)}
    same = [(place[one], place[other]) for one, other, label in rows if label == "1"]
    linked = coo_array((np.ones(len(same)), tuple(zip(*same, strict=True))), shape=(len(texts), len(texts)))
    _, group_of = connected_components(linked, directed=False)
    groups = [group for group in map(list, np.split(np.argsort(group_of, kind="stable"), _ends(group_of))) if group[1:]]
    np.random.default_rng(0).shuffle(groups)
    (folder / "quora" / "qrels").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"_id": str(number), "text": text}) + "\n" for number, text in enumerate(texts)]
    (folder / "quora" / "corpus.jsonl").write_text("".join(lines), "utf-8")
    (folder / "quora" / "queries.jsonl").write_text("".join(lines[group[0]] for group in groups), "utf-8")
    ends = [0, round(0.6 * len(groups)), round(0.75 * len(groups)), len(groups)]
    for name, first, last in zip(("train", "dev", "test"), ends, ends[1:], strict=False):
        found = [f"{group[0]}\t{other}\t1\n" for group in groups[first:last] for other in group[1:]]
        (folder / "quora" / "qrels" / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(found))
        print(f"{name}: {last - first:,} queries, {len(found):,} pairs; {len(texts):,} passages", flush=True)


def _ends(group_of: np.ndarray) -> np.ndarray:
    return np.cumsum(np.bincount(group_of))[:-1]


def _write_pairs(path: Path, pairs: list[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("first", "second"))
        writer.writerows(pairs)


def drawn(objective: str, number: int) -> dict[str, Any]:
    """Return random settings; those that both have are drawn from the same ranges."""
    generator = np.random.default_rng((OBJECTIVES.index(objective), number))

    def log(low: float, high: float) -> float:
        return float(f"{np.exp(generator.uniform(np.log(low), np.log(high))):.3g}")

    training = {"batch_size": int(generator.choice([128, 256, 512, 1024])), "learning_rate": log(1e-3, 2e-2)}
    dropout = float(generator.choice([0.0, 0.1, 0.3]))
    if objective == "contrast":
        loss = {"positives": "pairs", "temperature": log(0.02, 0.2), "symmetric": bool(generator.integers(2))}
    else:
        loss = {
            "margin": float(generator.choice([0.2, 0.4, 0.6, 0.8])), "negatives": str(generator.choice(["max", "mix"])),
            "random_part": float(generator.choice([0.0, 0.2, 0.5])), "lambda_w": log(1e-9, 1e-6),
        }  # fmt: skip
    return {"objective": {"type": objective, **loss}, "training": training, "dropout": dropout}


def trained(
    found: dict[str, Any], pairs: Path, output: Path, *, dim: int = 300, seed: int, seconds: float
) -> dict[str, Any]:
    """Train for some seconds of processor time: as many steps as a first short training says."""

    def config(steps: int) -> RunConfig:
        embedding = {"dim": dim, "dropout": found["dropout"]}
        return RunConfig.model_validate({
            "pairs": {"path": str(pairs), "first": "first", "second": "second", "validation_fraction": 0.005},
            "vocabulary": {"size": 20000, "lowercase": True},
            "encoder": {"type": "bag", "pooling": "mean", "embedding": embedding},
            "objective": found["objective"], "seed": seed,
            "training": {
                **found["training"], "max_steps": steps, "epochs": 1000.0, "schedule": "linear", "num_reports": 1,
            },
        })  # fmt: skip

    _opened(config(10))
    times = []
    for steps in (20, 30, 130):  # the first makes what later ones find
        started = time.process_time()
        loop.fit(config(steps), output / f"steps-{steps}")
        times.append(time.process_time() - started)
    steps = max(50, round(seconds * 100 / (times[2] - times[1])))
    started = time.process_time()
    loop.fit(config(steps), output / "model")
    return {"steps": steps, "seconds": time.process_time() - started, "found": found}


def values(encoder: Any, data: RetrievalData, part: np.ndarray) -> np.ndarray:
    """Return nDCG@10 of each query of a part, in percent."""
    return 100 * measure(rank(encoder, data, part), data)[:, 0]


def search(data: RetrievalData, folder: Path, part: int) -> None:
    """Train the settings of one of two processes, by turns of both objectives; those of dev choose."""
    for number in range(part, TRIALS, 2):
        for objective in OBJECTIVES:
            place = folder / "search" / f"{objective}-{number}"
            if (place / "row.json").exists():
                continue
            row = trained(drawn(objective, number), folder / "flickr.csv", place, seed=number, seconds=SECONDS)
            row["dev"] = float(values(load(place / "model"), data, data.dev).mean())
            write_json(place / "row.json", row)
            print(objective, number, json.dumps(row), flush=True)


def best(folder: Path, objective: str) -> dict[str, Any]:
    """Return the settings of an objective that are best on dev."""
    rows = [read_json(path) for path in (folder / "search").glob(f"{objective}-*/row.json")]
    return max(rows, key=lambda row: row["dev"])["found"]


def final(data: RetrievalData, folder: Path, seed: int, seconds: float) -> None:
    """Train the best settings of each objective again, and shorter vectors; rank the queries of test."""
    arms: list[tuple[str, int, dict[str, Any]]] = [(objective, 300, {}) for objective in OBJECTIVES]
    arms += [("contrast", dim, {"prefixes": [dim // 4]}) for dim in (300, 1024)]
    for objective, dim, more in arms:
        place = folder / "final" / f"{objective}-{dim}-{len(more)}-{seed}"
        if not (place / "row.json").exists():
            found = best(folder, objective)
            found["objective"] |= more
            row = trained(found, folder / "flickr.csv", place, dim=dim, seed=seed, seconds=seconds)
            write_json(place / "row.json", row)
        if not (place / "values.npz").exists():
            encoder = load(place / "model")
            np.savez(place / "values.npz", **measured(encoder, data, dim // 4 if more else None))
            print(place.name, flush=True)


def measured(encoder: Any, data: RetrievalData, prefix: int | None) -> dict[str, np.ndarray]:
    """Return nDCG@10 of each test query: by the vectors, by words, by both, by shorter vectors."""
    weight, _ = fit_weight(*(rank(one, data, data.dev) for one in (encoder, Bm25Model())), data)
    vectors, words = (rank(one, data, data.test) for one in (encoder, Bm25Model()))
    rankings = {"vectors": vectors, "words": words, "fused": fuse(vectors, words, weight=weight)}
    result = {name: 100 * measure(one, data)[:, 0] for name, one in rankings.items()}
    if prefix is not None:
        result["prefix"] = values(_Changed(encoder, lambda vectors: vectors[:, :prefix]), data, data.test)
    result["signs"] = values(_Changed(encoder, lambda vectors: vectors, _signs), data, data.test)
    return {**result, "weight": np.array(weight)}


class _Changed:
    """An encoder whose vectors are changed, those of passages perhaps otherwise."""

    similarity_measure = "cosine"

    def __init__(self, encoder: Any, of_queries: Change, of_passages: Change | None = None) -> None:
        self._encoder, self._of_queries, self._of_passages = encoder, of_queries, of_passages or of_queries

    def encode_query(self, texts: list[str]) -> np.ndarray:
        """Return the changed vectors."""
        return self._of_queries(self._encoder.encode_query(texts))

    def encode_document(self, texts: list[str]) -> np.ndarray:
        """Return the changed vectors."""
        return self._of_passages(self._encoder.encode_document(texts))


def _signs(vectors: np.ndarray) -> np.ndarray:
    return np.where(vectors > 0, 1, -1).astype(np.float32)


def shown(folder: Path) -> dict[str, Any]:
    """Return the search on dev, and on test means over seeds with intervals that resample pictures."""
    searched = {
        one: sorted(round(read_json(path)["dev"], 2) for path in (folder / "search").glob(f"{one}-*/row.json"))
        for one in OBJECTIVES
    }
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for path in sorted((folder / "final").glob("*/values.npz")):
        arm, _, seed = path.parent.name.rpartition("-")
        with np.load(path) as arrays:
            for name in set(arrays.files) - {"weight"}:
                found[f"{arm} {name}"][seed] = arrays[name].reshape(-1, 5).mean(axis=1)
    means = {name: np.mean(list(of_seeds.values()), axis=0) for name, of_seeds in found.items()}
    plain, margin = "contrast-300-0", "paraphrase_margin-300-0"
    pairs = [
        (f"{plain} vectors", f"{margin} vectors"), (f"{plain} fused", f"{plain} vectors"),
        (f"{plain} fused", f"{plain} words"), (f"{plain} signs", f"{plain} vectors"),
        ("contrast-1024-1 signs", "contrast-1024-1 vectors"), ("contrast-300-1 prefix", "contrast-300-1 vectors"),
        ("contrast-1024-1 prefix", "contrast-1024-1 vectors"), ("contrast-1024-1 prefix", f"{plain} vectors"),
    ]  # fmt: skip
    return {
        "search": searched,
        "seeds": {name: len(of_seeds) for name, of_seeds in found.items()},
        "test": {name: _interval(values) for name, values in means.items()},
        "differences": {
            f"{one} - {other}": _interval(means[one] - means[other]) for one, other in pairs if one in means
        },
    }


def _interval(values: np.ndarray) -> list[float]:
    rows = np.random.default_rng(0).integers(0, len(values), (2000, len(values)))
    return [round(float(one), 2) for one in (values.mean(), *np.percentile(values[rows].mean(axis=1), [2.5, 97.5]))]


def main() -> None:
    """Do what `--what` says."""
    options = parsed(__doc__, data="", folder=str, what="show", part=0, seed=1, seconds=120.0)
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if options.what == "show":
        show(shown(folder), options)
        return
    if options.what == "quora":
        quora(Path(options.data), folder)
        return
    data = flickr(Path(options.data), folder)
    if options.what == "search":
        search(data, folder, options.part)
    if options.what == "final":
        final(data, folder, options.seed, options.seconds)


if __name__ == "__main__":
    main()
