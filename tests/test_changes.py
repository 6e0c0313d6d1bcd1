"""CHANGELOG.md: short, true of the commands and names that there are, and a page of every version in the docs."""

from __future__ import annotations

import re

import pytest
from installed import ROOT
from shown import code_spans, is_name, is_option, unknown_words

import raysent

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PARTS = ["Added", "Changed", "Removed", "Fixed"]
MAX_WORDS = 1500
MAX_ENTRY_WORDS = 60


def unreleased() -> dict[str, str]:
    """Return the parts of the coming release by their headings."""
    section = CHANGELOG.partition("## [Unreleased]\n")[2].partition("\n## ")[0]
    _, *parts = re.split(r"^### (\w+)$", section, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def removals() -> list[tuple[str, str]]:
    """Return what was removed, and what a user takes in its place."""
    rows = re.findall(r"^\| (.*) \| (.*) \|$", unreleased()["Removed"], re.MULTILINE)
    return rows[1:]


def present_code() -> list[str]:
    """Return the code of the coming release that is said to be there: all but the names of what was removed."""
    parts = unreleased()
    replacements = [replacement for _, replacement in removals()]
    return code_spans(
        "\n".join([*(text for name, text in parts.items() if name != "Removed"), *replacements])
    )


def test_coming_release_can_be_read_in_a_few_minutes():
    """Its parts are in their order, and neither all of it nor an entry is long."""
    parts = unreleased()
    assert list(parts) == [name for name in PARTS if name in parts]
    assert sum(len(text.split()) for text in parts.values()) <= MAX_WORDS
    entries = [
        entry for text in parts.values() for entry in re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    ]
    longest = max(entries, key=lambda entry: len(entry.split()))
    assert len(longest.split()) <= MAX_ENTRY_WORDS, longest


def test_every_version_has_a_page():
    """The page of each is linked, and the package's own version is among them."""
    linked = set(re.findall(r"\]\((docs/changes/[^)]+)\)", CHANGELOG))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/changes").glob("*.md")}
    assert linked == pages
    assert f"[{raysent.__version__}]" in CHANGELOG


def test_commands_options_and_names_exist():
    """What the coming release has, and what it offers in place of the removed."""
    code = present_code()
    lines = [span for span in code if span.startswith("raysent ")]
    assert lines
    assert {line: unknown_words(line) for line in lines if unknown_words(line)} == {}
    options = [span.split()[0] for span in code if re.match(r"--?[a-z]", span)]
    assert [option for option in options if not is_option(option)] == []
    names = [name for span in code for name in re.findall(r"\braysent\.([a-z_.]+\w)", span)]
    assert [name for name in names if not is_name(name)] == []


def test_removed_commands_are_gone():
    """A command or an option that the table calls removed is none any more."""
    spans = [span for removed, _ in removals() for span in code_spans(removed)]
    lines = [span for span in spans if span.startswith("raysent ")]
    assert lines
    assert [line for line in lines if not unknown_words(line)] == []


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("raysent sweep --task reviews.csv", []),
        ("raysent sweep --retrain 3", ["--retrain"]),
        ("raysent cluster up --keep 4h && raysent cluster drill", ["drill"]),
        ("raysent -v search index 'who found it' | head  # raysent none", []),
    ],
)
def test_unknown_words_are_those_of_no_command(line, unknown):
    """Also of groups, of several commands in a line, and with the root's options."""
    assert unknown_words(line) == unknown
