"""CLI of `raysent distill`, `encode`, `binarize`, `expand`, `whiten`, `bag` and `average`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysent.cli.console import ProgressLines, collect_overrides, messages, print_json, print_table, results
from raysent.cli.options import (
    AddressOption,
    ColumnOption,
    CorpusOption,
    DataOption,
    HourlyOption,
    JsonOption,
    SeedOption,
    SetOption,
    opened_name,
    split_names,
)
from raysent.errors import ArtifactError, ConfigError, ExitCode

if TYPE_CHECKING:
    from raysent.exports import EncodedCorpus
    from raysent.models import SentenceModel
    from raysent.pipeline import Distilled

model_app = typer.Typer()


@model_app.command()
def encode(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a training, a trial or an ensemble, also in s3://; or hash:DIM, st:PATH or hf:PATH.",
            parser=opened_name,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|DIR",
            help="File to write, float32 [sentences, dim]: .npy, .npz (vectors) or .parquet (text, vector); with "
            "--input, the folder to write, also in s3://.",
        ),
    ],
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Text with one sentence per line; .csv, .tsv, .jsonl, .parquet or a folder of datasets; .md or .html; "
            "also in s3://.  [default: standard input]",
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="PATH",
            help="Encode each file of a folder, a glob or s3:// into a Parquet file of its own. Repeatable.",
        ),
    ] = None,
    column: ColumnOption = None,
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first line of a .csv or .tsv names its columns.")
    ] = True,
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Sentences per batch.")] = 512,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="NAME", help="float32; or ubinary: bits of a model with a code."),
    ] = "float32",
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Compute in bfloat16: faster; cosines to exact vectors >= 0.9999.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            "--workers",
            metavar="N",
            min=1,
            help="Number of processes; with --address, tasks at the same time.  [default: as many as pay]",
        ),
    ] = None,
    split_sentences: Annotated[
        bool, typer.Option("--sentences", help="With --input: split running text into sentences, as for training.")
    ] = False,
    text: Annotated[bool, typer.Option("--text/--no-text", help="With --input: whether the files hold texts.")] = True,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDR", help="With --input: encode on this running Ray cluster."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="With --address: cpu or cuda.  [default: cuda for a trained model where the cluster has GPUs]",
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", metavar="FILE", help="With --address: the cluster's file; its machines cost what AWS charges."
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="30m", help="With --input: stop after so long; the same command continues."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="5usd", help="With --input: most dollars for the folder, all runs together."),
    ] = None,
    max_hourly: HourlyOption = None,
    usd_per_hour: Annotated[
        float | None,
        typer.Option("--usd-per-hour", metavar="X", min=0, help="With --input: price of each machine."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Encode sentences into a file of vectors, or many files into a folder.

    With --input, each file becomes one Parquet file (file, row, text, vector), which appears whole or not at all. The
    same command continues where it stopped, and skips what is done. Exit code 5 if a limit left files to encode.
    """
    from raysent import pipeline

    options: dict[str, Any] = {
        "column": column, "batch_size": batch_size, "normalize": normalize, "precision": precision,
        "bfloat16": bfloat16, "progress": not as_json,
    }  # fmt: skip
    if input is not None:
        if file is not None:
            raise ConfigError(f"--input: must not be given beside FILE; given {file}")
        if not header:
            raise ConfigError("--no-header: must be used with FILE; leave it out with --input")
        encoded = pipeline.encode_corpus(
            model,
            input,
            output,
            splits_sentences=split_sentences,
            keeps_text=text,
            workers=processes,
            address=address,
            device=device,
            cluster=cluster,
            time=time,
            budget=budget,
            max_hourly=max_hourly,
            usd_per_hour=usd_per_hour,
            **options,
        )
        raise typer.Exit(_print_encoded(encoded, precision, as_json=as_json))
    given = {
        "--sentences": split_sentences, "--no-text": not text, "--address": address, "--device": device,
        "--cluster": cluster, "--time": time,
        "--budget": budget, "--max-hourly": max_hourly, "--usd-per-hour": usd_per_hour,
    }  # fmt: skip
    wrong = next((name for name, value in given.items() if value is not None and value is not False), None)
    if wrong is not None:
        raise ConfigError(f"{wrong}: must be used with --input; leave it out for one file")
    rows, columns = pipeline.encode_file(
        model, file, output=Path(output), header=header, processes=processes, **options
    )
    if as_json:
        print_json({"output": output, "sentences": rows, "columns": columns, "precision": precision})
        return
    messages.print(f"{output}: {rows:,} sentences, {columns:,} {_unit(precision)}", soft_wrap=True)


def _print_encoded(encoded: EncodedCorpus, precision: str, *, as_json: bool) -> int:
    """Print what encoding a corpus has done; returns the exit code."""
    for path in encoded.damaged:
        messages.print(f"{path}: was damaged, and does not count as encoded before", style="yellow", soft_wrap=True)
    if as_json:
        print_json(asdict(encoded))
    else:
        skipped = f"; {encoded.num_skipped:,} were there already" if encoded.num_skipped else ""
        messages.print(
            f"{encoded.folder}: {encoded.num_files:,} files, {encoded.num_rows:,} sentences, "
            f"{encoded.width:,} {_unit(precision)}{skipped}",
            soft_wrap=True,
        )
        if encoded.stopped:
            left = f"{encoded.num_left:,} files are left; run the command again to continue"
            messages.print(f"{encoded.stopped}; {left}", style="red", soft_wrap=True)
    return ExitCode.INCOMPLETE if encoded.stopped else 0


def _unit(precision: str) -> str:
    return "dimensions" if precision == "float32" else "bytes each"


NewModelOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the new model; must not hold one yet.")
]
TrainedArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder of a training or a trial, also in s3://.", parser=opened_name)
]


@model_app.command()
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
        str, typer.Option("--into", metavar="ENCODER", help="The student's encoder: bag, cnn, gru, transformer …")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Run folder of the student.  [default: runs/distill-DATE]"
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option("--dim", metavar="N", min=1, help="Size that the teacher's vectors are projected to.  [1024]"),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", metavar="N", min=0, help="Passes over the text.  [default: 1]")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="30m", help="Train as many steps as fit into this time on this machine."),
    ] = None,
    hours: Annotated[float | None, typer.Option("--hours", metavar="X", min=0, help="The same in hours.")] = None,
    corpus: CorpusOption = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            "--task",
            metavar="A,B|FILE",
            help="Measure the target's loss on these tasks, learn the ensemble's predictions on them, and compare the "
            "student with its teacher. Repeatable.  [default: none]",
        ),
    ] = None,
    data: DataOption = None,
    overrides: SetOption = None,
    seed: SeedOption = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small or fast student of a model or an ensemble, on text without labels.

    The student learns the members' joined vectors, projected to --dim numbers. What the projection loses is measured
    first and refused above objective.max_loss. The student's folder is that of a training: it resumes, loads, exports,
    evaluates and joins ensembles, and does not need the teacher.
    """
    from raysent import pipeline

    if time is not None and hours is not None:
        raise ConfigError("--time and --hours: must not both be given")
    options = {"--dim": ("objective.dim", dim), "--epochs": ("training.epochs", epochs)}
    made = pipeline.train_student(
        teacher,
        into,
        overrides=collect_overrides(options, overrides or []),
        corpus=corpus,
        tasks=split_names(tasks),
        data=data,
        time=time if hours is None else f"{hours:f}h",
        output=output,
        seed=seed or 0,
        address=address,
        progress=not as_json,
    )
    _print_distilled(made, as_json=as_json)


def _print_distilled(made: Distilled, *, as_json: bool) -> None:
    """Print how a student was trained, and the front of score against time to encode."""
    outcome = made.run.outcome
    if as_json:
        print_json(
            {"run": made.run.address, **asdict(outcome), "front": [row.model_dump(mode="json") for row in made.front]}
        )
        return
    cosine = outcome.metrics.get("target_cosine")
    shown = "" if cosine is None else f"  cosine with the target {cosine:.4f}"
    results.print(f"{outcome.status}: {made.run.address}{shown}", soft_wrap=True)
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
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Save the code for other files.")
    ] = None,
    use: Annotated[Path | None, typer.Option("--use", metavar="FOLDER", help="Use a saved code.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a file of vectors into packed binary codes.

    Learns a code from the vectors, measures on held-out vectors what it preserves, and writes eight bits per byte, the
    form of sentence-transformers' ubinary, FAISS and usearch.
    """
    import numpy as np

    from raysent.config import Document, validate
    from raysent.models import VectorCodeConfig, load_code, make_code, read_vectors
    from raysent.storage import atomic_write, storage_errors

    options = {"--method": ("code.type", method), "--bits": ("code.bits", bits), "--seed": ("seed", seed)}
    given, found = read_vectors(vectors), dict[str, float]()
    if use is not None:
        code = load_code(use)
    else:
        document = Document({"code": {"type": "autoencoder"}})
        config = validate(VectorCodeConfig, document.with_overrides(collect_overrides(options, overrides or [])))
        with ProgressLines(is_quiet=as_json) as progress:
            code, found = make_code(given, config, progress=progress)
    codes = code.encode_packed(given)
    with storage_errors(output), atomic_write(output) as temporary, temporary.open("wb") as stream:
        np.save(stream, codes)
    if keep is not None:
        code.save(keep)
    if as_json:
        print_json({"codes": str(output), "rows": len(codes), "bits": code.num_bits, **found})
        return
    results.print(f"{output}: {len(codes):,} codes of {code.num_bits:,} bits", soft_wrap=True)
    if found:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        messages.print(f"on held-out vectors: {shown}", soft_wrap=True)


@model_app.command()
def expand(
    model: TrainedArgument,
    vectors: Annotated[
        Path, typer.Argument(metavar="VECTORS", help="GloVe, word2vec or fastText vectors, text or .bin, also .gz.")
    ],
    output: NewModelOption,
    intercept: Annotated[
        bool, typer.Option("--intercept/--no-intercept", help="Whether the linear map has an intercept.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Give a trained model the words of pretrained vectors.

    Fits a linear map on the words that both have; the model's own words keep their vectors.
    """
    from raysent.data.vocabulary import read_word_vectors
    from raysent.models import expand as expand_model

    trained = _trained(model, output)
    expanded = expand_model(trained, read_word_vectors(vectors), has_intercept=intercept)
    expanded.save(output)
    before, after = len(trained.vocabulary), len(expanded.vocabulary)
    if as_json:
        print_json({"model": str(output), "num_words_before": before, "num_words": after})
    else:
        results.print(f"{output}: {before:,} words became {after:,}", soft_wrap=True)


@model_app.command()
def whiten(
    model: TrainedArgument,
    output: NewModelOption,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            metavar="PATH",
            help="Text without labels: file, table, folder, glob, s3://, or 'docs'.  [default: the model's own]",
        ),
    ] = None,
    dimension: Annotated[
        str,
        typer.Option(
            "--dimension",
            metavar="N|NAME",
            help="Dimensions to keep; full: all in which the vectors vary; auto: the best by --metric, or none.",
        ),
    ] = "auto",
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Of auto: pearson, with --set validation.sts=DIR; or a task or own table, by its validation rows.  "
            "[default: what the training was validated on]",
        ),
    ] = None,
    data: DataOption = None,
    sentences: Annotated[
        int, typer.Option("--sentences", metavar="N", min=2, help="Sentences to compute the whitening from.")
    ] = 15_000,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Set a value of corpus or validation. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Whiten a trained model's vectors.

    Keeps the directions in which the vectors of unlabelled sentences vary most, and gives each the same variance.
    Similarity often rises; nothing is trained.
    """
    from raysent import pipeline

    _check_free(output)
    found = pipeline.whiten(
        model,
        corpus=corpus,
        dimension=_dimension(dimension),
        metric=metric,
        data=data,
        set={override.name: override.value for override in collect_overrides({}, overrides or [])},
        num_sentences=sentences,
        output=output,
        progress=not as_json,
    )
    scores = {"none" if kept is None else str(kept): score for kept, score in found.scores.items()}
    if as_json:
        about = {"dimension": found.dimension, "rank": found.rank, "num_sentences": found.num_sentences}
        print_json({"model": str(output), **about, "metric": found.metric or None, "scores": scores})
        return
    if scores:
        print_table(["whitening", found.metric], [[kept, f"{score:.4f}"] for kept, score in scores.items()])
    if found.dimension is None:
        results.print(f"{output}: not whitened, because no dimension has a higher {found.metric}", soft_wrap=True)
    else:
        kept = f"{found.dimension:,} of {found.rank:,} dimensions"
        results.print(f"{output}: {kept}, whitened on {found.num_sentences:,} sentences", soft_wrap=True)


def _dimension(text: str) -> Any:
    """Return `--dimension` as `pipeline.whiten` takes it."""
    if text in {"auto", "full"}:
        return text
    if text.isdecimal() and int(text):
        return int(text)
    raise ConfigError(f"--dimension: must be a positive whole number, full or auto; given '{text}'")


@model_app.command()
def bag(model: TrainedArgument, output: NewModelOption, as_json: JsonOption = False) -> None:
    """Save the mean of a model's word vectors as a model.

    The baseline that shows what the encoder adds to its words.
    """
    from raysent.models import bag_of_words

    words = bag_of_words(_trained(model, output))
    words.save(output)
    _print_average(words, output, as_json=as_json)


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
        Path | None, typer.Option("--counts", metavar="FILE", help="Lines of a word and its count, for sif.")
    ] = None,
    remove_component: Annotated[
        Path | None,
        typer.Option("--remove-component", metavar="TEXT", help="Remove the first component of TEXT's sentences."),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower-case text before looking words up.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Save the mean of a file's word vectors as a model.

    A baseline without training: plain, with SIF weights, or with the first component removed (WR).
    """
    from raysent.data import read_counts, read_lines
    from raysent.data.vocabulary import read_word_vectors
    from raysent.models import average_of_words, check_weighting

    _check_free(output)
    model = average_of_words(
        read_word_vectors(vectors),
        weighting=check_weighting(weighting),
        counts=None if counts is None else read_counts(counts),
        lowercase=lowercase,
        remove_component=remove_component is not None,
    )
    if remove_component is not None:
        sample = read_lines(remove_component)[: model.postprocessing.num_sentences]
        model.fit_postprocessing(model.vocabulary.ids(sample, max_length=model.max_length))
    model.save(output)
    _print_average(model, output, as_json=as_json)


def _print_average(model: SentenceModel, output: Path, *, as_json: bool) -> None:
    """Print the size of a model that averages word vectors."""
    dim, num_words = model.get_sentence_embedding_dimension(), len(model.vocabulary)
    if as_json:
        print_json({"model": str(output), "dim": dim, "num_words": num_words})
    else:
        results.print(f"{output}: the mean of {num_words:,} words' vectors, {dim} dimensions", soft_wrap=True)


def _trained(model: str, output: Path) -> SentenceModel:
    """Load a trained model, for a new one in another folder.

    Raises:
        ConfigError: If it is not a single trained model.
        ArtifactError: If the new folder holds a model already.
    """
    from raysent.models import SentenceModel, load

    loaded = load(model)
    if not isinstance(loaded, SentenceModel):
        raise ConfigError(f"{model}: must be a trained model with words of its own; name the folder of a training")
    _check_free(output)
    return loaded


def _check_free(output: Path) -> None:
    from raysent.evaluation import is_model

    if is_model(str(output)):
        raise ArtifactError(f"{output}: holds a model already; name another folder with -o")
