"""One run on Ray Train workers: `train` from start to outcome, the trainer, and the function of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from raysent import errors
from raysent.data.corpus import shared_address, shared_cache
from raysent.errors import ArtifactError, RaysentError, TrainingError
from raysent.preemption import worker_notice
from raysent.ray_private import train_controller
from raysent.storage import (
    address_of,
    open_folder,
    read_json,
    refresh,
    remove,
    remove_tree,
    storage_errors,
    to_uri,
    write_json,
)
from raysent.training.data import open_training_data
from raysent.training.interruptions import Interruptions
from raysent.training.loop import fit
from raysent.training.outcome import Outcome, Report, ended_outcome, load_outcome, load_reports
from raysent.training.plan import check_run
from raysent.training.ray_session import (
    node_name,
    output_to_stderr,
    ray_session,
    resources_per_worker,
    set_ray_environment,
    work_in,
)
from raysent.training.run import RunConfig
from raysent.training.workers import Workers

# A user's error in a worker; raised through Ray, it would make Ray restart the workers.
USER_ERROR_FILE = "mistake.json"
_RAY_FOLDER = ".ray_train"
_MAX_FAILURES = 3
_POLL_S = 0.1


def train(
    config: RunConfig,
    folder: Path,
    *,
    num_workers: int = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    on_report: Callable[[Report], object] | None = None,
    interruptions_per_hour: float = 0.0,
) -> Outcome:
    """Train one run on Ray Train workers.

    Args:
        config: The run.
        folder: Where its files are; created if necessary.
        num_workers: Processes that share every step.
        gpus_per_worker: GPUs of each worker; None takes one if the cluster has enough, else trains on the CPU.
        address: A running cluster; None starts Ray on this machine and stops it afterwards.
        on_report: Called in this process with each report.
        interruptions_per_hour: Expected interruptions, for checkpoints between reports.

    Returns:
        How the run ended.

    Raises:
        RaysentError: The user errors of `loop.fit`.
        TrainingError: If the workers failed repeatedly.
    """
    folder = folder.absolute()
    earlier_outcome = ended_outcome(folder, key=config.key)
    if earlier_outcome is not None:
        return earlier_outcome
    # The text is read here once for all workers, so that errors in it are reported before Ray starts.
    check_run(config, open_training_data(config), num_workers=num_workers)
    again = f"the same command with --run {shlex.quote(address_of(folder))}"
    with output_to_stderr(), ray_session(address, how_to_continue=again):
        cpus, gpus = resources_per_worker(num_workers, gpus_per_worker)
        trainer = make_trainer(
            config,
            folder,
            num_workers=num_workers,
            cpus_per_worker=cpus,
            gpus_per_worker=gpus,
            interruptions=Interruptions(per_hour=interruptions_per_hour),
        )
        _fit_and_follow(trainer, folder, on_report, key=config.key)
    return training_outcome(config, folder)


def _fit_and_follow(
    trainer: Any, folder: Path, on_report: Callable[[Report], object] | None, *, key: str
) -> None:
    """Run the trainer in a thread, so that this one receives Ctrl-C, and pass on reports as they are written.

    What fails after the run has ended, as Ray's actors may when their group is removed, is no failure of the run.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            trainer.fit()
        except BaseException as error:  # raised in the main thread
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
    refresh(folder)
    # A worker's own error is raised with its outcome.
    if not failures or (folder / USER_ERROR_FILE).exists():
        return
    if ended_outcome(folder, key=key) is None:
        [failure] = failures
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise TrainingError(
            f"{address_of(folder)}: the workers failed: {lines[-1]}; resume from the last checkpoint"
        ) from failure


def make_trainer(
    config: RunConfig,
    folder: Path,
    *,
    num_workers: int = 1,
    cpus_per_worker: int = 1,
    gpus_per_worker: float = 0,
    interruptions: Interruptions | None = None,
    on_report: Callable[[dict[str, Any]], object] | None = None,
    should_continue: Callable[[int], bool] | None = None,
) -> Any:
    """Return the TorchTrainer of one run, to be fitted here or inside a Tune function trainable.

    With `on_report`, Ray Train's controller runs in this process: a sweep has one for each trial that is training, and
    as an actor, which is Ray's way, each would be one more process on the head.

    After `.fit()`, whether it raised or not, `training_outcome` returns the outcome.

    Args:
        config: The run.
        folder: Where its files are; on several nodes, a shared folder.
        num_workers: Processes that share every step.
        cpus_per_worker: Cores and threads of each worker.
        gpus_per_worker: GPUs of each worker; may be a fraction.
        interruptions: The interruptions to expect, without notices, of which the workers know; by default none.
        on_report: Called in this process with every `Report` as plain values.
        should_continue: Called by the first worker with the index of each report; False stops the run.
    """
    set_ray_environment()
    import ray.train  # noqa: PLC0415 - late, because it takes seconds that no other command should wait

    folder = folder.absolute()
    remove(folder / USER_ERROR_FILE)
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
        "interruptions": interruptions or Interruptions(),
        "should_continue": should_continue,
        "prepared": shared_address(),
    }
    callbacks = None if on_report is None else [_report_callback(on_report)]
    trainer_class = _trainer_class(is_here=on_report is not None)
    return trainer_class(
        train_worker,
        train_loop_config=job,
        scaling_config=ray.train.ScalingConfig(
            num_workers=num_workers,
            use_gpu=gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        run_config=ray.train.RunConfig(
            # A new name every time, so that Ray restores nothing.
            name=uuid.uuid4().hex[:12],
            storage_path=str(folder / _RAY_FOLDER),
            failure_config=ray.train.FailureConfig(max_failures=_MAX_FAILURES),
            callbacks=callbacks,
        ),
    )


def _report_callback(on_report: Callable[[dict[str, Any]], object]) -> Any:
    from ray.train import UserCallback  # noqa: PLC0415 - late, as above

    class PassOn(UserCallback):
        def after_report(
            self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any
        ) -> None:
            del run_context, checkpoint
            on_report(metrics[0])

    return PassOn()


def _trainer_class(*, is_here: bool) -> Any:
    """Return a TorchTrainer without an actor for Ray Data's sets; `is_here` makes its controller no actor either."""
    from ray.train.torch import TorchTrainer  # noqa: PLC0415 - late, as above

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()  # type: ignore[misc]
            # By name, as versions of Ray differ: `DatasetsSetupCallback` in 2.52, `DatasetsCallback` in 2.60.
            return [
                callback
                for callback in callbacks
                if not type(callback).__name__.startswith("Datasets")
            ]

    class TrainerHere(Trainer):
        def _initialize_and_run_controller(self, **options: Any) -> Any:
            controller = train_controller()(**options)
            asyncio.run(controller.run())
            return controller.get_result()

    return TrainerHere if is_here else Trainer


def train_worker(job: dict[str, Any]) -> None:
    """Run `loop.fit` in one Ray Train worker.

    Args:
        job: `config` as JSON, `folder`, `working_folder`, `num_threads`, `interruptions`, `should_continue` and
            `prepared`.
    """
    import ray.train  # noqa: PLC0415 - late, as above
    import ray.train.torch  # noqa: PLC0415

    folder = open_folder(job["folder"], with_checkpoints=True)
    if (folder / USER_ERROR_FILE).exists():
        return  # a restart would meet the same error
    work_in(job["working_folder"])
    torch.set_num_threads(job["num_threads"])
    workers = Workers.of_group()
    interruptions = replace(job["interruptions"], notice=worker_notice())
    # Called on all workers; only the first worker's answer counts.
    should_continue = job["should_continue"] if workers.is_first else None

    def report(now: Report) -> bool:
        ray.train.report({**asdict(now), "node": node_name()})
        if should_continue is None:
            return True
        return bool(should_continue(now.index))

    config = RunConfig.model_validate_json(job["config"])
    try:
        device = ray.train.torch.get_device()
        with shared_cache(job.get("prepared")):
            fit(
                config,
                folder,
                report=report,
                device=device,
                workers=workers,
                interruptions=interruptions,
            )
    except RaysentError as error:
        with contextlib.suppress(RaysentError, OSError):
            write_json(folder / USER_ERROR_FILE, {"kind": type(error).__name__, "text": str(error)})
            if workers.world_size == 1:
                return
        raise  # other workers may be waiting for this one, or the disk has no room for the error either


def training_outcome(config: RunConfig, folder: Path, failed: Exception | None = None) -> Outcome:
    """Return how a run ended, after its trainer has ended; `failed` is what that raised.

    Raises:
        RaysentError: The user error of a worker.
        OSError: That of a worker whose disk or object store failed.
        TrainingError: If the workers ended without an outcome.
    """
    folder = folder.absolute()
    remove_tree(folder / _RAY_FOLDER, below=folder)
    refresh(folder)  # the workers may have run on other machines
    path = folder / USER_ERROR_FILE
    if path.exists():
        error = read_json(path)
        remove(path)
        raise getattr(errors, error["kind"], RaysentError)(error["text"])
    outcome = load_outcome(folder, key=config.key)
    if outcome is None:
        for error in getattr(failed, "worker_failures", {}).values():
            if isinstance(error, (ArtifactError, OSError)):
                raise error
        raise TrainingError(
            f"{address_of(folder)}: the workers ended before the run did; resume it from its last checkpoint"
        )
    return outcome
