"""Nothing is ended that somebody uses: `down`, `up --update`, orphans, and the end of a sweep ask one function."""

from __future__ import annotations

import datetime
import json
import re
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from command import SPACE
from object_store import BUCKET
from submissions import own_cluster_file

import raysent.cluster.launcher as launcher_module
from raysent.cluster import ConnectionLostError, following, usage
from raysent.cluster.cluster_file import read_cluster
from raysent.cluster.following import JobRecord, write_record, write_remote
from raysent.config import parse_yaml
from raysent.cost.budget import FIRST_LEASE_S

RUN = f"s3://{BUCKET}/raysent/first"


@pytest.fixture
def raysent(raysent, bucket, monkeypatch, tmp_path):
    """The command line beside a cluster file, in an account with a bucket."""
    del bucket
    own_cluster_file(Path("cluster.yaml"), bucket=BUCKET)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("raysent.cluster.account.PROFILE_S", 0.0)
    return raysent


def _start(kind: str, *, sweep: str = "first", hours: float | None = 5.0) -> str:
    tags = {"raysent-cluster": "raysent", "ray-node-type": kind, "raysent-sweep": sweep}
    if hours is not None:
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
        tags["raysent-expires"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    started = boto3.client("ec2").run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}],
    )
    return str(started["Instances"][0]["InstanceId"])


def _running() -> set[str]:
    found = boto3.client("ec2").describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["running"]}]
    )
    return {one["InstanceId"] for group in found["Reservations"] for one in group["Instances"]}


@pytest.fixture
def launched_here(raysent, monkeypatch):
    """The head was launched from this computer; returns the commands of Ray's launcher."""
    commands = []

    def run(command, on_line) -> int:
        commands.append(command[3:])
        if command[3] == "up" and not _running():
            _start("head")
        return 0

    monkeypatch.setattr(launcher_module, "run_process", run)
    assert raysent("cluster", "up", "cluster.yaml", "--yes").code == 0
    return commands


def _jobs_of(*runs: str):
    class _Jobs:
        def __init__(self, address: str, *, token: str) -> None:
            pass

        def other_runs(self, run: str) -> list[str]:
            return [name for name in runs if name != run]

    return _Jobs


@contextmanager
def _tunnel(_):
    yield "http://127.0.0.1:9"


@contextmanager
def _no_tunnel(_):
    raise ConnectionLostError("raysent: the head cannot be reached over SSH")
    yield


def _store(*, code: int | None, lease: bool) -> None:
    space = {"name": "toy", "values": parse_yaml(SPACE).values}
    write_record(RUN, JobRecord("job", "raysent", "us-east-1", space, code=code))
    if lease:
        body = json.dumps({"host": "head", "process": 1, "born": 1.0, "lease": "a"}).encode()
        boto3.client("s3").put_object(Bucket=BUCKET, Key="raysent/first/.lease", Body=body)


def test_down_leaves_a_colleagues_cluster_alone(raysent):
    """Exit code 2, one line that names head and sweep; --force names each machine that it ends."""
    machines = {_start("head"), _start("worker"), _start("worker")}
    ran = raysent("cluster", "down", "cluster.yaml")
    assert ran.code == 2
    assert "first runs on its 3 machines" in ran.err
    assert "was not launched from here" in ran.err
    assert _running() == machines
    ran = raysent("cluster", "down", "cluster.yaml", "--force")
    assert (ran.code, _running()) == (0, set())
    assert all(f"ends {name}: " in ran.err for name in machines)


def test_down_asks_the_jobs_of_the_own_head(raysent, launched_here, monkeypatch):
    """A job that runs keeps the cluster; tags alone, of sweeps that ended, do not."""
    worker = _start("worker")
    monkeypatch.setattr(launcher_module.Head, "tunnel", _tunnel)
    monkeypatch.setattr(usage, "Jobs", _jobs_of(RUN))
    ran = raysent("cluster", "down", "cluster.yaml")
    assert (ran.code, f"{RUN} runs on its 2 machines" in ran.err) == (2, True)
    ran = raysent("cluster", "up", "cluster.yaml", "--update", "--yes")
    assert (ran.code, f"{RUN} runs on its 2 machines" in ran.err) == (2, True)
    assert worker in _running()
    monkeypatch.setattr(usage, "Jobs", _jobs_of())
    assert raysent("cluster", "down", "cluster.yaml").code == 0
    assert _running() == set()


@pytest.mark.parametrize(
    ("code", "lease", "is_kept"), [(None, True, True), (0, False, False), (None, False, True)]
)
@pytest.mark.usefixtures("launched_here")
def test_a_head_that_does_not_answer_is_judged_by_tags_and_stored_runs(
    raysent, monkeypatch, code, lease, is_kept
):
    """A lease that is renewed, or a job that was just submitted, is use; a sweep that has ended is none."""
    monkeypatch.setattr(launcher_module.Head, "tunnel", _no_tunnel)
    _start("worker")
    _store(code=code, lease=lease)
    assert raysent("cluster", "down", "cluster.yaml").code == (2 if is_kept else 0)
    assert bool(_running()) is is_kept


def test_orphans_end_by_their_time_and_not_while_a_sweep_uses_them(raysent):
    """Machines past their time to live end; one whose end cannot be read stays while its sweep is alive."""
    late = _start("worker", hours=-1)
    unreadable = _start("worker", hours=None)
    _store(code=None, lease=True)
    ran = raysent("cluster", "down", "cluster.yaml", "--orphans")
    assert (ran.code, "first runs on its" in ran.err) == (2, True)
    assert _running() == {late, unreadable}
    boto3.client("ec2").terminate_instances(InstanceIds=[unreadable])
    assert raysent("cluster", "down", "cluster.yaml", "--orphans").code == 0
    assert _running() == set()


def test_up_gives_its_head_the_lease_that_its_help_names(raysent, launched_here):
    """An hour without --keep; a head that cannot be reached has the lease of its start script."""
    assert [command[0] for command in launched_here] == ["up", "exec"]
    assert "echo 3600 > ~/raysent-fleet/lease" in launched_here[1][-1]
    assert raysent("cluster", "up", "cluster.yaml", "--yes").code == 0
    assert len(launched_here) == 2  # a head that runs keeps what it has


def test_every_head_has_a_lease_from_its_start_and_no_worker_has():
    """Written by user data, before anything is installed."""
    cluster = read_cluster(Path(__file__).parent.parent / "cluster.yaml")
    rendered = cluster.render(
        {
            **dict.fromkeys(
                ["cluster", "image", "security_group", "head_profile", "worker_profile"], "x"
            ),
            **dict.fromkeys(["self_destruct", "token_file", "wheel_folder", "wheel"], "x"),
            "ray_version": "2.60.0",
        }
    )
    types = rendered["available_node_types"]
    script = types["head"]["node_config"]["UserData"]
    lease = f"echo {FIRST_LEASE_S:.0f} > /home/ubuntu/raysent-fleet/lease"
    assert lease in script
    assert not any(
        lease in kind["node_config"]["UserData"] for name, kind in types.items() if name != "head"
    )
    assert "raysent-time-to-live.timer" in script
    assert re.search(r"else\necho '\* \* \* \* \* root .*' > /etc/cron.d/", script)
    assert "/var/lib/raysent/checked" in rendered["setup_commands"][0]


def test_the_next_launch_finishes_one_that_never_ended(raysent, monkeypatch):
    """The head of a command that was killed is named, and Ray's launcher runs on it again."""
    commands = []

    def killed(command, on_line) -> int:
        commands.append(command[3])
        _start("head", sweep="")
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher_module, "run_process", killed)
    raysent("cluster", "up", "cluster.yaml", "--yes")
    head = launcher_module.Launcher(read_cluster(Path("cluster.yaml")))
    (machine,) = head.account.machines("raysent")
    assert "was left by a launch of" in head.unfinished(machine)

    def finishes(command, on_line) -> int:
        commands.append(command[3])
        return 0

    monkeypatch.setattr(launcher_module, "run_process", finishes)
    assert raysent("cluster", "up", "cluster.yaml", "--yes").code == 0
    assert commands == ["up", "up", "exec"]
    assert head.unfinished(machine) == ""


def test_a_launch_that_never_ended_is_named_by_attach_and_stop(raysent):
    """Its run folder knows the cluster: whether its head still runs is asked, and how to end it is said."""
    write_remote(Path("mine"), RUN, cluster="raysent", region="us-east-1")
    for command in ("attach", "stop"):
        ran = raysent(command, "mine")
        assert (ran.code, "no head of the cluster raysent runs; start it again" in ran.err) == (
            2,
            True,
        )
    head = _start("head")
    for command in ("attach", "stop"):
        ran = raysent(command, "mine")
        assert ran.code == 2
        assert (
            f"its launch never ended, and no sweep was submitted; the head {head} of the" in ran.err
        )
        assert "'raysent cluster down FILE' ends it" in ran.err


def test_stop_of_a_sweep_without_a_process_says_so(raysent, monkeypatch):
    """Nothing would read the request; the line says when the head ends."""
    _store(code=None, lease=False)
    monkeypatch.setattr(following, "is_alive", lambda _: False)
    ran = raysent("stop", RUN)
    assert (ran.code, "no process works on it any more" in ran.err) == (2, True)
