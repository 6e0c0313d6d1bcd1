"""Every ensemble method on predictions that exceed the memory limit: 100 members x 10,000 rows x 1,000 classes.

A method must stay under 2 GiB. Members' log-probabilities are in `.npy` files (4 GB in single precision) and are read
in blocks of rows. Each method is fitted and applied in its own process. `peak_rss` is the peak memory of that process
according to the system, libraries and mapped pages included; the memory of the libraries alone is shown beside it.

    python benchmarks/pooling.py --folder DIR [--members 100] [--rows 10000] [--classes 1000] [--methods pool,greedy]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from raysent.ensembles import METHODS, fit
from raysent.ensembles.predictions import MemberPredictions
from raysent.errors import RaysentError

MIB = 2**20


def write_members(folder: Path, *, members: int, rows: int, classes: int) -> tuple[list[Path], np.ndarray]:
    """Write members of different accuracy; return their files and the classes of the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.random.default_rng(0).integers(0, classes, rows)
    paths = [folder / f"{members}x{rows}x{classes}-{member}.npy" for member in range(members)]
    for member, path in enumerate(paths):
        if path.is_file():
            continue
        generator = np.random.default_rng(1 + member)
        scores = generator.standard_normal((rows, classes), dtype=np.float32)
        scores[np.arange(rows), labels] += 1 + 2 * generator.random()
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        np.save(path, scores)
    return paths, labels


def measure(paths: list[Path], labels: np.ndarray, method: str) -> dict[str, float | str]:
    """Fit and apply one method in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started, used = time.perf_counter(), time.process_time()
    try:
        predictions = MemberPredictions(list(paths))
        fitted = fit(predictions, labels, method=method)
        combined = fitted.combination(predictions)
    except RaysentError as error:
        return {"method": method, "refused": str(error)}
    return {
        "method": method,
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - used,
        "libraries_mib": before / MIB,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
        "accuracy": 100 * float((combined.argmax(axis=1) == labels).mean()),
        "nll": -float(combined[np.arange(len(labels)), labels].mean()),
        **fitted.diagnostics,
    }


def main() -> None:
    """Write the members, then measure each method in a new process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="folder for the members' files, which are kept")
    for name, default in (("members", 100), ("rows", 10_000), ("classes", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = {name: getattr(options, name) for name in ("members", "rows", "classes")}
    if options.alone:
        print(json.dumps(measure(*write_members(options.folder, **size), options.methods)), flush=True)
        return
    numbers = [text for name, value in size.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, __file__, "--folder", str(options.folder), *numbers]
    subprocess.run([*command, "--alone", "--methods", "uniform"], check=True, stdout=subprocess.DEVNULL)
    for method in options.methods.split(","):
        subprocess.run([*command, "--alone", "--methods", method], check=True)


if __name__ == "__main__":
    main()
