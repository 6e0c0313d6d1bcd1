"""A folder as a registry: every file in it is one kind of a thing, named by the `type` of its configuration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Annotated, Any, Union, get_args

import pydantic


def scan(package: str, folders: Iterable[str]) -> dict[str, ModuleType]:
    """Import every file of a package; each defines a `Config` whose `type: Literal["..."]` names it.

    Args:
        package: Dotted name.
        folders: Where its files are, as its `__path__`.

    Returns:
        Name -> module, in the order of the files' names.
    """
    found = [importlib.import_module(f"{package}.{entry.name}") for entry in pkgutil.iter_modules(folders)]
    return {get_args(module.Config.model_fields["type"].annotation)[0]: module for module in found}


def union(modules: Mapping[str, ModuleType]) -> Any:
    """Return the type that holds any of the modules' configurations, told apart by `type`."""
    kinds = tuple(module.Config for module in modules.values())
    return Annotated[Union[kinds], pydantic.Field(discriminator="type")] if len(kinds) > 1 else kinds[0]  # noqa: UP007
