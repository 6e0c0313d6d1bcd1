"""What Ray starts on this machine: its processes beside signals and faults, and its folder.

Processes have a group of their own, and are watched until their end. Ray makes its folders (sockets, logs, packages)
writable for everybody, so that another user of the machine could rename its sockets or put packages in their place.
Each process that starts Ray has a folder inside one that only its user may enter, with mode 0700. Those of ended
processes are removed when the next one starts, but for the newest, whose logs may be wanted; a running process holds
its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterator
from functools import lru_cache
from pathlib import Path

import filelock
import psutil

from raysent.errors import ExitCode, TrainingError
from raysent.platforms import MAX_SOCKET_BYTES
from raysent.storage import remove_tree

# Without these Ray cannot work; it would end this process without a word, a minute later.
_NEEDED = ("gcs_server", "raylet")
_POLL_S = 1.0
# Between the interrupt that asks a sweep to stop and the one that ends it; then until this process ends in any case.
_ASK_S = 3.0
_END_S = 20.0
# A start of Ray that fails has raised its error so long after its processes have ended.
_FAILS_S = 5.0
# Ray ends a process whose cluster's head has been gone for so long, in words of its own; a head that comes back within
# the first part of it is waited for.
_GIVES_UP_S = 60.0
_WAITED_FOR = 0.4
_GIVES_UP_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
# The length of a path of a socket is limited, and Ray's are session_<date>_<time>_<process>/sockets/plasma_store.
_MAX_SOCKET_BYTES = MAX_SOCKET_BYTES
_SOCKET = "/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_LOCK = "lock"
# Folders of ended processes that are kept.
_NUM_KEPT = 3
_HELD: list[filelock.BaseFileLock] = []
# The folder that `session_folder` has found.
_SESSION: list[Path] = []


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt the block as Ctrl-C does, and do afterwards what it did before.

    `ray.init` sets a handler that ends the process without a word.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        if error.code != signal.SIGTERM:
            raise
        raise KeyboardInterrupt from None
    finally:
        # None is a handler that Python did not set.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def watching_ray(
    how_to_continue: str, look: Callable[[], str | None] | None = None, stderr: int = 2
) -> Iterator[Callable[[], None]]:
    """End the block with one line when one of the processes that Ray needs has ended.

    `look` returns what is lost, in words; by default it looks at the processes that this one has started. If this
    process ends with the block, or is ended by Ray or the system, a line goes to the file descriptor `stderr`.

    Yields a function that ends the watch: to be called before Ray is shut down, which ends them too.

    The main thread, if it is this one, is interrupted, twice, as a first Ctrl-C only asks a sweep to stop. Calls of Ray
    may never return then; so if the block does not end, this process does, with the line. Nothing that was recorded is
    lost: what counts is on disk before it is reported.

    Raises:
        TrainingError: In that case.
    """
    lost: list[str] = []
    agents: dict[int, int] = {}
    if look is None:
        agents = _agents()
        look = _look_at_needed()
    caller = threading.get_ident()
    is_main = threading.current_thread() is threading.main_thread()
    num_interrupts = 2 if is_main else 0
    is_over = threading.Event()
    is_unwatched = threading.Event()
    # Held while the watcher looks, so that Ray is not shut down in the midst.
    looking = threading.Lock()

    def end_watch() -> None:
        with looking:
            is_unwatched.set()

    def end_process(what: str) -> None:
        disarm()
        os.write(stderr, f"error: {what}; to continue: {how_to_continue}\n".encode())
        os._exit(ExitCode.MISTAKE)

    def watch() -> None:
        while not lost:
            is_unwatched.wait(_POLL_S)
            with looking:
                if is_unwatched.is_set():
                    return
                reason = look()
                if reason:
                    lost.append(reason)
        for _ in range(num_interrupts):
            signal.pthread_kill(caller, signal.SIGINT)
            if is_over.wait(_ASK_S):
                return
        if not is_over.wait(min(_END_S, 0.2 * _gives_up_s())):
            end_process(lost[0])

    disarm = _say_if_ended(how_to_continue, stderr)
    watcher = threading.Thread(target=watch, name="raysent-ray", daemon=True)
    watcher.start()
    if agents:
        arguments = (agents, end_process, is_unwatched, looking)
        threading.Thread(
            target=_watch_agents, args=arguments, name="raysent-ray-agents", daemon=True
        ).start()
    try:
        yield end_watch
    except BaseException:
        if not lost:
            raise
    finally:
        end_watch()
        is_over.set()
        watcher.join()
        disarm()
    if lost:
        raise TrainingError(f"{lost[0]}; to continue: {how_to_continue}")


def _say_if_ended(how_to_continue: str, stderr: int) -> Callable[[], object]:
    """Have a shell say a line if this process ends before it calls what is returned.

    Ray ends a process that registers with a node which is killed; the system, one that takes too much memory.
    """
    line = (
        f"error: this process was ended, perhaps for lack of memory; to continue: {how_to_continue}"
    )
    shell = ["sh", "-c", 'read -r _ || printf "%s\\n" "$0" >&2', line]
    with contextlib.suppress(OSError):  # no such shell
        guard = subprocess.Popen(
            shell,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        return lambda: guard.communicate(b"\n")
    return lambda: None


def shut_down() -> None:
    """End this process's connection to Ray, and what it has started; signals do afterwards what they did before.

    Ray's own library sets the signals' actions back to those of the system, of which Python knows nothing: SIGTERM
    would end what follows without a word.
    """
    import ray  # noqa: PLC0415 - late, as it takes seconds

    ray.shutdown()
    _SESSION.clear()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler is not None:
                signal.signal(number, handler)


def end_started(before: Container[int]) -> None:
    """End what a start of Ray that failed has left: it lives as long as this process, and slows the next start.

    Args:
        before: Processes that were there before the start.
    """
    import ray  # noqa: PLC0415 - late, as it takes seconds

    package = f"{Path(ray.__file__).parent}{os.sep}"
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.pid not in before and any(package in part for part in process.cmdline()):
                process.kill()


def ended_while_starting(before: Container[int]) -> Callable[[], str | None]:
    """Return what looks whether a process that Ray needs has ended while it starts: Ray would wait for it for a minute.

    Args:
        before: Processes that were there before the start.
    """
    ran: dict[str, float] = {}

    def look() -> str | None:
        now = time.monotonic()
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process().children():
                if process.pid not in before and process.status() != psutil.STATUS_ZOMBIE:
                    ran[process.name()] = now
        for name in _NEEDED:
            # Where the start fails of itself, Ray ends them and says why.
            if name in ran and now - ran[name] > _FAILS_S:
                return _lost(name)
        return None

    return look


def check_address(address: str | None, *, timeout_s: float) -> None:
    """Raise OSError if no server answers at ``host:port``; Ray itself would try for minutes, then end the process."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()


def head_of(address: str) -> Callable[[], str | None]:
    """Return what looks whether a cluster's head answers: a function that says that it has been gone for too long."""
    answered_s = time.monotonic()

    def look() -> str | None:
        nonlocal answered_s
        with contextlib.suppress(OSError):
            check_address(address, timeout_s=_POLL_S)
            answered_s = time.monotonic()
        gone_s = time.monotonic() - answered_s
        if gone_s < _WAITED_FOR * _gives_up_s():
            return None
        return f"address {address}: the head of the Ray cluster has not answered for {gone_s:.0f} seconds"

    return look


def _gives_up_s() -> float:
    """Return the seconds after which Ray ends a process whose head has gone."""
    try:
        return float(os.environ.get(_GIVES_UP_VARIABLE, _GIVES_UP_S))
    except ValueError:
        return _GIVES_UP_S


def _look_at_needed() -> Callable[[], str | None]:
    """Return what looks whether a process that Ray needs has ended, of those that this process has started."""
    needed: list[tuple[str, psutil.Process]] = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            name = process.name()
            if name in _NEEDED:
                needed.append((name, process))

    def look() -> str | None:
        return next((_lost(name) for name, process in needed if _has_ended(process)), None)

    return look


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _agents() -> dict[int, int]:
    """Return, on Linux, a file descriptor of each agent of the node that this process has started, and its node."""
    nodes_by_descriptor: dict[int, int] = {}
    with contextlib.suppress(psutil.Error):
        for node in psutil.Process().children():
            if node.name() != "raylet":
                continue
            for process in node.children():
                # A process may have ended since it was listed, and other systems have no such descriptors.
                with contextlib.suppress(psutil.Error, OSError, AttributeError):
                    if "agent" in " ".join(process.cmdline()).lower():
                        nodes_by_descriptor[os.pidfd_open(process.pid)] = node.pid
    return nodes_by_descriptor


def _watch_agents(
    agents: dict[int, int],
    end_process: Callable[[str], None],
    is_unwatched: threading.Event,
    looking: threading.Lock,
) -> None:
    """End this process with an agent: the node ends too, and a tenth of a second later Ray ends this process.

    Where the node was killed, its agents end after it, and Ray does not end this process.
    """
    poll = select.poll()
    ended: list[tuple[int, int]] = []
    for descriptor in agents:
        poll.register(descriptor, select.POLLIN)
    while not ended and not is_unwatched.is_set():
        ended = poll.poll(1000 * _POLL_S)
    with looking:
        if not is_unwatched.is_set() and not _was_killed(agents[ended[0][0]]):
            end_process(_lost("agent"))
    for descriptor in agents:
        os.close(descriptor)


def _was_killed(child: int) -> bool:
    """Return whether a signal ended a child of this process, or whether its end is known to this process already."""
    try:
        state = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return state is not None and state.si_code != os.CLD_EXITED


def _lost(process: str) -> str:
    return f"Ray's process {process} has ended, perhaps for lack of memory"


def why_died(error: BaseException | None) -> str:
    """Return how a process of Ray ended, as Ray or the last lines of the process say, to follow "died"."""
    text = " ".join(str(error).split())
    limits = "; see limits.memory and limits.concurrent"
    cause = getattr(error, "cause", None)
    if isinstance(cause, MemoryError):
        return f": {cause}{limits}"
    if isinstance(cause, Exception):
        return f": {type(cause).__name__}: {cause}"
    if "low on memory" in text:
        return f": Ray ended it, as the machine was low on memory{limits}"
    words = ""
    pid = re.search(r"\bpid: (\d+)", text)
    if pid is not None:
        words = _last_words(pid[1])
    detail = re.search(r"exit detail: (.*?\.)(?= |$)", text)
    if not words and detail is not None and "connection error" not in detail[1]:
        words = detail[1].rstrip(".")
    if not words:
        return " without a word, as after kill -9; 'dmesg' shows whether the kernel ended it"
    return f": {words}"


def _last_words(pid: str) -> str:
    """Return the fault that a process of this machine wrote to standard error, else its last line, or nothing."""
    session = session_folder()
    if session is None:
        return ""
    lines: list[str] = []
    for log in (session / "logs").glob(f"worker-*-{pid}.err"):
        lines += [line.strip(" *") for line in log.read_text(errors="replace").splitlines()]
    for line in lines:
        if line.startswith(("SIG", "Fatal Python error")):
            return line[:200]
    last_line = next(filter(None, reversed(lines)), "")
    return last_line[:200]


def session_folder() -> Path | None:
    """Return the folder on this machine of the session of Ray that this process is connected to; None without one.

    It is asked for as the process connects, as Ray does not answer once its head has gone.
    """
    import ray  # noqa: PLC0415 - late, as it takes seconds

    if not _SESSION and ray.is_initialized():
        node_id = ray.get_runtime_context().get_node_id()
        for node in ray.nodes():
            if node["NodeID"] == node_id:
                # SESSION/sockets/raylet
                _SESSION.append(Path(node["RayletSocketName"]).parent.parent)
    return _SESSION[0] if _SESSION else None


@lru_cache
def ray_folder() -> str | None:
    """Return the folder for the files of the sessions of Ray that this process starts; it is held until its end.

    On a system without ids of users it is None: Ray's own folder.

    Raises:
        TrainingError: If there is no folder of this user's whose path is short enough.
        OSError: If no folder can be made.
    """
    if not hasattr(os, "geteuid"):
        return None
    users = _users_folder()
    # No other process takes the folder for ended before it is held.
    with filelock.FileLock(users / _LOCK):
        folder = Path(tempfile.mkdtemp(prefix="", dir=users))
        lock = filelock.FileLock(folder / _LOCK)
        lock.acquire()
        _HELD.append(lock)
        _remove_ended(users)
    return str(folder)


def _users_folder() -> Path:
    """Return the folder of this user for all folders of sessions, which no other user may enter."""
    name = f"raysent-{os.geteuid()}"
    for base in (os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "/tmp"):
        folder = Path(base, name)
        if len(os.fsencode(f"{folder}-12345678/12345678{_SOCKET}")) > _MAX_SOCKET_BYTES:
            continue
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        # Another user may have taken the name.
        owned = next(filter(_is_owned, [folder, *Path(base).glob(f"{name}-*")]), None)
        owned = owned or Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
        owned.chmod(0o700)
        return owned
    raise TrainingError(
        f"RAY_TMPDIR={base}: too long for Ray's sockets; name a folder of at most 20 characters"
    )


def _is_owned(folder: Path) -> bool:
    """Return whether a path is a folder of this user, and no link to one."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _remove_ended(users: Path) -> None:
    """Remove the folders of processes that have ended, but for the newest."""
    ended = []
    for folder in sorted(users.iterdir(), key=lambda path: path.stat().st_mtime):
        lock = filelock.FileLock(folder / _LOCK)
        with contextlib.suppress(filelock.Timeout, OSError):
            if folder.is_dir():
                with lock.acquire(timeout=0):
                    ended.append(folder)
    for folder in ended[:-_NUM_KEPT]:
        remove_tree(folder, below=users)


def whose_folder(session: Path) -> str:
    """Return whose Ray's files of a running cluster are, and whether other users may write there; empty if not here."""
    try:
        is_writable = session.stat().st_mode & stat.S_IWOTH
        is_reachable = all(parent.stat().st_mode & stat.S_IXOTH for parent in session.parents)
        owner = session.owner()
    except (OSError, KeyError):
        return ""
    may_write = "no other user may"
    if is_writable and is_reachable:
        may_write = "other users of this machine may"
    return f"its files are in {session}, user {owner}'s; {may_write} write there"
