"""The command line of the replays; see the package's docstring."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.search import compare


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--orders", type=int, default=100, help="replays of each policy")
    parser.add_argument(
        "--only", default="", help="policies whose names contain this, and the random ones that do"
    )
    parser.add_argument("--output", type=Path, help="folder of trials with log-probabilities")
    compare.main(parser.parse_args())


if __name__ == "__main__":
    main()
