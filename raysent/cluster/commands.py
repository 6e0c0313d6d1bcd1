"""The commands of clusters: `cluster …`, `attach` and `stop`; and the option `--cluster` of `sweep` and `resume`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import raysent
from raysent import cluster as clusters
from raysent.cli.console import DASH, confirm_cost, print_json, print_table, results
from raysent.cli.options import (
    JsonOption,
    SetOption,
    SpaceArgument,
    YesOption,
    arguments_of,
    split_names,
)
from raysent.cli.wings import Command, Commands, Option
from raysent.errors import ConfigError, ExitCode
from raysent.progress import messages

if TYPE_CHECKING:
    from raysent.cluster import ClusterSweep, LaunchPlan, SubmittedSweep

cluster_app = typer.Typer(
    help="Launch and terminate a cluster of spot machines on AWS.", no_args_is_help=True
)

ClusterOption = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="Launch this AWS cluster for the sweep, then terminate it.",
    ),
]
SubmittedArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run of --cluster: its local folder, or its address s3://BUCKET/FOLDER.",
    ),
]
ClusterArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A cluster file.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="End what is in use too, and name it: sweeps lose work.")
]
_FILE = Path("cluster.yaml")
_PANEL = "Clusters and money"


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
        price = clusters.head_price(file)
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
    status = raysent.cluster_status(file)
    if as_json:
        print_json({"cluster": status.cluster, "machines": status.values()})
        return
    if not status.machines:
        results.print(f"{status.cluster}: no machines")
        return
    rows = []
    for machine in status.machines:
        price = status.usd_per_hour[machine.instance_type]
        rows.append(
            (
                machine.name,
                machine.cluster,
                machine.sweep or DASH,
                machine.instance_type,
                machine.market,
                machine.state,
                machine.zone,
                f"{machine.expires:%Y-%m-%d %H:%M}" if machine.expires else "unknown",
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
    options = arguments_of(raysent.slurm_file, overrides)
    path = raysent.slurm_file(
        space, nodes=nodes, gpus=gpus, time=time, budget=budget, run=run, **options
    )
    results.print(f"sbatch {path}", soft_wrap=True)


def attach(run: SubmittedArgument, as_json: JsonOption = False) -> None:
    """Show a sweep that runs on a cluster, from its start to its end.

    Works in any folder and on any computer that may read the run. Downloads the results when the sweep ends. Ctrl-C
    detaches again; the sweep continues.
    """
    _print_followed(raysent.attach(run, as_json=as_json), as_json=as_json)


def stop(run: SubmittedArgument, as_json: JsonOption = False) -> None:
    """Stop a sweep that runs on a cluster, from any folder or computer.

    The sweep saves its trials, and its cluster is terminated unless it was to be kept. 'raysent resume' continues the
    sweep. A second call stops it at once.
    """
    stopped = raysent.stop(run, progress=not as_json)
    if as_json:
        print_json(
            {"run": stopped.address, "has_stopped": stopped.code is not None, "code": stopped.code}
        )
    elif stopped.code is None:
        messages.print(
            f"{stopped.address}: has not stopped after five minutes; 'raysent stop' again stops it at once, and "
            f"'raysent cluster down' terminates the machines of {stopped.cluster or 'its cluster'}",
            soft_wrap=True,
        )
    else:
        outcome = f"stopped; 'raysent resume {stopped.address} --cluster FILE' continues it"
        if stopped.had_ended:
            outcome = "had ended"
        results.print(f"{stopped.address}: {outcome}", soft_wrap=True)
    raise typer.Exit(ExitCode.CHECK_FAILED if stopped.code is None else 0)


def _sweep_on_cluster(
    *,
    space: str | None,
    cluster: Path,
    tasks: list[str] | None,
    pretrained: list[str] | None,
    overrides: list[str] | None,
    address: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run `raysent sweep` with `--cluster`."""
    arguments = {name: value for name, value in options.items() if value is not None}
    arguments["tasks"] = split_names(tasks)
    if pretrained is not None:
        arguments["pretrained"] = split_names(pretrained)
    arguments |= arguments_of(raysent.plan_on_cluster, overrides)
    _refuse_address(address)
    if space is None:
        raise ConfigError(
            "cluster: must stand beside a search space; name one, such as everything, and --corpus"
        )
    planned = raysent.plan_on_cluster(space, cluster, as_json=as_json, dry_run=dry_run, **arguments)
    if dry_run:
        _print_launch(planned.plan, as_json=as_json)
        planned.plan.check()
        return
    _print_followed(_launched(planned, yes=yes), as_json=as_json)


def _resume_on_cluster(
    *,
    run: Path,
    cluster: Path,
    address: str | None,
    overrides: list[str] | None,
    yes: bool,
    as_json: bool,
    budget: str | None,
    deadline: str | None,
) -> None:
    """Run `raysent resume` with `--cluster`."""
    _refuse_address(address)
    arguments: dict[str, Any] = arguments_of(clusters.plan_resume_on_cluster, overrides)
    planned = clusters.plan_resume_on_cluster(
        run, cluster, budget=budget, deadline=deadline, as_json=as_json, **arguments
    )
    _print_followed(_launched(planned, yes=yes), as_json=as_json)


def _refuse_address(address: str | None) -> None:
    if address is not None:
        raise ConfigError("cluster: must not stand beside --address")


def _print_launch(plan: LaunchPlan, *, as_json: bool) -> None:
    """Print the plan of a launch as the result of a dry run."""
    if as_json:
        print_json(plan.values())
        return
    for line in plan.lines():
        results.print(line, soft_wrap=True)


def _launched(planned: ClusterSweep, *, yes: bool) -> SubmittedSweep:
    """Show what a sweep on a cluster launches, ask, and start it; it is refused where it cannot work."""
    plan = planned.plan
    for line in plan.lines():
        messages.print(line, soft_wrap=True)
    plan.check()
    confirm_cost(plan.question(), yes=yes, unanswered=plan.unanswered)
    return planned.start()


def _print_followed(ended: SubmittedSweep, *, as_json: bool) -> NoReturn:
    if ended.is_detached:
        if as_json:
            commands = {name: f"raysent {name} {ended.address}" for name in ("attach", "stop")}
            print_json({"run": ended.address, "status": "detached", **commands})
        raise typer.Exit(ended.code)
    if as_json and ended.values is not None:
        typer.echo(json.dumps(ended.values, indent=2, ensure_ascii=False))
    else:
        for line in ended.lines:
            stream = messages if ended.code else results
            stream.print(line, soft_wrap=True)
    if ended.message:
        messages.print(f"error: the job could not run: {ended.message}", soft_wrap=True)
    messages.print(f"results: {ended.folder}", soft_wrap=True)
    raise typer.Exit(ended.code)


COMMANDS = {
    "attach": Command(attach, _PANEL, before="track"),
    "stop": Command(stop, _PANEL, before="track"),
    "cluster": Commands(cluster_app, _PANEL),
    "sweep --cluster": Option(
        "sweep", "cluster", ClusterOption, _sweep_on_cluster, before="dry_run"
    ),
    "resume --cluster": Option(
        "resume", "cluster", ClusterOption, _resume_on_cluster, before="overrides"
    ),
}
