"""Sweeps that version 0.1 wrote: loaded, replayed, reported and resumed as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import CommandLine
from typed import typed

from raysent.config import UPGRADE, parse_yaml
from raysent.errors import ConfigError
from raysent.report.run import read_run
from raysent.storage import read_json
from raysent.storage.layout import SWEEP_FILE
from raysent.sweeps import load_record, read_events, read_sweep, replay
from raysent.sweeps.journal_v1 import upgrade_record
from raysent.sweeps.space import parse_space, read_space

DATA = Path(__file__).parent / "data" / "version_1"
JOURNALS = sorted(path for path in (DATA / "journals").iterdir() if path.name != "ei_per_usd")
SPACE = """
base: {encoder: {type: gru}, objective: {type: context_prediction}}
search: {encoder.bidirectional: {choice: [false, true]}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder of its own with the text and the sweeps of version 0.1, in which commands run."""
    shutil.copytree(DATA, tmp_path / "v1")
    monkeypatch.chdir(tmp_path / "v1")
    return tmp_path / "v1"


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.name)
def test_replay_of_every_sampler_and_scheduler_is_all_the_same(path):
    """Proposals and decisions of 0.1, with a driver killed in the middle, come out to the last bit."""
    record = load_record(path)
    found = replay(record.space, seed=record.seed, events=list(read_events(path)))
    assert (found.difference, found.num_sessions) == ("", 2)
    assert record.space.evaluation.stratify_by == "encoder.bidirectional"


def test_a_sweep_of_a_sampler_that_is_gone_can_be_read_but_not_replayed():
    """Its record and trials are as ever; deciding anything names what to use instead."""
    path = DATA / "journals" / "ei_per_usd"
    sweep = read_sweep(path)
    assert len(sweep.trials) == 8
    with pytest.raises(ConfigError, match=r"limits.sampler: ei_per_usd is gone since version 0.2; use tpe with limits"):
        replay(sweep.space, seed=7, events=sweep.events)


@pytest.mark.parametrize(("name", "status"), [("finished", "finished"), ("killed", "running")])
def test_record_and_report_know_the_retired_keys(folder, name, status):
    """What was evaluated, how trials were stratified, and where each trial stands."""
    record = load_record(folder / name)
    assert record.evaluation == {"data": None, "tasks": []}
    assert (record.space.evaluation.members, record.space.evaluation.stratify_by) == (2, "encoder.bidirectional")
    run = read_run(folder / name)
    assert run.trials[-1].status == status
    assert run.bill.usd > 0


def test_resume_of_a_finished_sweep_ranks_it_again(folder, monkeypatch, capsys):
    """Nothing is trained; the table has the one ranking, and the ledger stays as it was."""
    ran = CommandLine(monkeypatch, capsys)("resume", "finished", "--accept-versions", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["best"] == "0004"
    rows = (folder / "finished" / "trials.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["0004", "0005", "0003", "0002", "0000", "0001"]
    assert (folder / "finished" / "report.html").is_file()


def test_another_budget_rewrites_the_record_under_the_new_names(folder, monkeypatch, capsys):
    """The file then has the keys of this version, and is read as before."""
    command = ["resume", "finished", "--budget", "9usd", "--accept-versions", "--json"]
    assert CommandLine(monkeypatch, capsys)(*command).code == 0
    values = read_json(folder / "finished" / SWEEP_FILE)
    assert (values["evaluation"], values["space"]["evaluation"]["members"]) == ({"data": None, "tasks": []}, 2)
    assert not {"judging"} & values.keys()
    assert not {"judge"} & values["space"].keys()
    assert load_record(folder / "finished").space.cost.budget_usd == 9.0


@pytest.mark.cluster
def test_resume_of_a_killed_sweep_finishes_every_trial(folder):
    """The trial that was running continues from its checkpoint; the finished one is not trained again."""
    before = (folder / "killed" / "trials" / "0000" / "model.safetensors").stat().st_mtime_ns
    resumed = typed("resume", folder / "killed", "--accept-versions", "--json")
    assert resumed.returncode == 0, resumed.stderr
    events = list(read_events(folder / "killed"))
    assert [event["trial"] for event in events if event["event"] == "ended"] == ["0000", "0001", "0002"]
    reports = [event["index"] for event in events if event["event"] == "report" and event["trial"] == "0001"]
    assert reports == [1, 2, 3]
    assert (folder / "killed" / "trials" / "0000" / "model.safetensors").stat().st_mtime_ns == before
    found = replay(load_record(folder / "killed").space, seed=3, events=events)
    assert (found.difference, found.num_sessions) == ("", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("judge: {members: 3}\n", r"^s.yaml:4: judge: is now called 'evaluation'$"),
        ("evaluation:\n  each: encoder.bidirectional\n", r"^s.yaml:5: evaluation.each: is now called 'stratify_by'$"),
    ],
)
def test_a_space_with_a_retired_key_is_refused_with_the_new_one(text, message):
    """One line with file, line, the old key and the new one."""
    with pytest.raises(ConfigError, match=message):
        parse_space(parse_yaml(SPACE + text, source="s.yaml"), name="s")


def test_an_option_with_a_retired_key_is_refused_with_the_new_one(tmp_path):
    """The same for `--set`."""
    (tmp_path / "s.yaml").write_text(SPACE)
    with pytest.raises(ConfigError, match=r"judge: is now called 'evaluation'$"):
        read_space(tmp_path / "s.yaml", overrides=["judge.members=3"])


def test_retired_names_of_a_run_are_searched_as_they_were():
    """A searched name, a base value and a constraint of 0.1 keep their names; the run has the new ones."""
    text = """
base:
  pairs: {path: pairs.tsv, score: score}
  encoder: {type: gru}
  objective: {type: relatedness, num_marks: 4}
search: {objective.anchor: {choice: [zero, first]}}
constraints: ["objective.num_marks == 4 and objective.anchor != 'zero'"]
"""
    space = parse_space(parse_yaml(text), name="old", context=UPGRADE)
    assert space.first_params() == {"objective.anchor": "first"}
    objective = space.config({"objective.anchor": "first"}).objective
    assert (objective.penalty_center, objective.num_levels) == ("initial", 4)
    with pytest.raises(ConfigError, match="is now called 'num_levels'"):
        parse_space(parse_yaml(text), name="new")


def test_a_recorded_task_that_is_gone_is_read_as_its_successor():
    """A sweep of version 0.1 in the middle is evaluated on the task that took the place of another."""
    evaluation = upgrade_record({"judging": {"data": None, "tasks": ["docs-library", "docs-order"]}})["evaluation"]
    assert evaluation == {"data": None, "tasks": ["docs-library", "docs-neighbours"]}
