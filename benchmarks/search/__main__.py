"""The command line of the table; see the package's docstring."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.search import compare, table


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    commands = parser.add_subparsers(required=True)
    build = commands.add_parser("build", help="train the trials that are missing")
    build.add_argument("--data", type=Path, required=True, help="folder of corpora and tasks")
    build.add_argument("--only-corpus", choices=("novels", "docs", "news"))
    build.add_argument("--rounds", type=int, default=3, help="configurations of each family, long from the third")
    build.set_defaults(command=table.build)
    collect = commands.add_parser("collect", help="write the scalars of all trials")
    collect.add_argument("--to", type=Path, help="file to write; by default that of the repository")
    collect.set_defaults(command=table.collect)
    replays = commands.add_parser("compare", help="replay of searches on the table")
    replays.add_argument("--orders", type=int, default=100, help="replays of each policy")
    replays.add_argument("--only", default="", help="policies whose names contain this, and the random ones that do")
    replays.set_defaults(command=compare.main)
    for command in (build, collect, replays):
        command.add_argument("--output", type=Path, required=command is not replays, help="folder of the trials")
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
