"""The commands on a cluster that is there already, with moto's server as AWS: nothing is ended that they did not launch."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from command import SPACE
from object_store import BUCKET
from submissions import own_cluster_file

import raysent.cluster.launcher as launcher_module
from raysent.cluster import Account, ConnectionLostError, SubmittedSweep, submission
from raysent.cluster.following import JobRecord, write_record
from raysent.cluster.policies import input_policy
from raysent.config import parse_yaml
from raysent.storage import open_folder
from raysent.sweeps import SweepRecord
from raysent.sweeps.record import save_record
from raysent.sweeps.space import parse_space

ACCEPTED = ["--set", "cost.accept_bound=true", "--yes"]
ROWS = "body,stars\n" + "".join(f"good {number},1\nbad {number},0\n" for number in range(20))


@pytest.fixture
def raysent(raysent, bucket, monkeypatch, tmp_path):
    """The command line in a folder with a space and a cluster file, in an account with a bucket and a text."""
    own_cluster_file(Path("cluster.yaml"), bucket=BUCKET)
    Path("text.txt").write_text("The cat sat. The dog ran.\n")
    Path("toy.yaml").write_text(SPACE + "evaluation: {tasks: []}\n")
    for name, value in {"XDG_DATA_HOME": "data", "RAYSENT_CACHE": "cache"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    bucket.put_object(Bucket=BUCKET, Key="texts/one.txt", Body=b"The cat sat.")
    return raysent


@pytest.fixture
def machines(raysent) -> list[str]:
    """A head and two workers that run."""
    return [_start("head"), _start("worker"), _start("worker")]


def _start(kind: str) -> str:
    tags = {"raysent-cluster": "raysent", "ray-node-type": kind, "raysent-sweep": "first"}
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    specs = [{"ResourceType": "instance", "Tags": pairs}]
    started = boto3.client("ec2").run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        InstanceType="g5.xlarge",
        TagSpecifications=specs,
    )
    return str(started["Instances"][0]["InstanceId"])


def _running() -> set[str]:
    found = boto3.client("ec2").describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["running"]}]
    )
    return {one["InstanceId"] for group in found["Reservations"] for one in group["Instances"]}


@pytest.fixture
def launched_here(raysent, monkeypatch) -> None:
    """The head was launched from this computer: its token and file are here."""
    monkeypatch.setattr(launcher_module, "run_process", lambda command, on_line: 0)
    monkeypatch.setattr("raysent.cluster.account.PROFILE_S", 0.0)
    assert raysent("cluster", "up", "cluster.yaml", "--yes").code == 0


def test_a_sweep_leaves_a_colleagues_cluster_alone(raysent, machines):
    """Its name is taken: exit code 2, one line, and its head and workers run."""
    ran = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--budget", "10usd", "--yes")
    assert ran.code == 2
    assert f"is taken: its head {machines[0]} is running" in ran.err
    assert _running() == set(machines)


@pytest.mark.usefixtures("launched_here")
def test_a_sweep_that_cannot_reach_the_head_leaves_it_alone(raysent, machines, monkeypatch):
    """An own first sweep runs there; the public address of this computer has changed."""

    @contextmanager
    def tunnel(_):
        raise ConnectionLostError("raysent: the head cannot be reached over SSH")
        yield

    monkeypatch.setattr(launcher_module.Head, "tunnel", tunnel)
    ran = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--budget", "10usd", "--yes")
    assert (ran.code, "the head cannot be reached over SSH" in ran.err) == (2, True)
    assert _running() == set(machines)


class _BusyJobs:
    """The job API of a head on which a job works on the run."""

    def __init__(self, address: str, *, token: str) -> None:
        pass

    def of_run(self, run: str) -> dict[str, bool]:
        """Return a job that has not ended."""
        return {"raysent-first": False}


@pytest.mark.usefixtures("launched_here")
def test_resume_leaves_the_sweep_alone_that_it_says_to_attach_to(raysent, machines, monkeypatch):
    """A job of the cluster works on the run."""

    @contextmanager
    def tunnel(_):
        yield "http://127.0.0.1:9"

    monkeypatch.setattr(launcher_module.Head, "tunnel", tunnel)
    monkeypatch.setattr(submission, "Jobs", _BusyJobs)
    _record("s3://runs/raysent/first")
    accepted = ["--yes", "--set", "accept_bound=true"]
    ran = raysent("resume", "s3://runs/raysent/first", "--cluster", "cluster.yaml", *accepted)
    assert ran.code == 2
    assert "a job of this cluster works on it; 'raysent attach s3://runs/raysent/first'" in ran.err
    assert _running() == set(machines)


def _record(remote: str) -> None:
    """Store the record of a sweep."""
    save_record(
        open_folder(remote),
        SweepRecord(parse_space(parse_yaml(SPACE), name="toy"), 0, [], "auto", {}, 1.0),
    )


@pytest.mark.usefixtures("launched_here")
def test_up_leaves_what_a_running_sweep_may_read(raysent, machines):
    """The documented command for a changed address."""
    iam = boto3.client("iam")
    for role in ("raysent-raysent-head", "raysent-raysent-worker"):
        for name in ("raysent-inputs", "raysent-inputs-first"):
            iam.put_role_policy(
                RoleName=role,
                PolicyName=name,
                PolicyDocument=json.dumps(input_policy(["s3://runs/texts"])),
            )
    assert raysent("cluster", "up", "cluster.yaml", "--yes").code == 0
    for role in ("raysent-raysent-head", "raysent-raysent-worker"):
        assert set(iam.list_role_policies(RoleName=role)["PolicyNames"]) == {
            "raysent", "raysent-inputs", "raysent-inputs-first"
        }  # fmt: skip
    assert _running() == set(machines)


@pytest.mark.usefixtures("launched_here")
def test_a_second_sweep_leaves_what_the_first_may_read(raysent, machines, monkeypatch):
    """It adds what it reads itself, and takes that away at its end."""
    iam, seen = boto3.client("iam"), []
    role = "raysent-raysent-worker"
    document = json.dumps(input_policy(["s3://runs/texts"]))
    iam.put_role_policy(RoleName=role, PolicyName="raysent-inputs-first", PolicyDocument=document)

    @contextmanager
    def tunnel(_):
        seen.append(iam.list_role_policies(RoleName=role)["PolicyNames"])
        raise ConnectionLostError("raysent: the head cannot be reached over SSH")
        yield

    monkeypatch.setattr(launcher_module.Head, "tunnel", tunnel)
    options = [
        "--cluster",
        "cluster.yaml",
        "--run",
        "second",
        "--corpus",
        "s3://runs/texts",
        *ACCEPTED,
    ]
    assert raysent("sweep", "toy.yaml", *options).code == 2
    (during,) = seen
    assert {"raysent", "raysent-inputs-first"} < set(during)
    assert any(name.startswith("raysent-inputs-second-") for name in during)
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == [
        "raysent",
        "raysent-inputs-first",
    ]
    assert _running() == set(machines)


@pytest.mark.usefixtures("launched_here")
def test_stop_takes_away_what_the_sweep_may_read(raysent):
    """Also of a sweep that has ended by itself; what another one may read stays."""
    iam, role, run = boto3.client("iam"), "raysent-raysent-worker", "s3://runs/raysent/first"
    for sweep in ("first", "second"):
        Account("us-east-1").allow_inputs("raysent", sweep, ["s3://runs/texts"])
    assert len(iam.list_role_policies(RoleName=role)["PolicyNames"]) == 3
    space = {"name": "toy", "values": parse_yaml(SPACE).values}
    write_record(
        run, JobRecord("job", cluster="raysent", region="us-east-1", space=space, code=130)
    )
    assert raysent("stop", run).code == 0
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == [
        "raysent",
        "raysent-inputs-second",
    ]


# -- tasks and files, before a machine is paid for --------------------------------------------------------------------


@pytest.fixture
def nothing_launched(raysent, monkeypatch):
    """A launcher that must not be used."""

    def fail(*_, **__):
        raise AssertionError("a cluster was launched")

    monkeypatch.setattr(launcher_module.Launcher, "up", fail)


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.parametrize(
    ("tasks", "error"),
    [
        (["MMR"], "--tasks MMR: unknown task; did you mean 'MR'?"),
        (["reviews.csv:text=nobody"], "nobody"),
        (["missing.csv:text=body"], "missing.csv"),
    ],
)
def test_a_wrong_task_is_found_before_a_launch(raysent, tasks, error):
    """Exit code 2, one line, and the run folder can be named again."""
    Path("reviews.csv").write_text(ROWS)
    given = [text for task in tasks for text in ("--tasks", task)]
    ran = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "mine", *given)
    assert (ran.code, error in ran.err) == (2, True), ran.err
    assert not Path("mine").exists()


@pytest.mark.usefixtures("nothing_launched")
def test_a_run_folder_that_is_a_file_is_refused(raysent):
    """In one line, as a folder that is not empty."""
    Path("mine").write_text("x")
    ran = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "mine")
    assert (ran.code, ran.err) == (2, "error: mine: must be empty; name another run folder\n")


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.parametrize(
    "given", [["--corpus", "big.txt"], ["--tasks", "big.csv:text=body,label=stars"]]
)
def test_files_that_are_too_large_are_found_before_a_launch(raysent, monkeypatch, given):
    """The size is that of the corpus and of the tables of tasks."""
    monkeypatch.setattr("raysent.cluster.jobs.MAX_SHIPPED_BYTES", 100)
    Path("big.txt").write_text("The cat sat. " * 20)
    Path("big.csv").write_text(ROWS)
    ran = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", *given)
    assert (ran.code, "local files must be at most" in ran.err) == (2, True)


def test_tasks_are_kept_apart_and_their_tables_shipped(raysent, monkeypatch):
    """A name, a table with settings, and one of the space: each is one option, and the head finds the tables."""
    Path("reviews.csv").write_text(ROWS)
    Path("toy.yaml").write_text(
        SPACE + 'evaluation: {tasks: ["second=reviews.csv:text=body,label=stars"]}\n'
    )
    packed, command = Path("packed"), []

    def pack(launcher, submitted, **_):
        command.extend(submission._pack(submitted, packed, is_kept=False))
        return SubmittedSweep(0)

    monkeypatch.setattr("raysent.cluster.sweeps.run_submission", pack)
    given = ["--tasks", "docs-library", "--tasks", "reviews.csv:text=body,label=stars", *ACCEPTED]
    ran = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", *given)
    assert ran.code == 0, ran.err
    tasks = [command[place + 1] for place, text in enumerate(command) if text == "--tasks"]
    assert tasks[0] == "docs-library"
    space = json.loads((packed / "space" / "toy.yaml").read_text())
    for text, name in ((tasks[1], None), (space["evaluation"]["tasks"][0], "second")):
        found = json.loads(text)
        assert (found["text"], found["label"], found.get("name")) == ("body", "stars", name)
        assert found["path"].startswith("shipped/")
        assert (packed / found["path"]).read_bytes() == Path("reviews.csv").read_bytes()
