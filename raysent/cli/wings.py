"""Commands that wings and other packages add to the command line, and options that they add to its own commands.

An entry point of the group `raysent.commands` names a module with a table `COMMANDS`, name -> `Command`, `Commands` or
`Option`. The module is imported at every start, so it imports what its functions run inside them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import typer

from raysent.registry import Registry, by_table


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: Its function: the signature has its arguments and options, the docstring its help.
        panel: The heading of `raysent --help` that it is listed under.
        before: The command that it is listed before; empty for the last one.
    """

    run: Callable[..., None]
    panel: str
    before: str = ""


@dataclass(frozen=True)
class Commands:
    """Commands under one name, such as `cluster up`.

    Attributes:
        app: The commands.
        panel: The heading of `raysent --help` that they are listed under.
    """

    app: typer.Typer
    panel: str


@dataclass(frozen=True)
class Option:
    """An option of a command of the core.

    Attributes:
        command: The command.
        argument: The name of the option's value among the command's arguments.
        annotation: Its type and its `typer.Option`; None by default.
        run: Called in place of the command, with all its arguments as they were typed, where the option is typed.
        before: The argument of the command that the option is listed before.
    """

    command: str
    argument: str
    annotation: Any
    run: Callable[..., None]
    before: str


Addition: TypeAlias = Command | Commands | Option

ADDITIONS: Registry[Addition] = Registry("command", read=by_table("COMMANDS"))


def with_options(command: Callable[..., None], options: Iterable[Option]) -> Callable[..., None]:
    """Return a command that has further options; the one that is typed runs in its place."""
    added = {option.argument: option for option in options}
    if not added:
        return command
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        parameters += [
            inspect.Parameter(
                option.argument,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=option.annotation,
            )
            for option in added.values()
            if option.before == parameter.name
        ]
        parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        typed = next((name for name in added if arguments.get(name) is not None), None)
        if typed is not None:
            added[typed].run(**arguments)
            return
        command(**{name: value for name, value in arguments.items() if name not in added})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
