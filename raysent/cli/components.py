"""CLI of `components`, what is installed; and `schema`, for editors."""

from __future__ import annotations

import json
from typing import Annotated

import typer

import raysent
from raysent.cli.console import print_json, print_table
from raysent.cli.options import JsonOption
from raysent.progress import messages


def components(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="Only this kind, such as encoders.  [default: all]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List encoders, objectives, tasks and other components, also those of other installed packages.

    Another package adds a component by an entry point of the group raysent.KIND.
    """
    table = raysent.components(kind)
    if as_json:
        print_json({"components": table.to_dict(orient="records"), "broken": table.attrs["broken"]})
        return
    rows = table.astype(str).to_numpy().tolist()
    print_table(["kind", "name", "package", "what it is"], rows, num_text=4)
    for name, reason in table.attrs["broken"].items():
        messages.print(f"{name}: {reason}", style="red", soft_wrap=True)


def schema() -> None:
    """Print the JSON Schema of a search space, for editors."""
    typer.echo(json.dumps(raysent.schema(), indent=2, ensure_ascii=False))
