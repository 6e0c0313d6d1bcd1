"""Mutation testing with mutmut: how many small changes of the code the tests find, and which ones they do not.

    python -m benchmarks.mutants [--seed N | --all | NAME...] [--number N] [--processes N] [--show]

mutmut changes one expression at a time. A mutant is tested by the tests that call the changed function, fast ones
first, until one fails; then it is found. Without names, `--number` mutants of the code of money, of scores and of
ensembles are drawn by a seed that is new each time and printed; `--seed` draws those of an earlier run again, and
`--all` takes every one. Names of mutants are patterns as in a shell, such as ``raysent.sweeps.ranking.*``. Tests are
those of the files that import what is changed, without those that start Ray and those that fail unchanged.

Not drawn, by these rules alone, is a change

- of wording: of a text of several words, which a person reads, or of the argument of an error or a message;
- of `strict=True` of a `zip`, which only says that two lengths are equal;
- of the type that a `cast` names, and of the writing of an encoding's name;
- of how many threads compute, or how many rows at once: the results are the same, and speed is no test.

All files are written below build/mutants and build/mutant_calls. What is unchanged there stays, so that a second run
begins with its mutants at once: which functions a test file calls is looked for when that file has changed, or with
`--fresh`. `--show` prints the table of the last run again, with the change that each survivor makes.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "mutants"
# What each test file calls; a file a test file.
CALLS = ROOT / "build" / "mutant_calls"
# Names that folder to the plugin `mutant_calls`.
FOLDER_VARIABLE = "RAYSENT_MUTANT_CALLS"
# Test files of one process, which share its imports; and when it is ended.
_FILES_OF_PROCESS, _CALLS_LIMIT_S = 6, 1800
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
# Where nothing else fails, a mutant is found by tests that run this much longer than they do unchanged.
CONFIGURATION = """
[tool.mutmut]
source_paths = ["raysent"]
only_mutate = {only_mutate}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "benchmarks.fastest_first", "-m", "{marks}", "--timeout", "300"]
pytest_add_cli_args_test_selection = {tests}
also_copy = ["benchmarks", "cluster.yaml", "examples", "papers", "search_spaces"]
process_isolation = "forkserver"
timeout_multiplier = 3.0
timeout_constant = 10.0
"""
MARKS = "not cluster and not chaos and not journey"
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
        "--fresh", action="store_true", help="look again which functions all test files call"
    )
    parser.add_argument(
        "--show", action="store_true", help="print the last run again, with each survivor's change"
    )
    options = parser.parse_args()
    if not options.show:
        lay_out()
        mutmut(_MAKE)
        write_statistics(options.processes, is_fresh=options.fresh)
        selection = selected(options)
        (FOLDER / _SELECTION).write_text("\n".join(selection))
        mutmut(_TEST, "run", "--max-children", str(options.processes), *selection)
    known = results()
    statuses = {name: known[name] for name in (FOLDER / _SELECTION).read_text().split("\n")}
    print_table(statuses)
    for name, status in sorted(statuses.items()):
        if status != "killed":
            print(f"\n{status}: {name}")
            if options.show:
                print(changes([name])[name])
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
    drawn = random.Random(seed).sample(known, len(known))
    # Some are left out, one in four at the most.
    candidates = drawn[: 2 * options.number]
    texts = changes(candidates)
    kept = [name for name in candidates if not is_left_out(texts[name])]
    selection = sorted(kept[: options.number])
    print(
        f"{len(selection)} of {len(known)} mutants of {', '.join(PACKAGES)}, drawn by --seed {seed}",
        flush=True,
    )
    return selection


# A text of several words, with the marks of its kind.
_PROSE = re.compile(r"""[bfr]*(["'])(?:(?!\1).)*\w (?:(?!\1).)*\1""", re.I)
_SPEAKS = re.compile(r"\b(raise \w+|\w*Error|\w*Warning|warn|note|say|print|log|add_argument)\(")
_ENCODING = re.compile(r"""encoding=(None|["'][\w-]+["'])""")
_STRICT = re.compile(r",? *strict=(True|False|None)")
_CAST = re.compile(r"\bcast\([^,]*,")
_AT_ONCE = re.compile(r"\btorch_threads\([^)]*\)|(_at_once|_AT_ONCE) = .*")


def is_left_out(change: str) -> bool:
    """Return whether a change, as a diff, is one that the rules leave out."""
    lines = [line for line in change.splitlines() if line[:3] not in ("---", "+++")]
    before = "\n".join(line[1:].strip() for line in lines if line[:1] == "-")
    after = "\n".join(line[1:].strip() for line in lines if line[:1] == "+")
    if _is_wording(before, after, [line[1:] for line in lines if line[:1] == " "]):
        return True
    patterns = (_STRICT, _ENCODING, _CAST, _AT_ONCE)
    return any(
        pattern.search(before) and _without(pattern, before) == _without(pattern, after)
        for pattern in patterns
    )


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without what a pattern finds, and without the commas that are left before a bracket."""
    return re.sub(r",\s*\)", ")", pattern.sub("", text))


def _is_wording(before: str, after: str, context: Sequence[str]) -> bool:
    """Return whether two lines differ in a text that a person reads, or in the argument of what says it."""
    if _PROSE.search(before) and _PROSE.sub("", before) == _PROSE.sub("", after):
        return True
    is_argument = bool(_PROSE.search(before)) or _SPEAKS.search(before) is not None
    loses_text = len(_PROSE.findall(after)) < len(_PROSE.findall(before))
    speaks = any(_SPEAKS.search(line) for line in (before, *context))
    return is_argument and loses_text and speaks


_CHANGES = """
import json, sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
json.dump({name: get_diff_for_mutant(name) for name in json.load(sys.stdin)}, sys.stdout)
"""


def changes(names: Sequence[str]) -> dict[str, str]:
    """Return the change that each mutant makes, as a diff."""
    ran = subprocess.run(
        [sys.executable, "-c", _CHANGES],
        cwd=FOLDER,
        check=True,
        text=True,
        input=json.dumps(list(names)),
        capture_output=True,
    )
    texts: dict[str, str] = json.loads(ran.stdout)
    return texts


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
    """Copy what the tests of mutants need into the folder, with mutmut's settings; what is unchanged stays."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = {
        path.relative_to(ROOT)
        for name in PARTS
        for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
        if path.is_file() and not {"__pycache__", "results"} & set(path.parts)
    }
    for name in (*PARTS, *(f"mutants/{name}" for name in PARTS)):
        for path in list((FOLDER / name).rglob("*")):
            place = path.relative_to(FOLDER / name)
            is_code = path.suffix == ".py"
            if is_code and Path(name.removeprefix("mutants/")) / place not in wanted:
                path.unlink()
    for place in wanted:
        target = FOLDER / place
        if not target.is_file() or not filecmp.cmp(ROOT / place, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / place, target)
    settings = CONFIGURATION.format(only_mutate=changed_files(), tests=test_files(), marks=MARKS)
    with (FOLDER / "pyproject.toml").open("a", encoding="utf-8") as stream:
        stream.write(settings)


# mutmut makes all mutants, without a test; and tests some, as this module has seen which tests call what.
_MAKE = """
from pathlib import Path
from mutmut import __main__ as mutmut
from mutmut.mutation.trampoline import set_mutant_under_test
set_mutant_under_test("mutant_generation")
Path("mutants").mkdir(exist_ok=True)
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.store_lines_covered_by_tests()
mutmut.create_mutants(2)
"""
_TEST = """
from mutmut import __main__ as mutmut
make_runner = mutmut.get_mutant_runner
def without_clean_tests(number):
    runner = make_runner(number)
    runner.run_clean_tests = lambda tests: 0
    return runner
mutmut.get_mutant_runner = without_clean_tests
mutmut.run_forced_fail_test = lambda runner: None
mutmut.collect_or_load_stats = lambda *_, **__: mutmut.load_stats()
mutmut.cli()
"""
_RESULTS = """
from mutmut import __main__ as mutmut
mutmut.cli()
"""


def mutmut(program: str, *arguments: str, captures: bool = False) -> str:
    """Run a program of mutmut's parts in the folder of the copies; return what it printed, if it is captured."""
    command = [sys.executable, "-c", program, *arguments]
    # Processes are forked with PyTorch loaded, which more threads than one do not survive.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        command,
        cwd=FOLDER,
        env=environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE if captures else None,
    )
    return ran.stdout or ""


def write_statistics(num_processes: int, *, is_fresh: bool) -> None:
    """Write for mutmut which tests call which functions, and how long they take; look where that is not known."""
    CALLS.mkdir(parents=True, exist_ok=True)
    unknown = [file for file in test_files() if is_fresh or not _is_known(file)]
    groups = [
        unknown[first : first + _FILES_OF_PROCESS]
        for first in range(0, len(unknown), _FILES_OF_PROCESS)
    ]
    with ThreadPoolExecutor(num_processes) as pool:
        list(pool.map(_look_at, groups))
    seconds: dict[str, float] = {}
    tests_of: dict[str, set[str]] = defaultdict(set)
    failing = []
    for name, test in _known_tests():
        if not test["passes"]:
            failing.append(name)
            continue
        seconds[name] = test["seconds"]
        for function in test["functions"]:
            tests_of[function].add(name)
    for name in failing:
        print(f"fails unchanged, and tests nothing: {name}", flush=True)
    statistics = {
        "tests_by_mangled_function_name": {name: sorted(of) for name, of in tests_of.items()},
        "duration_by_test": seconds,
        "stats_time": sum(seconds.values()),
    }
    (FOLDER / "mutants" / "mutmut-stats.json").write_text(json.dumps(statistics))


def _known_tests() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in test_files():
        path = CALLS / f"{Path(file).name}.json"
        if path.is_file():
            yield from json.loads(path.read_text()).items()


def _hash_of(file: str) -> str:
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()


def _is_known(file: str) -> bool:
    """Return whether the calls of a test file, as it is now, were looked at."""
    path = CALLS / f"{Path(file).name}.sha256"
    has_calls = path.with_suffix(".json").is_file()
    return has_calls and path.is_file() and path.read_text() == _hash_of(file)


def _look_at(files: Sequence[str]) -> None:
    """Run test files unchanged, and keep which functions their tests call."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PY_IGNORE_IMPORTMISMATCH": "1",
        "MUTMUT_DEPENDENCY_DEPTH": "-1",
        FOLDER_VARIABLE: str(CALLS),
    }
    options = ["--rootdir=.", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.mutant_calls"]
    options += ["-m", MARKS, "--timeout", "120"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=FOLDER / "mutants",
        env=environment,
        check=False,
        stdout=subprocess.DEVNULL,
        timeout=_CALLS_LIMIT_S,
    )
    for file in files:
        (CALLS / f"{Path(file).name}.sha256").write_text(_hash_of(file))


def results() -> dict[str, str]:
    """Return the status of each mutant, by name; of those that were not tested it is `not checked`."""
    lines = mutmut(_RESULTS, "results", "--all", "true", captures=True).splitlines()
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
