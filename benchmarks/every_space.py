"""Runs every shipped search space with a few small trials on real data, and prints how each ended.

    python -m benchmarks.every_space --data DIR [--only NAME,NAME] [--output FOLDER]

The files that the spaces name are made from DIR (see `laid_out`), so that the spaces run unchanged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from raysent.sweeps.space import read_space

SPACES = Path(__file__).parents[1] / "search_spaces"
TRIALS = {"everything": 16}
SMALL = ["training.max_steps=12", "training.num_reports=2", "limits.scheduler={type: none}", "evaluation.members=2"]
# What else makes a space small: fewer units, fewer words.
OPTIONS: dict[str, list[str]] = {
    "quick_thoughts": ["search.encoder.hidden_size={choice: [64, 96]}", "vocabulary.size=5000"],
    "multichannel": ["vocabulary.size=5000"],
    "skip_thoughts": ["vocabulary.size=2000", "training.batch_size=16"],
    "cse": ["training.batch_size=64"],
    "multiview_generative": ["encoder.hidden_size=128", "second_encoder.hidden_size=128", "vocabulary.size=5000"],
    "multiview_discriminative": ["encoder.hidden_size=128", "second_encoder.hidden_size=128", "vocabulary.size=5000"],
    "infersent": ["encoder.hidden_size=128"],
    "everything": ["vocabulary.size=5000", "training.num_reports=1"],
}


def main() -> int:
    """Sweep every space and print a table; return the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora, pairs, vectors and tasks")
    parser.add_argument("--only", help="names of spaces, separated by commas")
    parser.add_argument("--output", type=Path, help="folder for the runs; by default a new folder")
    parser.add_argument("--corpus", help="text for spaces that read a corpus; by default the embedded one")
    options = parser.parse_args()
    place = options.output or Path(mkdtemp(prefix="every-space-"))
    laid_out(options.data.resolve(), place / "data")
    names = [path.stem for path in sorted(SPACES.glob("*.yaml"))]
    failed = 0
    print("| space | trials | finished | best | seconds | exit code |\n|---|---|---|---|---|---|", flush=True)
    for name in names if options.only is None else options.only.split(","):
        row = sweep(name, place, corpus=options.corpus)
        failed += row["code"] != 0
        print("| " + " | ".join(str(row[key]) for key in ("name", "trials", "finished", "best", "s", "code")) + " |")
    return failed


def sweep(name: str, place: Path, *, corpus: str | None) -> dict[str, Any]:
    """Sweep one space in its own process and return how it ended."""
    trials = TRIALS.get(name, 4)
    run = place / name
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "raysent", "sweep", str(SPACES / f"{name}.yaml"), "--run", str(run)]
    command += ["--trials", str(trials), "--yes", "--json"]
    for option in (*SMALL, *OPTIONS.get(name, ())):
        command += ["--set", option]
    command += ["--corpus", corpus] if corpus is not None else []
    started = time.perf_counter()
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    (place / f"{name}.log").write_text(ended.stdout + ended.stderr)
    said = json.loads(ended.stdout) if ended.returncode == 0 else {}
    trials_said = {trial["name"]: trial for trial in said.get("trials", [])}
    metric = read_space(SPACES / f"{name}.yaml").metric
    best = trials_said.get(said.get("best", ""))
    return {
        "name": name,
        "trials": trials,
        "finished": sum(trial["status"] == "finished" for trial in trials_said.values()),
        "best": ended.stderr.strip()[-120:] if best is None else f"{metric} {best['metrics'][metric]:.4g}",
        "s": round(time.perf_counter() - started),
        "code": ended.returncode,
    }


def laid_out(data: Path, place: Path) -> None:
    """Write small real data under the names that the shipped spaces use."""
    (place / "nli").mkdir(parents=True, exist_ok=True)
    _write_ppdb(place / "ppdb-2.0-xl-phrasal.gz", _lines(data / "pairs/ppdb_lexical.tsv.gz"))
    for part, source in (("train", "snli_dev"), ("dev", "snli_test")):
        _write_nli(place / f"nli/snli_1.0_{part}.jsonl", _lines(data / f"nli/{source}.tsv.gz"))
    shutil.copytree(data / "senteval/STS/STS12-en-test", place / "STS16-en-test", dirs_exist_ok=True)
    shutil.copytree(data / "senteval/SICK", place / "SICK", dirs_exist_ok=True)
    vectors = "\n".join(_lines(data / "vectors/word2vec_googlenews_300d_8k.txt.gz"))
    for name in ("paragram.txt", "glove.840B.300d.txt"):
        (place / name).write_text(vectors + "\n", encoding="utf-8")


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().split("\n")[:-1]


def _write_ppdb(path: Path, lines: Iterable[str]) -> None:
    """Write pairs in the format of PPDB: fields separated by `|||`."""
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        for line in list(lines)[:20_000]:
            first, second = line.split("\t")[:2]
            stream.write(f"[X] ||| {first} ||| {second} ||| score=1 ||| 0-0 ||| Equivalence\n")


def _write_nli(path: Path, lines: Iterable[str]) -> None:
    """Write labelled pairs in the format of SNLI: one JSON object a line."""
    with path.open("w", encoding="utf-8") as stream:
        for line in lines:
            first, second, label = line.split("\t")[:3]
            stream.write(json.dumps({"sentence1": first, "sentence2": second, "gold_label": label}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
