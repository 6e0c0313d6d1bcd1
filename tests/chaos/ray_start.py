"""Machines of a Ray cluster that `ray start` starts on this computer, each with an address of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from machines import free_ports

# How long a machine may take to start, on a busy computer; how long its processes wait for a head that has gone.
_START_S, _HEAD_GONE_S = 300.0, 20
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(_HEAD_GONE_S),
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "30",
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Machine:
    """A machine.

    Attributes:
        address: Its own address on the loopback.
        process: `ray start --block`.
        instance: Its id in the list of a cloud; empty if it has none.
    """

    address: str
    process: subprocess.Popen[bytes]
    instance: str = ""

    def kill(self) -> None:
        """Let it be gone with all its processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            mine = psutil.Process(self.process.pid)
            for one in [*mine.children(recursive=True), mine]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self.process.wait()


@dataclass
class StartedCluster:
    """A head without cores, and workers.

    Attributes:
        folder: Has a short name.
        env: Variables of its processes beside those of this process.
        head: The head.
        workers: The workers.
        address: Of the head, for `--address`.
    """

    folder: Path
    env: Mapping[str, str]
    head: Machine | None = None
    workers: list[Machine] = field(default_factory=list)
    address: str = ""
    _num_started: int = 0

    def start_head(self) -> None:
        """Start a head, at another port than an earlier one, which knows nothing of that one's cluster."""
        port, client_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        place = [
            f"--port={port}",
            f"--ray-client-server-port={client_port}",
            f"--temp-dir={self.folder}/{port}",
        ]
        self.head = self._start(
            "127.0.0.1", "--head", *place, "--num-cpus=0", "--include-dashboard=false"
        )

    def start_worker(self, *, instance: str = "", cores: int = 1) -> Machine:
        """Start a worker at the next address."""
        address = f"127.0.0.{2 + self._num_started % 200}"
        machine = self._start(
            address, f"--address={self.address}", f"--num-cpus={cores}", instance=instance
        )
        self.workers.append(machine)
        return machine

    def kill_worker(self, number: int) -> None:
        """Let a worker be gone."""
        self.workers.pop(number).kill()

    def kill_head(self) -> None:
        """Let the head be gone; its workers end when they have missed it for some seconds."""
        assert self.head is not None
        self.head.kill()
        for one in self.workers:
            one.process.wait(_START_S)
            one.kill()
        self.workers.clear()
        self.head = None

    def fill(self, num_workers: int) -> None:
        """Start what is missing."""
        if self.head is None or self.head.process.poll() is not None:
            self.start_head()
        while len(self.workers) < num_workers:
            self.start_worker()

    def _start(self, address: str, *options: str, instance: str = "") -> Machine:
        self._num_started += 1
        log = self.folder / f"{self._num_started}.log"
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options),
            *(f"--node-ip-address={address}", f"--dashboard-agent-listen-port={free_ports(1)[0]}"),
            *("--object-store-memory=80000000", "--disable-usage-stats"),
        ]
        env = {**os.environ, **ENVIRONMENT, **self.env}
        if instance:
            env["RAY_CLOUD_INSTANCE_ID"] = instance
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command, env=env, stdout=stream, stderr=stream, start_new_session=True
            )
        machine, until_s = Machine(address, process, instance), time.monotonic() + _START_S
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None or time.monotonic() > until_s:
                machine.kill()
                raise AssertionError(f"a machine did not start: {log.read_text()}")
            time.sleep(0.1)
        return machine


@contextlib.contextmanager
def started_cluster(**env: str) -> Iterator[StartedCluster]:
    """Yield a cluster without machines; those that are started end with the block."""
    # The paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp", ignore_cleanup_errors=True) as name:
        cluster = StartedCluster(Path(name), env)
        try:
            yield cluster
        finally:
            for machine in [*cluster.workers, *([cluster.head] if cluster.head else [])]:
                machine.kill()
