"""The command line: the commands of this folder's files under one name, and how errors are printed.

Each file holds the commands of one group: it parses options, calls the public API, and prints. torch and Ray are
imported inside commands, so that help is fast.

Standard output carries results (with `--json` exactly one object); progress and errors go to standard error.
Exit codes are those of `raysent.errors.ExitCode`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import typer
import typer.core

import raysent
from raysent import __version__
from raysent.cli import components, costs, evaluate, models, sweep, vectors
from raysent.cli.options import as_typed
from raysent.cli.wings import ADDITIONS, Command, Commands, Option, with_options
from raysent.docstrings import docstring_of
from raysent.errors import ConfigError, ExitCode, RaysentError, did_you_mean
from raysent.platforms import open_streams, signals_handled
from raysent.progress import VERBOSE_VARIABLE, PrintableFormatter, messages, printable_message

# What every mistake in a command line is: typer may keep click, whose class it is, under another name.
UsageError: Any = typer.BadParameter.__base__

_ROOT_FLAGS = ("-q", "--quiet", "-v", "--verbose", "--trust-remote-code")

# Heading of `raysent --help` -> its commands; wings add theirs.
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (
        sweep.sweep, sweep.resume, sweep.train,
        evaluate.evaluate, evaluate.ensemble, vectors.predict, evaluate.report, evaluate.doctor,
    ),
    "Models": (sweep.retrain, models.distill, models.adapt, models.whiten, models.expand, models.binarize),
    "Text and vectors": (vectors.encode, evaluate.label),
    "Clusters and money": (sweep.track,),
    "Papers and components": (components.components, components.schema),
}  # fmt: skip

# Of Python's flag -O.
_WITHOUT_DOCSTRINGS = 2

# Commands of earlier versions -> what says the same.
_RETIRED = {
    "plan": "'raysent sweep … --dry-run'",
    "data": "'raysent doctor DIR'",
    "space": "'raysent doctor FILE' or 'raysent schema'",
    "analyse": "'raysent label RUN TABLE --suspect'",
    "neighbours": "'raysent index MODEL TEXT -o INDEX' and 'raysent search INDEX QUERY'",
    "compose": "raysent.compose of Python, or 'raysent ensemble'",
}


class _StoppedError(Exception):
    """An interrupt, with the line that says how to continue, if there is one; typer would drop it."""


class _Command(typer.core.TyperCommand):
    """A command; an error of the library that begins with an argument begins with the option that was typed."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, unless `--set` names one of its arguments, or one that has an option."""
        arguments = {
            one.name: one.metavar for one in self.params if one.param_type_name == "argument"
        }
        options = {one.name: one.opts[0] for one in self.params if one.name not in arguments}
        options |= {
            flag[2:].replace("-", "_"): flag
            for one in self.params
            for flag in one.opts
            if flag[:2] == "--"
        }
        for text in ctx.params.get("overrides") or ():
            name, _, value = text.partition("=")
            if name in arguments:
                raise ConfigError(
                    f"--set {text}: is an argument of the command; write {value} as {arguments[name]}"
                )
            if name in options and name != "seed":  # a run has a seed too
                raise ConfigError(
                    f"--set {text}: has an option of its own; write {options[name]} {value}"
                )
        try:
            return super().invoke(ctx)
        except RaysentError as error:
            if "overrides" in ctx.params:
                options.setdefault("column", "--set column")
            raise type(error)(as_typed(str(error), options)) from None


class _Root(typer.core.TyperGroup):
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line."""
        with _stopped():
            return super().make_context(*arguments, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command."""
        if args and self.get_command(ctx, args[0]) is None:
            fix = (
                f"; use {_RETIRED[args[0]]}"
                if args[0] in _RETIRED
                else did_you_mean(args[0], self.commands)
            )
            ctx.fail(f"{args[0]}: no such command{fix}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _stopped():
            return super().invoke(ctx)


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise _StoppedError(str(error)) from None


app = typer.Typer(
    name="raysent",
    cls=_Root,
    help="Train sentence encoders, search their hyperparameters across a cluster, and combine the best into ensembles.",
    epilog=ExitCode.sentence(),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _listed() -> dict[str, dict[str, Callable[..., None]]]:
    """Return the commands of each heading by name, in the order of the help, with those that are added."""
    listed = {
        panel: {command.__name__.replace("_", "-"): command for command in commands}
        for panel, commands in _COMMANDS.items()
    }
    for name, addition in ADDITIONS.items():
        if isinstance(addition, Command):
            commands = listed.setdefault(addition.panel, {})
            after = (
                list(commands)[list(commands).index(addition.before) :]
                if addition.before in commands
                else []
            )
            commands[name] = addition.run
            for other in after:
                commands[other] = commands.pop(other)
    return listed


def _fill() -> None:
    """Give the app its commands, with those and the options that wings and other packages add."""
    options = [addition for addition in ADDITIONS.values() if isinstance(addition, Option)]
    for panel, commands in _listed().items():
        for name, command in commands.items():
            own = [option for option in options if option.command == name]
            about = docstring_of(command)
            register = app.command(name, cls=_Command, help=about, rich_help_panel=panel)
            register(with_options(command, own))
    groups = {
        name: addition for name, addition in ADDITIONS.items() if isinstance(addition, Commands)
    }
    groups["cost"] = Commands(costs.cost_app, "Clusters and money")
    for name, group in groups.items():
        for info in group.app.registered_commands:
            info.cls = _Command
            info.help = docstring_of(info.callback)
        app.add_typer(group.app, name=name, rich_help_panel=group.panel)


_fill()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors only.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print details too, and log messages of raysent and Ray."
        ),
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code in the folders of st:PATH and hf:PATH."),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Compute on cpu or cuda.  [default: GPUs where there are some]",
        ),
    ] = None,
) -> None:
    """All but --version may also follow the command."""
    messages.quiet = quiet
    if trust:
        from raysent.models import trust_remote_code  # torch comes with it

        context.with_resource(trust_remote_code())
    if device is not None:
        context.with_resource(raysent.on_device(device))
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        os.environ[VERBOSE_VARIABLE] = "1"
    if version:
        typer.echo(f"raysent {__version__}")
        raise typer.Exit


# A name that modules have whose functions write to standard output; and packages that do.
WRITES_OUTPUT = "WRITES_TO_STANDARD_OUTPUT"
_WRITERS = ("click", "rich", "typer")


def main() -> None:
    """Run the command line; every mistake of the user's is one line on standard error, and exit code 2."""
    open_streams()
    for name, reason in ADDITIONS.broken.items():
        typer.echo(f"warning: commands of {name} {printable_message(reason)}", err=True)
    try:
        status = _run()
        sys.stdout.flush()  # what is written at the end of the process can no longer be refused
    except BrokenPipeError:
        # The reader of our output has gone, as in `raysent … | head`; that is its right.
        _drop_output()
        status = ExitCode.DONE
    except OSError as error:
        if not _is_of_output(error):
            raise
        _drop_output()
        reason = error.strerror or "it is full or closed"
        status = _refuse(f"standard output: cannot be written ({reason}); send it somewhere else")
    sys.exit(status)


def _run() -> int:
    try:
        with _signals_interrupt():
            status: int = app(
                _options_first(sys.argv[1:]), prog_name="raysent", standalone_mode=False
            )
    except RaysentError as error:
        return _refuse(str(error))
    except UsageError as error:
        return _misused(error)
    except typer.Exit as error:
        return error.exit_code
    except (_StoppedError, KeyboardInterrupt, typer.Abort) as error:
        typer.echo(printable_message(str(error)) or "interrupted", err=True)
        return ExitCode.INTERRUPTED
    except AttributeError:
        if sys.flags.optimize < _WITHOUT_DOCSTRINGS:
            raise
        return _refuse(
            "PYTHONOPTIMIZE: must be 0 or 1 for what needs Ray Train, which reads docstrings; python -OO drops them"
        )
    return status


def _is_of_output(error: OSError) -> bool:
    """Return whether an error is of a stream that a library writes text to, and of no file of ours."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    names: Mapping[str, Any] = {} if last is None else last.tb_frame.f_globals
    module = str(names.get("__name__"))
    is_ours = module == __name__ or WRITES_OUTPUT in names  # a flush, or a table
    return error.filename is None and (is_ours or module.partition(".")[0] in _WRITERS)


def _drop_output() -> None:
    """Send what is still to be written to standard output nowhere, so that the process ends without a second error."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _signals_interrupt() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM and a closed terminal inside the block do what Ctrl-C does; what a parent ignores stays ignored."""
    known = {
        name: signal.getsignal(getattr(signal, name))
        for name in ("SIGTERM", "SIGHUP")
        if hasattr(signal, name)
    }
    names = [name for name, handler in known.items() if handler == signal.SIG_DFL]
    return signals_handled(dict.fromkeys(names, signal.default_int_handler))


def _options_first(arguments: list[str]) -> list[str]:
    """Return the arguments with the root's options before the command, wherever they were typed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    moved, others, typed = list[str](), list[str](), iter(arguments[:end])
    for one in typed:
        if one == "--device":
            moved += [one, *islice(typed, 1)]
        else:
            (moved if one in _ROOT_FLAGS or one.startswith("--device=") else others).append(one)
    return [*moved, *others, *arguments[end:]]


def _misused(error: Any) -> int:
    """Answer a wrong command line; a command without its arguments is answered with its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return ExitCode.DONE
    command = error.ctx.command_path if error.ctx is not None else "raysent"
    option, parameter = getattr(error, "option_name", None), getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        known = [flag for one in error.ctx.command.params for flag in one.opts]
        near = did_you_mean(str(option), known)
        fix = "; other settings are --set NAME=VALUE" if "--set" in known else ""
        text = f"{option}: no such option{near if 'did you mean' in near else ''}{fix}"
    elif parameter is not None:
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        what = error.message.removeprefix("Input should be ").partition(", unable to parse")[0]
        text = f"{name}: must be {what}" if what else f"{name}: is required and is not given"
    else:
        text = error.format_message()
    return _refuse(f"{' '.join(text.split()).removesuffix('.')}; see '{command} --help'")


def _refuse(message: str) -> int:
    with contextlib.suppress(OSError):  # standard error may be full; the exit code says it too
        typer.echo(f"error: {printable_message(message)}", err=True)
    return ExitCode.MISTAKE
