"""The cluster of a stage without Ray: machines are files, and trials train in the driver's process, one at a time.

What carries reports and decisions is the adapter that Ray Tune gets too, and a trial trains as it does on Ray. A machine
is there as long as its file is; it has a cache of its own, which goes with it. Where the run is in a bucket, nothing
that was not put there outlives a machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.config import Config
from botocore.retries.standard import ExponentialBackoff

from chaos import cloud
from chaos.driver import Watch
from chaos.moments import Sight
from raysent.cluster import fleet as cluster_fleet
from raysent.cluster import prices as cluster_prices
from raysent.cost import prices
from raysent.pipeline import evaluation, finishing
from raysent.preemption.ray_nodes import _Deadline
from raysent.sweeps import driver, ray_tune, trainables
from raysent.sweeps import fleet as sweeps_fleet
from raysent.sweeps import machines as fleet
from raysent.training import interruptions
from raysent.training.outcome import Report

# A machine of which the end is known trains slowly, so that the end comes while it trains.
_SLOW_S = 0.03
_LOOK_S = 0.02
_PATIENCE_S = 600.0


class MachineLost(BaseException):
    """Whatever ran on a machine is no more."""


@dataclass(frozen=True)
class Machine:
    """A machine of a stage, seen from the driver."""

    path: Path

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.stem

    def deadline_ms(self) -> int | None:
        """Return until when it is there, in milliseconds since 1970; None if that is unknown.

        Raises:
            MachineLost: If it is not there any more.
        """
        try:
            told = json.loads(self.path.read_text())["deadline_ms"]
        except FileNotFoundError:
            raise MachineLost from None
        return None if told is None else int(told)

    def labels(self) -> dict[str, str]:
        """Return its type and market, as far as it says them."""
        labels: dict[str, str] = json.loads(self.path.read_text())["labels"]
        return labels

    def is_free(self) -> bool:
        """Whether trials may be placed there."""
        try:
            return self.deadline_ms() is None
        except MachineLost:
            return False

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Do what is in the block on this machine: its disk goes with it."""
        cache = self.path.with_suffix("")
        try:
            with _cached(str(cache)):
                yield
        except MachineLost:
            shutil.rmtree(cache, ignore_errors=True)
            raise


@contextlib.contextmanager
def _cached(folder: str) -> Iterator[None]:
    """Be on the machine whose cache is there."""
    before, os.environ["RAYSENT_CACHE"] = os.environ["RAYSENT_CACHE"], folder
    try:
        yield
    finally:
        os.environ["RAYSENT_CACHE"] = before


class Cluster:
    """The machines of a stage, and the trials on them."""

    def __init__(self, stage: Path, watch: Watch) -> None:
        self._stage, self._watch, self._cache = stage, watch, os.environ["RAYSENT_CACHE"]

    def machines(self) -> list[Machine]:
        """Return those that are there."""
        return [Machine(path) for path in sorted((self._stage / "machines").glob("*.json"))]

    def nodes(self) -> list[dict[str, Any]]:
        """Return them as `ray.nodes` does."""
        found = []
        for machine in self.machines():
            with contextlib.suppress(FileNotFoundError):  # it has just gone
                facts = {
                    "NodeID": machine.name,
                    "Labels": machine.labels(),
                    "Resources": {"CPU": 1.0},
                }
                found.append({**facts, "Alive": True})
        return found

    def run_trials(
        self, controller: Any, plan: Any, *, describe: Any, is_over: Any, cost_tracker: Any
    ) -> bool:
        """Train all trials in turn; has the form of `ray_tune.run_trials`."""
        cost_tracker.num_slots = plan.concurrent
        session = ray_tune.Session(controller, cost_tracker, describe, is_over)
        search, scheduler = ray_tune._Search(session), ray_tune._Scheduler(session)
        interrupt = ray_tune._Interrupt(session)
        number = 0
        while not interrupt.stop_all():
            config = search.suggest(str(number))
            if not isinstance(config, dict):
                break
            self._train(config, number, search, scheduler, interrupt)
            number += 1
        if session.ending is not None:
            raise session.ending
        return False

    def _train(
        self, config: dict[str, Any], number: int, search: Any, scheduler: Any, interrupt: Any
    ) -> None:
        """Train a trial, elsewhere when its machine goes, as often as Ray Tune would."""
        trial = SimpleNamespace(config=config)
        for _ in range(ray_tune.MAX_RESTARTS + 1):
            machine = self._place(number, interrupt)
            self._watch.machine = machine.name
            try:
                with machine.at_work():
                    message = self._run(config, machine, trial, scheduler)
            except MachineLost:
                continue
            except trainables.STORAGE_ERRORS as error:
                scheduler.on_trial_result(None, trial, trainables.storage_failure(error))
                continue
            finally:
                self._watch.machine = ""
            scheduler.on_trial_complete(None, trial, message)
            return
        search.on_trial_complete(str(number), error=True)

    def _place(self, number: int, interrupt: Any) -> Machine:
        """Return the machine for a trial, as soon as there is one; the driver's own takes none.

        Meanwhile the driver asks as often as Tune does whether the sweep goes on.
        """
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            free = [
                machine
                for machine in self.machines()
                if machine.is_free() and machine.name != "head"
            ]
            if free:
                return free[number % len(free)]
            interrupt.stop_all()
            time.sleep(_LOOK_S)
        raise AssertionError("no machine came for a trial")

    def _run(
        self, config: dict[str, Any], machine: Machine, trial: Any, scheduler: Any
    ) -> dict[str, Any]:
        stopped: list[bool] = []
        stop_trial = SimpleNamespace(remote=lambda: stopped.append(True))
        trial.temporary_state = SimpleNamespace(ray_actor=SimpleNamespace(stop_trial=stop_trial))

        def tell(report: Report) -> bool:
            machine.deadline_ms()
            message = trainables.report_message(report, node=machine.name)
            flat = {
                **message,
                **{f"metrics/{name}": value for name, value in report.metrics.items()},
            }
            with _cached(self._cache):
                scheduler.on_trial_result(None, trial, flat)
            return not stopped

        notice = _Deadline(machine.deadline_ms)

        def look() -> float | None:
            with _cached(self._cache):
                self._watch.see(Sight("look", Path(), {}))
            left_s = notice()
            time.sleep(0.0 if left_s is None else _SLOW_S)
            return left_s

        return trainables.train_trial(config, tell, notice=look)


def install(stage: Path, watch: Watch) -> None:
    """Put the stage's machines in Ray's place, in this process."""
    cluster = Cluster(stage, watch)
    fleet.ray = SimpleNamespace(nodes=cluster.nodes, cluster_resources=lambda: {"CPU": 1.0})
    driver.check_files = lambda *_: None
    driver.ray_session = sweeps_fleet.ray_session = lambda *_, **__: contextlib.nullcontext()
    fleet.cpus_of_largest_node = lambda: 1
    driver.run_trials = cluster.run_trials
    finishing._map_of = lambda _: evaluation.LocalMap(1)
    if (stage / "cloud").is_dir():
        cloud.install(cloud.Cloud(stage / "cloud", stage / "machines"), cluster_fleet)
    interruptions.CHECK_INTERVAL_S = _LOOK_S
    # A kill loses nothing of what the operating system has; waiting for the disk would be most of a cell's time.
    os.fsync = lambda _: None
    # As often, but without the seconds between.
    ExponentialBackoff.delay_amount = lambda *_: 0.002
    # Prices are asked for at every poll and soon given up, and no machine is billed for a minute that it did not run.
    cluster_prices.FRESH_S, prices.MINIMUM_S = 0.0, 0.0
    cluster_prices._PATIENCE = Config(
        connect_timeout=0.5, read_timeout=0.5, retries={"total_max_attempts": 2}
    )
