"""Mutation testing with mutmut: how many small changes of the code the tests find, and which ones they do not.

    python -m benchmarks.mutants [--seed N | --all | NAME...] [--number N] [--processes N] [--show]

mutmut changes one expression at a time and runs the tests that call the changed function, fast ones first; a mutant is
found when one of them fails. Without names, `--number` mutants of the code of money, of scores and of ensembles are
drawn by a seed that is new each time and printed; `--seed` draws those of an earlier run again, and `--all` takes
every one. Names of mutants are patterns as in a shell, such as ``raysent.sweeps.ranking.*``. Tests are those of the
files that import what is changed, without those that start Ray.

All files are written below build/mutants, which each run replaces. `--show` prints the table of the last run again,
with the change that each survivor makes.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "mutants"
PARTS = (
    "raysent",
    "tests",
    "benchmarks",
    "pyproject.toml",
    "cluster.yaml",
    "examples",
    "papers",
    "search_spaces",
)
# What is changed; the draw is of the packages.
PACKAGES = ("raysent/cost", "raysent/ensembles", "raysent/evaluation")
MODULES = (
    "raysent/sweeps/ranking.py",
    "raysent/sweeps/record.py",
    "raysent/sweeps/schedulers/*.py",
)
# A test file that names one of these runs.
_IMPORTS = re.compile(
    r"raysent\.(cost|ensembles|evaluation|sweeps\.ranking|sweeps\.record|sweeps\.schedulers)\b"
)
# Files that do, whose tests take long and are of other code.
LEFT_OUT = {
    f"test_{name}.py"
    for name in (
        "backbones", "bad_input", "cli", "cloud", "contrast", "dead_heads", "encode_corpus", "exports", "fitting",
        "fleet", "gpu_benchmark", "interruptions", "kills", "mteb", "pretrained", "replay", "report", "reproduction",
        "search_rows", "trackers", "trainables", "version_2",
    )
}  # fmt: skip
# Where nothing else fails, a mutant is found by a test that runs this much longer than it does unchanged.
CONFIGURATION = """
[tool.mutmut]
source_paths = ["raysent"]
only_mutate = {only_mutate}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "benchmarks.fastest_first", "-m", "{marks}", "--timeout", "300"]
pytest_add_cli_args_test_selection = {tests}
also_copy = ["benchmarks", "cluster.yaml", "examples", "papers", "search_spaces"]
process_isolation = "forkserver"
timeout_multiplier = 5.0
timeout_constant = 12.0
"""
MARKS = "not cluster and not chaos and not journey"
# Mutants that are tested first, a few of a small file.
_FIRST = "raysent.cost.budget.*__mutmut_1"
_SELECTION = "selection.txt"
FOUND = ("killed", "timeout")
STATUSES = (*FOUND, "survived", "no tests")
LEAST_FOUND = 0.9


def main() -> int:
    """Run mutmut and print a table by module, then the survivors; return 1 if under 90 % are found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; patterns as in a shell")
    parser.add_argument("--seed", type=int, help="of the draw (default: a new one each time)")
    parser.add_argument("--number", type=int, default=600, help="mutants to draw (default: 600)")
    parser.add_argument("--all", action="store_true", help="every mutant of the packages")
    parser.add_argument(
        "--processes", type=int, default=2, help="mutants tested at once (default: 2)"
    )
    parser.add_argument(
        "--show", action="store_true", help="print the last run again, with each survivor's change"
    )
    options = parser.parse_args()
    if not options.show:
        lay_out()
        children = ("--max-children", str(options.processes))
        mutmut("run", *children, _FIRST)  # makes all mutants, and sees which tests call what
        selection = selected(options)
        (FOLDER / _SELECTION).write_text("\n".join(selection))
        mutmut("run", *children, *selection)
    known = results()
    statuses = {name: known[name] for name in (FOLDER / _SELECTION).read_text().split("\n")}
    print_table(statuses)
    for name, status in sorted(statuses.items()):
        if status != "killed":
            print(f"\n{status}: {name}")
            if options.show:
                print(mutmut("show", name, captures=True).partition("\n")[2])
    num_found = sum(status in FOUND for status in statuses.values())
    return int(num_found < LEAST_FOUND * len(statuses))


def selected(options: argparse.Namespace) -> list[str]:
    """Return the names of the mutants to test, and print how they were chosen."""
    made = list(results())
    if options.names:
        return [name for name in made if any(fnmatch(name, form) for form in options.names)]
    known = [name for name in made if name.startswith(_prefixes())]
    if options.all:
        print(f"all {len(known)} mutants of {', '.join(PACKAGES)}")
        return known
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    number = min(options.number, len(known))
    print(f"{number} of {len(known)} mutants of {', '.join(PACKAGES)}, drawn by --seed {seed}")
    return sorted(random.Random(seed).sample(known, number))


def _prefixes() -> tuple[str, ...]:
    return tuple(f"{package.replace('/', '.')}." for package in PACKAGES)


def changed_files() -> list[str]:
    """Return the patterns of the files that are changed."""
    return [*(f"{package}/*.py" for package in PACKAGES), *MODULES]


def test_files() -> list[str]:
    """Return the test files that import what is changed, without those that are left out."""
    files = sorted(path for path in (ROOT / "tests").glob("test_*.py") if path.name not in LEFT_OUT)
    return [f"tests/{path.name}" for path in files if _IMPORTS.search(path.read_text())]


def lay_out() -> None:
    """Copy what the tests of mutants need into an empty folder, with mutmut's settings."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "results")
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, FOLDER / name, ignore=ignored)
        else:
            shutil.copy2(source, FOLDER / name)
    settings = CONFIGURATION.format(only_mutate=changed_files(), tests=test_files(), marks=MARKS)
    with (FOLDER / "pyproject.toml").open("a", encoding="utf-8") as stream:
        stream.write(settings)


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
    """Return the status of each mutant, by name; of those that were not tested it is `not checked`."""
    lines = mutmut("results", "--all", "true", captures=True).splitlines()
    return dict(line.strip().rsplit(": ", 1) for line in lines if ": " in line)


def print_table(statuses: dict[str, str]) -> None:
    """Print the number of mutants by module and status."""
    modules: dict[str, Counter[str]] = defaultdict(Counter)
    for name, status in statuses.items():
        modules[name.rpartition(".")[0]][status] += 1
    modules["all"] = Counter(statuses.values())
    heads = ("module", "mutants", "found by a failing test", "by the time limit", "survived")
    print(f"| {' | '.join(heads)} | without a test | other | found |")
    print("|---|---|---|---|---|---|---|---|")
    for module, counts in modules.items():
        print(f"| {' | '.join(map(str, _cells(module, counts)))} |")


def _cells(module: str, counts: Counter[str]) -> Sequence[object]:
    total = counts.total()
    by_status = [counts[status] for status in STATUSES]
    num_found = sum(counts[status] for status in FOUND)
    share = f"{100 * num_found / total:.1f} %"
    return [module, total, *by_status, total - sum(by_status), share]


if __name__ == "__main__":
    sys.exit(main())
