"""The files and folders of this machine that values name, wherever in them they are named."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raysent.evaluation.task_files.settings import split_task_name
from raysent.models.schemes import split_path
from raysent.platforms import expanded
from raysent.reading import parse_json

# Settings that are paths, and what they take that is no file's name.
_PATHS = ("path", "validation_path", "initial", "teacher", "data", "sts", "vectors")
_EMBEDDED = ("", "docs", "ppmi")


def local_files(text: Any, *, folder: Path = Path(), is_path: bool = False) -> list[Path]:
    """Return what a value names here: a file, a folder, or what a glob matches; none where it is something else.

    A bare name is a file's where the setting is a path. Relative paths start from `folder`.
    """
    if (
        not isinstance(text, str)
        or text in _EMBEDDED
        or not (is_path or {".", "/"} & set(text))
        or "://" in text
    ):
        return []
    path = folder / expanded(text)
    if glob.has_magic(text):
        return [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - may be absolute
    return [path] if os.path.exists(path) else []  # noqa: PTH110 - no error for a text that is longer than a path


def with_files(
    values: Any, rename: Callable[[str, list[Path]], Any], *, folder: Path = Path()
) -> Any:
    """Return plain values in which every text that names files here is replaced.

    Args:
        values: Mappings, lists and plain values.
        rename: The text and what it names -> what stands for it.
        folder: Where relative paths start.
    """

    def renamed(value: Any, *, is_path: bool = False) -> Any:
        if isinstance(value, Mapping):
            paths = [name for name in value if is_path or str(name).rpartition(".")[2] in _PATHS]
            return {name: renamed(inner, is_path=name in paths) for name, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner, is_path=is_path) for inner in value]
        found = local_files(value, folder=folder, is_path=is_path)
        if found:
            return rename(value, found)
        start, named = split_path(value) if isinstance(value, str) else ("", None)
        if start and named is not None:  # such as static:models/one
            return start + renamed(named, is_path=is_path)
        path, rejoin = table_of(value)
        new = path if path == value else renamed(path, is_path=is_path)
        return value if new == path else rejoin(new)

    return renamed(values)


def table_of(text: Any) -> tuple[Any, Callable[[Any], str]]:
    """Return the table, or the table of each split, that an own task with settings names, and what puts it back.

    ``reviews.csv:text=body`` and ``{"path": "reviews.csv", "text": "body"}`` are such tasks.
    """
    if not isinstance(text, str):
        return None, str
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            settings = parse_json(text)
            if isinstance(settings, dict) and "path" in settings:
                return settings["path"], lambda path: json.dumps({**settings, "path": path})
        return None, str
    name, path, options = split_task_name(text)
    head = "" if name is None else f"{name}="
    return path, lambda path: f"{head}{path}:{options}" if options else f"{head}{path}"


def named_files(values: Any) -> list[Path]:
    """Return every file and folder here that values name."""
    named: list[Path] = []

    def keep(text: str, found: list[Path]) -> str:
        named.extend(found)
        return text

    with_files(values, keep)
    return named


def absolute_paths(values: Any, *, folder: Path = Path()) -> Any:
    """Return plain values in which the files that stand here have absolute paths; relative ones start from `folder`."""
    return with_files(
        values, lambda text, _: str((folder / expanded(text)).absolute()), folder=folder
    )
