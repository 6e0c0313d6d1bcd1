"""Start a sweep, or go on with one that was interrupted or killed."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from raysent.artifacts import LOCK_FILE, address_of, is_at_work, portable, refresh, remove
from raysent.config import Override
from raysent.cost import Budget
from raysent.errors import ArtifactError, RaysentError
from raysent.run import RUN_FILE, RunConfig
from raysent.search_space import SearchSpace
from raysent.sweep.conductor import Conductor
from raysent.sweep.journal import JOURNAL_FILE, Journal, Listener, read_events
from raysent.sweep.metering import LEDGER_FILE, Meter, spent_usd
from raysent.sweep.preparation import Progress, prepare_space
from raysent.sweep.ray_tune import Layout, Machines, layout, run_trials
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
from raysent.sweep.sharing import trials_per_gpu
from raysent.sweep.trial import Trial
from raysent.train import cpus_of_largest_node, node_name, quiet_output, ray_session
from raysent.trainer import drop_checkpoints

# On a cluster that grows: the most that it can grow to, as `{"CPU": 32, "GPU": 8}`, told by who brought it up.
CAPACITY_VARIABLE = "RAYSENT_CAPACITY"


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
    record: SweepRecord, folder: Path, *, listener: Listener | None = None, progress: Progress | None = None
) -> SweepResult:
    """Sweep a space into a new run folder.

    Args:
        record: What is swept, and how.
        folder: The run folder; must not hold a sweep yet.
        listener: Hears every event of the journal as it is written.
        progress: Hears how far the preparation of the corpus is.

    Raises:
        RaysentError: For a folder that is taken, a corpus that cannot be used, or a cluster that is too small.
    """
    _check_free(folder)
    record = replace(record, started=round(time.time(), 3))
    facts = prepare_space(record.space, progress=progress)
    try:
        save_record(folder, record, facts=facts)
        return _sweep(record, folder, listener)
    except RaysentError:
        _remove_unbegun(folder)
        raise


def resume(
    folder: Path,
    *,
    limits: Sequence[Override] = (),
    listener: Listener | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Go on with the sweep of a run folder; a finished trial is never trained again.

    Args:
        folder: The run folder.
        limits: Another budget or deadline, kept from now on; what was spent stays spent.
        listener: Hears every event of the journal as it is written.
        progress: Hears how far the preparation of the corpus is.

    Raises:
        RaysentError: If the folder holds no sweep, another process is at work on it, or its files are damaged.
    """
    record = change_limits(folder, limits) if limits else load_record(folder)
    prepare_space(record.space, progress=progress)
    return _sweep(record, folder, listener)


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


def _sweep(record: SweepRecord, folder: Path, listener: Listener | None) -> SweepResult:
    """Rebuild the conductor from the journal, and train until nothing is left."""
    space = record.space
    budget = space.cost.for_sweep(datetime.datetime.fromtimestamp(record.started, datetime.UTC))
    journal = Journal(folder, listener=listener)
    try:
        conductor = Conductor(space, seed=record.seed, write=journal.write, past=journal.past, budget=budget)
        interrupted = False
        if not conductor.is_complete:
            with quiet_output(), ray_session(record.address), _meter(record, folder) as meter:
                _check_hourly(space, budget, meter)
                interrupted = _sit(record, folder, conductor, meter, journal, budget)
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


def _sit(
    record: SweepRecord, folder: Path, conductor: Conductor, meter: Meter, journal: Journal, budget: Budget
) -> bool:
    """Train in this sitting; returns whether the user interrupted."""
    space = record.space
    spent_s = sum(_sitting_lengths(folder))
    plan = _layout(space, conductor)
    journal.write(
        "session",
        trials=space.limits.trials,
        concurrent=plan.concurrent,
        spent_s=round(spent_s, 1),
        spent_usd=round(meter.ledger.spent_usd, 6),
        usd_per_hour=meter.price.usd_per_hour,
        price=meter.price.source,
        budget=budget_values(budget),
    )
    return run_trials(conductor, plan, describe=_describer(space, folder), is_over=_clock(space, spent_s), meter=meter)


def _meter(record: SweepRecord, folder: Path) -> Meter:
    """Return the meter of a sweep's machines: every node of the cluster that it runs on."""

    def nodes() -> list[str]:
        return [node_name(node["NodeID"]) for node in ray.nodes() if node["Alive"]]

    elapsed_s = max(0.0, time.time() - record.started)
    return Meter(folder, record.space.cost, nodes=nodes, elapsed_s=elapsed_s)


def _check_hourly(space: SearchSpace, budget: Budget, meter: Meter) -> None:
    """Refuse machines that together cost more an hour than they may.

    Raises:
        ConfigError: With the dollars of both.
    """
    hourly = meter.ledger.funds(elapsed_s=0.0).hourly_usd
    if not budget.fits_hourly(hourly):
        raise space.document.error(
            ("cost", "max_hourly"),
            f"must allow for the machines that are there; they cost {hourly:.2f} usd an hour together; given "
            f"{budget.max_hourly_usd:.2f}",
        )


def _layout(space: SearchSpace, conductor: Conductor) -> Layout:
    """Return how the trials that are left share the cluster."""
    resources = _capacity(ray.cluster_resources())
    machines = Machines(
        cpus=int(resources.get("CPU", 0)),
        gpus=float(resources.get("GPU", 0)),
        cpus_per_node=cpus_of_largest_node(),
        trials_per_gpu=trials_per_gpu(space, ray.cluster_resources()),
    )
    return layout(
        space.limits,
        machines,
        num_trials=max(1, space.limits.trials - sum(trial.status != "waiting" for trial in conductor.trials.values())),
    )


def _capacity(resources: Mapping[str, float]) -> Mapping[str, float]:
    """Return the cores and GPUs that trials can count on: those that are there, or that machines will come with."""
    told = json.loads(os.environ.get(CAPACITY_VARIABLE, "{}"))
    return {name: max(resources.get(name, 0.0), told.get(name, 0.0)) for name in ("CPU", "GPU")}


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
