"""The command line: every `*_app` of this folder under one name, and what becomes of a mistake.

Each command parses its options, calls one verb and prints; torch and Ray are imported only by those that run.

Standard output carries results (with `--json` exactly one object); progress and errors go to standard error.
Exit codes: 0 done, 2 a mistake in what was asked, 5 some trials failed, 130 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any

import typer

from raysent import __version__
from raysent.cli.analyse_app import analyse_app
from raysent.cli.cluster_app import cluster_app
from raysent.cli.cost_app import cost_app
from raysent.cli.judge_app import data_app, judge_app
from raysent.cli.model_app import model_app
from raysent.cli.retrieval_app import retrieval_app
from raysent.cli.sweep_app import space_app, sweep_app
from raysent.errors import RaysentError

# Typer keeps a copy of click for itself; its public BadParameter is the way to what all misuse descends from.
UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

_WORDING = (
    (r"^Invalid value for '([^']+)': (Input should be )?", r"\1: must be "),
    (r", unable to parse string as an? \w+$", ""),
    (r"^No such (option|command):? '?([^' ]+)'?", r"\2: no such \1"),
    (r"\.? Did you mean ('[^']+')\?$", r"; did you mean \1?"),
    (r" \((?:Possible options|Did you mean one of): ([^)]+)\)$", r"; did you mean one of \1?"),
)

app = typer.Typer(
    name="raysent",
    help="Train sentence encoders, search their hyperparameters across a cluster, and combine the best into ensembles.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# As `raysent --help` lists them: those without a name give their commands to the root.
app.add_typer(sweep_app)
app.add_typer(judge_app)
app.add_typer(space_app, name="space")
app.add_typer(data_app, name="data")
app.add_typer(analyse_app, name="analyse")
app.add_typer(cost_app, name="cost")
app.add_typer(cluster_app, name="cluster")
app.add_typer(retrieval_app)
app.add_typer(model_app)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"raysent {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; every mistake of the user's is one line on standard error, and exit code 2."""
    try:
        status = app(prog_name="raysent", standalone_mode=False)
    except RaysentError as error:
        status = _refuse(str(error))
    except UsageError as error:
        status = _misused(error)
    except typer.Exit as error:
        status = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:
        # The reader of our output has gone, as in `raysent … | head`; that is its right.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def _misused(error: Any) -> int:
    """Answer a wrong command line; a command without its arguments is answered with its help."""
    command = error.ctx.command_path if error.ctx is not None else "raysent"
    text = " ".join(error.format_message().split())
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return 0
    for wordy, short in _WORDING:
        text = re.sub(wordy, short, text)
    return _refuse(f"{text.removesuffix('.')}; see '{command} --help'")


def _refuse(message: str) -> int:
    """Print one line and return the exit code of a user's mistake."""
    typer.echo(f"error: {message}", err=True)
    return 2
