"""A drill: a node of a cluster is taken away under a small training, as the cloud would, and it is told what happened.

The node is drained with a deadline, as the node agent drains it after a notice, and killed when that is over. Training
has to go on on another node, from a checkpoint that was written in between.
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
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysent.errors import CloudError
from raysent.preemption import drain_node, worker_notice
from raysent.storage import append_json_line, open_folder, read_json_lines, refresh, to_uri
from raysent.storage.layout import CHECKPOINT_FOLDER
from raysent.training.checkpoint import Interruptions
from raysent.training.loop import fit
from raysent.training.outcome import Report
from raysent.training.ray_train import node_name, quiet_output, quiet_ray, ray_session
from raysent.training.run import RunConfig

NOTES_FILE = "drill.jsonl"
# Trained for no longer than it takes to see what happens.
_REPORTS_AFTER = 2
_POLL_S = 0.2
# How long a training that has shown what it can may take to end well.
_END_S = 10.0
# One to be taken, one to go on.
_NUM_NODES = 2

Note = dict[str, Any]
_RUN = {
    "corpus": {"path": "docs"},
    "vocabulary": {"size": 2000},
    "encoder": {"type": "gru", "hidden_size": 24, "embedding": {"dim": 16}},
    "objective": {"type": "context_prediction"},
    "training": {"batch_size": 50, "learning_rate": 5e-3, "max_steps": 20_000, "epochs": 1000, "num_reports": 100},
    "validation": {"num_candidates": 50, "num_sentences": 100},
}


@dataclass(frozen=True)
class DrillResult:
    """What a drill showed. Times count from the notice, in seconds; None for what did not happen.

    Attributes:
        node: The node that was taken.
        notice_s: When its training heard of it.
        checkpoint_s: When a checkpoint was there.
        killed_s: When the node was killed.
        continued_s: When training had begun on another node.
        continued_on: That node; empty where there was none.
        step: From which step it went on.
        steps_lost: Steps that were done again.
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
        """Whether training went on from where it was."""
        return self.continued_s is not None and bool(self.step)


@contextlib.contextmanager
def local_cluster() -> Iterator[str]:
    """Run a head without cores and two nodes of one core on this machine; yields their address."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - for this alone

    quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    with quiet_output():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick})
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
    """Take a node of a cluster away under a small training.

    Args:
        address: The cluster's.
        folder: Where the training's files are; on storage that all nodes share, or a bucket's working folder.
        notice_s: From the notice to the end of the node.
        patience_s: How long training may take to begin, and to go on again.
        on_line: Hears what is going on, a line at a time.

    Raises:
        RaysentError: If there is nothing to drill on, or no training begins.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_output(), ray_session(address):
        executioners = _executioners()
        if len(executioners) < 2:
            raise CloudError(
                f"{address}: must have two worker nodes to go on from one to the other; has {len(executioners)}"
            )
        training = _begin_training(folder)
        watch = _Watch(folder, training)
        begun = watch.wait(lambda notes: [one for one in notes if one["event"] == "report"], patience_s)
        if begun is None:
            raise CloudError(f"{address}: no training began within {patience_s:.0f} s; is a node free?")
        found = _take_away(
            begun["node"], executioners, watch, notice_s=notice_s, patience_s=patience_s, on_line=on_line
        )
        ray.wait([training], timeout=_END_S)
        return found


def _take_away(
    node: str,
    executioners: dict[str, Any],
    watch: _Watch,
    *,
    notice_s: float,
    patience_s: float,
    on_line: Callable[[str], object],
) -> DrillResult:
    """Drain a node, kill it when its time is over, and see what becomes of the training."""
    before = watch.last_checkpoint()
    on_line(f"training on {node_name(node)}; it is drained, and killed in {notice_s:.0f} s")
    drain_node(str(ray.get_runtime_context().gcs_address), node, left_s=notice_s, why="a drill")
    began_s = time.time()
    noticed: Note | None = None
    checkpoint_s: float | None = None
    while time.time() - began_s < notice_s:
        noticed = noticed or next((one for one in watch.notes() if one["event"] == "noticed"), None)
        if noticed and checkpoint_s is None and watch.last_checkpoint() > before:
            checkpoint_s = time.time() - began_s
            on_line("a checkpoint is there")
        time.sleep(_POLL_S)
    executioners[node].end.remote()
    killed_s = time.time() - began_s
    on_line("killed")
    noticed_s = noticed["time"] - began_s if noticed else None
    told = DrillResult(node_name(node), noticed_s, checkpoint_s, killed_s)

    def elsewhere(notes: list[Note]) -> list[Note]:
        return [one for one in notes if one["event"] == "report" and one["node"] != node]

    after = watch.wait(elsewhere, patience_s)
    if after is None:
        return told
    begins = [one for one in watch.notes() if one["event"] == "begins" and one["node"] == after["node"]][-1]
    return replace(
        told,
        continued_s=begins["time"] - began_s,
        continued_on=node_name(after["node"]),
        step=begins["step"],
        steps_lost=after["steps_lost"],
    )


class _Watch:
    """Looks at what a training leaves in its folder."""

    def __init__(self, folder: Path, training: ray.ObjectRef[None]) -> None:
        self._folder, self._training = folder, training

    def notes(self) -> list[Note]:
        """Return what its workers have noted so far."""
        refresh(self._folder, with_checkpoints=True)
        path = self._folder / NOTES_FILE
        return read_json_lines(path) if path.exists() else []

    def last_checkpoint(self) -> int:
        """Return the step of the last checkpoint; -1 where there is none."""
        place = self._folder / CHECKPOINT_FOLDER
        return max((int(path.stem) for path in place.glob("*.json") if path.stem.isdigit()), default=-1)

    def wait(self, found: Callable[[list[Note]], list[Note]], limit_s: float) -> Note | None:
        """Return the first note that is looked for; None if it does not come in time, or the training has ended."""
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
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _ask_for_nodes(patience_s: float) -> None:
    """Let a cluster that grows start as many worker nodes as a drill needs."""
    needed = placement_group([{"CPU": 1}] * _NUM_NODES, strategy="STRICT_SPREAD")
    needed.wait(timeout_seconds=patience_s)
    remove_placement_group(needed)


def _executioners() -> dict[str, Any]:
    """Put an actor on every worker node that can kill it: nothing new is placed on a node that is drained."""

    class Executioner:
        def end(self) -> None:
            os.kill(os.getppid(), signal.SIGKILL)  # Ray's own process, whose child this is

    actor = ray.remote(num_cpus=0)(Executioner)
    placed: dict[str, Any] = {
        node: actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in _worker_nodes()
    }
    ray.get([one.__ray_ready__.remote() for one in placed.values()])
    return placed


def _begin_training(folder: Path) -> ray.ObjectRef[None]:
    """Begin training from a process of its own beside this one, which Ray ends with the session.

    A thread here could still be asking Ray when the session ends, and Ray then ends the whole process.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    task: Any = ray.remote(num_cpus=0, max_retries=0)(_train)
    training: ray.ObjectRef[None] = task.options(scheduling_strategy=here).remote(
        to_uri(folder), str(folder.absolute() / ".ray_train")
    )
    return training


def _train(place: str, storage: str) -> None:
    """Train on one worker of the cluster until it has gone on elsewhere."""
    quiet_ray()
    import ray.train  # noqa: PLC0415 - seconds that no other command should pay
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

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
    """Train in one Ray Train worker, noting where it is and when it hears that its node goes."""
    folder = open_folder(job["folder"], with_checkpoints=True)
    node = str(ray.get_runtime_context().get_node_id())
    steps = [int(path.stem) for path in (folder / CHECKPOINT_FOLDER).glob("*.json") if path.stem.isdigit()]
    begun_step = max(steps, default=0)
    noticed, ask, num_reports = [False], worker_notice(), [0]

    def note(event: str, **values: Any) -> None:
        append_json_line(folder / NOTES_FILE, {"event": event, "node": node, "time": time.time(), **values})

    def notice() -> float | None:
        left_s = ask()
        if left_s is not None and not noticed[0]:
            noticed[0] = True
            note("noticed", left_s=left_s)
        return left_s

    def report(now: Report) -> bool:
        note("report", step=now.step, steps_lost=now.steps_lost)
        num_reports[0] += 1
        return not begun_step or num_reports[0] < _REPORTS_AFTER

    note("begins", step=begun_step)
    fit(RunConfig.model_validate(_RUN), folder, report=report, interruptions=Interruptions(notice))
