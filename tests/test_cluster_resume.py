"""A sweep that a cluster began goes on after everything was taken down: run and local files lie in a bucket."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from botocore.exceptions import NoCredentialsError
from command import SPACE, CommandLine
from object_store import BUCKET, CREDENTIALS, empty_bucket, keys, moto_server

from raysent.cli import submitting
from raysent.cluster import JobResult
from raysent.cluster.launcher import make_token
from raysent.config import parse_yaml
from raysent.storage import open_folder
from raysent.sweeps import SweepRecord
from raysent.sweeps.record import save_record
from raysent.sweeps.space import parse_space

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"
CORPUS = "The cat sat. The dog ran.\n"


class Jobs:
    """A job API that keeps what was sent; the first job begins a sweep in its run folder."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.sent: list[dict[str, str]] = []
        self.environment: list[dict[str, str]] = []

    def __call__(self, address, *, token) -> Jobs:
        """Connect."""
        return self

    def submit(self, command, *, folder, environment) -> str:
        """Keep what was sent; a new sweep leaves its record."""
        self.commands.append(command)
        files = (path for path in folder.rglob("*") if path.is_file())
        self.sent.append({path.relative_to(folder).as_posix(): path.read_text() for path in files})
        self.environment.append(environment)
        if "sweep" in command:
            space = parse_space(parse_yaml((folder / "space" / "toy.yaml").read_text()), name="toy")
            save_record(open_folder(command[6]), SweepRecord(space, 0, [], "auto", {}, 1.0))
        return "job"

    def follow(self, name, on_line) -> JobResult:
        """End at once."""
        return JobResult(0)


class Launcher:
    """A cluster that notes how many workers it may have."""

    limits: ClassVar[list[int]] = []

    def __init__(self, file) -> None:
        self.limits.append(file.max_workers)
        self.token_file = Path("token")
        make_token(self.token_file)

    def up(self, *, sweep, on_line) -> None:
        """Come."""

    def down(self, *, on_line) -> None:
        """Go."""

    @contextmanager
    def tunnel(self):
        """Lead nowhere."""
        yield "http://127.0.0.1:9"


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """What is sent to a cluster whose storage is a bucket of this machine; the current folder holds a space."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(CORPUS)
    Path("toy.yaml").write_text(SPACE + "evaluation: {tasks: []}\n")
    text = re.sub(r"storage: \S+", f"storage: s3://{BUCKET}/mine", SHIPPED.read_text())
    Path("cluster.yaml").write_text(text)
    found = Jobs()
    monkeypatch.setattr(submitting, "Jobs", found)
    monkeypatch.setattr(submitting, "Launcher", Launcher)
    monkeypatch.setattr(Launcher, "limits", [])
    with moto_server() as url:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": url, "RAYSENT_CACHE": str(tmp_path / "c")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("raysent.cluster.prices.boto3", SimpleNamespace(client=_no_prices))
        with empty_bucket(url) as client:
            found.client = client
            yield found


def _no_prices(*_, **__):
    raise NoCredentialsError


def test_resume_goes_on_from_the_bucket_with_the_files_that_were_shipped(jobs, monkeypatch, capsys, tmp_path):
    """The corpus may be gone from here; another budget is passed on; machines are limited as for a new sweep."""
    raysent = CommandLine(monkeypatch, capsys)
    first = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "home", "--max-hourly", "2.3usd")
    assert first.code == 0, first.err
    remote = json.loads(Path("home/remote.json").read_text())["remote"]
    kept = remote.removeprefix(f"s3://{BUCKET}/")
    assert f"{kept}/shipped/0/text.txt" in keys(jobs.client)
    Path("text.txt").unlink()
    ran = raysent("resume", "home", "--cluster", "cluster.yaml", "--budget", "9usd")
    assert ran.code == 0, ran.err
    assert jobs.commands[1] == ["python", "-m", "raysent", "resume", remote, "--budget", "9usd"]
    assert jobs.sent[1] == {"shipped/0/text.txt": CORPUS}
    assert jobs.environment[0]["RAYSENT_WORKERS"] == jobs.environment[1]["RAYSENT_WORKERS"]
    assert Launcher.limits == [2, 2]
    assert not (tmp_path / "home" / "shipped").exists()


def test_resume_takes_the_address_of_a_run_whose_folder_is_not_here(jobs, monkeypatch, capsys):
    """From another computer: results come to a folder of its own."""
    raysent = CommandLine(monkeypatch, capsys)
    assert raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", "--run", "home").code == 0
    remote = json.loads(Path("home/remote.json").read_text())["remote"]
    ran = raysent("resume", remote, "--cluster", "cluster.yaml")
    assert ran.code == 0, ran.err
    assert jobs.commands[1][4] == remote
    assert "results: runs/toy-" in ran.err


def test_resume_refuses_a_run_that_no_cluster_began(jobs, monkeypatch, capsys):
    """One line, and no machine."""
    Path("mine").mkdir()
    ran = CommandLine(monkeypatch, capsys)("resume", "mine", "--cluster", "cluster.yaml")
    assert (ran.code, ran.err) == (
        2,
        "error: mine: lies on this machine only; name a run of --cluster, or its s3:// address\n",
    )
    assert Launcher.limits == []
