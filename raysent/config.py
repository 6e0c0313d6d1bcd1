"""Read YAML files and command-line overrides into strict models.

A `Document` keeps the line of every key, so that an error found long after parsing still names file and line.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import pydantic

from raysent.docstrings import docstring_of
from raysent.errors import ConfigError, did_you_mean
from raysent.reading import MAX_DEPTH, MAX_DIGITS, is_deeper, read_text

KeyPath = tuple[str, ...]

# Configuration files are about one page long. Larger input is a mistake or an attempt to exhaust memory.
MAX_BYTES = 1_000_000
# The parser takes half a millisecond for each.
MAX_LINES = 5_000
MAX_VALUES = 100_000
_MAX_BITS = MAX_DIGITS * 10 // 3


# Files and folders outside the package that the wheel holds inside it: `pyproject.toml` names the same ones.
SHIPPED = ("cluster.yaml", "examples", "papers", "search_spaces")


class StrictModel(pydantic.BaseModel):
    """A frozen model whose fields are checked and never coerced; an unknown name is an error."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True
    )


Value = TypeVar("Value")


class ByVariant(Generic[Value]):
    """A setting as it acts: the value of another setting, or where that is None the value of `variant`."""

    def __init__(self, setting: str, *, paper: Value, authors: Value) -> None:
        """Name the setting, and give the value of each variant."""
        self._setting, self._values = setting, {"paper": paper, "authors": authors}

    def __get__(self, config: Any, kind: type) -> Value:
        """Return the value of a configuration."""
        given: Value | None = getattr(config, self._setting)
        return self._values[config.variant] if given is None else given


def described_fields(model: type[pydantic.BaseModel]) -> dict[str, str]:
    """Return what the docstrings of a model and its bases say of each field."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        section = re.search(
            r"^Attributes:\n((?:[ \t]+.*\n?|\n)*)",
            docstring_of(base) if "__doc__" in vars(base) else "",
            re.MULTILINE,
        )
        entries = re.findall(
            r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", section[1] if section else "", re.MULTILINE
        )
        found |= {name: " ".join(text.split()) for name, text in entries}
    return found


Model = TypeVar("Model", bound=pydantic.BaseModel)


class Override(NamedTuple):
    """One value set on the command line.

    Attributes:
        name: Dotted name.
        value: Plain Python value.
        option: The option as the user typed it, for error messages.
    """

    name: str
    value: Any
    option: str


@dataclass(frozen=True)
class Document:
    """Plain values read from YAML, and the source location of each.

    Attributes:
        values: The mapping, with plain Python values.
        source: Name of the file, for error messages.
        lines: Line of each key path, counted from 1.
        options: The command-line option, as typed, of each key path that an option set.
    """

    values: dict[str, Any]
    source: str = ""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    options: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: Sequence[str]) -> str:
        """Return the message prefix ``file:line: `` or ``--option: `` of the nearest known key at or above `path`."""
        for end in range(len(path), 0, -1):
            key = tuple(path[:end])
            if key in self.options:
                return f"{self.options[key]}: "
            if self.source and key in self.lines:
                return f"{self.source}:{self.lines[key]}: "
        return f"{self.source}: " if self.source else ""

    def error(self, path: Sequence[str], message: str) -> ConfigError:
        """Return the error `file:line: dotted.path: message`, or `--option: message` if an option set the value."""
        if tuple(path) in self.options:
            return ConfigError(f"{self.where(path)}{message}")
        name = ".".join(path)
        return ConfigError(f"{self.where(path)}{name + ': ' if name else ''}{message}")

    def has(self, name: str) -> bool:
        """Return whether a value stands at the top."""
        return name in self.values

    def get(self, *path: str, default: Any = None) -> Any:
        """Return the value of a key path, or the default where nothing stands there."""
        value: Any = self.values
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    def copied(self) -> dict[str, Any]:
        """Return a copy of the values, which may be changed."""
        return copy.deepcopy(self.values)

    def with_values(self, **values: Any) -> Document:
        """Return the document with other values at the top."""
        return replace(self, values={**self.values, **values})

    def with_overrides(self, overrides: Iterable[Override]) -> Document:
        """Return the document with values of the command line, each with the option that set it.

        Raises:
            ConfigError: With the option, if a name reaches inside a single value.
        """
        values, options = self.copied(), dict(self.options)
        for override in overrides:
            try:
                set_dotted(values, override.name, override.value)
            except ConfigError as error:
                raise ConfigError(f"{override.option}: {error}") from None
            options[tuple(override.name.split("."))] = override.option
        return replace(self, values=values, options=options)


def shipped_path(name: str) -> Path:
    """Return the path of a file or folder that is shipped with raysent.

    The wheel holds these files inside the package. In a checkout, and so in an editable installation, they are next to
    the package.

    Args:
        name: One of `SHIPPED`, or a path below one of them.
    """
    package = Path(__file__).parent
    installed = package / name
    return installed if installed.exists() else package.parent / name


def read_yaml(path: Path) -> Document:
    """Read a YAML 1.2 file whose top level is a mapping.

    Raises:
        ConfigError: If the file is missing, too large, not text, not YAML, or not a mapping.
    """
    text = read_text(path, max_bytes=MAX_BYTES, error=ConfigError)
    return parse_yaml(text, source=str(path))


def parse_yaml(text: str, *, source: str = "") -> Document:
    """Parse YAML 1.2 text whose top level is a mapping.

    Args:
        text: The text.
        source: Name of the text in error messages.

    Raises:
        ConfigError: If the text is not YAML, not a mapping, too long or too deep, or expands to too many values.
    """
    if text.count("\n") + text.count(",") > MAX_LINES:
        raise ConfigError(
            f"{source}: must have at most {MAX_LINES:,} lines and values; is this another file?"
        )
    if _flow_depth(text) > MAX_DEPTH:  # the parser's time grows with the square of it
        raise ConfigError(f"{source}: must not be nested deeper than {MAX_DEPTH}")
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415 - as in `_yaml`

    mapping, sequence, _ = _kinds_of_nodes()
    try:
        loaded = _yaml().load(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(
            f"{source}{line}: not valid YAML: {error.problem or error.context}"
        ) from None
    except YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{source}: must not be nested deeper than {MAX_DEPTH}") from None
    except (
        Exception
    ) as error:  # the parser raises errors of many kinds for numbers and dates that are none
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, mapping):
        given = (
            "nothing"
            if loaded is None
            else "a list"
            if isinstance(loaded, sequence)
            else repr(loaded)
        )
        raise ConfigError(f"{source}: must be a mapping of names to values; given {given}")
    lines: dict[KeyPath, int] = {}
    try:
        if _num_values(loaded, {}) > MAX_VALUES:
            raise ConfigError(
                f"{source}: must hold at most {MAX_VALUES:,} values; its anchors expand to more"
            )
        if is_deeper(loaded, MAX_DEPTH):
            raise RecursionError
        values = _plain(loaded, (), lines)
    except RecursionError:
        raise ConfigError(f"{source}: must not be nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise Document(values={}, source=source, lines=lines).error(
            list(lines)[-1], str(error)
        ) from None
    return Document(values=values, source=source, lines=lines)


@cache
def _kinds_of_nodes() -> tuple[Any, Any, Any]:
    """Return what the parser returns for mappings, sequences, and booleans that are written in a form of their own."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq  # noqa: PLC0415 - as in `_yaml`
    from ruamel.yaml.scalarbool import ScalarBoolean  # noqa: PLC0415 - as in `_yaml`

    return CommentedMap, CommentedSeq, ScalarBoolean


@cache
def _constructor() -> Any:
    """Return what builds what YAML describes, but leaves dates and times as text: no setting is a date."""
    from ruamel.yaml.constructor import RoundTripConstructor  # noqa: PLC0415 - as in `_yaml`

    class _TextOfTimes(RoundTripConstructor):
        pass

    _TextOfTimes.add_constructor(
        "tag:yaml.org,2002:timestamp", lambda constructor, node: constructor.construct_scalar(node)
    )
    return _TextOfTimes


def _yaml() -> Any:
    """Return the parser; its modules take longer to import than help may wait."""
    from ruamel.yaml import YAML  # noqa: PLC0415

    yaml = YAML(typ="rt")
    yaml.Constructor = _constructor()
    return yaml


def _flow_depth(text: str) -> int:
    """Return an upper bound of the depth of brackets; those inside text are counted too."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _num_values(node: Any, known: dict[int, int]) -> int:
    mapping, sequence, _ = _kinds_of_nodes()
    if not isinstance(node, (mapping, sequence)):
        return 1
    if id(node) not in known:
        below = node.values() if isinstance(node, mapping) else node
        known[id(node)] = 1 + sum(_num_values(one, known) for one in below)
    return known[id(node)]


def _plain(node: Any, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
    """Return `node` as plain Python values, and record the line of every key in `lines`."""
    mapping, sequence, boolean = _kinds_of_nodes()
    if isinstance(node, mapping):
        plain = {}
        for key, value in node.items():
            here = (*path, str(key))
            # A key merged by `<<` has no line in this mapping: use the line of the mapping itself.
            lines[here] = (
                node.lc.key(key)[0] + 1 if key in (node.lc.data or {}) else node.lc.line + 1
            )
            plain[str(key)] = _plain(value, here, lines)
        return plain
    if isinstance(node, sequence):
        return [_plain(value, (*path, str(index)), lines) for index, value in enumerate(node)]
    if isinstance(node, bool) or node is None:
        return node
    if isinstance(node, boolean):
        return bool(node)
    for kind in (int, float, str):
        if isinstance(node, kind):
            return _checked(kind(node))
    raise ValueError(f"must be text, a number, true, false or null; given {_short(node)}")


def _checked(value: int | float | str) -> int | float | str:
    """Return a value; raise ValueError for an integer of too many digits, or text with half of a surrogate pair."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError(f"must have at most {MAX_DIGITS} digits")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"must not have half of a surrogate pair; given {_short(value)}"
            ) from None
    return value


def parse_override(text: str) -> tuple[str, Any]:
    """Parse one override ``a.b=c`` into name and value; the value is read as YAML.

    Raises:
        ConfigError: If ``=`` is missing or the value is not YAML.
    """
    name, separator, value = (part.strip() for part in text.partition("="))
    if not separator or not all(name.split(".")):
        raise ConfigError(f"--set {text}: must be NAME=VALUE, as in --set training.batch_size=200")
    try:
        document = parse_yaml(f"value: {value}\n" if value else "value: ''\n")
    except ConfigError as error:
        # The value is one line: a line number would mislead.
        reason = str(error).partition("not valid YAML: ")[2] or str(error).partition(": ")[2]
        raise ConfigError(
            f"--set {text}: the value is not valid YAML: {reason}; quote it"
        ) from None
    return name, document.get("value")


def set_dotted(values: dict[str, Any], name: str, value: Any) -> None:
    """Set ``a.b.c`` in nested mappings; missing mappings are created.

    Raises:
        ConfigError: If a parent is not a mapping.
    """
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        child = values.setdefault(parent, {})
        if not isinstance(child, dict):
            here = ".".join(parents[: depth + 1])
            raise ConfigError(f"{name}: '{here}' must be a mapping; it is a single value")
        values = child
    values[last] = value


def get_dotted(values: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return ``a.b.c`` of nested mappings, or `default` if it is missing."""
    node: Any = values
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return node


def dotted_values(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of everything in nested mappings that is no mapping."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted_values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested mappings and lists with another value in place of each that is neither."""
    if isinstance(value, Mapping):
        return {key: map_leaves(inner, change) for key, inner in value.items()}
    return (
        [map_leaves(inner, change) for inner in value] if isinstance(value, list) else change(value)
    )


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in nested mappings and lists that are neither."""
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(inner)
    else:
        yield value


def validate(kind: type[Model], document: Document, *, at: KeyPath = ()) -> Model:
    """Return the document's values as a validated model.

    Args:
        kind: Class of the model.
        document: The values and their locations.
        at: Path of the values inside the document, for error messages.

    Raises:
        ConfigError: With file, line, path and nearest fix of the first error.
    """
    values = document.get()
    nul_path = _path_of_nul(values)
    if nul_path is not None:
        raise document.error(
            (*at, *nul_path), "must hold no NUL character, which no file's name has"
        )
    try:
        return kind.model_validate(values)
    except pydantic.ValidationError as error:
        path, message = explain(error, values, kind)
        raise document.error((*at, *path), message) from None


def _path_of_nul(values: Any) -> KeyPath | None:
    """Return the path of the first text with a NUL character; None without one."""
    if isinstance(values, str):
        return () if "\0" in values else None
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(values, Mapping):
        parts = values.items()
    elif isinstance(values, list | tuple):
        parts = enumerate(values)
    for name, part in parts:
        path = _path_of_nul(part)
        if path is not None:
            return (str(name), *path)
    return None


def explain(
    error: pydantic.ValidationError, values: Any, kind: type[pydantic.BaseModel]
) -> tuple[KeyPath, str]:
    """Return the path and the text of the first error in a validation error."""
    details = error.errors(include_url=False)
    # An unknown name explains a missing name, but not the reverse.
    first = next((item for item in details if item["type"] == "extra_forbidden"), details[0])
    if isinstance(
        first["input"], Mapping
    ):  # of a value or names with values, which are given, the error in these
        at, inside = len(first["loc"]), first["loc"][:-1]
        deeper = (
            item
            for item in details
            if len(item["loc"]) > at and item["loc"][: len(inside)] == inside
        )
        first = next(deeper, first)
    path = _path_in(values, first["loc"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    match first["type"]:
        case "extra_forbidden":
            message = "unknown name" + did_you_mean(path[-1], _names_beside(kind, values, path))
        case "missing":
            message = "is required and is not given"
        case "union_tag_invalid":
            known = [tag.strip(" '") for tag in first["ctx"]["expected_tags"].split(",")]
            tag = str(first["ctx"]["tag"])
            path, message = (*path, "type"), f"unknown type '{tag}'" + did_you_mean(tag, known)
        case "union_tag_not_found":
            path, message = (*path, "type"), "is required and is not given"
        case "dict_type" | "model_type" | "model_attributes_type":
            message = f"must be a mapping of names to values; given {_short(first['input'])}"
        case _:
            text = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
            holds = (
                text
                if text is first["msg"] or first["type"] == "value_error"
                else f"must be {text}"
            )
            given = "" if first["type"] == "value_error" else f"; given {_short(first['input'])}"
            message = holds + given
    return path, message + more


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _path_in(values: Any, location: tuple[int | str, ...]) -> KeyPath:
    """Return the location as a key path, without the union tags that pydantic inserts."""
    path: list[str] = []
    node = values
    for part, following in zip(location, (*location[1:], None), strict=False):
        is_tag = (
            isinstance(node, Mapping)
            and part not in node
            and (node.get("type") == part or following in node)
        )
        if is_tag:
            continue
        path.append(str(part))
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            node = None
    return tuple(path)


def _names_beside(kind: type[pydantic.BaseModel], values: Any, path: KeyPath) -> list[str]:
    """Return the names that the model allows in the place of the last name of `path`."""
    schema = kind.model_json_schema()
    node: dict[str, Any] = schema
    for part in path[:-1]:
        values = values.get(part) if isinstance(values, Mapping) else None
        node = _child_schema(schema, node, part, values)
    return sorted(node.get("properties", {}))


def _child_schema(
    schema: dict[str, Any], node: dict[str, Any], part: str, values: Any
) -> dict[str, Any]:
    """Return the schema of the field `part` of `node`; references and union tags are resolved."""
    child = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    if not isinstance(child, dict):
        return {}
    mapping = child.get("discriminator", {}).get("mapping")
    if mapping and isinstance(values, Mapping):
        child = {"$ref": mapping.get(values.get("type"), "")}
    for option in child.get("anyOf", []):
        if "$ref" in option:
            child = option
    if child.get("$ref"):
        return dict(schema.get("$defs", {}).get(child["$ref"].rpartition("/")[2], {}))
    return child
