"""What pages show of the command line and of the public API, compared with what there is."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import typer
from installed import ROOT

import raysent
from raysent.cli.app import app

# Words between commands of one line.
_BETWEEN = {"&&", "|", ";"}


def code_spans(text: str) -> list[str]:
    """Return the code that stands within the lines of a page."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def typed_commands(page: str) -> list[str]:
    """Return the lines of a page's blocks of code that a reader types, without the prompt."""
    return re.findall(r"^\$ (.*)$", page, re.MULTILINE)


def unknown_words(line: str) -> list[str]:
    """Return the commands and options of `raysent` in a line that the command line does not have."""
    unknown = []
    for words in _calls(line):
        node: Any = _root()
        for word in words:
            name = word.partition("=")[0]
            if hasattr(node, "commands") and not name.startswith("-"):
                node = node.commands.get(name)
                if node is None:
                    unknown.append(word)
                    break
            elif re.match(r"--?[a-z]", name) and name not in _options_of(node) | _options_of(
                _root()
            ):
                unknown.append(word)
    return unknown


def is_option(word: str) -> bool:
    """Return whether any command has an option of this name."""
    return any(word in _options_of(node) for node in _nodes(_root()))


def is_name(name: str) -> bool:
    """Return whether there is such a public name, module or group of entry points, ``raysent.`` left out."""
    first = name.partition(".")[0]
    is_module = find_spec(f"raysent.{first}") is not None
    return first in raysent.__all__ or is_module or f"raysent.{name}" in _entry_point_groups()


def _calls(line: str) -> list[list[str]]:
    """Return what follows each `raysent` of a line, up to the next command."""
    calls: list[list[str]] = []
    words: list[str] | None = None
    for word in shlex.split(line, comments=True):
        if word in _BETWEEN:
            words = None
        elif words is not None:
            words.append(word)
        elif word == "raysent":
            words = []
            calls.append(words)
    return calls


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for inner in getattr(node, "commands", {}).values():
        yield from _nodes(inner)


def _options_of(node: Any) -> set[str]:
    return {option for parameter in node.params for option in parameter.opts} | {"--help", "-h"}


@cache
def _entry_point_groups() -> frozenset[str]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return frozenset(pyproject["project"]["entry-points"])
