"""The commands `export`, a model for another library, and `encode-corpus`, the vectors of many files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import raysent
from raysent.cli.console import print_json, results
from raysent.cli.options import AddressOption, JsonOption, ModelArgument, SetOption, arguments_of
from raysent.cli.wings import Command
from raysent.errors import ExitCode
from raysent.progress import messages


def export(
    model: ModelArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="The new folder.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="sentence-transformers: any model, with code of its own; static: its StaticEmbedding, for a bag of "
            "one tower; onnx: a graph and a tokenizer, for a single model.",
        ),
    ] = "sentence-transformers",
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model for another library.

    The folder holds a model card. It appears only after it gave the model's own vectors on 200 sentences. --set
    license=apache-2.0, an identifier of the hub or 'other: NAME', is written on the card.
    """
    done = raysent.export(model, output, to=to, **arguments_of(raysent.export, overrides))
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


def encode_corpus(
    model: ModelArgument,
    input: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Files, folders, globs or s3:// addresses, each file by itself."
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder to write, also in s3://, and to continue in.",
        ),
    ],
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="30m", help="Stop after so long; the same command continues."
        ),
    ] = None,
    address: AddressOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Encode many files into a folder of vectors.

    Each file becomes one Parquet file (file, row, text, vector), which appears whole or not at all. The same command
    continues where it stopped, and skips what is done. Exit code 5 if a limit left files to encode. --set takes
    splits_sentences=true, to split running text as for training; keeps_text=false; column=NAME of tables;
    normalize=true, precision=ubinary, bfloat16=true and batch_size=N as for encode; and workers=N.
    """
    options = arguments_of(raysent.encode_corpus, overrides)
    encoded = raysent.encode_corpus(
        model, input, output, time=time, address=address, progress=not as_json, **options
    )
    for path in encoded.damaged:
        messages.print(
            f"{path}: was damaged, and does not count as encoded before",
            style="yellow",
            soft_wrap=True,
        )
    if as_json:
        print_json(asdict(encoded))
    else:
        precision = options.get("precision", "float32")
        messages.print(encoded.sentence(precision=precision), soft_wrap=True)
        if encoded.rest:
            messages.print(encoded.rest, style="red", soft_wrap=True)
    raise typer.Exit(ExitCode.INCOMPLETE if encoded.stopped else ExitCode.DONE)


COMMANDS = {
    "export": Command(export, "Models"),
    "encode-corpus": Command(encode_corpus, "Text and vectors", before="label"),
}
