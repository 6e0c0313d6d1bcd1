"""The command line of the comparison; see the package's docstring."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.papers.making import make
from benchmarks.papers.pairs import write_caption_pairs
from benchmarks.papers.rows import Row, read_rows
from benchmarks.papers.table import evaluate, write_tables


def main() -> int:
    """Make and evaluate every row, write the tables; return the number of failed rows."""
    options = _options()
    models = options.output.resolve() / "models"
    models.mkdir(parents=True, exist_ok=True)
    rows = read_rows(data=options.data.resolve(), models=models)
    if options.row is not None:
        return _one(next(row for row in rows if row.name == options.row), options, models)
    write_caption_pairs(options.data, models / "captions.tsv")
    wanted = [row for row in rows if options.only is None or row.name in options.only.split(",")]
    # In the order of the file: a row comes after the rows that it needs, so waiting cannot deadlock.
    with ThreadPoolExecutor(options.processes) as pool:
        codes = list(pool.map(lambda row: _in_process(row, options), wanted))
    done = [row for row, code in zip(wanted, codes, strict=True) if code == 0]
    print(write_tables(done, output=options.output, seconds=options.seconds))
    for row in wanted:
        if row not in done:
            print(f"{row.name}: failed; see {options.output / 'logs' / row.name}.log")
    return len(wanted) - len(done)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora, pairs, vectors and tasks")
    parser.add_argument("--output", type=Path, required=True, help="folder of models, logs and tables")
    parser.add_argument("--seconds", type=float, default=90.0, help="processor time of each training")
    parser.add_argument("--processes", type=int, default=2, help="rows at once, one thread each")
    parser.add_argument("--only", help="names of rows, separated by commas")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_process(row: Row, options: argparse.Namespace) -> int:
    """Make and evaluate one row in its own process."""
    log = options.output / "logs" / f"{row.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.papers", "--row", row.name, "--data", str(options.data)]
    command += ["--output", str(options.output), "--seconds", str(options.seconds)]
    with log.open("w", encoding="utf-8") as stream:
        code = subprocess.run(
            command, stdout=stream, stderr=stream, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
        ).returncode
    print(f"{row.name}: {'done' if code == 0 else 'failed'}", flush=True)
    return code


def _one(row: Row, options: argparse.Namespace, models: Path) -> int:
    print(make(row, models=models, seconds=options.seconds))
    evaluate(row, models=models, data=options.data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
