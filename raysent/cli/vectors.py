"""CLI of text: `predict`, its labels, and `encode`, its vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import raysent
from raysent.cli.console import print_json
from raysent.cli.options import (
    AddressOption,
    ColumnOption,
    JsonOption,
    ModelArgument,
    PredictingArgument,
    SetOption,
    arguments_of,
)
from raysent.progress import messages

# Labels that are counted on the screen.
_MAX_SHARES = 10

TextArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="Text with one sentence per line; .csv, .tsv, .jsonl, .parquet or a folder of datasets; .md or .html; "
        "also in s3://.  [default: standard input]",
    ),
]


def predict(
    model: PredictingArgument,
    file: TextArgument = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="Column of the text; twice for pairs.  [default: found by name]",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write: .csv, .tsv, .jsonl or .parquet; also in s3://.  [default: CSV on standard output]",
        ),
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Also write the probability of each label.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", metavar="NAME", help="Task to predict, of a model that predicts several."
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--coverage",
            metavar="X",
            help="Answer this part of the rows, 0.8, and leave the others empty.",
        ),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            "--precision",
            metavar="X",
            help="Answer as many rows as can be with 0.95 of them right.",
        ),
    ] = None,
    address: AddressOption = None,
    overrides: SetOption = None,
) -> None:
    """Predict the label of each row of a file.

    Writes the file's columns and a column 'predicted', as a whole or not at all. A model predicts the tasks that it was
    made or evaluated on. Rows below the threshold for --coverage or --precision, which is fitted on validation rows,
    get no label. --set takes header=false, for a .csv or .tsv whose first line is a row, and formulas=true, for labels
    that a spreadsheet would compute.
    """
    given = arguments_of(raysent.predict, overrides)
    made = raysent.predict(
        model,
        file,
        output=output,
        column=column,
        task=task,
        proba=proba,
        coverage=coverage,
        precision=precision,
        address=address,
        **given,
    )
    if made.promise is not None:
        share = made.num_answered / made.num_rows
        answered = f"{made.num_answered:,} of {made.num_rows:,} rows are answered ({share:.1%})"
        messages.print(f"{made.promise}; here {answered}", soft_wrap=True)
    shares = [f"{label} {count:,}" for label, count in made.counts.items()]
    more = [f"{len(shares) - _MAX_SHARES} more labels"] if len(shares) > _MAX_SHARES else []
    about = ", ".join([*shares[:_MAX_SHARES], *more])
    messages.print(
        f"{output or 'standard output'}: {made.num_rows:,} rows of {made.task}{about and f': {about}'}",
        soft_wrap=True,
    )


def encode(
    model: ModelArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, float32 [sentences, dim]: .npy, .npz (vectors) or .parquet (text, vector).",
        ),
    ],
    file: TextArgument = None,
    column: ColumnOption = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale every vector to length 1.")
    ] = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Encode the sentences of a file into a file of vectors.

    --set takes header=false, for a .csv or .tsv whose first line is a row; precision=ubinary, the bits of a model with
    a code, or else signs; bfloat16=true, faster, with cosines to exact vectors of at least 0.9999; batch_size=N and
    processes=N. Many files are encoded into a folder by 'raysent encode-corpus'.
    """
    given = arguments_of(raysent.encode_file, overrides)
    rows, columns = raysent.encode_file(
        model,
        file,
        output=output,
        column=column,
        normalize=normalize,
        progress=not as_json,
        **given,
    )
    from raysent.models import unit_of

    precision = given.get("precision", "float32")
    if as_json:
        print_json(
            {"output": str(output), "sentences": rows, "columns": columns, "precision": precision}
        )
        return
    messages.print(
        f"{output}: {rows:,} sentences, {columns:,} {unit_of(precision)}", soft_wrap=True
    )
