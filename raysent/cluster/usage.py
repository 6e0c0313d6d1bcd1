"""Who uses a cluster: the one decision before machines are ended or Ray is restarted there.

`raysent cluster down`, the end of a sweep, `cluster up --update` and `cluster down --orphans` all ask here. What is
known is asked in this order:

    the jobs of the head    if the head was launched from this computer and answers
    the tags of machines    which sweep each was launched for; and whether that sweep is alive by its stored run
                            (the lease that its process renews, the record of its job)

What cannot be found out counts as use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raysent.cluster.account import Machine
from raysent.cluster.gate import tag_of
from raysent.cluster.jobs import Jobs
from raysent.cluster.launcher import Head, read_token
from raysent.cluster.stored_sweep import is_alive
from raysent.errors import ArtifactError, CloudError

Connect = Callable[..., Any]


@dataclass(frozen=True)
class Users:
    """The sweeps that run on a cluster.

    Attributes:
        sweeps: Their addresses by the jobs of the head, else the names that machines are tagged with.
        has_asked_jobs: Whether the head itself has answered.
    """

    sweeps: tuple[str, ...] = ()
    has_asked_jobs: bool = False


def users_of(
    head: Head,
    *,
    machines: Sequence[Machine] | None = None,
    storage: str = "",
    ended: str = "",
    connect: Connect | None = None,
) -> Users:
    """Return the sweeps that run on a cluster.

    Args:
        head: The cluster's head.
        machines: Its machines; None to ask AWS.
        storage: Where its runs are stored; empty if that is not known.
        ended: Address of a run whose sweep has ended, although its job may take a moment longer.
        connect: Connects to a job API; None for Ray's.

    Raises:
        CloudError: If neither the head nor AWS answers.
    """
    if machines is None or any(machine.is_head for machine in machines):
        try:
            with head.tunnel() as address:
                jobs = (connect or Jobs)(address, token=read_token(head.token_file))
                return Users(tuple(jobs.other_runs(ended)), has_asked_jobs=True)
        except (CloudError, ArtifactError):
            pass  # by the tags then
    return Users(_tagged_sweeps(head, machines, storage, ended))


def _tagged_sweeps(
    head: Head, machines: Sequence[Machine] | None, storage: str, ended: str
) -> tuple[str, ...]:
    if machines is None:
        machines = head.account.machines(head.name)
    ended_tag = tag_of(ended.rpartition("/")[2])
    of_workers = {machine.sweep for machine in machines if not machine.is_head}
    of_head = {machine.sweep for machine in machines if machine.is_head}
    used = []
    for sweep in sorted((of_workers | of_head) - {"", ended_tag}):
        alive = None
        if storage:
            alive = is_alive(f"{storage}/{sweep}")
        # The tag of a head names the sweep that it was launched for, which may have ended long ago.
        if alive or (alive is None and sweep in of_workers):
            used.append(sweep)
    return tuple(used)


def refusal_to_end(
    head: Head,
    machines: Sequence[Machine],
    *,
    storage: str = "",
    are_orphans: bool = False,
    connect: Connect | None = None,
) -> str:
    """Return why the machines of a cluster must not be ended by a command without `--force`; empty if they may.

    Args:
        head: The cluster's head.
        machines: Its machines.
        storage: Where its runs are stored.
        are_orphans: Whether they are past their time to live, or that is unknown: then only a sweep
            that is alive keeps those whose end is unknown, and it does not matter who launched them.
        connect: As for `users_of`.
    """
    if are_orphans:
        machines = [machine for machine in machines if machine.expires is None]
    stranger = ""
    if not are_orphans:
        stranger = _stranger(head, machines)
    if stranger or are_orphans:
        users = Users(_tagged_sweeps(head, machines, storage, ""))
    else:
        users = users_of(head, machines=machines, storage=storage, connect=connect)
    machine_count = f"{len(machines)} {'machine' if len(machines) == 1 else 'machines'}"
    if users.sweeps:
        sweeps = ", ".join(users.sweeps)
        reason = f"{head.name}: {sweeps} runs on its {machine_count}"
        if stranger:
            return f"{reason}; {stranger}"
        return f"{reason}; 'raysent stop' stops a sweep"
    if stranger:
        return f"{stranger}; it has {machine_count}"
    return ""


def _stranger(head: Head, machines: Sequence[Machine]) -> str:
    """Return that a cluster was not launched from this computer; empty if it was, or has no machine."""
    running = next((machine for machine in machines if machine.is_head), None)
    if running is not None:
        return head.stranger(running)
    if machines and not head.file.exists():
        return f"cluster_name: '{head.name}': its machines were not launched from here"
    return ""


def ending_lines(machines: Sequence[Machine]) -> list[str]:
    """Return what `--force` ends, a line for each machine."""
    lines = []
    for machine in machines:
        kind = "head" if machine.is_head else machine.node_type or "worker"
        line = (
            f"ends {machine.name}: {kind}, {machine.instance_type}, "
            f"since {machine.launched_at:%Y-%m-%d %H:%M} UTC"
        )
        if machine.sweep:
            line += f", of the sweep {machine.sweep}"
        lines.append(line)
    return lines
