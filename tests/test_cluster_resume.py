"""A sweep that was started on a cluster resumes after its end: the run and its local files are in a bucket."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from botocore.exceptions import NoCredentialsError
from command import SPACE, CommandLine
from object_store import BUCKET, CREDENTIALS, empty_bucket, keys, moto_server

from raysent.cluster import submission
from raysent.cluster.cluster_file import ClusterFile
from raysent.cluster.following import read_record, write_record
from raysent.cluster.launcher import make_token
from raysent.config import parse_yaml
from raysent.storage import open_folder
from raysent.sweeps import SweepRecord
from raysent.sweeps.record import save_record
from raysent.sweeps.space import parse_space

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"
CORPUS = "The cat sat. The dog ran.\n"


class Jobs:
    """A fake job API that keeps its jobs; the first job writes the record of a sweep."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.sent: list[dict[str, str]] = []
        self.environment: list[dict[str, str]] = []

    def __call__(self, address, *, token) -> Jobs:
        """Connect."""
        return self

    def of_run(self, run) -> dict[str, bool]:
        """Name no job: the earlier ones are gone with their cluster."""
        return {}

    def other_runs(self, run) -> list[str]:
        """Return no other run."""
        return []

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


class Launcher:
    """A fake launcher that records the cluster files that it is made for."""

    files: ClassVar[list[ClusterFile]] = []
    has_launched, stays = True, False

    def __init__(self, file) -> None:
        self.files.append(file)
        self.token_file = Path("token")
        make_token(self.token_file)

    def up(self, *, sweep, is_kept, inputs, on_line) -> bool:
        """Do nothing."""
        return True

    def is_running(self) -> bool:
        """Return that there is a head."""
        return True

    def forget_inputs(self, sweep) -> None:
        """Do nothing."""

    def other_sweeps(self, sweep) -> list[str]:
        """Return none."""
        return []

    def down(self, *, on_line) -> None:
        """Do nothing."""

    @contextmanager
    def tunnel(self):
        """Yield an address where nothing listens."""
        yield "http://127.0.0.1:9"


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """The job API of a cluster whose storage is a local bucket; the working directory has a search space."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(CORPUS)
    Path("toy.yaml").write_text(SPACE + "evaluation: {tasks: []}\n")
    text = re.sub(r"storage: \S+", f"storage: s3://{BUCKET}/mine", SHIPPED.read_text())
    Path("cluster.yaml").write_text(text)
    found = Jobs()
    monkeypatch.setattr(submission, "Jobs", found)
    monkeypatch.setattr("raysent.pipeline.clusters.Launcher", Launcher)
    monkeypatch.setattr(Launcher, "files", [])
    with moto_server() as url:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": url, "RAYSENT_CACHE": str(tmp_path / "c")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("raysent.cluster.prices.boto3", SimpleNamespace(client=_no_prices))
        with empty_bucket(url) as client:
            found.client = client
            yield found


def _no_prices(*_, **__):
    raise NoCredentialsError


def test_resume_uses_the_files_in_the_bucket(jobs, monkeypatch, capsys, tmp_path):
    """The local corpus may be deleted; a new budget is passed on; workers are limited as for a new sweep."""
    raysent = CommandLine(monkeypatch, capsys)
    first = raysent(
        "sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "home", "--set", "cost.max_hourly=2.3usd"
    )
    assert first.code == 0, first.err
    remote = json.loads(Path("home/remote.json").read_text())["remote"]
    key = remote.removeprefix(f"s3://{BUCKET}/")
    assert f"{key}/shipped/0/text.txt" in keys(jobs.client)
    Path("text.txt").unlink()
    ran = raysent("resume", "home", "--cluster", "cluster.yaml", "--budget", "9usd")
    assert ran.code == 0, ran.err
    head = ["python", "-m", "raysent.cluster.head", "--run", remote, "--"]
    assert jobs.commands[1] == [*head, "resume", remote, "--budget", "9usd"]
    assert jobs.sent[1] == {"shipped/0/text.txt": CORPUS}
    assert jobs.environment[0]["RAYSENT_WORKERS"] == jobs.environment[1]["RAYSENT_WORKERS"]
    fleets = [json.loads(environment["RAYSENT_FLEET"]) for environment in jobs.environment]
    assert [fleet["max_workers"] for fleet in fleets] == [2, 2]
    assert not (tmp_path / "home" / "shipped").exists()


def test_resume_accepts_the_address_of_a_run(jobs, monkeypatch, capsys):
    """From another computer, results are downloaded to a new folder."""
    raysent = CommandLine(monkeypatch, capsys)
    assert raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "home").code == 0
    remote = json.loads(Path("home/remote.json").read_text())["remote"]
    ran = raysent("resume", remote, "--cluster", "cluster.yaml")
    assert ran.code == 0, ran.err
    assert jobs.commands[1][4] == remote
    assert "results: runs/home-" in ran.err


def test_resume_rejects_a_local_run(jobs, monkeypatch, capsys):
    """An error of one line, and no machine is started."""
    Path("mine").mkdir()
    ran = CommandLine(monkeypatch, capsys)("resume", "mine", "--cluster", "cluster.yaml")
    assert (ran.code, ran.err) == (
        2,
        "error: mine: is on this machine only; name a run on a cluster, or its s3:// address\n",
    )
    assert Launcher.files == []
