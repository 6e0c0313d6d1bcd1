"""The commands. Each parses its options, calls one verb and prints; torch and Ray are imported only by those that run.

Standard output carries results (with `--json` exactly one object); progress and errors go to standard error.
Exit codes: 0 done, 2 a mistake in what was asked, 5 some trials failed, 130 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from raysent import __version__
from raysent.cli.analyse_app import analyse_app
from raysent.cli.cluster_app import cluster_app
from raysent.cli.cost_app import cost_app
from raysent.cli.model_app import model_app
from raysent.cli.options import (
    AddressOption,
    BudgetOption,
    ClusterOption,
    CorpusOption,
    DataOption,
    DeadlineOption,
    GpusOption,
    JsonOption,
    KeepOption,
    MarketOption,
    ModelsArgument,
    RunArgument,
    RunOption,
    SeedOption,
    SetOption,
    SpaceArgument,
    TasksOption,
)
from raysent.cli.retrieval_app import retrieval_app
from raysent.errors import ConfigError, RaysentError

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
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
space_app = typer.Typer(help="Check search spaces.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(space_app, name="space")
data_app = typer.Typer(help="Check data folders.", no_args_is_help=True, rich_markup_mode=None)
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


@app.command()
def sweep(
    space: SpaceArgument,
    corpus: CorpusOption = None,
    run: RunOption = None,
    trials: Annotated[int | None, typer.Option("--trials", metavar="N", min=1, help="Trials in all.")] = None,
    concurrent: Annotated[
        int | None,
        typer.Option("--concurrent", metavar="N", min=1, help="Trials at once.  [default: as many as fit]"),
    ] = None,
    workers_per_trial: Annotated[
        int | None, typer.Option("--workers-per-trial", metavar="N", min=1, help="Ray Train workers of each trial.")
    ] = None,
    gpus_per_worker: GpusOption = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="30m", help="Wall-clock limit; running trials stop at their next report."),
    ] = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    max_hourly: Annotated[
        str | None,
        typer.Option("--max-hourly", metavar="12usd", help="Dollars an hour that all machines may cost together."),
    ] = None,
    market: MarketOption = None,
    on_budget: Annotated[
        str | None,
        typer.Option(
            "--on-budget",
            metavar="NAME",
            help="stop: train until the money is gone; finish-rung: begin no way to a rung that is not paid for.",
        ),
    ] = None,
    seed: SeedOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    keep_cluster: KeepOption = False,
    overrides: SetOption = None,
    data: DataOption = None,
    tasks: TasksOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and say what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Search a space; then evaluate, combine and report.

    Many runs are trained, the poor ones are stopped early; the best are judged on tasks and combined.
    """
    from raysent.cli import console, sweeping  # torch and Ray come with it

    options = {
        "--trials": ("limits.trials", trials),
        "--concurrent": ("limits.concurrent", concurrent),
        "--workers-per-trial": ("limits.workers_per_trial", workers_per_trial),
        "--gpus-per-worker": ("limits.gpus_per_worker", gpus_per_worker),
        "--time": ("limits.time", time),
        "--budget": ("cost.budget", budget),
        "--deadline": ("cost.deadline", deadline),
        "--max-hourly": ("cost.max_hourly", max_hourly),
        "--market": ("cost.market", market),
        "--on-budget": ("cost.on_budget", on_budget),
        "--corpus": ("corpus.path", corpus),
    }
    given = console.collect_overrides(options, overrides or [])
    if cluster is not None:
        if address is not None or dry_run:
            raise ConfigError("--cluster: must not stand beside --address or --dry-run")
        from raysent.cli import submitting  # as above; the job API too

        raise typer.Exit(
            submitting.sweep(
                space,
                cluster=cluster,
                overrides=given,
                run=run,
                seed=seed,
                data=data,
                tasks=tasks,
                is_kept=keep_cluster,
                as_json=as_json,
            )
        )
    raise typer.Exit(
        sweeping.sweep(
            space,
            overrides=given,
            run=run,
            seed=seed,
            address=address,
            data=data,
            tasks=tasks,
            is_dry=dry_run,
            is_agreed=yes,
            as_json=as_json,
        )
    )


@app.command()
def resume(
    run: RunArgument,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    cluster: ClusterOption = None,
    keep_cluster: KeepOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with an interrupted or killed sweep.

    No finished trial is trained again; running ones go on from their last checkpoint. What was spent stays spent:
    another budget or deadline counts from the sweep's beginning. With --cluster, a sweep that a cluster began.
    """
    from raysent.cli import console, sweeping  # torch and Ray come with it

    options = {"--budget": ("cost.budget", budget), "--deadline": ("cost.deadline", deadline)}
    limits = console.collect_overrides(options, [])
    if cluster is not None:
        from raysent.cli import submitting  # as above; the job API too

        raise typer.Exit(submitting.resume(run, cluster=cluster, limits=limits, is_kept=keep_cluster, as_json=as_json))
    raise typer.Exit(sweeping.resume(run, limits=limits, as_json=as_json))


@app.command()
def replay(run: RunArgument, as_json: JsonOption = False) -> None:
    """Derive every decision of a sweep again from its journal.

    Proposals, seeds, who went on and where the money ended must come out the same to the last bit. Exit code 1 where
    one does not.
    """
    from raysent.cli import sweeping  # torch and Ray come with it

    raise typer.Exit(sweeping.replay(run, as_json=as_json))


@app.command()
def train(
    space: SpaceArgument,
    corpus: CorpusOption = None,
    run: RunOption = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Ray Train workers.")] = 1,
    gpus_per_worker: GpusOption = None,
    seed: SeedOption = None,
    address: AddressOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the base run of a space.

    What the space searches is left aside; --set changes the base. Runs on Ray Train workers, and goes on where the
    run folder holds a checkpoint.
    """
    from raysent.cli import console, training  # torch and Ray come with it

    raise typer.Exit(
        training.train(
            space,
            overrides=console.collect_overrides(
                {"--corpus": ("corpus.path", corpus), "--seed": ("seed", seed)}, overrides or []
            ),
            run=run,
            num_workers=workers,
            gpus_per_worker=gpus_per_worker,
            address=address,
            as_json=as_json,
        )
    )


@app.command()
def evaluate(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: TasksOption = None,
    protocol: Annotated[
        str,
        typer.Option("--protocol", metavar="NAME", help="How to judge: fast (our own), senteval, or kiros."),
    ] = "fast",
    configuration: Annotated[
        str | None,
        typer.Option("--config", metavar="NAME", help="senteval: default or prototyping; kiros: default or features."),
    ] = None,
    reported: Annotated[
        bool, typer.Option("--reported", help="Also print what papers report on these tasks, a table a protocol.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option("--processes", metavar="N", min=1, help="Judge N models and tasks at once.")
    ] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge models on tasks.

    Encodes, fits a probe per task, and keeps scores and log-probabilities in evaluation/ of the first folder named.
    The protocol senteval gives the figures of SentEval itself; kiros is that of the Skip-Thoughts and Quick-Thoughts
    papers. Figures of different protocols do not compare. With --address, models and tasks are judged on a cluster that
    reaches the same folders.
    """
    from raysent.cli import judging, spreading  # torch comes with them

    raise typer.Exit(
        judging.evaluate(
            models,
            data=data,
            tasks=tasks,
            protocol=protocol,
            configuration=configuration,
            is_reported=reported,
            over=spreading.Over(processes, address),
            as_json=as_json,
        )
    )


@app.command()
def ensemble(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: TasksOption = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="validation, uniform, best, pool, greedy, linear or stack; all judges every one and keeps the best.",
        ),
    ] = "validation",
    top: Annotated[
        int | None, typer.Option("--top", metavar="K", min=1, help="Only the K best members on validation.")
    ] = None,
    max_ms: Annotated[
        float | None,
        typer.Option("--max-ms", metavar="X", min=0, help="Most milliseconds to encode 1,000 sentences, all members."),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", metavar="N", min=0, help="Most bytes of all members' files.")
    ] = None,
    joins_vectors: Annotated[
        bool, typer.Option("--join-vectors", help="Also judge one probe on all members' vectors: joined, averaged.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Combine models into one.

    Combines their log-probabilities on each task, shows that beside the best member and equal shares with honest,
    cross-fitted scores, says which sets of members are worth their cost, and writes ensemble.json into the first
    folder named, which is a model from then on.
    """
    from raysent.cli import ensembles, judging  # torch comes with it

    ensembles.check_options(method)
    raise typer.Exit(
        ensembles.ensemble(
            models,
            output=judging.home(models),
            data=data,
            tasks=judging.task_names(tasks, data=data),
            method=method,
            top=top,
            limits={"--max-ms": max_ms, "--max-bytes": max_bytes},
            joins_vectors=joins_vectors,
            as_json=as_json,
        )
    )


@app.command()
def report(run: RunArgument) -> None:
    """Write RUN/report.html.

    One page that needs no network.
    """
    from raysent.cli import judging  # torch comes with it

    raise typer.Exit(judging.report(run))


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder in SentEval's layout.")],
    as_json: JsonOption = False,
) -> None:
    """Say which tasks a data folder holds, and where those that it lacks are published.

    Every file is read, its rows counted and compared with the published number. Exit code 2 if one is not as published.
    """
    from raysent.cli import judging  # torch comes with it

    raise typer.Exit(judging.check_data(folder, as_json=as_json))


@space_app.command("lint")
def space_lint(files: Annotated[list[str], typer.Argument(metavar="FILE", help="Search-space files.")]) -> None:
    """Check search spaces at every edge value."""
    from raysent.cli import sweeping  # torch comes with the models that values are checked against

    raise typer.Exit(sweeping.lint(files))


@space_app.command("schema")
def space_schema() -> None:
    """Print the JSON Schema of a search space, for editors."""
    from raysent.cli import sweeping  # as above

    raise typer.Exit(sweeping.print_schema())


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
