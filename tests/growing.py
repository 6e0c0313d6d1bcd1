"""A Ray cluster on this machine that grows and shrinks: Ray's fake multi-node provider, on which types can be missing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines import free_ports
from ray._raylet import GcsClient
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException

from raysent.cluster.autoscaling import SCORER, SCORER_VARIABLE, TYPES_VARIABLE, NodeType, format_types

# What Ray's autoscaler asks for although nothing is installed on nodes that are processes.
_LISTS = (
    *("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands"),
    *("head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"),
)
HERE = Path(__file__).resolve().parent


class Provider(FakeMultiNodeProvider):
    """Ray's fake provider, without machines of the types that its file names `missing`."""

    def _next_hex_node_id(self) -> str:
        """Return an id that differs in its first digits, by which ledgers name a node."""
        self._next_node_id += 1
        return f"{self._next_node_id:012x}".ljust(56, "e")

    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels) -> None:
        """Start a node, or refuse as AWS does where it has none."""
        if tags["ray-user-node-type"] in self.provider_config["missing"]:
            raise NodeLaunchException("InsufficientInstanceCapacity", "there is none", None)
        super().create_node_with_resources_and_labels(node_config, tags, count, resources, labels)


@dataclass(frozen=True)
class Growing:
    """A cluster that grows.

    Attributes:
        address: Of its head.
    """

    address: str

    def num_workers(self) -> int:
        """Return how many workers there are."""
        nodes = GcsClient(address=self.address).get_all_node_info(timeout=10).values()
        return sum(node.state == 0 and "CPU" in node.resources_total for node in nodes)


@contextmanager
def growing_cluster(
    types: Mapping[str, Mapping[str, Any]],
    *,
    head: Mapping[str, str],
    missing: tuple[str, ...] = (),
    idle_s: float = 20,
    max_workers: int = 8,
) -> Iterator[Growing]:
    """Run a head without cores whose autoscaler starts nodes of these types; all its processes end with the block.

    Args:
        types: Name -> node type as in a cluster file.
        head: The head's labels.
        missing: Types of which there are none.
        idle_s: After how many idle seconds a node goes; enough for a trial to start on a busy machine, as until then its
            node counts as idle.
        max_workers: Nodes beside the head, whatever waits; `--cluster` sets it to what dollars an hour allow.
    """
    # Ray's sockets have short names only.
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, ports = Path(name), free_ports(3)
        address = f"127.0.0.1:{ports[0]}"
        (folder / "cluster.json").write_text(
            json.dumps({**_config(types, address, missing, idle_s), "max_workers": max_workers})
        )
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=0"),
            *("--node-ip-address=127.0.0.1", f"--port={ports[0]}", f"--temp-dir={folder}/ray"),
            *(f"--ray-client-server-port={ports[1]}", f"--dashboard-agent-listen-port={ports[2]}"),
            *("--include-dashboard=false", "--object-store-memory=80000000"),
            *(f"--labels={','.join(f'{key}={value}' for key, value in head.items())}", "--disable-usage-stats"),
            f"--autoscaling-config={folder}/cluster.json",
        ]
        log = (folder / "head.log").open("w")
        process = subprocess.Popen(command, env=_environment(types), stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for(ports[0], process)
            yield Growing(address)
        finally:
            log.close()
            _end(folder, process)


def _config(types: Mapping[str, Any], address: str, missing: tuple[str, ...], idle_s: float) -> dict[str, Any]:
    head = {"ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}}
    provider = {
        **{"type": "external", "module": "growing.Provider", "gcs_address": address, "missing": list(missing)},
        **{
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
        },
    }
    return {
        "cluster_name": "growing",
        "max_workers": 8,
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


def _environment(types: Mapping[str, Any]) -> dict[str, str]:
    known = {name: NodeType(kind.get("priority", 0), kind["labels"]["market"]) for name, kind in types.items()}
    return {
        **os.environ,
        "PYTHONPATH": f"{HERE.parent}:{HERE}",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_AUTH_MODE": "disabled",  # a head that is started by hand asks for a token otherwise
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "OMP_NUM_THREADS": "1",
        SCORER_VARIABLE: SCORER,
        TYPES_VARIABLE: format_types(known),
    }


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.2)
    raise AssertionError("the head did not come up")


def _end(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """End the head and every node that it started: the processes that name its folder or its session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number = int(entry.name)
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                os.kill(number, signal.SIGKILL)
    process.wait()
