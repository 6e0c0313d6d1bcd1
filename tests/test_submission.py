"""Sweeps on a running cluster and on one that is started for them: a real Ray head with a token, and fake launchers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from command import SPACE, CommandLine
from machines import CutTunnel, free_ports, metadata_service
from moto import mock_aws
from object_store import CREDENTIALS, empty_bucket, moto_server

from raysent import cluster
from raysent.cluster import (
    ConnectionLostError,
    JobResult,
    Jobs,
    Output,
    SubmittedSweep,
    SweepJob,
    download,
    find_run,
    follow_run,
    following,
    ship,
    submission,
)
from raysent.cluster import head as head_process
from raysent.cluster.following import call_with_jobs
from raysent.cluster.jobs import check_shipped_size
from raysent.cluster.launcher import make_token
from raysent.cluster.stored import JobRecord, ask_to_stop, read_record, stop_request, write_record
from raysent.cluster.submission import Submission, run_submission, submit
from raysent.config import parse_yaml
from raysent.errors import ArtifactError, CloudError, ConfigError
from raysent.storage import Lines, open_folder
from raysent.sweeps import Workers
from raysent.sweeps.journal import EVENT_MARK, read_events
from raysent.sweeps.ray_tune import _driver_place
from raysent.sweeps.space import parse_space, read_space, with_absolute_paths

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"
CANARY = "AKIACANARYCANARYCANA"
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "in",
    "mat",
    "hat",
    "big",
    "small",
    "red",
    "blue",
    "house",
    "tree",
]


@dataclass(frozen=True)
class Head:
    """A Ray head on this machine.

    Attributes:
        dashboard: Address of its job API.
        address: Address of Ray.
        token_file: File with its token.
        folder: Ray's temporary folder.
    """

    dashboard: str
    address: str
    token_file: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that give access."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file)}


def _environment(**more: str) -> dict[str, str]:
    """Return environment variables of a process: this raysent, and no token except in `more`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    paths = {"PYTHONPATH": str(SHIPPED.parent), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    keys = {"AWS_ACCESS_KEY_ID": CANARY, "AWS_SECRET_ACCESS_KEY": CANARY}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "HOME": inherited["HOME"]}
    return {**inherited, **paths, **keys, **quiet, **more}


@pytest.fixture(scope="module")
def head():
    """A head with token authentication and its ports on the loopback."""
    pytest.importorskip("aiohttp", reason="the job API needs the extra 'cluster'")
    # The paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp", ignore_cleanup_errors=True) as folder:
        token_file = Path(folder) / "auth_token"
        make_token(token_file)
        ray, dashboard, client, agent = free_ports(4)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"),
            *("--node-ip-address=127.0.0.1", f"--port={ray}", f"--ray-client-server-port={client}"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--temp-dir={folder}/ray"),
            *(f"--dashboard-agent-listen-port={agent}", "--object-store-memory=100000000"),
        ]
        found = Head(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{ray}", token_file, Path(folder))
        with subprocess.Popen(
            command, env=_environment(**found.environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                _wait_for(found)
                yield found
            finally:
                process.terminate()


def _wait_for(head: Head) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        try:
            Jobs(head.dashboard, token=head.token_file.read_text())
            return
        except CloudError:
            time.sleep(0.5)
    raise AssertionError("the head did not come up")


def _space(folder: Path, *, trials: int = 2, epochs: float = 1.0) -> Path:
    """Write a search space, and its corpus."""
    lines = [" ".join(WORDS[(number * 7 + word * 5) % len(WORDS)] for word in range(7)) for number in range(400)]
    (folder / "text.txt").write_text("".join(f"{line}.\n" for line in lines))
    path = folder / "toy.yaml"
    text = SPACE.replace("trials: 4", f"trials: {trials}").replace("text.txt", str(folder / "text.txt"))
    text = text.replace("epochs: 1.0", f"epochs: {epochs}")
    path.write_text(text + "evaluation: {tasks: []}\n")
    return path


def _submission(folder: Path, **changes) -> Submission:
    values = {"run": folder / "run", "remote": str(folder / "remote"), "options": [], "workers": Workers(2, 1)}
    space = parse_space(parse_yaml(SPACE + "evaluation: {tasks: []}\n"), name="toy")
    return Submission(**{"space": space, **values, **changes})


@pytest.mark.cluster
# Ray's client uses an old argument of aiohttp.
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
def test_submit_runs_a_sweep_on_a_head_with_a_token(head, tmp_path, monkeypatch, capsys, ctrl_c):
    """Through a tunnel that is cut ten times, with Ctrl-C, and from a second folder: one sweep, every event once.

    It is downloaded, exit code 0; no file holds the token or a key of AWS.
    """
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(following, "FIRST_WAIT_S", 0.1)
    # Trials long enough that the sweep does not end before the tenth cut.
    space, token, first = read_space(_space(tmp_path, trials=4, epochs=60.0)), head.token_file.read_text(), []
    cluster = CutTunnel(int(head.dashboard.rpartition(":")[2]), head.token_file, num_cuts=10)

    def on_event(event) -> None:
        first.append(event)
        if len(first) == 2:
            ctrl_c()

    detached = submit(cluster, SweepJob(_submission(tmp_path, space=space), on_event), say=print)
    assert (detached.code, detached.is_detached) == (130, True)
    second = tmp_path / "second"
    events: list[object] = []
    found = find_run(str(tmp_path / "remote"), new_run=second)
    ended = follow_run(found, on_event=events.append, say=print, cluster=cluster)
    shown = capsys.readouterr()
    assert cluster.num_cuts == 0
    assert 2 <= len(first) < len(events)
    assert events[: len(first)] == first
    assert shown.out.count("connected again") >= 9  # one cut may coincide with the detachment
    assert events == list(read_events(second))
    assert len(Jobs(head.dashboard, token=token).of_run(str(tmp_path / "remote"))) == 1
    printed = "\n".join(ended.lines)
    assert ended.code == 0, shown
    assert "\ntrial  status" in f"\n{printed}"
    assert find_run(str(second), new_run=tmp_path).record.lines
    assert str(tmp_path / "remote") not in printed
    files = {path.name: path.read_bytes() for path in second.rglob("*") if path.is_file()}
    assert {"sweep.json", "journal.jsonl", "ledger.jsonl", "report.html", "model.safetensors"} <= set(files)
    secrets = [name for name, data in files.items() if token.encode() in data or CANARY.encode() in data]
    assert secrets == []
    assert token not in printed + shown.out + shown.err + str(events)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
def test_a_sweep_is_stopped_from_a_second_folder_and_resumed(head, tmp_path, monkeypatch, ctrl_c):
    """`raysent stop` in another process: trials save, and `resume` trains the rest; every trial ends once."""
    monkeypatch.chdir(tmp_path)
    (second := tmp_path / "second").mkdir()
    # Trials long enough that the request reaches the head before they end.
    remote, space = tmp_path / "remote", read_space(_space(tmp_path, trials=2, epochs=400.0))
    cluster = CutTunnel(int(head.dashboard.rpartition(":")[2]), head.token_file, num_cuts=0)

    def on_event(event) -> None:
        if event["event"] == "started":
            ctrl_c()

    assert submit(cluster, SweepJob(_submission(tmp_path, space=space), on_event), say=print).is_detached
    stopped = _command(second, "stop", str(remote))
    assert (stopped.returncode, stopped.stdout) == (
        0, f"{remote}: stopped; 'raysent resume {remote} --cluster FILE' continues it\n"
    ), stopped.stderr  # fmt: skip
    assert read_record(str(remote)).code == 130
    before = list(read_events(remote))
    assert [event["event"] for event in before].count("ended") == 0
    assert list(remote.glob("trials/*/checkpoint*"))
    again = _submission(tmp_path, space=space, run=second / "run", is_resumed=True)
    assert submit(cluster, SweepJob(again, [].append), say=print).code == 0
    events = list(read_events(remote))
    assert events[: len(before)] == before
    assert sorted(event["trial"] for event in events if event["event"] == "ended") == ["0000", "0001"]


@pytest.fixture
def sshd(tmp_path):
    """An SSH server on the loopback that drops a client within three seconds of silence: its port, and a key."""
    if (server := shutil.which("sshd", path="/usr/sbin:/usr/bin")) is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs OpenSSH's server and client")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where the server gives up its rights
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (port,) = free_ports(1)
    lines = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {tmp_path}/host", f"AuthorizedKeysFile {tmp_path}/key.pub",
        "StrictModes no", "UsePAM no", "PidFile none", "PermitRootLogin prohibit-password",
        "ClientAliveInterval 1", "ClientAliveCountMax 3",
    ]  # fmt: skip
    (tmp_path / "sshd_config").write_text("\n".join(lines) + "\n")
    command = [server, "-D", "-f", tmp_path / "sshd_config"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        yield port, tmp_path / "key"
        process.terminate()


def _wait_until(is_so):
    """Wait until a condition holds, five minutes at most."""
    until = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
def test_a_client_that_sleeps_gets_every_event_once(head, sshd, tmp_path, monkeypatch, ctrl_c):
    """Its process and its SSH tunnel are stopped until the server has dropped it; then it goes on to the end."""
    monkeypatch.chdir(tmp_path)
    remote, space = tmp_path / "remote", read_space(_space(tmp_path, trials=6, epochs=100.0))
    port = head.dashboard.rpartition(":")[2]
    cluster = CutTunnel(int(port), head.token_file, num_cuts=0)
    job = SweepJob(_submission(tmp_path, space=space), lambda _: ctrl_c())
    heard, (sshd_port, key) = tmp_path / "heard", sshd
    command = [sys.executable, Path(__file__).with_name("ssh_client.py"), remote, tmp_path / "second", heard]
    command += [port, head.token_file, str(sshd_port), key]
    paths = {"PYTHONPATH": f"{SHIPPED.parent}:{Path(__file__).parent}"}
    with subprocess.Popen(
        command, env=_environment(**paths), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as client:
        _wait_until(heard.exists)
        assert submit(cluster, job, say=print).is_detached
        (tmp_path / "heard.go").touch()
        _wait_until(lambda: heard.read_text() != "")
        os.killpg(client.pid, signal.SIGSTOP)
        before = heard.read_text().count("\n")
        time.sleep(float(os.environ.get("RAYSENT_SLEEP_S", "10")))
        assert heard.read_text().count("\n") == before
        os.killpg(client.pid, signal.SIGCONT)
        shown, _ = client.communicate(timeout=600)
    events = [json.loads(line) for line in heard.read_text().splitlines()]
    assert client.returncode == 0, shown
    assert shown.count("connection lost") == shown.count("connected again") >= 1
    assert 0 < before < len(events)
    assert events == list(read_events(tmp_path / "second"))
    assert events[-1]["event"] == "completed"


@pytest.mark.cluster
@pytest.mark.parametrize(("token", "given"), [("", "none"), ("0" * 64, "the token of another cluster")])
def test_jobs_are_rejected_without_the_token(head, token, given):
    """An error of one line, before anything is sent."""
    with pytest.raises(CloudError, match=f"^{head.dashboard}: requires its token; given {given}$"):
        Jobs(head.dashboard, token=token)


def _command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of raysent in a folder, in a process of its own."""
    command = [sys.executable, "-m", "raysent", *arguments]
    environment = _environment(**{"HOME": str(folder), **environment})
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _sweep_at(head: Head, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["--run", "run", "--address", head.address, "--yes"]
    return _command(folder, "sweep", str(_space(folder)), *options, **environment)


@pytest.mark.cluster
def test_sweep_at_an_address_works_with_the_token(head, tmp_path):
    """Ray's environment variables name the file."""
    ran = _sweep_at(head, tmp_path, **head.environment)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "trials.csv").is_file()


@pytest.mark.cluster
def test_sweep_at_an_address_is_rejected_without_the_token(head, tmp_path):
    """Exit code 2, one line that names the fix, and no run folder."""
    ran = _sweep_at(head, tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1] == (
        f"error: --address {head.address}: requires its token, and none or another was given; set RAY_AUTH_MODE=token, "
        "and RAY_AUTH_TOKEN_PATH to the token's file unless that is ~/.ray/auth_token, with which Ray requires tokens "
        "without being asked to"
    )
    assert "InvalidAuthToken" not in ran.stderr
    assert not (tmp_path / "run").exists()


def test_jobs_raise_if_nothing_answers():
    """An error of one line."""
    with pytest.raises(CloudError, match="no job API of Ray answers"):
        Jobs("http://127.0.0.1:9")


def test_submit_waits_for_a_new_head(tmp_path, monkeypatch):
    """A new head answers before it accepts jobs; other errors are raised at once."""
    answers = ["500: No available agent to submit job, please try again later", None, "500: no such runtime"]

    class Client:
        def submit_job(self, **_):
            answer = answers.pop(0)
            if answer:
                raise RuntimeError(answer)
            return "job"

    monkeypatch.setattr("raysent.cluster.jobs._POLL_S", 0.0)
    jobs = Jobs.__new__(Jobs)
    jobs._client = Client()
    assert jobs.submit(["true"], folder=tmp_path, environment={}) == "job"
    with pytest.raises(CloudError, match="the job was rejected: 500: no such runtime"):
        jobs.submit(["true"], folder=tmp_path, environment={})
    assert answers == []


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


def _follow(text: str, on_line, **options) -> JobResult:
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


class FakeLauncher:
    """A fake launcher that records its calls.

    Attributes:
        is_alive: Whether the cluster has a head.
    """

    is_reachable, is_alive = True, True

    def __init__(self, folder: Path, *, fails: bool = False, is_new: bool = True, others: tuple[str, ...] = ()) -> None:
        self.token_file = folder / "token"
        make_token(self.token_file)
        self.calls: list[str] = []
        self._fails, self._is_new, self._others = fails, is_new, list(others)
        self.has_launched, self.stays = False, False

    def up(self, *, sweep, is_kept, inputs, on_line) -> bool:
        """Start, or fail halfway; or find a head that is running."""
        self.calls.append(f"up {sweep}")
        self.has_launched = self._is_new
        if self._fails:
            raise CloudError("raysent: 'ray up' ended with exit code 1: no capacity")
        return self._is_new

    def forget_inputs(self, sweep) -> None:
        """Record it."""
        self.calls.append(f"forget {sweep}")

    def other_sweeps(self, sweep) -> list[str]:
        """Return those that have workers."""
        return self._others

    def down(self, *, on_line) -> None:
        """Terminate."""
        self.calls.append("down")

    def is_running(self) -> bool:
        """Return whether the cluster has a head."""
        return self.is_alive

    @contextmanager
    def tunnel(self):
        """Yield an address where nothing listens."""
        self.calls.append("tunnel")
        yield "http://127.0.0.1:9"
        self.calls.append("tunnel closed")


class FakeJobs:
    """A fake job API whose job prints lines, then ends or is interrupted; its connections break.

    Attributes:
        cuts: For each connection, the number of characters after which it breaks.
        known: Names of jobs of the run, and whether each has ended.
    """

    def __init__(self, lines, *, ended=None, cuts=()) -> None:
        self._text = "".join(f"{line}\n" for line in ["noise", "Running entrypoint for job x: y", *lines])
        self._ended = ended
        self.cuts, self.known, self.num_submitted = list(cuts), {}, 0

    def __call__(self, address, *, token) -> FakeJobs:
        """Connect."""
        return self

    def of_run(self, run) -> dict[str, bool]:
        """Return the known jobs."""
        return self.known

    def other_runs(self, run) -> list[str]:
        """Return no other run."""
        return []

    def submit(self, command, *, folder, environment, name, run) -> str:
        """Keep the job; a connection that breaks after no characters breaks before the answer."""
        self.command, self.environment = command, environment
        self.sent = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
        self.num_submitted += 1
        self.known[name] = False
        if self.cuts[:1] == [0]:
            raise ConnectionLostError(f"{self.cuts.pop(0)} characters")
        return name

    def follow(self, name, output) -> JobResult:
        """Pass on the lines from the first one."""
        output.restart()
        if self.cuts:
            output.take(self._text[: self.cuts.pop(0)])
            raise ConnectionLostError("cut")
        output.take(self._text)
        if self._ended is None:
            raise KeyboardInterrupt
        return self._ended


def _run(launcher, tmp_path, *, keep=False):
    say = partial(print, file=sys.stderr)
    return run_submission(launcher, _submission(tmp_path), on_event=lambda _: None, say=say, keep=keep)


def _submit(submitted, folder, *, on_event=lambda _: None, say=lambda _: None):
    return submit(FakeLauncher(folder), SweepJob(submitted, on_event), say=say)


@pytest.fixture
def no_waits(monkeypatch):
    """Connections are made again, and stored runs read again, at once."""
    monkeypatch.setattr(following, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(following, "POLL_S", 0.0)


def test_run_submission_terminates_the_cluster_after_the_sweep(tmp_path, monkeypatch):
    """The cluster has the name of the run; the exit code is that of the sweep; it may read its inputs no longer."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(5))
    launcher = FakeLauncher(tmp_path)
    assert _run(launcher, tmp_path).code == 5
    assert launcher.calls == ["up remote", "forget remote", "tunnel", "down"]


@pytest.mark.parametrize(("is_new", "others"), [(True, ()), (True, ("theirs",)), (False, ())])
@pytest.mark.parametrize("error", [KeyboardInterrupt, CloudError("lost"), ZeroDivisionError])
def test_run_submission_terminates_what_it_launched_after_any_error(tmp_path, monkeypatch, error, is_new, others):
    """Before the sweep is submitted: Ctrl-C, a cluster that no longer answers, a bug. What others use stays."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(submission, "submit", fail)
    launcher = FakeLauncher(tmp_path, is_new=is_new, others=others)
    if error is KeyboardInterrupt:
        assert _run(launcher, tmp_path).code == 130
    else:
        with pytest.raises((CloudError, ZeroDivisionError)):
            _run(launcher, tmp_path)
    assert ("down" in launcher.calls) == (is_new and not others)


def test_run_submission_leaves_a_cluster_that_another_sweep_uses(tmp_path, monkeypatch, capsys):
    """By the jobs of the head; one that cannot be reached any more ends itself after its last sweep."""
    jobs, launcher = FakeJobs([], ended=JobResult(0)), FakeLauncher(tmp_path)
    monkeypatch.setattr(jobs, "other_runs", lambda run: ["s3://b/theirs"])
    monkeypatch.setattr(following, "Jobs", jobs)
    monkeypatch.setattr(submission, "Jobs", jobs)
    assert _run(launcher, tmp_path).code == 0
    assert "the cluster stays for s3://b/theirs, and ends with the last sweep on it" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(following, "Jobs", jobs)
    jobs.known.clear()
    assert _run(launcher, tmp_path).code == 0
    assert "the head terminates the cluster after the last sweep on it" in capsys.readouterr().err
    assert "down" not in launcher.calls


@pytest.fixture
def ctrl_c():
    """A process that handles Ctrl-C; background processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield partial(signal.raise_signal, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_run_submission_terminates_the_cluster_despite_one_more_ctrl_c(tmp_path, monkeypatch, capsys, ctrl_c):
    """The first Ctrl-C during the cleanup prints a message; the second one aborts it."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(0))
    launcher = FakeLauncher(tmp_path)
    monkeypatch.setattr(launcher, "down", lambda **_: [ctrl_c(), launcher.calls.append("down")])
    assert _run(launcher, tmp_path).code == 0
    assert launcher.calls[-1] == "down"
    assert "still cleaning up" in capsys.readouterr().err
    monkeypatch.setattr(launcher, "down", lambda **_: [ctrl_c(), ctrl_c()])
    with pytest.raises(KeyboardInterrupt):
        _run(launcher, tmp_path)


def test_run_submission_terminates_a_cluster_that_failed_to_start(tmp_path):
    """The head may be running although `ray up` failed."""
    launcher = FakeLauncher(tmp_path, fails=True)
    with pytest.raises(CloudError, match="no capacity"):
        _run(launcher, tmp_path)
    assert (launcher.calls[0], launcher.calls[-1]) == ("up remote", "down")


def test_run_submission_keeps_the_cluster_on_request(tmp_path, monkeypatch, capsys):
    """A message says that it is billed."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(0))
    launcher = FakeLauncher(tmp_path)
    assert _run(launcher, tmp_path, keep=True).code == 0
    assert "down" not in launcher.calls
    assert "the cluster stays, and costs money, until 'raysent cluster down'" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 130)])
def test_ctrl_c_and_a_closed_terminal_detach_from_the_sweep(tmp_path, monkeypatch, capsys, ctrl_c, number, code):
    """The cluster is not terminated, and a message says how to show and stop the sweep; before, it is terminated."""
    jobs, launcher = FakeJobs([], ended=JobResult(0)), FakeLauncher(tmp_path)
    monkeypatch.setattr(jobs, "follow", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(following, "Jobs", jobs)
    before = signal.getsignal(signal.SIGHUP)
    ended = _run(launcher, tmp_path)
    assert (ended.code, ended.is_detached) == (code, True)
    assert "down" not in launcher.calls
    assert capsys.readouterr().err == (
        f"the sweep continues: 'raysent attach {tmp_path}/remote' shows it, 'raysent stop {tmp_path}/remote' stops it; "
        "the cluster ends with it\n"
    )
    monkeypatch.setattr(launcher, "up", lambda **_: signal.raise_signal(number))
    monkeypatch.setattr(submission, "Jobs", jobs)
    assert _run(launcher, tmp_path).code == 130
    assert launcher.calls[-1] == "down"
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_bug_after_the_submission_leaves_the_sweep_alone(tmp_path, monkeypatch, capsys):
    """The error is raised, the cluster stays, and a message says how to show the sweep."""
    event = EVENT_MARK + json.dumps({"event": "session"})
    monkeypatch.setattr(following, "Jobs", FakeJobs([event], ended=JobResult(0)))
    launcher = FakeLauncher(tmp_path)
    with pytest.raises(ZeroDivisionError):
        run_submission(launcher, _submission(tmp_path), on_event=lambda _: 1 / 0, say=partial(print, file=sys.stderr))
    assert "down" not in launcher.calls
    assert "'raysent attach" in capsys.readouterr().err


def test_every_line_arrives_once_however_often_the_tunnel_is_cut(tmp_path, monkeypatch, no_waits):
    """Also in the middle of a line, within Ray's own lines, and before the submission was answered: one job."""
    events = [{"event": "report", "trial": f"{number:04d}"} for number in range(8)]
    lines = [text for event in events for text in (EVENT_MARK + json.dumps(event), "chatter")]
    jobs = FakeJobs(lines, ended=JobResult(3), cuts=[0, 3, 45, 46, 47, 0, 120, 300, 200, 10_000])
    monkeypatch.setattr(following, "Jobs", jobs)
    heard, said = [], []
    ended = _submit(_submission(tmp_path), tmp_path, on_event=heard.append, say=said.append)
    assert (ended.code, heard, ended.lines) == (3, events, ("chatter",) * 8)
    assert jobs.num_submitted == 1
    assert said.count("connected again") == 10
    assert said[0] == "connection lost: 0 characters; the sweep continues on the cluster, connecting again"


def test_waits_between_connections_grow_to_half_a_minute(tmp_path, monkeypatch):
    """A head that cannot be reached for long is not given up; one message a loss."""
    jobs, launcher, waits, said = FakeJobs([], ended=JobResult(0), cuts=[5]), FakeLauncher(tmp_path), [], []
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
    assert ended == JobResult(0)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert said == [
        "connection lost: cut; the sweep continues on the cluster, connecting again",
        "still no connection: no route",
        "connected again",
    ]


def test_a_head_that_cannot_be_reached_at_first_is_an_error(tmp_path, monkeypatch):
    """Nothing was submitted, so the cluster is terminated."""
    launcher = FakeLauncher(tmp_path)
    with pytest.raises(CloudError, match="no job API of Ray answers"):
        _run(launcher, tmp_path)
    assert launcher.calls[-1] == "down"


def test_submit_rejects_a_run_that_another_job_works_on(tmp_path, monkeypatch):
    """No sweep runs twice; a job that has ended does not count."""
    jobs = FakeJobs([], ended=JobResult(0))
    jobs.known = {"first": True, "second": False}
    monkeypatch.setattr(following, "Jobs", jobs)
    with pytest.raises(CloudError, match=r"remote: a job of this cluster works on it; 'raysent attach .*remote'$"):
        _submit(_submission(tmp_path), tmp_path)
    assert jobs.num_submitted == 0
    jobs.known = {"first": True}
    assert _submit(_submission(tmp_path), tmp_path).code == 0


def test_submit_waits_for_the_job_of_a_sweep_that_has_ended(tmp_path, monkeypatch):
    """What stopped a sweep may resume it at once, though Ray still lists its job as running."""
    jobs = FakeJobs([], ended=JobResult(0))
    jobs.known = {"first": False}
    monkeypatch.setattr(following, "Jobs", jobs)
    monkeypatch.setattr("raysent.cluster.submission.time.sleep", lambda seconds: jobs.known.update(first=True))
    _stored(tmp_path, code=130)
    assert _submit(_submission(tmp_path), tmp_path).code == 0
    assert jobs.num_submitted == 1


def _stored(folder: Path, *events, **changes) -> JobRecord:
    """Store a submitted sweep as its head does."""
    space = {"name": "toy", "values": parse_yaml(SPACE).values}
    record = JobRecord(**{"job": "job", "cluster": "", "region": "", "space": space, **changes})
    write_record(str(folder / "remote"), record)
    if events:
        (folder / "remote" / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return record


def test_attach_follows_the_stored_run_without_a_tunnel(tmp_path, no_waits):
    """Another computer has no token: events come from the journal, each once, and printed lines from the record."""
    events = [{"event": "interrupted", "number": number} for number in range(3)]
    launcher, heard, waits = FakeLauncher(tmp_path), [], []
    launcher.is_reachable = False
    record = _stored(tmp_path, *events[:1])

    def wait(_) -> None:
        waits.append(len(heard))
        ends = {} if len(waits) < 2 else {"code": 5, "lines": [f"report: {tmp_path}/remote/report.html"]}
        write_record(str(tmp_path / "remote"), replace(record, **ends))
        _stored(tmp_path, *events[: len(waits) + 1], **ends)

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
    _stored(tmp_path)

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
        _stored(tmp_path, *events, code=0, lines=["{", "}"])
        launcher.is_alive = False
        raise ConnectionLostError("asleep")

    monkeypatch.setattr(jobs, "follow", follow)
    monkeypatch.setattr(following, "Jobs", jobs)
    ended = submit(launcher, SweepJob(_submission(tmp_path), heard.append), say=print)
    assert (ended.code, ended.values, [event["number"] for event in heard]) == (0, {}, [0, 1, 2])


def test_follower_reports_a_cluster_that_ended_before_its_sweep(tmp_path):
    """One line with the command that continues it."""
    launcher = FakeLauncher(tmp_path)
    launcher.is_reachable = launcher.is_alive = False
    _stored(tmp_path)
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
    _stored(tmp_path)
    remote, asked = tmp_path / "remote", []

    def wait(seconds) -> None:
        asked.append(json.loads((remote / "stop.json").read_text())["request"])
        _stored(tmp_path, code=130)

    monkeypatch.setattr("time.sleep", wait)
    monkeypatch.setattr(following.stop_run, "__kwdefaults__", {"wait": wait})
    ran = raysent("stop", remote)
    assert (ran.code, len(asked)) == (0, 1)
    assert ran.out == f"{remote}: stopped; 'raysent resume {remote} --cluster FILE' continues it\n"
    assert raysent("stop", remote).out == f"{remote}: had ended\n"
    assert json.loads(raysent("stop", remote, "--json").out)["has_stopped"] is True


def test_head_stops_once_for_each_request(tmp_path, monkeypatch):
    """A second `raysent stop` is a second signal."""
    monkeypatch.setattr(head_process, "STOP_POLL_S", 0.0)
    _stored(tmp_path)
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
    _stored(tmp_path)
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
    _stored(tmp_path)
    options = ["--run", str(tmp_path / "remote"), *(["--keep"] if is_kept else [])]
    before = signal.getsignal(signal.SIGTERM)
    assert head_process.main([*options, "--", "space", "lint", "missing.yaml"]) == 2
    record = find_run(str(tmp_path / "remote"), new_run=tmp_path).record
    assert record.code == 2
    assert record.lines[0].startswith("error: missing.yaml")
    assert record.lines[0] in capsys.readouterr().err
    assert (tmp_path / "fleet" / "lease").read_text() == ("3600" if is_kept else "120")
    assert signal.getsignal(signal.SIGTERM) is before


def test_submit_returns_one_object_with_the_local_run(tmp_path, monkeypatch):
    """Events go to the listener, other lines are kept, and the remote folder is replaced by the local one."""
    remote = str(tmp_path / "remote")
    event = {"event": "session", "trials": 4, "concurrent": 2}
    lines = [EVENT_MARK + json.dumps(event), EVENT_MARK + '{"torn', "chatter", "{", f'"run": "{remote}"', "}"]
    monkeypatch.setattr(following, "Jobs", FakeJobs(lines, ended=JobResult(0)))
    heard = []
    ended = _submit(_submission(tmp_path), tmp_path, on_event=heard.append)
    assert (ended.code, ended.values, ended.lines[0]) == (0, {"run": str(tmp_path / "run")}, "chatter")
    assert heard == [event]


def test_submit_sends_space_and_files_but_no_secrets(tmp_path, monkeypatch):
    """The space and its corpus, but neither the token nor keys of AWS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    space = read_space(_space(tmp_path))
    jobs = FakeJobs([], ended=JobResult(0))
    monkeypatch.setattr(following, "Jobs", jobs)
    _submit(_submission(tmp_path, space=space, options=["--seed", "3"]), tmp_path)
    assert jobs.command[:8] == [
        "python", "-m", "raysent.cluster.head", "--run", f"{tmp_path}/remote", "--", "sweep", "space/toy.yaml"
    ]  # fmt: skip
    assert jobs.command[-5:] == ["--address", "auto", "--yes", "--seed", "3"]
    assert json.loads(jobs.sent["space/toy.yaml"])["base"]["corpus"]["path"] == "shipped/0/text.txt"
    assert jobs.sent["shipped/0/text.txt"] == (tmp_path / "text.txt").read_bytes()
    everything = repr((jobs.command, jobs.environment, jobs.sent)) + (tmp_path / "remote" / "job.json").read_text()
    assert (tmp_path / "token").read_text() not in everything
    assert CANARY not in everything
    assert jobs.environment["RAYSENT_WORKERS"] == '{"num": 2, "CPU": 1, "GPU": 0.0}'


def test_ship_keeps_values_that_are_no_local_files(tmp_path, monkeypatch):
    """Addresses, names without a dot or slash, and numbers stay; too large files are an error, in a folder too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    values = {"path": "s3://bucket/a.txt", "name": "docs", "rate": 0.5, "none": "missing/file.txt"}
    assert ship(values, tmp_path / "out") == values
    (tmp_path / "big.txt").write_text("x" * 100)
    monkeypatch.setattr("raysent.cluster.jobs.MAX_SHIPPED_BYTES", 50)
    for named in ({"path": "big.txt"}, [str(tmp_path)], "big.txt:text=a"):
        with pytest.raises(ConfigError, match="--cluster: local files must be at most 0 MiB together"):
            check_shipped_size(named)


def test_ship_sends_the_files_of_a_glob(tmp_path, monkeypatch):
    """All files, in the order of their names."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "c.md"):
        Path(name).write_text(name)
    shipped = ship({"corpus": {"path": "*.txt"}}, tmp_path / "out")
    assert shipped == {"corpus": {"path": ["shipped/0/a.txt", "shipped/1/b.txt"]}}
    assert (tmp_path / "out" / "shipped" / "1" / "b.txt").read_text() == "b.txt"


def test_paths_of_a_space_become_absolute_for_other_nodes(tmp_path, monkeypatch):
    """Files and globs become absolute; other values stay."""
    monkeypatch.chdir(tmp_path)
    space = with_absolute_paths(read_space(_space(tmp_path)))
    assert space.document.values["base"]["corpus"]["path"] == str(tmp_path / "text.txt")
    text = SPACE.replace("text.txt", '"*.txt"')
    space = with_absolute_paths(parse_space(parse_yaml(text), name="toy"))
    assert space.document.values["base"]["corpus"] == {"path": str(tmp_path / "*.txt"), "validation_fraction": 0.2}
    assert (
        with_absolute_paths(parse_space(parse_yaml(SPACE.replace("text.txt", "docs")), name="toy")).document.values[
            "base"
        ]["corpus"]["path"]
        == "docs"
    )


def test_download_reads_a_bucket_and_stays_inside_the_folder(tmp_path, monkeypatch):
    """All objects below the address; a name with `..` is an error."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="runs")
        client.put_object(Bucket="runs", Key="mine/run/trials/0000/model.json", Body=b"{}")
        client.put_object(Bucket="runs", Key="mine/run-2/other.json", Body=b"{}")
        download("s3://runs/mine/run", tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").rglob("*.json")] == ["model.json"]
        client.put_object(Bucket="runs", Key="mine/run/../../escaped", Body=b"")
        with pytest.raises(ArtifactError, match="its name leaves its folder"):
            download("s3://runs/mine/run", tmp_path / "run")
    assert not (tmp_path / "escaped").exists()


@pytest.fixture
def raysent(monkeypatch, capsys, tmp_path):
    """The command line in a folder with a search space."""
    monkeypatch.chdir(tmp_path)
    _space(tmp_path)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def submitted(monkeypatch):
    """Cluster file and submission of each sweep on a cluster; nothing is launched."""
    seen = []
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(submission, "Launcher", lambda file: file)

    def run(file, submitted, **_):
        seen.append((file, submitted))
        return SubmittedSweep(0)

    monkeypatch.setattr(cluster, "run_submission", run)
    return seen


def test_sweep_on_a_cluster_sets_the_prices_of_its_machines(raysent, submitted):
    """List prices by type, unless the space sets a price; a message names their source if AWS is not available."""
    ran = raysent("sweep", "toy.yaml", "--cluster", SHIPPED, "--run", "a", "--seed", 4)
    assert ran.code == 0, ran.err
    assert ran.err.startswith("prices on demand: list price of 20")
    assert raysent("sweep", "toy.yaml", "--cluster", SHIPPED, "--run", "b", "--set", "cost.usd_per_hour=0.5").code == 0
    costs = [submission.space.cost for _, submission in submitted]
    assert costs[0].machines == {"g4dn.xlarge": 0.526, "g5.xlarge": 1.006, "g6.xlarge": 0.8048, "m5.xlarge": 0.192}
    assert (costs[0].region, costs[0].boot_s, costs[0].usd_per_hour) == ("us-east-1", 300, None)
    assert (costs[1].machines, costs[1].usd_per_hour) == ({}, 0.5)
    first = submitted[0][1]
    assert first.options == ["--seed", "4"]
    assert first.remote.startswith("s3://my-bucket/raysent/a-")
    assert json.loads(Path("a/remote.json").read_text()) == {"remote": first.remote}


@pytest.mark.parametrize(
    ("options", "num"),
    [
        ([], 8),
        (["--max-hourly", "3.3usd"], 3),
        (["--max-hourly", "3usd", "--set", "cost.usd_per_hour=0.5"], 5),
        (["--market", "on-demand"], 2),
    ],
)
def test_sweep_on_a_cluster_limits_its_workers(raysent, submitted, options, num):
    """The most machines that the sweep's process adds; the head counts too, and the cluster file stays as it is."""
    assert raysent("sweep", "toy.yaml", "--cluster", SHIPPED, "--run", "a", *options).code == 0
    [(file, submission)] = submitted
    assert submission.workers == Workers(num, 4, 1.0, ("T4", "A10G", "L4"))
    assert submission.fleet.max_workers == num
    assert file.max_workers == 8


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--cluster", "none.yaml"], "error: none.yaml: no such file"),
        (["--cluster", SHIPPED, "--address", "auto"], "error: --cluster: must not stand beside --address or --dry-run"),
        (["--cluster", SHIPPED, "--run", "."], "error: .: must be empty; name another --run"),
        (
            ["--cluster", SHIPPED, "--max-hourly", "1usd"],
            "error: --max-hourly 1usd: must allow for the head and one worker, 1.24 usd an hour at most; given 1.00",
        ),
    ],
)
def test_sweep_on_a_cluster_rejects(raysent, options, error):
    """Errors of one line with exit code 2, before anything costs money."""
    ran = raysent("sweep", "toy.yaml", *options)
    assert (ran.code, ran.out, ran.err.strip()) == (2, "", error)


def test_driver_place_prefers_machines_that_are_not_interrupted():
    """Machines with `raysent_driver`, else the head, else any node."""
    assert _driver_place({"CPU": 4, "raysent_driver": 64, "node:__internal_head__": 1}) == {"raysent_driver": 1.0}
    assert _driver_place({"CPU": 4, "node:__internal_head__": 1}) == {"node:__internal_head__": 0.001}
    assert _driver_place({"CPU": 4}) == {}


@pytest.mark.cluster
def test_node_agent_drains_with_the_token_and_reports_a_missing_one(head):
    """With the token it drains a node; without, it logs once how to provide the token."""
    start = ["-m", "ray.scripts.scripts", "start", f"--address={head.address}", "--block", "--num-cpus=0"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with (
        metadata_service() as service,
        subprocess.Popen([sys.executable, *start], env=_environment(**head.environment), **quiet) as node,
    ):
        try:
            service.arm(3600)  # later than both agents start
            assert _agent_log(head, service.url, until="RAY_AUTH_TOKEN_PATH").count("\n") == 1
            assert "drained for terminate" in _agent_log(head, service.url, until="drained", **head.environment)
        finally:
            node.terminate()


def _agent_log(head, url: str, *, until: str, **environment: str) -> str:
    """Return the log of a node agent until a word occurs, and for two more polls."""
    node_id = _worker_node(head)
    command = [
        sys.executable,
        "-m",
        "raysent.preemption",
        "--address",
        head.address,
        "--poll-s",
        "1",
        "--node-id",
        node_id,
    ]
    environment = _environment(AWS_EC2_METADATA_SERVICE_ENDPOINT=url, **environment)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as agent:
        log = ""
        while until not in log:
            line = agent.stderr.readline()
            assert line, log
            log += line
        time.sleep(2)
        agent.kill()
        return log + agent.stderr.read()


def _worker_node(head) -> str:
    """Wait for a node beside the head; return its id."""
    code = (
        "import sys, time; from raysent.preemption.ray_nodes import _control_service\n"
        "while True:\n"
        "    client, _ = _control_service(sys.argv[1]); nodes = client.get_all_node_info(timeout=10)\n"
        "    found = [key.hex() for key, node in nodes.items() if node.state == 0 and not node.is_head_node]\n"
        "    if found: print(found[0]); break\n"
        "    time.sleep(0.2)\n"
    )
    command = [sys.executable, "-c", code, head.address]
    return subprocess.run(
        command, env=_environment(**head.environment), capture_output=True, text=True, timeout=600, check=True
    ).stdout.strip()
