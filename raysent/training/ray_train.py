"""Being connected to Ray: a session, what its nodes have, and how little it says.

One Ray Train worker, what starts them all, and what they leave.

`train`: one run from its command to its outcome, followed from here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from raysent import errors
from raysent.errors import ArtifactError, ConfigError, RaysentError, TrainingError
from raysent.preemption import REFUSED_TOKEN, capture_stderr, worker_notice
from raysent.storage import (
    address_of,
    open_folder,
    read_json,
    refresh,
    remove,
    remove_folder,
    storage_errors,
    to_uri,
    write_json,
)
from raysent.storage.layout import CHECKPOINT_FOLDER, OUTCOME_FILE, REPORTS_FILE
from raysent.training.checkpoint import Interruptions
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.outcome import Outcome, Report, load_outcome, load_reports
from raysent.training.plan import check_run
from raysent.training.run import RunConfig
from raysent.training.workers import Workers

_KNOCK_S = 10.0

_QUIET = {
    # How often Ray's controller looks for reports; its own 2 s would be most of a short run.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    # How often it looks whether a node goes; its own 5 s would be all of a short notice.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Relative names of corpora stay relative to where the command was given.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextlib.contextmanager
def ray_session(address: str | None, *, num_cpus: int | None = None) -> Iterator[None]:
    """Be connected to Ray inside the block; what was started for it is ended after, with so many cores if given."""
    quiet_ray()
    import ray  # noqa: PLC0415 - late: seconds that no other command should pay
    from ray.exceptions import AuthenticationError  # noqa: PLC0415

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"include_dashboard": False, "num_cpus": num_cpus} if address is None else {}
    with capture_stderr() as said:
        try:
            _knock(address)
            ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **options)
        except (OSError, ValueError, AuthenticationError) as error:
            if isinstance(error, AuthenticationError) or REFUSED_TOKEN in said():
                raise ConfigError(
                    f"--address {address}: requires its token, and none or another was given; set RAY_AUTH_MODE=token "
                    f"and RAY_AUTH_TOKEN_PATH to the token's file"
                ) from None
            reason = " ".join(str(error).split())
            raise ConfigError(f"--address {address}: no Ray cluster answers there ({reason})") from None
    try:
        yield
    finally:
        ray.shutdown()


def quiet_output() -> contextlib.AbstractContextManager[object]:
    """Send what Ray prints of lost nodes to standard error: standard output belongs to the results."""
    return contextlib.redirect_stdout(sys.stderr)


def quiet_ray() -> None:
    """Keep Ray from writing over our own output, and from waiting between looks; the user's settings win."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def node_name(node_id: str | None = None) -> str:
    """Return the name of a Ray node, in ledgers and messages; by default of the one that this process runs on."""
    import ray  # noqa: PLC0415 - late, as above

    return str(node_id or ray.get_runtime_context().get_node_id())[:12]


def cpus_of_largest_node() -> int:
    """Return the most cores that one worker can have: it would wait for ever for those of two nodes."""
    import ray  # noqa: PLC0415 - late, as above

    return max([1, *(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])])


def resources_per_worker(num_workers: int, gpus_per_worker: float | None) -> tuple[int, float]:
    """Return cores and GPUs of each worker.

    Raises:
        ConfigError: If the cluster has not that much.
    """
    import ray  # noqa: PLC0415 - late, as above

    have: dict[str, float] = ray.cluster_resources()
    num_cpus, num_gpus = int(have.get("CPU", 0)), have.get("GPU", 0.0)
    if num_workers > num_cpus:
        raise ConfigError(f"--workers {num_workers}: must be at most {num_cpus}, the cluster's CPUs")
    gpus = gpus_per_worker if gpus_per_worker is not None else float(num_gpus >= num_workers)
    if gpus * num_workers > num_gpus:
        raise ConfigError(
            f"--gpus-per-worker {gpus:g}: {num_workers} workers need {gpus * num_workers:g} GPUs; "
            f"the cluster has {num_gpus:g}"
        )
    return min(num_cpus // num_workers, cpus_of_largest_node()), gpus


def _knock(address: str | None) -> None:
    """See whether anything answers at ``host:port``; Ray itself would try for minutes, then end the process.

    Raises:
        OSError: If nothing does.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


# A user's mistake, met by a worker; it cannot be raised through Ray without being tried again.
MISTAKE_FILE = "mistake.json"
_RAY_FOLDER = ".ray_train"
_MAX_FAILURES = 3


def make_trainer(
    config: RunConfig,
    folder: Path,
    *,
    num_workers: int = 1,
    cpus_per_worker: int = 1,
    gpus_per_worker: float = 0,
    interruptions_per_hour: float = 0.0,
    callbacks: list[Any] | None = None,
    ask: Callable[[int], bool] | None = None,
) -> Any:
    """Return the TorchTrainer of one run, to be fitted here or inside a Tune function trainable.

    After `.fit()`, whether it raised or not, `trained` gives the outcome.

    Args:
        config: The run.
        folder: Where its files are; on several nodes, a shared one.
        num_workers: Processes that share every step.
        cpus_per_worker: Cores of each, and its threads.
        gpus_per_worker: GPUs of each; may be a fraction.
        interruptions_per_hour: How many are expected, for checkpoints between reports.
        callbacks: Ray Train's, such as `TuneReportCallback`; they see every `Report` as plain values.
        ask: Called by the first worker with the index of each report it made; False stops the run there.
    """
    quiet_ray()
    import ray.train  # noqa: PLC0415 - late: seconds that no other command should pay
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    folder = folder.absolute()
    remove(folder / MISTAKE_FILE)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    resources: dict[str, float] = {"CPU": cpus_per_worker}
    if gpus_per_worker:
        resources["GPU"] = gpus_per_worker
    job = {
        "config": config.model_dump_json(),
        "folder": to_uri(folder),
        "working_folder": str(Path.cwd()),
        "num_threads": cpus_per_worker,
        "interruptions_per_hour": interruptions_per_hour,
        "ask": ask,
    }
    return TorchTrainer(
        train_worker,
        train_loop_config=job,
        scaling_config=ray.train.ScalingConfig(
            num_workers=num_workers, use_gpu=gpus_per_worker > 0, resources_per_worker=resources
        ),
        run_config=ray.train.RunConfig(
            # A name of its own every time: Ray must find nothing to restore.
            name=uuid.uuid4().hex[:12],
            storage_path=str(folder / _RAY_FOLDER),
            failure_config=ray.train.FailureConfig(max_failures=_MAX_FAILURES),
            callbacks=callbacks,
        ),
    )


def train_worker(job: dict[str, Any]) -> None:
    """Run `trainer.fit` in one Ray Train worker.

    Args:
        job: `config` as JSON, `folder`, `working_folder`, `num_threads`, `interruptions_per_hour` and `ask`.
    """
    import ray.train  # noqa: PLC0415 - late, as above
    import ray.train.torch  # noqa: PLC0415

    folder = open_folder(job["folder"], with_checkpoints=True)
    if (folder / MISTAKE_FILE).exists():
        return  # started again although nothing will have changed
    with contextlib.suppress(OSError):
        os.chdir(job["working_folder"])
    torch.set_num_threads(job["num_threads"])
    workers = Workers.of_group()

    interruptions = Interruptions(worker_notice(), per_hour=job["interruptions_per_hour"])

    def report(now: Report) -> bool:
        ray.train.report({**asdict(now), "node": node_name()})
        # All workers call this; the first one's answer counts for all.
        return job["ask"](now.index) if job["ask"] and workers.is_first else True

    config = RunConfig.model_validate_json(job["config"])
    try:
        device = ray.train.torch.get_device()
        fit(config, folder, report=report, device=device, workers=workers, interruptions=interruptions)
    except RaysentError as mistake:
        with contextlib.suppress(RaysentError, OSError):
            write_json(folder / MISTAKE_FILE, {"kind": type(mistake).__name__, "text": str(mistake)})
        if workers.world_size > 1:
            raise  # the others may be waiting for this one


def trained(config: RunConfig, folder: Path) -> Outcome:
    """Return how the run that a trainer was made for has ended.

    Raises:
        RaysentError: The mistake that a worker met, if any.
        TrainingError: If the workers ended without an outcome.
    """
    folder = folder.absolute()
    shutil.rmtree(folder / _RAY_FOLDER, ignore_errors=True)
    refresh(folder)  # the workers may have been on other machines
    mistake = folder / MISTAKE_FILE
    if mistake.exists():
        told = read_json(mistake)
        remove(mistake)
        raise getattr(errors, told["kind"], RaysentError)(told["text"])
    outcome = load_outcome(folder, key=config.key)
    if outcome is None:
        raise TrainingError(
            f"{address_of(folder)}: the workers ended before the run did; resume it from its last checkpoint"
        )
    return outcome


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
    check_run(config, open_training_data(config), num_workers=num_workers)
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
