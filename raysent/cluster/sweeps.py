"""Clusters on AWS, and sweeps on a cluster that is launched for them: submitted, followed and stopped."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

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
from raysent.cluster.following import how_to_continue, read_record, remote_of, write_remote
from raysent.cluster.jobs import check_shipped_size
from raysent.cluster.launch_plan import LaunchPlan, ask_account, plan_launch
from raysent.cluster.launcher import Head
from raysent.cluster.policies import operator_policy
from raysent.cluster.usage import ending_lines, refusal_to_end
from raysent.config import get_dotted, set_dotted
from raysent.cost import parse_duration, price_list
from raysent.cost.budget import FIRST_LEASE_S, LEASE_S
from raysent.ensembles import parse_sizes
from raysent.errors import ArtifactError, CloudError, ConfigError, RaysentError
from raysent.evaluation.task import VALIDATED
from raysent.evaluation.tasks import resolve_tasks
from raysent.live import SweepView
from raysent.pipeline.arguments import SpaceOptions, default_run_folder, overrides_of
from raysent.pipeline.scales import SpaceScale
from raysent.progress import messages
from raysent.storage import open_folder
from raysent.storage.layout import REMOTE_FILE
from raysent.sweeps import load_record, spent_usd
from raysent.sweeps.lessons import lesson_overrides
from raysent.sweeps.space import (
    SearchSpace,
    SweepSettings,
    find_space,
    read_space,
    with_overrides,
    with_values,
)

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


@dataclass(frozen=True)
class ClusterSweep:
    """A sweep on a cluster that is checked and not started: nothing of it costs money yet.

    Attributes:
        plan: What is launched, and what it costs at most.
        machines: The cluster file.
        submission: The sweep.
        keep_cluster: Whether the cluster stays afterwards.
        as_json: Whether its results are plain values, not lines of text.
    """

    plan: LaunchPlan
    machines: ClusterFile
    submission: Submission
    keep_cluster: bool = False
    as_json: bool = False

    def start(self) -> SubmittedSweep:
        """Launch the cluster, and follow the sweep to its end.

        Raises:
            RaysentError: If the plan refuses it, or the cluster cannot be launched.
        """
        self.plan.check()
        return _submitted(
            self.machines, self.submission, keep=self.keep_cluster, as_json=self.as_json
        )


def sweep_on_cluster(
    space: str | Path, cluster: str | Path, *, as_json: bool = False, **options: Any
) -> SubmittedSweep:
    """Search a space on an AWS cluster that is launched for the sweep and terminated after it.

    Nothing is asked: what cannot work is refused, and so is more than 5 usd an hour without a budget, unless the
    setting `cost.accept_bound` is true. Ctrl-C detaches: the sweep goes on, `attach` shows it again, and `stop` stops
    it.

    Args:
        space: A search-space file or the bare name of a shipped one.
        cluster: The cluster file.
        as_json: Return the sweep's results as plain values, not as lines of text.
        options: As for `plan_on_cluster`.

    Raises:
        RaysentError: If an argument or a file is wrong, or the cluster cannot be launched.
    """
    planned = plan_on_cluster(space, cluster, as_json=as_json, **options)
    return _started(planned, is_quiet=as_json)


def plan_on_cluster(  # noqa: PLR0913 - the options of the command
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
    dry_run: bool = False,
    **settings: Unpack[SweepSettings],
) -> ClusterSweep:
    """Check a sweep on an AWS cluster, and return what it launches and costs at most; nothing is launched.

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
        dry_run: Whether credentials may be missing: the plan then names what could not be asked.
        settings: As for `sweep`.

    Raises:
        RaysentError: If an argument or a file is wrong.
    """
    file = find_space(str(space))
    machines = read_cluster(Path(cluster))
    data_dir = None if data is None else Path(data)
    if run is None:
        run_folder = default_run_folder(file.stem)
    else:
        run_folder = Path(run)
    overrides = SpaceOptions(corpus, set, scale, metric, data, settings).overrides(file)
    # The machines have none of the folders that lessons are learnt from.
    overrides += lesson_overrides(read_space(file, overrides=overrides))
    priced, notes = price_space(file, overrides, machines)
    if run_folder.exists() and (not run_folder.is_dir() or any(run_folder.iterdir())):
        raise ConfigError(f"{run_folder}: must be empty; name another run folder")
    checked, task_names = _with_checked_tasks(priced, tasks, data_dir)
    options: list[str] = []
    if seed is not None:
        options = ["--seed", str(seed)]
    if labels is not None:
        sizes = parse_sizes(labels) if labels else []
        options += ["--set", f"labels={json.dumps(sizes)}"]
    remote = f"{machines.settings.storage}/{run_folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    submission = _submission(
        machines, checked, run_folder, remote, options, data=data_dir, tasks=task_names
    )
    check_shipped_size([*submission.named, None if data_dir is None else f"{data_dir.absolute()}"])
    state = ask_account(machines, Launcher(machines), is_dry_run=dry_run)
    plan = plan_launch(machines, checked, _fleet_of(submission), state, notes=notes)
    return ClusterSweep(plan, machines, submission, keep_cluster, as_json)


def resume_on_cluster(
    run: str | Path, cluster: str | Path, *, as_json: bool = False, **options: Any
) -> SubmittedSweep:
    """Resume a sweep that a cluster ran, on a cluster that is launched for it.

    Args:
        run: The run: its local folder or its address.
        cluster: The cluster file.
        as_json: As for `sweep_on_cluster`.
        options: As for `plan_resume_on_cluster`.

    Raises:
        RaysentError: As for `sweep_on_cluster`, or if another cluster works on the run.
    """
    planned = plan_resume_on_cluster(run, cluster, as_json=as_json, **options)
    return _started(planned, is_quiet=as_json)


def plan_resume_on_cluster(
    run: str | Path,
    cluster: str | Path,
    *,
    budget: str | None = None,
    deadline: str | None = None,
    accept_bound: bool | None = None,
    keep_cluster: bool = False,
    as_json: bool = False,
) -> ClusterSweep:
    """Check the resume of a sweep that a cluster ran, as `plan_on_cluster` does.

    Args:
        run: The run: its local folder or its address.
        cluster: The cluster file.
        budget: As for `resume`.
        deadline: As for `resume`.
        accept_bound: The setting `cost.accept_bound`; None for the sweep's own.
        keep_cluster: As for `plan_on_cluster`.
        as_json: As for `plan_on_cluster`.

    Raises:
        RaysentError: If an argument is wrong, or another cluster works on the run.
    """
    limits = overrides_of(
        {"budget": ("cost.budget", budget), "deadline": ("cost.deadline", deadline)}
    )
    machines = read_cluster(Path(cluster))
    remote = remote_of(Path(run))
    _check_unused(remote, machines)
    record = load_record(open_folder(remote))
    options = []
    for limit in limits:
        options += [f"--{limit.name.rpartition('.')[2]}", str(limit.value)]
    is_downloaded = (Path(run) / REMOTE_FILE).is_file()
    if is_downloaded:
        run_folder = Path(run)
    else:
        run_folder = default_run_folder(Path(run).name)
    space = with_overrides(record.space, limits)
    tasks = record.tasks.specs
    submission = _submission(
        machines, space, run_folder, remote, options, tasks=tasks, is_resumed=True
    )
    # What the machine here accepts is not part of the sweep.
    accepted = overrides_of({"accept_bound": ("cost.accept_bound", accept_bound)})
    plan = plan_launch(
        machines,
        with_overrides(space, accepted),
        _fleet_of(submission),
        ask_account(machines, Launcher(machines), is_dry_run=False),
        started=datetime.datetime.fromtimestamp(record.started, datetime.UTC),
        spent_usd=spent_usd(open_folder(remote)),
        accept="--set accept_bound=true",
    )
    return ClusterSweep(plan, machines, submission, keep_cluster, as_json)


def _started(planned: ClusterSweep, *, is_quiet: bool) -> SubmittedSweep:
    planned.plan.check()
    if planned.plan.unanswered:
        raise ConfigError(planned.plan.unanswered)
    if not is_quiet:
        for line in planned.plan.lines():
            messages.print(line, soft_wrap=True)
    return planned.start()


def _check_unused(remote: str, machines: ClusterFile) -> None:
    """Refuse a run that another cluster works on."""
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


def _fleet_of(submission: Submission) -> FleetSettings:
    assert submission.fleet is not None
    return submission.fleet


def attach(run: str | Path, *, as_json: bool = False) -> SubmittedSweep:
    """Show a sweep that runs on a cluster, from its start to its end; then download its results. Ctrl-C detaches.

    Args:
        run: The run: its address, or the local folder of its results; from any computer that may read it.
        as_json: Show no progress.

    Raises:
        RaysentError: If no sweep was submitted there, or its cluster ended before it did.
    """
    submitted_run = find_run(str(run), new_run=default_run_folder(Path(run).name))
    return _show(
        partial(follow_run, submitted_run),
        submitted_run.record.search_space(),
        submitted_run.remote,
        submitted_run.folder,
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
    submitted_run = find_run(str(run), new_run=Path(run))
    code = stop_run(submitted_run, say=_say if progress else _silent)
    return StoppedSweep(
        submitted_run.remote,
        submitted_run.record.cluster,
        had_ended=submitted_run.record.code is not None,
        code=code,
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
    if as_json:
        submission = replace(submission, options=[*submission.options, "--json"])
    write_remote(submission.run, submission.remote, cluster=machines.name, region=machines.region)
    run = partial(run_submission, Launcher(machines), submission, keep=keep)
    return _show(run, submission.space, submission.remote, submission.run, is_quiet=as_json)


def _with_checked_tasks(
    space: SearchSpace, tasks: Sequence[str] | None, data: Path | None
) -> tuple[SearchSpace, list[str] | None]:
    """Return a space and tasks that name each own task by its table and all its settings, once their rows were read."""

    def checked(names: Sequence[str] | None) -> list[str]:
        resolved = resolve_tasks(names, data, scorings=VALIDATED, default={"accuracy"})
        for task in resolved:
            _ = task.remarks  # reads its rows
        return [task.spec for task in resolved]

    if tasks is not None:
        tasks = checked(tasks)
    values = space.written()
    for field_name in ("evaluation.tasks", "base.validation.downstream.tasks", "base.labels.task"):
        names = get_dotted(values, field_name)
        if not names:
            continue
        try:
            if isinstance(names, str):
                set_dotted(values, field_name, checked([names])[0])
            else:
                set_dotted(values, field_name, checked(names))
        except RaysentError as error:
            raise space.document.error(
                tuple(field_name.split(".")), str(error).removeprefix("tasks ")
            ) from None
    return with_values(space, values), tasks


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
    force: bool = False,
    progress: bool = True,
) -> str:
    """Launch a cluster on AWS, with its security group, roles and token; a running head is left as it is.

    Every machine terminates itself at the end of its time to live, and the head an hour after its last sweep.

    Args:
        file: The cluster file.
        update: Apply changes to a running head, and restart Ray there.
        keep: How long the head lives without a sweep, such as ``4h``, instead of an hour; its time to live stays its
            limit.
        force: With `update`, restart Ray although a sweep runs there.
        progress: Whether to show progress on standard error.

    Returns:
        The cluster's name.

    Raises:
        RaysentError: With what mends it, if something keeps the cluster from being launched.
    """
    seconds = None
    if keep is not None:
        seconds = parse_duration(keep)
    launcher = Launcher(read_cluster(Path(file)))
    say = _say if progress else _silent
    if update and not force:
        _check_unused_cluster(launcher, "restarts Ray there and ends")
    is_new = launcher.up(update=update, on_line=say)
    if seconds is not None:
        _keep(launcher, seconds, progress=progress)
    elif is_new:
        try:
            _keep(launcher, LEASE_S, progress=progress)
        except CloudError as error:
            # The lease that the machine wrote at its start holds.
            say(
                f"{error}; the head ends itself in {FIRST_LEASE_S / 60:.0f} minutes without a sweep"
            )
    return launcher.cluster.name


def _keep(launcher: Launcher, seconds: float, *, progress: bool) -> None:
    until, expires = launcher.keep(seconds)
    if not progress:
        return
    limit = ""
    if expires and expires < until:
        limit = f"; its time to live ends it at {expires:%Y-%m-%d %H:%M}"
    messages.print(f"the head is kept until {until:%Y-%m-%d %H:%M} UTC{limit}", soft_wrap=True)


def _check_unused_cluster(launcher: Launcher, what: str) -> None:
    machines = launcher.account.machines(launcher.name)
    storage = launcher.cluster.settings.storage
    reason = refusal_to_end(launcher, machines, storage=storage)
    if reason:
        raise CloudError(f"{launcher.cluster.path}: {reason}; --force {what} it all the same")


def cluster_down(
    file: str | Path = _CLUSTER,
    *,
    orphans: bool = False,
    force: bool = False,
    progress: bool = True,
) -> str:
    """Terminate every machine with a cluster's tag, unless somebody uses them; files on S3 stay.

    A cluster that was not launched from this computer, and one on which a sweep runs, is refused.

    Args:
        file: The cluster file.
        orphans: Terminate instead the machines of any cluster in its region that outlived their time to live.
        force: End what is in use too, and name it.
        progress: Whether to show progress on standard error.

    Returns:
        The cluster's name.

    Raises:
        RaysentError: If the machines are in use, or AWS refuses.
    """
    cluster = read_cluster(Path(file))
    say = _say if progress else _silent
    launcher = Launcher(cluster)
    if orphans:
        late = [machine for machine in cluster_status(file).machines if machine.is_orphan]
        _end_orphans(launcher, late, force=force, say=say)
        return cluster.name
    if not force:
        _check_unused_cluster(launcher, "ends")
    else:
        for line in ending_lines(launcher.account.machines(cluster.name)):
            say(line)
    launcher.down(on_line=say)
    return cluster.name


def _end_orphans(
    launcher: Launcher, late: Sequence[Machine], *, force: bool, say: Callable[[str], object]
) -> None:
    """Terminate machines past their time to live, cluster by cluster; those that are in use stay."""
    reasons = []
    for name in sorted({machine.cluster for machine in late}):
        machines = [machine for machine in late if machine.cluster == name]
        head = Head(name, launcher.account.region, account=launcher.account)
        reason = refusal_to_end(
            head,
            machines,
            storage=launcher.cluster.settings.storage,
            are_orphans=True,
        )
        if reason and not force:
            reasons.append(reason)
            continue
        for line in ending_lines(machines):
            say(line)
        launcher.account.terminate(machines)
    if reasons:
        raise CloudError(
            f"{'; '.join(reasons)}; their end is not known; --orphans --force ends them all the same"
        )


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
                **{name: getattr(machine, name) for name in _SHOWN},
                "launched": machine.launched_at.isoformat(),
                "expires": machine.expires and machine.expires.isoformat(),
                "is_orphan": machine.is_orphan,
            }
            for machine in self.machines
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
        machine
        for machine in Account(cluster.region).machines()
        if machine.cluster == cluster.name or machine.is_orphan
    ]
    prices = {
        machine.instance_type: _list_price(machine.instance_type, cluster.region)
        for machine in machines
    }
    return ClusterStatus(cluster.name, cluster.region, tuple(machines), prices)


def cluster_policies(file: str | Path = _CLUSTER) -> dict[str, Any]:
    """Return the IAM policies that a cluster's head, its workers and its operator need.

    Args:
        file: The cluster file.

    Raises:
        RaysentError: If the file is wrong or AWS refuses.
    """
    cluster = read_cluster(Path(file))
    account = Account(cluster.region).account_id()
    return {
        "head": head_policy(cluster, account=account),
        "worker": worker_policy(cluster),
        "operator": operator_policy(cluster, account=account),
    }


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
