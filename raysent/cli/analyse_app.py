"""The commands `raysent analyse …`. Each parses its options and calls one verb; torch is imported only by that.

What they find is kept in the run's folder, and its report shows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysent.cli.options import DataOption, JsonOption, ModelsArgument, opened, opened_name

analyse_app = typer.Typer(
    help="Look closer than scores: kept in the run's folder, shown by its report.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ProtocolOption = Annotated[str, typer.Option("--protocol", metavar="NAME", help="How tasks with a probe are judged.")]
RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN", help="Run folders, or a sweep's, which stands for its trials; also s3://.", parser=opened_name
    ),
]
IntoOption = Annotated[
    Path | None,
    typer.Option(
        "--into", metavar="DIR", help="Folder that keeps what is found.  [default: the first one named]", parser=opened
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help="Metric of validation.  [default: downstream, or what all report]"),
]
PairsTasksOption = Annotated[
    str | None,
    typer.Option("--tasks", metavar="A,B", help="Tasks, with a probe or of pairs.  [default: all with a probe]"),
]
NumRowsOption = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Rows shown of each sort.")]


@analyse_app.command("tsne")
def analyse_tsne(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: PairsTasksOption = None,
    points: Annotated[int, typer.Option("--points", metavar="N", help="Rows placed, at most.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the rows and of t-SNE.")] = 0,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Place tasks' sentences on a plane by t-SNE.

    Points are coloured by class; pairs, as [u * v ; |u - v|], by how alike people found them.
    """
    from raysent.cli import analysing  # torch comes with it

    raise typer.Exit(
        analysing.tsne(models, data=data, tasks=tasks, num_points=points, seed=seed, into=into, as_json=as_json)
    )


@analyse_app.command("errors")
def analyse_errors(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: PairsTasksOption = None,
    protocol: ProtocolOption = "fast",
    rows: NumRowsOption = 10,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rows on which two models differ most.

    Of tasks with a probe, rows that one gets right and the other wrong; of scored pairs, where one is far nearer.
    """
    from raysent.cli import analysing  # torch comes with it

    raise typer.Exit(
        analysing.errors(models, data=data, tasks=tasks, protocol=protocol, num_rows=rows, into=into, as_json=as_json)
    )


@analyse_app.command("examples")
def analyse_examples(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: PairsTasksOption = None,
    protocol: ProtocolOption = "fast",
    rows: NumRowsOption = 10,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the sample.")] = 0,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what models answer, beside what is right.

    A sample of rows, and the rows on which the model is farthest off.
    """
    from raysent.cli import analysing  # torch comes with it

    raise typer.Exit(
        analysing.examples(
            models, data=data, tasks=tasks, protocol=protocol, num_rows=rows, seed=seed, into=into, as_json=as_json
        )
    )


@analyse_app.command("efficiency")
def analyse_efficiency(
    runs: RunsArgument,
    metric: MetricOption = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="X", help="Score whose time is compared.  [default: the best that all reach]"),
    ] = None,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs' scores against hours of training.

    How soon does each reach the same score? Best with --set validation.downstream.data=DIR in training.
    """
    from raysent.cli import analysing  # torch comes with it

    raise typer.Exit(analysing.efficiency(runs, metric=metric, target=target, into=into, as_json=as_json))


@analyse_app.command("parameter")
def analyse_parameter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Dotted name of a setting, as encoder.hidden_size.")],
    runs: RunsArgument,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="A second setting, whose values are lines of their own.")
    ] = None,
    metric: MetricOption = None,
    data: DataOption = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", metavar="A,B", help="Compare the mean test score over these instead.")
    ] = None,
    protocol: ProtocolOption = "fast",
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a metric between the values of one setting.

    Means and spreads over runs that share a value, as over seeds: for sizes, bits, lambda_sp.
    """
    from raysent.cli import analysing  # torch comes with it

    raise typer.Exit(
        analysing.parameter(
            name,
            runs,
            by=by,
            metric=metric,
            data=data,
            tasks=tasks,
            protocol=protocol,
            into=into,
            as_json=as_json,
        )
    )
