"""A search-space file, with the command line's own values in it -> a checked space, or a mistake at its file and line.

A space has a `base` (a complete run), a `search` (dotted name -> domain), and optionally `when` (names that are
searched only under a condition), `constraints` (what must hold between values), `limits`, `cost` and `evaluation`.
It is checked against the models at every edge value, so that a mistake is found before any process is started.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from raysent.config import (
    Document,
    Override,
    StrictModel,
    read_yaml,
    shipped_path,
)
from raysent.config import validate as validate_document
from raysent.cost import CostConfig
from raysent.errors import ConfigError, did_you_mean
from raysent.sweeps.components import check_components
from raysent.sweeps.space.domains import FORMS, Choice, Domain, parse_domain
from raysent.sweeps.space.limits import ComponentChoice, EvaluationConfig, FittedName, Limits, PublishedModel
from raysent.sweeps.space.local_paths import absolute_paths
from raysent.sweeps.space.overrides import apply_overrides
from raysent.sweeps.space.space import SearchSpace
from raysent.training.run import RunConfig
from raysent.training.validation import FINISHED_METRICS, METRICS, Metric

_WHITENING = "postprocessing.whitening"


class SpaceFile(StrictModel):
    """The top level of a search-space file.

    Attributes:
        name: What the sweep is called; by default the name of the file.
        description: For readers of the file and of the report.
        metric: What trials are ranked by, measured on the validation set that all trials share. Where `fit` names it,
            the metric of the tasks that are named, else `document_accuracy` where the text has the documents for it.
        base: A complete run; see below.
        search: Dotted name of the run -> `choice`, `uniform`, `loguniform`, `randint` or `quniform`.
        when: Searched name -> other searched names and the values under which it is searched.
        constraints: Expressions over dotted names, such as ``training.batch_size > 2 * objective.context_size``; a
            proposal that violates one is not trained.
        limits: How much the sweep may use, and how it searches.
        cost: What machines cost and what the sweep may spend.
        evaluation: What is evaluated when all trials have ended.
        trackers: Who follows the sweep while it runs: names, or mappings of `type` and settings.
        fit: Names whose values are chosen for the text, the machine and the time before the sweep starts. A name is
            that of a setting wherever it is written, also of both encoders and their members, and in `search`. `--set`
            of the setting takes it out of the list; `--set fit=[]` uses all values as they are written.
        fitted: Names whose values were chosen so, and why; raysent writes it into `sweep.json`.
        published: The paper and the model whose settings `--scale paper` uses.
    """

    name: str | None = None
    description: str = ""
    metric: Metric = "context_accuracy"
    base: dict[str, Any] = pydantic.Field(default_factory=dict)
    search: dict[str, Any] = pydantic.Field(default_factory=dict)
    when: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)
    constraints: list[str] = pydantic.Field(default_factory=list)
    limits: Limits = Limits()
    cost: CostConfig = CostConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    trackers: list[ComponentChoice] = pydantic.Field(default_factory=list)
    fit: list[FittedName] = pydantic.Field(default_factory=list)
    fitted: dict[str, str] = pydantic.Field(default_factory=dict)
    published: PublishedModel | None = None

    @pydantic.field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is not None and re.fullmatch(r"\w[\w .+=-]{0,99}", name) is None:
            raise ValueError(f"must be letters, digits, spaces and _.+=-, and not begin with a point; given {name!r}")
        return name


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
    space = SearchSpace(
        name=sections.name or name,
        document=document,
        metric=sections.metric,
        mode=METRICS[sections.metric],
        domains={key: _domain(document, key, written) for key, written in sections.search.items()},
        conditions=_conditions(document, sections),
        constraints=sections.constraints,
        limits=sections.limits,
        evaluation=sections.evaluation,
        cost=sections.cost,
        trackers=sections.trackers,
        fit=sections.fit,
        fitted=sections.fitted,
        published=sections.published,
        is_recorded=is_recorded,
    )
    stratum = space.evaluation.stratify_by
    if stratum is not None and stratum not in space.domains:
        message = f"must be a searched name; given {stratum!r}" + did_you_mean(stratum, space.domains)
        raise document.error(("evaluation", "stratify_by"), message)
    if space.limits.rung_unit == "usd" and not space.cost.is_priced:
        raise document.error(("limits", "rung_unit"), "usd needs a price; set cost.usd_per_hour")
    is_ranked = "metric" not in space.fit  # else this is checked when the metric is chosen
    if is_ranked and _WHITENING in space.domains and space.metric not in FINISHED_METRICS:
        raise document.error(
            ("search", _WHITENING),
            f"needs a metric of whitened vectors, {' or '.join(FINISHED_METRICS)}; given {space.metric}; "
            "name a task with --metric, or whiten the best trial with 'raysent whiten'",
        )
    _check_edges(space)
    if not is_recorded:
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
                raise document.error(("when", name, other), "is not searched" + did_you_mean(other, order))
            if order.index(other) > order.index(name):
                raise document.error(("when", name, other), f"must stand before '{name}' in search")
            wanted = labels if isinstance(labels, list) else [labels]
            domain = _domain(document, other, sections.search[other])
            known = domain.edges() if isinstance(domain, Choice) else wanted
            missing = [label for label in wanted if label not in known]
            if missing:
                raise document.error(
                    ("when", name, other),
                    f"no such value: {missing[0]!r}" + did_you_mean(str(missing[0]), map(str, known)),
                )
            conditions.setdefault(name, {})[other] = wanted
    return conditions


def _check_edges(space: SearchSpace) -> None:
    """Validate the run at every edge value, under every combination of the names that others depend on."""
    if not space.domains:
        space.config({})
    satisfied = False
    for params in space.all_edges():
        satisfied |= space.violated(params) is None
        space.config(params)
    if space.domains and space.constraints and not satisfied:
        raise space.document.error(("constraints",), "no edge of the search space satisfies them all")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a search-space file, for editors."""
    sections = SpaceFile.model_json_schema()
    run = RunConfig.model_json_schema()
    sections.setdefault("$defs", {}).update(run.pop("$defs", {}))
    forms = [
        {"type": "object", "required": [form], "additionalProperties": False, "properties": {form: {}}}
        for form in FORMS
    ]
    sections["properties"]["base"] = run
    sections["properties"]["search"] = {"type": "object", "additionalProperties": {"oneOf": forms}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **sections, "title": "raysent search space"}


FOLDER = "search_spaces"


def find_space(name: str) -> Path:
    """Return the search-space file of a path or of a bare name, such as `quick_thoughts`.

    A bare name is looked up in the folder `search_spaces` of the working directory, then among the shipped files.

    Raises:
        ConfigError: If there is none.
    """
    path = Path(name)
    if path.is_file():
        return path
    folders = [Path(FOLDER), shipped_path(FOLDER)]
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
    return parse_space(apply_overrides(space.document, overrides), name=space.name, is_recorded=space.is_recorded)


def with_absolute_paths(space: SearchSpace) -> SearchSpace:
    """Return a space that names its files so that processes elsewhere find them where they stand here."""
    values = absolute_paths(space.document.values)
    return parse_space(replace(space.document, values=values), name=space.name, is_recorded=space.is_recorded)
