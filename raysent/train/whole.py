"""`train`: one run from its command to its outcome, followed from here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysent.artifacts import CHECKPOINT_FOLDER, address_of, remove, remove_folder
from raysent.errors import ArtifactError, TrainingError
from raysent.material import open_material
from raysent.run import OUTCOME_FILE, REPORTS_FILE, RunConfig
from raysent.train.session import quiet_output, ray_session, resources_per_worker
from raysent.train.workers import MISTAKE_FILE, make_trainer, trained
from raysent.trainer import Outcome, Report, check_run, load_outcome, load_reports

_POLL_S = 0.1


def train(
    config: RunConfig,
    folder: Path,
    *,
    num_workers: int = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    on_report: Callable[[Report], object] | None = None,
    resume: bool = True,
    interruptions_per_hour: float = 0.0,
) -> Outcome:
    """Train one run on Ray Train workers.

    Args:
        config: The run.
        folder: Where its files are; made if need be.
        num_workers: Processes that share every step.
        gpus_per_worker: GPUs of each; None takes one where the cluster has enough, else the CPU.
        address: A running cluster; None starts Ray on this machine and ends it again.
        on_report: Called here, with each report as it comes.
        resume: Whether to go on from the folder's checkpoint; otherwise the run starts anew.
        interruptions_per_hour: How many are expected, for checkpoints between reports.

    Returns:
        How the run ended.

    Raises:
        RaysentError: The user's mistakes that `trainer.fit` names.
        TrainingError: If the workers failed again and again.
    """
    folder = folder.absolute()
    if not resume:
        _start_anew(folder)
    before = load_outcome(folder, key=config.key)
    if before is not None and before.status != "stopped":
        return before
    # Read the text here: once for all workers, and a mistake in it is told before Ray starts.
    check_run(config, open_material(config), num_workers=num_workers)
    with quiet_output(), ray_session(address):
        cpus, gpus = resources_per_worker(num_workers, gpus_per_worker)
        trainer = make_trainer(
            config,
            folder,
            num_workers=num_workers,
            cpus_per_worker=cpus,
            gpus_per_worker=gpus,
            interruptions_per_hour=interruptions_per_hour,
        )
        _follow(trainer, folder, on_report)
    return trained(config, folder)


def _start_anew(folder: Path) -> None:
    """Remove what an earlier training left."""
    remove_folder(folder / CHECKPOINT_FOLDER)
    try:
        for name in (OUTCOME_FILE, REPORTS_FILE):
            remove(folder / name)
    except OSError as error:
        raise ArtifactError(f"{address_of(folder)}: cannot be cleared: {error.strerror}") from None


def _follow(trainer: Any, folder: Path, on_report: Callable[[Report], object] | None) -> None:
    """Fit beside the main thread, so that Ctrl-C stays ours, and pass reports on as they are written.

    Raises:
        TrainingError: If the workers failed more often than they may.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            trainer.fit()
        except BaseException as error:  # handed to the main thread
            failures.append(error)

    num_seen = len(load_reports(folder))
    thread = threading.Thread(target=run, name="ray-train", daemon=True)
    thread.start()
    while True:
        running = thread.is_alive()
        thread.join(_POLL_S)
        reports = load_reports(folder)
        for report in reports[num_seen:]:
            if on_report is not None:
                on_report(report)
        num_seen = max(num_seen, len(reports))
        if not running:
            break
    if failures and not (folder / MISTAKE_FILE).exists():
        [failure] = failures
        told = str(failure).strip().splitlines() or [type(failure).__name__]
        raise TrainingError(
            f"{address_of(folder)}: the workers failed: {told[-1]}; resume from the last checkpoint"
        ) from failure
