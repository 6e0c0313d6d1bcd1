"""How a submitted sweep is followed, left, found again and stopped: fake clusters, stored runs."""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from command import SPACE
from object_store import CREDENTIALS, empty_bucket, moto_server
from submissions import FakeJobs, FakeLauncher, new_submission, run_on, store_run, submit_once

from raysent.cluster import (
    ConnectionLostError,
    Jobs,
    Output,
    SubmittedSweep,
    SweepJob,
    find_run,
    follow_run,
    following,
    submission,
)
from raysent.cluster import head as head_process
from raysent.cluster.following import JobRecord, ask_to_stop, call_with_jobs, read_record, stop_request, write_record
from raysent.cluster.submission import submit
from raysent.config import parse_yaml
from raysent.errors import CloudError
from raysent.storage import Lines, open_folder
from raysent.sweeps.journal import EVENT_MARK


def test_jobs_raise_if_nothing_answers():
    """An error of one line."""
    with pytest.raises(CloudError, match="no job API of Ray answers"):
        Jobs("http://127.0.0.1:9")


class FakeClient:
    """A fake of Ray's client, whose job prints a text; its stream of the output ends after some characters."""

    def __init__(self, text: str, *, ends_at: int, statuses: str) -> None:
        self._text, self._ends_at, self._statuses = text, ends_at, list(statuses)

    async def tail_job_logs(self, name):
        """Yield the beginning of the text."""
        yield self._text[: self._ends_at]

    def get_job_logs(self, name) -> str:
        """Return the text."""
        return self._text

    def get_job_info(self, name):
        """Return the next status: `r` running, `e` ended, `u` unknown job."""
        status = self._statuses.pop(0)
        if status == "u":
            raise RuntimeError(f"Job {name} does not exist")
        return SimpleNamespace(status=SimpleNamespace(is_terminal=lambda: status == "e"), driver_exit_code=7)


def _follow(text: str, on_line, **options) -> SubmittedSweep:
    jobs = Jobs.__new__(Jobs)
    jobs._client = FakeClient(f"Running entrypoint for job a: b\n{text}", **options)
    return jobs.follow("job", Output(on_line))


def test_follow_distinguishes_a_lost_connection_from_the_end_of_the_job():
    """A stream that ends early is continued: by a new connection, or of a job that has ended by its whole output."""
    lines: list[str] = []
    with pytest.raises(ConnectionLostError, match="its output ended before the job did"):
        _follow("one\ntwo", lines.append, ends_at=34, statuses="rr")
    assert _follow("one\ntwo", lines.append, ends_at=34, statuses="re").code == 7
    assert lines == ["one", "two"]
    with pytest.raises(CloudError, match="does not know this job; its head was replaced"):
        _follow("", lines.append, ends_at=0, statuses="u")


def test_follow_raises_errors_of_what_takes_the_lines():
    """They are not taken for a lost connection, which would be tried again without end."""

    def fail(_) -> None:
        raise ValueError("bug")

    with pytest.raises(ValueError, match="^bug$"):
        _follow("one\n", fail, ends_at=99, statuses="re")


@pytest.fixture
def no_waits(monkeypatch):
    """Connections are made again, and stored runs read again, at once."""
    monkeypatch.setattr(following, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(following, "POLL_S", 0.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 130)])
def test_ctrl_c_and_a_closed_terminal_detach_from_the_sweep(tmp_path, monkeypatch, capsys, ctrl_c, number, code):
    """The cluster is not terminated, and a message says how to show and stop the sweep; before, it is terminated."""
    jobs, launcher = FakeJobs([], ended=SubmittedSweep(0)), FakeLauncher(tmp_path)
    monkeypatch.setattr(jobs, "follow", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(following, "Jobs", jobs)
    before = signal.getsignal(signal.SIGHUP)
    ended = run_on(launcher, tmp_path)
    assert (ended.code, ended.is_detached) == (code, True)
    assert "down" not in launcher.calls
    assert capsys.readouterr().err == (
        f"the sweep continues: 'raysent attach {tmp_path}/remote' shows it, 'raysent stop {tmp_path}/remote' stops it; "
        "the cluster ends with it\n"
    )
    monkeypatch.setattr(launcher, "up", lambda **_: signal.raise_signal(number))
    monkeypatch.setattr(submission, "Jobs", jobs)
    assert run_on(launcher, tmp_path).code == 130
    assert launcher.calls[-1] == "down"
    assert signal.getsignal(signal.SIGHUP) is before


def test_every_line_arrives_once_however_often_the_tunnel_is_cut(tmp_path, monkeypatch, no_waits):
    """Also in the middle of a line, within Ray's own lines, and before the submission was answered: one job."""
    events = [{"event": "report", "trial": f"{number:04d}"} for number in range(8)]
    lines = [text for event in events for text in (EVENT_MARK + json.dumps(event), "chatter")]
    jobs = FakeJobs(lines, ended=SubmittedSweep(3), cuts=[0, 3, 45, 46, 47, 0, 120, 300, 200, 10_000])
    monkeypatch.setattr(following, "Jobs", jobs)
    heard, said = [], []
    ended = submit_once(new_submission(tmp_path), tmp_path, on_event=heard.append, say=said.append)
    assert (ended.code, heard, ended.lines) == (3, events, ("chatter",) * 8)
    assert jobs.num_submitted == 1
    assert said.count("connected again") == 10
    assert said[0] == "connection lost: 0 characters; the sweep continues on the cluster, connecting again"


def test_waits_between_connections_grow_to_half_a_minute(tmp_path, monkeypatch):
    """A head that cannot be reached for long is not given up; one message a loss."""
    jobs, launcher, waits, said = FakeJobs([], ended=SubmittedSweep(0), cuts=[5]), FakeLauncher(tmp_path), [], []
    monkeypatch.setattr(following, "Jobs", jobs)
    tunnels = iter([True, *[False] * 8, True])

    @contextmanager
    def tunnel():
        if not next(tunnels):
            raise ConnectionLostError("no route")
        yield "http://127.0.0.1:9"

    monkeypatch.setattr(launcher, "tunnel", tunnel)
    output = Output(lambda _: None)
    ended = call_with_jobs(launcher, lambda jobs: jobs.follow("job", output), say=said.append, wait=waits.append)
    assert ended == SubmittedSweep(0)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert said == [
        "connection lost: cut; the sweep continues on the cluster, connecting again",
        "still no connection: no route",
        "connected again",
    ]


def test_attach_follows_the_stored_run_without_a_tunnel(tmp_path, no_waits):
    """Another computer has no token: events come from the journal, each once, and printed lines from the record."""
    events = [{"event": "interrupted", "number": number} for number in range(3)]
    launcher, heard, waits = FakeLauncher(tmp_path), [], []
    launcher.is_reachable = False
    record = store_run(tmp_path, *events[:1])

    def wait(_) -> None:
        waits.append(len(heard))
        ends = {} if len(waits) < 2 else {"code": 5, "lines": [f"report: {tmp_path}/remote/report.html"]}
        write_record(str(tmp_path / "remote"), replace(record, **ends))
        store_run(tmp_path, *events[: len(waits) + 1], **ends)

    run = find_run(str(tmp_path / "remote"), new_run=tmp_path / "here")
    ended = follow_run(run, on_event=heard.append, say=print, cluster=launcher, wait=wait)
    assert (ended.code, [event["number"] for event in heard], waits) == (5, [0, 1, 2], [1, 2])
    assert ended.lines == (f"report: {tmp_path}/here/report.html",)
    assert (tmp_path / "here" / "journal.jsonl").is_file()
    assert launcher.calls == ["forget remote"]
    assert find_run(str(tmp_path / "here"), new_run=tmp_path).remote == str(tmp_path / "remote")


def test_ctrl_c_detaches_from_an_attached_sweep(tmp_path, monkeypatch):
    """Through a tunnel or in the stored run; nothing is stopped or downloaded."""
    monkeypatch.setattr(following, "Jobs", FakeJobs([]))
    launcher, said = FakeLauncher(tmp_path), []
    store_run(tmp_path)

    def wait(_) -> None:
        raise KeyboardInterrupt

    run = find_run(str(tmp_path / "remote"), new_run=tmp_path / "here")
    for is_reachable in (True, False):
        launcher.is_reachable = is_reachable
        ended = follow_run(run, on_event=print, say=said.append, cluster=launcher, wait=wait)
        assert (ended.code, ended.is_detached) == (130, True)
    assert said[0].startswith(f"the sweep continues: 'raysent attach {tmp_path}/remote' shows it, 'raysent stop")
    assert launcher.calls == ["tunnel"]
    assert not (tmp_path / "here").exists()


def test_follower_reads_the_end_of_a_sweep_whose_cluster_is_gone(tmp_path, monkeypatch, no_waits):
    """The computer slept while the sweep ended: nothing is waited for, and nothing is received twice."""
    events = [{"event": "interrupted", "number": number} for number in range(3)]
    jobs, launcher, heard = FakeJobs([EVENT_MARK + json.dumps(events[0])]), FakeLauncher(tmp_path), []

    def follow(name, output):
        output.take(jobs._text)
        store_run(tmp_path, *events, code=0, lines=["{", "}"])
        launcher.is_alive = False
        raise ConnectionLostError("asleep")

    monkeypatch.setattr(jobs, "follow", follow)
    monkeypatch.setattr(following, "Jobs", jobs)
    ended = submit(launcher, SweepJob(new_submission(tmp_path), heard.append), say=print)
    assert (ended.code, ended.values, [event["number"] for event in heard]) == (0, {}, [0, 1, 2])


def test_follower_reports_a_cluster_that_ended_before_its_sweep(tmp_path):
    """One line with the command that continues it."""
    launcher = FakeLauncher(tmp_path)
    launcher.is_reachable = launcher.is_alive = False
    store_run(tmp_path)
    run = find_run(str(tmp_path / "remote"), new_run=tmp_path / "here")
    with pytest.raises(CloudError, match="its cluster ended before the sweep did; 'raysent resume .*remote --cluster"):
        follow_run(run, on_event=print, say=print, cluster=launcher)


def test_attach_and_stop_reject_a_run_of_this_machine(raysent):
    """One line; a folder that no sweep was submitted to names the file that it lacks."""
    for command in ("attach", "stop"):
        ran = raysent(command, "runs")
        assert (ran.code, ran.err) == (
            2, "error: runs: is on this machine only; name a run of --cluster, or its s3:// address\n"
        )  # fmt: skip


def test_stop_is_a_request_that_the_head_reads(tmp_path, raysent, monkeypatch):
    """It waits for the end of the sweep, and says how to continue it; a sweep that has ended is left alone."""
    store_run(tmp_path)
    remote, asked = tmp_path / "remote", []

    def wait(seconds) -> None:
        asked.append(json.loads((remote / "stop.json").read_text())["request"])
        store_run(tmp_path, code=130)

    monkeypatch.setattr("time.sleep", wait)
    head = SimpleNamespace(forget_inputs=lambda sweep: None)
    monkeypatch.setattr(following.stop_run, "__kwdefaults__", {"wait": wait, "cluster": head})
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


def test_a_run_in_a_bucket_is_followed_and_stopped_by_its_address(tmp_path, monkeypatch, no_waits):
    """From a computer that has downloaded nothing: record, request and events are objects."""
    run, launcher, heard = "s3://runs/mine/run", FakeLauncher(tmp_path), []
    launcher.is_reachable = False
    events = [{"event": "interrupted", "number": number} for number in range(3)]
    with moto_server() as url, ExitStack() as stack:
        here = {"AWS_ENDPOINT_URL_S3": url, "RAYSENT_CACHE": str(tmp_path / "head")}
        for name, value in {**CREDENTIALS, **here}.items():
            monkeypatch.setenv(name, value)
        stack.enter_context(empty_bucket(url))
        record = JobRecord(job="job", cluster="", region="", space={"name": "toy", "values": parse_yaml(SPACE).values})
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
        write_record(run, record)
        assert stop_request(run) == ""
    assert (tmp_path / "here" / "journal.jsonl").is_file()


@pytest.mark.parametrize("is_kept", [True, False])
def test_head_stores_how_a_command_ended_and_ends_the_cluster(tmp_path, monkeypatch, capsys, is_kept):
    """Exit code and lines, whatever the command did; a cluster that is kept is left alone."""
    fleet = {"cluster": "a", "region": "", "types": {}, "max_workers": 1, "folder": str(tmp_path / "fleet")}
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
