"""Sweeps on a running cluster and on one that is started for them: a real Ray head with a token, and fake launchers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import boto3
import pytest
from command import SPACE, CommandLine
from machines import free_ports, metadata_service
from moto import mock_aws

from raysent import cluster
from raysent.cluster import JobResult, Jobs, check_token_required, download, ship, submission
from raysent.cluster.launcher import make_token
from raysent.cluster.submission import Submission, SubmittedSweep, run_submission, submit
from raysent.config import parse_yaml
from raysent.errors import ArtifactError, CloudError, ConfigError
from raysent.sweeps import Workers
from raysent.sweeps.journal import EVENT_MARK
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


def _space(folder: Path) -> Path:
    """Write a search space of two trials, and its corpus."""
    lines = [" ".join(WORDS[(number * 7 + word * 5) % len(WORDS)] for word in range(7)) for number in range(400)]
    (folder / "text.txt").write_text("".join(f"{line}.\n" for line in lines))
    path = folder / "toy.yaml"
    text = SPACE.replace("trials: 4", "trials: 2").replace("text.txt", str(folder / "text.txt"))
    path.write_text(text + "evaluation: {tasks: []}\n")
    return path


def _submission(folder: Path, **changes) -> Submission:
    values = {"run": folder / "run", "remote": str(folder / "remote"), "options": [], "workers": Workers(2, 1)}
    space = parse_space(parse_yaml(SPACE + "evaluation: {tasks: []}\n"), name="toy")
    return Submission(**{"space": space, **values, **changes})


@pytest.mark.cluster
# Ray's client uses an old argument of aiohttp.
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
def test_submit_runs_a_sweep_on_a_head_with_a_token(head, tmp_path, monkeypatch, capsys):
    """Its events arrive, it is downloaded, exit code 0; no file holds the token or a key of AWS."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.chdir(tmp_path)
    space = read_space(_space(tmp_path))
    token = head.token_file.read_text()
    events: list[object] = []
    ended = submit(head.dashboard, token, _submission(tmp_path, space=space), on_event=events.append, say=print)
    shown = capsys.readouterr()
    printed = "\n".join(ended.lines)
    assert ended.code == 0, shown
    assert events
    assert printed.startswith("trial  status")
    assert str(tmp_path / "remote") not in printed + shown.out + shown.err
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"sweep.json", "journal.jsonl", "ledger.jsonl", "report.html", "model.safetensors"} <= set(files)
    secrets = [name for name, data in files.items() if token.encode() in data or CANARY.encode() in data]
    assert secrets == []
    assert token not in printed + shown.out + shown.err + str(events)


@pytest.mark.cluster
@pytest.mark.parametrize(("token", "given"), [("", "none"), ("0" * 64, "the token of another cluster")])
def test_submit_is_rejected_without_the_token(head, tmp_path, token, given):
    """An error of one line, before anything is sent."""
    with pytest.raises(CloudError, match=f"^{head.dashboard}: requires its token; given {given}$"):
        submit(head.dashboard, token, _submission(tmp_path), on_event=lambda _: None, say=lambda _: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.cluster
def test_doctor_passes_a_dashboard_with_a_token(head):
    """HTTP status 401 is ok."""
    assert check_token_required(head.dashboard).verdict == "ok"


def _sweep_at(head: Head, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["--run", "run", "--address", head.address, "--yes"]
    command = [sys.executable, "-m", "raysent", "sweep", str(_space(folder)), *options]
    environment = _environment(**{"HOME": str(folder), **environment})
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


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
        f"error: --address {head.address}: requires its token, and none or another was given; set RAY_AUTH_MODE=token "
        "and RAY_AUTH_TOKEN_PATH to the token's file"
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


class FakeLauncher:
    """A fake launcher that records its calls."""

    def __init__(self, folder: Path, *, fails: bool = False) -> None:
        self.token_file = folder / "token"
        make_token(self.token_file)
        self.calls: list[str] = []
        self._fails = fails

    def up(self, *, sweep, inputs, on_line) -> None:
        """Start, or fail halfway."""
        self.calls.append(f"up {sweep}")
        if self._fails:
            raise CloudError("raysent: 'ray up' ended with exit code 1: no capacity")

    def down(self, *, on_line) -> None:
        """Terminate."""
        self.calls.append("down")

    @contextmanager
    def tunnel(self):
        """Yield an address where nothing listens."""
        self.calls.append("tunnel")
        yield "http://127.0.0.1:9"
        self.calls.append("tunnel closed")


class FakeJobs:
    """A fake job API whose job prints lines, then ends or is interrupted."""

    stopped = 0

    def __init__(self, lines, *, ended=None) -> None:
        self._lines, self._ended = lines, ended

    def __call__(self, address, *, token) -> FakeJobs:
        """Connect."""
        return self

    def submit(self, command, *, folder, environment) -> str:
        """Keep the job."""
        self.command, self.environment = command, environment
        self.sent = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
        return "job"

    def follow(self, name, on_line) -> JobResult:
        """Pass on the lines."""
        for line in self._lines:
            on_line(line)
        if self._ended is None:
            raise KeyboardInterrupt
        return self._ended

    def stop(self, name) -> None:
        """Count the calls."""
        self.stopped += 1


def _run(launcher, tmp_path, *, keep=False):
    say = partial(print, file=sys.stderr)
    return run_submission(launcher, _submission(tmp_path), on_event=lambda _: None, say=say, keep=keep)


def _submit(submitted, *, token="token", on_event=lambda _: None):
    return submit("http://127.0.0.1:9", token, submitted, on_event=on_event, say=lambda _: None)


def test_run_submission_terminates_the_cluster_after_the_sweep(tmp_path, monkeypatch):
    """The cluster is tagged with the name of the run; the exit code is that of the sweep."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(5))
    launcher = FakeLauncher(tmp_path)
    assert _run(launcher, tmp_path).code == 5
    assert launcher.calls == ["up run", "tunnel", "tunnel closed", "down"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, CloudError("lost"), ZeroDivisionError])
def test_run_submission_terminates_the_cluster_after_any_error(tmp_path, monkeypatch, error):
    """Ctrl-C, a cluster that no longer answers, a bug."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(submission, "submit", fail)
    launcher = FakeLauncher(tmp_path)
    if error is KeyboardInterrupt:
        assert _run(launcher, tmp_path).code == 130
    else:
        with pytest.raises((CloudError, ZeroDivisionError)):
            _run(launcher, tmp_path)
    assert launcher.calls[-1] == "down"


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
    assert launcher.calls == ["up run", "down"]


def test_run_submission_keeps_the_cluster_on_request(tmp_path, monkeypatch, capsys):
    """A message says that it is billed."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(0))
    launcher = FakeLauncher(tmp_path)
    assert _run(launcher, tmp_path, keep=True).code == 0
    assert "down" not in launcher.calls
    assert "the cluster stays, and costs money, until 'raysent cluster down'" in capsys.readouterr().err


def test_submit_stops_the_job_and_downloads_the_run_on_ctrl_c(tmp_path, monkeypatch, capsys):
    """Finished work is not lost."""
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "journal.jsonl").write_text("{}\n")
    jobs = FakeJobs([])
    monkeypatch.setattr(submission, "Jobs", jobs)
    assert _submit(_submission(tmp_path)).code == 130
    assert jobs.stopped == 1
    assert (tmp_path / "run" / "journal.jsonl").read_text() == "{}\n"


def test_follower_of_a_closed_terminal_leaves_sweep_and_cluster_running(tmp_path, monkeypatch, capsys):
    """Neither is the job stopped nor the cluster terminated; while the cluster starts, it is terminated."""
    jobs, launcher = FakeJobs([]), FakeLauncher(tmp_path)
    monkeypatch.setattr(jobs, "follow", lambda *_: signal.raise_signal(signal.SIGHUP))
    monkeypatch.setattr(submission, "Jobs", jobs)
    before = signal.getsignal(signal.SIGHUP)
    ended = _run(launcher, tmp_path)
    assert (ended.code, ended.is_detached, jobs.stopped) == (129, True, 0)
    assert "down" not in launcher.calls
    shown = capsys.readouterr().err
    assert f"detached; the sweep continues on the cluster: 'raysent report {tmp_path}/remote' shows" in shown
    monkeypatch.setattr(launcher, "up", lambda **_: signal.raise_signal(signal.SIGHUP))
    assert _run(launcher, tmp_path).code == 130
    assert launcher.calls[-1] == "down"
    assert signal.getsignal(signal.SIGHUP) is before


def test_submit_returns_one_object_with_the_local_run(tmp_path, monkeypatch):
    """Events go to the listener, other lines are kept, and the remote folder is replaced by the local one."""
    remote = str(tmp_path / "remote")
    event = {"event": "session", "trials": 4, "concurrent": 2}
    lines = [EVENT_MARK + json.dumps(event), EVENT_MARK + '{"torn', "chatter", "{", f'"run": "{remote}"', "}"]
    monkeypatch.setattr(submission, "Jobs", FakeJobs(lines, ended=JobResult(0)))
    heard = []
    ended = _submit(_submission(tmp_path), on_event=heard.append)
    assert (ended.code, ended.values, ended.lines[0]) == (0, {"run": str(tmp_path / "run")}, "chatter")
    assert heard == [event]


def test_submit_sends_space_and_files_but_no_secrets(tmp_path, monkeypatch):
    """The space and its corpus, but neither the token nor keys of AWS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    space = read_space(_space(tmp_path))
    jobs = FakeJobs([], ended=JobResult(0))
    monkeypatch.setattr(submission, "Jobs", jobs)
    _submit(_submission(tmp_path, space=space, options=["--seed", "3"]), token="secret-token")
    assert jobs.command[:5] == ["python", "-m", "raysent", "sweep", "space/toy.yaml"]
    assert jobs.command[-5:] == ["--address", "auto", "--yes", "--seed", "3"]
    assert json.loads(jobs.sent["space/toy.yaml"])["base"]["corpus"]["path"] == "shipped/0/text.txt"
    assert jobs.sent["shipped/0/text.txt"] == (tmp_path / "text.txt").read_bytes()
    everything = repr((jobs.command, jobs.environment, jobs.sent))
    assert "secret-token" not in everything
    assert CANARY not in everything
    assert jobs.environment["RAYSENT_WORKERS"] == '{"num": 2, "CPU": 1, "GPU": 0.0}'


def test_ship_keeps_values_that_are_no_local_files(tmp_path, monkeypatch):
    """Addresses, names without a dot or slash, and numbers stay; too large files are an error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    values = {"path": "s3://bucket/a.txt", "name": "docs", "rate": 0.5, "none": "missing/file.txt"}
    assert ship(values, tmp_path / "out") == values
    (tmp_path / "big.txt").write_text("x" * 100)
    monkeypatch.setattr("raysent.cluster.jobs.MAX_SHIPPED_BYTES", 50)
    with pytest.raises(ConfigError, match="--cluster: local files must be at most 0 MiB together"):
        ship({"path": "big.txt"}, tmp_path / "out")


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
            "error: --max-hourly 1usd: must allow for the head and one worker, 1.20 usd an hour at most; given 1.00",
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
            service.arm(60)
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
