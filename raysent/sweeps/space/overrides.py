"""The command line's values in a search space: they end the search over what they set, and the fitting of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pydantic

from raysent.config import (
    Document,
    KeyPath,
    Override,
    dotted_values,
    get_dotted,
    parse_override,
    set_dotted,
)
from raysent.errors import ConfigError, did_you_mean
from raysent.sweeps.space.space import FAMILY, lay_over
from raysent.training.run import RunConfig

# Sections that an option may reach; any other name is one of the run's.
_SECTIONS = frozenset(
    {
        "base",
        "search",
        "when",
        "limits",
        "cost",
        "cluster",
        "evaluation",
        "metric",
        "name",
        "trackers",
        "fit",
        "fitted",
        "first",
        "pretrained",
    }
)


def apply_overrides(document: Document, overrides: Sequence[str | Override]) -> Document:
    """Return the document with the command line's values in it.

    A name of a run is set in `base` and in each family that takes it, which ends the search over it. If a whole part is
    searched, such as `encoder`, a value inside it ends the search over that part: the part is that of `base`. A name of
    encoders that the file has under `fit` is set where it is fitted: in both, in members and in searched ones.
    ``search.NAME={choice: [a, b]}`` searches a name instead, or leaves out the other labels of a choice there;
    ``search.NAME=null`` searches it no more.

    Raises:
        ConfigError: If a name reaches inside a single value, or inside a part that another option searches.
    """
    before, fit, of_encoders = document.options, document.values.get("fit"), dict[KeyPath, str]()
    document = replace(document, options={}).with_overrides([])  # what follows changes the copy
    all_given = [
        Override(*parse_override(one), f"--set {one}") if isinstance(one, str) else one
        for one in overrides
    ]
    _leave_encoders_to_start(document.values, [one.name for one in all_given])
    for override in all_given:
        if override.name.startswith("search."):
            values, searched = document.values, override.name.removeprefix("search.")
            if override.value is None:
                _end_searches(values, searched, with_parts=False)
                continue
            if isinstance(
                values.setdefault("search", {}), dict
            ):  # else the check that follows says so
                values["search"][searched] = _restricted(values, searched, override)
            document = replace(
                document, options={**document.options, ("search", searched): override.option}
            )
            _end_fitting(values, searched)
            continue
        is_section = override.name.split(".")[0] in _SECTIONS
        name = override.name if is_section else f"base.{override.name}"
        of_run = name.removeprefix("base.")
        is_fitted = of_run.startswith("encoder.") and isinstance(fit, list) and of_run in fit
        names = (f"{one.name.removeprefix('search.').removeprefix('base.')}." for one in all_given)
        apart = tuple(one for one in names if not f"{of_run}.".startswith(one))
        found = _set_parts(document.values, of_run, override.value, apart, is_fitted=is_fitted)
        is_of_families = not found and _is_of_families_alone(
            document.values, of_run, override.value
        )
        if is_of_families:
            of_encoders[("base", *of_run.split("."))] = override.option
        elif not found:
            document = document.with_overrides([override._replace(name=name)])
        of_encoders |= {("base", *one.split(".")): override.option for one in found}
        for one in found or {of_run}:
            _end_searches(document.values, one, with_parts=not found)
        _end_fitting(document.values, of_run)
    _check_not_lost(document.values.get("search"), document.options)
    return replace(document, options={**before, **document.options, **of_encoders})


def _is_of_families_alone(values: dict[str, Any], name: str, value: Any) -> bool:
    """Return whether a name of a run is a setting of some family's part, and not of the part that `base` has.

    Args:
        values: Of the space, with the value in each family that takes it.
        name: The name, such as ``encoder.members.fixed.embedding.vectors``.
        value: Its value.
    """
    part, _, inside = name.partition(".")
    families = get_dotted(values, f"search.{FAMILY}.choice")
    base = values.get("base")
    if not inside or not isinstance(families, dict) or not isinstance(base, dict):
        return False
    taken = [run for run in families.values() if get_dotted(run, name, ...) == value]
    if not taken or not isinstance(base.get(part), dict):
        return False
    changed = copy.deepcopy(base)
    set_dotted(changed, name, value)
    return _is_unknown(changed, name)


def _is_unknown(run: dict[str, Any], name: str) -> bool:
    """Return whether a run has no setting of a name that was set in it."""
    try:
        RunConfig.model_validate(run)
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False)
        return any(
            one["type"] == "extra_forbidden" and one["loc"][-1] in name.split(".") for one in errors
        )
    return False


def _leave_encoders_to_start(values: dict[str, Any], names: Sequence[str]) -> None:
    """Take the encoders out of `base` where an option names the model that runs start with: they are that model's.

    Args:
        values: Of the space.
        names: What is set; an encoder that is set too stays.
    """
    of_run = [name.removeprefix("base.") for name in names]
    base = values.get("base")
    if "initial" not in of_run or not isinstance(base, dict):
        return
    for part in ("encoder", "second_encoder"):
        if not any(f"{name}.".startswith(f"{part}.") for name in of_run):
            base.pop(part, None)


def _restricted(values: dict[str, Any], name: str, override: Override) -> Any:
    """Return a domain; a list of labels of the choice that stands there keeps what these stand for.

    Names that are searched only under labels that are left out are not searched either.
    """
    before, given = values["search"].get(name), override.value
    options = before.get("choice") if isinstance(before, dict) else None
    labels = given.get("choice") if isinstance(given, dict) else None
    if not isinstance(options, dict) or not isinstance(labels, list):
        return given
    unknown = [
        label
        for label in labels
        if not isinstance(label, str | int | float) or label not in options
    ]
    has_parts = any(isinstance(option, dict) for option in options.values())
    if unknown and (name == FAMILY or (has_parts and len(unknown) < len(labels))):
        nearest = did_you_mean(str(unknown[0]), map(str, options))
        raise ConfigError(f"{override.option}: no such label '{unknown[0]}'{nearest}")
    if unknown:
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
        is_of_search = path[0] == "search" and len(path) > 1
        if is_of_search and isinstance(search, dict) and path[1] not in search:
            raise ConfigError(
                f"{option}: another option sets a value in '{path[1]}', which ends its search; name one"
            )
        wider = [".".join(path[1:end]) for end in range(2, len(path))]
        searched = next(
            (name for name in wider if isinstance(search, dict) and name in search), None
        )
        if path[0] == "base" and searched is not None:
            raise ConfigError(
                f"{option}: '{searched}' is searched as a whole and would replace it; set '{searched}'"
            )


def _end_fitting(values: dict[str, Any], name: str) -> None:
    """Take the names out of `fit` that a given value decides: its own, those inside it, and a member's of the same."""
    path = name.removeprefix("second_").split(".")  # those of both encoders are one name

    def is_given(fitted: str) -> bool:
        of_it = fitted.split(".")
        return of_it[: len(path)] == path or (of_it[0], of_it[-1]) == (path[0], path[-1])

    if isinstance(values.get("fit"), list):
        values["fit"] = [
            one for one in values["fit"] if not (isinstance(one, str) and is_given(one))
        ]


def _set_parts(
    values: dict[str, Any], name: str, value: Any, apart: tuple[str, ...], *, is_fitted: bool
) -> set[str]:
    """Set a given value in each family with a part of its own that takes it; encoders and members share their names.

    One that `fit` has named is set in the encoders of `base` and in searched ones too, and all its names are returned.
    Values inside the names `apart` are given apart.
    """
    (part, _, inside), found = name.partition("."), set[str]()
    of_base = values["base"] if isinstance(values.get("base"), dict) else {}
    base, search = ({"base": of_base} if is_fitted and of_base else {}), values.get("search")
    of_members = (f"run.{part}.members.", f"run.second_{part}.members.")
    holders = [("run", base), ("run", get_dotted(values, f"search.{FAMILY}.choice"))]
    for searched, domain in search.items() if is_fitted and isinstance(search, dict) else ():
        if searched.removeprefix("second_").split(".")[0] == part:
            holders.append((f"run.{searched}", get_dotted(domain, "choice")))
    for at, options in holders:
        for label, option in options.items() if isinstance(options, dict) else ():
            whole: dict[str, Any] = {}
            set_dotted(whole, at, option)
            typed = [
                one
                for one, _ in dotted_values(whole)
                if one.startswith(of_members) and one.endswith(".type")
            ]
            members = [one.removeprefix("run.").removesuffix(".type") for one in typed]
            for place in [part, f"second_{part}", *members] if inside else [part]:
                to, before = (
                    f"{place}.{inside}" if inside else place,
                    get_dotted(whole["run"], place, ...),
                )
                if (
                    before is ...
                    or (inside and not isinstance(before, dict))
                    or f"{to}.".startswith(apart)
                ):
                    continue
                changed, run = copy.deepcopy(whole), dict(of_base)
                set_dotted(changed["run"], to, value)
                lay_over(run, changed["run"])
                if _is_unknown(run, name):
                    continue
                whole = changed
                found.add(to)
            options[label] = get_dotted(whole, at)
    values.update(base)
    return found if is_fitted else set()


def _end_searches(values: dict[str, Any], name: str, *, with_parts: bool = True) -> None:
    """Take a name that has been given a value, and the parts that it is in, out of whatever speaks of searching them.

    Names that are searched only under other values of it are not searched either.
    """
    search, when = (
        values[key] if isinstance(values.get(key), dict) else {} for key in ("search", "when")
    )
    while name:
        if search.pop(name, None) is not None:
            when.pop(name, None)
            for other, tests in list(when.items()):
                if isinstance(tests, dict) and name in tests:
                    labels = tests.pop(name)
                    if get_dotted(values, f"base.{name}") not in (
                        labels if isinstance(labels, list) else [labels]
                    ):
                        search.pop(other, None)
                        when.pop(other)
            if get_dotted(values, "evaluation.stratify_by") == name:
                set_dotted(values, "evaluation.stratify_by", None)
        name = name.rpartition(".")[0] if with_parts else ""
