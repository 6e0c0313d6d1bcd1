"""A class of another library by name, with its options: samplers and pruners of Optuna, schedulers of Ray Tune."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pydantic

from raysent.config import StrictModel
from raysent.errors import ConfigError, did_you_mean

# An option of this ending that is a mapping of `name` and `options` is a component itself.
_NESTED = ("sampler", "pruner")


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
