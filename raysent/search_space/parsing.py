"""What was read of a search space -> a checked one, or a mistake at its file and line.

A space has a `base` (a complete run), a `search` (dotted name -> domain), and optionally `when` (names that are
searched only under a condition), `constraints` (what must hold between values), `limits`, `cost` and `judge`. It is
checked against the models at every edge value, so that a mistake is found before any process is started.
"""

from __future__ import annotations

from typing import Any

import pydantic

from raysent.config import Document, StrictModel
from raysent.config import validate as validate_document
from raysent.cost import CostConfig
from raysent.errors import ConfigError, did_you_mean
from raysent.run import RunConfig
from raysent.search_space.domains import FORMS, Choice, Domain, parse_domain
from raysent.search_space.limits import JudgeConfig, Limits
from raysent.search_space.space import SearchSpace
from raysent.validation import METRICS, Metric


class _Sections(StrictModel):
    """The top level of a search-space file."""

    name: str | None = None
    description: str = ""
    metric: Metric = "context_accuracy"
    base: dict[str, Any] = pydantic.Field(default_factory=dict)
    search: dict[str, Any] = pydantic.Field(default_factory=dict)
    when: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)
    constraints: list[str] = pydantic.Field(default_factory=list)
    limits: Limits = Limits()
    cost: CostConfig = CostConfig()
    judge: JudgeConfig = JudgeConfig()


def parse_space(document: Document, *, name: str) -> SearchSpace:
    """Check a document that has been read.

    Raises:
        ConfigError: With file, line, path and nearest fix.
    """
    sections = validate_document(_Sections, document)
    space = SearchSpace(
        name=sections.name or name,
        document=document,
        metric=sections.metric,
        mode=METRICS[sections.metric],
        domains={key: _domain(document, key, written) for key, written in sections.search.items()},
        conditions=_conditions(document, sections),
        constraints=sections.constraints,
        limits=sections.limits,
        judge=sections.judge,
        cost=sections.cost,
    )
    if space.judge.each is not None and space.judge.each not in space.domains:
        raise document.error(
            ("judge", "each"),
            f"must be a searched name; given {space.judge.each!r}" + did_you_mean(space.judge.each, space.domains),
        )
    _check_rungs(space)
    _check_edges(space)
    return space


def _check_rungs(space: SearchSpace) -> None:
    """Refuse dollars where nothing says what anything costs."""
    if space.limits.sampler == "ei_per_usd" and not space.cost.is_priced:
        raise space.document.error(("limits", "sampler"), "ei_per_usd needs a price; set cost.usd_per_hour")
    if space.limits.rung_unit == "usd" and not space.cost.is_priced:
        raise space.document.error(("limits", "rung_unit"), "usd needs a price; set cost.usd_per_hour")


def _domain(document: Document, name: str, written: Any) -> Domain:
    """Return a searched name's domain, or the error at its line."""
    try:
        return parse_domain(written)
    except ConfigError as error:
        raise document.error(("search", name), str(error)) from None


def _conditions(document: Document, sections: _Sections) -> dict[str, dict[str, list[Any]]]:
    """Return the `when` section with every condition as a list of labels."""
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
    sections = _Sections.model_json_schema()
    run = RunConfig.model_json_schema()
    sections.setdefault("$defs", {}).update(run.pop("$defs", {}))
    forms = [
        {"type": "object", "required": [form], "additionalProperties": False, "properties": {form: {}}}
        for form in FORMS
    ]
    sections["properties"]["base"] = run
    sections["properties"]["search"] = {"type": "object", "additionalProperties": {"oneOf": forms}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "raysent search space", **sections}
