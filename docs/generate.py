"""Pages made from the code, so that they cannot go stale: every setting of a search space, every command.

In: the pydantic models that a search space and a cluster file are checked against; the command line. Out: Markdown.
"""

from __future__ import annotations

import collections.abc
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import pydantic
import typer
from pydantic.fields import FieldInfo

from raysent.cli.app import app
from raysent.cluster import ClusterSettings
from raysent.config import described_fields
from raysent.errors import ExitCode
from raysent.evaluation.task_files.settings import TaskSettings
from raysent.models.codes import CODES, CodeConfig
from raysent.models.encoders import ENCODERS, EncoderConfig
from raysent.models.objectives import OBJECTIVES, ObjectiveConfig
from raysent.pipeline import registries
from raysent.registry import Registry
from raysent.sweeps.space.limits import SpaceFile
from raysent.training.run import RunConfig

Model = type[pydantic.BaseModel]

INTRODUCTION = """# Configuration reference

A search space is a YAML file. Its section `base` holds one complete run. Every other section says how runs are
searched, what they may cost, and how the best ones are evaluated. A name such as `training.batch_size` is a path below
`base`: `--set training.batch_size=200` sets it, and `search:` takes the same names.

`raysent schema` prints the same as a JSON Schema, for editors. `raysent doctor FILE` checks a file.

This page is generated from the models that files are checked against.
"""
COMMANDS = """# Command reference

This page is generated from the command line; `raysent COMMAND --help` prints the same. {exit_codes}
"""
ENTRY_POINTS = """# Components and entry points

An installed package adds a component with an entry point in the group of its kind. The name of the entry point is free;
its value is a module (or an object) of the same form as the modules of raysent's own folder. For an example, see
{doc}`/howto/own_encoder`.

This page is generated from what is installed.
"""
ROOTS: dict[str, Model] = {
    "Top level of a search space": SpaceFile,
    "base: one run": RunConfig,
    "One task of a task file": TaskSettings,
    "metadata.raysent of a cluster file": ClusterSettings,
}


def configuration_reference() -> str:
    """Return the page of every setting."""
    parts = [INTRODUCTION]
    for title, model in ROOTS.items():
        sections = _sections(model)
        titles = {inner: name for name, inner in sections}
        parts += [f"## {title}", _about(model), _settings(model, titles)]
        for name, inner in sections:
            parts += [f"({_anchor(name)})=\n### {name}", _about(inner), _settings(inner, titles)]
    return "\n\n".join(part for part in parts if part) + "\n"


def command_reference() -> str:
    """Return the page of every command."""
    root = typer.main.get_command(app)
    parts = [
        COMMANDS.format(exit_codes=ExitCode.sentence()),
        *(_command(names, command) for names, command in _commands(root, ("raysent",))),
    ]
    return "\n\n".join(parts) + "\n"


def entry_point_reference() -> str:
    """Return the page of what other packages can add: groups of entry points, interfaces, and what exists."""
    parts = [ENTRY_POINTS]
    for registry in registries().values():
        rows = [f"| `{found.name}` | {found.summary} |" for found in registry.components()]
        module = registry.package
        parts += [f"## {registry.group}", "\n".join(["| name | what it is |", "|---|---|", *rows])]
        parts += ["### Interface", f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```"]
    return "\n\n".join(parts) + "\n"


def _sections(
    model: Model, path: str = "", seen: frozenset[Model] = frozenset()
) -> list[tuple[str, Model]]:
    """Return every model below a model, each once, with the dotted path that it is at and, of several, its type."""
    found: list[tuple[str, Model]] = []
    for name, field in model.model_fields.items():
        choices = _models(field.annotation)
        at = f"{path}.{name}" if path else name
        known = seen | {inner for _, inner in found}
        new = [inner for inner in choices if inner not in known]
        found += [(f"{at}: {_kind(inner)}" if len(choices) > 1 else at, inner) for inner in new]
        for inner in new:
            found += _sections(inner, at, seen | {inner for _, inner in found})
    return found


def _settings(model: Model, titles: dict[Model, str]) -> str:
    """Return a model's fields as a definition list: name, type, default; and what its docstring says."""
    about = described_fields(model)
    entries = []
    for name, field in model.model_fields.items():
        if name == "type" and _kind(model):
            continue
        default = "required" if field.is_required() else f"default {_default(field)}"
        links = [
            f"[{_kind(inner) or titles[inner]}](#{_anchor(titles[inner])})"
            for inner in _models(field.annotation)
        ]
        text = " ".join(
            [about.get(name, ""), f"Settings: {', '.join(links)}." if links else ""]
        ).strip()
        entries.append(f"`{name}`: {_type(field)}, {default}\n: {text or '—'}")
    return "\n\n".join(entries)


def _about(model: Model) -> str:
    """Return a model's docstring, or its module's, without the list of attributes."""
    text = inspect.cleandoc(model.__doc__ or "")
    return re.split(r"^Attributes:$", text, flags=re.MULTILINE)[0].strip()


def _models(annotation: Any) -> list[Model]:
    """Return the models that an annotation holds; of a kind such as encoders, each of them."""
    if annotation in _KINDS:
        return [module.Config for module in _KINDS[annotation].values()]
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return list(
        dict.fromkeys(model for inner in typing.get_args(annotation) for model in _models(inner))
    )


_KINDS: dict[Any, Registry[Any]] = {
    EncoderConfig: ENCODERS,
    ObjectiveConfig: OBJECTIVES,
    CodeConfig: CODES,
}


def _kind(model: Model) -> str:
    """Return what `type` is for a model of a kind, such as an encoder; nothing for another."""
    field = model.model_fields.get("type")
    names = typing.get_args(field.annotation) if field is not None else ()
    return str(names[0]) if names else ""


def _anchor(title: str) -> str:
    """Return the name of a section's anchor."""
    return "setting-" + re.sub(r"[^a-z0-9]+", "-", title.lower())


def _type(field: FieldInfo) -> str:
    """Return a field's type in words: its values, or what numbers it takes."""
    given = [(sign, getattr(one, name, None)) for one in field.metadata for name, sign in _BOUNDS]
    bounds = [f"{sign} {bound:g}" for sign, bound in given if bound is not None]
    return " ".join([_words(field.annotation), *bounds])


_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def _words(annotation: Any) -> str:
    """Return an annotation in the words of YAML."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " | ".join(
            f"`{json.dumps(value) if not isinstance(value, str) else value}`" for value in inner
        )
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_words(one) for one in inner))
    if origin is typing.Annotated:
        return _words(inner[0])
    if origin in (list, tuple, collections.abc.Sequence):
        return f"list of {_words(inner[0])}"
    if origin in (dict, collections.abc.Mapping):
        return f"mapping of names to {_words(inner[1])}"
    if _models(annotation):
        return "section"
    names = {
        type(None): "null",
        str: "text",
        int: "integer",
        float: "number",
        bool: "true or false",
        Any: "any value",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    """Return a field's default as YAML writes it; nothing where a value must be given."""
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, pydantic.BaseModel):
        return "as below"
    return f"`{json.dumps(value, default=str)}`"


def _commands(command: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield (*names, name), inner
        yield from _commands(inner, (*names, name))


def _command(names: tuple[str, ...], command: Any) -> str:
    """Return a command's help as Markdown."""
    context = typer.Context(command, info_name=" ".join(names))
    title = f"{'#' * len(names)} {' '.join(names)}"
    parts = [title, _with_code(inspect.cleandoc(command.help or ""))]
    if getattr(command, "commands", None):
        return "\n\n".join(parts)
    usage = " ".join(command.collect_usage_pieces(context))
    parts.append(f"```\n{' '.join(names)} {usage}\n```")
    for record in (parameter.get_help_record(context) for parameter in command.get_params(context)):
        if record is not None and "--help" not in record[0]:
            about = _with_code(" ".join(record[1].split()))
            parts.append(f"`{record[0]}`\n: {about or '—'}")
    return "\n\n".join(parts)


# What is typed as it stands: an option, or the setting of a name. A full stop that follows is the sentence's.
_TYPED = re.compile(
    r"(?<![\w`'-])(--?[a-zA-Z][\w-]*(?![\w-])|[a-z][\w.]*=(?:\[[^\]]*\]|[^\s,;:)\]']*[^\s,;:.)\]']))"
)


def _with_code(text: str) -> str:
    """Return help with options and settings as code, so that a reader can copy them; what is code already stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _TYPED.sub(r"`\1`", part) for part in parts)
