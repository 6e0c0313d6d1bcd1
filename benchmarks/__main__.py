"""Every benchmark in turn, each in a process of its own, and one Markdown table of their ratios.

    python -m benchmarks [--corpus PATH]

The corpus goes to those that read text; without one they read the embedded `docs`, and `corpus` is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

READS_TEXT = {"corpus", "encoding", "peers", "precision", "training_step"}
# These take long and data of their own: they are run by name.
BY_NAME = {"every_space", "ensembles", "pooling", "training_efficiency"}
# What a ratio's name begins with.
RATIO = "ratio"


def ratios(value: object, place: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Yield the ratios in what a benchmark printed, each with the names that lead to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ratios(inner, (*place, str(name)))
    elif isinstance(value, int | float) and place[-1].startswith(RATIO):
        yield ", ".join(place).replace("_", " "), value


def run(name: str, arguments: list[str]) -> list[tuple[str, float]] | None:
    """Run a benchmark and return its ratios; None if it fails, which it says itself."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return None if done.returncode else list(ratios(json.loads(done.stdout)))


def main() -> int:
    """Run all benchmarks, print the table and return how many failed."""
    failed = 0
    print("| benchmark | what | ratio |\n|---|---|---|", flush=True)
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        name = path.stem
        if name in BY_NAME or (name == "corpus" and not sys.argv[1:]):
            continue
        found = run(name, sys.argv[1:] if name in READS_TEXT else [])
        failed += found is None
        for what, ratio in found or [("failed", float("nan"))]:
            print(f"| {name} | {what} | {ratio:.2f} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
