"""Corpus preparation against a plain Python implementation, on the same files: sentences per second and their ratio.

    python -m benchmarks.corpus --corpus FOLDER [--files 40] [--rounds 3] [--processes 2] [--json]

The plain implementation does the same work (unpack, split into sentences, tokenize, count, look up ids, write) with one
compiled regular expression for each step and a `Counter`; its expressions are simpler than our rules. raysent runs
with its compiled kernel and as without a compiler. All run alternately in one process (A B C A B C …). The comparison
uses the median of their processor time, which is independent of other work on the machine. All write to a new folder
every time.

With several processes, the busiest one shows how fast the work is with one core for each: `ratio_of_processes` is the
time of one process divided by that of the busiest of several, start-up included. The ratio of wall-clock times is shown
beside it.
"""

from __future__ import annotations

import gzip
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.common import parsed, show
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.corpus.sources import find_sources
from raysent.data.vocabulary import VocabularyConfig

SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’]*\s+(?=[\"'“‘]*[A-Z])")
TOKEN = re.compile(
    r"\w+?(?=n't\b)|n't\b|'(?:s|m|d|ll|re|ve)\b|\w+(?:[-.'’]\w+)*|\.{2,}|--+|[^\s\w]"
)


def prepare_plainly(files: list[Path], folder: Path) -> int:
    """Prepare the files with the plain implementation; return the number of sentences."""
    counts: Counter[str] = Counter()
    sentences: list[list[str]] = []
    for file in files:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                split = [
                    TOKEN.findall(sentence)
                    for sentence in SENTENCE_END.split(line.strip())
                    if sentence
                ]
                for tokens in split:
                    counts.update(tokens)
                sentences += split
    index = {word: number for number, (word, _) in enumerate(counts.most_common(49_998), start=2)}
    ids = [index.get(token, 1) for tokens in sentences for token in tokens[:50]]
    np.array(ids, dtype=np.int32).tofile(folder / "ids.bin")
    np.cumsum([min(len(tokens), 50) for tokens in sentences]).tofile(folder / "offsets.bin")
    return len(sentences)


def prepare_ours(files: list[Path], folder: Path, num_processes: int = 1) -> int:
    """Prepare the files with raysent; return the number of sentences."""
    config = CorpusConfig(
        path=[str(file) for file in files], cache_dir=str(folder), num_processes=num_processes
    )
    return prepare(config, VocabularyConfig()).num_sentences


def prepare_without_compiler(files: list[Path], folder: Path) -> int:
    """Prepare the files with raysent as on a machine without a compiler; return the number of sentences."""
    with (
        mock.patch("raysent.data.sentences.has_compiled_text", return_value=False),
        mock.patch("raysent.data.vocabulary.tokens.has_compiled_text", return_value=False),
    ):
        return prepare_ours(files, folder)


def time_processes(files: list[Path], num_processes: int) -> dict[str, float]:
    """Return seconds with one and with several processes: of this one, of the others together, and wall-clock."""
    found = {}
    for number in (1, num_processes):
        before, started, clock = os.times(), time.process_time(), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            prepare_ours(files, Path(folder), number)
        after = os.times()
        found[f"own_s_{number}"] = time.process_time() - started
        found[f"others_s_{number}"] = (
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
        found[f"clock_s_{number}"] = time.perf_counter() - clock
    busiest = max(
        found[f"own_s_{num_processes}"], found[f"others_s_{num_processes}"] / num_processes
    )
    return found | {
        "ratio_of_processes": found["own_s_1"] / busiest,
        "ratio_of_processes_by_the_clock": found["clock_s_1"] / found[f"clock_s_{num_processes}"],
    }


def measure(files: list[Path], num_rounds: int) -> dict[str, object]:
    """Run the implementations alternately and return the medians."""
    ways = {
        "plain": prepare_plainly,
        "raysent": prepare_ours,
        "without compiler": prepare_without_compiler,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    num_sentences = {}
    for _ in range(num_rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                start = time.process_time()
                num_sentences[name] = way(files, Path(folder))
                seconds[name].append(time.process_time() - start)
    rates = {
        name: num_sentences[name] / statistics.median(times) for name, times in seconds.items()
    }
    return {
        "num_files": len(files),
        "num_rounds": num_rounds,
        "num_sentences": num_sentences,
        "seconds": seconds,
        "sentences_per_second": rates,
        "ratio": rates["raysent"] / rates["plain"],
        "ratio_of_compiled": rates["raysent"] / rates["without compiler"],
    }


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, corpus="docs", files=40, rounds=3, processes=2)
    found = [Path(source.path) for source in find_sources(options.corpus)]
    files = found[:: max(len(found) // options.files, 1)][: options.files]
    result = measure(files, options.rounds)
    result["processes"] = time_processes(files, options.processes)
    show(result, options)


if __name__ == "__main__":
    main()
