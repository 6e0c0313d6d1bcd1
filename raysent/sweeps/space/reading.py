"""A search-space file, with the command line's own values in it -> a checked space, or a mistake at its file and line.

A space has a `base` (a complete run), a `search` (dotted name -> domain), and optionally `when` (names that are
searched only under a condition), `constraints` (what must hold between values), `limits`, `cost` and `evaluation`.
It is checked against the models at every edge value, so that a mistake is found before any process is started.
Also the files of this machine that a space names, wherever in it they are named.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from raysent.config import (
    Document,
    KeyPath,
    Override,
    StrictModel,
    get_dotted,
    parse_override,
    read_yaml,
    set_dotted,
    shipped_path,
)
from raysent.config import validate as validate_document
from raysent.cost import CostConfig
from raysent.errors import ConfigError, did_you_mean
from raysent.evaluation.task_files.settings import split_task_name
from raysent.reading import parse_json
from raysent.sweeps.components import check_components
from raysent.sweeps.space.limits import ComponentChoice, EvaluationConfig, FittedName, Limits, PublishedModel
from raysent.sweeps.space.space import FORMS, Choice, Domain, SearchSpace, parse_domain
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
        """Check that the name is part of a folder's name and names no other folder."""
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
    """Return a searched name's domain, or the error at its line."""
    try:
        return parse_domain(written)
    except ConfigError as error:
        raise document.error(("search", name), str(error)) from None


def _conditions(document: Document, sections: SpaceFile) -> dict[str, dict[str, list[Any]]]:
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
# Sections that an option may reach; any other name is one of the run's.
_SECTIONS = frozenset({"base", "limits", "cost", "evaluation", "metric", "name", "trackers", "fit", "fitted"})


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


def apply_overrides(document: Document, overrides: Sequence[str | Override]) -> Document:
    """Return the document with the command line's values in it.

    A name of a run is set in `base`, which ends the search over it. If a whole part is searched, such as `encoder`,
    a value inside it ends the search over that part: the part is that of `base`. ``search.NAME={choice: [a, b]}``
    searches a name instead, or leaves out the other labels of a choice that stands there.

    Raises:
        ConfigError: If a name reaches inside a single value, or inside a part that another option searches.
    """
    document = replace(document, options={}).with_overrides([])  # what follows changes the copy
    for given in overrides:
        override = Override(*parse_override(given), f"--set {given}") if isinstance(given, str) else given
        if override.name.startswith("search."):
            values, searched = document.values, override.name.removeprefix("search.")
            if isinstance(values.setdefault("search", {}), dict):  # else the check that follows says so
                values["search"][searched] = _restricted(values, searched, override.value)
            document = replace(document, options={**document.options, ("search", searched): override.option})
            _end_fitting(values, searched)
            continue
        is_section = override.name.split(".")[0] in _SECTIONS
        name = override.name if is_section else f"base.{override.name}"
        document = document.with_overrides([override._replace(name=name)])
        if name.startswith("base."):
            _end_searches(document.values, name.removeprefix("base."), override.value)
        _end_fitting(document.values, name.removeprefix("base."))
    _check_not_lost(document.values.get("search"), document.options)
    return document


def with_overrides(space: SearchSpace, overrides: Sequence[str | Override]) -> SearchSpace:
    """Return a space with values of the command line in it.

    Raises:
        ConfigError: As `read_space`.
    """
    return parse_space(apply_overrides(space.document, overrides), name=space.name, is_recorded=space.is_recorded)


def _restricted(values: dict[str, Any], name: str, given: Any) -> Any:
    """Return a domain; a list of labels of the choice that stands there keeps what these stand for.

    Names that are searched only under labels that are left out are not searched either.
    """
    before = values["search"].get(name)
    options = before.get("choice") if isinstance(before, dict) else None
    labels = given.get("choice") if isinstance(given, dict) else None
    if not isinstance(options, dict) or not isinstance(labels, list):
        return given
    if not all(isinstance(label, str) and label in options for label in labels):
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
    """Refuse options that contradict each other: one searches a part, another one sets a value inside it."""
    for path, option in options.items():
        if path[0] == "search" and isinstance(search, dict) and path[1] not in search:
            raise ConfigError(f"{option}: another option sets a value in '{path[1]}', which ends its search; name one")
        wider = [".".join(path[1:end]) for end in range(2, len(path))]
        searched = next((name for name in wider if isinstance(search, dict) and name in search), None)
        if path[0] == "base" and searched is not None:
            raise ConfigError(f"{option}: '{searched}' is searched as a whole and would replace it; set '{searched}'")


def _end_fitting(values: dict[str, Any], name: str) -> None:
    """Take the names out of `fit` that a given value decides: its own, those inside it, and a member's of the same."""
    path = name.removeprefix("second_").split(".")  # those of both encoders are one name

    def is_given(fitted: str) -> bool:
        of_it = fitted.split(".")
        return of_it[: len(path)] == path or (of_it[0], of_it[-1]) == (path[0], path[-1])

    if isinstance(values.get("fit"), list):
        values["fit"] = [one for one in values["fit"] if not (isinstance(one, str) and is_given(one))]


def _end_searches(values: dict[str, Any], name: str, value: Any) -> None:
    """End the search over a name that has been given a value, and over the parts that it is in."""
    _end_search(values, name, value)
    while "." in name:
        name = name.rpartition(".")[0]
        _end_search(values, name, get_dotted(values, f"base.{name}"))


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
    if get_dotted(values, "evaluation.stratify_by") == name:
        set_dotted(values, "evaluation.stratify_by", None)


def local_files(text: Any, *, folder: Path = Path()) -> list[Path]:
    """Return what a value names here: a file, a folder, or what a glob matches; none where it is something else.

    A bare name, such as that of the embedded corpus, is no file's. Relative paths start from `folder`.
    """
    if not isinstance(text, str) or not {".", "/"} & set(text) or "://" in text:
        return []
    path = folder / Path(text).expanduser()
    if glob.has_magic(text):
        return [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - may be absolute
    return [path] if path.exists() else []


def with_files(values: Any, rename: Callable[[str, list[Path]], Any], *, folder: Path = Path()) -> Any:
    """Return plain values in which every text that names files here is replaced.

    Args:
        values: Mappings, lists and plain values.
        rename: The text and what it names -> what stands for it.
        folder: Where relative paths start.
    """
    if isinstance(values, dict):
        return {key: with_files(value, rename, folder=folder) for key, value in values.items()}
    if isinstance(values, list):
        return [with_files(value, rename, folder=folder) for value in values]
    found = local_files(values, folder=folder)
    if found:
        return rename(values, found)
    path, rejoin = table_of(values)
    renamed = path if path == values else with_files(path, rename, folder=folder)
    return values if renamed == path else rejoin(renamed)


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


def named_files(values: Any) -> Iterator[Path]:
    """Yield every file and folder here that values name."""
    if isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from named_files(value)
        return
    yield from local_files(values)
    path, _ = table_of(values)
    if path != values:
        yield from named_files(path)


def absolute_paths(values: Any, *, folder: Path = Path()) -> Any:
    """Return plain values in which the files that stand here have absolute paths; relative ones start from `folder`."""
    return with_files(values, lambda text, _: str((folder / Path(text).expanduser()).absolute()), folder=folder)


def with_absolute_paths(space: SearchSpace) -> SearchSpace:
    """Return a space that names its files so that processes elsewhere find them where they stand here."""
    values = absolute_paths(space.document.values)
    return parse_space(replace(space.document, values=values), name=space.name, is_recorded=space.is_recorded)
