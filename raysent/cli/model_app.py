"""The commands about one model: `encode`, and models and codes made of words and vectors.

Each parses its options and calls one verb; torch is imported only by that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysent.cli.options import JsonOption, SeedOption, opened_name

model_app = typer.Typer()


@model_app.command()
def encode(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run folder, trial folder, ensemble, each also in s3://; or hash:DIM.",
            parser=opened_name,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the vectors go, float32 [sentences, dim].")
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="One sentence a line, each a row.  [default: standard input]")
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, help="Sentences encoded at once.")
    ] = 512,
    normalize: Annotated[bool, typer.Option("--normalize", help="Give every vector length 1.")] = False,
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="NAME", help="float32, or ubinary: a model's code, eight bits a byte."),
    ] = "float32",
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Multiply in bfloat16: faster; cosines to exact vectors >= 0.9999.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Processes that encode.  [default: one a core]"),
    ] = None,
) -> None:
    """Encode sentences into a .npy file."""
    from raysent.cli import encoding  # torch comes with it

    raise typer.Exit(
        encoding.encode(
            model,
            file,
            output=output,
            options={"batch_size": batch_size, "normalize_embeddings": normalize, "bfloat16": bfloat16},
            precision=precision,
            num_processes=processes,
        )
    )


NewModelOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the new model goes; must not hold one yet.")
]
TrainedArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder or a trial folder, also in s3://.", parser=opened_name)
]


@model_app.command()
def binarize(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS.npy", help="Vectors [rows, dim], from any encoder.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The .npy file of codes to write.")],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="threshold, random_projection, principal_components or autoencoder.  [default: autoencoder]",
        ),
    ] = None,
    bits: Annotated[
        int | None, typer.Option("--bits", metavar="N", min=1, help="Bits of a code.  [default: the method's]")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="As objective.lambda_sp=0.5, learning_rate=1e-4. Repeatable."),
    ] = None,
    seed: SeedOption = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep the code for other files.")
    ] = None,
    use: Annotated[Path | None, typer.Option("--use", metavar="FOLDER", help="A code that was kept.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a file of vectors into packed binary codes.

    Learns a code from the vectors, says what it keeps of those held out, and writes eight bits a byte, as
    sentence-transformers' ubinary, FAISS and usearch read them.
    """
    from raysent.cli import codes  # torch comes with it
    from raysent.cli.console import collect_overrides  # as above

    options = {"--method": ("code.type", method), "--bits": ("code.bits", bits), "--seed": ("seed", seed)}
    given = collect_overrides(options, overrides or [])
    raise typer.Exit(codes.binarize(vectors, output=output, overrides=given, keep=keep, use=use, as_json=as_json))


@model_app.command()
def expand(
    model: TrainedArgument,
    vectors: Annotated[
        Path, typer.Argument(metavar="VECTORS", help="GloVe, word2vec or fastText vectors, text or .bin, also .gz.")
    ],
    output: NewModelOption,
    intercept: Annotated[
        bool, typer.Option("--intercept/--no-intercept", help="Whether the linear map has a constant part.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Give a trained model the words of pretrained vectors.

    A linear map is learnt on the words of both; the model's own words keep their vectors.
    """
    from raysent.cli import words  # torch comes with it

    raise typer.Exit(words.expand(model, vectors, output=output, has_intercept=intercept, as_json=as_json))


@model_app.command()
def bag(model: TrainedArgument, output: NewModelOption, as_json: JsonOption = False) -> None:
    """Save the mean of a model's word vectors as a model.

    The baseline that says what the encoder adds to its words.
    """
    from raysent.cli import words  # torch comes with it

    raise typer.Exit(words.bag(model, output=output, as_json=as_json))


@model_app.command()
def average(
    vectors: Annotated[
        Path, typer.Argument(metavar="VECTORS", help="GloVe, word2vec or fastText vectors, text or .bin, also .gz.")
    ],
    output: NewModelOption,
    weighting: Annotated[
        str, typer.Option("--weighting", metavar="NAME", help="uniform, or sif: a / (a + p(word)) with a = 0.001.")
    ] = "uniform",
    counts: Annotated[
        Path | None, typer.Option("--counts", metavar="FILE", help="Lines of a word and how often it occurs, for sif.")
    ] = None,
    remove_component: Annotated[
        Path | None,
        typer.Option("--remove-component", metavar="TEXT", help="Take away the top component of TEXT's sentences."),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower-case text before looking words up.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Save the mean of a file's word vectors as a model.

    The baseline that needs no training: plain, with SIF weights, or with its top component taken away (WR).
    """
    from raysent.cli import words  # torch comes with it

    raise typer.Exit(
        words.average(
            vectors,
            output=output,
            weighting=weighting,
            counts=counts,
            text=remove_component,
            is_lowercase=lowercase,
            as_json=as_json,
        )
    )
