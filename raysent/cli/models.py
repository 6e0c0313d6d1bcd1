"""CLI of models made from models: `distill`, `adapt`, `whiten`, `expand` and `binarize`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import raysent
from raysent.cli.console import print_json, print_table, results
from raysent.cli.options import (
    CorpusOption,
    JsonOption,
    NewModelOption,
    SeedOption,
    SetOption,
    TasksOption,
    VectorsArgument,
    arguments_of,
    opened_name,
    split_names,
)
from raysent.progress import messages

if TYPE_CHECKING:
    from raysent.pipeline import Distilled

TrainedArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Folder of a training or a trial, also in s3://.", parser=opened_name
    ),
]


def distill(
    teacher: Annotated[
        str,
        typer.Argument(
            metavar="RUN|ENSEMBLE",
            help="Folder of an ensemble, a sweep with one, a training or a trial, also in s3://; or st:PATH.",
            parser=opened_name,
        ),
    ],
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="ENCODER",
            help="The student's encoder: bag, cnn, gru, transformer …; or static: a table of sub-words, by model2vec.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Run folder of the student.  [default: runs/distill-DATE]",
        ),
    ] = None,
    corpus: CorpusOption = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="30m",
            help="Train as many steps as fit into this time on this machine.",
        ),
    ] = None,
    tasks: TasksOption = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small or fast student of a model or an ensemble, on text without labels.

    The student learns the members' joined vectors, projected to 1,024 numbers or --set dim=N. What the projection
    loses is measured first, on --tasks, and refused above objective.max_loss. Of an ensemble the student also learns
    the predictions on them, and it is compared with its teacher; by default there are no tasks. Its folder is that of
    a training: it resumes, loads, exports, evaluates and joins ensembles, and does not need the teacher. --set takes
    names of a run, epochs=N, data=DIR and address=ADDR. --into static takes a pretrained encoder, or a model whose
    encoder is one, and needs no text.
    """
    made = raysent.distill(
        teacher,
        into=into,
        output=output,
        corpus=corpus,
        time=time,
        tasks=split_names(tasks),
        seed=seed or 0,
        progress=not as_json,
        **arguments_of(raysent.distill, overrides),
    )
    _print_distilled(made, as_json=as_json)


def adapt(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a training, a trial or a pretrained transformer, also in s3://.",
            parser=opened_name,
        ),
    ],
    corpus: Annotated[
        str,
        typer.Option("--corpus", metavar="PATH", help="Text to train on, as of 'raysent sweep'."),
    ],
    tasks: TasksOption = None,
    time: Annotated[
        str,
        typer.Option(
            "--time", metavar="30m", help="Time of all trainings together on this machine."
        ),
    ] = "10m",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder to create.  [default: runs/adapt-DATE]"
        ),
    ] = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask whether training on a text helps a model, and by which objective.

    Second readings of a sentence, its neighbours, hidden and deleted words are learned for equal times. Validation rows
    of --tasks choose one, and their test rows judge it against the given model; without tasks, sentences of held-out
    documents do. The adapted model is written only if the interval says that it helps. The same command with the same
    --output goes on where it was stopped. --set takes names of a run and data=DIR.
    """
    options = arguments_of(raysent.adapt, overrides)
    named: dict[str, Any] = {
        "corpus": corpus,
        "tasks": split_names(tasks),
        "time": time,
        "output": output,
        "seed": seed or 0,
    }
    found = raysent.adapt(model, **named, progress=not as_json, **options)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    for name, reason in found.left_out.items():
        messages.print(f"{name} left out: {reason}", soft_wrap=True)
    print_table(
        ["training", "validation"],
        [(name, f"{score:.2f}") for name, score in found.validation.items()],
    )
    results.print(found.sentence, soft_wrap=True)


def _print_distilled(made: Distilled, *, as_json: bool) -> None:
    outcome = None if made.run is None else made.run.outcome
    if as_json:
        about = {} if outcome is None else asdict(outcome)
        front = [row.model_dump(mode="json") for row in made.front]
        print_json({"run": made.address, **about, "front": front})
        return
    if outcome is None:
        dim = made.model.get_sentence_embedding_dimension()
        num_words = len(made.model.vocabulary)
        results.print(f"{made.address}: {num_words:,} sub-words of {dim} numbers", soft_wrap=True)
    else:
        cosine = outcome.metrics.get("target_cosine")
        shown = "" if cosine is None else f"  cosine with the target {cosine:.4f}"
        results.print(f"{outcome.status}: {made.address}{shown}", soft_wrap=True)
    if not made.front:
        return
    rows = [
        (
            f"{row.name}{' *' if row.is_on_front else ''}",
            row.kind,
            f"{row.encode_ms:.1f}",
            f"{row.test:.2f}",
            f"{row.difference:+.2f} [{row.difference_interval[0]:+.2f}, {row.difference_interval[1]:+.2f}]",
        )
        for row in made.front
    ]
    print_table(["model", "kind", "ms per 1,000", "test", "minus best member"], rows, num_text=2)
    messages.print("*: no faster model scores as high", style="dim")


def whiten(
    model: TrainedArgument,
    output: NewModelOption,
    corpus: CorpusOption = None,
    dimension: Annotated[
        str,
        typer.Option(
            "--dimension",
            metavar="N|full",
            help="Dimensions to keep; full: all in which the vectors vary.",
        ),
    ] = "full",
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whiten a trained model's vectors.

    Keeps the directions in which the vectors of unlabelled sentences vary most, and gives each the same variance.
    Similarity often rises; nothing is trained. The text is the model's own, or --corpus. --set takes
    num_sentences=15000, and names of the corpus, as in corpus.text_field=body.
    """
    found = raysent.whiten(
        model,
        corpus=corpus,
        dimension=int(dimension) if dimension.isdecimal() else cast("Any", dimension),
        output=output,
        progress=not as_json,
        **arguments_of(raysent.whiten, overrides),
    )
    if as_json:
        about = {
            "dimension": found.dimension,
            "rank": found.rank,
            "num_sentences": found.num_sentences,
        }
        print_json({"model": str(output), **about})
        return
    kept = f"{found.dimension:,} of {found.rank:,} dimensions"
    results.print(
        f"{output}: {kept}, whitened on {found.num_sentences:,} sentences", soft_wrap=True
    )


def expand(
    model: TrainedArgument,
    vectors: VectorsArgument,
    output: NewModelOption,
    as_json: JsonOption = False,
) -> None:
    """Give a trained model the words of pretrained vectors.

    Fits a linear map on the words that both have; the model's own words keep their vectors.
    """
    expanded = raysent.expand(model, vectors, output=output)
    num_words = len(expanded.vocabulary)
    if as_json:
        print_json({"model": str(output), "num_words": num_words})
    else:
        results.print(f"{output}: {num_words:,} words", soft_wrap=True)


def binarize(
    vectors: Annotated[
        Path, typer.Argument(metavar="VECTORS.npy", help="Vectors [rows, dim], from any encoder.")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="The .npy file of codes to write."),
    ],
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Save the code for other files.")
    ] = None,
    use: Annotated[
        Path | None, typer.Option("--use", metavar="FOLDER", help="Use a saved code.")
    ] = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a file of vectors into packed binary codes.

    Fits a rotation that evens out the vectors' variance in part, measures on held-out vectors what its bits keep, and
    writes eight bits per byte, the form of sentence-transformers' ubinary, FAISS and usearch. --set takes bits=N. Codes
    that are trained are part of models: 'raysent sweep binary'.
    """
    given = arguments_of(raysent.binarize, overrides)
    made = raysent.binarize(vectors, output=output, keep=keep, use=use, seed=seed, **given)
    rows, bits = len(made.codes), made.code.num_bits
    if as_json:
        print_json({"codes": str(output), "rows": rows, "bits": bits, **made.preserved})
        return
    results.print(f"{output}: {rows:,} codes of {bits:,} bits", soft_wrap=True)
    if made.preserved:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in made.preserved.items())
        messages.print(f"on held-out vectors: {shown}", soft_wrap=True)
