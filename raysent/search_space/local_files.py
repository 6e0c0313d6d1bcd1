"""The files of this machine that a search space names, wherever in it they are named."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysent.search_space.parsing import parse_space
from raysent.search_space.space import SearchSpace


def local_files(text: Any) -> list[Path]:
    """Return what a value names here: a file, a folder, or what a glob matches; none where it is something else.

    A bare name, such as that of the embedded corpus, is no file's.
    """
    if not isinstance(text, str) or not {".", "/"} & set(text) or "://" in text:
        return []
    path = Path(text).expanduser()
    if glob.has_magic(text):
        return [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - may be absolute
    return [path] if path.exists() else []


def with_files(values: Any, rename: Callable[[str, list[Path]], Any]) -> Any:
    """Return plain values in which every text that names files here is replaced.

    Args:
        values: Mappings, lists and plain values.
        rename: The text and what it names -> what stands for it.
    """
    if isinstance(values, dict):
        return {key: with_files(value, rename) for key, value in values.items()}
    if isinstance(values, list):
        return [with_files(value, rename) for value in values]
    found = local_files(values)
    return rename(values, found) if found else values


def named_files(values: Any) -> Iterator[Path]:
    """Yield every file and folder here that values name."""
    if isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from named_files(value)
        return
    yield from local_files(values)


def with_absolute_paths(space: SearchSpace) -> SearchSpace:
    """Return a space that names its files so that processes elsewhere find them where they stand here."""
    values = with_files(space.document.values, lambda text, _: str(Path(text).expanduser().absolute()))
    return parse_space(replace(space.document, values=values), name=space.name)
