"""An autoscaling Ray cluster on this machine: Ray's fake provider under autoscaler v2, with the gate and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines import free_ports
from ray._raylet import GcsClient
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FAKE_HEAD_NODE_TYPE,
    FakeMultiNodeProvider,
)
from ray.autoscaler.node_launch_exception import NodeLaunchException

from raysent.cluster.fleet import FleetSettings
from raysent.cluster.gate import LaunchGate, Record

# Required keys of Ray's autoscaler that have no use for nodes that are processes.
_LISTS = (
    *(
        "cluster_synced_files",
        "rsync_exclude",
        "rsync_filter",
        "initialization_commands",
        "setup_commands",
    ),
    *(
        "head_setup_commands",
        "worker_setup_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
    ),
)
# Ray ends a head that does not start within 30 seconds.
_NUM_STARTS, _START_S = 3, 120.0
MISSING_FILE = "missing.json"
HERE = Path(__file__).resolve().parent


class FakeCloud(FakeMultiNodeProvider):
    """Ray's fake provider, which refuses the types in the file `missing.json` of its folder."""

    def _next_hex_node_id(self) -> str:
        """Return an id that is unique in its first digits, which ledgers use as the name of a node."""
        self._next_node_id += 1
        return f"{self._next_node_id:012x}".ljust(56, "e")

    def create_node_with_resources_and_labels(
        self, node_config, tags, count, resources, labels
    ) -> dict[str, Any]:
        """Start nodes, or raise the error of AWS if the type is unavailable; returns the new nodes."""
        missing = json.loads(
            (Path(self.provider_config["raysent"]["folder"]) / MISSING_FILE).read_text()
        )
        if tags["ray-user-node-type"] in missing:
            raise NodeLaunchException("InsufficientInstanceCapacity", "not available", None)
        before = set(self._nodes)
        super().create_node_with_resources_and_labels(node_config, tags, count, resources, labels)
        return {name: node for name, node in self._nodes.items() if name not in before}


class Provider(LaunchGate, FakeCloud):
    """The fake provider with the gate."""


@dataclass(frozen=True)
class AutoscalingCluster:
    """An autoscaling cluster.

    Attributes:
        address: Address of its head.
        settings: The cluster, as a sweep's process needs it.
    """

    address: str
    settings: FleetSettings

    @property
    def record(self) -> Record:
        """The gate's record of launches and refusals."""
        return Record(Path(self.settings.folder))

    def refuse(self, *types: str) -> None:
        """Let the cloud refuse these types from now on, and no others."""
        (Path(self.settings.folder) / MISSING_FILE).write_text(json.dumps(types))

    def num_workers(self) -> int:
        """Return the number of workers."""
        nodes = GcsClient(address=self.address).get_all_node_info(timeout=10).values()
        return sum(node.state == 0 and "CPU" in node.resources_total for node in nodes)


@contextmanager
def autoscaling_cluster(
    types: Mapping[str, Mapping[str, Any]],
    *,
    head: Mapping[str, str],
    missing: tuple[str, ...] = (),
    idle_s: float = 20,
    max_workers: int = 8,
) -> Iterator[AutoscalingCluster]:
    """Run a head without cores whose autoscaler starts nodes of these types; all its processes end with the block.

    Args:
        types: Name -> node type as in a cluster file.
        head: Labels of the head.
        missing: Types that are unavailable.
        idle_s: Seconds after which an idle node ends. A node is idle until its trial has started, which takes time on a
            busy machine.
        max_workers: The most nodes beside the head; `--cluster` computes it from the limit on dollars an hour.
    """
    config = {"types": types, "missing": missing, "idle_s": idle_s, "max_workers": max_workers}
    with ExitStack() as stack:
        for _ in range(_NUM_STARTS):
            address, folder = stack.enter_context(_started_head(config, head))
            if address:
                break
            stack.close()
        else:
            raise AssertionError("the head did not start")
        settings = FleetSettings(
            "autoscaling", "", types, max_workers, str(folder), str(folder / "cluster.json")
        )
        yield AutoscalingCluster(address, settings)


@contextmanager
def _started_head(
    config: Mapping[str, Any], labels: Mapping[str, str]
) -> Iterator[tuple[str, Path]]:
    """Start a head and yield its address and folder; the address is empty if it does not start in Ray's 30 seconds."""
    # The paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, ports = Path(name), free_ports(3)
        address = f"127.0.0.1:{ports[0]}"
        (folder / "cluster.json").write_text(json.dumps(_config(address, folder, **config)))
        (folder / MISSING_FILE).write_text(json.dumps(config["missing"]))
        command = [
            *(
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--head",
                "--block",
                "--num-cpus=0",
            ),
            *("--node-ip-address=127.0.0.1", f"--port={ports[0]}", f"--temp-dir={folder}/ray"),
            *(f"--ray-client-server-port={ports[1]}", f"--dashboard-agent-listen-port={ports[2]}"),
            *("--include-dashboard=false", "--object-store-memory=80000000"),
            *(
                f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}",
                "--disable-usage-stats",
            ),
            f"--autoscaling-config={folder}/cluster.json",
        ]
        environment = _environment()
        with (folder / "head.log").open("w") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield address if _is_started(process, folder / "head.log") else "", folder
        finally:
            _end(folder, process)


def _config(
    address: str,
    folder: Path,
    *,
    types: Mapping[str, Any],
    missing: object,
    idle_s: float,
    max_workers: int,
) -> dict[str, Any]:
    head = {"ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}}
    provider = {
        **{"type": "external", "module": "autoscaled.Provider", "gcs_address": address},
        "raysent": {"folder": str(folder)},
        **{
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
        },
    }
    return {
        "cluster_name": "autoscaling",
        "max_workers": max_workers,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 100.0,
        "provider": provider,
        "auth": {},
        "file_mounts": {},
        **{key: [] for key in _LISTS},
        "file_mounts_sync_continuously": False,
        "available_node_types": {**types, **head},
        "head_node_type": "ray.head.default",
    }


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{HERE.parent}:{HERE}",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        # Autoscaler v2 launches nothing before it has found the head's Ray node by these.
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": FAKE_HEAD_NODE_TYPE,
        "RAY_AUTH_MODE": "disabled",  # otherwise the head requires a token
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "OMP_NUM_THREADS": "1",
    }


def _is_started(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until a head has started, or has ended because it could not."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        if "Ray runtime started" in log.read_text():
            return True
        time.sleep(0.2)
    return False


def _end(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """End the head and all its nodes: the processes whose command line contains its folder."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number = int(entry.name)
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                os.kill(number, signal.SIGKILL)
    process.wait()
