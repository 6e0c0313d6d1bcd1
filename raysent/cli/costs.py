"""CLI of money: `cost …`, bills."""

from __future__ import annotations

from typing import Any

import typer

import raysent
from raysent.cli.console import print_json, print_table, results, usd
from raysent.cli.options import JsonOption, RunArgument
from raysent.progress import format_duration

cost_app = typer.Typer(help="Bills.", no_args_is_help=True)


@cost_app.command("report")
def cost_report(run: RunArgument, as_json: JsonOption = False) -> None:
    """Print what a sweep has cost.

    By trial, with the cost outside trials.
    """
    found = raysent.bill(run)
    print_json(found) if as_json else _print_costs(found)


def _print_costs(found: dict[str, Any]) -> None:
    from raysent.cost import NOT_COUNTED

    rows = [
        (
            name,
            str(one["rung"]),
            format_duration(one["seconds"]),
            f"{one['steps']:,}",
            usd(one["usd"]),
        )
        for name, one in sorted(found["trials"].items(), key=lambda item: -item[1]["usd"])
    ]
    print_table(["trial", "rung", "time", "steps", "usd"], rows)
    results.print()
    of = f" of {found['budget_usd']:.2f}" if found["budget_usd"] else ""
    for line in (
        f"spent {usd(found['spent_usd'])} usd{of} on {found['machine_hours']:.2f} machine hours; "
        f"{usd(found['outside_trials_usd'])} of it outside trials' reports: starting, waiting, lost work",
        f"assumed {usd(found['assumed_usd'])} usd for machines that a killed driver left",
        f"refunded {usd(found['refunded_usd'])} usd for machines interrupted in their first hour"
        if found["refunded_usd"]
        else "",
        f"lost {usd(found['lost_usd'])} usd of work that was repeated" if found["lost_usd"] else "",
        f"on demand, the same machine hours would cost {usd(found['on_demand_usd'])} usd"
        if found["on_demand_usd"] is not None
        else "",
        f"no more training: {found['closed']}" if found["closed"] else "",
        NOT_COUNTED,
    ):
        if line and not line.startswith("assumed 0.00 "):
            results.print(line, soft_wrap=True)
