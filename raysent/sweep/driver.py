"""Start a sweep, or go on with one that was interrupted or killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from raysent.errors import ArtifactError, RaysentError
from raysent.run import RUN_FILE, RunConfig
from raysent.search_space import SearchSpace
from raysent.sweep.conductor import Conductor, Trial
from raysent.sweep.journal import JOURNAL_FILE, LOCK_FILE, Journal, Listener, is_at_work, read_events
from raysent.sweep.preparation import Progress, prepare_space
from raysent.sweep.ray_tune import Layout, layout, run_trials
from raysent.sweep.record import (
    SWEEP_FILE,
    TRIALS_FILE,
    SweepRecord,
    load_record,
    save_record,
    trial_folder,
    write_trials_table,
)
from raysent.train import ray_session
from raysent.trainer import drop_checkpoints


@dataclass(frozen=True)
class SweepResult:
    """How a sweep, or this sitting of it, ended.

    Attributes:
        folder: The run folder.
        trials: Every trial, in the order in which they were drawn.
        best: The best one; None where none has reported.
        is_interrupted: Whether the user stopped it before its end.
    """

    folder: Path
    trials: list[Trial]
    best: Trial | None
    is_interrupted: bool


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
    facts = prepare_space(record.space, progress=progress)
    try:
        save_record(folder, record, facts=facts)
        return _sweep(record, folder, listener)
    except RaysentError:
        _remove_unbegun(folder)
        raise


def resume(folder: Path, *, listener: Listener | None = None, progress: Progress | None = None) -> SweepResult:
    """Go on with the sweep of a run folder; a finished trial is never trained again.

    Raises:
        RaysentError: If the folder holds no sweep, another process is at work on it, or its files are damaged.
    """
    record = load_record(folder)
    prepare_space(record.space, progress=progress)
    return _sweep(record, folder, listener)


def _check_free(folder: Path) -> None:
    """Refuse a folder that is in use, before anything takes time.

    Raises:
        ArtifactError: If a sweep, a training or a file stands there.
    """
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder}: a file stands where the run folder is needed; name another --run")
    if (folder / SWEEP_FILE).exists() or (folder / JOURNAL_FILE).exists():
        raise ArtifactError(
            f"{folder}: holds a sweep already; go on with 'raysent resume {folder}' or name another --run"
        )
    if (folder / RUN_FILE).exists():
        raise ArtifactError(f"{folder}: holds a training; name another --run")


def _remove_unbegun(folder: Path) -> None:
    """Remove what a sweep left that came to no trial, so that its folder can be named again."""
    with contextlib.suppress(RaysentError, OSError):
        if is_at_work(folder) or any(event["event"] == "suggested" for event in read_events(folder)):
            return
        for name in (SWEEP_FILE, JOURNAL_FILE, TRIALS_FILE, LOCK_FILE):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()  # refuses where anything else is in it


def _sweep(record: SweepRecord, folder: Path, listener: Listener | None) -> SweepResult:
    """Rebuild the conductor from the journal, and train until nothing is left."""
    journal = Journal(folder, listener=listener)
    try:
        spent_s = sum(_sitting_lengths(folder))
        conductor = Conductor(record.space, seed=record.seed, write=journal.write, past=journal.past)
        interrupted = False
        if not conductor.is_complete:
            with ray_session(record.address):
                plan = _layout(record.space, conductor)
                journal.write(
                    "session", trials=record.space.limits.trials, concurrent=plan.concurrent, spent_s=round(spent_s, 1)
                )
                interrupted = run_trials(
                    conductor, plan, describe=_describer(record.space, folder), is_over=_clock(record.space, spent_s)
                )
            journal.write("interrupted" if interrupted else "completed")
        for trial in conductor.trials.values():
            if trial.status == "stopped":
                # It will never go on; what it needed for that is most of its folder.
                drop_checkpoints(trial_folder(folder, trial.number))
        write_trials_table(folder, conductor)
        return SweepResult(folder, list(conductor.trials.values()), conductor.best, interrupted)
    finally:
        journal.close()


def _layout(space: SearchSpace, conductor: Conductor) -> Layout:
    """Return how the trials that are left share the cluster."""
    resources = ray.cluster_resources()
    return layout(
        space.limits,
        cpus=int(resources.get("CPU", 0)),
        gpus=float(resources.get("GPU", 0)),
        num_trials=max(1, space.limits.trials - sum(trial.status != "waiting" for trial in conductor.trials.values())),
    )


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
            "folder": str(trial_folder(folder, trial.number).resolve()),
        }

    return describe


def trial_config(space: SearchSpace, trial: Trial) -> RunConfig:
    """Return a trial's run: what was drawn, and a seed of its own unless the space names one."""
    config = space.config(trial.params)
    names_seed = "seed" in trial.params or "seed" in space.document.values.get("base", {})
    return config if names_seed else config.model_copy(update={"seed": trial.seed})
