"""What goes wrong: each fault is a small object that strikes a stage at a moment."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any, Protocol

from machines import Metadata, metadata_service

from chaos.cloud import FIRST
from chaos.cloud_stage import CloudStage
from chaos.priced_stage import PricedStage
from chaos.stage import Stage

Orders = dict[str, Any]


class Fault(Protocol):
    """Something that goes wrong.

    Attributes:
        name: In the table.
        place: Where the run lies for it: `s3` or `disk`; `cloud`: in S3, on a cluster that grows.
    """

    name: str
    place: str

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Strike while the driver waits; returns what the driver's process has to do to itself."""
        ...


@dataclass(frozen=True)
class DriverKilled:
    """kill -9 of the driver."""

    name: str = "driver"
    place: str = "s3"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Kill it."""
        stage.kill_driver()
        return {}


@dataclass(frozen=True)
class WorkerKilled:
    """kill -9 of the process in which a trial trains."""

    name: str = "worker process"
    place: str = "disk"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Kill one."""
        stage.kill_worker(chance)
        return {}


@dataclass(frozen=True)
class NodeTaken:
    """A node that is taken as clouds do: a notice, then the end; `notices` in units of the stage's."""

    name: str = "node"
    place: str = "s3"
    notices: tuple[float, ...] = (1.0,)
    is_taken: bool = True

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Give every notice, as the metadata service would, and let the last deadline come true."""
        with metadata_service() as service:
            agent = stage.agent(machine, service.url)
            for times in self.notices:
                _arm(service, times * stage.notice_s)
                agent.poll()
        if self.is_taken:
            stage.take_at(machine, self.notices[-1] * stage.notice_s)
        return {}


@dataclass(frozen=True)
class NodeGone:
    """A node that is gone without a word."""

    name: str = "kill without notice"
    place: str = "s3"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Take it."""
        stage.take(machine)
        return {}


@dataclass(frozen=True)
class MetadataFlaps:
    """A metadata service that says 503, nothing, nonsense and a notice by turns; the end comes all the same."""

    name: str = "IMDS flapping"
    place: str = "s3"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Ask it again and again, as the agent does."""
        with metadata_service() as service:
            agent = stage.agent(machine, service.url)
            answers = ["silent", "nonsense", "none", "notice"] * 2
            chance.shuffle(answers)
            for answer in [*answers, "silent", "notice", "none"]:
                service.is_failing = answer == "silent"
                service.say("<html>" if answer == "nonsense" else None)
                if answer == "notice":
                    _arm(service, stage.notice_s)
                agent.poll()
        stage.take_at(machine, stage.notice_s)
        return {}


@dataclass(frozen=True)
class StorageFails:
    """An object store that refuses this share of all requests, for as long as the session lasts."""

    refused: float
    name: str
    place: str = "s3"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Refuse from now on."""
        assert stage.store is not None
        stage.store.weather.refused, stage.store.weather.chance = self.refused, chance
        return {}


@dataclass(frozen=True)
class StorageSlow:
    """An object store of which every answer takes this much longer."""

    name: str = "storage slow"
    place: str = "s3"
    slow_s: float = 0.1

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Be slow from now on."""
        assert stage.store is not None
        stage.store.weather.slow_s = self.slow_s
        return {}


@dataclass(frozen=True)
class UploadCut:
    """Uploads whose connection ends in the middle, one after the other."""

    name: str = "partial upload"
    place: str = "s3"
    num_cut: int = 4

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Cut the next uploads off."""
        assert stage.store is not None
        stage.store.weather.cut = self.num_cut
        return {}


@dataclass(frozen=True)
class DiskFull:
    """A disk that takes nothing more."""

    name: str = "disk full"
    place: str = "disk"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Fill it."""
        return {"fill_disk": True}


@dataclass(frozen=True)
class PricesDown:
    """A source of spot prices that answers nothing of use any more."""

    name: str = "price source down"
    place: str = "disk"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Tell no price from now on."""
        assert isinstance(stage, PricedStage)
        stage.source.go_down(chance)
        stage.wait_asked()
        return {}


@dataclass(frozen=True)
class ClockJumps:
    """The driver's time of day jumps by hours, there or back; then the driver is killed, as jumps matter to resumes."""

    name: str = "clock jump"
    place: str = "s3"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Set the clock."""
        return {"jump_s": chance.choice([-7200.0, 7200.0]), "dies_in": chance.randint(1, 6)}


@dataclass(frozen=True)
class CloudFails:
    """The worker is taken, and the cloud does not do as it should when another one is launched; see `Cloud.change`."""

    name: str
    weather: Orders
    place: str = "cloud"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Take the worker."""
        assert isinstance(stage, CloudStage)
        stage.cloud.change(**self.weather)
        stage.take_workers()
        return {}


@dataclass(frozen=True)
class HeadKilled:
    """The head is gone with its disk; the workers are up and billed until they end, perhaps only after a resume."""

    name: str = "head killed"
    place: str = "cloud"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Kill it."""
        assert isinstance(stage, CloudStage)
        stage.kill_head(alone_s=chance.uniform(0.2, 6.0))
        return {}


@dataclass(frozen=True)
class HeadClockOff:
    """The time of day of the head is an hour off from now on, there or back, and the worker is taken."""

    name: str = "head's clock off"
    place: str = "cloud"

    def strike(self, stage: Stage, machine: str, chance: random.Random) -> Orders:
        """Set the clock."""
        assert isinstance(stage, CloudStage)
        stage.take_workers()
        return {"jump_s": chance.choice([-3600.0, 3600.0])}


def _arm(service: Metadata, seconds: float) -> None:
    """Give notice with the fraction of a second that AWS's own lack."""
    at = time.time() + seconds
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f"{at % 1:.3f}"[1:] + "Z"
    service.say(f'{{"action": "terminate", "time": "{text}"}}')


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        DriverKilled(),
        WorkerKilled(),
        NodeTaken(),
        StorageFails(0.3, "storage errors"),
        StorageFails(1.0, "storage gone"),
        StorageSlow(),
        UploadCut(),
        DiskFull(),
        MetadataFlaps(),
        NodeTaken("notice without kill", is_taken=False),
        NodeGone(),
        NodeTaken("double notice", notices=(6.0, 1.0)),
        ClockJumps(),
        PricesDown(),
        CloudFails("never joins", {"num_unjoined": 1}),
        CloudFails("launch refused", {"refused": [FIRST]}),
        CloudFails("cloud slow", {"slow_s": 0.5}),
        HeadKilled(),
        HeadClockOff(),
    )
}
