"""How a decision reaches the workers of a trial that trains in processes of its own.

What Tune runs for one trial, in two forms with the same numbers.

`ReusedActor` trains inside a Tune actor that takes trial after trial: for short trials of one worker, where starting
processes would cost more than training. `nested_train` trains on Ray Train workers of its own: for several workers,
or GPUs. Both tell the driver the same plain values: a report's, and in the end a status.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from raysent.errors import ArtifactError, RaysentError
from raysent.preemption import node_notice
from raysent.storage import open_folder, write_text
from raysent.training.allocator import resident_bytes
from raysent.training.interruptions import Interruptions, SecondsLeft
from raysent.training.loop import fit
from raysent.training.outcome import Outcome, Report
from raysent.training.ray_session import node_name
from raysent.training.ray_train import make_trainer, training_outcome
from raysent.training.run import RunConfig


@ray.remote(num_cpus=0)
class Answers:
    """Keeps what the conductor said to each report until the trial's worker asks; asking waits.

    A trial is never killed to be stopped: its workers hear the answer, end well and give their resources back.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], asyncio.Future[bool]] = {}

    async def say(self, trial: str, index: int, should_continue: bool) -> None:
        """Keep the answer to a trial's report."""
        answer = self._answer(trial, index)
        if not answer.done():
            answer.set_result(should_continue)

    async def hear(self, trial: str, index: int) -> bool:
        """Return the answer to a trial's report, as soon as there is one."""
        return await asyncio.shield(self._answer(trial, index))

    def _answer(self, trial: str, index: int) -> asyncio.Future[bool]:
        return self._said.setdefault((trial, index), asyncio.get_running_loop().create_future())


def asker(answers: Any, trial: str) -> Any:
    """Return a function that a worker calls with a report's index, and that returns whether the trial goes on."""

    def ask(index: int) -> bool:
        return bool(ray.get(answers.hear.remote(trial, index)))

    return ask


ERROR_FILE = "error.txt"
# What befalls a trial from without: it is tried again from its last checkpoint, as when its process dies.
TROUBLE = (ArtifactError, OSError)
_RAISED = "raised"
Message = dict[str, Any]


def failure(error: BaseException, folder: Path) -> Message:
    """Return the message of a trial that raised; its traceback is kept in the trial's folder."""
    line = str(error) if isinstance(error, RaysentError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(RaysentError):  # where nothing can be written, the line must still be told
        write_text(folder / ERROR_FILE, "".join(traceback.format_exception(error)))
    return {"status": "failed", "error": " ".join(line.split())[:500], "done": True}


def trouble(error: BaseException) -> Message:
    """Return the message of what befell a trial from without; its process fails right after it was told."""
    line = " ".join(str(error).split())
    return {"trouble": line if isinstance(error, RaysentError) else f"{type(error).__name__}: {line}"}


def ending(outcome: Outcome) -> Message:
    """Return the message of a trial whose training ended."""
    return {"status": outcome.status, "seconds": outcome.seconds, "error": outcome.message or None, "done": True}


class ReusedActor(tune.Trainable):
    """A Tune actor in which one trial after the other trains.

    The loop runs in a thread of its own and hands over each report; it waits there for the answer, so a trial that is
    stopped at a report ends well, with its model saved, before the actor takes the next one.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start training the trial that `config` names; its folder may hold a checkpoint to go on from."""
        torch.set_num_threads(config["num_threads"])
        self._waits_for_answer = False
        self._error: BaseException | None = None
        # Queues of this trial alone: a thread that was left behind cannot speak into the next one.
        self._messages: queue.Queue[Message] = queue.Queue()
        self._answers: queue.Queue[bool] = queue.Queue()
        self._thread = threading.Thread(
            target=_train_in_thread,
            args=(config, self._messages, self._answers),
            daemon=True,
        )
        self._thread.start()

    def step(self) -> Message:
        """Let training go on to its next report, or its end."""
        if self._waits_for_answer:
            self._answers.put(True)
        if self._error is not None:
            raise self._error  # the process is as good as dead: Tune starts the trial again, here or elsewhere
        message = self._messages.get()
        if _RAISED in message:
            self._error = message[_RAISED]
            return trouble(self._error)
        self._waits_for_answer = "status" not in message
        return message

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """End the trial at hand and start another one in this process.

        If the process holds more memory than it may, it ends instead. Tune then starts the new trial in another one, as
        it does after any process that is lost.
        """
        self.cleanup()
        limit = new_config.get("memory_bytes")
        if limit is not None and resident_bytes() > limit:
            ray.actor.exit_actor()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """Let a trial that waits for an answer end; one in the middle of a share is left, its checkpoint is whole."""
        if self._waits_for_answer:
            self._waits_for_answer = False
            self._answers.put(False)
            self._thread.join()


def _train_in_thread(config: dict[str, Any], messages: queue.Queue[Message], answers: queue.Queue[bool]) -> None:
    """Train, handing every report over and waiting for its answer."""
    node = node_name()

    def tell(report: Report) -> bool:
        messages.put(report_message(report, node=node))
        return answers.get()

    try:
        messages.put(train_trial(config, tell, notice=node_notice()))
    except Exception as error:  # handed over whatever it is, so that nobody waits for ever
        messages.put({_RAISED: error})


def report_message(report: Report, *, node: str) -> Message:
    """Return the message of a report that a trial made on a node."""
    return {**asdict(report), "node": node, "memory_bytes": resident_bytes()}


def train_trial(config: dict[str, Any], tell: Callable[[Report], bool], *, notice: SecondsLeft) -> Message:
    """Train one trial in this process, from wherever its folder's last checkpoint is.

    Args:
        config: What the driver says of the trial; its folder may be in a bucket.
        tell: Hears every report, and says whether the trial goes on.
        notice: Says how long this machine will still be there.

    Returns:
        The message of its ending. A trial's own failure is one: it is recorded, and the sweep goes on.

    Raises:
        ArtifactError: If the disk or the object store refuses, which is no fault of the trial: it may go on elsewhere.
    """
    folder = open_folder(config["folder"], with_checkpoints=True)
    try:
        run = RunConfig.model_validate(config["run"])
        interruptions = Interruptions(notice, per_hour=config["interruptions_per_hour"])
        return ending(fit(run, folder, report=tell, interruptions=interruptions))
    except TROUBLE:
        raise
    except Exception as error:  # as said above
        return failure(error, folder)


def nested_train(answers: Any, *, num_workers: int, gpus_per_worker: float) -> Callable[[dict[str, Any]], None]:
    """Return the Tune function that trains a trial on Ray Train workers and forwards their reports.

    It holds none of the scarce resources itself: drivers that held the cores which their own workers wait for would
    wait for ever.
    """

    def driver(config: dict[str, Any]) -> None:
        from ray.tune.integration.ray_train import TuneReportCallback  # noqa: PLC0415 - only inside a Tune session

        folder = open_folder(config["folder"], with_checkpoints=True)
        run = RunConfig.model_validate(config["run"])
        trainer = make_trainer(
            run,
            folder,
            num_workers=num_workers,
            cpus_per_worker=config["num_threads"],
            gpus_per_worker=gpus_per_worker,
            interruptions_per_hour=config["interruptions_per_hour"],
            callbacks=[TuneReportCallback()],
            should_continue=asker(answers, config["trial"]),
        )
        try:
            with contextlib.suppress(Exception):  # what the workers met is told below, better than Ray tells it
                trainer.fit()
            message = ending(training_outcome(run, folder))
        except TROUBLE as error:
            tune.report(trouble(error))
            raise
        except Exception as error:  # as in `train_trial`
            message = failure(error, folder)
        tune.report({key: value for key, value in message.items() if key != "done"})

    return driver
