"""CLI of text: `predict`, and of its vectors `encode`, `encode-corpus`, `index` and `neighbours`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import raysent
from raysent.cli.console import messages, print_json, results
from raysent.cli.options import (
    AddressOption,
    ColumnOption,
    JsonOption,
    ModelArgument,
    ModelsArgument,
    PredictingArgument,
    SetOption,
    arguments_of,
)
from raysent.errors import ExitCode

if TYPE_CHECKING:
    from raysent.analysis import Comparison, Neighbour


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
        typer.Option("--column", metavar="NAME", help="Column of the text; twice for pairs.  [default: found by name]"),
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
    proba: Annotated[bool, typer.Option("--proba", help="Also write the probability of each label.")] = False,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Task to predict, of a model that predicts several.")
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option("--coverage", metavar="X", help="Answer this part of the rows, 0.8, and leave the others empty."),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option("--precision", metavar="X", help="Answer as many rows as can be with 0.95 of them right."),
    ] = None,
    address: AddressOption = None,
    overrides: SetOption = None,
) -> None:
    """Predict the label of each row of a file.

    Writes the file's columns and a column 'predicted', as a whole or not at all. A model predicts the tasks that it was
    made or evaluated on. Rows below the threshold for --coverage or --precision, which is fitted on validation rows,
    get no label. --set takes header=false, for a .csv or .tsv whose first line is a row.
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
        answered = (
            f"{made.num_answered:,} of {made.num_rows:,} rows are answered ({made.num_answered / made.num_rows:.1%})"
        )
        messages.print(f"{made.promise}; here {answered}", soft_wrap=True)
    shares = [f"{label} {count:,}" for label, count in made.counts.items()]
    more = [f"{len(shares) - _MAX_SHARES} more labels"] if len(shares) > _MAX_SHARES else []
    about = ", ".join([*shares[:_MAX_SHARES], *more])
    messages.print(
        f"{output or 'standard output'}: {made.num_rows:,} rows of {made.task}{about and f': {about}'}", soft_wrap=True
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
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Encode the sentences of a file into a file of vectors.

    --set takes header=false, for a .csv or .tsv whose first line is a row; precision=ubinary, the bits of a model with
    a code; bfloat16=true, faster, with cosines to exact vectors of at least 0.9999; batch_size=N and processes=N. Many
    files are encoded into a folder by 'raysent encode-corpus'.
    """
    given = arguments_of(raysent.encode_file, overrides)
    rows, columns = raysent.encode_file(
        model, file, output=output, column=column, normalize=normalize, progress=not as_json, **given
    )
    precision = given.get("precision", "float32")
    if as_json:
        print_json({"output": str(output), "sentences": rows, "columns": columns, "precision": precision})
        return
    messages.print(f"{output}: {rows:,} sentences, {columns:,} {_unit(precision)}", soft_wrap=True)


def encode_corpus(
    model: ModelArgument,
    input: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, folders, globs or s3:// addresses, each file by itself."),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="Folder to write, also in s3://, and to continue in.")
    ],
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="30m", help="Stop after so long; the same command continues."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="5usd", help="Most dollars for the folder, all runs together."),
    ] = None,
    address: AddressOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Encode many files into a folder of vectors.

    Each file becomes one Parquet file (file, row, text, vector), which appears whole or not at all. The same command
    continues where it stopped, and skips what is done. Exit code 5 if a limit left files to encode. --set takes
    splits_sentences=true, to split running text as for training; keeps_text=false; column=NAME of tables;
    normalize=true, precision=ubinary, bfloat16=true and batch_size=N as for encode; workers=N; and with --address or
    --budget: device=cpu or cuda, cluster=FILE, whose machines cost what AWS charges, usd_per_hour=X of each machine,
    and max_hourly=12usd.
    """
    given = arguments_of(raysent.encode_corpus, overrides)
    encoded = raysent.encode_corpus(
        model,
        input,
        output,
        time=time,
        budget=budget,
        address=address,
        progress=not as_json,
        **given,
    )
    for path in encoded.damaged:
        messages.print(f"{path}: was damaged, and does not count as encoded before", style="yellow", soft_wrap=True)
    if as_json:
        print_json(asdict(encoded))
    else:
        skipped = f"; {encoded.num_skipped:,} were there already" if encoded.num_skipped else ""
        messages.print(
            f"{encoded.folder}: {encoded.num_files:,} files, {encoded.num_rows:,} sentences, "
            f"{encoded.width:,} {_unit(given.get('precision', 'float32'))}{skipped}",
            soft_wrap=True,
        )
        if encoded.stopped:
            left = f"{encoded.num_left:,} files are left; run the command again to continue"
            messages.print(f"{encoded.stopped}; {left}", style="red", soft_wrap=True)
    raise typer.Exit(ExitCode.INCOMPLETE if encoded.stopped else ExitCode.DONE)


def _unit(precision: str) -> str:
    return "dimensions" if precision == "float32" else "bytes each"


def index(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of vectors that 'raysent encode-corpus' wrote, also in s3://.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The index file to write.")],
    ivf: Annotated[
        bool,
        typer.Option("--ivf", help="Divide the rows into cells and search some of them: fast, may miss neighbours."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write an index of FAISS of a folder of vectors.

    Compares by cosine, or by Hamming distance for codes. 'raysent neighbours --index FILE' searches it, and so does
    FAISS itself. FAISS holds an index in memory; needs raysent[search].
    """
    made = raysent.index_vectors(folder, output, ivf=ivf, progress=not as_json)
    if as_json:
        print_json({**asdict(made), "path": str(made.path)})
        return
    cells = f", {made.num_cells:,} cells" if made.num_cells else ", exact"
    results.print(f"{made.path}: {made.num_rows:,} vectors by {made.measure}{cells}", soft_wrap=True)


def neighbours(
    models: ModelsArgument,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="Text to search, the last name: file, folder, glob, s3://, or 'docs'; or a folder of vectors that "
            "'raysent encode-corpus' wrote.",
        ),
    ],
    query: Annotated[
        list[str] | None, typer.Option("--query", metavar="TEXT", help="A query sentence. Repeatable.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option("--queries", metavar="FILE", help="More queries, one per line.")
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Neighbours of each query.")] = 5,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="FILE", help="Search the index that 'raysent index' wrote of the vectors."),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the nearest sentences of a text, by each model.

    The search is exact: by cosine, or by Hamming distance for a model with a code. A sentence that occurs several times
    is listed once, and a query that is in the corpus is left out. Vectors are cached, so the next search of the same
    text is fast. A folder of vectors is searched without encoding its text again, by the model that encoded it. The
    result is stored in neighbours.json of the first folder named, for its report. --set takes includes_query=true,
    column=NAME of a table, and max_sentences=N.
    """
    from raysent.data import read_lines

    asked = [*(query or []), *(read_lines(queries) if queries else [])]
    given = arguments_of(raysent.neighbours, overrides)
    found = raysent.neighbours(models, corpus, asked, k=k, index=index, progress=not as_json, **given)
    if as_json:
        print_json(found.values())
        return
    _print_comparison(found)
    folder = next((model for model in models if Path(model).is_dir()), None)
    if folder is not None:
        messages.print(f"stored in {folder}; 'raysent report {folder}' shows it", soft_wrap=True)


def _print_comparison(found: Comparison) -> None:
    """Print one table per query: a row per rank, a column per model."""
    from rich.table import Table

    results.print(f"{found.num_sentences:,} sentences of {found.corpus}", soft_wrap=True)
    for number, query in enumerate(found.queries):
        results.print()
        table = Table(box=None, pad_edge=False, header_style="bold", title=query, title_justify="left")
        table.title_style = "bold"
        table.add_column("", justify="right")
        for column in found.columns:
            table.add_column(column.measure, justify="right", no_wrap=True)
            table.add_column(column.model, ratio=1, overflow="fold")
        neighbours_of = [column.neighbours[number] for column in found.columns]
        for place in range(max(map(len, neighbours_of))):
            cells = [cell for found_ones in neighbours_of for cell in _cells(found_ones, place)]
            table.add_row(str(place + 1), *cells)
        results.print(table)


def _cells(found: Sequence[Neighbour], place: int) -> tuple[str, str]:
    """Return a neighbour's score and sentence; empty if there are fewer."""
    if place >= len(found):
        return "", ""
    one = found[place]
    return (str(one.score) if isinstance(one.score, int) else f"{one.score:.4f}"), one.sentence
