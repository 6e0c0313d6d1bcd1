"""One Ray Train worker, what starts them all, and what they leave."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from raysent import errors
from raysent.artifacts import address_of, open_folder, portable, read_json, refresh, remove, storage_errors, write_json
from raysent.errors import RaysentError, TrainingError
from raysent.preemption import worker_notice
from raysent.run import RunConfig
from raysent.train.session import node_name, quiet_ray
from raysent.trainer import Interruptions, Outcome, Report, Workers, fit, load_outcome

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
        "folder": portable(folder),
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
