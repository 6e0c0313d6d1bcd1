"""A cloud on this computer: the real command, Ray's launcher, autoscaler, gate, node agent and the machines' script.

moto is AWS, with faults in front of it (`lab_cloud.py`); each of its instances is a namespace of this computer
(`lab_machines.py`) that fakes of ssh, rsync, sudo and shutdown reach (`lab_programs/`). Left out are the lines of pip
and apt alone. One setting, `SPEED`, divides the minutes after which machines end themselves.

One lab has several desks: each is a user with a cluster file, a home and a data folder, whose commands and machines
have credentials of their own, so that faults and calls are those of one cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
from tiny_run import write_corpus

from chaos.namespaces import can_separate

# Minutes after which machines end themselves are divided by this.
SPEED = float(os.environ.get("LAB_SPEED", "10"))
# A folder for the lab that stays afterwards, to look into what has failed; empty for one that goes.
KEPT_FOLDER = os.environ.get("LAB_KEPT_FOLDER", "")
BUCKET = "runs"
ALIVE = ("pending", "running")
_FILES = Path(__file__).parent
_SHIPPED = _FILES.parent.parent / "cluster.yaml"
_SPACE = """
base:
  corpus: {path: TEXT, validation_fraction: 0.2}
  vocabulary: {size: 100}
  encoder: {type: gru, hidden_size: 8, embedding: {dim: 8}}
  objective: {type: context_prediction}
  training: {batch_size: 24, epochs: 10, num_reports: 3}
  validation: {num_candidates: 20, num_sentences: 40}
search:
  training.learning_rate: {loguniform: [1e-3, 1e-1]}
limits: {trials: 3}
evaluation: {tasks: []}
cost: {poll: 5s}
"""
# Python imports this at its start, on every machine and in the command.
_SITE = """
import os
from raysent.cost import budget
speed = float(os.environ.get("LAB_SPEED", "1"))
for name in ("FIRST_LEASE_S", "LEASE_S", "ALONE_S", "GRACE_S"):
    setattr(budget, name, getattr(budget, name) / speed)
"""


def can_run() -> bool:
    """Return whether this user may run the lab here."""
    return can_separate() and Path("/sbin/shutdown").exists()


class Lab:
    """A cloud that runs.

    Attributes:
        folder: Everything of it.
        launching: Held by who launches a cluster: the processor of this computer is enough for one at a time.
    """

    def __init__(self, folder: Path, port: int) -> None:
        """Prepare the files; nothing is started yet."""
        self.folder = folder
        self.launching = threading.Lock()
        self._port = port
        self._faults: dict[str, list[dict[str, Any]]] = {}
        self._commands: list[Command] = []
        self._clients: dict[str, Any] = {}
        self._turn = threading.Lock()
        for name in ("bin", "site", "machines", "desks"):
            (folder / name).mkdir()
        for path in (_FILES / "lab_programs").glob("*.py"):
            program = folder / "bin" / path.stem
            program.write_text(f"#!{sys.executable} -S\n{path.read_text()}")
            program.chmod(0o755)
        (folder / "site" / "sitecustomize.py").write_text(_SITE)
        self.text = write_corpus(folder)

    @property
    def endpoint(self) -> str:
        """Where the cloud answers on this computer."""
        return f"http://127.0.0.1:{self._port}"

    def client(self, service: str) -> Any:
        """Return a client of the cloud that no fault meets."""
        with self._turn:
            if service not in self._clients:
                self._clients[service] = boto3.session.Session().client(
                    service,
                    endpoint_url=self.endpoint,
                    region_name="us-east-1",
                    aws_access_key_id="MACHINES",
                    aws_secret_access_key="x",
                )
            return self._clients[service]

    def start(self, command: Command) -> Command:
        """Keep a command, which ends with the lab."""
        self._commands.append(command)
        return command

    def close(self) -> None:
        """End the commands that run."""
        for command in self._commands:
            command.kill()

    def instances(self, cluster: str) -> list[dict[str, Any]]:
        """Return what the cloud lists of a cluster, the ended ones too."""
        wanted = [{"Name": "tag:raysent-cluster", "Values": [cluster]}]
        pages = self.client("ec2").describe_instances(Filters=wanted)["Reservations"]
        return [instance for page in pages for instance in page["Instances"]]

    def set_faults(self, owner: str, faults: Sequence[dict[str, Any]]) -> None:
        """Let the cloud fail like this for one cluster from now on."""
        with self._turn:
            self._faults[owner] = list(faults)
            together = [fault for of in self._faults.values() for fault in of]
            new = self.folder / "faults.new"
            new.write_text(json.dumps(together))
            new.replace(self.folder / "faults.json")


class Desk:
    """A user with a cluster file, and the cluster of that file.

    Attributes:
        lab: The cloud.
        name: Name of the cluster.
        work: The folder in which commands are typed.
    """

    def __init__(self, lab: Lab, name: str, *, cluster: str = "") -> None:
        """Write the files.

        Args:
            lab: The cloud.
            name: Name of the desk.
            cluster: Name of the cluster; empty for the name of the desk.
        """
        self.lab, self.name = lab, cluster or name
        self._folder = lab.folder / "desks" / name
        self.home, self.work = self._folder / "home", self._folder / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        (self.work / "space.yaml").write_text(_SPACE.replace("TEXT", str(lab.text)))
        (self.work / "cluster.yaml").write_text(cluster_text(self.name))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands that are typed."""
        return {
            **os.environ,
            "PATH": f"{self.lab.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.lab.folder / "site"),
            "LAB_FOLDER": str(self.lab.folder),
            "LAB_SPEED": str(SPEED),
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self._folder / "data"),
            "RAYSENT_CACHE": str(self._folder / "cache"),
            "AWS_ENDPOINT_URL": self.lab.endpoint,
            "AWS_ACCESS_KEY_ID": f"COMMAND-{self.name}",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *words: str, cwd: Path | None = None) -> Command:
        """Start a command of raysent; without a terminal."""
        return self.lab.start(Command(self, words, cwd or self.work))

    def sweep(self, run: str, *more: str) -> Command:
        """Start a sweep on the cluster."""
        options = ("--cluster", "cluster.yaml", "--budget", "3usd", "--yes", "--run", run)
        return self.start("sweep", "space.yaml", *options, *more)

    def fault(self, *faults: dict[str, Any], who: Sequence[str] = ("command",)) -> None:
        """Let the cloud fail like this for the command, the head or both from now on; nothing, to be well again."""
        own = [{"who": f"{role}-{self.name}", **fault} for role in who for fault in faults]
        self.lab.set_faults(self.name, own)

    def instances(self) -> list[dict[str, Any]]:
        """Return what the cloud lists of the cluster, the ended ones too."""
        return self.lab.instances(self.name)

    def alive(self, kind: str = "") -> list[str]:
        """Return the machines of the cluster that the cloud bills: all, or the head, or the workers."""
        return [
            instance["InstanceId"]
            for instance in self.instances()
            if instance["State"]["Name"] in ALIVE and kind in ("", kind_of(instance))
        ]

    def machine_files(self, pattern: str) -> list[Path]:
        """Return files on the cluster's machines."""
        return [
            path
            for instance in self.instances()
            for path in (self.lab.folder / "machines" / instance["InstanceId"]).glob(pattern)
        ]

    def launch_idle(self, kind: str, *, sweep: str) -> str:
        """Launch a machine as somebody else's cluster has it, on which nothing runs."""
        tags = {"raysent-cluster": self.name, "ray-node-type": kind, "raysent-sweep": sweep}
        pairs = [{"Key": key, "Value": value} for key, value in (tags | {"lab-idle": "1"}).items()]
        started = self.lab.client("ec2").run_instances(
            ImageId="ami-12c6146b",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}],
        )
        return str(started["Instances"][0]["InstanceId"])

    def calls(self, action: str, who: str = "command") -> list[list[Any]]:
        """Return the calls of an action: time, who, action, instance type, code of its refusal or `waits`."""
        lines = (self.lab.folder / "calls.log").read_text().splitlines()
        key = f"{who.upper()}-{self.name}"
        return [call for call in map(json.loads, lines) if call[1:3] == [key, action]]

    def objects(self, prefix: str) -> list[str]:
        """Return the keys of the bucket below a prefix."""
        paginator = self.lab.client("s3").get_paginator("list_objects_v2")
        pages = paginator.paginate(Bucket=BUCKET, Prefix=prefix)
        return [stored["Key"] for page in pages for stored in page.get("Contents", [])]

    def remote(self, run: str) -> str:
        """Return the key of a run in the bucket; empty before it is named."""
        path = self.work / run / "remote.json"
        with suppress(OSError, ValueError):
            return str(json.loads(path.read_text())["remote"]).removeprefix(f"s3://{BUCKET}/")
        return ""

    def events(self, remote: str) -> list[dict[str, Any]]:
        """Return the journal of a run, as it is stored."""
        keys = self.objects(f"{remote}/journal.jsonl/") if remote else []
        client = self.lab.client("s3")
        texts = [
            client.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode()
            for key in sorted(keys)
        ]
        lines = [json.loads(line) for text in texts for line in text.splitlines() if line]
        return [event for line in lines for event in line.get("entries", [line])]

    def job(self, remote: str) -> dict[str, Any]:
        """Return the record of a run's job; empty before it is submitted."""
        if not remote or f"{remote}/job.json" not in self.objects(f"{remote}/job.json"):
            return {}
        stored = self.lab.client("s3").get_object(Bucket=BUCKET, Key=f"{remote}/job.json")
        values: dict[str, Any] = json.loads(stored["Body"].read())
        return values


class Command:
    """A command that was started.

    Attributes:
        process: Its process.
    """

    def __init__(self, desk: Desk, words: Sequence[str], cwd: Path) -> None:
        """Start it."""
        self._log = desk.work.parent / f"command-{time.time_ns()}.log"
        with self._log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "raysent", *words],
                cwd=cwd,
                env=desk.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # as of a terminal of its own
            )

    @property
    def text(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def end(self, *, within_s: float) -> int:
        """Wait for its end; returns its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"has not ended:\n{self.text[-3000:]}") from None

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill it, as lack of memory does."""
        self.process.kill()
        self.process.wait()


def kind_of(instance: dict[str, Any]) -> str:
    """Return whether an instance is a head or a worker."""
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    return "head" if tags.get("ray-node-type") == "head" else "worker"


def cluster_text(name: str) -> str:
    """Return the shipped cluster file with small machines, and without the lines of pip and apt."""
    text = _SHIPPED.read_text(encoding="utf-8")
    for old, new in (
        ('"raysent-{{ user }}"', name),
        ("max_workers: 8\n\nmetadata", "max_workers: 2\n\nmetadata"),
        ("s3://my-bucket/raysent", f"s3://{BUCKET}/{name}"),
        ("operator: auto", "operator: 203.0.113.7/32"),
        ("{CPU: 4, GPU: 1}", "{CPU: 1}"),
        ("g6.xlarge", "c6i.xlarge"),
        ("g5.xlarge", "c5.xlarge"),
        ("g4dn.xlarge", "m5.large"),
        ("timeout 600 sh -c", "true || sh -c"),
        ("~/venv/bin/pip install", "true || ~/venv/bin/pip install"),
        ("ray start --head", "ray start --head --object-store-memory=80000000"),
        ("ray start --address", "ray start --object-store-memory=80000000 --address"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    return re.sub(r"image: /aws\S+", "image: ami-12c6146b", text)


def wait_for(
    condition: Callable[[], Any], *, within_s: float, what: str, every_s: float = 0.5
) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with suppress(OSError):
            if condition():
                return
        time.sleep(every_s)
    raise AssertionError(f"{what}: not within {within_s:.0f} s")


@contextmanager
def cloud_lab(folder: Path) -> Iterator[Lab]:
    """Run a lab in an empty folder, whose name is short enough for sockets; all of it ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    lab = Lab(folder, port)
    processes = []
    try:
        for name, more in (("lab_cloud.py", ()), ("lab_machines.py", (str(SPEED),))):
            command = [sys.executable, str(_FILES / name), str(folder), str(port), *more]
            with (folder / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
            if name == "lab_cloud.py":
                wait_for(lambda: _answers(port), within_s=60, what="moto's server")
                lab.client("s3").create_bucket(Bucket=BUCKET)
        yield lab
    finally:
        lab.close()
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not KEPT_FOLDER:
            shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
