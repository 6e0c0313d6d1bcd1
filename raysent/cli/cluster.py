"""CLI of `raysent cluster`: launch and terminate machines on AWS, and check them."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysent.cli.console import DASH, messages, print_json, print_table, results
from raysent.cli.options import AddressOption, JsonOption, SetOption, SpaceArgument, opened
from raysent.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from raysent.cluster import DrillResult, Machine

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
    yes: YesOption = False,
) -> None:
    """Launch a cluster.

    Creates its security group, roles and token if they do not exist. Every machine terminates itself at the end of its
    time to live, and the head an hour after its last sweep. A head that is running already is left as it is.
    """
    from raysent.cluster import Launcher, read_cluster

    cluster = read_cluster(file)
    if not yes and sys.stdin.isatty():
        hourly = _usd_per_hour(cluster.head_type, cluster.region)
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
    from raysent.cluster.slurm import sbatch_file

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


@cluster_app.command("doctor")
def cluster_doctor(
    file: ClusterArgument = _FILE,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus", metavar="PATH", help="Also check that the machines may read this s3:// address. Repeatable."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="URL", help="Also check that the dashboard at URL asks for a token."),
    ] = None,
    checkpoint: Annotated[
        float | None,
        typer.Option(
            "--checkpoint",
            metavar="MIB",
            min=0.001,
            help="Also save a checkpoint of MIB MiB 20 times, and fail if that is too slow for spot machines.",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="PLACE", help="Save it below PLACE.  [default: the file's storage]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a cluster is safe and ready.

    Checks the file, the token, credentials, the image, the storage, quotas, spot capacity, prices, versions, and that
    Ray's ports are closed to this machine. A check that fails names the command that mends it. Changes nothing. With
    --checkpoint, checks from this machine that a checkpoint is saved within half of the two minutes' notice of spot
    machines, and removes it. Exit code 1 if a check fails.
    """
    from raysent.cluster import Launcher, check_save_time, check_token_required, diagnose, read_cluster

    launcher = Launcher(read_cluster(file))
    findings = [*diagnose(launcher, inputs=corpus or ()), *([check_token_required(address)] if address else [])]
    if checkpoint is not None:
        num_bytes = int(checkpoint * 2**20)
        findings.append(check_save_time(launcher.cluster, num_bytes=num_bytes, storage=storage))
    is_well = all(finding.verdict != "failed" for finding in findings)
    if as_json:
        print_json({"is_well": is_well, "findings": [vars(finding) for finding in findings]})
    else:
        print_table(["check", "verdict", "found"], [(one.check, one.verdict, one.text) for one in findings], num_text=3)
    raise typer.Exit(0 if is_well else ExitCode.CHECK_FAILED)


@cluster_app.command("drill")
def cluster_drill(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A cluster file; without it or --address, two nodes on this machine."),
    ] = None,
    address: AddressOption = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="Folder that all nodes share.  [default: a temporary one]",
            parser=opened,
        ),
    ] = None,
    notice: Annotated[
        str, typer.Option("--notice", metavar="20s", help="Time from the notice to the end of the node.")
    ] = "20s",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before killing a node.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Interrupt a node under a small training, and report what happens.

    The node is drained as after a notice of the cloud, and killed when the notice ends; training has to continue on
    another node. Exit code 1 if it does not.
    """
    from raysent.cost import parse_duration

    if file is not None and (address is not None or run is not None):
        raise ConfigError("FILE: must not stand beside --address or --run")
    notice_s = parse_duration(notice)
    if file is not None:
        raise typer.Exit(_drill_cluster(file, notice_s=notice_s, is_agreed=yes, as_json=as_json))
    raise typer.Exit(_drill_here(address, run, notice_s=notice_s, is_agreed=yes, as_json=as_json))


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


@cluster_app.command("policies")
def cluster_policies(
    file: ClusterArgument = _FILE,
    account: Annotated[str, typer.Option("--account", metavar="N", help="The account's number.")] = "123456789012",
) -> None:
    """Print the IAM policies of a cluster's machines as JSON."""
    from raysent.cluster import head_policy, read_cluster, worker_policy

    if not (account.isdigit() and len(account) == 12):
        raise ConfigError(f"--account: must be 12 digits; given '{account}'")
    cluster = read_cluster(file)
    policies = {"head": head_policy(cluster, account=account), "worker": worker_policy(cluster)}
    typer.echo(json.dumps(policies, indent=2))


def _drill_here(address: str | None, run: Path | None, *, notice_s: float, is_agreed: bool, as_json: bool) -> int:
    """Run a drill on a running cluster, or on a temporary one of this machine; 1 if training did not continue."""
    from raysent.cluster import drill, local_cluster

    if address is not None:
        _confirm(address, is_agreed=is_agreed)
    with _folder(run) as folder, local_cluster() if address is None else contextlib.nullcontext(address) as where:
        found = drill(where, folder, notice_s=notice_s, on_line=lambda line: messages.print(line, soft_wrap=True))
    if as_json:
        print_json({**asdict(found), "has_continued": found.has_continued})
    else:
        _print_drill(found)
    return 0 if found.has_continued else ExitCode.CHECK_FAILED


def _drill_cluster(file: Path, *, notice_s: float, is_agreed: bool, as_json: bool) -> int:
    """Run a drill on the running machines of a cluster file; 1 if training did not continue."""
    from raysent.cluster import DrillResult, Jobs, Launcher, Output, read_cluster, read_token

    cluster = read_cluster(file)
    _confirm(cluster.name, is_agreed=is_agreed)
    launcher = Launcher(cluster)
    token = read_token(launcher.token_file)
    run = f"{cluster.settings.storage}/drill-{time.strftime('%Y%m%d-%H%M%S')}"
    options = ["--address", "auto", "--run", run, "--notice", f"{notice_s:g}s", "--yes", "--json"]
    lines: list[str] = []
    with launcher.tunnel() as address, tempfile.TemporaryDirectory(prefix="raysent-drill-") as folder:
        jobs = Jobs(address, token=token)
        command = ["python", "-m", "raysent", "cluster", "drill", *options]
        ended = jobs.follow(jobs.submit(command, folder=Path(folder), environment={}), Output(lines.append))
    start = next((number for number, line in enumerate(lines) if line == "{"), None)
    if start is None:
        for line in lines or [ended.message]:
            messages.print(line, soft_wrap=True)
        return ended.code or ExitCode.CHECK_FAILED
    values = json.loads("\n".join(lines[start:]))
    del values["version"]
    if as_json:
        print_json(values)
    else:
        values.pop("has_continued")
        _print_drill(DrillResult(**values))
    return int(ended.code)


def _confirm(where: str, *, is_agreed: bool) -> None:
    """Ask before a node of somebody's cluster is killed.

    Raises:
        ConfigError: If there is no terminal to ask on.
    """
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{where}: one of its nodes will be killed; confirm with --yes")
    typer.confirm(f"A node of {where} will be killed. Continue?", default=False, abort=True, err=True)


@contextlib.contextmanager
def _folder(run: Path | None) -> Iterator[Path]:
    """Yield the folder that is named, which must be empty, or a temporary one."""
    if run is None:
        with tempfile.TemporaryDirectory(prefix="raysent-drill-", ignore_cleanup_errors=True) as scratch:
            yield Path(scratch) / "run"
        return
    if run.exists() and any(run.iterdir()):
        raise ConfigError(f"{run}: must be empty; name another --run")
    yield run


def _print_drill(found: DrillResult) -> None:
    """Print what happened, in order."""

    def after(seconds: float | None) -> str:
        return "never" if seconds is None else f"{seconds:.1f} s"

    rows = [
        ("the training received the notice", after(found.notice_s)),
        ("a checkpoint was saved", after(found.checkpoint_s)),
        (f"node {found.node} was killed", after(found.killed_s)),
    ]
    if found.continued_s is None:
        rows.append(("training continued", "never"))
    else:
        rows.append((f"training continued on node {found.continued_on}", after(found.continued_s)))
        rows.append(("from step", f"{found.step:,}"))
        rows.append(("repeated steps", f"{found.steps_lost:,}"))
    print_table(["after the notice", ""], rows)


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
