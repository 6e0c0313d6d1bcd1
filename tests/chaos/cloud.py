"""A cloud in files: machines that are launched through the gate, billed from launch to end, and listed on request.

The list is the folder of instances, one file each. Its clock is nobody's time of day: it never jumps. What goes wrong
stands in a file of its own, which a stage writes:

    weather.json    {"refused": [type, ...], "num_unjoined": 1, "slow_s": 0.5}
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.autoscaler.node_launch_exception import NodeLaunchException

from chaos.driver import write_whole
from raysent.cluster.account import Machine
from raysent.cluster.fleet import FleetSettings
from raysent.cluster.gate import LaunchGate

HEAD, FIRST, SECOND = "head", "first", "second"
LABELS = {"instance-type": "big.machine", "market": "on-demand"}
# From a launch to the Ray node.
BOOT_S = 0.1
_LOOK_S = 0.05


@dataclass(frozen=True)
class Cloud:
    """The instances in a folder; every process may open it.

    Attributes:
        folder: Has `instances/` and `weather.json`.
        machines: Folder of the Ray nodes: a machine joins by a file there.
    """

    folder: Path
    machines: Path

    @property
    def now(self) -> float:
        """The cloud's time: Unix seconds at the start of the stage, and as many seconds as have passed."""
        return float((self.folder / "base").read_text()) + time.monotonic()

    @property
    def weather(self) -> dict[str, Any]:
        """What goes wrong; may be changed with `change`."""
        path = self.folder / "weather.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def change(self, **weather: Any) -> None:
        """Let this go wrong from now on."""
        write_whole(self.folder / "weather.json", {**self.weather, **weather})

    def answer(self) -> None:
        """Take the time that the cloud takes for a request."""
        time.sleep(self.weather.get("slow_s", 0.0))

    def found(self) -> None:
        """Make the folders: no machine yet."""
        (self.folder / "instances").mkdir(parents=True, exist_ok=True)
        (self.folder / "base").write_text(repr(time.time() - time.monotonic()))

    def launch(self, kind: str, labels: Mapping[str, str], *, joins: bool = True) -> str:
        """Launch a machine, and let its Ray node join after a while; returns its id."""
        name = f"i-{len(self.all()):04d}-{kind}"
        values = {
            "type": kind,
            "labels": dict(labels),
            "launched": self.now,
            "ended": None,
            "joins": joins,
        }
        write_whole(self.folder / "instances" / f"{name}.json", values)
        return name

    def join(self) -> None:
        """Let those join whose time has come."""
        for name, values in self.all().items():
            is_due = (
                values["joins"]
                and values["ended"] is None
                and self.now - values["launched"] > BOOT_S
            )
            path = self.machines / f"{name}.json"
            if is_due and not values.get("joined"):
                write_whole(path, {"deadline_ms": None, "labels": values["labels"]})
                self._change(name, joined=True)

    def end(self, name: str) -> None:
        """End a machine, with its Ray node."""
        (self.machines / f"{name}.json").unlink(missing_ok=True)
        if self.all()[name]["ended"] is None:
            self._change(name, ended=self.now)

    def all(self) -> dict[str, dict[str, Any]]:
        """Return every instance by id, in the order of launches."""
        paths = sorted((self.folder / "instances").glob("*.json"))
        return {path.stem: json.loads(path.read_text()) for path in paths}

    def running(self, *kinds: str) -> list[str]:
        """Return the ids of those that are billed now, of some types only."""
        return [
            name
            for name, values in self.all().items()
            if values["ended"] is None and values["type"] in kinds
        ]

    def _change(self, name: str, **values: Any) -> None:
        write_whole(self.folder / "instances" / f"{name}.json", {**self.all()[name], **values})


class Listed:
    """The cloud's list as a sweep asks for it."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def instances(self) -> tuple[float, list[Machine]]:
        """Return the cloud's time and every machine."""
        self._cloud.answer()
        found = [
            Machine(name, one["type"], one["labels"], one["launched"], one["ended"])
            for name, one in self._cloud.all().items()
        ]
        return self._cloud.now, found

    def terminate(self, names: Sequence[str]) -> None:
        """End machines."""
        self._cloud.answer()
        for name in names:
            self._cloud.end(name)


class _Launcher:
    """What Ray's node provider does for a cloud."""

    def __init__(self, provider_config: dict[str, Any], cloud: Cloud) -> None:
        self.provider_config, self._cloud = provider_config, cloud

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: Any, labels: Any
    ) -> dict[str, Any]:
        """Launch machines, or refuse them as EC2 does."""
        del node_config, resources
        self._cloud.answer()
        kind, weather = tags["ray-user-node-type"], self._cloud.weather
        if kind in weather.get("refused", ()):
            raise NodeLaunchException("InsufficientInstanceCapacity", "none left", None)
        joins = not weather.get("num_unjoined", 0)
        if not joins:
            self._cloud.change(num_unjoined=weather["num_unjoined"] - 1)
        return {self._cloud.launch(kind, labels, joins=joins): None for _ in range(count)}


class Provider(LaunchGate, _Launcher):
    """The same with the gate."""


class Autoscaler:
    """Launches all that the limits in the autoscaler's configuration allow, and ends what is beyond them, at once."""

    def __init__(self, cloud: Cloud, settings: FleetSettings) -> None:
        self._cloud, self._settings = cloud, settings
        self._provider = Provider({"raysent": {"folder": settings.folder}}, cloud)

    def start(self) -> None:
        """Begin, in a thread that ends with this process."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._update()
            time.sleep(_LOOK_S)

    def _update(self) -> None:
        self._cloud.join()
        limits = json.loads(Path(self._settings.config).read_text())["available_node_types"]
        for kind, labels in ((name, one["labels"]) for name, one in self._settings.types.items()):
            running, most = self._cloud.running(kind), limits[kind]["max_workers"]
            for name in running[most:]:
                self._cloud.end(name)
            if len(running) < most:
                with contextlib.suppress(NodeLaunchException):
                    tags = {"ray-user-node-type": kind}
                    self._provider.create_node_with_resources_and_labels({}, tags, 1, {}, labels)


def install(cloud: Cloud, fleet: Any) -> None:
    """Let this process be a new head in the cloud, and its sweep's fleet wait for a second where it waits for minutes.

    Args:
        cloud: The cloud.
        fleet: The module of the fleet.
    """
    settings = FleetSettings.from_environment()
    assert settings is not None
    config = Path(settings.config)
    config.write_text(
        json.dumps({"available_node_types": {name: {"max_workers": 0} for name in settings.types}})
    )
    cloud.launch(HEAD, LABELS)
    fleet.AwsMachines = lambda *_: Listed(cloud)
    fleet.joined_instances = lambda: {path.stem for path in cloud.machines.glob("*.json")}
    fleet.JOIN_S = 1.0
    Autoscaler(cloud, settings).start()
