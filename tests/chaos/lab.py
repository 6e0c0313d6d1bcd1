"""A cloud on this computer: the real command, Ray's launcher, autoscaler, gate, node agent and the machines' script.

moto is AWS, with faults in front of it (`lab_cloud.py`); each of its instances is a namespace of this computer
(`lab_machines.py`) that fakes of ssh, rsync, sudo and shutdown reach (`lab_programs/`). Left out are the lines of pip
and apt alone. One setting, `SPEED`, divides the minutes after which machines end themselves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
from tiny_run import write_corpus

from chaos.namespaces import can_separate

SPEED = 5.0
BUCKET = "runs"
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
limits: {trials: 2}
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
        work: The folder in which commands are typed.
    """

    def __init__(self, folder: Path, port: int) -> None:
        """Prepare the files; nothing is started yet."""
        self.folder, self.work = folder, folder / "work"
        self._port = port
        for name in ("bin", "site", "machines", "home", "work"):
            (folder / name).mkdir()
        for path in (_FILES / "lab_programs").glob("*.py"):
            program = folder / "bin" / path.stem
            program.write_text(f"#!{sys.executable} -S\n{path.read_text()}")
            program.chmod(0o755)
        (folder / "site" / "sitecustomize.py").write_text(_SITE)
        text = write_corpus(folder)
        (self.work / "space.yaml").write_text(_SPACE.replace("TEXT", str(text)))
        (self.work / "cluster.yaml").write_text(cluster_text())

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands that are typed."""
        return {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "site"),
            "LAB_FOLDER": str(self.folder),
            "LAB_SPEED": str(SPEED),
            "HOME": str(self.folder / "home"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "RAYSENT_CACHE": str(self.folder / "cache"),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "COMMAND",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "OMP_NUM_THREADS": "1",
        }

    def client(self, service: str) -> Any:
        """Return a client of the cloud that no fault meets."""
        return boto3.client(
            service,
            endpoint_url=f"http://127.0.0.1:{self._port}",
            region_name="us-east-1",
            aws_access_key_id="MACHINES",
            aws_secret_access_key="x",
        )

    def start(self, *words: str, cwd: Path | None = None) -> Command:
        """Start a command of raysent; without a terminal."""
        return Command(self, words, cwd or self.work)

    def sweep(self, run: str, *more: str) -> Command:
        """Start a sweep on the cluster."""
        options = ("--cluster", "cluster.yaml", "--budget", "3usd", "--yes", "--run", run)
        return self.start("sweep", "space.yaml", *options, *more)

    def fault(self, *faults: dict[str, Any]) -> None:
        """Let the cloud fail like this from now on; nothing, to be well again."""
        new = self.folder / "faults.new"
        new.write_text(json.dumps(faults))
        new.replace(self.folder / "faults.json")

    def instances(self) -> list[dict[str, Any]]:
        """Return what the cloud lists, the ended ones too."""
        pages = self.client("ec2").describe_instances()["Reservations"]
        return [one for page in pages for one in page["Instances"]]

    def alive(self) -> list[str]:
        """Return the machines that the cloud bills."""
        return [
            one["InstanceId"]
            for one in self.instances()
            if one["State"]["Name"] in ("pending", "running")
        ]

    def launch_idle(self, kind: str, *, sweep: str) -> str:
        """Launch a machine as somebody else's cluster has it, on which nothing runs."""
        tags = {"raysent-cluster": "lab", "ray-node-type": kind, "raysent-sweep": sweep}
        pairs = [{"Key": key, "Value": value} for key, value in (tags | {"lab-idle": "1"}).items()]
        started = self.client("ec2").run_instances(
            ImageId="ami-12c6146b",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}],
        )
        return str(started["Instances"][0]["InstanceId"])

    def calls(self, action: str) -> list[list[Any]]:
        """Return the calls of an action: time, who, action, instance type, code of its refusal."""
        lines = (self.folder / "calls.log").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call[2] == action]

    def seconds_billed(self, name: str) -> float:
        """Return how long a machine ran, by the machines' own log."""
        lines = (self.folder / "machines.log").read_text().splitlines()
        times = [event[0] for event in map(json.loads, lines) if event[2] == name]
        return float(times[1] - times[0]) if len(times) > 1 else time.time() - float(times[0])

    def objects(self, prefix: str) -> list[str]:
        """Return the keys of the bucket below a prefix."""
        pages = (
            self.client("s3")
            .get_paginator("list_objects_v2")
            .paginate(Bucket=BUCKET, Prefix=prefix)
        )
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def remote(self, run: str) -> str:
        """Return the key of a run in the bucket; empty before it is named."""
        path = self.work / run / "remote.json"
        with suppress(OSError, ValueError):
            return str(json.loads(path.read_text())["remote"]).removeprefix(f"s3://{BUCKET}/")
        return ""

    def events(self, run: str) -> list[str]:
        """Return the lines of the journal of a run, as they are stored."""
        remote = self.remote(run)
        keys = self.objects(f"{remote}/journal.jsonl/") if remote else []
        client = self.client("s3")
        return [
            client.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode()
            for key in sorted(keys)
        ]

    def job(self, run: str) -> dict[str, Any]:
        """Return the record of a run's job; empty before it is submitted."""
        remote = self.remote(run)
        if not remote or f"{remote}/job.json" not in self.objects(f"{remote}/job.json"):
            return {}
        body = self.client("s3").get_object(Bucket=BUCKET, Key=f"{remote}/job.json")["Body"].read()
        values: dict[str, Any] = json.loads(body)
        return values


class Command:
    """A command that was started.

    Attributes:
        process: Its process.
    """

    def __init__(self, lab: Lab, words: Sequence[str], cwd: Path) -> None:
        """Start it."""
        self._log = lab.folder / f"command-{time.time_ns()}.log"
        with self._log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "raysent", *words],
                cwd=cwd,
                env=lab.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
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

    def kill(self) -> None:
        """Kill it, as lack of memory does."""
        self.process.kill()
        self.process.wait()


def cluster_text() -> str:
    """Return the shipped cluster file with small machines, and without the lines of pip and apt."""
    text = _SHIPPED.read_text(encoding="utf-8")
    for old, new in (
        ('"raysent-{{ user }}"', "lab"),
        ("max_workers: 8\n\nmetadata", "max_workers: 2\n\nmetadata"),
        ("s3://my-bucket/raysent", f"s3://{BUCKET}/raysent"),
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


def wait_for(condition: Callable[[], Any], *, within_s: float, what: str) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with suppress(OSError):
            if condition():
                return
        time.sleep(0.5)
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
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
