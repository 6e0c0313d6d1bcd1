"""Runs every benchmark in its own process and prints one Markdown table of their ratios.

    python -m benchmarks [--corpus PATH]

Benchmarks that read text use the corpus; without one they use the embedded `docs`. Sizes are small, so that the table
takes minutes; the files in `benchmarks/results` name the commands of their figures. A benchmark that cannot run here
prints what it needs.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

READS_TEXT = {"corpus", "data_parallel", "decoding_step", "encoding", "peers", "precision", "training_step"}
# These take long and need other data; run them by name.
BY_NAME = {
    "claims",
    "codes",
    "coverage_fuzz",
    "decisions",
    "ensembles",
    "every_space",
    "exports",
    "forecast",
    "gpu",
    "head_memory",
    "mutants",
    "server",
    "pooling",
    "postprocessing",
    "training_efficiency",
    "validation_share",
    "weights",
}
# Sizes that take at most a minute.
SMALL = {
    "cost": ["--sweeps", "4"],
    "data_parallel": ["--sizes", "S", "--rounds", "2", "--steps", "2"],
    "decoding_step": ["--sizes", "S", "--steps", "2"],
    "encoding": ["--sentences", "1024", "--rounds", "3"],
    "growth": ["--steps", "1"],
    "peers": ["--kinds", "mean,cnn,doc2vec", "--steps", "2", "--rounds", "1"],
    "precision": ["--steps", "100", "--seeds", "1"],
    "probes": ["--rows", "1000", "--dim", "600"],
    "retrieval": ["--rows", "100000"],
    "sweep_overhead": ["--no-ray", "--history", "1000"],
    "sweep_throughput": ["--rounds", "1", "--trials", "2"],
    "training_step": ["--sizes", "S", "--steps", "3"],
}
# Peers that a benchmark requires.
PEERS = {"encoding": ("sentence_transformers",), "peers": ("sentence_transformers", "gensim")}
# Prefixes of the names of ratios.
RATIO = "ratio"


def ratios(value: object, place: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Yield the ratios of a benchmark's output, each with the names that lead to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ratios(inner, (*place, str(name)))
    elif isinstance(value, int | float) and place[-1].startswith(RATIO):
        yield ", ".join(place).replace("_", " "), value


def run(name: str, arguments: list[str]) -> list[tuple[str, float]] | None:
    """Run a benchmark and return its ratios, or None if it fails; its output says why."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return None if done.returncode else list(ratios(json.loads(done.stdout)))


def lack(name: str, *, has_corpus: bool) -> str | None:
    """Return what a benchmark needs and does not have here, or None if it can run."""
    missing = [module for module in PEERS.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        return f"needs {', '.join(missing)}: pip install -c constraints.txt '.[bench]'"
    if name == "corpus" and not has_corpus:
        return "needs text files: python -m benchmarks --corpus PATH"
    return None


def main() -> int:
    """Run all benchmarks, print the table and return the number of failures."""
    failed = 0
    print("| benchmark | what | ratio |\n|---|---|---|", flush=True)
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        name = path.stem
        if name in BY_NAME:
            continue
        lacking = lack(name, has_corpus=bool(sys.argv[1:]))
        if lacking is not None:
            print(f"| {name} | skipped: {lacking} | |", flush=True)
            continue
        found = run(name, [*SMALL.get(name, []), *(sys.argv[1:] if name in READS_TEXT else [])])
        failed += found is None
        if found == []:
            print(f"| {name} | figures that are not ratios: python -m benchmarks.{name} | |", flush=True)
        for what, ratio in [("failed", float("nan"))] if found is None else found:
            print(f"| {name} | {what} | {ratio:.2f} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
