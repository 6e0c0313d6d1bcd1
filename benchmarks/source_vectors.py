"""Training a code of a fixed encoder: its sentences encoded at every step, once, and found in the cache.

    python -m benchmarks.source_vectors MODEL PAIRS... [--epochs 3]

MODEL is a trained model's folder; PAIRS are files of related sentences, as `pairs.path` takes them. Three runs of the
same settings: with `training.encode_once=false`, with an empty cache, and with the cache that the second run left, as
the other trials of a sweep find it.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

from raysent.training import fit
from raysent.training.run import RunConfig

RUNS = (("at every step", False), ("once", True), ("found in the cache", True))


def main() -> None:
    """Train three times, and print seconds, ratios and scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("pairs", metavar="PAIRS", nargs="+")
    parser.add_argument("--epochs", type=float, default=3.0)
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores\n")
    print(
        "| sentences are encoded | seconds | processor seconds | speed | related_auc | R2 |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAYSENT_CACHE"] = str(Path(folder) / "cache")
        slowest = 0.0
        for place, (name, is_once) in enumerate(RUNS):
            config = RunConfig.model_validate(
                {
                    "initial": arguments.model,
                    "objective": {"type": "reconstruction", "text": "pairs", "lambda_sp": 0.1},
                    "code": {"type": "autoencoder"},
                    "pairs": {"path": arguments.pairs},
                    "training": {
                        "batch_size": 64,
                        "learning_rate": 3e-3,
                        "schedule": "linear",
                        "epochs": arguments.epochs,
                        "encode_once": is_once,
                    },
                }
            )
            before, processor_before = time.perf_counter(), time.process_time()
            metrics = fit(config, Path(folder) / str(place)).metrics
            seconds, processor = time.perf_counter() - before, time.process_time() - processor_before
            slowest = slowest or seconds
            print(
                f"| {name} | {seconds:.1f} | {processor:.1f} | {slowest / seconds:.1f} | {metrics['related_auc']:.4f} "
                f"| {metrics['reconstruction_r2']:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
