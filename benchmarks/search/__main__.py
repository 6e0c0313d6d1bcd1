"""The command line of the study; see the package's docstring."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.search import members, metrics, policies, table


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    commands = parser.add_subparsers(required=True)
    build = commands.add_parser("build", help="train the trials that are missing")
    build.add_argument("--data", type=Path, required=True, help="folder of corpora and tasks")
    build.add_argument("--output", type=Path, required=True, help="folder of the trials")
    build.add_argument("--only-corpus", choices=("novels", "docs", "news"))
    build.add_argument("--families", help="names, separated by commas; by default all")
    build.add_argument("--rounds", type=int, default=3, help="configurations of each family, long from the third")
    build.set_defaults(command=table.build)
    collect = commands.add_parser("collect", help="write the scalars of all trials")
    collect.add_argument("--output", type=Path, required=True, help="folder of the trials")
    collect.add_argument("--to", type=Path, help="file to write; by default that of the repository")
    collect.set_defaults(command=table.collect)
    study = commands.add_parser("metrics", help="how well each metric predicts final test accuracy")
    study.add_argument("--table", type=Path, default=table.SCALARS, help="scalars of the trials")
    study.add_argument("--svg", type=Path, help="file of the plot")
    study.set_defaults(command=metrics.main)
    search = commands.add_parser("policies", help="replay of searches on the table")
    search.add_argument("--output", type=Path, required=True, help="folder of the trials")
    search.add_argument("--orders", type=int, default=100, help="replays of each policy")
    search.add_argument("--choice-orders", type=int, default=50, help="replays of each setting; 0 for none")
    search.add_argument("--svg", type=Path, help="file of the plot")
    search.set_defaults(command=policies.main)
    chosen = commands.add_parser("members", help="members chosen greedily and by rank; stopping by gain")
    chosen.add_argument("--output", type=Path, required=True, help="folder of the trials")
    chosen.add_argument("--orders", type=int, default=100, help="replays of each policy")
    chosen.set_defaults(command=members.main)
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
