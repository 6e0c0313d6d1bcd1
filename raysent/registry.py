"""Registries of components by name: the files of a folder, and the entry points of other installed packages.

    ENCODERS = Registry("encoder", package=__name__, folders=__path__, read=by_type)
    ENCODERS["gru"]            the module raysent.models.encoders.gru
    ENCODERS.components()      every encoder, with the package that defines it

Another package adds an encoder by one entry point, whose value is a module (or any object) of the same form as a file
of the folder:

    [project.entry-points."raysent.encoders"]
    first_word = "my_package.first_word"

A package that cannot be imported does not affect the others; its error is raised when its name is looked up.

raysent's own wings, such as `cluster`, add what they have in the same way: pyproject.toml lists their entry points, and
an editable install reads a new one only once it is installed again. A wing whose folder is absent adds nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, Union, get_args

import pydantic
from pydantic_core import CoreSchema

from raysent.docstrings import docstring_of
from raysent.errors import ArtifactError, ConfigError, did_you_mean

T = TypeVar("T")

OWN_PACKAGE = "raysent"
_OWN_FOLDER = Path(__file__).parent


def points_of(group: str) -> list[EntryPoint]:
    """Return the entry points of a group in the order of their names, without those of wings that are absent."""
    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return [point for point in points if not _is_of_absent_wing(point)]


@cache
def load_point(group: str, name: str) -> Any:
    """Return what one entry point of raysent defines; others of its group are not imported.

    By such points a package below finds what a package above it has.

    Raises:
        ArtifactError: If the installed entry points are those of another version.
    """
    for point in entry_points(group=group, name=name):
        if not _is_of_absent_wing(point):
            return point.load()
    raise ArtifactError(
        f"{OWN_PACKAGE}: must be installed with the entry point {name} of {group}; given none; install it again"
    )


def _is_of_absent_wing(point: EntryPoint) -> bool:
    """Return whether an entry point names a module of raysent in a folder that is not there."""
    package, *folders = point.module.split(".")[:-1] or [""]
    return package == OWN_PACKAGE and not _OWN_FOLDER.joinpath(*folders).is_dir()


def package_of(point: EntryPoint) -> str:
    """Return the installed package that defines an entry point, with its version unless it is raysent."""
    # Metadata takes longer to read than all else here, so raysent is known by the name of the module.
    if point.module.startswith(f"{OWN_PACKAGE}."):
        return OWN_PACKAGE
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"


def reason_of(point: EntryPoint, error: BaseException) -> str:
    """Return in one line why an entry point cannot be used."""
    line = " ".join(str(error).split())
    return f"cannot be loaded from {package_of(point)}: {type(error).__name__}: {line}"


@dataclass(frozen=True)
class Component(Generic[T]):
    """One entry of a registry.

    Attributes:
        name: The name that users write.
        value: The component.
        package: The installed package that defines it, with its version unless it is raysent.
        module: The dotted name of the module that defines it.
    """

    name: str
    value: T
    package: str
    module: str

    @property
    def summary(self) -> str:
        """Its attribute `summary`, or else the first line of its docstring or of its module's."""
        own = getattr(self.value, "summary", None)
        if not isinstance(own, str):
            is_plain = isinstance(self.value, (str, int, float, dict))
            own = "" if is_plain else docstring_of(self.value)
        text = own or docstring_of(importlib.import_module(self.module))
        return text.split("\n")[0]


class Registry(Mapping[str, T]):
    """Components of one kind by name, in the order of their files, then of their entry points.

    They are imported when the first of them is looked up, or each when it is looked up itself (`is_by_file`).
    """

    def __init__(
        self,
        kind: str,
        *,
        package: str = "",
        folders: Iterable[str] = (),
        read: Callable[[Any], Mapping[str, T]],
        plural: str | None = None,
        is_by_file: bool = False,
    ) -> None:
        """Describe where the components are; nothing is imported yet.

        Args:
            kind: The name of one component, for messages, such as ``encoder``.
            package: Dotted name of the folder; empty for a kind that has entry points alone.
            folders: Where its files are, as its ``__path__``.
            read: A module of the folder, or the value of an entry point -> its components by name.
            plural: The entry points are those of the group ``raysent.<plural>``; by default the kind and an s.
            is_by_file: Whether each file of the folder defines one component, by the file's own name. To look one up
                then imports that file alone.
        """
        self.kind = kind
        self.group = f"{OWN_PACKAGE}.{plural or kind + 's'}"
        self.package, self._folders, self._read = package, folders, read
        self._is_by_file = is_by_file
        self._found: dict[str, Component[T]] | None = None
        self._broken: dict[str, str] = {}

    def __getitem__(self, name: str) -> T:
        if self._found is not None or not self._is_by_file:
            return self._components()[name].value
        if name in self._file_names:
            module = importlib.import_module(f"{self.package}.{name}")
            return self._read(module)[name]
        if not self._points:
            raise KeyError(name)
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
        """Entry points that cannot be used: name -> the reason, in one line."""
        self._components()
        return self._broken

    @property
    def failures(self) -> str:
        """The end of a message on an unknown name, which an entry point that fails may define under another name."""
        return "".join(f"; entry point {name} {reason}" for name, reason in self.broken.items())

    def find(self, name: str, *, where: str = "", others: Iterable[str] = ()) -> T:
        """Return the component of a name.

        Args:
            name: As the user wrote it.
            where: Start of the error message, as in ``--method mean``; by default the kind and the name.
            others: Other valid names, to suggest.

        Raises:
            ConfigError: If the name is unknown, or its package cannot be imported.
        """
        found = self._components().get(name)
        if found is not None:
            return found.value
        if name in self._broken:
            raise ConfigError(f"{where or f'{self.kind} {name}'}: {self._broken[name]}")
        known = [*self._components(), *others]
        unknown = f"unknown {self.kind}{did_you_mean(name, known)}{self.failures}"
        raise ConfigError(f"{where or f'{self.kind} {name}'}: {unknown}")

    def refresh(self) -> None:
        """Forget the components; the next look-up reads folder and entry points again."""
        self._found, self._broken = None, {}
        for name in ("_file_names", "_points"):
            self.__dict__.pop(name, None)

    @cached_property
    def _file_names(self) -> list[str]:
        """The names of the folder's files, in their order."""
        return sorted(module.name for module in pkgutil.iter_modules(self._folders))

    @cached_property
    def _points(self) -> list[EntryPoint]:
        """The entry points of other packages and of wings."""
        return points_of(self.group)

    def _components(self) -> dict[str, Component[T]]:
        if self._found is None:
            found: dict[str, Component[T]] = {}
            for file_name in self._file_names:
                module = importlib.import_module(f"{self.package}.{file_name}")
                for name, value in self._read(module).items():
                    found[name] = Component(name, value, OWN_PACKAGE, module.__name__)
            self._found = found
            for point in self._points:
                self._add(point)
        return self._found

    def _add(self, point: EntryPoint) -> None:
        assert self._found is not None
        package = package_of(point)
        try:
            values = self._read(point.load())
        except (Exception, SystemExit) as error:  # another package may raise anything
            self._broken[point.name] = reason_of(point, error)
            return
        for name, value in values.items():
            if name in self._found:
                self._broken[point.name] = (
                    f"is defined by {self._found[name].package} already, and again by {package}"
                )
            else:
                self._found[name] = Component(name, value, package, point.module)


def by_type(module: Any) -> dict[str, Any]:
    """Return a module by the name in the ``type: Literal["..."]`` of its `Config`.

    Raises:
        ConfigError: If it has no such `Config`.
    """
    config = getattr(module, "Config", None)
    field = getattr(config, "model_fields", {}).get("type")
    names = () if field is None else get_args(field.annotation)
    if len(names) != 1:
        raise ConfigError(
            f'{getattr(module, "__name__", module)}: must define class Config with type: Literal["..."]'
        )
    return {str(names[0]): module}


def by_table(attribute: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function that reads a module's table, name -> component, such as ``METHODS``."""

    def read(module: Any) -> dict[str, Any]:
        table = getattr(module, attribute, None)
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"{getattr(module, '__name__', module)}: must define {attribute}, a mapping by name"
            )
        return dict(table)

    return read


@dataclass(frozen=True, eq=False)
class AnyOf:
    """The annotation of a field that takes any `Config` of a registry's modules, selected by its `type`.

        AnyEncoder: TypeAlias = Annotated[EncoderConfig, AnyOf(ENCODERS)]

    The modules are imported when a model with such a field is built, not where the annotation is made: a module of
    another package may be imported first, and imports that place itself. A `type` that cannot be loaded is refused with
    the reason.
    """

    registry: Registry[Any]

    def __get_pydantic_core_schema__(
        self, _: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        configs = tuple(module.Config for module in self.registry.values())
        kind: Any = configs[0]
        if len(configs) > 1:
            kind = Annotated[Union[configs], pydantic.Field(discriminator="type")]  # noqa: UP007
        return handler.generate_schema(
            Annotated[kind, pydantic.BeforeValidator(self._refuse_broken)]
        )

    def _refuse_broken(self, values: Any) -> Any:
        name = values.get("type") if isinstance(values, Mapping) else None
        if isinstance(name, str) and name not in self.registry and self.registry.broken:
            unknown = f"is unknown{did_you_mean(name, self.registry)}{self.registry.failures}"
            raise ValueError(f"type {name} {self.registry.broken.get(name, unknown)}")
        return values
