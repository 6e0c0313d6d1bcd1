"""Mutation testing with mutmut: how many small changes of the code the tests find, and which ones they do not.

    python -m benchmarks.mutants [--processes N] [--show] [NAME...]

mutmut changes one expression at a time and runs the tests that call the changed function; a mutant is killed when one
of them fails. `[tool.mutmut]` in pyproject.toml names modules and tests; names of mutants, as
``raysent.sweeps.ranking.*``, select some. All files are written below build/mutants, which each run replaces.
`--show` prints the table of the last run again, with the change that each survivor makes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "mutants"
PARTS = (
    "raysent",
    "tests",
    "pyproject.toml",
    "cluster.yaml",
    "examples",
    "papers",
    "search_spaces",
)
# Every mutant of the modules in pyproject.toml, but of record.py those of the table of trials alone.
SELECTED = (
    "raysent.evaluation.members.*",
    "raysent.sweeps.ranking.*",
    "raysent.sweeps.record.x_write_trials_table__*",
    "raysent.sweeps.schedulers.*",
)
STATUSES = ("killed", "timeout", "survived")


def main() -> int:
    """Run mutmut and print a table by module, then the survivors; return 1 if under 90 % are killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", default=SELECTED, metavar="NAME", help="mutants; patterns as in a shell"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="mutants tested at once (default: 1)"
    )
    parser.add_argument(
        "--show", action="store_true", help="print the last run again, with each survivor's change"
    )
    options = parser.parse_args()
    if not options.show:
        lay_out()
        mutmut("run", "--max-children", str(options.processes), *options.names)
    statuses = results()
    print_table(statuses)
    for name, status in sorted(statuses.items()):
        if status != "killed":
            print(f"\n{status}: {name}")
            if options.show:
                print(mutmut("show", name, captures=True).partition("\n")[2])
    killed = sum(status in ("killed", "timeout") for status in statuses.values())
    return int(killed < 0.9 * len(statuses))


def lay_out() -> None:
    """Copy what the tests of mutants need into an empty folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in PARTS:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, FOLDER / name)


def mutmut(*arguments: str, captures: bool = False) -> str:
    """Run a command of mutmut in the folder of the copies; return what it printed, if it is captured."""
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    # Processes are forked with PyTorch loaded, which more threads than one do not survive.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        command, cwd=FOLDER, env=environment, check=True, text=True, capture_output=captures
    )
    return ran.stdout or ""


def results() -> dict[str, str]:
    """Return the status of each mutant that was tested, by name."""
    lines = mutmut("results", "--all", "true", captures=True).splitlines()
    found = dict(line.strip().rsplit(": ", 1) for line in lines if ": " in line)
    return {name: status for name, status in found.items() if status != "not checked"}


def print_table(statuses: dict[str, str]) -> None:
    """Print the number of mutants by module and status."""
    modules: dict[str, Counter[str]] = defaultdict(Counter)
    for name, status in statuses.items():
        modules[name.rpartition(".")[0]][status] += 1
    modules["all"] = Counter(statuses.values())
    print(
        "| module | mutants | killed by a failing test | killed by the time limit | survived | other | killed |"
    )
    print("|---|---|---|---|---|---|---|")
    for module, counts in modules.items():
        total, known = counts.total(), [counts[status] for status in STATUSES]
        cells = [
            module,
            total,
            *known,
            total - sum(known),
            f"{100 * (known[0] + known[1]) / total:.1f} %",
        ]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    sys.exit(main())
