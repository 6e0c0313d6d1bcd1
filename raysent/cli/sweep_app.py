"""The commands that train: `sweep`, `resume`, `replay`, `train`, and `space` for what they read.

Each parses its options and calls one verb; torch and Ray are imported only by that.
"""

from __future__ import annotations

from typing import Annotated

import typer

from raysent.cli.options import (
    AddressOption,
    BudgetOption,
    ClusterOption,
    ConcurrentOption,
    CorpusOption,
    DataOption,
    DeadlineOption,
    DryRunOption,
    GpusOption,
    HourlyOption,
    JsonOption,
    KeepOption,
    MarketOption,
    OnBudgetOption,
    RunArgument,
    RunOption,
    SeedOption,
    SetOption,
    SpaceArgument,
    TasksOption,
    TimeOption,
    TrialsOption,
    WorkersPerTrialOption,
    YesOption,
)
from raysent.errors import ConfigError

sweep_app = typer.Typer()
space_app = typer.Typer(help="Check search spaces.", no_args_is_help=True, rich_markup_mode=None)


@sweep_app.command()
def sweep(
    space: SpaceArgument,
    corpus: CorpusOption = None,
    run: RunOption = None,
    trials: TrialsOption = None,
    concurrent: ConcurrentOption = None,
    workers_per_trial: WorkersPerTrialOption = None,
    gpus_per_worker: GpusOption = None,
    time: TimeOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    max_hourly: HourlyOption = None,
    market: MarketOption = None,
    on_budget: OnBudgetOption = None,
    seed: SeedOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    keep_cluster: KeepOption = False,
    overrides: SetOption = None,
    data: DataOption = None,
    tasks: TasksOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
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


@sweep_app.command()
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


@sweep_app.command()
def replay(run: RunArgument, as_json: JsonOption = False) -> None:
    """Derive every decision of a sweep again from its journal.

    Proposals, seeds, who went on and where the money ended must come out the same to the last bit. Exit code 1 where
    one does not.
    """
    from raysent.cli import sweeping  # torch and Ray come with it

    raise typer.Exit(sweeping.replay(run, as_json=as_json))


@sweep_app.command()
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

    options = {"--corpus": ("corpus.path", corpus), "--seed": ("seed", seed)}
    given = console.collect_overrides(options, overrides or [])
    raise typer.Exit(
        training.train(
            space,
            overrides=given,
            run=run,
            num_workers=workers,
            gpus_per_worker=gpus_per_worker,
            address=address,
            as_json=as_json,
        )
    )


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
