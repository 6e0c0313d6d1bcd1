"""The machines of a running sweep: admitted under its budget, billed from the cloud's list, terminated if they fail.

At every poll of the sweep `Fleet.update` reads what the cloud launched and refused, plans with `Admission`, and writes
two files on the head: the permit of the gate (`raysent.cluster.gate`) and the limits of Ray's autoscaler,
which carries the plan out. A cluster in another cloud implements `Provider` and a gate.

Several sweeps may use one cluster at the same time (`raysent.cluster.sharing`): each has a permit and pays for the
machines that it was launched for, and the head is paid by one of them at a time.

`raysent sweep --cluster` describes the cluster to the sweep's process in an environment variable:

    RAYSENT_FLEET='{"cluster": "raysent", "region": "us-east-1", "types": {"spot-g6": {…}}, …}'
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import boto3
import ray
from botocore.config import Config

from raysent.cluster.account import Machine, aws_errors, list_machines
from raysent.cluster.cluster_file import FLEET_FOLDER, LEASE_FILE, ClusterFile
from raysent.cluster.gate import LAUNCHED, REFUSED, RELEASED, Record, tag_of
from raysent.cluster.permits import Permits
from raysent.cluster.sharing import Sharing
from raysent.cost import (
    MARKET_LABEL,
    Admission,
    Budget,
    CostConfig,
    Funds,
    MachineTime,
    MachineType,
    Prices,
    parse_duration,
    spare,
)
from raysent.cost.budget import ALONE_S, CHECK_S, GRACE_S, LEASE_S, STALL_S, permit_s
from raysent.cost.refusals import refusal_of
from raysent.errors import CloudError, ConfigError
from raysent.platforms import expanded
from raysent.preemption import DrainError, drain_node, open_nodes
from raysent.ray_private import control_client
from raysent.reading import parse_json, read_json
from raysent.storage import write_json, write_text
from raysent.sweeps import Layout

_FLEET_VARIABLE = "RAYSENT_FLEET"
# The file that Ray's launcher writes on the head, and that the autoscaler reads at every update.
CONFIG_FILE = "~/ray_bootstrap_config.yaml"
# A machine whose Ray node has not joined after this time is terminated.
JOIN_S = 900.0
# The launches of a permit are valid for this many polls, and at least this long: the sweep renews it at every poll.
PERMIT_POLLS = 4
MIN_PERMIT_S = 60.0
# Machines live for this long between the last poll of training and the first of the evaluation.
HANDOVER_S = 100.0
# The last trials move to fewer machines if one may take this many times as long as its machine takes to drain.
_MOVE_DRAINS = 5
# Time in which the cloud's list may lack a machine that was launched.
_LIST_LAG_S = 120.0
# A machine that was launched and never listed, so that no sweep has seen it, ends at this age at the latest.
_UNSEEN_S = JOIN_S + _LIST_LAG_S

# The sweep waits for the cloud's list at every poll; without an answer, the last list remains in use.
_PATIENCE = Config(connect_timeout=3, read_timeout=10, retries={"total_max_attempts": 2})


class Provider(Protocol):
    """What a running sweep needs of a cloud."""

    def instances(self) -> tuple[float, list[Machine]]:
        """Return the cloud's time, and every machine of the cluster: also the ended ones that it still lists.

        Raises:
            CloudError: If the cloud does not answer.
        """

    def terminate(self, names: Sequence[str]) -> None:
        """Terminate machines.

        Raises:
            CloudError: If the cloud does not answer.
        """


class AwsMachines:
    """The machines of a cluster on AWS."""

    def __init__(self, cluster: str, region: str, *, ec2: Any = None) -> None:
        """Prepare; no request is sent yet.

        Args:
            cluster: The cluster's name, which its machines are tagged with.
            region: As in us-east-1.
            ec2: A boto3 client of EC2; None to create one.
        """
        self._cluster = cluster
        self._ec2 = ec2 or boto3.client("ec2", region_name=region, config=_PATIENCE)

    def instances(self) -> tuple[float, list[Machine]]:
        """Return AWS's time and all machines with the cluster's tag."""
        return list_machines(self._ec2, self._cluster)

    def terminate(self, names: Sequence[str]) -> None:
        """Terminate machines."""
        with aws_errors("terminate_instances"):
            self._ec2.terminate_instances(InstanceIds=list(names))


@dataclass(frozen=True)
class FleetSettings:
    """The cluster of a sweep, as its process on the head needs it.

    Attributes:
        cluster: Name of the cluster.
        region: Its region; empty if there is no list of machines, and Ray's nodes are charged instead.
        types: Name -> type of worker: `resources`, `labels`, `priority`, `max_workers`.
        max_workers: The most workers of all types at the same time.
        folder: Folder of the permits and of the record of launches on the head.
        config: The autoscaler's configuration on the head.
        sweep: The sweep, by which its machines and its permit differ from those of others.
        head: The labels of the head, which determine its price; empty if it costs nothing.
    """

    cluster: str
    region: str
    types: Mapping[str, Mapping[str, Any]]
    max_workers: int
    folder: str = FLEET_FOLDER
    config: str = CONFIG_FILE
    sweep: str = "sweep"
    head: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """The folder on the head."""
        return expanded(self.folder)

    def environment(self) -> dict[str, str]:
        """Return the environment variable that describes the cluster to a sweep."""
        return {_FLEET_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of(cls, cluster: ClusterFile, sweep: str) -> FleetSettings:
        """Return the settings of a cluster file for a sweep."""
        shown_keys = ("resources", "labels", "priority", "max_workers")
        types = {
            name: {key: kind[key] for key in shown_keys if key in kind}
            for name, kind in cluster.worker_types.items()
            if kind.get("max_workers", 1)
        }
        head = cluster.head["labels"]
        return cls(cluster.name, cluster.region, types, cluster.max_workers, sweep=sweep, head=head)

    @classmethod
    def from_environment(cls) -> FleetSettings | None:
        """Return the settings of this process; None on a cluster that does not grow.

        Raises:
            ConfigError: If the variable cannot be read.
        """
        text = os.environ.get(_FLEET_VARIABLE)
        if text is None:
            return None
        try:
            return cls(**parse_json(text))
        except (ValueError, TypeError):
            raise ConfigError(
                f"{_FLEET_VARIABLE}: must describe a cluster as JSON; given {text[:200]}"
            ) from None


def num_slots(resources: Mapping[str, float], layout: Layout) -> int:
    """Return how many workers of trials fit on a machine: the least over cores and GPUs."""
    needed = {"CPU": float(layout.cpus_per_worker), "GPU": layout.gpus_per_worker}
    return min(
        math.floor(float(resources.get(name, 0)) / amount + 1e-6)
        for name, amount in needed.items()
        if amount > 0
    )


def make_admission(
    settings: FleetSettings,
    config: CostConfig,
    budget: Budget,
    prices: Prices,
    *,
    slots_of: Callable[[Mapping[str, float]], int],
    is_listed: bool = True,
) -> Admission:
    """Return what admits the machines of a cluster, in a running sweep and in the plan before it.

    Args:
        settings: The cluster.
        config: The section `cost` of the space.
        budget: What the sweep may spend.
        prices: What machines cost.
        slots_of: Returns how many workers of trials fit on a machine with some resources.
        is_listed: Whether the cloud bills machines from its own list.
    """
    types = [
        MachineType(
            name,
            prices.of(kind["labels"]).worst_usd_per_hour,
            market=kind["labels"].get(MARKET_LABEL, "on-demand"),
            priority=int(kind.get("priority", 0)),
            max_machines=int(kind.get("max_workers", settings.max_workers)),
            num_slots=slots_of(kind["resources"]),
        )
        for name, kind in settings.types.items()
    ]
    hourly_usd = 0.0
    if settings.head:
        hourly_usd = prices.of(settings.head).worst_usd_per_hour
    return Admission(
        [kind for kind in types if kind.num_slots > 0],
        budget,
        boot_s=config.boot_s,
        max_machines=settings.max_workers,
        alone_s=ALONE_S + CHECK_S if is_listed else 0.0,
        head_usd=hourly_usd * (LEASE_S + CHECK_S) / 3600,
    )


def make_fleet(
    config: CostConfig, budget: Budget, prices: Prices, layout: Layout, started: float
) -> Fleet | None:
    """Return the fleet of this process's cluster; None on a cluster that does not grow.

    Args:
        config: The section `cost` of the space.
        budget: What the sweep may spend.
        prices: What machines cost.
        layout: How trials share the cluster.
        started: Unix seconds of the sweep's start.

    Raises:
        ConfigError: If no type of machine is large enough for one worker of a trial.
    """
    settings = FleetSettings.from_environment()
    if settings is None:
        return None
    provider = None
    if settings.region:
        provider = AwsMachines(settings.cluster, settings.region)
    return Fleet(
        settings, config, budget, prices, layout, since=started - config.boot_s, provider=provider
    )


class MachineList:
    """The machines of a sweep in the cloud's list, and those that the list lacks.

    Attributes:
        instances: The machines in the last list.
    """

    def __init__(
        self,
        settings: FleetSettings,
        provider: Provider,
        *,
        since: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; no request is sent yet.

        Args:
            settings: The cluster.
            provider: The cloud.
            since: Unix seconds from which on machines are charged to this sweep, by this machine's clock.
            clock: Returns Unix seconds, by this machine's clock, which may differ from the cloud's.
        """
        self.instances: list[Machine] = []
        self._settings = settings
        self._provider = provider
        self._since = since
        self._clock = clock
        self._record = Record(settings.place, settings.sweep)
        self._sharing = Sharing(settings.place, settings.sweep)
        self._at = 0.0
        self._read_at = -math.inf
        # What this machine's clock lacks to the cloud's at the first list, if it is ahead: no machine is charged less.
        self._ahead_s = 0.0

    @property
    def now(self) -> float:
        """The cloud's time; of this machine before the first list."""
        if self.is_read:
            return self._at + self._clock() - self._read_at
        return self._clock()

    @property
    def is_read(self) -> bool:
        """Whether the cloud has answered once."""
        return math.isfinite(self._read_at)

    def times(self) -> dict[str, MachineTime] | None:
        """Read the list, and return every machine that is charged to the sweep; None before the cloud's first answer.

        If the cloud does not answer, the last list remains in use, so that no machine is charged less for it.
        """
        with contextlib.suppress(CloudError):
            self._at, listed = self._provider.instances()
            # Another sweep's machines are its own; a machine that names no sweep is charged rather than forgotten.
            own_tags = ("", self._settings.sweep, tag_of(self._settings.sweep))
            self.instances = [
                machine
                for machine in listed
                if machine.sweep in own_tags or (machine.is_head and machine.ended is None)
            ]
            if not self.is_read:
                self._ahead_s = max(0.0, self._clock() - self._at)
            self._read_at = self._clock()
        if not self.is_read:
            return None
        since = self._since - self._ahead_s
        times = self._unlisted({machine.name for machine in self.instances})
        for machine in self.instances:
            if machine.is_head and machine.ended is None:
                seconds, is_payer = self._sharing.of_head(
                    machine.name, since=max(machine.launched, since), now=self.now
                )
                if seconds or is_payer:
                    times[machine.name] = MachineTime(machine.labels, seconds, is_open=is_payer)
            # An end at an unknown time is NaN, which is not below anything: the machine is charged.
            elif machine.ended is None or not machine.ended < since:
                times[machine.name] = self._time(machine, since)
        return times

    def _unlisted(self, listed: Collection[str]) -> dict[str, MachineTime]:
        times = {}
        for line in self._record.lines():
            name = line.get("instance")
            if (
                not name
                or name in listed
                or line["event"] != LAUNCHED
                or line["time"] < self._since
            ):
                continue
            if line["type"] in self._settings.types:
                labels = self._settings.types[line["type"]]["labels"]
                is_new = self._clock() - line["time"] < _LIST_LAG_S
                age_s = max(0.0, self.now - (float(line["time"]) - self._ahead_s))
                # The cloud's list would have it by now: it ended, at its latest possible age.
                seconds = age_s if is_new else min(age_s, _UNSEEN_S)
                times[name] = MachineTime(labels, seconds, is_open=is_new, is_end_known=is_new)
        return times

    def _time(self, machine: Machine, since: float) -> MachineTime:
        is_end_known = machine.ended is None or not math.isnan(machine.ended)
        until = self.now
        if machine.ended is not None and is_end_known:
            until = machine.ended
        return MachineTime(
            machine.labels,
            max(0.0, until - max(machine.launched, since)),
            is_open=machine.ended is None,
            is_interrupted=machine.is_interrupted,
            is_end_known=is_end_known,
        )


class Fleet:
    """The machines of one sweep. Call `update` at every poll, and `close` at the end."""

    def __init__(
        self,
        settings: FleetSettings,
        config: CostConfig,
        budget: Budget,
        prices: Prices,
        layout: Layout,
        *,
        since: float = 0.0,
        provider: Provider | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the record of earlier launches. Nothing is admitted yet.

        Args:
            settings: The cluster.
            config: The section `cost` of the space.
            budget: What the sweep may spend.
            prices: What machines cost.
            layout: How trials share the cluster.
            since: Unix seconds from which on machines are charged to this sweep.
            provider: The cloud; None to charge the nodes of Ray.
            clock: Returns Unix seconds.
        """
        self._settings = settings
        self._layout = layout
        self._provider = provider
        self._clock = clock
        self._list = (
            None if provider is None else MachineList(settings, provider, since=since, clock=clock)
        )
        self._poll_s = config.poll_s
        self._drain_s = parse_duration(config.drain)
        self._record = Record(settings.place, settings.sweep)
        self._sharing = Sharing(settings.place, settings.sweep)
        self._config_path = expanded(settings.config)
        self._admission = make_admission(
            settings,
            config,
            budget,
            prices,
            slots_of=lambda resources: num_slots(resources, layout),
            is_listed=provider is not None,
        )
        if not self._admission.types:
            raise ConfigError(_too_small(settings.types, layout))
        self._budget = budget
        self._permits = Permits()
        self._num_read = 0
        self._started = clock()
        self._launched: dict[str, tuple[str, float]] = {}
        self._terminated: set[str] = set()
        self._released: dict[str, float] = {}  # name -> when it is terminated
        self._kept: Mapping[str, int] = {}
        self._is_closed = False
        # While trials are evaluated, a thread that charges machines calls `keep` too.
        self._turn = threading.Lock()
        self._read_record()
        self.waiting = self.stuck = ""

    @property
    def has_list(self) -> bool:
        """Whether the cloud has a list of machines; else Ray's nodes are charged."""
        return self._list is not None

    def machines(self) -> dict[str, MachineTime] | None:
        """Return every machine that is charged to the sweep; None before the cloud's first answer."""
        if self._list is None:
            return None
        return self._list.times()

    def with_in_flight(self, funds: Funds) -> Funds:
        """Return funds whose commitment includes the machines in flight."""
        return self._admission.with_in_flight(funds)

    def update(
        self, funds: Funds, *, num_trials: int, is_urgent: bool = False, tail_s: float | None = None
    ) -> str:
        """Admit machines for the trials that have work; returns why fewer come than are needed.

        Args:
            funds: Spending and commitment of the running machines.
            num_trials: Trials that are training or could train now.
            is_urgent: Whether on-demand types come first.
            tail_s: Once no trial is left to start, the seconds that the longest may still take: machines that the
                others can do without are released.
        """
        now = self._clock()
        self._read_record()
        self._end_unjoined(now)
        self._end_released(now)
        num_workers = self._layout.workers_per_trial * min(num_trials, self._layout.concurrent)
        names = self._running(now)
        if self._provider is not None:
            joined = joined_instances() if names else set()
            self._admission.not_joined(
                Counter(kind for name, kind in names.items() if name not in joined)
            )
        self._renew(names, funds)
        # A released machine runs until it is drained, but no trial is placed on it, so that it is not planned with.
        released = Counter(names.pop(name) for name in self._released.keys() & names.keys())
        plan = self._admission.plan(
            now_s=now,
            num_slots=num_workers,
            funds=funds,
            running=Counter(names.values()),
            is_urgent=is_urgent,
        )
        if tail_s is not None and num_trials:
            self._release(
                names, num_workers=num_workers, may_move=tail_s > _MOVE_DRAINS * self._drain_s
            )
        targets = {name: num + released[name] for name, num in plan.targets.items()}
        self._write(
            targets, plan.launches, until=now + max(MIN_PERMIT_S, PERMIT_POLLS * self._poll_s)
        )
        self.waiting = plan.waiting
        self.stuck = ""
        if num_trials:
            self.stuck = self._admission.stuck(Counter(self._running(now).values()))
        return plan.waiting

    def keep(self, num_tasks: int | None = None) -> None:
        """Withdraw all permits, and keep as many of the machines that run as so many tasks of one core need.

        Ray ends machines at once, also busy ones. Name a number only while no task runs.

        Args:
            num_tasks: None keeps what the last call kept; before any call, all machines.
        """
        with self._turn:
            if self._is_closed or (self._list is not None and not self._list.is_read):
                return
            self._read_record()
            names = self._running(self._clock())
            running = Counter(names.values())
            self._renew(names)
            if num_tasks is not None:
                self._kept = self._admission.keep(running, num_slots=num_tasks).targets
            targets = {name: min(num, self._kept.get(name, num)) for name, num in running.items()}
            self._write(targets, self._admission.withdraw().launches, until=0.0)

    def hand_over(self) -> None:
        """Let the machines live until the evaluation has taken them over; it has `HANDOVER_S` for that."""
        self._end_released(math.inf)
        self._permits.close()
        self._permits.renew(self._running(self._clock()), seconds=HANDOVER_S)

    def close(self) -> None:
        """Withdraw all permits and let Ray terminate the workers: there is no more work for them."""
        self._permits.close()
        with self._turn:
            self._is_closed = True
            plan = self._admission.withdraw()
            if self._provider is not None and self._sharing.others():
                # Ray would end idle machines first, of whichever sweep they are.
                _end_workers(self._settings, self._provider, are_all=False)
            self._write(plan.targets, plan.launches, until=0.0)

    def _release(self, names: Mapping[str, str], *, num_workers: int, may_move: bool) -> None:
        """Let Ray place nothing more on machines that are not needed; their trials save, and go on elsewhere.

        On a cluster with other sweeps nothing is released: their trials may be there.
        """
        if self._provider is None or not ray.is_initialized() or self._sharing.others():
            return
        address = ray.get_runtime_context().gcs_address
        layout = self._layout
        with contextlib.suppress(DrainError):  # tried again at the next poll
            nodes = {name: node for name, node in open_nodes(address).items() if name in names}
            slots = {name: num_slots(total, layout) for name, (_, total, _) in nodes.items()}
            used_slots = {
                name: slots[name] - num_slots(free, layout) for name, (*_, free) in nodes.items()
            }
            for name in spare(slots, used_slots, num_needed=num_workers, may_move=may_move):
                left_s = self._drain_s if used_slots[name] else 0.0
                drain_node(address, nodes[name][0], left_s=left_s, why="few trials are left")
                self._released[name] = self._clock() + left_s
                self._record.write(
                    RELEASED,
                    names[name],
                    instance=name,
                    trials=used_slots[name],
                    until=self._released[name],
                )

    def _end_released(self, now: float) -> None:
        if self._released and self._provider is not None:
            due = [name for name in self._running(now) if self._released.get(name, math.inf) <= now]
            # What fails is tried again at the next poll; a machine without trials is also ended by Ray.
            with contextlib.suppress(CloudError):
                if due:
                    self._provider.terminate(due)

    def _renew(self, machines: Iterable[str], funds: Funds | None = None) -> None:
        """Renew the permit of machines, now and meanwhile, for as long as the budget is sure to allow.

        Args:
            machines: Their ids.
            funds: What the sweep has spent; None where this process does not decide about it.
        """
        left_s = HANDOVER_S
        if funds is not None:
            due = self._admission.with_in_flight(funds)
            left_s = min(STALL_S, self._budget.seconds_left(due))
        self._permits.grant(machines, seconds=permit_s(self._poll_s), for_s=left_s)

    def _read_record(self) -> None:
        """Take what the gate has launched, and what the cloud has refused, since the last call."""
        lines = self._record.lines()
        totals: Counter[str] = Counter()
        for number, line in enumerate(lines):
            if line["event"] == LAUNCHED:
                totals[line["type"]] += 1
                self._launched[line["instance"] or f"{line['type']}-{number}"] = (
                    line["type"],
                    float(line["time"]),
                )
        for name, total in totals.items():
            self._admission.launched(name, total=total)
        for line in lines[self._num_read :]:
            if line["event"] == REFUSED:
                # What an earlier process met, as a permission that was missing, may have been mended.
                is_earlier = float(line["time"]) < self._started
                if not is_earlier or refusal_of(line["reason"]) == "next":
                    self._admission.refused(
                        line["type"], now_s=float(line["time"]), reason=line["reason"]
                    )
            elif line["event"] == RELEASED:
                # By a process of this sweep that was killed, if not by this one.
                self._released[line["instance"]] = float(line["until"])
        self._num_read = len(lines)

    def _running(self, now: float) -> dict[str, str]:
        """Return name -> type of the machines that are billed now: listed, or alive in Ray, or launched just before."""
        if self._list is None:
            alive = joined_instances()
            listed = dict.fromkeys(self._launched, False) | dict.fromkeys(alive, True)
            running = {name: kind for name, (kind, _) in self._launched.items() if listed[name]}
        else:
            listed = {machine.name: machine.ended is None for machine in self._list.instances}
            running = {
                machine.name: machine.node_type
                for machine in self._list.instances
                if listed[machine.name]
            }
        for name, (kind, at) in self._launched.items():
            if now - at < _LIST_LAG_S and (name not in listed or self._list is None):
                running[name] = kind
        return {name: kind for name, kind in running.items() if kind in self._settings.types}

    def _end_unjoined(self, now: float) -> None:
        """Terminate machines whose Ray node has not joined in time, and skip their types for a while."""
        if self._list is None or self._provider is None:
            return
        late = {
            machine.name: machine
            for machine in self._list.instances
            if machine.ended is None
            and machine.node_type in self._settings.types
            and self._list.now - machine.launched > JOIN_S
        }
        if late:
            for name in late.keys() & joined_instances():
                del late[name]
        for name in late.keys() - self._terminated:
            reason = f"{name} did not join Ray in {JOIN_S / 60:.0f} minutes"
            self._admission.refused(late[name].node_type, now_s=now, reason=reason, refusal="next")
            # What fails is tried again at the next poll; the machine also ends itself.
            with contextlib.suppress(CloudError):
                self._provider.terminate([name])
                self._terminated.add(name)

    def _write(
        self, targets: Mapping[str, int], launches: Mapping[str, int], *, until: float
    ) -> None:
        """Write the permit first: a machine is launched only if both files allow it."""
        write_json(
            self._record.permit_path,
            {"until": until, "launches": dict(launches), "targets": dict(targets)},
            sealed=False,
        )
        renew_lease(self._record.folder, now=self._clock())
        with self._sharing.turn():
            other_targets = [
                Record(self._record.folder, name).permit().get("targets", {})
                for name in self._sharing.others()
            ]
            totals = {
                name: sum(sweep_targets.get(name, 0) for sweep_targets in (targets, *other_targets))
                for name in self._settings.types
            }
            admit(self._config_path, totals)


def renew_lease(folder: Path, *, now: float) -> None:
    """Let the head live for `LEASE_S` more seconds, unless `raysent cluster up --keep` lets it live longer.

    Args:
        folder: The folder that the head shares with the sweep.
        now: Unix seconds.
    """
    path = folder / LEASE_FILE
    with contextlib.suppress(OSError, ValueError):
        if path.stat().st_mtime + float(path.read_text(encoding="utf-8")) > now + LEASE_S:
            return
    write_text(path, str(int(LEASE_S)))


@contextlib.contextmanager
def cluster_held(
    settings: FleetSettings, *, is_kept: bool, provider: Provider | None = None
) -> Iterator[None]:
    """Hold the cluster of this process for its sweep inside the block; the last one that lets go ends the cluster.

    At the end of the block the sweep's workers are terminated. If no other sweep holds the cluster, all its workers
    are, and the head ends when a lease of `GRACE_S` has run out.

    Args:
        settings: The cluster and the sweep.
        is_kept: Whether the cluster stays.
        provider: The cloud; None for the one of the settings.
    """
    folder = settings.place
    sharing = Sharing(settings.place, settings.sweep)
    if not sharing.hold():  # another process of this sweep, which refuses this one
        yield
        return
    with sharing.turn():
        renew_lease(folder, now=time.time())
    try:
        yield
    finally:
        permit = {"until": 0.0, "launches": {}}
        write_json(Record(folder, settings.sweep).permit_path, permit, sealed=False)
        with sharing.turn():
            sharing.release()
            is_last = not sharing.others()
            if is_last and not is_kept:
                # The head ends itself when this lease has run out.
                write_text(folder / LEASE_FILE, str(int(GRACE_S)))
        if settings.region and provider is None:
            provider = AwsMachines(settings.cluster, settings.region)
        if provider is not None:
            _end_workers(settings, provider, are_all=is_last and not is_kept)


def _end_workers(settings: FleetSettings, provider: Provider, *, are_all: bool) -> None:
    """Terminate the workers of a sweep, or of all sweeps. Without an answer of the cloud, they end themselves."""
    own_tag = tag_of(settings.sweep)
    with contextlib.suppress(CloudError):
        workers = [
            machine.name
            for machine in provider.instances()[1]
            if machine.ended is None
            and machine.node_type in settings.types
            and (are_all or machine.sweep == own_tag)
        ]
        if workers:
            provider.terminate(workers)


def admit(path: Path, targets: Mapping[str, int]) -> None:
    """Write the most machines of each type into the autoscaler's configuration, which it reads at every update.

    Ray's launcher writes the file as JSON.
    """
    values = read_json(path)
    before = json.dumps(values)
    for name, num in targets.items():
        values["available_node_types"][name] |= {"min_workers": 0, "max_workers": num}
    if json.dumps(values) != before:
        write_text(path, json.dumps(values))


def joined_instances() -> set[str]:
    """Return the ids of the machines whose Ray node is alive."""
    client = control_client(ray.get_runtime_context().gcs_address)
    nodes = client.get_all_node_info(timeout=10).values()
    return {str(node.instance_id) for node in nodes if node.state == 0}


def _too_small(types: Mapping[str, Mapping[str, Any]], layout: Layout) -> str:
    shapes = "; ".join(
        f"{name} has {kind['resources'].get('CPU', 0):g} cores and {kind['resources'].get('GPU', 0):g} GPUs"
        for name, kind in types.items()
    )
    return (
        f"available_node_types: one machine must hold a worker of {layout.cpus_per_worker} cores and "
        f"{layout.gpus_per_worker:g} GPUs; {shapes}; lower limits.gpus_per_worker, or add a larger type"
    )
