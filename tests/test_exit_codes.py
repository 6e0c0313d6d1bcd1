"""Exit codes: one list for help, docs and commands; every way to stop a command ends it alike; and Ray's start."""

from __future__ import annotations

import ast
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from docs import generate
from raysent.errors import ExitCode, TrainingError
from raysent.training import ray_processes, ray_session

CLI = Path(__file__).parent.parent / "raysent" / "cli"
TOO_SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


def test_exit_codes_are_listed_once() -> None:
    """Help and the docs print the list; no command has a number of its own."""
    shown = subprocess.run(
        [sys.executable, "-m", "raysent", "--help"], capture_output=True, text=True, check=True
    )
    for text in (shown.stdout, generate.command_reference()):
        for code in ExitCode:
            assert f"{code.value} {code.meaning}" in " ".join(text.split())
    assert len(set(ExitCode)) == 6
    numbers = [
        f"{path.name}:{node.lineno}"
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit")
        for inner in ast.walk(node)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, int) and inner.value != 0
    ]
    assert numbers == []


def _waits_for_text(process: subprocess.Popen[str]) -> bool:
    """Return whether the main thread of a process reads from a pipe."""
    return "pipe_read" in Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="reads from /proc what a process waits for")
@pytest.mark.usefixtures("hangups", "ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_way_to_stop_a_command_is_one_line(number: int, tmp_path: Path) -> None:
    """A command that waits for text: exit code 130, and no file."""
    command = [sys.executable, "-m", "raysent", "encode", "hash:8", "-o", str(tmp_path / "out.npy")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not _waits_for_text(process):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, told = process.communicate()
    assert (process.returncode, told) == (ExitCode.INTERRUPTED, "interrupted\n")
    assert not list(tmp_path.iterdir())


def test_ray_that_is_too_slow_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises a plain Exception then; after the last attempt that is one line."""
    tries: list[int] = []

    def start(**options: int) -> None:
        tries.append(1)
        if len(tries) < options["succeeds_at"]:
            raise Exception(TOO_SLOW)

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    ray_session._init(succeeds_at=3)
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(
        TrainingError, match=r"^Ray did not start in 4 attempts; the machine is too busy; [^\n]*$"
    ):
        ray_session._init(succeeds_at=9)


def test_what_a_start_that_was_too_slow_has_left_is_ended_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's own processes; neither those that were there before nor others."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    of_ray = str(Path(ray.__file__).parent / "gcs_server")
    left: list[subprocess.Popen[bytes]] = []

    def start(**_: object) -> None:
        assert all(process.wait(30) for process in left)
        left.append(subprocess.Popen([*sleep, of_ray]))
        raise Exception(TOO_SLOW)

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    others = [
        subprocess.Popen([*sleep, of_ray]),
        subprocess.Popen([*sleep, of_ray.replace("/ray/", "/raysent/")]),
    ]
    try:
        with pytest.raises(TrainingError, match="Ray did not start in 4 attempts"):
            ray_session._init()
        assert [process.wait(30) for process in left] == [-signal.SIGKILL] * 4
        assert [process.poll() for process in others] == [None, None]
    finally:
        for process in [*left, *others]:
            process.kill()
            process.wait()


@pytest.mark.cluster
def test_sigterm_after_ray_has_been_shut_down_still_interrupts() -> None:
    """Ray's library sets its action back to that of the system, as of a sweep that evaluates."""
    script = """
import os, signal, time
from raysent.training.ray_session import ray_session
signal.signal(signal.SIGTERM, signal.default_int_handler)
with ray_session(None, num_cpus=1):
    pass
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=1200, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


def test_a_process_that_is_ended_while_it_watches_ray_leaves_one_line(tmp_path: Path) -> None:
    """Ray ends it with exit code 1 and no word while it registers with a node that is killed; the system, by kill -9."""
    script = """
import os, signal, sys
from raysent.training.ray_processes import watching_ray
with watching_ray("resume it"):
    pass
with watching_ray("resume it"):
    os._exit(1) if sys.argv[1] == "exit" else os.kill(os.getpid(), signal.SIGKILL)
"""
    line = "error: this process was ended, perhaps for lack of memory; to continue: resume it\n"
    for how, code in (("exit", 1), ("kill", -signal.SIGKILL)):
        with (tmp_path / "err.txt").open("w+") as err:
            ran = subprocess.run([sys.executable, "-c", script, how], stderr=err, check=False)
            until = time.monotonic() + 60
            while not (tmp_path / "err.txt").read_text() and time.monotonic() < until:
                time.sleep(0.01)
        assert (ran.returncode, (tmp_path / "err.txt").read_text()) == (code, line)


def test_how_to_continue_gives_a_terminal_no_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the folder of the run, and is written past the console that leaves them out."""
    seen: list[str] = []

    def start(how_to_continue: str, *_: object, **__: object) -> None:
        seen.append(how_to_continue)
        raise TrainingError("no Ray here")

    monkeypatch.setattr(ray_session, "_init", start)
    with (
        pytest.raises(TrainingError),
        ray_session.ray_session(None, how_to_continue="raysent resume \x1b[2Jrun"),
    ):
        pass
    assert seen == ["raysent resume \ufffd[2Jrun"]


@pytest.mark.parametrize("kind", [Exception, RuntimeError])
def test_ray_that_cannot_start_is_one_line(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises without a class of its own."""

    def fail(**_: object) -> None:
        raise kind("no place\nfor a socket")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(
        TrainingError, match=r"^Ray cannot start on this machine: no place for a socket$"
    ):
        ray_session._init()


def test_sigterm_while_ray_starts_interrupts_and_its_handler_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's handler, which ends the process without a word, is not kept."""
    before = signal.getsignal(signal.SIGTERM)

    def start(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(KeyboardInterrupt):
        ray_session._init()
    assert signal.getsignal(signal.SIGTERM) == before


def started(program: Path) -> subprocess.Popen[bytes]:
    """Start a process that has the name of one of Ray's."""
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    return subprocess.Popen([str(program), "60"])


@pytest.mark.usefixtures("ctrl_c")
def test_a_process_of_ray_that_ends_is_one_line_in_place_of_what_follows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The block is interrupted; whatever it raises then, the line says what ended and how to go on."""
    monkeypatch.setattr(ray_processes, "_POLL_S", 0.01)
    service, monitor = started(tmp_path / "gcs_server"), started(tmp_path / "monitor")
    monitor.kill()
    line = r"^Ray's process gcs_server has ended, perhaps for lack of memory; to continue: raysent resume one$"
    with pytest.raises(TrainingError, match=line), ray_processes.watching_ray("raysent resume one"):
        service.kill()
        signal.pause()
    for process in (service, monitor):
        process.wait()
    with ray_processes.watching_ray("raysent resume one"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="its processes are found as Linux shows them")
@pytest.mark.parametrize(
    ("struck", "code", "out", "err"),
    [
        (
            "agent",
            2,
            "",
            "error: Ray's process agent has ended, perhaps for lack of memory; to continue: resume it\n",
        ),
        ("raylet", 0, "goes on\n", ""),
    ],
)
def test_an_agent_of_ray_that_ends_is_one_line_before_ray_ends_the_process(
    tmp_path: Path, struck: str, code: int, out: str, err: str
) -> None:
    """Ray's node ends with its agent, and a tenth of a second later this process: exit code 1 without a line.

    After a node that was killed agents end too, and an error of its own says so.
    """
    raylet = tmp_path / "raylet"
    raylet.write_text("#!/bin/bash\nbash -c 'exec -a ray::RuntimeEnvAgent sleep 600' &\nwait\n")
    raylet.chmod(0o755)
    script = f"""
import os, subprocess, threading, psutil
from raysent.training import ray_processes
raylet = subprocess.Popen([{str(raylet)!r}], stderr=subprocess.DEVNULL)
while not any("Agent" in str(one.cmdline()) for one in psutil.Process(raylet.pid).children()):
    pass
(agent,) = psutil.Process(raylet.pid).children()
with ray_processes.watching_ray("resume it"):
    if {struck!r} == "raylet":
        raylet.kill()
        os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
    agent.kill()
    for thread in threading.enumerate():
        if thread.name == "raysent-ray-agents":
            thread.join()
    print("goes on")
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, out, err)


@pytest.mark.usefixtures("ctrl_c")
def test_ray_whose_control_process_ends_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waited for it for a minute, and then ended this process with exit code 1 and without a line."""
    control = tmp_path / "gcs_server"
    control.write_text("#!/bin/bash\nread\n")
    control.chmod(0o755)
    monkeypatch.setattr(ray_processes, "_POLL_S", 0.01)
    monkeypatch.setattr(ray_processes, "_FAILS_S", 0.1)
    starts: list[subprocess.Popen[bytes]] = []
    num_looks = 0

    def counted(before: set[int]) -> Callable[[], str | None]:
        look = ray_processes.ended_while_starting(before)

        def counting() -> str | None:
            nonlocal num_looks
            found = look()
            num_looks += 1
            return found

        return counting

    def start(**_: object) -> None:
        starts.append(subprocess.Popen([control], stdin=subprocess.PIPE))
        if len(starts) == 1:
            until = num_looks + 2  # it has been seen
            while num_looks < until:
                time.sleep(0.01)
            starts[0].kill()
            signal.pause()

    monkeypatch.setattr(ray_session, "ended_while_starting", counted)
    monkeypatch.setattr(ray, "init", start)
    ray_session._init()
    assert [process.poll() is None for process in starts] == [False, True]
    for process in starts:
        process.communicate()


@pytest.mark.usefixtures("ctrl_c")
def test_a_head_that_no_longer_answers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would end the process with a paragraph and exit code 1; a head that comes back in time is no error."""
    monkeypatch.setattr(ray_processes, "_POLL_S", 0.01)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        look = ray_processes.head_of(address)
        time.sleep(1)
        assert look() is None
    assert look() is None
    line = rf"^address {address}: the head of the Ray cluster has not answered for \d+ seconds; to continue: resume it$"
    with pytest.raises(TrainingError, match=line), ray_processes.watching_ray("resume it", look):
        signal.pause()


def test_a_process_of_ray_that_ends_as_ray_is_shut_down_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray ends its processes itself at the end; a watch that still looks would call a finished training lost."""
    monkeypatch.setattr(ray_processes, "_POLL_S", 0.01)
    service = started(tmp_path / "gcs_server")
    with ray_processes.watching_ray("raysent resume one") as end_watch:
        end_watch()
        service.kill()
        service.wait()
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("error", "written", "line"),
    [
        (
            "pid: 7\nWorker exit detail: connection error code 2. End of file.",
            "",
            " without a word, as after kill -9; ",
        ),
        (
            "pid: 7",
            "x\n*** SIGSEGV received at time=1 ***\nPC: @\n",
            ": SIGSEGV received at time=1",
        ),
        ("pid: 7", "one\nRuntimeError: no device\n\n", ": RuntimeError: no device"),
        (
            "Worker exit detail: Worker exits with an exit code 3. Some causes: memory",
            "",
            ": Worker exits with an exit code 3",
        ),
        (
            "killed due to the node running low on memory. ",
            "",
            ": Ray ended it, as the machine was low on memory; see limits",
        ),
    ],
)
def test_death_of_a_process_is_said_as_it_is_known(
    error, written, line, monkeypatch, tmp_path
) -> None:
    """Memory is the cause only where something says so: Ray's own text lists it among possible causes."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/worker-ab-01-7.err").write_text(written)
    monkeypatch.setattr(ray_processes, "session_folder", lambda: tmp_path)
    found = ray_processes.why_died(RuntimeError(error))
    assert found.startswith(line)
    assert ("memory" in found) == ("low on memory" in error)
    for raised, said in (
        (MemoryError("3 GB"), ": 3 GB; see limits.memory"),
        (ValueError("no"), ": ValueError: no"),
    ):
        failed = RuntimeError("a traceback")
        failed.cause = raised  # as a RayTaskError has it
        assert ray_processes.why_died(failed).startswith(said)
