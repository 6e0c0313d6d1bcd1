"""CLI of text: `predict`, and of its vectors `encode`, `encode-corpus`, `index` and `search`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import raysent
from raysent.cli.console import print_json, print_table
from raysent.cli.options import (
    AddressOption,
    ColumnOption,
    JsonOption,
    ModelArgument,
    PredictingArgument,
    SetOption,
    arguments_of,
)
from raysent.errors import ConfigError, ExitCode
from raysent.progress import messages

if TYPE_CHECKING:
    from raysent.exports import EncodedCorpus


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
    precision = given.get("precision", "float32")
    if as_json:
        print_json(
            {"output": str(output), "sentences": rows, "columns": columns, "precision": precision}
        )
        return
    messages.print(f"{output}: {rows:,} sentences, {columns:,} {_unit(precision)}", soft_wrap=True)


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
    given = arguments_of(raysent.encode_corpus, overrides)
    encoded = raysent.encode_corpus(
        model, input, output, time=time, address=address, progress=not as_json, **given
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
        _print_encoded(encoded, "sentences", precision=given.get("precision", "float32"))
    raise typer.Exit(ExitCode.INCOMPLETE if encoded.stopped else ExitCode.DONE)


def _print_encoded(encoded: EncodedCorpus, what: str, *, precision: str = "float32") -> None:
    skipped = f"; {encoded.num_skipped:,} were there already" if encoded.num_skipped else ""
    messages.print(
        f"{encoded.folder}: {encoded.num_files:,} files, {encoded.num_rows:,} {what}, "
        f"{encoded.width:,} {_unit(precision)}{skipped}",
        soft_wrap=True,
    )
    if encoded.stopped:
        left = f"{encoded.num_left:,} files are left; run the command again to continue"
        messages.print(f"{encoded.stopped}; {left}", style="red", soft_wrap=True)


def _unit(precision: str) -> str:
    return "dimensions" if precision == "float32" else "bytes each"


def index(
    model: ModelArgument,
    input: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Files, folders, globs or s3:// addresses of passages."
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder to write, also in s3://, and to add to."
        ),
    ],
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a folder of passages that 'raysent search' searches, by vectors and by words.

    Each line or row is a passage. The same command adds files that are new or have changed, and continues where it
    stopped. Needs raysent[search]. --set takes what encode-corpus takes: column=NAME of tables; precision=int8, of
    which a search holds 1/32 of the bytes in memory; precision=ubinary, bits of a model with a code, or signs alone;
    time=30m and address=ADDR.
    """
    given = arguments_of(raysent.encode_corpus, overrides)
    made = raysent.index(model, input, output, progress=not as_json, **given)
    if as_json:
        print_json(asdict(made))
    else:
        _print_encoded(made, "passages", precision=given.get("precision", "float32"))
    raise typer.Exit(ExitCode.INCOMPLETE if made.stopped else ExitCode.DONE)


def search(
    index: Annotated[
        str,
        typer.Argument(metavar="INDEX", help="Folder that 'raysent index' wrote, also in s3://."),
    ],
    query: Annotated[list[str] | None, typer.Argument(metavar="QUERY", help="Queries.")] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries",
            metavar="FILE",
            help="More queries: lines, or a table's column 'query' or 'text'.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Passages of each query.")] = 10,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="NAME",
            help="vectors, words or fused.  [default: as the model was chosen, else vectors]",
        ),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the passages nearest to queries, by vectors, by words, or by both.

    The search is exact: by cosine, or by Hamming distance for a model with a code, and by BM25 for words. --set takes
    weight=0.4, of words in fused, by default what was fitted for the model, else reciprocal ranks; and model=PATH, if
    the model that encoded the folder is elsewhere by now.
    """
    from raysent.exports import read_queries

    asked = [*(query or []), *([] if queries is None else read_queries(queries))]
    if not asked:
        raise ConfigError("query: must be given at least once, or a file of queries; given none")
    given = arguments_of(raysent.search, overrides)
    opened = raysent.SearchIndex(index, model=given.pop("model", None))
    found, by = opened.search(asked, k=k, by=by, **given), by or opened.by
    if as_json:
        print_json(
            {
                "queries": asked,
                "by": by,
                "results": [[asdict(hit) for hit in hits] for hits in found],
            }
        )
        return
    weight = given.get("weight", opened.word_weight)
    how = {"fused": " (reciprocal ranks)" if weight is None else f" (words weigh {weight:g})"}.get(
        by, ""
    )
    messages.print(f"{opened.num_passages:,} passages ranked by {by}{how}")
    for text, hits in zip(asked, found, strict=True):
        print_table(
            [text, "score", "place"],
            [(hit.text or "", f"{hit.score:.4f}", hit.place) for hit in hits],
        )
