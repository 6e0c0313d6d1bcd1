"""The folder of a sweep as domain types: its record, its trials with their reports, and files that are damaged."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pandas
import pytest

from raysent.config import Override, parse_yaml
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.storage import Lease, write_json_lines
from raysent.storage.layout import JOURNAL_FILE, SWEEP_FILE, TRIALS_FILE
from raysent.sweeps import SweepRecord, Trial, load_record, read_events, read_sweep, study_of
from raysent.sweeps.driver import _check_rows, resume
from raysent.sweeps.journal import session_lengths
from raysent.sweeps.record import (
    check_versions,
    compare_versions,
    save_record,
    write_trials_table,
)
from raysent.sweeps.space import parse_space
from raysent.sweeps.trial import trials_of

DATA = Path(__file__).parent / "data" / "version_2"
TEXT = "base: {encoder: {type: gru}, objective: {type: context_prediction}}\n"


def test_record_is_read_as_it_was_written(tmp_path):
    """Facts, versions, and the name of the space's file come back."""
    space = parse_space(parse_yaml(TEXT, source="toy.yaml"), name="toy")
    facts = {"corpus": {"path": "text.txt"}, "pool": {"hash": "abc"}}
    record = SweepRecord(
        space, 3, ["raysent"], "auto", {"data": None, "tasks": ["MR"]}, 1.5, facts=facts
    )
    save_record(tmp_path, record)
    read = load_record(tmp_path)
    assert read.values() == record.values()
    assert (read.facts, read.versions["ray"], read.source) == (
        facts,
        record.versions["ray"],
        "toy.yaml",
    )


def test_resume_changes_the_record_only_where_it_goes_on(tmp_path, monkeypatch):
    """Not while another process is at work, and not to a deadline that has passed."""
    monkeypatch.setattr("raysent.sweeps.driver._prepared", lambda *_: {})
    monkeypatch.setattr("raysent.sweeps.driver._Session.train", lambda *_: True)
    space = parse_space(
        parse_yaml(TEXT + "cost: {usd_per_hour: 1.0, budget: 5usd, deadline: 6h}\n"), name="toy"
    )
    save_record(tmp_path, SweepRecord(space, 0, started=time.time()))
    before = (tmp_path / SWEEP_FILE).read_bytes()
    more = [Override("cost.budget", "500usd", "--budget")]
    lease = Lease(tmp_path)
    with pytest.raises(ArtifactError, match="another process is working on this run"):
        resume(tmp_path, limits=more)
    lease.release()
    with pytest.raises(ConfigError, match="a deadline must be in the future"):
        resume(tmp_path, limits=[Override("cost.deadline", "2020-01-01", "--deadline")])
    assert (tmp_path / SWEEP_FILE).read_bytes() == before
    resume(tmp_path, limits=more)
    resume(tmp_path)
    assert load_record(tmp_path).space.cost.budget == "500usd"


def test_sweep_is_not_continued_on_another_text(tmp_path):
    """Whatever ranks its trials; a record of version 0.2.0, which had other keys, goes on."""
    space = parse_space(parse_yaml(TEXT, source="toy.yaml"), name="toy")
    record = SweepRecord(
        space, 3, ["raysent"], "auto", facts={"corpus": {"key": "a", "vocabulary": "words"}}
    )
    with pytest.raises(
        DataError, match="its text has changed since it began; restore it, or begin another sweep"
    ):
        _check_rows(record, {"corpus": {"key": "b"}}, tmp_path)
    for facts in ({"corpus": {"key": "b"}}, {}, record.facts):
        _check_rows(replace(record, facts=facts), record.facts, tmp_path)


def test_read_sweep_has_every_trial_with_its_reports():
    """Status, values over time, cost; best and order as everywhere."""
    sweep = read_sweep(DATA / "finished")
    assert [trial.status for trial in sweep.trials] == [
        "finished",
        "stopped",
        "stopped",
        *["finished"] * 3,
    ]
    first = sweep.trials[0]
    assert [report.index for report in first.reports] == [1, 2, 3]
    assert first.metrics == first.reports[-1].metrics
    assert first.reports[0].usd < first.reports[-1].usd <= first.usd
    assert first.reports[-1].time > sweep.record.started
    assert (sweep.best.name, sweep.ranked[0].name, sweep.num_reports) == ("0004", "0004", 3)
    assert sweep.seconds == pytest.approx(sum(session_lengths(read_events(DATA / "finished"))))


def test_read_sweep_of_a_killed_one_shows_what_was_running():
    """A trial without an end is running after its last report; seconds count no pause."""
    sweep = read_sweep(DATA / "killed")
    assert [(trial.status, trial.index) for trial in sweep.trials] == [
        ("finished", 3),
        ("running", 1),
    ]
    assert sweep.best.name == "0000"


def test_trials_table_holds_no_formulas(tmp_path):
    """Texts that a spreadsheet computes follow an apostrophe; pandas restores them; numbers stay numbers."""
    texts = ["=1+1", "+x", "-x", "@SUM(A1)", "\t=1", "'quoted", "plain"]
    searched = f"search: {{corpus.path: {{choice: {json.dumps(texts)}}}}}\n"
    trials = [
        Trial(f"{number:04d}", number, {"corpus.path": text}, seed=0, metrics={"context_nll": -0.5})
        for number, text in enumerate(texts)
    ]
    write_trials_table(tmp_path, parse_space(parse_yaml(TEXT + searched), name="toy"), trials)
    table = pandas.read_csv(tmp_path / TRIALS_FILE, skip_blank_lines=False)
    assert [text[:1] in "=+-@\t" for text in table["corpus.path"]] == [False] * len(texts)
    assert sorted(table["corpus.path"].str.removeprefix("'")) == sorted(texts)
    assert list(table["context_nll"]) == [-0.5] * len(texts)


def test_session_lengths_leave_out_the_pauses():
    """From each session's event to the last one before the next."""
    times = [
        ("session", 5.0),
        ("started", 6.0),
        ("report", 9.0),
        ("session", 100.0),
        ("completed", 101.5),
    ]
    assert session_lengths({"event": event, "time": time} for event, time in times) == [4.0, 1.5]


def test_trials_of_nothing_are_none():
    """Events of the sweep alone make no trial."""
    assert trials_of([{"event": "session", "time": 0.0}, {"event": "completed", "time": 1.0}]) == {}


@pytest.mark.parametrize("change", [{"trial": "9999"}, {"params": None}, {"number": None}])
def test_read_sweep_refuses_a_journal_that_is_none(tmp_path, change):
    """An event of an unknown trial, or without its values, is one line that names the file."""
    shutil.copytree(DATA / "journals" / "random", tmp_path / "run")
    events = [*read_events(tmp_path / "run")]
    at = 2 if "trial" in change else 1
    events[at] = {
        key: value for key, value in {**events[at], **change}.items() if value is not None
    }
    write_json_lines(tmp_path / "run" / JOURNAL_FILE, events)
    with pytest.raises(
        ArtifactError,
        match=r"journal.jsonl: not the journal of a sweep \(KeyError: .*\); restore it$",
    ):
        read_sweep(tmp_path / "run")


def test_study_is_the_sweep_as_optuna_keeps_it():
    """Parameters with their labels, reports, states and values; Optuna's own best is a finished trial's."""
    sweep = read_sweep(DATA / "finished")
    found = study_of(sweep)
    assert [trial.state.name for trial in found.trials] == [
        "COMPLETE",
        "PRUNED",
        "PRUNED",
        *["COMPLETE"] * 3,
    ]
    for trial, ours in zip(found.trials, sweep.trials, strict=True):
        assert trial.params == ours.params
        assert trial.intermediate_values == {
            one.index: one.metrics["context_accuracy"] for one in ours.reports
        }
        assert trial.user_attrs["trial"] == ours.name
    assert found.best_value == max(
        ours.metrics["context_accuracy"] for ours in sweep.trials if ours.status == "finished"
    )
    assert found.trials[0].distributions["encoder.bidirectional"].choices == (False, True)
    assert found.direction.name == "MAXIMIZE"


def test_study_has_failed_and_running_trials():
    """What runs is running; what failed, diverged or has no value has failed."""
    sweep = read_sweep(DATA / "killed")
    first, second = sweep.trials
    broken = [replace(first, name="0002", number=2, status=status) for status in ("failed", "nan")]
    no_value = replace(first, name="0004", number=4, metrics={"context_accuracy": None})
    found = study_of(replace(sweep, trials=(first, second, *broken, no_value)))
    assert [trial.state.name for trial in found.trials] == [
        "COMPLETE",
        "RUNNING",
        "FAIL",
        "FAIL",
        "FAIL",
    ]


SEARCHED = """
metric: %s
base: {encoder: {type: gru}, objective: {type: context_prediction}%s}
search:
  training.learning_rate: {loguniform: [1e-4, 1e-2]}
  encoder.bidirectional: {choice: [false, true]}
limits: {seeds: %d}
"""


def _table(folder, trials, *, metric="context_accuracy", base="", num_seeds=1) -> list[str]:
    """Return the lines of the table of trials of a space."""
    space = parse_space(parse_yaml(SEARCHED % (metric, base, num_seeds)), name="toy")
    write_trials_table(folder, space, trials)
    text = (folder / TRIALS_FILE).read_bytes().decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def _trial(number, metrics, *, status="finished", params=None, seconds=1.0, usd=0.0) -> Trial:
    return Trial(
        f"{number:04d}", number, params or {}, 70 + number, status, metrics=metrics, seconds=seconds, usd=usd,
        is_outranked=status == "stopped",
    )  # fmt: skip


def test_trials_table_has_a_row_for_each_trial_best_first(tmp_path):
    """Status, metrics, seconds to a tenth, dollars to four places, parameters; nothing where there is none."""
    trials = [
        _trial(0, {}, status="failed"),
        _trial(
            1,
            {"context_accuracy": 0.25, "context_nll": 2.5},
            params={"training.learning_rate": 0.001},
        ),
        _trial(
            2,
            {"context_accuracy": 0.5, "context_nll": None},
            status="stopped",
            params={"training.learning_rate": 0.002, "encoder.bidirectional": False},
            seconds=12.345,
            usd=0.123456,
        ),
    ]
    assert _table(tmp_path, trials) == [
        "trial,status,context_accuracy,context_nll,seconds,usd,training.learning_rate,encoder.bidirectional",
        "0001,finished,0.25,2.5,1.0,0.0,0.001,",
        "0002,stopped,0.5,,12.3,0.1235,0.002,False",
        "0000,failed,,,1.0,0.0,,",
    ]


@pytest.mark.parametrize("num_seeds", [2, 3])
def test_trials_table_of_several_seeds_has_median_and_seed(tmp_path, num_seeds):
    """Each trial of a configuration has its median; a configuration without a value has none."""
    trials = [_trial(number, {"context_accuracy": 0.25}) for number in range(num_seeds)]
    trials.append(_trial(num_seeds, {}, status="failed"))
    header, *rows = _table(tmp_path, trials, num_seeds=num_seeds)
    assert header.split(",")[4:8] == ["seconds", "usd", "median_context_accuracy", "seed"]
    medians = [["0.25", str(70 + number)] for number in range(num_seeds)]
    assert [row.split(",")[6:8] for row in rows] == [*medians, ["", str(70 + num_seeds)]]


def test_trials_table_has_a_column_for_another_metric(tmp_path):
    """A downstream score comes after the dollars, beside the metrics of the context."""
    trials = [
        _trial(0, {"context_accuracy": 0.9, "downstream": 70.0}),
        _trial(1, {"downstream": 80.5}),
    ]
    base = ", validation: {downstream: {tasks: [docs-neighbours]}}"
    header, *rows = _table(tmp_path, trials, metric="downstream", base=base)
    assert header.split(",")[:7] == [
        "trial",
        "status",
        "context_accuracy",
        "context_nll",
        "seconds",
        "usd",
        "downstream",
    ]
    assert [row.split(",")[:7] for row in rows] == [
        ["0001", "finished", "", "", "1.0", "0.0", "80.5"],
        ["0000", "finished", "0.9", "", "1.0", "0.0", "70.0"],
    ]


@pytest.mark.parametrize(
    ("present", "verdict"),
    [
        ({"torch": "2.3.0+cpu", "ray": "2.9.0"}, "same"),
        ({"torch": "2.3.1+cpu", "ray": "2.10.0"}, "compatible"),
        ({"torch": "2.4.0+cpu", "ray": "2.9.0"}, "different numerics"),
        ({"torch": "2.3.0+cu121", "ray": "2.9.0"}, "different numerics"),
    ],
)
def test_versions_are_compared_by_what_they_change(present, verdict):
    """Another PyTorch gives other bits; another Ray does not."""
    assert compare_versions({"torch": "2.3.0+cpu", "ray": "2.9.0"}, present)[0] == verdict


def test_resume_with_other_numerics_is_refused_until_they_are_accepted(tmp_path):
    """One line names the versions; accepted ones are those of the record that goes on."""
    for name in (SWEEP_FILE, JOURNAL_FILE):
        shutil.copy(DATA / "finished" / name, tmp_path)
    recorded = load_record(tmp_path)
    record = replace(recorded, versions={**recorded.versions, "torch": version("torch")})
    assert check_versions(tmp_path, record, is_accepted=False) is record
    old = replace(record, versions={**record.versions, "torch": "1.0.0"})
    with pytest.raises(
        ArtifactError,
        match=r"torch 1.0.0 then, .* now: .*; install those versions, or resume with acc",
    ):
        check_versions(tmp_path, old, is_accepted=False)
    accepted = check_versions(tmp_path, old, is_accepted=True)
    assert accepted.versions["torch"] == version("torch")
