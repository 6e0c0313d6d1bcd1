"""Sweeps on a Ray head with a token that runs on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from machines import LocalTunnel, free_ports, metadata_service
from submissions import CANARY, SHIPPED, new_submission, toy_space

from raysent.cluster import Jobs, SweepJob, find_run, follow_run, following
from raysent.cluster.following import read_record
from raysent.cluster.launcher import make_token
from raysent.cluster.submission import submit
from raysent.errors import CloudError
from raysent.sweeps.journal import read_events
from raysent.sweeps.space import read_space


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
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")
    }
    paths = {
        "PYTHONPATH": str(SHIPPED.parent),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    keys = {"AWS_ACCESS_KEY_ID": CANARY, "AWS_SECRET_ACCESS_KEY": CANARY}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "HOME": inherited["HOME"]}
    # A busy machine takes longer to start Ray's agents, and to answer, than Ray waits before it ends a node.
    patient = {
        "RAY_agent_register_timeout_ms": "600000",
        "RAY_health_check_failure_threshold": "1000",
    }
    return {**inherited, **paths, **keys, **quiet, **patient, **more}


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
            *(
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--head",
                "--block",
                "--num-cpus=2",
            ),
            *("--node-ip-address=127.0.0.1", f"--port={ray}", f"--ray-client-server-port={client}"),
            *(
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={dashboard}",
                f"--temp-dir={folder}/ray",
            ),
            *(f"--dashboard-agent-listen-port={agent}", "--object-store-memory=100000000"),
        ]
        found = Head(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{ray}", token_file, Path(folder))
        with subprocess.Popen(
            command,
            env=_environment(**found.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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


@pytest.mark.cluster
# Ray's client uses an old argument of aiohttp.
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
def test_submit_runs_a_sweep_on_a_head_with_a_token(head, tmp_path, monkeypatch, capsys, ctrl_c):
    """With Ctrl-C, and from a second folder: one sweep, every event once.

    It is downloaded, exit code 0; no file holds the token or a key of AWS.
    """
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        following.follow_stored, "__kwdefaults__", {"wait": lambda _: time.sleep(0.2)}
    )
    space, token, first = (
        read_space(toy_space(tmp_path, trials="4, concurrent: 1", epochs=10.0)),
        head.token_file.read_text(),
        [],
    )
    cluster = LocalTunnel(head.dashboard, head.token_file)

    def on_event(event) -> None:
        first.append(event)
        if len(first) == 2:
            ctrl_c()

    detached = submit(cluster, SweepJob(new_submission(tmp_path, space=space), on_event), say=print)
    assert (detached.code, detached.is_detached) == (130, True)
    second = tmp_path / "second"
    events: list[object] = []
    found = find_run(str(tmp_path / "remote"), new_run=second)
    ended = follow_run(found, on_event=events.append, say=print, cluster=cluster)
    shown = capsys.readouterr()
    assert 2 <= len(first) < len(events)
    assert events[: len(first)] == first
    assert events == list(read_events(second))
    assert len(Jobs(head.dashboard, token=token).of_run(str(tmp_path / "remote"))) == 1
    printed = "\n".join(ended.lines)
    assert ended.code == 0, shown
    assert "\nReport: " in f"\n{printed}"
    assert find_run(str(second), new_run=tmp_path).record.lines
    assert str(tmp_path / "remote") not in printed
    files = {path.name: path.read_bytes() for path in second.rglob("*") if path.is_file()}
    assert {
        "sweep.json",
        "journal.jsonl",
        "ledger.jsonl",
        "report.html",
        "model.safetensors",
    } <= set(files)
    secrets = [
        name for name, data in files.items() if token.encode() in data or CANARY.encode() in data
    ]
    assert secrets == []
    assert token not in printed + shown.out + shown.err + str(events)


@pytest.mark.journey
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
def test_a_sweep_is_stopped_from_a_second_folder_and_resumed(head, tmp_path, monkeypatch, ctrl_c):
    """`raysent stop` in another process: trials save, and `resume` trains the rest; every trial ends once."""
    monkeypatch.chdir(tmp_path)
    (second := tmp_path / "second").mkdir()
    # Trials that have trained when the request comes, and are long enough that it reaches the head before they end.
    remote, path = tmp_path / "remote", toy_space(tmp_path, trials=2, epochs=400.0)
    text = path.read_text().replace("num_reports: 2", "num_reports: 100")
    path.write_text(text.replace("{trials: 2}", "{trials: 2, scheduler: none}"))
    space, cluster = read_space(path), LocalTunnel(head.dashboard, head.token_file)

    def on_event(event) -> None:
        if event["event"] == "report":
            ctrl_c()

    assert submit(
        cluster, SweepJob(new_submission(tmp_path, space=space), on_event), say=print
    ).is_detached
    stopped = _command(second, "stop", str(remote))
    assert (stopped.returncode, stopped.stdout) == (
        0, f"{remote}: stopped; 'raysent resume {remote} --cluster FILE' continues it\n"
    ), stopped.stderr  # fmt: skip
    assert read_record(str(remote)).code == 130
    before = list(read_events(remote))
    assert [event["event"] for event in before].count("ended") == 0
    assert list(remote.glob("trials/*/checkpoint*"))
    again = new_submission(tmp_path, space=space, run=second / "run", is_resumed=True)
    assert submit(cluster, SweepJob(again, [].append), say=print).code == 0
    events = list(read_events(remote))
    assert events[: len(before)] == before
    assert sorted(event["trial"] for event in events if event["event"] == "ended") == [
        "0000",
        "0001",
    ]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("token", "given"), [("", "none"), ("0" * 64, "the token of another cluster")]
)
def test_jobs_are_rejected_without_the_token(head, token, given):
    """An error of one line, before anything is sent."""
    with pytest.raises(CloudError, match=f"^{head.dashboard}: requires its token; given {given}$"):
        Jobs(head.dashboard, token=token)


def _command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of raysent in a folder, in a process of its own."""
    command = [sys.executable, "-m", "raysent", *arguments]
    environment = _environment(**{"HOME": str(folder), **environment})
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.cluster
def test_session_at_an_address_works_with_the_token(head, tmp_path):
    """Ray's environment variables name the file."""
    lines = "import sys, ray; from raysent.training.ray_session import map_on_ray, ray_session\n"
    lines += "with ray_session(sys.argv[1]): print(list(map_on_ray(abs, [-7])))"
    command = [sys.executable, "-c", lines, head.address]
    environment = _environment(**head.environment)
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "[(0, 7)]\n"), ran.stderr


@pytest.mark.cluster
def test_sweep_at_an_address_is_rejected_without_the_token(head, tmp_path):
    """Exit code 2, one line that names the fix, and no run folder."""
    options = ["--run", "run", "--address", head.address, "--yes"]
    ran = _command(tmp_path, "sweep", str(toy_space(tmp_path, trials="2, concurrent: 1")), *options)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1] == (
        f"error: --address {head.address}: requires its token, and none or another was given; set RAY_AUTH_MODE=token, "
        "and RAY_AUTH_TOKEN_PATH to the token's file unless that is ~/.ray/auth_token, with which Ray requires tokens "
        "without being asked to"
    )
    assert "InvalidAuthToken" not in ran.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.cluster
def test_node_agent_drains_with_the_token_and_reports_a_missing_one(head):
    """With the token it drains a node; without, it logs once how to provide the token."""
    start = [
        "-m",
        "ray.scripts.scripts",
        "start",
        f"--address={head.address}",
        "--block",
        "--num-cpus=0",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with (
        metadata_service() as service,
        subprocess.Popen(
            [sys.executable, *start], env=_environment(**head.environment), **quiet
        ) as node,
    ):
        try:
            service.arm(3600)  # later than both agents start
            assert _agent_log(head, service.url, until="RAY_AUTH_TOKEN_PATH").count("\n") == 1
            assert "drained for terminate" in _agent_log(
                head, service.url, until="drained", **head.environment
            )
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
        "    with _control_service(sys.argv[1]) as client: nodes = client.get_all_node_info(timeout=10)\n"
        "    found = [key.hex() for key, node in nodes.items() if node.state == 0 and not node.is_head_node]\n"
        "    if found: print(found[0]); break\n"
        "    time.sleep(0.2)\n"
    )
    command = [sys.executable, "-c", code, head.address]
    return subprocess.run(
        command,
        env=_environment(**head.environment),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout.strip()
