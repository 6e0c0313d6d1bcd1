"""The commands that judge: `evaluate`, `ensemble`, `report`, and `data` for what they judge on.

Each parses its options and calls one verb; torch is imported only by that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysent.cli.options import AddressOption, DataOption, JsonOption, ModelsArgument, RunArgument, TasksOption

judge_app = typer.Typer()
data_app = typer.Typer(help="Check data folders.", no_args_is_help=True, rich_markup_mode=None)


@judge_app.command()
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


@judge_app.command()
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
    cross-fitted scores, says which sets of members are worth their cost, and writes ensemble.json into a folder of its
    own, which is a model from then on: runs/ensemble-DATE, or for the trials of one sweep the sweep's folder.
    """
    from raysent.cli import ensembles, judging  # torch comes with it
    from raysent.ensembles import CostLimits, default_folder  # torch comes with it

    ensembles.check_options(method)
    raise typer.Exit(
        ensembles.ensemble(
            models,
            output=default_folder(models),
            data=data,
            tasks=judging.task_names(tasks, data=data),
            method=method,
            top=top,
            limits=CostLimits(max_ms, max_bytes),
            joins_vectors=joins_vectors,
            as_json=as_json,
        )
    )


@judge_app.command()
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
