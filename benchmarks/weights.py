"""SHA-256 of the weights of one short run of every family, to compare two versions of the code bit by bit.

    python -m benchmarks.weights --data DIR [--checkout FOLDER] [--only NAME,NAME]

Run it once per checkout on the same machine and compare the tables: a change that only moves code leaves every digest
as it was. Weights depend on the processor and on the versions of torch and NumPy.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

SPACES = Path(__file__).parents[1] / "search_spaces"
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
STEPS = ["training.max_steps=6", "training.num_reports=2", "training.batch_size=16"]
SKIPPED = ("everything", "quickstart")


def main() -> int:
    """Train one short run per family and print the digests; return the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora, pairs, vectors and tasks")
    parser.add_argument("--checkout", type=Path, default=SPACES.parent, help="the code that trains")
    parser.add_argument("--only", help="names of spaces, separated by commas")
    options = parser.parse_args()
    names = [path.stem for path in sorted(SPACES.glob("*.yaml")) if path.stem not in SKIPPED]
    failed = 0
    with TemporaryDirectory() as scratch:
        laid_out(options.data.resolve(), Path(scratch) / "data")
        print("| family | SHA-256 of model.safetensors |\n|---|---|", flush=True)
        for name in names if options.only is None else options.only.split(","):
            found = digest(name, Path(scratch), checkout=options.checkout.resolve())
            failed += " " in found
            print(f"| {name} | {found} |", flush=True)
    return failed


def digest(name: str, scratch: Path, *, checkout: Path) -> str:
    """Train the base run of a space; return the digest of its weights, or the last line of the error."""
    run = scratch / name
    command = [sys.executable, "-m", "raysent", "train", str(checkout / f"search_spaces/{name}.yaml")]
    command += ["--run", str(run), "--json"]
    for option in (*(one for one in OPTIONS.get(name, ()) if not one.startswith("search.")), *STEPS):
        command += ["--set", option]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    ended = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
    weights = next(run.rglob("model.safetensors"), None)
    if ended.returncode or weights is None:
        return f"failed: {ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else ended.returncode}"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


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
