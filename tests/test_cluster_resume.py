"""A sweep that was started on a cluster resumes after its end: the run and its local files are in a bucket."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from botocore.exceptions import NoCredentialsError
from command import SPACE
from object_store import BUCKET, keys
from submissions import SHIPPED, FakeJobs, FakeLauncher

from raysent.cluster import submission
from raysent.cluster.cluster_file import ClusterFile
from raysent.cluster.following import read_record, write_record
from raysent.cluster.launch_plan import AccountState
from raysent.config import parse_yaml
from raysent.storage import open_folder
from raysent.sweeps import SweepRecord
from raysent.sweeps.record import save_record
from raysent.sweeps.space import parse_space

ACCEPTED = ["--set", "cost.accept_bound=true", "--yes"]
CORPUS = "The cat sat. The dog ran.\n"


class Jobs(FakeJobs):
    """A fake job API that keeps its jobs; the first job writes the record of a sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[list[str]] = []
        self.sent: list[dict[str, str]] = []
        self.environment: list[dict[str, str]] = []

    def submit(self, command, *, folder, environment, name, run) -> str:
        """Keep a job; a new sweep writes its record."""
        self.commands.append(command)
        self.run = run
        files = (path for path in folder.rglob("*") if path.is_file())
        self.sent.append({path.relative_to(folder).as_posix(): path.read_text() for path in files})
        self.environment.append(environment)
        if "sweep" in command:
            space = parse_space(parse_yaml((folder / "space" / "toy.yaml").read_text()), name="toy")
            save_record(open_folder(command[4]), SweepRecord(space, 0, [], "auto", {}, 1.0))
        return "job"

    def failure_to_start(self, name) -> None:
        """End at once."""
        write_record(self.run, replace(read_record(self.run), code=0))


class Launcher(FakeLauncher):
    """A fake launcher that records the cluster files that it is made for."""

    files: ClassVar[list[ClusterFile]] = []

    def __init__(self, file) -> None:
        self.files.append(file)
        super().__init__(Path())


@pytest.fixture
def jobs(bucket, monkeypatch, tmp_path):
    """The job API of a cluster whose storage is a local bucket; the working directory has a search space."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(CORPUS)
    Path("toy.yaml").write_text(SPACE + "evaluation: {tasks: []}\n")
    text = re.sub(r"storage: \S+", f"storage: s3://{BUCKET}/mine", SHIPPED.read_text())
    Path("cluster.yaml").write_text(text)
    found = Jobs()
    monkeypatch.setattr(submission, "Jobs", found)
    monkeypatch.setattr("raysent.cluster.sweeps.Launcher", Launcher)
    monkeypatch.setattr(Launcher, "files", [])
    monkeypatch.setattr("raysent.cluster.sweeps.ask_account", lambda *_, **__: AccountState())
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "c"))
    monkeypatch.setattr("raysent.cluster.prices.boto3", SimpleNamespace(client=_no_prices))
    found.client = bucket
    return found


def _no_prices(*_, **__):
    raise NoCredentialsError


def test_resume_uses_the_files_in_the_bucket(jobs, raysent, tmp_path):
    """The local corpus may be deleted; a new budget is passed on; workers are limited as for a new sweep."""
    first = raysent(
        "sweep",
        "toy.yaml",
        "--cluster",
        "cluster.yaml",
        "--run",
        "home",
        "--set",
        "cost.max_hourly=2.3usd",
        "--yes",
    )
    assert first.code == 0, first.err
    remote = json.loads(Path("home/remote.json").read_text())["remote"]
    key = remote.removeprefix(f"s3://{BUCKET}/")
    assert f"{key}/shipped/0/text.txt" in keys(jobs.client)
    Path("text.txt").unlink()
    ran = raysent("resume", "home", "--cluster", "cluster.yaml", "--budget", "9usd", "--yes")
    assert ran.code == 0, ran.err
    head = ["python", "-m", "raysent.cluster.head", "--run", remote, "--"]
    assert jobs.commands[1] == [*head, "resume", remote, "--budget", "9usd"]
    assert jobs.sent[1] == {"shipped/0/text.txt": CORPUS}
    assert jobs.environment[0]["RAYSENT_WORKERS"] == jobs.environment[1]["RAYSENT_WORKERS"]
    fleets = [json.loads(environment["RAYSENT_FLEET"]) for environment in jobs.environment]
    assert [fleet["max_workers"] for fleet in fleets] == [2, 2]
    assert not (tmp_path / "home" / "shipped").exists()


def test_resume_accepts_the_address_of_a_run(jobs, raysent):
    """From another computer, results are downloaded to a new folder."""
    assert (
        raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "home", *ACCEPTED).code
        == 0
    )
    remote = json.loads(Path("home/remote.json").read_text())["remote"]
    ran = raysent("resume", remote, "--cluster", "cluster.yaml", "--yes")
    assert ran.code == 0, ran.err
    assert jobs.commands[1][4] == remote
    assert "results: runs/home-" in ran.err


def test_resume_rejects_a_local_run(jobs, raysent):
    """An error of one line, and no machine is started."""
    Path("mine").mkdir()
    ran = raysent("resume", "mine", "--cluster", "cluster.yaml")
    assert (ran.code, ran.err) == (
        2,
        "error: mine: is on this machine only; name a run on a cluster, or its s3:// address\n",
    )
    assert Launcher.files == []


def test_resume_rejects_a_run_that_another_cluster_works_on(jobs, raysent, monkeypatch):
    """The record of its job stays, by which it is followed and stopped; without a head there the run is resumed."""
    assert (
        raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "home", *ACCEPTED).code
        == 0
    )
    remote, is_running = json.loads(Path("home/remote.json").read_text())["remote"], [True, False]
    write_record(remote, replace(read_record(remote), code=None, cluster="theirs"))
    monkeypatch.setattr("raysent.cluster.launcher.Head.is_running", lambda _: is_running.pop(0))
    num_launchers = len(Launcher.files)
    ran = raysent("resume", "home", "--cluster", "cluster.yaml")
    assert (ran.code, ran.err) == (
        2,
        f"error: {remote}: the cluster 'theirs' works on it; 'raysent attach {remote}' shows it, 'raysent stop {remote}' "
        "stops it\n",
    )
    assert (len(Launcher.files), read_record(remote).cluster) == (num_launchers, "theirs")
    assert raysent("resume", "home", "--cluster", "cluster.yaml", "--yes").code == 0
