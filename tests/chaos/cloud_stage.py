"""A stage on a cluster that grows: workers are admitted, launched through the gate, and billed by the cloud's list."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import ClassVar

from chaos.cloud import FIRST, HEAD, LABELS, SECOND, Cloud
from chaos.stage import USD_PER_HOUR, Ending, Stage
from chaos.verdict import KILLED, Found
from raysent.cluster.fleet import FleetSettings
from raysent.cluster.gate import LAUNCHED, REFUSED, Record
from raysent.cost import machine_charges
from raysent.sweeps import Workers

# What a ledger may lack, or have too much, of what was used: a look at the list takes that long on a busy machine.
_SLACK_USD = 0.05


class CloudStage(Stage):
    """A stage in a cloud, with one worker at a time: of the type `first`, else of the type `second`."""

    cost: ClassVar[str] = f"machines: {{{LABELS['instance-type']}: {USD_PER_HOUR}}}, poll: 0.2s"

    # The sweep lasts until another machine has taken a lost one's place.
    epochs: ClassVar[int] = 250

    def __post_init__(self) -> None:
        self.machines = ()
        super().__post_init__()
        self.cloud = Cloud(self.folder / "cloud", self.folder / "machines")
        self.cloud.found()
        self._head_folder.mkdir()

    @property
    def options(self) -> tuple[str, ...]:
        """A cluster."""
        return ("--address", "simulated")

    @property
    def env(self) -> dict[str, str]:
        """What the launcher of the cluster tells a sweep."""
        resources = {"CPU": 1.0}
        types = {
            name: {"resources": resources, "labels": LABELS, "priority": priority, "max_workers": 1}
            for name, priority in ((FIRST, 10), (SECOND, 0))
        }
        folder = self._head_folder
        settings = FleetSettings(
            "simulated", "us-east-1", types, 1, str(folder), str(folder / "config.json")
        )
        return {**super().env, **settings.environment(), **Workers(1, 1).environment()}

    @property
    def record(self) -> Record:
        """What the gate of the head recorded."""
        return Record(self._head_folder)

    def workers(self) -> list[str]:
        """Return the workers that are billed now."""
        return self.cloud.running(FIRST, SECOND)

    def take_workers(self) -> None:
        """Let the cloud take all workers, so that others have to be launched."""
        for name in self.workers():
            self.cloud.end(name)

    def kill_head(self, *, alone_s: float) -> None:
        """Let the head be gone, with its disk; its workers end themselves after a while, as no Ray is left to them."""
        self.kill_driver()
        for name in self.cloud.running(HEAD):
            self.cloud.end(name)
        shutil.rmtree(self._head_folder)
        self._head_folder.mkdir()
        for path in (self.folder / "machines").glob("*.json"):
            path.unlink()
        left = self.workers()
        thread = threading.Timer(alone_s, lambda: [self.cloud.end(name) for name in left])
        thread.start()
        self._threads.append(thread)

    @property
    def _head_folder(self) -> Path:
        return self.folder / "head"


def check_cloud(stage: CloudStage, found: Found, fault: str, ending: Ending) -> None:
    """Every machine is billed from its launch to its end, and what had to come instead came."""
    base_s = stage.cloud.now - time.monotonic()
    sessions = [json.loads(path.read_text()) for path in stage.folder.glob("session-*.json")]
    begin_s = min(times[0] for times in sessions) + base_s
    least_s = max(times[1] for times in sessions if len(times) > 1)
    charges = machine_charges(found.ledger)
    for name, one in stage.cloud.all().items():
        charged = charges[name].usd if name in charges else 0.0
        # The head was launched before the sweep began, and is charged from then on at least.
        used, most = (
            min(one["ended"] or until, until) - max(one["launched"], since)
            for since, until in ((begin_s, least_s + base_s), (0.0, stage.cloud.now))
        )
        assert used - _SLACK_USD <= charged <= most + _SLACK_USD, (
            f"{name}: {charged:.3f} charged, {used:.3f} used"
        )
    joined = [one for one in stage.cloud.all().values() if one.get("joined")]
    if fault == "launch refused":
        assert {line["type"] for line in stage.record.lines() if line["event"] == REFUSED} == {
            FIRST
        }
        assert joined[-1]["type"] == SECOND
    if fault == "never joins":
        [lost] = [one for one in stage.cloud.all().values() if not one["joins"]]
        assert (lost["type"], joined[-1]["type"]) == (FIRST, SECOND)
        assert lost["ended"] is not None
    launched = [line for line in stage.record.lines() if line["event"] == LAUNCHED]
    assert sum(line["type"] != HEAD for line in launched) <= len(stage.cloud.all()) - 1
    assert ending.code == (KILLED if fault == "head killed" else 0), ending.errors
