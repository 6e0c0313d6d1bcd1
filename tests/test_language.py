"""Words that earlier versions used and that plain technical English does not: none is left, in names or in prose.

python tests/test_language.py [PATH...]    lists what is left, by file; of all files, or of those below the paths
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ("README.md", "CONTRIBUTING.md", "cluster.yaml")
FOLDERS = {"raysent": (".py", ".cpp", ".h", ".j2"), "docs": (".md",), "search_spaces": (".yaml",), "examples": (".py",)}
# The first reads the files that version 0.1 wrote, and so names their keys; the others are generated from the code.
EXEMPT = {
    "raysent/sweeps/journal_v1.py",
    "docs/reference/commands.md",
    "docs/reference/configuration.md",
    "docs/reference/entry_points.md",
}

# What is still being rewritten; each line goes when its part is done.
NOT_YET: set[str] = set()

# Anywhere, in names (`num_sittings` is read as 'num sittings') and in prose: regular expression -> what to write.
RETIRED = {
    r"sittings?": "session",
    r"(?<![\"'`])judg(e|es|ed|ing|ements?)": "evaluate, evaluation",
    r"hears?|heard|hearing": "receive, listen",
    r"overhear\w*": "capture",
    r"told|tells|telling": "report, return, pass to",
    r"foretells?|foretold|foretelling": "predict",
    r"befell|befalls?|befallen": "the failure itself",
    r"likest": "nearest",
    r"likeness\w*": "similarity",
    r"nought|naught": "zero",
    r"dear|dearer|dearest": "expensive, most expensive",
    r"made up|made-up": "simulated",
    r"honest\w*": "cross-validated (out-of-fold)",
    r"people's": "human (ratings)",
    r"for good": "permanently, or the failure itself",
    r"for ever": "forever, without limit",
    r"by (itself|themselves)": "alone, on its own, automatically",
    r"(go|goes|going|went|gone) on": "continue, resume",
    r"what is (typed|seen)": "command line of `raysent X`",
    r"lookouts?": "interruption monitor",
    r"signs? of life": "heartbeat",
    r"surroundings": "build context",
    r"examinations?": "validator",
    r"executioners?": "actors that kill",
    r"mixable": "compatible",
    r"top direction": "first singular vector",
    r"first values": "initial values",
    r"bring\w* home|comes? home|brought home": "download",
    r"(is|are|was|were) (taken|took) (away|back)": "interrupted, reclaimed",
    r"nobody|whoever": "no one, any user that; or name the process",
    r"nobody's|one's own": "your own",
    r"of (ours|yours|theirs|his|hers|mine)": "your, their",
    r"anew": "again",
    r"of late|ere|lest|thereof|whence|whereof|unto|whilst|amongst|thereby|herein|therein|wherein": "plain English",
    r"frugal|afford": "cost-aware, admit",
    r"yardstick": "reference",
    r"knocks?": "connect",
}
# Names that code defines: what they were -> what they are.
RETIRED_NAMES = {
    "Afford": "CostTracker",
    "Allowance": "BudgetPolicy",
    "Anchor": "L2SPPenalty",
    "Answers": "DecisionStore, MemberPredictions, Predictions",
    "Conductor": "SweepController",
    "Examination": "Validator",
    "Frugal": "CostAwareSampler",
    "Lookout": "InterruptionMonitor",
    "Material": "TrainingData",
    "Meter": "CostTracker",
    "Over": "Executor",
    "Pulse": "Heartbeat",
    "Spread": "map_on_ray",
    "Surroundings": "BuildContext",
    "Blind": "RandomSampler",
    "bring_home": "download",
    "goes_on": "should_continue",
    "marks": "rating_levels",
    "mixing": "compatibility",
    "observe": "on_report",
    "portable": "to_uri",
    "propose": "ask",
    "pulse": "heartbeat",
    "settle": "complete",
    "shares": "weights",
    "standing": "alive_nodes",
    "under": "strip_prefix",
}
SPACED = [word.replace(" ", r"\s+") for word in RETIRED]
WORDS = re.compile("|".join(rf"(?P<w{number}>\b(?:{word})\b)" for number, word in enumerate(SPACED)), re.IGNORECASE)


class Found(NamedTuple):
    """A retired word where it stands."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        """Return it as an editor reads it."""
        return f"{self.path}:{self.line}: '{self.word}'; write: {self.instead}"


def files() -> list[Path]:
    """Return every file whose language counts."""
    found = [ROOT / name for name in TEXTS]
    found += [path for name, kinds in FOLDERS.items() for path in (ROOT / name).rglob("*") if path.suffix in kinds]
    return sorted(path for path in found if path.relative_to(ROOT).as_posix() not in EXEMPT)


def as_prose(text: str) -> str:
    """Return a text with names taken apart and line breaks of comments removed; the number of lines stays."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)
    return re.sub(r"(?<=\n)([ \t]*(?:#:?|//|>)[ \t]?)", lambda found: " " * len(found[0]), apart)


def words_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and replacement of every retired word of a text."""
    replacements = list(RETIRED.values())
    for found in re.finditer(WORDS, re.sub(r"[ \t]*\n[ \t]*", "\n", as_prose(text))):
        number = int(str(found.lastgroup)[1:])
        line = found.string.count("\n", 0, found.start()) + 1
        yield line, " ".join(found[0].split()), replacements[number]


def names_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything that Python code defines: classes, functions, parameters, variables, fields."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def retired_in(path: Path) -> list[Found]:
    """Return every retired word and name of a file."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    found = [Found(name, *word) for word in words_in(text)]
    if path.suffix == ".py":
        named = ((line, one.lstrip("_")) for line, one in names_in(text))
        found += [Found(name, line, one, RETIRED_NAMES[one]) for line, one in named if one in RETIRED_NAMES]
    return sorted(found, key=lambda one: one.line)


@pytest.mark.parametrize(
    "text",
    ["num_sittings = 1", "class SittingRecord:", "it\n# goes\n    # on", "Nobody\n", "the sweep is\njudged", "Made-up"],
)
def test_words_in_finds_a_word_in_names_and_over_lines(text):
    """A word is found in snake_case, in CamelCase, over the lines of a comment, and in either case."""
    assert len(list(words_in(text))) == 1


@pytest.mark.parametrize("text", ["a dearth of shells", "shoulder", "nobodyish", "sittingroom", "ongoing"])
def test_words_in_passes_over_other_words(text):
    """A word that only contains a retired one is none."""
    assert list(words_in(text)) == []


def part_of(path: str) -> str:
    """Return the part of the repository that a path is in: a package of raysent, a folder, or the file itself."""
    parts = path.split("/")
    return "/".join(parts[: 2 if parts[0] == "raysent" else 1])


@pytest.mark.parametrize("part", sorted({part_of(path.relative_to(ROOT).as_posix()) for path in files()}))
def test_language_has_no_retired_word(part, request):
    """Names, docstrings, comments, messages and pages use the words of the field."""
    if part in NOT_YET:
        request.applymarker(pytest.mark.xfail(strict=False, reason="is being rewritten"))
    paths = [path for path in files() if part_of(path.relative_to(ROOT).as_posix()) == part]
    assert [str(found) for path in paths for found in retired_in(path)] == []


def main(places: list[str]) -> None:
    """Print what is left, and how much by package."""
    found = [one for path in files() for one in retired_in(path)]
    chosen = [one for one in found if not places or any(one.path.startswith(place.rstrip("/")) for place in places)]
    if places:
        print(*chosen, sep="\n")
    packages = Counter(part_of(one.path) for one in chosen)
    words = Counter(one.word.lower() for one in chosen)
    print(*(f"{number:5} {name}" for name, number in packages.most_common()), f"{len(chosen):5} in all", sep="\n")
    print("; ".join(f"{word} {number}" for word, number in words.most_common(40)))


if __name__ == "__main__":
    main(sys.argv[1:])
