"""A drill: interrupts a node of this machine under a small training, as a cloud provider would, and reports what happens.

The node is drained with a deadline, as the node agent drains it after a notice, and killed at the deadline. Training
must continue on another node, from a checkpoint that was written in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysent.errors import CloudError
from raysent.preemption import drain_node, worker_notice
from raysent.storage import append_json_line, open_folder, read_json_lines, refresh, to_uri
from raysent.storage.layout import CHECKPOINT_FOLDER
from raysent.training.interruptions import Interruptions
from raysent.training.loop import fit
from raysent.training.outcome import Report
from raysent.training.ray_session import (
    node_name,
    output_to_stderr,
    ray_session,
    set_ray_environment,
)
from raysent.training.run import RunConfig

NOTES_FILE = "drill.jsonl"
# Training stops after this many reports on the other node.
_REPORTS_AFTER = 2
_POLL_S = 0.2
# How long the training may then take to end.
_END_S = 10.0
# One to interrupt, one to continue on.
_NUM_NODES = 2

Note = dict[str, Any]
_RUN = {
    "corpus": {"path": "docs"},
    "vocabulary": {"size": 2000},
    "encoder": {"type": "gru", "hidden_size": 24, "embedding": {"dim": 16}},
    "objective": {"type": "context_prediction"},
    "training": {
        "batch_size": 50,
        "learning_rate": 5e-3,
        "max_steps": 20_000,
        "epochs": 1000,
        "num_reports": 100,
    },
    "validation": {"num_candidates": 50, "num_sentences": 100},
}


@dataclass(frozen=True)
class DrillResult:
    """The result of a drill. Times are in seconds from the notice; None for what did not happen.

    Attributes:
        node: The interrupted node.
        notice_s: When the training received the notice.
        checkpoint_s: When a checkpoint was written.
        killed_s: When the node was killed.
        continued_s: When training started on another node.
        continued_on: That node; empty if there was none.
        step: The step from which training continued.
        steps_lost: Steps that had to be repeated.
    """

    node: str
    notice_s: float | None
    checkpoint_s: float | None
    killed_s: float
    continued_s: float | None = None
    continued_on: str = ""
    step: int | None = None
    steps_lost: int | None = None

    @property
    def has_continued(self) -> bool:
        """Whether training continued from a checkpoint."""
        return self.continued_s is not None and bool(self.step)


@contextlib.contextmanager
def local_cluster() -> Iterator[str]:
    """Run a head without cores and two nodes of one core each on this machine, and yield their address."""
    from ray.cluster_utils import Cluster

    quick = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    with output_to_stderr():
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick}
        )
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=1)
            yield str(cluster.address)
        finally:
            ray.shutdown()
            cluster.shutdown()


def drill(
    address: str,
    folder: Path,
    *,
    notice_s: float = 20.0,
    patience_s: float = 300.0,
    on_line: Callable[[str], object] = lambda _: None,
) -> DrillResult:
    """Interrupt a node of a cluster under a small training.

    Args:
        address: Address of the cluster.
        folder: Run folder of the training, on storage that all nodes share, or the local mirror of a bucket.
        notice_s: Time from the notice to the end of the node.
        patience_s: How long training may take to start, and to continue.
        on_line: Called with each line of progress.

    Raises:
        RaysentError: If the cluster has fewer than two worker nodes, or no training starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with output_to_stderr(), ray_session(address):
        killers = _start_killers()
        if len(killers) < _NUM_NODES:
            raise CloudError(f"{address}: must have {_NUM_NODES} worker nodes; has {len(killers)}")
        training = _start_training(folder)
        watch = _Watch(folder, training)
        first = watch.wait(
            lambda notes: [one for one in notes if one["event"] == "report"], patience_s
        )
        if first is None:
            raise CloudError(
                f"{address}: no training started within {patience_s:.0f} s; is a node free?"
            )
        found = _interrupt(
            first["node"], killers, watch, notice_s=notice_s, patience_s=patience_s, on_line=on_line
        )
        ray.wait([training], timeout=_END_S)
        return found


def _interrupt(
    node: str,
    killers: dict[str, Any],
    watch: _Watch,
    *,
    notice_s: float,
    patience_s: float,
    on_line: Callable[[str], object],
) -> DrillResult:
    """Drain a node, kill it at its deadline, and return how the training continues."""
    before = watch.last_checkpoint()
    on_line(f"training on {node_name(node)}, which is drained now and killed in {notice_s:.0f} s")
    drain_node(str(ray.get_runtime_context().gcs_address), node, left_s=notice_s, why="a drill")
    start_s = time.time()
    noticed: Note | None = None
    checkpoint_s: float | None = None
    while time.time() - start_s < notice_s:
        noticed = noticed or next((one for one in watch.notes() if one["event"] == "noticed"), None)
        if noticed and checkpoint_s is None and watch.last_checkpoint() > before:
            checkpoint_s = time.time() - start_s
            on_line("a checkpoint is written")
        time.sleep(_POLL_S)
    killers[node].kill.remote()
    killed_s = time.time() - start_s
    on_line("the node is killed")
    noticed_s = noticed["time"] - start_s if noticed else None
    result = DrillResult(node_name(node), noticed_s, checkpoint_s, killed_s)

    def elsewhere(notes: list[Note]) -> list[Note]:
        return [one for one in notes if one["event"] == "report" and one["node"] != node]

    after = watch.wait(elsewhere, patience_s)
    if after is None:
        return result
    begins = [
        one for one in watch.notes() if one["event"] == "begins" and one["node"] == after["node"]
    ][-1]
    return replace(
        result,
        continued_s=begins["time"] - start_s,
        continued_on=node_name(after["node"]),
        step=begins["step"],
        steps_lost=after["steps_lost"],
    )


class _Watch:
    """Watches the files of a training."""

    def __init__(self, folder: Path, training: ray.ObjectRef[None]) -> None:
        self._folder, self._training = folder, training

    def notes(self) -> list[Note]:
        """Return the notes of its workers so far."""
        refresh(self._folder, with_checkpoints=True)
        path = self._folder / NOTES_FILE
        return read_json_lines(path) if path.exists() else []

    def last_checkpoint(self) -> int:
        """Return the step of the last checkpoint, or -1 if there is none."""
        place = self._folder / CHECKPOINT_FOLDER
        return max(
            (int(path.stem) for path in place.glob("*.json") if path.stem.isdigit()), default=-1
        )

    def wait(self, found: Callable[[list[Note]], list[Note]], limit_s: float) -> Note | None:
        """Wait for notes that `found` selects; return the first, or None after `limit_s` or when the training ends."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            ended, _ = ray.wait([self._training], timeout=_POLL_S)
            notes = found(self.notes())
            if notes:
                return notes[0]
            if ended:
                return None
        return None


def _worker_nodes() -> list[str]:
    return [
        node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
    ]


def _start_killers() -> dict[str, Any]:
    """Start an actor on every worker node that can kill it; Ray places no new actor on a draining node."""

    class Killer:
        def kill(self) -> None:
            os.kill(os.getppid(), signal.SIGKILL)  # the parent process is the node's raylet

    actor = ray.remote(num_cpus=0)(Killer)
    placed: dict[str, Any] = {
        node: actor.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote()
        for node in _worker_nodes()
    }
    ray.get([one.__ray_ready__.remote() for one in placed.values()])
    return placed


def _start_training(folder: Path) -> ray.ObjectRef[None]:
    """Start training from another process on this node, which Ray ends with the session.

    A thread in this process might still call Ray when the session ends, and Ray would then end the whole process.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    task: Any = ray.remote(num_cpus=0, max_retries=0)(_train)
    training: ray.ObjectRef[None] = task.options(scheduling_strategy=here).remote(
        to_uri(folder), str(folder.absolute() / ".ray_train")
    )
    return training


def _train(place: str, storage: str) -> None:
    """Train on one worker of the cluster until it has continued on another node."""
    set_ray_environment()
    import ray.train
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        _worker,
        train_loop_config={"folder": place},
        scaling_config=ray.train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(
            name=uuid.uuid4().hex[:12],
            storage_path=storage,
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    ).fit()


def _worker(job: dict[str, Any]) -> None:
    """Train in one Ray Train worker; write a note at the start, at each report, and at the notice of its node."""
    folder = open_folder(job["folder"], with_checkpoints=True)
    node = str(ray.get_runtime_context().get_node_id())
    steps = [
        int(path.stem)
        for path in (folder / CHECKPOINT_FOLDER).glob("*.json")
        if path.stem.isdigit()
    ]
    first_step = max(steps, default=0)
    noticed, ask, num_reports = [False], worker_notice(), [0]

    def note(event: str, **values: Any) -> None:
        append_json_line(
            folder / NOTES_FILE, {"event": event, "node": node, "time": time.time(), **values}
        )

    def notice() -> float | None:
        left_s = ask()
        if left_s is not None and not noticed[0]:
            noticed[0] = True
            note("noticed", left_s=left_s)
        return left_s

    def report(now: Report) -> bool:
        note("report", step=now.step, steps_lost=now.steps_lost)
        num_reports[0] += 1
        return not first_step or num_reports[0] < _REPORTS_AFTER

    note("begins", step=first_step)
    fit(RunConfig.model_validate(_RUN), folder, report=report, interruptions=Interruptions(notice))
