"""Kinds of components, found by name: the files of a folder, and what other installed packages add by entry points.

    ENCODERS = Registry("encoder", package=__name__, folders=__path__, read=by_type)
    ENCODERS["gru"]            the module raysent.models.encoders.gru
    ENCODERS.components()      every encoder, with the package that it comes from

Another package adds an encoder by one entry point, whose value is a module (or any object) of the same form as a file
of the folder:

    [project.entry-points."raysent.encoders"]
    first_word = "my_package.first_word"

A package that cannot be imported harms nobody else: its error is kept, and told to whoever asks for the name.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args

import pydantic

from raysent.errors import ConfigError, did_you_mean

T = TypeVar("T")

OWN_PACKAGE = "raysent"


@dataclass(frozen=True)
class Component(Generic[T]):
    """One entry of a registry.

    Attributes:
        name: The name that users write.
        value: What the name stands for.
        package: The installed package that it comes from, with its version where it is another's.
        module: The dotted name of the module that defines it.
    """

    name: str
    value: T
    package: str
    module: str

    @property
    def summary(self) -> str:
        """The first line of its docstring, or of its module's."""
        own = None if isinstance(self.value, (str, int, float, dict)) else inspect.getdoc(self.value)
        text = own or inspect.getdoc(importlib.import_module(self.module)) or ""
        return text.split("\n")[0]


class Registry(Mapping[str, T]):
    """Components of one kind by name, in the order of their files, then of their entry points.

    Nothing is imported before the first name is asked for.
    """

    def __init__(
        self,
        kind: str,
        *,
        package: str,
        folders: Iterable[str],
        read: Callable[[Any], Mapping[str, T]],
        plural: str | None = None,
    ) -> None:
        """Name where components are.

        Args:
            kind: What one is called, for messages, such as ``encoder``.
            package: Dotted name of the folder.
            folders: Where its files are, as its ``__path__``.
            read: A module of the folder, or what an entry point names -> its components by name.
            plural: The entry points are those of the group ``raysent.<plural>``; by default the kind and an s.
        """
        self.kind = kind
        self.group = f"{OWN_PACKAGE}.{plural or kind + 's'}"
        self.package, self._folders, self._read = package, folders, read
        self._found: dict[str, Component[T]] | None = None
        self._broken: dict[str, str] = {}

    def __getitem__(self, name: str) -> T:
        return self._components()[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._components())

    def __len__(self) -> int:
        return len(self._components())

    def components(self) -> list[Component[T]]:
        """Return every component."""
        return list(self._components().values())

    @property
    def broken(self) -> Mapping[str, str]:
        """Entry points that cannot be used: name -> why, in one line."""
        self._components()
        return self._broken

    def find(self, name: str, *, where: str = "", others: Iterable[str] = ()) -> T:
        """Return the component of a name.

        Args:
            name: As the user wrote it.
            where: Begins the message, as in ``--method mean``; by default the kind and the name.
            others: Names that mean something here without being a component.

        Raises:
            ConfigError: If there is none, or its package cannot be imported.
        """
        found = self._components().get(name)
        if found is not None:
            return found.value
        if name in self._broken:
            raise ConfigError(f"{where or f'{self.kind} {name}'}: {self._broken[name]}")
        known = [*self._components(), *others]
        raise ConfigError(f"{where or f'{self.kind} {name}'}: unknown {self.kind}{did_you_mean(name, known)}")

    def refresh(self) -> None:
        """Forget what was found; the next question looks again."""
        self._found, self._broken = None, {}

    def _components(self) -> dict[str, Component[T]]:
        if self._found is None:
            found: dict[str, Component[T]] = {}
            for entry in sorted(pkgutil.iter_modules(self._folders), key=lambda entry: entry.name):
                module = importlib.import_module(f"{self.package}.{entry.name}")
                for name, value in self._read(module).items():
                    found[name] = Component(name, value, OWN_PACKAGE, module.__name__)
            self._found = found
            for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
                self._add(point)
        return self._found

    def _add(self, point: EntryPoint) -> None:
        """Take in what an entry point names; what is wrong with it is kept."""
        assert self._found is not None
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        try:
            values = self._read(point.load())
        except Exception as error:  # whatever another package does wrong
            line = " ".join(str(error).split())
            self._broken[point.name] = f"cannot be loaded from {package}: {type(error).__name__}: {line}"
            return
        for name, value in values.items():
            if name in self._found:
                self._broken[point.name] = f"is defined by {self._found[name].package} already, and again by {package}"
            else:
                self._found[name] = Component(name, value, package, point.module)


def by_type(module: Any) -> dict[str, Any]:
    """Return a module under the name that the ``type: Literal["..."]`` of its `Config` gives.

    Raises:
        ConfigError: If it has no such `Config`.
    """
    config = getattr(module, "Config", None)
    field = getattr(config, "model_fields", {}).get("type")
    names = () if field is None else get_args(field.annotation)
    if len(names) != 1:
        raise ConfigError(f'{getattr(module, "__name__", module)}: must define class Config with type: Literal["..."]')
    return {str(names[0]): module}


def by_table(attribute: str) -> Callable[[Any], dict[str, Any]]:
    """Return a reader of modules that hold a table, name -> component, under an attribute such as ``METHODS``."""

    def read(module: Any) -> dict[str, Any]:
        table = getattr(module, attribute, None)
        if not isinstance(table, Mapping):
            raise ConfigError(f"{getattr(module, '__name__', module)}: must define {attribute}, a mapping by name")
        return dict(table)

    return read


def union(modules: Mapping[str, ModuleType]) -> Any:
    """Return the type that holds any of the modules' `Config`, told apart by `type`."""
    kinds = tuple(module.Config for module in modules.values())
    return Annotated[Union[kinds], pydantic.Field(discriminator="type")] if len(kinds) > 1 else kinds[0]  # noqa: UP007
