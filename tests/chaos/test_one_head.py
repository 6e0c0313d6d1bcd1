"""Sweeps on one head to their ends: moto is AWS, and each of its machines is one that `ray start` starts here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from object_store import CREDENTIALS, moto_server
from ray.autoscaler.node_launch_exception import NodeLaunchException
from tiny_run import write_corpus

from chaos.ray_start import ENVIRONMENT, StartedCluster, started_cluster
from raysent.cluster.cluster_file import CLUSTER_TAG, SWEEP_TAG
from raysent.cluster.fleet import FleetSettings
from raysent.cluster.following import JobRecord, read_record, write_record
from raysent.cluster.gate import LaunchGate
from raysent.cost import machine_charges
from raysent.sweeps import Workers, read_events, read_ledger
from raysent.sweeps.journal import EVENTS_VARIABLE

SPACE = """
base:
  corpus: {path: TEXT, validation_fraction: 0.2}
  vocabulary: {size: 100}
  encoder: {type: gru, hidden_size: 16, embedding: {dim: 8}}
  objective: {type: context_prediction}
  training: {batch_size: 24, epochs: 100, num_reports: 4}
  validation: {num_candidates: 20, num_sentences: 40}
search:
  training.learning_rate: {loguniform: [1e-3, 1e-1]}
limits: {trials: 2}
evaluation: {tasks: []}
cost: {machines: {m5.large: 36.0, c5.large: 72.0}, market: on-demand, poll: 2s, drain: 1s, terminate: 1s, budget: 1000usd}
"""
# Epochs of two long trials and of two short ones, and a seed by which the short ones are drawn between the long ones.
SHORT, LONG, SEED = 100, 1500, 5
KIND, LABELS = "small", {"instance-type": "c5.large", "market": "on-demand"}
_PATIENCE_S, _LOOK_S = 1200.0, 0.5
# A machine on AWS is billed for a minute at least. AWS tells times in whole seconds.
MINIMUM_S, SECOND_S = 60.0, 1.5


def _launch(kind: str, instance_type: str, **tags: str) -> str:
    tags = {CLUSTER_TAG: "two", "ray-node-type": kind, **tags}
    specs = [
        {
            "ResourceType": "instance",
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
    ]
    started = boto3.client("ec2").run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        InstanceType=instance_type,
        TagSpecifications=specs,
    )
    return str(started["Instances"][0]["InstanceId"])


def _listed() -> dict[str, dict[str, Any]]:
    found = boto3.client("ec2").describe_instances(
        Filters=[{"Name": f"tag:{CLUSTER_TAG}", "Values": ["two"]}]
    )
    return {one["InstanceId"]: one for group in found["Reservations"] for one in group["Instances"]}


class _Moto:
    """What Ray's node provider does for AWS."""

    def __init__(self, folder: str) -> None:
        self.provider_config = {"raysent": {"folder": folder}}

    def create_node_with_resources_and_labels(
        self, node_config, tags, count, resources, labels
    ) -> dict[str, None]:
        """Launch machines with the tag of the sweep that admits them."""
        sweep = {SWEEP_TAG: self.admitting_sweep}
        return {
            _launch("worker", labels["instance-type"], **tags, **sweep): None for _ in range(count)
        }


class _Provider(LaunchGate, _Moto):
    """The same with the gate."""


class _Autoscaler(threading.Thread):
    """Launches and ends machines as the limits on the head say, and lets those be gone that AWS has ended."""

    def __init__(self, cluster: StartedCluster, settings: FleetSettings) -> None:
        super().__init__(daemon=True)
        self._cluster, self._settings, self._is_over = cluster, settings, threading.Event()
        self._provider = _Provider(settings.folder)

    def run(self) -> None:
        """Look again and again."""
        while not self._is_over.wait(_LOOK_S):
            running = [name for name, one in _listed().items() if one["State"]["Name"] == "running"]
            for number in reversed(range(len(self._cluster.workers))):
                if self._cluster.workers[number].instance not in running:
                    self._cluster.kill_worker(number)
            here = [one.instance for one in self._cluster.workers]
            most = json.loads(Path(self._settings.config).read_text())["available_node_types"][
                KIND
            ]["max_workers"]
            if len(here) > most:
                boto3.client("ec2").terminate_instances(InstanceIds=here[most:])
            elif len(here) < most:
                with contextlib.suppress(NodeLaunchException):
                    made = self._provider.create_node_with_resources_and_labels(
                        {}, {"ray-user-node-type": KIND}, 1, {}, LABELS
                    )
                    for name in made:
                        cores = self._settings.types[KIND]["resources"]["CPU"]
                        self._cluster.start_worker(instance=name, cores=cores)

    def close(self) -> None:
        """End."""
        self._is_over.set()
        self.join()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartedCluster]:
    """A head that moto lists."""
    (tmp_path / "head").mkdir()
    with moto_server() as url:
        names = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": url,
            "RAYSENT_CACHE": str(tmp_path / "cache"),
            **ENVIRONMENT,
        }
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        with started_cluster() as cluster:
            cluster.start_head()
            yield cluster


def _settings(folder: Path, sweep: str, *, num: int = 1, cores: int = 1) -> FleetSettings:
    types = {KIND: {"resources": {"CPU": cores}, "labels": LABELS, "priority": 1, "max_workers": 2}}
    head = {"instance-type": "m5.large", "market": "on-demand"}
    place = folder / "head"
    return FleetSettings(
        "two", "us-east-1", types, num, str(place), str(place / "config.json"), sweep, head
    )


def _start(
    folder: Path, sweep: str, address: str, *options: str, num: int = 1, cores: int = 1
) -> subprocess.Popen[bytes]:
    """Start what the head runs for a submitted sweep."""
    run = str(folder / sweep)
    write_record(
        run,
        JobRecord(sweep, cluster="two", region="us-east-1", space={"name": "toy", "values": {}}),
    )
    arguments = ["sweep", "space.yaml", "--run", run, "--address", address, "--yes", *options]
    env = {
        **os.environ,
        **_settings(folder, sweep, num=num, cores=cores).environment(),
        **Workers(num, cores).environment(),
        EVENTS_VARIABLE: "1",
    }
    command = [sys.executable, "-m", "raysent.cluster.head", "--run", run, "--", *arguments]
    with (folder / f"{sweep}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)


def _has_trained(folder: Path, sweep: str) -> bool:
    path = folder / sweep / "journal.jsonl"
    return path.exists() and '"report"' in path.read_text()


def _seconds(folder: Path, sweep: str) -> dict[str, float]:
    """Return machine -> what a sweep has paid for it, in seconds."""
    charges = machine_charges(read_ledger(folder / sweep))
    return {name: charge.seconds for name, charge in charges.items()}


def _ended(one: dict[str, Any]) -> float:
    at = re.search(r"\((.*) UTC\)", one["StateTransitionReason"])
    assert at is not None
    return datetime.strptime(at[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_bills_of_two_sweeps_are_the_time_of_the_machines(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    """Each pays for its own worker from launch to end, and for the head while it is its turn; nothing runs on."""
    (tmp_path / "space.yaml").write_text(SPACE.replace("TEXT", str(write_corpus(tmp_path))))
    config = {"available_node_types": {KIND: {"max_workers": 0}}}
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    head = _launch("head", "m5.large")
    autoscaler = _Autoscaler(cluster, _settings(tmp_path, "first"))
    autoscaler.start()
    sweeps: dict[str, subprocess.Popen[bytes]] = {}
    started = time.time()
    until_s = time.monotonic() + _PATIENCE_S
    try:
        sweeps["first"] = _start(tmp_path, "first", cluster.address)
        while not _has_trained(tmp_path, "first"):
            assert sweeps["first"].poll() is None, (tmp_path / "first.log").read_text()
            assert time.monotonic() < until_s, (tmp_path / "first.log").read_text()
            time.sleep(_LOOK_S)
        sweeps["second"] = _start(tmp_path, "second", cluster.address)
        for name, process in sweeps.items():
            assert process.wait(until_s - time.monotonic()) == 0, (
                tmp_path / f"{name}.log"
            ).read_text()
    finally:
        for process in sweeps.values():
            process.kill()
            process.wait()
        autoscaler.close()
    bills = {name: _seconds(tmp_path, name) for name in sweeps}
    machines = _listed()
    assert {name for name, one in machines.items() if one["State"]["Name"] == "running"} == {head}
    for name in sweeps:
        assert read_record(str(tmp_path / name)).code == 0
    for machine in machines.keys() - {head}:
        [sweep] = [tag["Value"] for tag in machines[machine]["Tags"] if tag["Key"] == SWEEP_TAG]
        lived_s = _ended(machines[machine]) - machines[machine]["LaunchTime"].timestamp()
        assert [name for name in bills if machine in bills[name]] == [sweep]
        assert bills[sweep][machine] == pytest.approx(max(lived_s, MINIMUM_S), abs=SECOND_S)
    [periods] = json.loads((tmp_path / "head" / "head.json").read_text()).values()
    assert [period[0] for period in periods] == ["first", "second"], (
        "the second begins while the first one trains"
    )
    assert periods[0][2] == periods[1][1]
    for name, since, until in periods:
        assert bills[name][head] == pytest.approx(max(until - since, MINIMUM_S), abs=0.1)
    together_s = periods[1][2] - periods[0][1]
    times = [event["time"] for name in sweeps for event in read_events(tmp_path / name)]
    assert max(times) - min(times) - SECOND_S <= together_s <= time.time() - started + SECOND_S


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_the_last_trials_move_to_fewer_machines(cluster: StartedCluster, tmp_path: Path) -> None:
    """Of two machines each has a long and a short trial; then one has both long ones, and the other ends, and is paid for until then."""
    space = SPACE.replace("TEXT", str(write_corpus(tmp_path))).replace(
        "num_reports: 4", "num_reports: 20"
    )
    space = space.replace(
        "search:\n", f"search:\n  training.epochs: {{choice: [{SHORT}, {LONG}]}}\n"
    )
    space = space.replace("trials: 2", "trials: 4, scheduler: {type: none}").replace(
        "drain: 1s", "drain: 3s"
    )
    (tmp_path / "space.yaml").write_text(space)
    config = {"available_node_types": {KIND: {"max_workers": 0}}}
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    _launch("head", "m5.large")
    shape = {"num": 2, "cores": 2}
    autoscaler = _Autoscaler(cluster, _settings(tmp_path, "only", **shape))
    autoscaler.start()
    process = _start(tmp_path, "only", cluster.address, "--seed", str(SEED), **shape)
    try:
        assert process.wait(_PATIENCE_S) == 0, (tmp_path / "only.log").read_text()
    finally:
        process.kill()
        process.wait()
        autoscaler.close()
    events, ledger = list(read_events(tmp_path / "only")), read_ledger(tmp_path / "only")
    epochs = [
        event["params"]["training.epochs"] for event in events if event["event"] == "suggested"
    ]
    assert epochs == [LONG, SHORT, SHORT, LONG], "another seed has this order"
    assert [event["status"] for event in events if event["event"] == "ended"] == ["finished"] * 4
    lines = [
        json.loads(line) for line in (tmp_path / "head" / "launches.jsonl").read_text().splitlines()
    ]
    [(released, taken)] = [
        (line["instance"], line["trials"]) for line in lines if line["event"] == "released"
    ]
    assert (taken, sum(line["event"] == "launched" for line in lines)) == (1, 2)
    nodes: dict[str, set[str]] = {}
    for line in ledger:
        if line["entry"] == "trial":
            nodes.setdefault(line["trial"], set()).add(line["node"])
    assert sorted(map(len, nodes.values())) == [1, 1, 1, 2]
    machine = _listed()[released]
    lived_s = _ended(machine) - machine["LaunchTime"].timestamp()
    seconds = _seconds(tmp_path, "only")
    assert seconds[released] == pytest.approx(max(lived_s, MINIMUM_S), abs=SECOND_S)
    assert events[-1]["time"] > _ended(machine)
