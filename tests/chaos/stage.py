"""A stage: a run, the storage it lies in, machines, and a driver to strike at."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import boto3
from caches import own_cache
from command import write_task
from machines import metadata_service
from object_store import BUCKET, CREDENTIALS
from tiny_run import write_corpus

from chaos.driver import COME, GO, Order, play, write_whole
from chaos.moments import NUM_REPORTS, REDUCTION_FACTOR
from chaos.store import Store, Weather
from raysent.preemption import InstanceMetadata, NodeAgent

NUM_TRIALS = 3
USD_PER_HOUR = 3600.0
MACHINES = ("head", "one", "two", "three")
# A busy machine takes long to start a driver.
_COME_S, _POLL_S = 600.0, 0.005

SPACE = """
metric: context_accuracy
base:
  corpus: {{path: {folder}/text.txt, cache_dir: {folder}/corpora, validation_fraction: 0.2}}
  vocabulary: {{size: 100}}
  encoder: {{type: bag, embedding: {{dim: 8}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 24, epochs: {epochs}, num_reports: {num_reports}}}
  validation: {{num_candidates: 20, num_sentences: 40}}
search:
  training.learning_rate: {{loguniform: [1e-3, 1e-1]}}
limits: {{trials: {trials}, time: 1h, scheduler: {{type: asha, reduction_factor: {factor}}}}}
evaluation: {{tasks: [MR], members: 2, baselines: false}}
cost: {{{cost}, budget: 100000usd, deadline: 12h, drain: 1s, terminate: 1s}}
"""


@dataclass
class Ending:
    """How a driver ended.

    Attributes:
        code: Its exit code; negative where a signal ended it.
        errors: What it wrote to standard error.
        at_s: When, on the monotonic clock that all processes share.
    """

    code: int
    errors: str
    at_s: float


@dataclass
class Stage:
    """Everything that a fault may strike at.

    Attributes:
        folder: Of everything on this machine.
        store: An object store; None where the run lies on the disk.
        machines: The names of all machines.
        lost_s: Machine -> when it was taken, on the monotonic clock.
    """

    folder: Path
    store: Store | None
    machines: tuple[str, ...] = MACHINES
    lost_s: dict[str, float] = field(default_factory=dict)

    # Until a machine that was given notice is taken, until a driver is thought to hang, and how long a trial trains.
    notice_s: ClassVar[float] = 0.5
    end_s: ClassVar[float] = 900.0
    epochs: ClassVar[int] = 2
    is_on_ray: ClassVar[bool] = False
    # What the space says of the price of machines.
    cost: ClassVar[str] = f"usd_per_hour: {USD_PER_HOUR}, poll: 1s"

    def __post_init__(self) -> None:
        self._process: Any = None
        self._threads: list[threading.Thread] = []
        (self.folder / "machines").mkdir(parents=True)
        for name in self.machines:
            self._write_machine(name, None)
        write_corpus(self.folder)
        write_task(self.folder / "data")
        text = SPACE.format(
            folder=self.folder,
            num_reports=NUM_REPORTS,
            factor=REDUCTION_FACTOR,
            trials=NUM_TRIALS,
            cost=self.cost,
            epochs=self.epochs,
        )
        (self.folder / "space.yaml").write_text(text)
        if self.store is not None:
            self.store.reset()
            with_endpoint = {"endpoint_url": self.store.url, "region_name": "us-east-1"}
            keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
            boto3.client("s3", **with_endpoint, **keys).create_bucket(Bucket=BUCKET)

    @property
    def run(self) -> str:
        """The run's name on the command line."""
        return str(self.folder / "run") if self.store is None else f"s3://{BUCKET}/run"

    @property
    def options(self) -> tuple[str, ...]:
        """What else is typed."""
        return ()

    @property
    def env(self) -> dict[str, str]:
        """What the environment of the driver's machine says."""
        endpoint = {} if self.store is None else {"AWS_ENDPOINT_URL_S3": self.store.url}
        return {**CREDENTIALS, **endpoint, "RAYSENT_CACHE": own_cache(self.folder / "cache")}

    def labels(self, machine: str) -> dict[str, str]:
        """Return what a machine says of its type and market."""
        del machine
        return {}

    def usd(self, machine: str, begun_s: float, ended_s: float) -> float:
        """Return what a machine costs between two times on the monotonic clock, at least."""
        del machine
        return max(0.0, ended_s - begun_s) * USD_PER_HOUR / 3600

    # -- the driver ---------------------------------------------------------------------------------------------

    def sweep(self, *, moment: str = "", nth: int = 1) -> None:
        """Start a sweep whose driver waits at a moment."""
        data = self.folder / "data"
        space = str(self.folder / "space.yaml")
        self._start(
            ("sweep", space, "--run", self.run, "--data", str(data), "--yes", *self.options),
            moment,
            nth,
        )

    def resume(self) -> Ending:
        """Go on with the run, to its end."""
        self._start(("resume", self.run), "", 1)
        return self.ending()

    def wait(self) -> str:
        """Wait until the moment has come; returns the machine that is at work, empty where it is none."""
        come, until_s = self.folder / COME, time.monotonic() + _COME_S
        while not come.exists():
            assert self._process.is_alive(), f"the driver ended too early: {self._errors()}"
            assert time.monotonic() < until_s, "the moment never came"
            time.sleep(_POLL_S)
        return str(json.loads(come.read_text())["machine"])

    def go_on(self, orders: dict[str, Any]) -> None:
        """Let the driver go on; what can only be done inside its process, it does itself first."""
        write_whole(self.folder / GO, orders)

    def ending(self) -> Ending:
        """Wait for the driver's end, and for what still is to happen."""
        self._process.join(self.end_s)
        assert not self._process.is_alive(), f"the driver hangs: {self._errors()}"
        for thread in self._threads:
            thread.join()
        return Ending(self._process.exitcode, self._errors(), time.monotonic())

    def calm(self) -> None:
        """End what befell the store."""
        if self.store is not None:
            self.store.weather = Weather()

    def close(self) -> None:
        """End what still runs."""
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _start(self, arguments: tuple[str, ...], moment: str, nth: int) -> None:
        for name in (COME, GO):
            (self.folder / name).unlink(missing_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["chaos.driver", "chaos.machines", "chaos.warm"])
        self._process = context.Process(
            target=play,
            args=(Order(self.folder, arguments, self.env, moment, nth, is_on_ray=self.is_on_ray),),
        )
        self._process.start()

    def _errors(self) -> str:
        return (self.folder / "err.txt").read_text()

    # -- what faults do -----------------------------------------------------------------------------------------

    def kill_driver(self) -> None:
        """End the driver as kill -9 does."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def take(self, machine: str) -> None:
        """Take a machine away, with all that is on its disk."""
        self.lost_s.setdefault(machine, time.monotonic())
        self._machine(machine).unlink(missing_ok=True)

    def take_at(self, machine: str, seconds: float) -> None:
        """Take a machine away in so many seconds."""
        thread = threading.Timer(seconds, self.take, (machine,))
        thread.start()
        self._threads.append(thread)

    def agent(self, machine: str, url: str) -> NodeAgent:
        """Return the node agent of a machine, which asks at `url`."""

        def drain(left_s: float, why: str) -> None:
            del why
            self._write_machine(machine, int((time.time() + left_s) * 1000))

        return NodeAgent(InstanceMetadata(url), drain, poll_s=0.05)

    def _write_machine(self, name: str, deadline_ms: int | None) -> None:
        write_whole(self._machine(name), {"deadline_ms": deadline_ms, "labels": self.labels(name)})

    def _machine(self, name: str) -> Path:
        return self.folder / "machines" / f"{name}.json"


__all__ = ["Ending", "Stage", "metadata_service"]
