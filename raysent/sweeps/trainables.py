"""What Ray Tune runs for one trial, and how decisions reach its workers. Two forms give the same numbers.

`ReusedActor` trains inside a Tune actor that takes trial after trial: for short trials of one worker, where starting
processes would cost more than training. `nested_train` trains on Ray Train workers of its own: for several workers,
or GPUs. Both send the driver the same plain values: those of each report, and a status at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.exceptions import RayActorError

from raysent.data.corpus import shared_cache
from raysent.errors import ArtifactError, RaysentError
from raysent.preemption import node_notice
from raysent.storage import open_folder, write_text
from raysent.training.interruptions import Interruptions, SecondsLeft
from raysent.training.loop import fit
from raysent.training.memory import resident_bytes
from raysent.training.outcome import Outcome, Report
from raysent.training.ray_session import node_name, use_reserved_device, work_in
from raysent.training.ray_train import make_trainer, training_outcome
from raysent.training.run import RunConfig


@ray.remote(num_cpus=0)
class DecisionStore:
    """Holds the controller's decision on each report until the trial's worker reads it.

    A trial is never killed to be stopped: its workers read the decision, end normally and release their resources.
    """

    def __init__(self) -> None:
        self._decisions: dict[tuple[str, int], asyncio.Future[bool]] = {}

    async def put(self, trial: str, index: int, should_continue: bool) -> None:
        """Store the decision on a trial's report."""
        decision = self._future(trial, index)
        if not decision.done():
            decision.set_result(should_continue)

    async def wait_for(self, trial: str, index: int) -> bool:
        """Return the decision on a trial's report, as soon as there is one."""
        return await asyncio.shield(self._future(trial, index))

    def _future(self, trial: str, index: int) -> asyncio.Future[bool]:
        return self._decisions.setdefault(
            (trial, index), asyncio.get_running_loop().create_future()
        )


ERROR_FILE = "error.txt"
# Failures of disk or object store: the trial starts again from its last checkpoint, as when its process dies.
STORAGE_ERRORS = (ArtifactError, OSError)
_RAISED = "raised"
Message = dict[str, Any]


def failure(error: BaseException, folder: Path) -> Message:
    """Return the message of a trial that raised; its traceback is kept in the trial's folder."""
    line = str(error) if isinstance(error, RaysentError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(
        RaysentError
    ):  # if nothing can be written, the line is reported all the same
        write_text(folder / ERROR_FILE, "".join(traceback.format_exception(error)))
    return {"status": "failed", "error": " ".join(line.split())[:500], "done": True}


def storage_failure(error: BaseException) -> Message:
    """Return the message of a failure of disk or object store; the trial's process fails right after it."""
    line = " ".join(str(error).split())
    return {
        "storage_failure": line
        if isinstance(error, RaysentError)
        else f"{type(error).__name__}: {line}"
    }


def ending(outcome: Outcome) -> Message:
    """Return the message of a trial whose training ended."""
    return {
        "status": outcome.status,
        "seconds": outcome.seconds,
        "error": outcome.message or None,
        "done": True,
    }


class ReusedActor(tune.Trainable):
    """A Tune actor in which one trial after the other trains.

    The loop runs in a thread of its own, which hands over each report and waits for the decision. It continues with the
    next step unless the driver has called `stop_trial`; a trial that is stopped saves its model, and then says so.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Take the trial that `config` names; its folder may hold a checkpoint."""
        work_in(config["working_folder"])
        torch.set_num_threads(config["num_threads"])
        use_reserved_device()
        self._should_continue = True
        self._waits_for_decision = False
        self._error: BaseException | None = None
        # Queues of this trial alone: a thread that is left behind cannot send messages of the next trial.
        self._messages: queue.Queue[Message] = queue.Queue()
        self._decisions: queue.Queue[bool] = queue.Queue()
        given = config, self._messages, self._decisions
        self._thread = threading.Thread(target=_train_in_thread, args=given, daemon=True)

    def step(self) -> Message:
        """Continue training to its next report or its end."""
        if (
            self._thread.ident is None
        ):  # not in `setup`: Tune may then give the trial to an actor that became free
            self._thread.start()
        if self._waits_for_decision:
            self._decisions.put(self._should_continue)
        if self._error is not None:
            raise self._error  # Tune starts the trial again, in another process
        message = self._messages.get()
        if _RAISED in message:
            self._error = message[_RAISED]
            return storage_failure(self._error)
        self._waits_for_decision = "status" not in message
        return message

    def stop_trial(self) -> None:
        """End the trial at the report that it has made, in the next step."""
        self._should_continue = False

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start another trial in this process, after one that has ended.

        If the process holds more memory than it may, its next step fails. Tune then starts the new trial in another
        process, as after an announced end, and counts no failure; a process that ended here would cost the trial.
        """
        limit, held = new_config.get("memory_bytes"), resident_bytes()
        if limit is None or held <= limit:
            self.setup(new_config)
        else:
            text = f"the process holds {held} bytes; limits.memory is {limit}"
            self._error = RayActorError(error_msg=text, preempted=True)
        return True


def _train_in_thread(
    config: dict[str, Any], messages: queue.Queue[Message], decisions: queue.Queue[bool]
) -> None:
    node = node_name()

    def on_report(report: Report) -> bool:
        messages.put(report_message(report, node=node))
        return decisions.get()

    try:
        messages.put(train_trial(config, on_report, notice=node_notice()))
    except (
        Exception
    ) as error:  # handed over whatever it is, so that the other thread does not wait without end
        messages.put({_RAISED: error})


def report_message(report: Report, *, node: str) -> Message:
    """Return the message of a report that a trial made on a node."""
    return {**asdict(report), "node": node, "memory_bytes": resident_bytes()}


def train_trial(
    config: dict[str, Any], on_report: Callable[[Report], bool], *, notice: SecondsLeft
) -> Message:
    """Train one trial in this process, from the last checkpoint of its folder if there is one.

    Args:
        config: The trial as the driver describes it; its folder may be in a bucket.
        on_report: Called with each report; returns whether the trial continues.
        notice: Returns the seconds until this machine is reclaimed.

    Returns:
        The message of its end. A failure of the trial itself is one: it is recorded, and the sweep continues.

    Raises:
        ArtifactError: If the disk or the object store fails; the trial can continue on another machine.
    """
    folder = open_folder(config["folder"], with_checkpoints=True)
    try:
        run = RunConfig.model_validate(config["run"])
        interruptions = replace(_interruptions(config), notice=notice)
        with shared_cache(config.get("prepared")):
            return ending(fit(run, folder, report=on_report, interruptions=interruptions))
    except STORAGE_ERRORS:
        raise
    except Exception as error:  # a failure of the trial itself
        return failure(error, folder)


def _interruptions(config: dict[str, Any]) -> Interruptions:
    return Interruptions(
        per_hour=config["interruptions_per_hour"], models=config["models_at_reports"]
    )


def nested_train(
    decisions: Any, *, num_workers: int, gpus_per_worker: float
) -> Callable[[dict[str, Any]], None]:
    """Return the Tune function that trains a trial on Ray Train workers and forwards their reports.

    It reserves no resources itself: drivers that reserved the cores which their own workers wait for would deadlock.
    """

    def driver(config: dict[str, Any]) -> None:
        work_in(config["working_folder"])
        folder = open_folder(config["folder"], with_checkpoints=True)
        run = RunConfig.model_validate(config["run"])
        with shared_cache(config.get("prepared")):
            trainer = make_trainer(
                run,
                folder,
                num_workers=num_workers,
                cpus_per_worker=config["num_threads"],
                gpus_per_worker=gpus_per_worker,
                interruptions=_interruptions(config),
                on_report=tune.report,
                should_continue=lambda index: bool(
                    ray.get(decisions.wait_for.remote(config["trial"], index))
                ),
            )
        failed: Exception | None = None
        try:
            try:
                trainer.fit()
            except Exception as error:  # the outcome below has the workers' errors in full
                failed = error
            message = ending(training_outcome(run, folder, failed))
        except STORAGE_ERRORS as error:
            tune.report(storage_failure(error))
            raise
        except Exception as error:  # as in `train_trial`
            message = failure(error, folder)
        tune.report({key: value for key, value in message.items() if key != "done"})

    return driver
