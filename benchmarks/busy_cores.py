"""Training with all cores' threads, alone and beside another program that uses the cores, by how long threads spin.

    python -m benchmarks.busy_cores [--spins 1000] [--repeats 3]

A thread that has ended its part of a product waits for the others: GNU OpenMP spins first and sleeps then.
`GOMP_SPINCOUNT` says how long; importing raysent sets it. Prints medians of the seconds of a short training on `docs`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from raysent.training import fit
from raysent.training.run import RunConfig

ENCODERS = {
    "bag": ({"type": "bag", "pooling": "mean", "embedding": {"dim": 300}}, 400),
    "gru": ({"type": "gru", "hidden_size": 300, "embedding": {"dim": 300}}, 60),
}
# What GNU OpenMP does where nobody says how long.
_DEFAULT = "300000"
_BUSY = """
import torch
layer, rows = torch.nn.Linear(300, 300), torch.randn(64, 300)
while True:
    layer(rows).pow(2).mean().backward()
"""


def train(name: str) -> None:
    """Train once in this process, and print the seconds."""
    encoder, num_steps = ENCODERS[name]
    config = RunConfig.model_validate(
        {
            "corpus": {"path": "docs"},
            "vocabulary": {"size": 20000},
            "encoder": encoder,
            "objective": {"type": "context_prediction"},
            "training": {"batch_size": 200, "max_steps": num_steps, "num_reports": 1},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        before = time.perf_counter()
        fit(config, Path(folder))
        print(time.perf_counter() - before)


def seconds(name: str, spins: str) -> float:
    """Return the seconds of one training in a process of its own."""
    environment = {**os.environ, "GOMP_SPINCOUNT": spins}
    command = [sys.executable, "-m", "benchmarks.busy_cores", "--train", name]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spins", default="1000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train", choices=sorted(ENCODERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return
    seconds("bag", _DEFAULT)  # prepares the corpus
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores\n")
    print(f"| encoder | cores | default | GOMP_SPINCOUNT={arguments.spins} | speed |\n|---|---|---|---|---|")
    for is_busy in (False, True):
        other = subprocess.Popen([sys.executable, "-c", _BUSY]) if is_busy else None
        try:
            for name in ENCODERS:
                both = (_DEFAULT, arguments.spins)
                runs = [[seconds(name, spins) for spins in both] for _ in range(arguments.repeats)]
                default, limited = (median(column) for column in zip(*runs, strict=True))
                cores = "beside another program" if is_busy else "free"
                print(f"| {name} | {cores} | {default:.1f} | {limited:.1f} | {default / limited:.2f} |", flush=True)
        finally:
            if other is not None:
                other.terminate()
                other.wait()


if __name__ == "__main__":
    main()
