"""Samplers, schedulers and trackers by name: each kind's folder, and the entry points of other packages.

A name stands for a class with these parts:

    Config            the model of its settings, those that a search space gives beside `type`
    __init__          takes the space, its settings, and `seed`; a tracker `folder`, the run folder, where it may write
    replay_problem    optional: why its decisions cannot be derived again from a journal; empty where they can
    TARGET            of a tracker, optional: the setting that `raysent track --to NAME:TARGET` gives

`build` makes one for a space. Constructing a component checks it: it raises `ConfigError` where its settings do not
fit the space, so that a mistake is found when the space is read. Some name a class of another library and its options
instead: samplers and pruners of Optuna, schedulers of Ray Tune (`NamedClass`).
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic

from raysent.config import StrictModel, validate
from raysent.errors import ConfigError, did_you_mean
from raysent.registry import Registry, by_table
from raysent.sweeps.space.limits import ComponentChoice
from raysent.sweeps.space.space import SearchSpace

# An option of this ending that is a mapping of `name` and `options` is a component itself.
_NESTED = ("sampler", "pruner")


def _registry(kind: str) -> Registry[Any]:
    folder = Path(__file__).parent / f"{kind}s"
    table = by_table(f"{kind}s".upper())
    return Registry(kind, package=f"{__package__}.{kind}s", folders=[str(folder)], read=table)


SAMPLERS = _registry("sampler")
SCHEDULERS = _registry("scheduler")
TRACKERS = _registry("tracker")


class NoSettings(StrictModel):
    """The settings of a component that has none."""


def build(registry: Registry[Any], space: SearchSpace, choice: ComponentChoice, *, at: str, **options: Any) -> Any:
    """Return the component that a space names.

    Args:
        registry: The components of its kind.
        space: The space.
        choice: The name and its settings.
        at: Dotted path of the choice in the space, for messages.
        options: What the kind's classes take beside the space and the settings, such as a seed.

    Raises:
        ConfigError: With file, line and path, if there is no such component, or its settings are wrong.
    """
    path = tuple(at.split("."))
    try:
        kind = registry.find(choice.type, where=at)
    except ConfigError as error:
        raise ConfigError(f"{space.document.where((*path, 'type'))}{error}") from None
    config = validate(kind.Config, replace(space.document, values=choice.settings), at=path)
    try:
        return kind(space, config, **options)
    except ConfigError as error:
        raise space.document.error(path, str(error)) from None


def check_components(space: SearchSpace) -> None:
    """Make the sampler, the scheduler and the trackers of a space, which checks them, and drop them.

    Raises:
        ConfigError: With file, line and path of the first that is wrong.
    """
    build(SAMPLERS, space, space.limits.sampler, at="limits.sampler", seed=0)
    build(SCHEDULERS, space, space.limits.scheduler, at="limits.scheduler", seed=0)
    for place, choice in enumerate(space.trackers):
        build(TRACKERS, space, choice, at=f"trackers.{place}", folder=Path())


def replay_problem(component: object) -> str:
    """Return why a component's decisions cannot be derived again from a journal; empty where they can."""
    return str(getattr(component, "replay_problem", ""))


class NamedClass(StrictModel):
    """A class by name.

    Attributes:
        name: Its name in the library, such as ``CmaEsSampler``; or a dotted path, such as ``my_package.MySampler``.
        options: The arguments of its constructor.
    """

    name: str
    options: dict[str, Any] = pydantic.Field(default_factory=dict)


def find(name: str, module: ModuleType) -> type:
    """Return a class by its name in a module, or by its dotted path.

    Raises:
        ConfigError: If there is none.
    """
    path, _, last = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(path) if path else module, last, None)
    except ImportError as error:
        raise ConfigError(f"name: {name} cannot be imported: {error}") from None
    if not inspect.isclass(found):
        known = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"name: no class {name} in {path or module.__name__}{did_you_mean(last, known)}")
    return found


def make(config: NamedClass, module: ModuleType, *, seed: int | None = None) -> Any:
    """Return an object of a class by name, seeded if its constructor takes a `seed` that the options do not give.

    Raises:
        ConfigError: If there is no such class, or its constructor refuses the options.
    """
    found = find(config.name, module)
    options = dict(config.options)
    for key, value in config.options.items():
        inside = _nested(key, value)
        if inside is not None:
            options[key] = make(inside, module, seed=seed)
    known = _parameters(found)
    unknown = next((key for key in options if key not in known), None)
    if unknown is not None:
        raise ConfigError(f"options.{unknown}: unknown option of {config.name}{did_you_mean(unknown, known)}")
    if seed is not None and "seed" in known:
        options.setdefault("seed", seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a class is experimental
            return found(**options)
    except Exception as error:  # whatever the class raises for an option that it does not take
        text = " ".join(str(error).split()) or "refused"
        raise ConfigError(f"options: {config.name}: {text}") from None


def takes_seed(config: NamedClass, module: ModuleType) -> bool:
    """Return whether a class, or a component inside it, is seeded by its constructor."""
    inside = [one for key, value in config.options.items() if (one := _nested(key, value)) is not None]
    return "seed" in _parameters(find(config.name, module)) or any(takes_seed(one, module) for one in inside)


def _nested(key: str, value: Any) -> NamedClass | None:
    """Return the component that an option's value describes, or None."""
    is_component = key.endswith(_NESTED) and isinstance(value, Mapping) and "name" in value
    return NamedClass(**value) if is_component else None


def _parameters(found: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(found).parameters if name not in ("args", "kwargs")]
