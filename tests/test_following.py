"""How a submitted sweep is followed, left, found again and stopped: fake clusters, stored runs."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import SPACE
from submissions import FakeJobs, FakeLauncher, run_on, store_run

from raysent.cluster import Jobs, SubmittedSweep, find_run, follow_run, following, submission
from raysent.cluster import head as head_process
from raysent.cluster.following import (
    JobRecord,
    ask_to_stop,
    forget_request,
    note_waiting,
    read_record,
    stop_request,
    write_record,
)
from raysent.config import parse_yaml
from raysent.errors import CloudError
from raysent.storage import Lines, open_folder


def test_jobs_raise_if_nothing_answers():
    """An error of one line."""
    with pytest.raises(CloudError, match="no job API of Ray answers"):
        Jobs("http://127.0.0.1:9")


@pytest.fixture
def no_waits(monkeypatch):
    """Stored runs are read again at once."""
    monkeypatch.setattr(following, "POLL_S", 0.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 130)])
def test_ctrl_c_and_a_closed_terminal_detach_from_the_sweep(
    tmp_path, monkeypatch, capsys, ctrl_c, number, code
):
    """The cluster is not terminated, and a message says how to show and stop the sweep; before, it is terminated."""
    jobs, launcher = FakeJobs(), FakeLauncher(tmp_path)
    monkeypatch.setattr(jobs, "failure_to_start", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(submission, "Jobs", jobs)
    before = signal.getsignal(signal.SIGHUP)
    ended = run_on(launcher, tmp_path)
    assert (ended.code, ended.is_detached) == (code, True)
    assert "down" not in launcher.calls
    assert capsys.readouterr().err == (
        f"the sweep continues: 'raysent attach {tmp_path}/remote' shows it, 'raysent stop {tmp_path}/remote' stops it; "
        "the cluster ends with it\n"
    )
    monkeypatch.setattr(launcher, "up", lambda **_: signal.raise_signal(number))
    assert run_on(launcher, tmp_path).code == 130
    assert launcher.calls[-1] == "down"
    assert signal.getsignal(signal.SIGHUP) is before


def test_attach_follows_the_stored_run(tmp_path, no_waits):
    """Events come from the journal, each once, printed lines and why trials wait from the record."""
    events = [{"event": "interrupted", "number": number} for number in range(3)]
    launcher, heard, waits = FakeLauncher(tmp_path), [], []
    record = store_run(tmp_path, *events[:1], waiting="no machines")

    def wait(_) -> None:
        waits.append(len(heard))
        ends = (
            {}
            if len(waits) < 2
            else {"code": 5, "lines": [f"report: {tmp_path}/remote/report.html"]}
        )
        write_record(str(tmp_path / "remote"), replace(record, **ends))
        store_run(tmp_path, *events[: len(waits) + 1], **ends)

    run = find_run(str(tmp_path / "remote"), new_run=tmp_path / "here")
    ended = follow_run(run, on_event=heard.append, say=print, cluster=launcher, wait=wait)
    assert [event for event in heard if event["event"] != "waiting"] == events
    assert [event["reason"] for event in heard if event["event"] == "waiting"] == [
        "no machines",
        "",
    ]
    assert (ended.code, waits) == (5, [2, 4])
    assert ended.lines == (f"report: {tmp_path}/here/report.html",)
    assert (tmp_path / "here" / "journal.jsonl").is_file()
    assert launcher.calls == ["forget remote"]
    assert find_run(str(tmp_path / "here"), new_run=tmp_path).remote == str(tmp_path / "remote")


def test_ctrl_c_detaches_from_an_attached_sweep(tmp_path):
    """Nothing is stopped or downloaded."""
    launcher, said = FakeLauncher(tmp_path), []
    store_run(tmp_path)

    def wait(_) -> None:
        raise KeyboardInterrupt

    run = find_run(str(tmp_path / "remote"), new_run=tmp_path / "here")
    ended = follow_run(run, on_event=print, say=said.append, cluster=launcher, wait=wait)
    assert (ended.code, ended.is_detached) == (130, True)
    assert said[0].startswith(
        f"the sweep continues: 'raysent attach {tmp_path}/remote' shows it, 'raysent stop"
    )
    assert launcher.calls == []
    assert not (tmp_path / "here").exists()


def test_head_stores_why_trials_wait(tmp_path):
    """A request to stop that came meanwhile stays; a run without a record is left alone."""
    store_run(tmp_path)
    remote = str(tmp_path / "remote")
    ask_to_stop(remote)
    note_waiting(tmp_path / "remote", "no machines")
    assert (read_record(remote).waiting, stop_request(remote) != "") == ("no machines", True)
    note_waiting(tmp_path / "other", "no machines")
    assert not (tmp_path / "other").exists()


def test_follower_reports_a_cluster_that_ended_before_its_sweep(tmp_path):
    """One line with the command that continues it."""
    launcher = FakeLauncher(tmp_path)
    launcher.is_alive = False
    store_run(tmp_path)
    run = find_run(str(tmp_path / "remote"), new_run=tmp_path / "here")
    with pytest.raises(
        CloudError,
        match="its cluster ended before the sweep did; 'raysent resume .*remote --cluster",
    ):
        follow_run(run, on_event=print, say=print, cluster=launcher, wait=lambda _: None)


def test_attach_and_stop_reject_a_run_of_this_machine(raysent):
    """One line; a folder that no sweep was submitted to names the file that it lacks."""
    for command in ("attach", "stop"):
        ran = raysent(command, "runs")
        assert (ran.code, ran.err) == (
            2, "error: runs: is on this machine only; name a run on a cluster, or its s3:// address\n"
        )  # fmt: skip


def test_a_run_has_one_address_however_it_is_written():
    """A `Path` of an address has lost a slash."""
    for name in ("s3://b/p/run-1", "s3://b/p/run-1/", Path("s3://b/p/run-1/")):
        assert following.remote_of(name) == "s3://b/p/run-1"


def test_stop_is_a_request_that_the_head_reads(tmp_path, raysent, monkeypatch):
    """It waits for the end of the sweep, and says how to continue it; a sweep that has ended is left alone."""
    store_run(tmp_path)
    remote, asked = tmp_path / "remote", []

    def wait(seconds) -> None:
        asked.append(json.loads((remote / "stop.json").read_text())["request"])
        store_run(tmp_path, code=130)

    monkeypatch.setattr("time.sleep", wait)
    monkeypatch.setattr(
        following, "Head", lambda *_: SimpleNamespace(forget_inputs=lambda sweep: None)
    )
    ran = raysent("stop", remote)
    assert (ran.code, len(asked)) == (0, 1)
    assert ran.out == f"{remote}: stopped; 'raysent resume {remote} --cluster FILE' continues it\n"
    assert raysent("stop", remote).out == f"{remote}: had ended\n"
    assert json.loads(raysent("stop", remote, "--json").out)["has_stopped"] is True


def test_head_stops_once_for_each_request(tmp_path, monkeypatch):
    """A second `raysent stop` is a second signal."""
    monkeypatch.setattr(head_process, "STOP_POLL_S", 0.0)
    store_run(tmp_path)
    has_ended, stops = threading.Event(), []

    def stop() -> None:
        stops.append(stop_request(str(tmp_path / "remote")))
        ask_to_stop(str(tmp_path / "remote"))
        if len(stops) == 3:
            has_ended.set()

    ask_to_stop(str(tmp_path / "remote"))
    head_process.watch(str(tmp_path / "remote"), has_ended, stop)
    assert len(set(stops)) == 3


def test_head_interrupts_the_command_on_request(tmp_path, monkeypatch):
    """The request reaches the process as SIGTERM; its end is stored."""
    monkeypatch.setattr(head_process, "STOP_POLL_S", 0.01)

    def run_module(*_, **__) -> None:
        ask_to_stop(str(tmp_path / "remote"))
        time.sleep(60)

    monkeypatch.setattr("runpy.run_module", run_module)
    store_run(tmp_path)
    assert head_process.main(["--run", str(tmp_path / "remote"), "--", "sweep", "toy"]) == 130
    assert read_record(str(tmp_path / "remote")).code == 130


def test_head_stores_all_lines_of_a_sweep_as_json(tmp_path, monkeypatch):
    """A long object has its beginning; of other output the last lines are stored."""
    values = {"trials": list(range(head_process.NUM_LINES))}
    monkeypatch.setattr("runpy.run_module", lambda *_, **__: print(json.dumps(values, indent=2)))
    for options, is_whole in ((["--json"], True), ([], False)):
        store_run(tmp_path)
        assert (
            head_process.main(["--run", str(tmp_path / "remote"), "--", "sweep", "toy", *options])
            == 0
        )
        ended = SubmittedSweep(0, tuple(read_record(str(tmp_path / "remote")).lines))
        assert ended.values == (values if is_whole else None)


@pytest.mark.usefixtures("bucket", "no_waits")
def test_a_run_in_a_bucket_is_followed_and_stopped_by_its_address(tmp_path, monkeypatch):
    """From a computer that has downloaded nothing: record, request and events are objects."""
    run, launcher, heard = "s3://runs/mine/run", FakeLauncher(tmp_path), []
    events = [{"event": "interrupted", "number": number} for number in range(3)]
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "head"))
    record = JobRecord(
        job="job", cluster="", region="", space={"name": "toy", "values": parse_yaml(SPACE).values}
    )
    write_record(run, record)
    lines = Lines(open_folder(f"{run}/journal.jsonl").parent / "journal.jsonl")
    lines.append(events[0])
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "elsewhere"))
    found = find_run(run, new_run=tmp_path / "here")
    ask_to_stop(found.remote)
    request = stop_request(run)

    def wait(_) -> None:
        monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "head"))
        lines.append(*events[1:])
        write_record(run, replace(record, code=130))
        monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "elsewhere"))

    ended = follow_run(found, on_event=heard.append, say=print, cluster=launcher, wait=wait)
    assert (ended.code, [event["number"] for event in heard]) == (130, [0, 1, 2])
    assert stop_request(run) == request != ""
    forget_request(run)
    assert stop_request(run) == ""
    assert (tmp_path / "here" / "journal.jsonl").is_file()


@pytest.mark.parametrize("is_kept", [True, False])
def test_head_stores_how_a_command_ended_and_ends_the_cluster(
    tmp_path, monkeypatch, capsys, is_kept
):
    """Exit code and lines, whatever the command did; a cluster that is kept is left alone."""
    fleet = {
        "cluster": "a",
        "region": "",
        "types": {},
        "max_workers": 1,
        "folder": str(tmp_path / "fleet"),
    }
    monkeypatch.setenv("RAYSENT_FLEET", json.dumps(fleet))
    store_run(tmp_path)
    options = ["--run", str(tmp_path / "remote"), *(["--keep"] if is_kept else [])]
    before = signal.getsignal(signal.SIGTERM)
    assert head_process.main([*options, "--", "doctor", "missing.yaml"]) == 2
    record = find_run(str(tmp_path / "remote"), new_run=tmp_path).record
    assert record.code == 2
    assert record.lines[0].startswith("error: missing.yaml")
    assert record.lines[0] in capsys.readouterr().err
    assert (tmp_path / "fleet" / "lease").read_text() == ("3600" if is_kept else "120")
    assert signal.getsignal(signal.SIGTERM) is before
