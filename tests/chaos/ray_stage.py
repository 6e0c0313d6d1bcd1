"""A stage on Ray: nodes and workers are real processes of this machine."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psutil
from ray.cluster_utils import Cluster

from chaos.driver import NODES_VARIABLE
from chaos.stage import Stage
from raysent.preemption import InstanceMetadata, NodeAgent, drain_node
from raysent.training.ray_session import node_name

NUM_WORKERS = 2
_PATIENCE_S = 600.0
# Processes in which trials train, as Ray names them.
_WORKERS = ("ReusedActor", "ResourceTrainable")


@dataclass
class RayStage(Stage):
    """A stage whose machines are Ray nodes."""

    notice_s: ClassVar[float] = 6.0
    epochs: ClassVar[int] = 120
    is_on_ray: ClassVar[bool] = True
    cluster: ClassVar[Any] = None

    @property
    def env(self) -> dict[str, str]:
        """What the environment of the driver's machine says, and where trials on nodes leave signs of life."""
        return {**super().env, NODES_VARIABLE: os.environ[NODES_VARIABLE]}

    @property
    def options(self) -> tuple[str, ...]:
        """The cluster."""
        return ("--address", self.cluster.address)

    def wait(self) -> str:
        """Wait for the moment; returns a node on which a trial trains, or will."""
        super().wait()
        at_work = {process.ppid() for process in self._workers()}
        nodes = {self._raylet(node): node for node in self.cluster.worker_nodes}
        found = [node_name(node.node_id) for raylet, node in nodes.items() if raylet in at_work]
        return found[0] if found else node_name(next(iter(self.cluster.worker_nodes)).node_id)

    def take(self, machine: str) -> None:
        """End a node without a word; one that was drained and had nothing to do has gone by itself."""
        node = self._node(machine)
        if not node.dead_processes():
            self.lost_s[machine] = time.monotonic()
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End what still runs, nodes that were drained too."""
        super().close()
        for machine in self.lost_s:
            with contextlib.suppress(StopIteration):
                self.cluster.remove_node(self._node(machine), allow_graceful=False)

    def kill_worker(self, chance: random.Random) -> None:
        """End one of the processes in which trials train, as soon as there is one."""
        thread = threading.Thread(target=self._kill_worker, args=(chance,))
        thread.start()
        self._threads.append(thread)

    def _kill_worker(self, chance: random.Random) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while not (workers := self._workers()):
            assert time.monotonic() < until_s, "no process trains"
            time.sleep(0.05)
        chance.choice(workers).kill()

    def agent(self, machine: str, url: str) -> NodeAgent:
        """Return the node agent of a node, which asks at `url`."""
        node_id = self._node(machine).node_id

        def drain(left_s: float, why: str) -> None:
            drain_node(self.cluster.address, node_id, left_s=left_s, why=why)
            self.lost_s.setdefault(machine, time.monotonic())  # it may go from now on

        return NodeAgent(InstanceMetadata(url), drain, poll_s=0.05)

    def _node(self, machine: str) -> Any:
        return next(
            node for node in self.cluster.worker_nodes if node_name(node.node_id) == machine
        )

    @staticmethod
    def _raylet(node: Any) -> int:
        return int(node.all_processes["raylet"][0].process.pid)

    @staticmethod
    def _workers() -> list[psutil.Process]:
        """Return the processes of this cluster in which trials train."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(name in " ".join(process.cmdline()) for name in _WORKERS):
                    found.append(process)
        return found


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """Run a head without cores and as many nodes of one core each as there are workers, that miss each other soon."""
    quick = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick})
    try:
        fill(cluster)
        yield cluster
    finally:
        cluster.shutdown()


def fill(cluster: Any) -> None:
    """Put nodes in the place of those that were taken, and one spare."""
    while len(cluster.worker_nodes) < NUM_WORKERS + 1:
        cluster.add_node(num_cpus=1)
