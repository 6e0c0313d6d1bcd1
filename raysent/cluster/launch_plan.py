"""The step before money: what a sweep launches on a cluster, what that costs at most, and whether it can work.

In: the checked space, the cluster file and the AWS account. Out: a plan of plain values. `raysent sweep --cluster` and
its `--dry-run` print the same plan; what cannot work is refused before anything is asked for at AWS.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from raysent.cluster.account import Machine, launch_problems, missing_permissions, tight_quotas
from raysent.cluster.cluster_file import ClusterFile
from raysent.cluster.fleet import FleetSettings, make_admission
from raysent.cluster.launcher import Head
from raysent.cluster.prices import held_usd_per_hour
from raysent.cost import (
    NOT_COUNTED,
    TYPE_LABEL,
    Admission,
    Budget,
    Funds,
    Prices,
    parse_duration,
)
from raysent.cost.budget import GRACE_S
from raysent.errors import CloudError, ConfigError
from raysent.progress import format_duration
from raysent.sweeps.space import SearchSpace

# A bound above this part of the budget must be accepted by name.
_BOUND_PART = 0.25
# Without a budget, `--yes` alone starts machines that cost at most this much an hour.
_UNASKED_USD_PER_HOUR = 5.0
_ACCEPT = "--set cost.accept_bound=true"


@dataclass(frozen=True)
class WorkerCost:
    """What one machine of a type of worker costs.

    Attributes:
        name: The type's name in the cluster file.
        instance_type: As in g5.xlarge.
        market: `spot` or `on-demand`.
        max_machines: The most at the same time.
        usd_per_hour: The most that one costs an hour.
        need_usd: What must be left of the budget before one is launched: its start and its stop.
    """

    name: str
    instance_type: str
    market: str
    max_machines: int
    usd_per_hour: float
    need_usd: float


@dataclass(frozen=True)
class AccountState:
    """What AWS answered before a launch.

    Attributes:
        head: The head that runs already; None if none does, or AWS was not asked.
        notes: What could not be asked, and what limits the launch without keeping it from working.
        problems: What keeps it from working.
    """

    head: Machine | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchPlan:
    """What is launched for a sweep, what it costs at most, and why it may not start.

    Attributes:
        cluster: Name of the cluster.
        region: Its region.
        head: Instance type of the head.
        runs_since: When the head was launched that runs already; empty if one is launched.
        head_usd_per_hour: The most that the head costs an hour.
        workers: The types of workers, the one that is launched first in front.
        num_workers: The most workers at the same time.
        usd_per_hour: The most that the head and all workers cost an hour.
        budget: What the sweep may spend.
        spent_usd: What it has spent already.
        first_usd: What the head and the first worker need of the budget.
        lives_s: Seconds until the head ends itself at the end of its time to live.
        notes: Where prices come from, what could not be asked, and what is missing.
        refusals: Why the sweep cannot work, or must not start like this; empty if it may.
        unanswered: Why `--yes` alone does not start it; empty if it does.
    """

    cluster: str
    region: str
    head: str
    runs_since: str
    head_usd_per_hour: float
    workers: tuple[WorkerCost, ...]
    num_workers: int
    usd_per_hour: float
    budget: Budget
    spent_usd: float
    first_usd: float
    lives_s: float
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    unanswered: str = ""

    def check(self) -> None:
        """Refuse a launch that cannot work, or whose bound was not accepted.

        Raises:
            ConfigError: With all reasons, the first one first.
        """
        if self.refusals:
            raise ConfigError("; also: ".join(self.refusals))

    def lines(self) -> list[str]:
        """Return the plan in words, one fact a line."""
        workers = ", ".join(
            f"{worker.name} ({worker.instance_type} {worker.market}, at most "
            f"{worker.usd_per_hour:.2f} usd an hour)"
            for worker in self.workers
        )
        if self.runs_since:
            head = f"its head runs since {self.runs_since}"
        else:
            head = f"a head ({self.head} on demand, {self.head_usd_per_hour:.2f} usd an hour)"
        lines = [
            f"cluster {self.cluster} in {self.region}: {head}",
            f"workers: at most {self.num_workers}, the first that AWS has of: {workers}",
            f"together at most {self.usd_per_hour:.2f} usd an hour, "
            f"{24 * self.usd_per_hour:.2f} a day, with disks and addresses; {NOT_COUNTED}",
        ]
        if self.budget.limit_usd is None:
            lines.append("no budget: nothing but the end of the sweep stops the spending")
        else:
            spent = f"{self.spent_usd:.2f} are spent; " if self.spent_usd else ""
            lines.append(f"budget: {self.budget.bound_sentence(self.usd_per_hour)}")
            lines.append(
                f"{spent}the head and the first worker need {self.first_usd:.2f} of them to start "
                "and to stop"
            )
        lines.append(
            f"the head ends itself in {format_duration(self.lives_s)}, also in the middle of a sweep"
        )
        return [*lines, *self.notes]

    def question(self) -> str:
        """Return what is asked before the launch; it names the dollars."""
        if self.budget.limit_usd is not None:
            most = self.budget.limit_usd + self.budget.bound_usd(self.usd_per_hour)
            return f"Start? It costs at most {most:.2f} usd"
        return (
            f"Start without a budget? It costs up to {self.usd_per_hour:.2f} usd an hour, "
            f"{24 * self.usd_per_hour:.2f} a day"
        )

    def values(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        limit_usd = self.budget.limit_usd
        return {
            "cluster": self.cluster,
            "region": self.region,
            "head": self.head,
            "head_runs_since": self.runs_since or None,
            "head_usd_per_hour": round(self.head_usd_per_hour, 4),
            "workers": [asdict(worker) for worker in self.workers],
            "max_workers": self.num_workers,
            "max_usd_per_hour": round(self.usd_per_hour, 4),
            "budget_usd": limit_usd,
            "bound_usd": None
            if limit_usd is None
            else round(self.budget.bound_usd(self.usd_per_hour), 4),
            "spent_usd": round(self.spent_usd, 4),
            "first_machine_usd": round(self.first_usd, 4),
            "head_lives_s": round(self.lives_s),
            "notes": list(self.notes),
            "refusals": list(self.refusals),
            "unanswered": self.unanswered or None,
        }


def ask_account(cluster: ClusterFile, head: Head, *, is_dry_run: bool) -> AccountState:
    """Ask AWS what a launch needs to know; nothing is changed there.

    Args:
        cluster: The cluster.
        head: Its head, with the account.
        is_dry_run: Whether credentials may be missing; what could not be asked is then named.
    """
    account = head.account
    try:
        account.account_id()
        machines = account.machines(cluster.name)
    except CloudError as error:
        reason = str(error).partition(": ")[2] or str(error)
        if not is_dry_run:
            return AccountState(problems=(str(error),))
        return AccountState(
            notes=(
                f"AWS was not asked ({reason}): permissions, quotas, image, storage and machines "
                "that run are not checked",
            )
        )
    running = next((machine for machine in machines if machine.is_head), None)
    notes = list(tight_quotas(cluster, account))
    if running is not None:
        stranger = head.stranger(running)
        leftover = head.unfinished(running)
        if leftover:
            notes.append(leftover)
        problems = [f"{cluster.path}: {stranger}"] if stranger else []
        return AccountState(running, tuple(notes), tuple(problems))
    denied = missing_permissions(cluster, account)
    problems = [*launch_problems(cluster, account)]
    if denied:
        problems.append(
            f"{cluster.path}: these credentials must have {', '.join(denied)}; 'raysent cluster up "
            f"{cluster.path} --print-policies' prints what an operator needs"
        )
    return AccountState(None, tuple(notes), tuple(problems))


def plan_launch(
    cluster: ClusterFile,
    space: SearchSpace,
    settings: FleetSettings,
    state: AccountState,
    *,
    started: datetime.datetime | None = None,
    spent_usd: float = 0.0,
    notes: Sequence[str] = (),
    accept: str = _ACCEPT,
) -> LaunchPlan:
    """Return the plan of a launch.

    Args:
        cluster: The cluster.
        space: The space, with the prices of the machines.
        settings: The part of the cluster that the sweep may use.
        state: What AWS answered.
        started: When the sweep was started that is resumed; None for a new one.
        spent_usd: What it has spent already.
        notes: Where prices come from.
        accept: How a bound is accepted, as it is typed.

    Raises:
        ConfigError: If the deadline has passed.
    """
    now = datetime.datetime.now(datetime.UTC)
    prices = Prices(space.cost)
    budget = space.budget(started or now)
    admission = make_admission(settings, space.cost, budget, prices, slots_of=_one_trial)
    head_usd = prices.of(settings.head).worst_usd_per_hour
    funds = Funds(
        spent_usd + head_usd * space.cost.boot_s / 3600,
        head_usd * space.cost.window_s / 3600,
        head_usd,
        (now - (started or now)).total_seconds(),
    )
    due = admission.with_in_flight(funds)
    workers = _worker_costs(settings, admission)
    plan = LaunchPlan(
        cluster=cluster.name,
        region=cluster.region,
        head=cluster.head["node_config"]["InstanceType"],
        runs_since="" if state.head is None else f"{state.head.launched_at:%Y-%m-%d %H:%M} UTC",
        head_usd_per_hour=head_usd,
        workers=workers,
        num_workers=settings.max_workers,
        usd_per_hour=held_usd_per_hour(cluster, space, num_workers=settings.max_workers),
        budget=budget,
        spent_usd=spent_usd,
        first_usd=due.spent_usd
        - spent_usd
        + due.commitment_usd
        + min(worker.need_usd for worker in workers),
        lives_s=_lives_s(cluster, state.head, now=now, boot_s=space.cost.boot_s),
        notes=(*notes, *state.notes),
        refusals=state.problems,
    )
    refused = [*_refused_budget(plan), *_refused_end(plan, cluster, space, funds)]
    if space.cost.accept_bound:
        return replace(plan, refusals=(*plan.refusals, *refused))
    refused += _refused_bound(plan, accept)
    unanswered = _unanswered(plan, accept)
    return replace(plan, refusals=(*plan.refusals, *refused), unanswered=unanswered)


def _one_trial(_: Mapping[str, float]) -> int:
    """Return the trials on a machine, whose number is not known before the text is read."""
    return 1


def _worker_costs(settings: FleetSettings, admission: Admission) -> tuple[WorkerCost, ...]:
    kinds = sorted(admission.types.values(), key=lambda kind: -kind.priority)
    return tuple(
        WorkerCost(
            kind.name,
            settings.types[kind.name]["labels"][TYPE_LABEL],
            kind.market,
            min(kind.max_machines, settings.max_workers),
            kind.worst_usd_per_hour,
            admission.need_usd(kind),
        )
        for kind in kinds
    )


def _lives_s(
    cluster: ClusterFile, head: Machine | None, *, now: datetime.datetime, boot_s: float
) -> float:
    """Return for how long the head lives after the sweep has begun, by its time to live."""
    if head is not None and head.expires is not None:
        return max(0.0, (head.expires - now).total_seconds())
    return max(0.0, parse_duration(cluster.settings.time_to_live) - boot_s)


def _refused_budget(plan: LaunchPlan) -> list[str]:
    """Return why the budget can never pay one machine; spending only grows."""
    training_usd = plan.budget.training_usd
    if plan.spent_usd + plan.first_usd <= training_usd:
        return []
    worker = min(plan.workers, key=lambda worker: worker.need_usd)
    least_usd = (plan.spent_usd + plan.first_usd) / (1 - plan.budget.reserve)
    spent = f"{plan.spent_usd:.2f} are spent, " if plan.spent_usd else ""
    return [
        f"cost.budget {plan.budget.limit_usd:.2f}usd: must pay for one machine: {spent}one "
        f"{worker.instance_type} needs {worker.need_usd:.2f} usd to start and stop, its head "
        f"{plan.first_usd - worker.need_usd:.2f}; {training_usd:.2f} are for training; at least "
        f"{math.ceil(100 * least_usd) / 100:.2f}usd are needed"
    ]


def _refused_end(
    plan: LaunchPlan, cluster: ClusterFile, space: SearchSpace, funds: Funds
) -> list[str]:
    """Return why the sweep would be ended by its head: its deadline or its time is beyond the head's."""
    if plan.runs_since:
        fix = f"shorten it, or 'raysent cluster down {cluster.path}' first: its head keeps its end"
    else:
        fix = f"shorten it, or raise metadata.raysent.time_to_live in {cluster.path}"
    limits = []
    if plan.budget.deadline_s is not None:
        left_s = plan.budget.deadline_s - funds.elapsed_s
        limits.append((f"cost.deadline {space.cost.deadline}", left_s))
    if space.limits.time is not None and not funds.elapsed_s:
        limits.append((f"limits.time {space.limits.time}", parse_duration(space.limits.time)))
    return [
        f"{name}: must be over before the head ends itself, in {format_duration(plan.lives_s)}; {fix}"
        for name, seconds in limits
        if seconds + GRACE_S > plan.lives_s
    ]


def _refused_bound(plan: LaunchPlan, accept: str) -> list[str]:
    """Return why the bound is too large beside the budget to be called a cap."""
    limit_usd = plan.budget.limit_usd
    if limit_usd is None:
        return []
    bound_usd = plan.budget.bound_usd(plan.usd_per_hour)
    if bound_usd <= _BOUND_PART * limit_usd:
        return []
    return [
        f"cost.budget {limit_usd:.2f}usd: its bound must be at most a quarter of it; the bill may "
        f"exceed it by {bound_usd:.2f}: ten minutes of {plan.usd_per_hour:.2f} usd an hour; give at "
        f"least {math.ceil(100 * bound_usd / _BOUND_PART) / 100:.2f}usd, lower cost.max_hourly, or "
        f"accept it with {accept}"
    ]


def _unanswered(plan: LaunchPlan, accept: str) -> str:
    """Return why `--yes` alone does not start a sweep without a budget; empty if it does."""
    hourly_usd = plan.usd_per_hour
    if plan.budget.limit_usd is not None or hourly_usd <= _UNASKED_USD_PER_HOUR:
        return ""
    return (
        f"cluster: without a budget, --yes starts machines of at most {_UNASKED_USD_PER_HOUR:.0f} "
        f"usd an hour; these cost up to {hourly_usd:.2f} usd an hour, {24 * hourly_usd:.2f} a day; "
        f"give --budget, or {accept}"
    )
