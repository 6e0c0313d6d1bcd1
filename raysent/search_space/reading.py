"""A name on the command line -> a search-space file, with the command line's own values in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysent.config import Document, KeyPath, Override, get_dotted, parse_override, read_yaml, set_dotted
from raysent.errors import ConfigError, did_you_mean
from raysent.search_space.parsing import parse_space
from raysent.search_space.space import SearchSpace

FOLDER = "search_spaces"
# Sections that an option may reach; any other name is one of the run's.
_SECTIONS = frozenset({"base", "limits", "cost", "judge", "metric", "name"})


def find_space(name: str) -> Path:
    """Return the file that a path or a bare name (`quick_thoughts`) of the folder `search_spaces` means.

    Raises:
        ConfigError: If there is none.
    """
    path = Path(name)
    if path.is_file():
        return path
    folders = [Path(FOLDER), Path(__file__).parents[2] / FOLDER]
    candidates = [folder / f"{name}.yaml" for folder in folders]
    found = next((candidate for candidate in candidates if path.suffix == "" and candidate.is_file()), None)
    if found is not None:
        return found
    if path.is_dir():
        raise ConfigError(f"{name}: must be a search-space file; given a folder; name a .yaml file in it")
    beside = [str(file) for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    shipped = [file.stem for folder in folders for file in folder.glob("*.yaml")]
    nearest = did_you_mean(name, {*beside, *shipped})
    if "did you mean" not in nearest:
        nearest = did_you_mean(path.stem, shipped)
    raise ConfigError(f"{name}: no such search space{nearest}")


def read_space(path: Path, *, overrides: Sequence[str | Override] = ()) -> SearchSpace:
    """Read and check a search-space file.

    Args:
        path: The file.
        overrides: ``a.b=c`` as after `--set`, or values of other options. A name of a run replaces the `base` value
            and ends the search over it; `limits.x`, `cost.x`, `judge.x` and `metric` reach the sections of that name.

    Raises:
        ConfigError: With file and line, or option; path; and nearest fix.
    """
    return parse_space(apply_overrides(read_yaml(path), overrides), name=path.stem)


def apply_overrides(document: Document, overrides: Sequence[str | Override]) -> Document:
    """Return the document with the command line's values in it.

    A name of a run is set in `base`, and is searched no more; ``search.NAME={choice: [a, b]}`` searches it instead, or
    leaves out the other labels of a choice that stands there.

    Raises:
        ConfigError: If a name reaches inside a single value, or inside what is searched as a whole.
    """
    values = copy.deepcopy(document.values)
    options: dict[KeyPath, str] = {}
    for given in overrides:
        override = Override(*parse_override(given), f"--set {given}") if isinstance(given, str) else given
        if override.name.startswith("search."):
            searched = override.name.removeprefix("search.")
            if isinstance(values.setdefault("search", {}), dict):  # else the check that follows says so
                values["search"][searched] = _restricted(values, searched, override.value)
            options["search", searched] = override.option
            continue
        is_section = override.name.split(".")[0] in _SECTIONS
        name = override.name if is_section else f"base.{override.name}"
        try:
            set_dotted(values, name, override.value)
        except ConfigError as error:
            raise ConfigError(f"{override.option}: {error}") from None
        options[tuple(name.split("."))] = override.option
        if name.startswith("base."):
            _end_search(values, name.removeprefix("base."), override.value)
    _check_not_lost(values.get("search"), options)
    return Document(values=values, source=document.source, lines=document.lines, options=options)


def _restricted(values: dict[str, Any], name: str, given: Any) -> Any:
    """Return a domain; a list of labels of the choice that stands there keeps what these stand for.

    Names that are searched only under labels that are left out are not searched either.
    """
    before = values["search"].get(name)
    options = before.get("choice") if isinstance(before, dict) else None
    labels = given.get("choice") if isinstance(given, dict) else None
    if not isinstance(options, dict) or not isinstance(labels, list) or not set(labels) <= options.keys():
        return given
    when = values.get("when") if isinstance(values.get("when"), dict) else {}
    for other, tests in list((when or {}).items()):
        if isinstance(tests, dict) and name in tests:
            wanted = tests[name] if isinstance(tests[name], list) else [tests[name]]
            tests[name] = [label for label in wanted if label in labels]
            if not tests[name]:
                values["search"].pop(other, None)
                values["when"].pop(other)
    return {"choice": {label: options[label] for label in labels}}


def _check_not_lost(search: Any, options: Mapping[KeyPath, str]) -> None:
    """Refuse a value inside something that is searched as a whole: what is drawn would replace it in silence."""
    for path, option in options.items():
        wider = [".".join(path[1:end]) for end in range(2, len(path))]
        searched = next((name for name in wider if isinstance(search, dict) and name in search), None)
        if path[0] == "base" and searched is not None:
            raise ConfigError(f"{option}: '{searched}' is searched as a whole and would replace it; set '{searched}'")


def _end_search(values: dict[str, Any], name: str, value: Any) -> None:
    """Take a name that has been given a value out of whatever speaks of searching it.

    Names that are searched only under other values of it are not searched either.
    """
    search, when = (values[key] if isinstance(values.get(key), dict) else {} for key in ("search", "when"))
    if search.pop(name, None) is None:
        return
    when.pop(name, None)
    for other, tests in list(when.items()):
        if isinstance(tests, dict) and name in tests:
            labels = tests.pop(name)
            if value not in (labels if isinstance(labels, list) else [labels]):
                search.pop(other, None)
                when.pop(other)
    if get_dotted(values, "judge.each") == name:
        set_dotted(values, "judge.each", None)
