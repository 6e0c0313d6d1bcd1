"""`raysent cost`: prices, bills, and caps put to the test."""

from __future__ import annotations

from typing import Annotated

import typer

from raysent.cli.options import BudgetOption, JsonOption, RunArgument, SeedOption, SetOption, SpaceArgument

cost_app = typer.Typer(help="Prices, bills, and caps put to the test.", no_args_is_help=True, rich_markup_mode=None)


@cost_app.command("prices")
def cost_prices(
    types: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE…]", help="Instance types.  [default: all that are listed]")
    ] = None,
    region: Annotated[
        str | None, typer.Option("--region", metavar="NAME", help="An AWS region.  [default: all that are listed]")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask AWS, with the credentials that boto3 finds, spot prices too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what machines cost an hour.

    Without --live from the list that is shipped, whose date is told.
    """
    from raysent.cli import money  # torch and Ray come with it

    raise typer.Exit(money.prices(types or [], region=region, is_live=live, as_json=as_json))


@cost_app.command("report")
def cost_report(run: RunArgument, as_json: JsonOption = False) -> None:
    """Show what a sweep has cost.

    By trial, with what no trial had, and the estimate beside the bill.
    """
    from raysent.cli import money  # as above

    raise typer.Exit(money.report(run, as_json=as_json))


@cost_app.command("simulate")
def cost_simulate(
    space: SpaceArgument,
    budget: BudgetOption = None,
    sweeps: Annotated[int, typer.Option("--sweeps", metavar="N", min=1, help="Simulated sweeps.")] = 1000,
    instance: Annotated[str, typer.Option("--instance", metavar="TYPE", help="Machines.")] = "g4dn.xlarge",
    region: Annotated[str, typer.Option("--region", metavar="NAME", help="Where they are.")] = "us-east-1",
    market: Annotated[
        str, typer.Option("--market", metavar="NAME", help="spot, on-demand, auto (spot where there is any) or own.")
    ] = "auto",
    machines: Annotated[int, typer.Option("--machines", metavar="N", min=1, help="At most so many at once.")] = 4,
    trial: Annotated[
        str | None, typer.Option("--trial", metavar="30m", help="What a whole trial takes.  [default: cost.trial, 30m]")
    ] = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play sweeps on made-up machines, and count how often the cap breaks.

    The sweep's own conductor, budget and ledger run on an event clock, with prices that move, interruptions, slow
    stops, killed drivers and clocks that jump. Exit code 1 where the cap was broken.
    """
    from raysent.cli import console, money  # as above

    options = {"--budget": ("cost.budget", budget), "--trial": ("cost.trial", trial)}
    raise typer.Exit(
        money.simulate(
            space,
            overrides=console.collect_overrides(options, overrides or []),
            instance=instance,
            region=region,
            market=market,
            num_machines=machines,
            sweeps=sweeps,
            seed=seed or 0,
            as_json=as_json,
        )
    )
