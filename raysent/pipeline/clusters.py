"""Clusters on AWS, and sweeps on a cluster that is launched for them: submitted, followed and stopped."""

from __future__ import annotations

import contextlib
import copy
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from raysent.cluster import (
    Account,
    ClusterFile,
    Launcher,
    Machine,
    Submission,
    SubmittedSweep,
    find_run,
    follow_run,
    head_policy,
    price_space,
    read_cluster,
    run_submission,
    stop_run,
    worker_policy,
    workers_for,
)
from raysent.cluster.fleet import FleetSettings
from raysent.cluster.following import how_to_continue, read_record, remote_of
from raysent.cluster.jobs import check_shipped_size
from raysent.cluster.launcher import Head
from raysent.cluster.prices import held_usd_per_hour
from raysent.config import get_dotted, set_dotted
from raysent.cost import NOT_COUNTED, parse_duration, price_list
from raysent.ensembles import parse_sizes
from raysent.errors import ArtifactError, CloudError, ConfigError, RaysentError
from raysent.evaluation.task import VALIDATED
from raysent.evaluation.tasks import resolve_tasks
from raysent.live import SweepView
from raysent.pipeline.arguments import SpaceScale, default_run_folder, overrides_of, space_overrides
from raysent.progress import messages
from raysent.storage import open_folder, write_json
from raysent.storage.layout import REMOTE_FILE
from raysent.sweeps import load_record
from raysent.sweeps.lessons import lesson_overrides
from raysent.sweeps.space import SearchSpace, find_space, parse_space, read_space, with_overrides

_CLUSTER = "cluster.yaml"
# What the status of a cluster says of a machine.
_SHOWN = (
    "name",
    "cluster",
    "sweep",
    "instance_type",
    "market",
    "state",
    "zone",
    "address",
    "is_head",
)


@dataclass(frozen=True)
class StoppedSweep:
    """What became of a sweep that was asked to stop.

    Attributes:
        address: Its run folder in a bucket.
        cluster: Its cluster.
        had_ended: Whether it had ended before.
        code: Its exit code; None if it has not stopped after five minutes.
    """

    address: str
    cluster: str
    had_ended: bool
    code: int | None


def sweep_on_cluster(  # noqa: PLR0913 - the options of the command
    space: str | Path,
    cluster: str | Path,
    *,
    corpus: str | Path | None = None,
    set: dict[str, Any] | None = None,
    scale: SpaceScale = "auto",
    metric: str | None = None,
    run: str | Path | None = None,
    seed: int | None = None,
    data: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    labels: str | int | Sequence[int | str] | None = None,
    keep_cluster: bool = False,
    as_json: bool = False,
    **limits: Any,
) -> SubmittedSweep:
    """Search a space on an AWS cluster that is launched for the sweep and terminated after it.

    Ctrl-C detaches: the sweep goes on, `attach` shows it again, and `stop` stops it.

    Args:
        space: A search-space file or the bare name of a shipped one.
        cluster: The cluster file.
        corpus: As for `sweep`.
        set: As for `sweep`.
        scale: As for `sweep`.
        metric: As for `sweep`.
        run: The local folder of the results; ``runs/NAME-DATE`` by default.
        seed: As for `sweep`.
        data: As for `sweep`.
        tasks: As for `sweep`, by name or file.
        labels: As for `sweep`.
        keep_cluster: Do not terminate the cluster afterwards.
        as_json: Return the sweep's results as plain values, not as lines of text.
        limits: As for `sweep`.

    Raises:
        RaysentError: If an argument or a file is wrong, or the cluster cannot be launched.
    """
    file, machines = find_space(str(space)), read_cluster(Path(cluster))
    data_dir, place = (
        None if data is None else Path(data),
        default_run_folder(file.stem) if run is None else Path(run),
    )
    overrides = space_overrides(
        file, corpus=corpus, set=set, scale=scale, metric=metric, data=data, **limits
    )
    overrides += lesson_overrides(
        read_space(file, overrides=overrides)
    )  # the machines have none of those folders
    priced, notes = price_space(file, overrides, machines)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{place}: must be empty; name another run folder")
    checked, named = _with_checked_tasks(priced, tasks, data_dir)
    options = [] if seed is None else ["--seed", str(seed)]
    options += (
        []
        if labels is None
        else ["--set", f"labels={json.dumps(parse_sizes(labels) if labels else [])}"]
    )
    remote = f"{machines.settings.storage}/{place.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    submission = _submission(machines, checked, place, remote, options, data=data_dir, tasks=named)
    check_shipped_size([*submission.named, None if data_dir is None else f"{data_dir.absolute()}"])
    if checked.cost.budget_usd is not None:
        held = held_usd_per_hour(machines, checked, num_workers=submission.workers.num)
        bound = checked.cost.for_sweep().bound_sentence(held)
        notes = [*notes, f"budget: {bound}, with disks and addresses; {NOT_COUNTED}"]
    for note in notes:
        messages.print(note, soft_wrap=True)
    return _submitted(machines, submission, keep=keep_cluster, as_json=as_json)


def resume_on_cluster(
    run: str | Path,
    cluster: str | Path,
    *,
    budget: str | None = None,
    deadline: str | None = None,
    keep_cluster: bool = False,
    as_json: bool = False,
) -> SubmittedSweep:
    """Resume a sweep that a cluster ran, on a cluster that is launched for it.

    Args:
        run: The run: its local folder or its address.
        cluster: The cluster file.
        budget: As for `resume`.
        deadline: As for `resume`.
        keep_cluster: As for `sweep_on_cluster`.
        as_json: As for `sweep_on_cluster`.

    Raises:
        RaysentError: As for `sweep_on_cluster`, or if another cluster works on the run.
    """
    limits = overrides_of(
        {"budget": ("cost.budget", budget), "deadline": ("cost.deadline", deadline)}
    )
    machines, remote = read_cluster(Path(cluster)), remote_of(Path(run))
    with contextlib.suppress(ArtifactError):  # no sweep was submitted there
        job = read_record(remote)
        is_elsewhere = (job.cluster, job.region) != (machines.name, machines.region)
        if (
            job.code is None
            and is_elsewhere
            and Head(job.cluster, job.region or "us-east-1").is_running()
        ):
            raise CloudError(
                f"{remote}: the cluster '{job.cluster}' works on it; {how_to_continue(remote)}"
            )
    record = load_record(open_folder(remote))
    options = [
        text
        for limit in limits
        for text in (f"--{limit.name.rpartition('.')[2]}", str(limit.value))
    ]
    place = Path(run) if (Path(run) / REMOTE_FILE).is_file() else default_run_folder(Path(run).name)
    space, tasks = with_overrides(record.space, limits), (record.evaluation or {}).get("tasks")
    submission = _submission(machines, space, place, remote, options, tasks=tasks, is_resumed=True)
    return _submitted(machines, submission, keep=keep_cluster, as_json=as_json)


def attach(run: str | Path, *, as_json: bool = False) -> SubmittedSweep:
    """Show a sweep that runs on a cluster, from its start to its end; then download its results. Ctrl-C detaches.

    Args:
        run: The run: its address, or the local folder of its results; from any computer that may read it.
        as_json: Show no progress.

    Raises:
        RaysentError: If no sweep was submitted there, or its cluster ended before it did.
    """
    found = find_run(str(run), new_run=default_run_folder(Path(run).name))
    return _show(
        partial(follow_run, found),
        found.record.search_space(),
        found.remote,
        found.folder,
        is_quiet=as_json,
    )


def stop(run: str | Path, *, progress: bool = True) -> StoppedSweep:
    """Stop a sweep that runs on a cluster, after it saved its trials; a second call stops it at once.

    Args:
        run: As for `attach`.
        progress: Whether to show progress on standard error.

    Returns:
        Whether it has stopped.

    Raises:
        RaysentError: If no sweep was submitted there.
    """
    found = find_run(str(run), new_run=Path(run))
    code = stop_run(found, say=_say if progress else _silent)
    return StoppedSweep(
        found.remote, found.record.cluster, had_ended=found.record.code is not None, code=code
    )


def _submission(
    machines: ClusterFile,
    space: SearchSpace,
    run: Path,
    remote: str,
    options: list[str],
    **more: Any,
) -> Submission:
    workers = workers_for(machines, space)
    limited = machines.limited(num_workers=workers.num, market=space.cost.market)
    fleet = FleetSettings.of(limited, Path(remote).name)
    return Submission(space, run, remote, options, workers, fleet=fleet, **more)


def _submitted(
    machines: ClusterFile, submission: Submission, *, keep: bool, as_json: bool
) -> SubmittedSweep:
    submission = replace(
        submission, options=[*submission.options, *(["--json"] if as_json else [])]
    )
    write_json(submission.run / REMOTE_FILE, {"remote": submission.remote})
    run = partial(run_submission, Launcher(machines), submission, keep=keep)
    return _show(run, submission.space, submission.remote, submission.run, is_quiet=as_json)


def _with_checked_tasks(
    space: SearchSpace, tasks: Sequence[str] | None, data: Path | None
) -> tuple[SearchSpace, list[str] | None]:
    """Return a space and tasks that name each own task by its table and all its settings, once their rows were read."""

    def checked(names: Sequence[str] | None) -> list[str]:
        found = resolve_tasks(names, data, scorings=VALIDATED, default={"accuracy"})
        for task in found:
            _ = task.remarks  # reads its rows
        return [task.spec for task in found]

    if tasks is not None:
        tasks = checked(tasks)
    values = copy.deepcopy(space.document.values)
    for place in ("evaluation.tasks", "base.validation.downstream.tasks", "base.labels.task"):
        names = get_dotted(values, place)
        if not names:
            continue
        try:
            set_dotted(
                values, place, checked([names])[0] if isinstance(names, str) else checked(names)
            )
        except RaysentError as error:
            raise space.document.error(
                tuple(place.split(".")), str(error).removeprefix("tasks ")
            ) from None
    document = replace(space.document, values=values)
    return parse_space(document, name=space.name, is_recorded=space.is_recorded), tasks


def _show(
    follow: Callable[..., SubmittedSweep],
    space: SearchSpace,
    address: str,
    folder: Path,
    *,
    is_quiet: bool,
) -> SubmittedSweep:
    with SweepView(messages, space, is_quiet=is_quiet) as view:
        ended = follow(on_event=view.on_event, say=_silent if is_quiet else _say)
    return replace(ended, address=address, folder=folder)


def cluster_up(
    file: str | Path = _CLUSTER,
    *,
    update: bool = False,
    keep: str | None = None,
    progress: bool = True,
) -> str:
    """Launch a cluster on AWS, with its security group, roles and token; a running head is left as it is.

    Every machine terminates itself at the end of its time to live, and the head an hour after its last sweep.

    Args:
        file: The cluster file.
        update: Apply changes to a running head, and restart Ray there.
        keep: How long the head lives without a sweep, such as ``4h``, instead of an hour; its time to live stays its
            limit.
        progress: Whether to show progress on standard error.

    Returns:
        The cluster's name.

    Raises:
        RaysentError: With what mends it, if something keeps the cluster from being launched.
    """
    launcher, seconds = (
        Launcher(read_cluster(Path(file))),
        None if keep is None else parse_duration(keep),
    )
    launcher.up(update=update, on_line=_say if progress else _silent)
    if seconds is not None:
        until, expires = launcher.keep(seconds)
        if progress:
            limit = (
                f"; its time to live ends it at {expires:%Y-%m-%d %H:%M}"
                if expires and expires < until
                else ""
            )
            messages.print(
                f"the head is kept until {until:%Y-%m-%d %H:%M} UTC{limit}", soft_wrap=True
            )
    return launcher.cluster.name


def cluster_down(
    file: str | Path = _CLUSTER, *, orphans: bool = False, progress: bool = True
) -> str:
    """Terminate every machine with a cluster's tag; files on S3 stay.

    Args:
        file: The cluster file.
        orphans: Terminate instead the machines of any cluster in its region that outlived their time to live.
        progress: Whether to show progress on standard error.

    Returns:
        The cluster's name.

    Raises:
        RaysentError: If AWS refuses.
    """
    cluster = read_cluster(Path(file))
    if orphans:
        Account(cluster.region).terminate(
            [one for one in cluster_status(file).machines if one.is_orphan]
        )
    else:
        Launcher(cluster).down(on_line=_say if progress else _silent)
    return cluster.name


@dataclass(frozen=True)
class ClusterStatus:
    """Machines of a cluster, and orphans of others.

    Attributes:
        cluster: The cluster's name.
        region: Its region.
        machines: Its machines, and machines of any cluster in the region that outlived their time to live.
        usd_per_hour: Instance type -> its list price, the most that a machine costs an hour; None where unknown.
    """

    cluster: str
    region: str
    machines: tuple[Machine, ...]
    usd_per_hour: dict[str, float | None]

    def values(self) -> list[dict[str, Any]]:
        """Return the machines as plain values."""
        return [
            {
                **{name: getattr(one, name) for name in _SHOWN},
                "launched": one.launched_at.isoformat(),
                "expires": one.expires and one.expires.isoformat(),
                "is_orphan": one.is_orphan,
            }
            for one in self.machines
        ]


def cluster_status(file: str | Path = _CLUSTER) -> ClusterStatus:
    """Return a cluster's machines and what they cost an hour, and machines in its region that should have ended.

    Args:
        file: The cluster file.

    Raises:
        RaysentError: If the file is wrong or AWS refuses.
    """
    cluster = read_cluster(Path(file))
    machines = [
        one
        for one in Account(cluster.region).machines()
        if one.cluster == cluster.name or one.is_orphan
    ]
    prices = {one.instance_type: _list_price(one.instance_type, cluster.region) for one in machines}
    return ClusterStatus(cluster.name, cluster.region, tuple(machines), prices)


def cluster_policies(file: str | Path = _CLUSTER) -> dict[str, Any]:
    """Return the IAM policies that a cluster's head and workers need.

    Args:
        file: The cluster file.

    Raises:
        RaysentError: If the file is wrong or AWS refuses.
    """
    cluster = read_cluster(Path(file))
    account = Account(cluster.region).account_id()
    return {"head": head_policy(cluster, account=account), "worker": worker_policy(cluster)}


def head_price(file: str | Path = _CLUSTER) -> float | None:
    """Return what a cluster's head costs an hour by AWS's list; None if that is unknown."""
    cluster = read_cluster(Path(file))
    return _list_price(cluster.head["node_config"]["InstanceType"], cluster.region)


def _list_price(instance_type: str, region: str) -> float | None:
    try:
        return price_list().on_demand(instance_type, region).usd_per_hour
    except ConfigError:
        return None


def _say(line: str) -> None:
    messages.print(line, style="dim", soft_wrap=True)


def _silent(_: str) -> None:
    pass
