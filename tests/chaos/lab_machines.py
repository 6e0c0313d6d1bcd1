"""The machines of the lab: a namespace of this computer for each instance that the cloud lists.

    python lab_machines.py FOLDER PORT SPEED

Each has its own network, processes, home, cron folder and /var/lib, and runs its user data; its cron comes every minute
divided by SPEED. A machine that shuts down is terminated at the cloud; one that the cloud terminates is killed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3

FOLDER, PORT, SPEED = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
BRIDGE = f"lab{PORT % 10000}"
ALIVE = ("pending", "running")
SHUTDOWN = Path("/sbin/shutdown")
_SEPARATE = [
    *("setpriv", "--pdeathsig=KILL", "unshare", "--fork", "--kill-child"),
    *("--pid", "--mount-proc", "--net", "--uts", "--ipc"),
]
_START = """set -e
hostname ip-{host}
mkdir -p /home/ubuntu /tmp/ray
mount --make-rprivate /
mkdir -p {folder}/home {folder}/ray {folder}/varlib {folder}/cron {folder}/sbin
mount --bind {folder}/home /home/ubuntu
mount --bind {folder}/ray /tmp/ray
mount --bind {folder}/varlib /var/lib
mkdir -p /etc/cron.d
mount --bind {folder}/cron /etc/cron.d
cp {programs}/ssh {programs}/rsync {programs}/sudo {folder}/sbin
mount --bind {folder}/sbin /usr/local/sbin
mount --bind {programs}/shutdown {shutdown}
if [ -d /run/systemd ]; then mount -t tmpfs none /run/systemd; fi
ip link set lo up
touch {folder}/begun
while [ ! -e {folder}/linked ]; do sleep 0.05; done
if [ -s {folder}/userdata ]; then sh {folder}/userdata || true; fi
( while :; do sleep {minute}; if [ -e /etc/cron.d/raysent-time-to-live ]; then sh /usr/local/sbin/raysent-time-to-live; fi; done ) &
exec {python} {host_script} {lab} {name}
"""


def _run(command: str, *, check: bool = True) -> None:
    subprocess.run(command, shell=True, check=check, capture_output=True)


class Host:
    """A machine that runs.

    Attributes:
        folder: Its folder.
    """

    def __init__(self, instance: dict[str, Any], number: int, user_data: bytes) -> None:
        """Start it."""
        self.folder = FOLDER / "machines" / instance["InstanceId"]
        (self.folder / "home" / ".ssh").mkdir(parents=True)
        (self.folder / "home" / ".bashrc").write_text("# of the lab\n")
        (self.folder / "home" / "venv").symlink_to(sys.prefix)
        (self.folder / "userdata").write_bytes(user_data)
        address, name = instance["PrivateIpAddress"], instance["InstanceId"]
        tags = _tags(instance)
        role = "HEAD" if tags.get("ray-node-type") == "head" else "WORKER"
        script = _START.format(
            host=address.replace(".", "-"),
            folder=self.folder,
            programs=FOLDER / "bin",
            shutdown=SHUTDOWN.resolve(),
            minute=60 / SPEED,
            python=sys.executable,
            host_script=Path(__file__).with_name("lab_host.py"),
            lab=FOLDER,
            name=name,
        )
        environment = {
            **{"PATH": f"{FOLDER}/bin:{os.environ['PATH']}", "LANG": "C.UTF-8", "TERM": "dumb"},
            **{"HOME": "/home/ubuntu", "USER": "ubuntu"},
            **{"LAB_FOLDER": str(FOLDER), "LAB_MACHINE": name, "LAB_SPEED": str(SPEED)},
            "PYTHONPATH": str(FOLDER / "site"),
            "AWS_ENDPOINT_URL": "http://127.0.0.1:5555",
            "AWS_ACCESS_KEY_ID": f"{role}-{tags.get('raysent-cluster', '')}",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:5556",
            "OMP_NUM_THREADS": "1",
            "RAYSENT_CACHE": str(self.folder / "cache"),
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_SEPARATE, "bash", "-c", script],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        while not (self.folder / "begun").exists():
            if self._process.poll() is not None:
                return
            time.sleep(0.05)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self._init = int(children.split()[0])
        link = f"{BRIDGE}v{number}"[-15:]
        _run(f"ip link add {link} type veth peer name eth0 netns {self._init}")
        _run(f"ip link set {link} master {BRIDGE} up")
        set_up = f"ip addr add {address}/8 dev eth0 && ip link set eth0 up && ip route add default dev eth0"
        _run(f"nsenter --net --target {self._init} sh -c '{set_up}'")
        (self.folder / "linked").touch()

    @property
    def is_dead(self) -> bool:
        """Whether its first process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End all its processes."""
        for pid in (self._process.pid, self._init):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


class Machines:
    """The machines that run, as the cloud lists them."""

    def __init__(self) -> None:
        keys = {"aws_access_key_id": "MACHINES", "aws_secret_access_key": "x"}
        url = f"http://127.0.0.1:{PORT}"
        self._ec2 = boto3.client("ec2", endpoint_url=url, region_name="us-east-1", **keys)
        self._hosts: dict[str, Host] = {}
        self._number = 0
        self._log = (FOLDER / "machines.log").open("a", buffering=1)

    def follow(self) -> None:
        """Start and end machines as the cloud lists them."""
        pages = self._ec2.describe_instances()["Reservations"]
        listed = {one["InstanceId"]: one for page in pages for one in page["Instances"]}
        for name, instance in listed.items():
            is_alive = instance["State"]["Name"] in ALIVE
            if is_alive and name not in self._hosts and _boots(instance):
                self._number += 1
                self._note("launched", name, instance["InstanceType"])
                self._hosts[name] = Host(instance, self._number, self._user_data(name))
                self._publish(listed)
            elif not is_alive and name in self._hosts:
                self._end(name, "terminated")
        for name, host in list(self._hosts.items()):
            if (host.folder / "shutdown").exists() or host.is_dead:
                self._ec2.terminate_instances(InstanceIds=[name])
                self._end(name, "shut down" if not host.is_dead else "died")

    def close(self) -> None:
        """End all machines."""
        for host in self._hosts.values():
            host.kill()

    def _end(self, name: str, how: str) -> None:
        self._hosts.pop(name).kill()
        self._note(how, name, "")

    def _user_data(self, name: str) -> bytes:
        found = self._ec2.describe_instance_attribute(InstanceId=name, Attribute="userData")
        return base64.b64decode(found["UserData"].get("Value", ""))

    def _publish(self, listed: dict[str, dict[str, Any]]) -> None:
        addresses = {
            name: [listed[name].get("PublicIpAddress", ""), listed[name]["PrivateIpAddress"]]
            for name in self._hosts
        }
        new = FOLDER / "machines.json.new"
        new.write_text(json.dumps(addresses))
        new.replace(FOLDER / "machines.json")

    def _note(self, *values: str) -> None:
        self._log.write(json.dumps([round(time.time(), 2), *values]) + "\n")


def _tags(instance: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}


def _boots(instance: dict[str, Any]) -> bool:
    """Return whether a machine starts at all: those of a test that needs none of them name it in a tag."""
    return "lab-idle" not in _tags(instance)


def main() -> None:
    """Follow the cloud until the process is terminated."""
    _run(f"ip link del {BRIDGE}", check=False)
    _run(f"ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up")
    machines = Machines()

    def end(*_: Any) -> None:
        machines.close()
        _run(f"ip link del {BRIDGE}", check=False)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        time.sleep(0.5)
        with contextlib.suppress(Exception):  # the cloud may be out of order for a while
            machines.follow()


if __name__ == "__main__":
    main()
