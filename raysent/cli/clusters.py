"""`raysent cluster`: what is typed, and what is seen."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from raysent.cli.console import messages, print_json, print_table, results
from raysent.cluster import (
    Account,
    Launcher,
    Machine,
    check_save_time,
    check_token_required,
    diagnose,
    head_policy,
    read_cluster,
    worker_policy,
)
from raysent.cost import price_list
from raysent.errors import ConfigError

FAILED = 1


def up(file: Path, *, is_agreed: bool) -> int:
    """Bring a cluster up, after asking; returns the exit code."""
    cluster = read_cluster(file)
    if not is_agreed and sys.stdin.isatty():
        hourly = _usd_per_hour(cluster.head_type, cluster.region)
        messages.print(f"{cluster.name}: the head costs about {hourly} usd an hour from now on", soft_wrap=True)
        typer.confirm("Start it?", default=True, abort=True, err=True)
    launcher = Launcher(cluster)
    launcher.up(on_line=_say)
    messages.print(f"{cluster.name} is up; 'raysent cluster down {file}' takes it down", soft_wrap=True)
    return 0


def down(file: Path) -> int:
    """Take a cluster down; returns the exit code."""
    cluster = read_cluster(file)
    Launcher(cluster).down(on_line=_say)
    messages.print(f"{cluster.name} is down", soft_wrap=True)
    return 0


def status(file: Path, *, as_json: bool) -> int:
    """Show a cluster's machines; returns the exit code."""
    cluster = read_cluster(file)
    machines = Account(cluster.region).machines(cluster.name)
    if as_json:
        print_json({"cluster": cluster.name, "machines": [_values(machine) for machine in machines]})
    elif not machines:
        results.print(f"{cluster.name}: no machine stands")
    else:
        _print_machines(machines, cluster.region)
    return 0


def doctor(file: Path, *, address: str | None, checkpoint_mib: float | None, storage: str | None, as_json: bool) -> int:
    """Run every check; returns 1 where one failed."""
    launcher = Launcher(read_cluster(file))
    findings = [*diagnose(launcher), *([check_token_required(address)] if address else [])]
    if checkpoint_mib is not None:
        num_bytes = int(checkpoint_mib * 2**20)
        findings.append(check_save_time(launcher.cluster, num_bytes=num_bytes, storage=storage))
    is_well = all(finding.verdict != "failed" for finding in findings)
    if as_json:
        print_json({"is_well": is_well, "findings": [vars(finding) for finding in findings]})
    else:
        print_table(["check", "verdict", "found"], [(one.check, one.verdict, one.text) for one in findings], num_text=3)
    return 0 if is_well else FAILED


def orphans(file: Path, *, is_removing: bool, as_json: bool) -> int:
    """List machines that outlived their time, and end them where that is asked; returns the exit code."""
    account = Account(read_cluster(file).region)
    now = datetime.datetime.now(datetime.UTC)
    late = [machine for machine in account.machines() if machine.is_orphan(now)]
    if is_removing:
        account.terminate(late)
    if as_json:
        print_json({"orphans": [_values(machine) for machine in late], "removed": is_removing})
    elif not late:
        results.print(f"no orphans in {account.region}")
    else:
        _print_machines(late, account.region)
        messages.print("ended" if is_removing else "--remove ends them")
    return 0


def policies(file: Path, *, account: str) -> int:
    """Print the policies of the head and the workers; returns the exit code."""
    if not (account.isdigit() and len(account) == 12):
        raise ConfigError(f"--account: must be 12 digits; given '{account}'")
    cluster = read_cluster(file)
    print_json({"head": head_policy(cluster, account=account), "worker": worker_policy(cluster)})
    return 0


def _say(line: str) -> None:
    """Pass on what Ray's launcher says."""
    messages.print(line, style="dim", soft_wrap=True)


def _usd_per_hour(instance_type: str, region: str) -> str:
    """Return a machine's list price as text; a dash where none is known."""
    try:
        return f"{price_list().on_demand(instance_type, region).usd_per_hour:.4f}"
    except ConfigError:
        return "–"


def _values(machine: Machine) -> dict[str, Any]:
    """Return a machine as plain values."""
    times = {"launched": machine.launched.isoformat(), "expires": machine.expires and machine.expires.isoformat()}
    return {**vars(machine), **times}


def _print_machines(machines: Sequence[Machine], region: str) -> None:
    """Print machines, oldest first; what they cost at most is their list price."""
    rows = [
        (
            machine.name, machine.cluster, machine.sweep or "–", machine.instance_type, machine.market, machine.state,
            machine.zone, f"{machine.expires:%Y-%m-%d %H:%M}" if machine.expires else "unknown",
            _usd_per_hour(machine.instance_type, region),
        )
        for machine in machines
    ]  # fmt: skip
    headings = [
        "machine",
        "cluster",
        "sweep",
        "type",
        "market",
        "state",
        "zone",
        "expires (UTC)",
        "at most usd/h",
    ]
    print_table(headings, rows, num_text=8)
