"""A search-space file, with the command line's own values in it -> a checked space, or a mistake at its file and line.

A space has a `base` (a complete run), a `search` (dotted name -> domain), and optionally `when` (names that are
searched only under a condition), `limits`, `cost` and `evaluation`.
It is checked against the models at every edge value, so that a mistake is found before any process is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from raysent.config import Document, Override, explain, read_yaml, shipped_path
from raysent.config import validate as validate_document
from raysent.data.tables import is_table
from raysent.errors import ConfigError, did_you_mean
from raysent.sweeps.components import check_components
from raysent.sweeps.space.limits import SpaceFile
from raysent.sweeps.space.local_paths import absolute_paths
from raysent.sweeps.space.overrides import apply_overrides
from raysent.sweeps.space.space import FAMILY, FORMS, Choice, Domain, SearchSpace, parse_domain
from raysent.training.run import RunConfig
from raysent.training.validation import FINISHED_METRICS

_WHITENING = "postprocessing.whitening"


def parse_space(document: Document, *, name: str, is_recorded: bool = False) -> SearchSpace:
    """Check a document that has been read.

    Args:
        document: The document.
        name: The space's name, unless the document gives another one.
        is_recorded: Whether a sweep has begun with it: its components were checked then, and reports do without them.

    Raises:
        ConfigError: With file, line, path and nearest fix.
    """
    sections = validate_document(SpaceFile, document)
    space = SearchSpace.model_construct(
        **{
            **dict(sections),
            "name": sections.name or name,
            "document": document,
            "domains": {
                key: _domain(document, key, written) for key, written in sections.search.items()
            },
            "conditions": _conditions(document, sections),
            "is_recorded": is_recorded,
        }
    )
    family = space.domains.get(FAMILY, Choice({}))
    if not isinstance(family, Choice) or not all(
        isinstance(option, dict) for option in family.options.values()
    ):
        raise document.error(
            ("search", FAMILY), "must be choice: {label: {part of a run: values, …}, …}"
        )
    stratum = space.evaluation.stratify_by
    if stratum is not None and stratum not in space.domains:
        message = f"must be a searched name; given {stratum!r}" + did_you_mean(
            stratum, space.domains
        )
        raise document.error(("evaluation", "stratify_by"), message)
    if space.evaluation.kinds and stratum and not isinstance(space.domains[stratum], Choice):
        raise document.error(
            ("evaluation", "kinds"),
            f"needs a choice in evaluation.stratify_by; {stratum} is searched between two numbers",
        )
    is_ranked = "metric" not in space.fit  # else this is checked when the metric is chosen
    if is_ranked and _WHITENING in space.domains and space.metric not in FINISHED_METRICS:
        raise document.error(
            ("search", _WHITENING),
            f"needs a metric of whitened vectors, {' or '.join(FINISHED_METRICS)}; given {space.metric}; "
            "name a task as metric, or whiten the best trial with 'raysent whiten'",
        )
    for params in (
        space.edges()
    ):  # every edge value, under every combination of the names that others depend on
        space.config(params)
    if not is_recorded:
        seeded = [
            section for section in ("search", "base") if "seed" in document.values.get(section, {})
        ]
        if seeded and space.limits.seeds > 1:
            message = "must be left out with limits.seeds above 1, which gives each trial its own"
            raise document.error((seeded[0], "seed"), message)
        _check_base(space)
        check_components(space)
    return space


def _domain(document: Document, name: str, written: Any) -> Domain:
    try:
        return parse_domain(written)
    except ConfigError as error:
        raise document.error(("search", name), str(error)) from None


def _conditions(document: Document, sections: SpaceFile) -> dict[str, dict[str, list[Any]]]:
    conditions: dict[str, dict[str, list[Any]]] = {}
    order = list(sections.search)
    for name, tests in sections.when.items():
        if name not in sections.search:
            raise document.error(("when", name), "is not searched" + did_you_mean(name, order))
        for other, labels in tests.items():
            if other not in sections.search:
                raise document.error(
                    ("when", name, other), "is not searched" + did_you_mean(other, order)
                )
            if order.index(other) > order.index(name):
                raise document.error(("when", name, other), f"must stand before '{name}' in search")
            wanted = labels if isinstance(labels, list) else [labels]
            domain = _domain(document, other, sections.search[other])
            known = domain.edges() if isinstance(domain, Choice) else wanted
            missing = [label for label in wanted if label not in known]
            if missing:
                raise document.error(
                    ("when", name, other),
                    f"no such value: {missing[0]!r}"
                    + did_you_mean(str(missing[0]), map(str, known)),
                )
            conditions.setdefault(name, {})[other] = wanted
    return conditions


def _check_base(space: SearchSpace) -> None:
    """Refuse unknown names in `base`, also inside a part that every trial replaces, where no edge shows them."""
    values = space.document.values.get("base", {})
    try:
        RunConfig.model_validate(values)
    except pydantic.ValidationError as error:
        if any(one["type"] == "extra_forbidden" for one in error.errors(include_url=False)):
            path, message = explain(error, values, RunConfig)
            raise space.document.error(("base", *path), message) from None


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a search-space file, for editors."""
    sections = SpaceFile.model_json_schema()
    run = RunConfig.model_json_schema()
    sections.setdefault("$defs", {}).update(run.pop("$defs", {}))
    forms = [
        {
            "type": "object",
            "required": [form],
            "additionalProperties": False,
            "properties": {form: {}},
        }
        for form in FORMS
    ]
    sections["properties"]["base"] = run
    sections["properties"]["search"] = {"type": "object", "additionalProperties": {"oneOf": forms}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **sections,
        "title": "raysent search space",
    }


FOLDER = "search_spaces"


def shipped_spaces() -> list[Path]:
    """Return the search-space files that are shipped, in the order of their names."""
    return sorted(shipped_path(FOLDER).glob("*.yaml"))


def find_space(name: str) -> Path:
    """Return the search-space file of a path or of a bare name, such as `quick_thoughts`.

    A bare name is looked up in the folder `search_spaces` of the working directory, then among the shipped files.

    Raises:
        ConfigError: If there is none.
    """
    path = Path(name)
    if is_table(name):
        raise ConfigError(
            f"{name}: must be a search-space file; given a table; to train on its labels, run "
            f"'raysent sweep --task {name}'"
        )
    if path.is_file():
        return path
    folders = [Path(FOLDER), shipped_path(FOLDER)]
    candidates = [folder / f"{name}.yaml" for folder in folders]
    found = next(
        (candidate for candidate in candidates if path.suffix == "" and candidate.is_file()), None
    )
    if found is not None:
        return found
    if path.is_dir():
        raise ConfigError(
            f"{name}: must be a search-space file; given a folder; name a .yaml file in it"
        )
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
            and ends the search over it, and over the part that it is in; `limits.x`, `cost.x`, `evaluation.x` and
            `metric` set a value of that section.

    Raises:
        ConfigError: With file and line, or option; path; and nearest fix.
    """
    return parse_space(apply_overrides(read_yaml(path), overrides), name=path.stem)


def with_overrides(space: SearchSpace, overrides: Sequence[str | Override]) -> SearchSpace:
    """Return a space with values of the command line in it.

    Raises:
        ConfigError: As `read_space`.
    """
    return parse_space(
        apply_overrides(space.document, overrides), name=space.name, is_recorded=space.is_recorded
    )


def with_values(space: SearchSpace, values: dict[str, Any]) -> SearchSpace:
    """Return the space of other plain values, in the form of `SearchSpace.written`.

    Raises:
        ConfigError: As `parse_space`.
    """
    document = replace(space.document, values=values)
    return parse_space(document, name=space.name, is_recorded=space.is_recorded)


def with_absolute_paths(space: SearchSpace) -> SearchSpace:
    """Return a space that names its files so that processes elsewhere find them where they stand here."""
    return with_values(space, absolute_paths(space.document.values))
