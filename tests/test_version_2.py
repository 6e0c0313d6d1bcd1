"""Sweeps that version 0.2.0 wrote: replayed, reported and resumed; those of version 0.1 are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.simulation import replay
from raysent.errors import ArtifactError, ExitCode
from raysent.report.run import read_run
from raysent.storage import read_json, write_json
from raysent.storage.layout import JOURNAL_FILE, SWEEP_FILE
from raysent.sweeps import load_record, read_events

DATA = Path(__file__).parent / "data" / "version_2"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder of its own with the text and the sweeps of version 0.2.0, in which commands run."""
    shutil.copytree(DATA, tmp_path / "v2")
    monkeypatch.chdir(tmp_path / "v2")
    return tmp_path / "v2"


@pytest.mark.parametrize(
    "path",
    sorted(path for path in (DATA / "journals").iterdir() if path.name != "usd"),
    ids=lambda path: path.name,
)
def test_replay_of_every_sampler_and_scheduler_is_all_the_same(path):
    """Proposals and decisions, with a driver killed in the middle, come out to the last bit."""
    record = load_record(path)
    found = replay(record.space, seed=record.seed, events=list(read_events(path)))
    assert (found.difference, found.num_sessions) == ("", 2)


@pytest.mark.parametrize(("name", "status"), [("finished", "finished"), ("killed", "running")])
def test_report_of_a_sweep(folder, name, status):
    """Where each trial stands, and what it cost."""
    run = read_run(folder / name)
    assert run.trials[-1].status == status
    assert run.bill.usd > 0


def test_resume_of_a_finished_sweep_ranks_it_again(raysent, folder):
    """Nothing is trained; the table has the one ranking, and the record the new budget."""
    before = (folder / "finished" / "trials.csv").read_bytes()
    command = ("resume", "finished", "--budget", "9usd", "--set", "accept_versions=true", "--json")
    ran = raysent(*command)
    # The folder keeps no models of its finished trials.
    assert ran.code == ExitCode.INCOMPLETE, ran.err
    assert json.loads(ran.out)["best"] == "0004"
    assert (folder / "finished" / "trials.csv").read_bytes() == before
    assert (folder / "finished" / "report.html").is_file()
    assert load_record(folder / "finished").space.cost.budget_usd == 9.0


def test_resume_of_a_sweep_that_was_killed_before_its_last_line_completes_it(raysent, folder):
    """All trials had ended, so nothing is trained; from then on it is a sweep that has come to its end."""
    path = folder / "finished" / JOURNAL_FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    ran = raysent("resume", "finished", "--set", "accept_versions=true", "--json")
    ended = (ran.code, json.loads(ran.out)["status"])
    assert ended == (ExitCode.INCOMPLETE, "completed"), ran.err
    whole = path.read_bytes()
    assert [event["event"] for event in read_events(folder / "finished")][-2:] == [
        "ended",
        "completed",
    ]
    again = raysent("resume", "finished", "--set", "accept_versions=true")
    assert again.code == ExitCode.INCOMPLETE
    assert path.read_bytes() == whole


@pytest.mark.cluster
def test_resume_of_a_killed_sweep_finishes_every_trial(raysent, folder):
    """The trial that was running continues from its checkpoint; the finished one is not trained again."""
    before = (folder / "killed" / "trials" / "0000" / "model.safetensors").stat().st_mtime_ns
    command = ("resume", folder / "killed", "--set", "accept_versions=true", "--json")
    resumed = raysent(*command)
    assert resumed.code == 0, resumed.err
    events = list(read_events(folder / "killed"))
    assert [event["trial"] for event in events if event["event"] == "ended"] == [
        "0000",
        "0001",
        "0002",
    ]
    reports = [
        event["index"]
        for event in events
        if event["event"] == "report" and event["trial"] == "0001"
    ]
    assert reports == [1, 2, 3]
    assert (
        folder / "killed" / "trials" / "0000" / "model.safetensors"
    ).stat().st_mtime_ns == before
    found = replay(load_record(folder / "killed").space, seed=3, events=events)
    assert (found.difference, found.num_sessions) == ("", 2)


def test_a_sweep_of_version_1_is_refused_with_the_command_that_makes_it_again(folder):
    """Its record has a key that was renamed since."""
    values = read_json(folder / "killed" / SWEEP_FILE)
    values["judging"] = values.pop("evaluation")
    write_json(folder / "killed" / SWEEP_FILE, values)
    again = "raysent 0.1 wrote it; make the sweep again: raysent sweep killed.yaml --run killed --yes --seed 3$"
    with pytest.raises(ArtifactError, match=again):
        load_record(folder / "killed")


def test_a_sweep_whose_rungs_were_divided_by_dollars_is_refused_with_the_command_that_makes_it_again():
    """That unit of a rung is gone."""
    with pytest.raises(
        ArtifactError,
        match=r"limits\.rung_unit: .*; if another version .* make the sweep again: raysent ",
    ):
        load_record(DATA / "journals" / "usd")
