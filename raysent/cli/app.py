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
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import typer
import typer.core

from raysent import __version__
from raysent.cli.analyse import analyse_app
from raysent.cli.cluster import cluster_app
from raysent.cli.components import components_app
from raysent.cli.cost import cost_app
from raysent.cli.evaluate import data_app, evaluate_app
from raysent.cli.exports import export_app
from raysent.cli.models import model_app
from raysent.cli.reproduce import reproduce_app
from raysent.cli.search import search_app
from raysent.cli.submit import attach_app
from raysent.cli.sweep import space_app, sweep_app
from raysent.errors import ExitCode, RaysentError
from raysent.progress import VERBOSE_VARIABLE, PrintableFormatter, messages, printable

# Typer keeps a copy of click for itself; its public BadParameter is the way to what all misuse descends from.
UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

_WORDING = (
    (r"^Invalid value for '([^']+)': (Input should be )?", r"\1: must be "),
    (r", unable to parse string as an? \w+$", ""),
    (r"^No such (option|command):? '?([^' ]+)'?", r"\2: no such \1"),
    (r"\.? Did you mean ('[^']+')\?$", r"; did you mean \1?"),
    (r" \((?:Possible options|Did you mean one of): ([^)]+)\)$", r"; did you mean one of \1?"),
)

_ROOT_FLAGS = ("-q", "--quiet", "-v", "--verbose", "--trust-remote-code")


class _StoppedError(Exception):
    """An interrupt, with the line that says how to continue, if there is one; typer would drop it."""


class _Root(typer.core.TyperGroup):
    """The root of all commands."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line."""
        with _stopped():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _stopped():
            return super().invoke(ctx)


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    """Raise `_StoppedError` for an interrupt inside the block."""
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
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# As `raysent --help` lists them: those without a name give their commands to the root.
app.add_typer(sweep_app)
app.add_typer(attach_app)
app.add_typer(evaluate_app)
app.add_typer(space_app, name="space")
app.add_typer(data_app, name="data")
app.add_typer(analyse_app, name="analyse")
app.add_typer(cost_app, name="cost")
app.add_typer(cluster_app, name="cluster")
app.add_typer(search_app)
app.add_typer(model_app)
app.add_typer(reproduce_app)
app.add_typer(export_app)
app.add_typer(components_app)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print log messages of raysent and Ray.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code in the folders of st:PATH and hf:PATH.")
    ] = False,
) -> None:
    """All but --version may also follow the command."""
    messages.quiet = quiet
    if trust:
        from raysent.models import trust_remote_code  # torch comes with it

        context.with_resource(trust_remote_code())
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        os.environ[VERBOSE_VARIABLE] = "1"
    if version:
        typer.echo(f"raysent {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; every mistake of the user's is one line on standard error, and exit code 2."""
    try:
        with _signals_interrupt():
            status = app(_options_first(sys.argv[1:]), prog_name="raysent", standalone_mode=False)
    except RaysentError as error:
        status = _refuse(str(error))
    except UsageError as error:
        status = _misused(error)
    except typer.Exit as error:
        status = error.exit_code
    except (_StoppedError, KeyboardInterrupt, typer.Abort) as error:
        typer.echo(printable(str(error)) or "interrupted", err=True)
        status = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in `raysent … | head`; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = ExitCode.DONE
    sys.exit(status)


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal inside the block do what Ctrl-C does; what a parent ignores stays ignored."""
    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) == signal.SIG_DFL}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _options_first(arguments: list[str]) -> list[str]:
    """Return the arguments with the root's flags before the command, wherever they were typed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    moved = [one for one in arguments[:end] if one in _ROOT_FLAGS]
    return [*moved, *(one for one in arguments[:end] if one not in _ROOT_FLAGS), *arguments[end:]]


def _misused(error: Any) -> int:
    """Answer a wrong command line; a command without its arguments is answered with its help."""
    command = error.ctx.command_path if error.ctx is not None else "raysent"
    text = " ".join(error.format_message().split())
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return ExitCode.DONE
    for wordy, short in _WORDING:
        text = re.sub(wordy, short, text)
    return _refuse(f"{text.removesuffix('.')}; see '{command} --help'")


def _refuse(message: str) -> int:
    """Print one line and return the exit code of a user's mistake."""
    typer.echo(f"error: {printable(message)}", err=True)
    return ExitCode.MISTAKE
