"""Corpus preparation against the plain-Python way, on the same files: sentences per second, and their ratio.

    python benchmarks/corpus.py --corpus FOLDER [--files 40] [--rounds 3] [--json]

The plain way does the same work (unpack, split into sentences, tokenise, count, look ids up, write them) with one
compiled regular expression for each and a `Counter`; its expressions are simpler than the rules that ours follows. Both
run in one process, in turn (A B A B …), and are compared by the median of their processor time, which does not see
what else the machine is doing. Both write to a fresh folder every time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from raysent.corpus import CorpusConfig, prepare
from raysent.corpus.sources import find_sources
from raysent.vocabulary import VocabularyConfig

SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’]*\s+(?=[\"'“‘]*[A-Z])")
TOKEN = re.compile(r"\w+?(?=n't\b)|n't\b|'(?:s|m|d|ll|re|ve)\b|\w+(?:[-.'’]\w+)*|\.{2,}|--+|[^\s\w]")


def prepare_plainly(files: list[Path], folder: Path) -> int:
    """Prepare the files the plain way; return the number of sentences."""
    counts: Counter[str] = Counter()
    sentences: list[list[str]] = []
    for file in files:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                split = [TOKEN.findall(sentence) for sentence in SENTENCE_END.split(line.strip()) if sentence]
                for tokens in split:
                    counts.update(tokens)
                sentences += split
    index = {word: number for number, (word, _) in enumerate(counts.most_common(49_998), start=2)}
    ids = [index.get(token, 1) for tokens in sentences for token in tokens[:50]]
    np.array(ids, dtype=np.int32).tofile(folder / "ids.bin")
    np.cumsum([min(len(tokens), 50) for tokens in sentences]).tofile(folder / "offsets.bin")
    return len(sentences)


def prepare_ours(files: list[Path], folder: Path) -> int:
    """Prepare the files with raysent; return the number of sentences."""
    config = CorpusConfig(path=[str(file) for file in files], cache_dir=str(folder))
    return prepare(config, VocabularyConfig()).num_sentences


def measure(files: list[Path], num_rounds: int) -> dict[str, object]:
    """Run both ways in turn and return the medians."""
    seconds: dict[str, list[float]] = {"plain": [], "raysent": []}
    num_sentences = {}
    for _ in range(num_rounds):
        for name, way in (("plain", prepare_plainly), ("raysent", prepare_ours)):
            with tempfile.TemporaryDirectory() as folder:
                start = time.process_time()
                num_sentences[name] = way(files, Path(folder))
                seconds[name].append(time.process_time() - start)
    rates = {name: num_sentences[name] / statistics.median(times) for name, times in seconds.items()}
    return {
        "num_files": len(files),
        "num_rounds": num_rounds,
        "num_sentences": num_sentences,
        "seconds": seconds,
        "sentences_per_second": rates,
        "ratio": rates["raysent"] / rates["plain"],
    }


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="a folder of text, one paragraph a line")
    parser.add_argument("--files", type=int, default=40, help="files used, evenly spaced")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [Path(source.path) for source in find_sources(options.corpus)]
    result = measure(found[:: max(len(found) // options.files, 1)][: options.files], options.rounds)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, rate in result["sentences_per_second"].items():
        print(f"{name:8s} {rate:10,.0f} sentences per second")
    print(f"ratio    {result['ratio']:10.2f}")


if __name__ == "__main__":
    main()
