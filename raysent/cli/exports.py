"""CLI of `raysent export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysent.cli.console import print_json, results
from raysent.cli.options import JsonOption, opened_name

export_app = typer.Typer()


@export_app.command()
def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Folder of a training, a trial or an ensemble, also in s3://.", parser=opened_name
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The new folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="sentence-transformers: any model, with code of its own; static: its StaticEmbedding, for a bag of "
            "one tower; onnx: a graph and a tokenizer, for a single model.",
        ),
    ] = "sentence-transformers",
    license: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="License on the model card, such as apache-2.0.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model for another library.

    The folder holds a model card. It appears only after it gave the model's own vectors on 200 sentences.
    """
    from raysent.exports import export as write

    done = write(model, output, to=to, license=license)
    if as_json:
        check = done.check
        print_json(
            {
                "folder": str(done.folder),
                "to": to,
                "sentences": check.num_sentences,
                "other_ids": check.num_other_ids,
                "difference": check.difference,
                "bound": check.bound,
            }
        )
        return
    results.print(f"{done.folder}: {to}; {done.check}", soft_wrap=True)
