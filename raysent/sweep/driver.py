"""Start a sweep, or go on with one that was interrupted or killed."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysent.artifacts import LOCK_FILE, address_of, is_at_work, portable, refresh, remove
from raysent.autoscaling import want_on_demand
from raysent.config import Override
from raysent.cost import Budget, Funds, Prices, SpotUsd
from raysent.errors import ArtifactError, RaysentError
from raysent.run import RUN_FILE, RunConfig
from raysent.search_space import SearchSpace
from raysent.sweep.conductor import Conductor
from raysent.sweep.fallback import Fallback, training_left_s
from raysent.sweep.fleet import check_files, share, standing
from raysent.sweep.journal import JOURNAL_FILE, Journal, Listener, read_events
from raysent.sweep.layout import Layout
from raysent.sweep.metering import LEDGER_FILE, Afford, Meter, metered, spent_usd
from raysent.sweep.preparation import Progress, prepare_space
from raysent.sweep.ray_tune import run_trials
from raysent.sweep.record import (
    SWEEP_FILE,
    TRIALS_FILE,
    SweepRecord,
    change_limits,
    load_record,
    save_record,
    trial_folder,
    write_trials_table,
)
from raysent.sweep.replay import budget_values
from raysent.sweep.trial import Trial
from raysent.train import quiet_output, ray_session
from raysent.trainer import drop_checkpoints


@dataclass(frozen=True)
class SweepResult:
    """How a sweep, or this sitting of it, ended.

    Attributes:
        folder: The run folder.
        trials: Every trial, in the order in which they were drawn.
        best: The best one; None where none has reported.
        is_interrupted: Whether the user stopped it before its end.
        closed: Why it ended before all its trials were drawn or done; empty where it did not.
        spent_usd: What its machines have cost, over all sittings, before it is judged.
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
    spot: SpotUsd | None = None,
) -> SweepResult:
    """Sweep a space into a new run folder.

    Args:
        record: What is swept, and how.
        folder: The run folder; must not hold a sweep yet.
        listener: Hears every event of the journal as it is written.
        progress: Hears how far the preparation of the corpus is.
        spot: Tells spot prices of today; None where nobody does.

    Raises:
        RaysentError: For a folder that is taken, a corpus that cannot be used, or a cluster that is too small.
    """
    _check_free(folder)
    record = replace(record, started=round(time.time(), 3))
    facts = prepare_space(record.space, progress=progress)
    try:
        save_record(folder, record, facts=facts)
        return _sweep(record, folder, listener, spot)
    except RaysentError:
        _remove_unbegun(folder)
        raise


def resume(
    folder: Path,
    *,
    limits: Sequence[Override] = (),
    listener: Listener | None = None,
    progress: Progress | None = None,
    spot: SpotUsd | None = None,
) -> SweepResult:
    """Go on with the sweep of a run folder; a finished trial is never trained again.

    Args:
        folder: The run folder.
        limits: Another budget or deadline, kept from now on; what was spent stays spent.
        listener: Hears every event of the journal as it is written.
        progress: Hears how far the preparation of the corpus is.
        spot: Tells spot prices of today; None where nobody does.

    Raises:
        RaysentError: If the folder holds no sweep, another process is at work on it, or its files are damaged.
    """
    record = change_limits(folder, limits) if limits else load_record(folder)
    prepare_space(record.space, progress=progress)
    return _sweep(record, folder, listener, spot)


@contextlib.contextmanager
def judged(record: SweepRecord, folder: Path, *, spot: SpotUsd | None = None) -> Iterator[Afford]:
    """Pay for machines while a sweep is judged inside the block: a cluster's with prices of their own, or this one.

    The block gets a function to call now and then, which raises BudgetError once the budget and its bound are spent.

    Args:
        record: The sweep.
        folder: Its run folder.
        spot: Tells spot prices of today; None where nobody does.
    """
    cost = record.space.cost
    if record.address is None or not cost.machines:
        with metered(folder, cost, what="judging") as afford:
            yield afford
        return
    # Workers stand idle for a while yet.
    prices = Prices(cost, spot=spot)
    with (
        quiet_output(),
        ray_session(record.address),
        metered(folder, cost, what="judging", nodes=standing, prices=prices) as afford,
    ):
        yield afford


def _check_free(folder: Path) -> None:
    """Refuse a folder that is in use, before anything takes time.

    Raises:
        ArtifactError: If a sweep, a training or a file stands there.
    """
    where = address_of(folder)
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{where}: a file stands where the run folder is needed; name another --run")
    if (folder / SWEEP_FILE).exists() or (folder / JOURNAL_FILE).exists():
        raise ArtifactError(
            f"{where}: holds a sweep already; go on with 'raysent resume {where}' or name another --run"
        )
    if (folder / RUN_FILE).exists():
        raise ArtifactError(f"{where}: holds a training; name another --run")


def _remove_unbegun(folder: Path) -> None:
    """Remove what a sweep left that came to no trial, so that its folder can be named again."""
    with contextlib.suppress(RaysentError, OSError):
        if is_at_work(folder) or any(event["event"] == "suggested" for event in read_events(folder)):
            return
        for name in (SWEEP_FILE, JOURNAL_FILE, LEDGER_FILE, TRIALS_FILE, LOCK_FILE):
            remove(folder / name)
        folder.rmdir()  # refuses where anything else is in it


def _sweep(record: SweepRecord, folder: Path, listener: Listener | None, spot: SpotUsd | None) -> SweepResult:
    """Rebuild the conductor from the journal, and train until nothing is left."""
    space = record.space
    budget, prices = _budget(record), Prices(space.cost, spot=spot)
    journal = Journal(folder, listener=listener)
    try:
        conductor = Conductor(space, seed=record.seed, write=journal.write, past=journal.past, budget=budget)
        interrupted = False
        if not conductor.is_complete:
            with quiet_output(), ray_session(record.address):
                if record.address is not None:
                    check_files(space, folder)
                plan = share(space, num_trials=_num_left(conductor), prices=prices)
                with _meter(record, folder, prices) as meter:
                    interrupted = _sit(record, folder, conductor, meter, journal, plan)
                    refresh(folder)  # with what other machines trained; they stand there meanwhile
                    if conductor.closed and not interrupted:
                        conductor.abandon()
                    journal.write("interrupted" if interrupted else "completed", reason=conductor.closed)
        for trial in conductor.trials.values():
            if trial.status == "stopped":
                # It will never go on; what it needed for that is most of its folder.
                drop_checkpoints(trial_folder(folder, trial.number))
        write_trials_table(folder, conductor)
        trials = list(conductor.trials.values())
        return SweepResult(folder, trials, conductor.best, interrupted, conductor.closed, spent_usd(folder))
    finally:
        journal.close()


def _sit(record: SweepRecord, folder: Path, conductor: Conductor, meter: Meter, journal: Journal, plan: Layout) -> bool:
    """Train in this sitting; returns whether the user interrupted."""
    space = record.space
    spent_s = sum(_sitting_lengths(folder))
    dearest, budget = meter.prices.dearest, _budget(record)
    meter.on_tick = _fallback(conductor, budget, plan)
    journal.write(
        "session",
        trials=space.limits.trials,
        concurrent=plan.concurrent,
        spent_s=round(spent_s, 1),
        spent_usd=round(meter.ledger.spent_usd, 6),
        usd_per_hour=dearest.usd_per_hour,
        price=dearest.source,
        budget=budget_values(budget),
    )
    return run_trials(conductor, plan, describe=_describer(space, folder), is_over=_clock(space, spent_s), meter=meter)


def _fallback(conductor: Conductor, budget: Budget, plan: Layout) -> Callable[[Funds], object]:
    """Return what looks whether machines on demand must come, where machines of both markets may."""
    cost, limits = conductor.space.cost, conductor.space.limits
    if not cost.machines or cost.market != "auto" or budget.deadline_s is None:
        return lambda _: None
    fallback = Fallback(budget, boot_s=cost.boot_s, tell=want_on_demand)
    want_on_demand(False)  # another sweep on this cluster may have asked for them

    def look(funds: Funds) -> None:
        to_draw = 0 if conductor.exhausted or conductor.closed else limits.trials - len(conductor.trials)
        left_s = training_left_s(conductor.trials.values(), num_to_draw=to_draw, num_slots=plan.concurrent)
        fallback.look(funds, left_s=left_s)

    return look


def _budget(record: SweepRecord) -> Budget:
    """Return what a sweep may spend, its deadline counted from its beginning."""
    return record.space.cost.for_sweep(datetime.datetime.fromtimestamp(record.started, datetime.UTC))


def _num_left(conductor: Conductor) -> int:
    """Return how many trials are still to be started, at least one."""
    begun = sum(trial.status != "waiting" for trial in conductor.trials.values())
    return max(1, conductor.space.limits.trials - begun)


def _meter(record: SweepRecord, folder: Path, prices: Prices) -> Meter:
    """Return the meter of a sweep's machines: every node of the cluster that it runs on."""
    elapsed_s = max(0.0, time.time() - record.started)
    return Meter(folder, record.space.cost, nodes=standing, prices=prices, elapsed_s=elapsed_s)


def _clock(space: SearchSpace, spent_s: float) -> Callable[[], bool]:
    """Return a function that says whether the sweep's time is over; time between sittings does not count."""
    limit = space.limits.time_s
    begun = time.monotonic() - spent_s
    return lambda: limit is not None and time.monotonic() - begun > limit


def _sitting_lengths(folder: Path) -> list[float]:
    """Return the seconds of every sitting that the journal tells of, killed ones up to their last event."""
    lengths: list[float] = []
    begun = 0.0
    for event in read_events(folder):
        if event["event"] == "session":
            begun = event["time"]
            lengths.append(0.0)
        elif lengths:
            lengths[-1] = event["time"] - begun
    return lengths


def _describer(space: SearchSpace, folder: Path) -> Callable[[Trial], dict[str, Any]]:
    """Return what a trial's process needs to know."""

    def describe(trial: Trial) -> dict[str, Any]:
        return {
            "trial": trial.name,
            "run": trial_config(space, trial).model_dump(mode="json"),
            "interruptions_per_hour": space.cost.interruptions_per_hour,
            "folder": portable(trial_folder(folder, trial.number)),
        }

    return describe


def trial_config(space: SearchSpace, trial: Trial) -> RunConfig:
    """Return a trial's run: what was drawn, and a seed of its own unless the space names one."""
    config = space.config(trial.params)
    names_seed = "seed" in trial.params or "seed" in space.document.values.get("base", {})
    return config if names_seed else config.model_copy(update={"seed": trial.seed})
