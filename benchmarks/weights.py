"""SHA-256 of the weights of one short run of every family, to compare two versions of the code bit by bit.

    python -m benchmarks.weights --data DIR [--checkout FOLDER] [--only NAME,NAME]

Run it once per checkout on the same machine and compare the tables: a change that only moves code leaves every digest
as it was. Weights depend on the processor and on the versions of torch and NumPy.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.every_space import OPTIONS, SPACES, laid_out

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


if __name__ == "__main__":
    sys.exit(main())
