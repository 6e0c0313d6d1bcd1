"""The README is short; the tree in CONTRIBUTING.md names exactly what is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from shown import code_spans, typed_commands, unknown_words

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
MAX_LINES = 150
MAX_WORDS, MAX_PARAGRAPH_WORDS, MAX_FIGURES = 1200, 60, 15
# Folders whose contents the tree names; of the others it names the folder alone, or what it likes.
COMPLETE = ("raysent", "search_spaces")
UNNAMED = {"__init__.py", "__init__.pyi", "py.typed"}


def tree_block() -> list[str]:
    """Return the lines of the fenced block whose first line begins with `raysent/`."""
    blocks = re.findall(
        r"^```[a-z]*\n(.*?)^```",
        CONTRIBUTING.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return next((block.splitlines() for block in blocks if block.startswith("raysent/")), [])


def paths_in(lines: list[str]) -> set[str]:
    """Return the paths that a tree names: an entry is its line's first word, below the entry it is indented under."""
    paths: set[str] = set()
    parents: list[tuple[int, str]] = []
    for line in lines:
        bare = re.sub(
            r"^(\s*)([A-Z]{4,})\b",
            lambda found: found[1] + " " * len(found[2]),
            re.sub(r"[│├└─]", " ", line),
        )
        # Several entries may share a line when each is a file or a folder: `bag.py gru.py  the encoders`.
        entries = re.match(r"\s*((?:[\w.-]+(?:/|\.\w+) ?)+)", bare)
        if entries is None:
            continue
        depth = len(bare) - len(bare.lstrip())
        parents = [(at, name) for at, name in parents if at < depth]
        above = "".join(name for _, name in parents)
        names = entries[1].split()
        paths.update(above + name for name in names)
        if names[-1].endswith("/"):
            parents.append((depth, names[-1]))
    return paths


def tracked() -> set[str]:
    """Return the files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return set(listed.stdout.split("\n")) - {""}


def expected(files: set[str]) -> set[str]:
    """Return the modules and folders that stand directly in the folders which the tree names in full."""
    names = set()
    for path in files:
        top, *rest = path.split("/")
        if top in COMPLETE and rest and rest[0] not in UNNAMED:
            names.add(f"{top}/{rest[0]}" + ("/" if len(rest) > 1 else ""))
    return names


def test_readme_is_short() -> None:
    """The README can be read in a few minutes."""
    assert len(README.read_text(encoding="utf-8").splitlines()) < MAX_LINES


def prose_of(page: str) -> str:
    """Return what a page says outside code, tables and comments, without the addresses of links."""
    bare = re.sub(r"^```.*?^```|<!--.*?-->", "", page, flags=re.DOTALL | re.MULTILINE)
    bare = re.sub(r"^\|.*$", "", bare, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", bare)


def test_readme_has_few_words_and_figures() -> None:
    """All of it, each paragraph, and the numbers that stand outside of tables and code."""
    page = README.read_text(encoding="utf-8")
    assert len(page.split()) <= MAX_WORDS
    prose = prose_of(page)
    paragraphs = [part for part in re.split(r"\n\s*\n|\n- ", prose) if part.strip()]
    longest = max(paragraphs, key=lambda part: len(part.split()))
    assert len(longest.split()) <= MAX_PARAGRAPH_WORDS, longest
    figures = re.findall(r"(?<![\w.`-])\d[\d,.]*", re.sub(r"`[^`]*`", "", prose))
    assert len(figures) <= MAX_FIGURES, figures


def test_readme_names_files_that_exist() -> None:
    """Links and pictures are of this repository; no address of a page that may not be there."""
    page = README.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
    assert "http" not in page


def test_readme_shows_commands_that_exist() -> None:
    """Every command and option, in blocks of code and within lines."""
    page = README.read_text(encoding="utf-8")
    within_lines = code_spans(re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))
    lines = [line for line in (*typed_commands(page), *within_lines) if "raysent " in line]
    assert len(lines) > 10
    assert {line: unknown_words(line) for line in lines if unknown_words(line)} == {}


def test_readme_shows_targets_that_make_has() -> None:
    """What `make` is asked for."""
    targets = re.findall(r"`make ([\w-]+)`", README.read_text(encoding="utf-8"))
    made = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets
    assert set(targets) <= set(made)


def test_picture_of_a_sweep_is_readable_alone() -> None:
    """It says in words what it shows, follows light and dark, and is no wider than a phone."""
    picture = (ROOT / "docs/_static/how.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(picture)
    names = {child.tag.rpartition("}")[2] for child in root}
    assert {"title", "desc"} <= names
    assert "prefers-color-scheme: dark" in picture
    assert float(root.get("viewBox", "").split()[2]) <= 400
    sizes = [int(size) for size in re.findall(r"font-size: (\d+)px", picture)]
    assert min(sizes) >= 14


def test_tree_names_all_that_is_there() -> None:
    """Every tracked module, folder and search space stands in the tree."""
    named = paths_in(tree_block())
    assert named, "CONTRIBUTING.md: holds no fenced block whose first line begins with 'raysent/'"
    assert sorted(expected(tracked()) - named) == []


def test_tree_names_nothing_that_is_not_there() -> None:
    """Every name in the tree is a file or a folder that exists."""
    missing = [path for path in sorted(paths_in(tree_block())) if not (ROOT / path).exists()]
    assert missing == []


def test_paths_in_follows_indentation() -> None:
    """An entry belongs to the nearest entry above it that stands further left."""
    lines = [
        "raysent/",
        "  errors.py   the tree; see config.py",
        "  encoders/",
        "    bag.py gru.py  two",
        "tests/  all",
    ]
    found = {"raysent/", "raysent/errors.py", "raysent/encoders/", "raysent/encoders/bag.py"}
    assert paths_in(lines) == found | {"raysent/encoders/gru.py", "tests/"}


def test_paths_in_passes_over_layer_words() -> None:
    """A layer's name in capitals may stand before the first of its entries."""
    lines = ["raysent/", "  GROUND  errors.py  what may go wrong", "          config.py  YAML"]
    assert paths_in(lines) == {"raysent/", "raysent/errors.py", "raysent/config.py"}
