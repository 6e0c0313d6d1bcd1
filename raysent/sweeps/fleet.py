"""The machines of a sweep's cluster: those that come while it trains, and those that evaluate its best trials."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raysent.cost import Budget, CostConfig, Funds, MachineTime, Prices, SpotUsd
from raysent.errors import ConfigError
from raysent.registry import Registry, by_table
from raysent.sweeps.controller import MARGIN, SweepController
from raysent.sweeps.cost_tracker import CheckBudget, CostTracker, ListMachines, metered
from raysent.sweeps.journal import Listener
from raysent.sweeps.layout import Layout
from raysent.sweeps.machines import alive_nodes
from raysent.sweeps.record import SweepRecord
from raysent.sweeps.remaining import longest_left_s, training_left_s
from raysent.training.ray_session import output_to_stderr, ray_session


def is_urgent(budget: Budget, funds: Funds, *, left_s: float | None, boot_s: float) -> bool:
    """Return whether the deadline leaves no time for interruptions, so that on-demand machines come first.

    Spot machines cost less as long as there is slack. When what is left to train would just fit into what is left of
    the deadline, no machine may be taken away any more.

    Source: Wu et al. 2024, "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI (the safety net).
    Differs: what is left to train is an estimate here, for trials are stopped early; a margin stands for its error.

    Args:
        budget: Has the deadline.
        funds: Has the time since the sweep started.
        left_s: Seconds of training that are left; None if that is unknown.
        boot_s: How long a machine takes to start.
    """
    if budget.deadline_s is None or left_s is None:
        return False
    slack_s = budget.deadline_s - budget.window_s - funds.elapsed_s
    return slack_s < MARGIN * left_s + 2 * boot_s


class Fleet(Protocol):
    """The machines of a cluster that grows: `machines` and `update` at every poll, then `hand_over` or `close`."""

    @property
    def has_list(self) -> bool:
        """Whether the cloud has a list of machines."""

    def machines(self) -> Mapping[str, MachineTime] | None:
        """Return the machines that are charged to the sweep; None before the cloud's first answer."""

    def with_in_flight(self, funds: Funds) -> Funds:
        """Return funds whose commitment includes the machines in flight."""

    def update(
        self, funds: Funds, *, num_trials: int, is_urgent: bool, tail_s: float | None
    ) -> str:
        """Admit machines for the trials that have work; returns why fewer come than are needed.

        `tail_s` are the seconds that the longest trial may take once none is left to start: fewer machines stay then.
        """

    @property
    def stuck(self) -> str:
        """Why no machine will ever come; empty while one may."""

    def keep(self, num_tasks: int | None = None) -> None:
        """Admit no more machines, and keep as many of those that run as so many tasks of one core need.

        Args:
            num_tasks: None keeps what the last call kept.
        """

    def hand_over(self) -> None:
        """Let the machines live until the evaluation takes them over, with `keep` of another fleet."""

    def close(self) -> None:
        """Admit no more machines, and release the workers."""


# Section `cost`, budget, prices, layout, Unix seconds of the start -> the fleet; None on a cluster that does not grow.
MakeFleet = Callable[[CostConfig, Budget, Prices, Layout, float], Fleet | None]


class Cloud(Protocol):
    """A cloud that sweeps may run in: an entry of a table `CLOUDS`, which the group `raysent.fleets` names."""

    def spot_prices(self, region: str) -> SpotUsd:
        """Return what asks for the prices of spot machines in a region."""

    def make_fleet(
        self, cost: CostConfig, budget: Budget, prices: Prices, layout: Layout, started: float
    ) -> Fleet | None:
        """Return the machines of the cluster that this process is part of; None if it does not grow in this cloud."""

    def note_waiting(self, folder: Path, reason: str) -> None:
        """Store in the run folder of a submitted sweep why its trials wait, for what follows it."""


CLOUDS: Registry[Cloud] = Registry("cloud", read=by_table("CLOUDS"), plural="fleets")


def spot_prices(region: str | None) -> SpotUsd | None:
    """Return what asks a cloud for spot prices; None without a region or a cloud."""
    if not region:
        return None
    return next((cloud.spot_prices(region) for cloud in CLOUDS.values()), None)


def make_fleet(
    cost: CostConfig, budget: Budget, prices: Prices, layout: Layout, started: float
) -> Fleet | None:
    """Return the machines of the cluster that this process is part of; None on one that does not grow."""
    for cloud in CLOUDS.values():
        fleet = cloud.make_fleet(cost, budget, prices, layout, started)
        if fleet is not None:
            return fleet
    return None


def note_waiting(folder: Path, reason: str) -> None:
    """Store in the run folder of a submitted sweep why its trials wait."""
    for cloud in CLOUDS.values():
        cloud.note_waiting(folder, reason)


def connect(
    fleet: Fleet,
    cost_tracker: CostTracker,
    controller: SweepController,
    budget: Budget,
    listener: Listener,
) -> None:
    """Let the fleet admit machines now and at every poll; the listener receives why trials wait for machines."""
    cost, limits = controller.space.cost, controller.space.limits
    shown = [""]

    def update(funds: Funds) -> None:
        trials = controller.trials.values()
        num_running = sum(trial.status == "running" for trial in trials)
        to_draw = 0 if controller.exhausted or controller.closed else limits.trials - len(trials)
        left_s = None
        if budget.deadline_s is not None:
            left_s = training_left_s(trials, num_to_draw=to_draw, num_slots=cost_tracker.num_slots)
        waiting = fleet.update(
            funds,
            num_trials=num_running + controller.num_to_start,
            tail_s=None if controller.num_to_start else longest_left_s(trials),
            is_urgent=is_urgent(budget, funds, left_s=left_s, boot_s=cost.boot_s)
            and cost.market == "auto",
        )
        if waiting != shown[0]:
            shown[0] = waiting
            listener({"event": "waiting", "reason": waiting})
        if fleet.stuck:
            controller.halt(fleet.stuck, funds)

    update(cost_tracker.funds())
    cost_tracker.with_in_flight = fleet.with_in_flight
    cost_tracker.on_tick = update


def list_of(fleet: Fleet | None) -> ListMachines | None:
    """Return the cloud's own list of the machines of a fleet; None where there is none."""
    return None if fleet is None or not fleet.has_list else fleet.machines


@dataclass(frozen=True)
class EvaluationMachines:
    """The machines that evaluate a sweep's best trials: this one, and the nodes of the sweep's cluster.

    Attributes:
        check_budget: To be called now and then; raises BudgetError at the step that would spend the budget.
        address: The cluster; None for this machine alone.
        fleet: The machines of a cluster that grows; None on any other.
    """

    check_budget: CheckBudget
    address: str | None = None
    fleet: Fleet | None = None

    def prepare(self, num_tasks: int) -> None:
        """Keep the workers that so many tasks need, and release the others; call it while no task runs."""
        if self.fleet is not None:
            self.fleet.keep(num_tasks)

    def check_nodes(self) -> None:
        """Raise BudgetError once the nodes cost too much.

        The head of a cluster that grows can continue without its workers, which leave it half of the reserve.
        """
        self.check_budget(leaves_rest=self.fleet is not None)

    def release(self) -> None:
        """Release the workers: what is left is done on this machine."""
        if self.fleet is not None:
            self.fleet.close()


# How workers of a cluster that grows are shared by evaluations: a core each.
_EVALUATIONS = Layout(1, 1, 1, 0.0, is_nested=False)


@contextlib.contextmanager
def evaluation_machines(
    record: SweepRecord,
    folder: Path,
    *,
    spot: SpotUsd | None = None,
    make_fleet: MakeFleet = lambda *_: None,
) -> Iterator[EvaluationMachines]:
    """Connect to a sweep's cluster while its best trials are evaluated, and bill all of its nodes, or this machine.

    The workers of a cluster that grows stay for the evaluation, which launches no others; they end with the block.

    Args:
        record: The sweep.
        folder: Its run folder.
        spot: Source of current spot prices; None without one.
        make_fleet: Makes the machines of a cluster that grows.

    Raises:
        ConfigError: If machines of the cluster are billed, and it does not answer.
    """
    cost = record.space.cost
    prices = Prices(cost, spot=spot)
    fleet = (
        None
        if record.address is None
        else make_fleet(cost, record.budget, prices, _EVALUATIONS, record.started)
    )
    with contextlib.ExitStack() as stack:
        if fleet is not None:
            stack.callback(fleet.close)
        address = record.address
        try:
            if address is not None:
                stack.enter_context(output_to_stderr())
                stack.enter_context(ray_session(address))
        except ConfigError:
            if cost.machines:
                raise
            address = None  # a cluster of the user's own that has ended: the models are here
        if address is None:
            yield EvaluationMachines(stack.enter_context(metered(folder, cost, what="evaluation")))
            return
        listed = list_of(fleet)
        on_tick: Callable[[Funds], object] = (
            (lambda _: None) if fleet is None else (lambda _: fleet.keep())
        )
        check_budget = stack.enter_context(
            metered(
                folder,
                cost,
                what="evaluation",
                nodes=alive_nodes,
                prices=prices,
                machines=listed,
                on_tick=on_tick,
            )
        )
        yield EvaluationMachines(check_budget, address, fleet)
