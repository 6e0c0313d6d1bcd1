"""CLI of `raysent cluster`: launch and terminate machines on AWS."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysent.cli.console import DASH, messages, print_json, print_table, results
from raysent.cli.options import JsonOption, SetOption, SpaceArgument
from raysent.errors import ConfigError

if TYPE_CHECKING:
    from raysent.cluster import Machine

cluster_app = typer.Typer(
    help="Launch and terminate a cluster of spot machines on AWS.", no_args_is_help=True, rich_markup_mode=None
)

ClusterArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A cluster file.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before spending.")]
_FILE = Path("cluster.yaml")


@cluster_app.command("up")
def cluster_up(
    file: ClusterArgument = _FILE,
    update: Annotated[
        bool, typer.Option("--update", help="Apply changes to a running head, and restart Ray there.")
    ] = False,
    print_policies: Annotated[
        bool,
        typer.Option("--print-policies", help="Print the IAM policies of its machines, and launch nothing."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Launch a cluster.

    Creates its security group, roles and token if they do not exist. Every machine terminates itself at the end of its
    time to live, and the head an hour after its last sweep. A head that is running already is left as it is. What keeps
    it from being launched, such as a missing image, bucket or quota, is an error that names what mends it.
    """
    from raysent.cluster import Account, Launcher, head_policy, read_cluster, worker_policy

    cluster = read_cluster(file)
    if print_policies:
        account = Account(cluster.region).account_id()
        policies = {"head": head_policy(cluster, account=account), "worker": worker_policy(cluster)}
        typer.echo(json.dumps(policies, indent=2))
        return
    if not yes and sys.stdin.isatty():
        hourly = _usd_per_hour(cluster.head["node_config"]["InstanceType"], cluster.region)
        messages.print(f"{cluster.name}: the head costs about {hourly} usd an hour from now on", soft_wrap=True)
        typer.confirm("Start it?", default=True, abort=True, err=True)
    Launcher(cluster).up(update=update, on_line=_say)
    messages.print(f"{cluster.name} is running; 'raysent cluster down {file}' terminates it", soft_wrap=True)


@cluster_app.command("down")
def cluster_down(file: ClusterArgument = _FILE) -> None:
    """Terminate a cluster.

    Terminates every machine with the cluster's tag. Files on S3 stay.
    """
    from raysent.cluster import Launcher, read_cluster

    cluster = read_cluster(file)
    Launcher(cluster).down(on_line=_say)
    messages.print(f"{cluster.name} is terminated", soft_wrap=True)


@cluster_app.command("slurm")
def cluster_slurm(
    space: SpaceArgument,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Nodes of the allocation.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=0, help="GPUs of each node.")] = 1,
    time_limit: Annotated[
        str, typer.Option("--time", metavar="24:00:00", help="Limit of one allocation.")
    ] = "24:00:00",
    budget: Annotated[str | None, typer.Option("--budget", metavar="40gpuh", help="Limit on GPU-hours.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="FOLDER", help="Run folder that all nodes share.")
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Write a file for sbatch that runs a sweep on the nodes of a Slurm cluster.

    It starts Ray on all nodes. At the end of an allocation the trials are saved and the job is queued again; it then
    resumes the sweep.
    """
    from raysent.cluster import sbatch_file

    folder = run or Path("runs") / Path(space).stem
    options = [word for override in overrides or [] for word in ("--set", override)]
    text = sbatch_file(
        space, run=str(folder), num_nodes=nodes, gpus=gpus, time=time_limit, budget=budget, options=options
    )
    path = Path(f"{folder.name}.sbatch")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigError(f"{path}: exists; remove it, or name another --run") from None
    results.print(f"sbatch {path}", soft_wrap=True)


@cluster_app.command("keep")
def cluster_keep(
    file: ClusterArgument = _FILE,
    duration: Annotated[
        str, typer.Option("--for", metavar="4h", help="How long the head lives without a sweep, from now on.")
    ] = "4h",
) -> None:
    """Keep a cluster's head longer than an hour after its last sweep.

    The time to live of the cluster file stays its limit.
    """
    from raysent.cluster import Launcher, read_cluster
    from raysent.cost import parse_duration

    seconds = parse_duration(duration)
    until, expires = Launcher(read_cluster(file)).keep(seconds)
    messages.print(f"the head is kept until {until:%Y-%m-%d %H:%M} UTC", soft_wrap=True)
    if expires is not None and expires < until:
        messages.print(f"its time to live ends it before, at {expires:%Y-%m-%d %H:%M} UTC", soft_wrap=True)


@cluster_app.command("status")
def cluster_status(file: ClusterArgument = _FILE, as_json: JsonOption = False) -> None:
    """List a cluster's machines, and what they cost an hour."""
    from raysent.cluster import Account, read_cluster

    cluster = read_cluster(file)
    machines = Account(cluster.region).machines(cluster.name)
    if as_json:
        print_json({"cluster": cluster.name, "machines": [_values(machine) for machine in machines]})
    elif not machines:
        results.print(f"{cluster.name}: no machines")
    else:
        _print_machines(machines, cluster.region)


@cluster_app.command("orphans")
def cluster_orphans(
    file: ClusterArgument = _FILE,
    remove: Annotated[bool, typer.Option("--remove", help="Terminate them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List raysent's machines in the region, of any cluster, that outlived their time to live."""
    from raysent.cluster import Account, read_cluster

    account = Account(read_cluster(file).region)
    now = datetime.datetime.now(datetime.UTC)
    late = [machine for machine in account.machines() if machine.is_orphan(now)]
    if remove:
        account.terminate(late)
    if as_json:
        print_json({"orphans": [_values(machine) for machine in late], "removed": remove})
    elif not late:
        results.print(f"no orphans in {account.region}")
    else:
        _print_machines(late, account.region)
        messages.print("terminated" if remove else "--remove terminates them")


def _say(line: str) -> None:
    """Print a line of Ray's launcher."""
    messages.print(line, style="dim", soft_wrap=True)


def _usd_per_hour(instance_type: str, region: str) -> str:
    """Return a machine's list price as text; a dash if it is unknown."""
    from raysent.cost import price_list

    try:
        return f"{price_list().on_demand(instance_type, region).usd_per_hour:.4f}"
    except ConfigError:
        return DASH


def _values(machine: Machine) -> dict[str, Any]:
    """Return a machine as plain values."""
    times = {"launched": machine.launched.isoformat(), "expires": machine.expires and machine.expires.isoformat()}
    return {**vars(machine), **times}


def _print_machines(machines: Sequence[Machine], region: str) -> None:
    """Print machines, oldest first; their list price is the most that they cost."""
    rows = [
        (
            machine.name, machine.cluster, machine.sweep or DASH, machine.instance_type, machine.market, machine.state,
            machine.zone, f"{machine.expires:%Y-%m-%d %H:%M}" if machine.expires else "unknown",
            _usd_per_hour(machine.instance_type, region),
        )
        for machine in machines
    ]  # fmt: skip
    times = ["expires (UTC)", "at most usd/h"]
    print_table(["machine", "cluster", "sweep", "type", "market", "state", "zone", *times], rows, num_text=8)
