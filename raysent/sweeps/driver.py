"""Start a sweep, or resume one that was interrupted or killed."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from raysent.config import Override
from raysent.cost import Budget, CostConfig, Funds, MachineTime, Prices, SpotUsd
from raysent.data.corpus import shared_cache
from raysent.errors import ArtifactError, ConfigError, DataError, RaysentError
from raysent.parallel import Progress
from raysent.storage import address_of, is_locked, refresh, remove, remove_folder, to_uri
from raysent.storage.layout import (
    JOURNAL_FILE,
    LEDGER_FILE,
    LOCK_FILE,
    MODEL_FILE,
    MODEL_REPORT_FILE,
    PREPARED_FOLDER,
    RUN_FILE,
    SWEEP_FILE,
    TRIALS_FILE,
    WRITTEN_FILE,
)
from raysent.sweeps.controller import SweepController
from raysent.sweeps.cost_tracker import CheckBudget, CostTracker, ListMachines, metered, spent_usd
from raysent.sweeps.integrity import note_written, verify_run
from raysent.sweeps.journal import Journal, Listener, read_events, session_lengths
from raysent.sweeps.journal_replay import budget_values
from raysent.sweeps.machines import Layout, alive_nodes, check_files, share
from raysent.sweeps.preparation import prepare_space
from raysent.sweeps.ray_tune import check_callbacks, retrain_trials, run_trials
from raysent.sweeps.record import (
    SweepRecord,
    change_limits,
    check_versions,
    load_record,
    save_record,
    trial_folder,
    write_trials_table,
)
from raysent.sweeps.retraining import retrained_folder
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trial import ENDED, Trial
from raysent.training.checkpoint import drop_checkpoints
from raysent.training.outcome import load_model_report
from raysent.training.ray_session import output_to_stderr, ray_session
from raysent.training.retraining import next_seed, retrained_config
from raysent.training.run import RunConfig, load_run

# What is left may take longer than it looks.
MARGIN = 1.25


def training_left_s(trials: Iterable[Trial], *, num_to_draw: int, num_slots: int) -> float | None:
    """Return the seconds that all training left takes when nothing is interrupted; None while nothing has reported.

    Args:
        trials: Those that are known.
        num_to_draw: Trials that are still to be drawn; they fare as those that have ended, else they go to the end.
        num_slots: Trials at once.
    """
    reports, seconds, whole, ended, num_ended = 0, 0.0, 0, 0, 0
    alive: list[int] = []
    for trial in trials:  # in one pass: it is called at every poll, with thousands of trials
        reports += trial.index
        seconds += trial.seconds
        whole = max(whole, trial.num_reports)
        if trial.status in ENDED:
            ended += trial.index
            num_ended += 1
        else:
            alive.append(trial.index)
    if not reports:
        return None
    mean = ended / num_ended if num_ended else whole
    left = [whole - index for index in alive]
    total = (sum(left) + num_to_draw * mean) / num_slots
    # However many run at once, the longest one has to come to its end.
    return seconds / reports * max(total, max(left, default=0))


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

    def update(self, funds: Funds, *, num_trials: int, is_urgent: bool) -> str:
        """Admit machines for the trials that have work; returns why fewer come than are needed."""

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


@dataclass(frozen=True)
class SweepResult:
    """How a sweep, or this session of it, ended.

    Attributes:
        folder: The run folder.
        trials: Every trial, in the order in which they were drawn.
        best: The best one; None where none has reported.
        is_interrupted: Whether the user stopped it before its end.
        closed: Why it ended before all its trials were drawn or done; empty where it did not.
        spent_usd: What its machines have cost in all sessions, without evaluation.
    """

    folder: Path
    trials: list[Trial]
    best: Trial | None
    is_interrupted: bool
    closed: str = ""
    spent_usd: float = 0.0


def start(
    record: SweepRecord,
    folder: Path,
    *,
    listener: Listener | None = None,
    progress: Progress | None = None,
    on_prepared: Callable[[Mapping[str, Any]], object] = lambda _: None,
    spot: SpotUsd | None = None,
    make_fleet: MakeFleet = lambda *_: None,
    callbacks: Sequence[Any] = (),
) -> SweepResult:
    """Sweep a space into a new run folder.

    Args:
        record: What is swept, and how.
        folder: The run folder; must not hold a sweep yet.
        listener: Called with every event of the journal as it is written.
        progress: Called with the progress of the corpus's preparation.
        on_prepared: Called before Ray starts with what `prepare_space` returned.
        spot: Source of current spot prices; None without one.
        make_fleet: Makes the machines of a cluster that grows.
        callbacks: Callbacks of Ray Tune, which see Tune's trials; they decide nothing.

    Raises:
        RaysentError: For a folder that is taken, a corpus that cannot be used, or a cluster that is too small.
    """
    check_free(folder)
    guarded = check_callbacks(callbacks)
    record = replace(record, started=round(time.time(), 3))
    try:
        facts = _prepared(record, folder, progress)
        save_record(folder, replace(record, facts=facts))
        on_prepared(facts)
        return _sweep(record, folder, listener, spot, make_fleet, guarded)
    except RaysentError:
        _remove_unbegun(folder)
        raise


def resume(  # noqa: PLR0913 - what a session may change
    folder: Path,
    *,
    limits: Sequence[Override] = (),
    address: str | None = None,
    accept_versions: bool = False,
    listener: Listener | None = None,
    progress: Progress | None = None,
    spot: SpotUsd | None = None,
    make_fleet: MakeFleet = lambda *_: None,
    callbacks: Sequence[Any] = (),
) -> SweepResult:
    """Resume the sweep of a run folder; a finished trial is never trained again.

    Args:
        folder: The run folder.
        limits: Another budget or deadline, kept from now on; what was spent stays spent.
        address: Another address of the sweep's cluster, kept from now on.
        accept_versions: Continue with versions of other numerics, which are recorded from now on.
        listener: Called with every event of the journal as it is written.
        progress: Called with the progress of the corpus's preparation.
        spot: Source of current spot prices; None without one.
        make_fleet: As for `start`.
        callbacks: As for `start`.

    Raises:
        RaysentError: If the folder holds no sweep, another process is at work on it, or its files are damaged.
    """
    guarded = check_callbacks(callbacks)
    record = change_limits(folder, limits) if limits else load_record(folder)
    record = check_versions(folder, record, is_accepted=accept_versions)
    if address is not None and address != record.address:
        if record.address is None:
            raise ConfigError(f"--address {address}: must be given for a sweep on a cluster; this one ran on a machine")
        record = replace(record, address=address)
        save_record(folder, record)
    _check_rows(record, _prepared(record, folder, progress), folder)
    return _sweep(record, folder, listener, spot, make_fleet, guarded)


def _check_rows(record: SweepRecord, facts: Mapping[str, Any], folder: Path) -> None:
    """Refuse to continue with trials that are ranked by other rows of tasks than those before them.

    Raises:
        DataError: If the rows are others.
    """
    before, now = (one.get("pool", {}).get("hash") for one in (record.facts or {}, facts))
    if record.space.metric == "downstream" and None not in (before, now) and before != now:
        raise DataError(
            f"{address_of(folder)}: its trials are ranked by other rows than the tasks have now: a table changed, or "
            "an older version of raysent divided it otherwise; restore the table, or begin another sweep"
        )


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
    record: SweepRecord, folder: Path, *, spot: SpotUsd | None = None, make_fleet: MakeFleet = lambda *_: None
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
    prices, budget = Prices(cost, spot=spot), _budget(record)
    fleet = None if record.address is None else make_fleet(cost, budget, prices, _EVALUATIONS, record.started)
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
        listed = _list_of(fleet)
        on_tick: Callable[[Funds], object] = (lambda _: None) if fleet is None else (lambda _: fleet.keep())
        check_budget = stack.enter_context(
            metered(folder, cost, what="evaluation", nodes=alive_nodes, prices=prices, machines=listed, on_tick=on_tick)
        )
        yield EvaluationMachines(check_budget, address, fleet)


def _prepared(record: SweepRecord, folder: Path, progress: Progress | None) -> dict[str, Any]:
    """Prepare the text of a space; the first machine of a cluster shares it with the others through the run folder."""
    with shared_cache(_shared_text(record, folder), publishes_all=True):
        return prepare_space(record.space, progress=progress, is_local=record.address is None)


def _shared_text(record: SweepRecord, folder: Path) -> str | None:
    """Return where the machines of a sweep share prepared text; None for a sweep on this machine."""
    return None if record.address is None else to_uri(folder / PREPARED_FOLDER)


def check_free(folder: Path) -> None:
    """Refuse a folder that is in use, before anything takes time.

    Raises:
        ArtifactError: If a sweep, a training or a file stands there.
    """
    where = address_of(folder)
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{where}: a file stands where the run folder is needed; name another --run")
    if (folder / SWEEP_FILE).exists() or (folder / JOURNAL_FILE).exists():
        raise ArtifactError(
            f"{where}: holds a sweep already; continue with 'raysent resume {where}' or name another --run"
        )
    if (folder / RUN_FILE).exists():
        raise ArtifactError(f"{where}: holds a training; name another --run")


def _remove_unbegun(folder: Path) -> None:
    """Remove what a sweep left that came to no trial and no cost, so that its folder can be named again."""
    with contextlib.suppress(RaysentError, OSError):
        if is_locked(folder) or any(event["event"] == "suggested" for event in read_events(folder)):
            return
        if spent_usd(folder):  # it counts, whatever follows
            return
        for name in (SWEEP_FILE, JOURNAL_FILE, LEDGER_FILE, WRITTEN_FILE, TRIALS_FILE, LOCK_FILE):
            remove(folder / name)
        remove_folder(folder / PREPARED_FOLDER)
        folder.rmdir()  # refuses where anything else is in it


def _sweep(
    record: SweepRecord,
    folder: Path,
    listener: Listener | None,
    spot: SpotUsd | None,
    make_fleet: MakeFleet,
    callbacks: Sequence[Any],
) -> SweepResult:
    """Rebuild the controller from the journal, and train until nothing is left."""
    space = record.space
    budget, prices = _budget(record), Prices(space.cost, spot=spot)
    workers = contextlib.ExitStack()
    journal = Journal(folder, listeners=[] if listener is None else [listener])
    try:
        verify_run(folder)
        controller = SweepController(
            space, seed=record.seed, write=journal.write, past=journal.past, budget=budget, one_line=journal.one_line
        )
        interrupted = False
        if not controller.is_complete or controller.has_retraining:
            again = f"raysent resume {shlex.quote(address_of(folder))}"
            with output_to_stderr(), ray_session(record.address, how_to_continue=again):
                if record.address is not None:
                    check_files(space, folder)
                plan = share(space, num_trials=_num_left(controller), prices=prices)
                fleet = None if record.address is None else make_fleet(space.cost, budget, prices, plan, record.started)
                if fleet is not None:
                    workers.callback(fleet.close)  # whatever happens, unless the evaluation takes them over
                with _meter(record, folder, prices, journal, fleet) as cost_tracker:
                    journal.follow(cost_tracker.written)
                    _connect(fleet, cost_tracker, controller, budget, listener)
                    interrupted = _sit(record, folder, controller, cost_tracker, journal, plan, callbacks)
                    _hand_over(fleet)
                    refresh(folder)  # with what other machines trained; they stand there meanwhile
                    if controller.closed and not interrupted:
                        controller.abandon(partial(_metrics_of_model, folder))
                    if not interrupted:
                        interrupted = _retrain(record, folder, controller, cost_tracker)
                    _hand_over(fleet)
                # After the last line of the ledger, so that the journal has seen all of it.
                journal.write("interrupted" if interrupted else "completed", reason=controller.why_ended)
        note_written(folder)
        if record.address is not None and not interrupted:
            remove_folder(folder / PREPARED_FOLDER)
        for trial in controller.trials.values():
            if trial.status == "stopped":
                # It is never resumed; its checkpoints are most of its folder.
                drop_checkpoints(trial_folder(folder, trial.number))
        write_trials_table(folder, space, controller.trials.values())
        if not interrupted:
            workers.pop_all()  # they stay for the evaluation, which ends them
        trials = list(controller.trials.values())
        return SweepResult(folder, trials, controller.best, interrupted, controller.why_ended, spent_usd(folder))
    finally:
        workers.close()
        journal.close()


def _sit(
    record: SweepRecord,
    folder: Path,
    controller: SweepController,
    cost_tracker: CostTracker,
    journal: Journal,
    plan: Layout,
    callbacks: Sequence[Any],
) -> bool:
    """Train in this session; return whether the user interrupted."""
    space = record.space
    earlier_s = sum(session_lengths(read_events(folder)))
    most_expensive, budget = cost_tracker.prices.most_expensive, _budget(record)
    journal.write(
        "session",
        trials=space.limits.trials,
        concurrent=plan.concurrent,
        earlier_s=round(earlier_s, 1),
        spent_usd=round(cost_tracker.ledger.spent_usd, 6),
        usd_per_hour=most_expensive.usd_per_hour,
        price=most_expensive.source,
        budget=budget_values(budget),
    )
    if controller.is_complete:  # only trainings on are left
        return False
    return run_trials(
        controller,
        plan,
        describe=_describer(record, folder),
        is_over=_clock(space, earlier_s),
        cost_tracker=cost_tracker,
        callbacks=callbacks,
    )


def _retrain(record: SweepRecord, folder: Path, controller: SweepController, cost_tracker: CostTracker) -> bool:
    """Train the best trials on, if the space wants it; return whether the user interrupted."""
    space, prepared = record.space, _shared_text(record, folder)
    num_left = len(controller.retraining.to_do(controller.trials))
    if not num_left:
        return False

    def describe(trial: Trial) -> dict[str, Any]:
        config = retraining_config(space, folder, trial)
        place = retrained_folder(folder, trial.number)
        if (place / RUN_FILE).exists() and load_run(place).key != config.key:
            remove_folder(place)  # the sweep was moved since, so that its weights have another name
        return {
            "trial": place.name,
            "run": config.model_dump(mode="json"),
            "interruptions_per_hour": space.cost.interruptions_per_hour,
            "models_at_reports": "none",
            "folder": to_uri(place),
            "prepared": prepared,
        }

    plan = share(space, num_trials=num_left, prices=cost_tracker.prices)
    interrupted = retrain_trials(controller, plan, describe=describe, cost_tracker=cost_tracker)
    refresh(folder)
    return interrupted


def _connect(
    fleet: Fleet | None,
    cost_tracker: CostTracker,
    controller: SweepController,
    budget: Budget,
    listener: Listener | None,
) -> None:
    """Let the fleet admit machines now and at every poll; the listener receives why trials wait for machines."""
    if fleet is None:
        return
    cost, limits = controller.space.cost, controller.space.limits
    shown = [""]

    def update(funds: Funds) -> None:
        trials = controller.trials.values()
        num_running = sum(trial.status == "running" for trial in trials) + controller.retraining.num_running
        to_draw = 0 if controller.exhausted or controller.closed else limits.trials - len(trials)
        left_s = None
        if budget.deadline_s is not None:
            left_s = training_left_s(trials, num_to_draw=to_draw, num_slots=cost_tracker.num_slots)
        waiting = fleet.update(
            funds,
            num_trials=num_running + controller.num_to_start,
            is_urgent=is_urgent(budget, funds, left_s=left_s, boot_s=cost.boot_s) and cost.market == "auto",
        )
        if waiting != shown[0] and listener is not None:
            shown[0] = waiting
            listener({"event": "waiting", "reason": waiting})

    cost_tracker.with_in_flight = fleet.with_in_flight
    cost_tracker.on_tick = update
    cost_tracker.tick_now()


def _hand_over(fleet: Fleet | None) -> None:
    """Let the machines of a fleet live while nothing is polled."""
    if fleet is not None:
        fleet.hand_over()


def _metrics_of_model(folder: Path, trial: Trial) -> Mapping[str, float | None] | None:
    """Return the metrics of the report whose model a trial has, or None without a model."""
    place = trial_folder(folder, trial.number)
    if (place / MODEL_FILE).is_file() and not (place / MODEL_REPORT_FILE).exists():
        return trial.metrics  # of a version that saved the model of every report
    report = load_model_report(place)
    return None if report is None else report.metrics


def _budget(record: SweepRecord) -> Budget:
    """Return what a sweep may spend, its deadline counted from its beginning."""
    return record.space.cost.for_sweep(datetime.datetime.fromtimestamp(record.started, datetime.UTC))


def _num_left(controller: SweepController) -> int:
    """Return how many trials are still to be started, at least one."""
    begun = sum(trial.status != "waiting" for trial in controller.trials.values())
    return max(1, controller.space.limits.trials - begun)


def _meter(record: SweepRecord, folder: Path, prices: Prices, journal: Journal, fleet: Fleet | None) -> CostTracker:
    """Return the meter of a sweep's machines: the cloud's list of them, or every node of the cluster."""
    elapsed_s = max(0.0, time.time() - record.started)
    return CostTracker(
        folder,
        record.space.cost,
        nodes=alive_nodes,
        prices=prices,
        machines=_list_of(fleet),
        elapsed_s=elapsed_s,
        num_events=lambda: journal.num_lines,
    )


def _list_of(fleet: Fleet | None) -> ListMachines | None:
    return None if fleet is None or not fleet.has_list else fleet.machines


def _clock(space: SearchSpace, earlier_s: float) -> Callable[[], bool]:
    """Return a function that returns whether the sweep's time is over; time between sessions does not count."""
    limit = space.limits.time_s
    begun = time.monotonic() - earlier_s
    return lambda: limit is not None and time.monotonic() - begun > limit


def _describer(record: SweepRecord, folder: Path) -> Callable[[Trial], dict[str, Any]]:
    """Return what a trial's process needs to know."""
    space, prepared, budget = record.space, _shared_text(record, folder), _budget(record)
    may_halt = budget.limit_usd is not None or budget.deadline_s is not None

    def describe(trial: Trial) -> dict[str, Any]:
        return {
            "trial": trial.name,
            "run": trial_config(space, trial).model_dump(mode="json"),
            "interruptions_per_hour": space.cost.interruptions_per_hour,
            # Where the money may end between two reports, the model of one has to be there.
            "models_at_reports": "some" if may_halt else "none",
            "folder": to_uri(trial_folder(folder, trial.number)),
            "memory_bytes": space.limits.memory_bytes,
            "prepared": prepared,
        }

    return describe


def trial_config(space: SearchSpace, trial: Trial) -> RunConfig:
    """Return a trial's run: what was drawn, and a seed of its own unless the space names one."""
    config = space.config(trial.params)
    names_seed = "seed" in trial.params or "seed" in space.document.values.get("base", {})
    return config if names_seed else config.model_copy(update={"seed": trial.seed})


def retraining_config(space: SearchSpace, folder: Path, trial: Trial) -> RunConfig:
    """Return the run that trains a trial on from its weights."""
    epochs = space.evaluation.retrain_epochs
    overrides = [] if epochs is None else [Override("training.epochs", epochs, "evaluation.retrain_epochs")]
    config = trial_config(space, trial)
    return retrained_config(
        config, trial_folder(folder, trial.number), overrides=overrides, seed=next_seed(config, from_scratch=False)
    )
