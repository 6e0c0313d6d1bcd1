"""Every benchmark in turn, each in a process of its own; `--corpus PATH` goes to those that read text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

READS_TEXT = {"corpus", "precision", "training_step"}
# These take long and data of their own: they are run by name.
BY_NAME = {"every_space", "ensembles", "pooling", "training_efficiency"}


def main() -> int:
    """Run all benchmarks and return how many failed."""
    failed = 0
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        if path.stem in BY_NAME:
            continue
        arguments = sys.argv[1:] if path.stem in READS_TEXT else []
        print(f"== {path.stem}", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", f"benchmarks.{path.stem}", *arguments], check=False).returncode != 0
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
