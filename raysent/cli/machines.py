"""CLI of machines and money: `cluster …`, machines on AWS or of Slurm; `cost …`, bills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import raysent
from raysent import pipeline
from raysent.cli.console import DASH, confirm_cost, print_json, print_table, results, usd
from raysent.cli.options import (
    JsonOption,
    RunArgument,
    SetOption,
    SpaceArgument,
    YesOption,
    arguments_of,
)
from raysent.progress import format_duration, messages

cluster_app = typer.Typer(
    help="Launch and terminate a cluster of spot machines on AWS.", no_args_is_help=True
)
cost_app = typer.Typer(help="Bills.", no_args_is_help=True)

ClusterArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A cluster file.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="End what is in use too, and name it: sweeps lose work.")
]
_FILE = Path("cluster.yaml")


@cluster_app.command("up")
def cluster_up(
    file: ClusterArgument = _FILE,
    update: Annotated[
        bool,
        typer.Option("--update", help="Apply changes to a running head, and restart Ray there."),
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="4h",
            help="How long the head lives without a sweep, from now on.  [default: 1h]",
        ),
    ] = None,
    print_policies: Annotated[
        bool,
        typer.Option(
            "--print-policies",
            help="Print the IAM policies of its machines and of who launches it, and launch nothing.",
        ),
    ] = False,
    force: ForceOption = False,
    yes: YesOption = False,
) -> None:
    """Launch a cluster.

    Creates its security group, roles and token if they do not exist. Every machine terminates itself at the end of its
    time to live, and the head an hour after its last sweep. A head that is running already is left as it is. What keeps
    it from being launched, such as a missing image, bucket or quota, is an error that names what mends it.
    """
    if print_policies:
        typer.echo(json.dumps(raysent.cluster_policies(file), indent=2))
        return
    if not yes:
        price = pipeline.head_price(file)
        hourly = DASH if price is None else f"{price:.4f}"
        messages.print(
            f"{file}: the head costs about {hourly} usd an hour from now on", soft_wrap=True
        )
        confirm_cost("Start it?", yes=yes)
    name = raysent.cluster_up(file, update=update, keep=keep, force=force)
    messages.print(
        f"{name} is running; 'raysent cluster down {file}' terminates it", soft_wrap=True
    )


@cluster_app.command("down")
def cluster_down(
    file: ClusterArgument = _FILE,
    orphans: Annotated[
        bool,
        typer.Option(
            "--orphans",
            help="Terminate instead machines of any cluster that outlived their time to live.",
        ),
    ] = False,
    force: ForceOption = False,
) -> None:
    """Terminate a cluster.

    Terminates every machine with the cluster's tag. Files on S3 stay. A cluster on which a sweep runs, or that was not
    launched from this computer, is an error; --force names its machines and ends them.
    """
    name = raysent.cluster_down(file, orphans=orphans, force=force)
    messages.print(
        "the orphans are terminated" if orphans else f"{name} is terminated", soft_wrap=True
    )


@cluster_app.command("status")
def cluster_status(file: ClusterArgument = _FILE, as_json: JsonOption = False) -> None:
    """List a cluster's machines, and what they cost an hour.

    Machines of any cluster in the region that outlived their time to live are listed too; 'raysent cluster down
    --orphans' terminates them.
    """
    found = raysent.cluster_status(file)
    if as_json:
        print_json({"cluster": found.cluster, "machines": found.values()})
        return
    if not found.machines:
        results.print(f"{found.cluster}: no machines")
        return
    rows = []
    for one in found.machines:
        price = found.usd_per_hour[one.instance_type]
        expires = f"{one.expires:%Y-%m-%d %H:%M}" if one.expires else "unknown"
        place = (one.instance_type, one.market, one.state, one.zone, expires)
        rows.append(
            (
                one.name,
                one.cluster,
                one.sweep or DASH,
                *place,
                DASH if price is None else f"{price:.4f}",
            )
        )
    times = ["expires (UTC)", "at most usd/h"]
    print_table(
        ["machine", "cluster", "sweep", "type", "market", "state", "zone", *times], rows, num_text=8
    )


@cluster_app.command("slurm")
def cluster_slurm(
    space: SpaceArgument,
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", min=1, help="Nodes of the allocation.")
    ] = 1,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=0, help="GPUs of each node.")] = 1,
    time: Annotated[
        str, typer.Option("--time", metavar="24:00:00", help="Limit of one allocation.")
    ] = "24:00:00",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="40gpuh", help="Most GPU-hours, over all allocations."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FOLDER", help="Run folder that all nodes share."),
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Write a file for sbatch that runs a sweep on the nodes of a Slurm cluster.

    It starts Ray on all nodes. At the end of an allocation the trials are saved and the job is queued again; it then
    resumes the sweep. --set takes what it takes of sweep.
    """
    given = arguments_of(raysent.slurm_file, overrides)
    path = raysent.slurm_file(
        space, nodes=nodes, gpus=gpus, time=time, budget=budget, run=run, **given
    )
    results.print(f"sbatch {path}", soft_wrap=True)


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
