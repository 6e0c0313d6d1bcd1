"""A sweep on a cluster that is launched for it: up, submit, follow, download the results, down.

`prepare_submission` checks the cluster file and the space, `run_submission` does the rest. What the sweep prints on the
cluster comes back line by line: events of its journal go to a listener, everything else is returned.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from raysent.cluster.cluster_file import read_cluster
from raysent.cluster.fleet import FleetSettings
from raysent.cluster.jobs import SHIPPED_FOLDER, JobResult, Jobs, download, ship
from raysent.cluster.launcher import Launcher, read_token
from raysent.cluster.policies import s3_addresses
from raysent.cluster.prices import price_space, workers_for
from raysent.config import Override
from raysent.errors import ConfigError
from raysent.reading import parse_json
from raysent.storage import address_of, atomic_write, is_remote, open_folder, read_json, write_json
from raysent.storage.layout import REMOTE_FILE
from raysent.sweeps import Listener, Workers, load_record
from raysent.sweeps.journal import EVENT_MARK, EVENTS_VARIABLE
from raysent.sweeps.space import SearchSpace, find_space, with_overrides

INTERRUPTED = 130
# As shells have it for SIGHUP.
DETACHED = 129
_SPACE_FOLDER = "space"

Say = Callable[[str], object]


class Cluster(Protocol):
    """The part of a launcher that a submission uses, in this order: `up`, `tunnel`, `down`."""

    @property
    def token_file(self) -> Path:
        """The file that holds the cluster's token."""

    def up(self, *, sweep: str, inputs: Sequence[str], on_line: Say) -> None:
        """Launch it."""

    def down(self, *, on_line: Say) -> None:
        """Terminate it."""

    def tunnel(self) -> AbstractContextManager[str]:
        """Yield the address of its job API."""


@dataclass(frozen=True)
class Submission:
    """A sweep for a cluster.

    Attributes:
        space: The search space, with overrides.
        run: The local folder for its results.
        remote: Where the run is stored meanwhile: ``s3://…``, or a folder that the cluster shares with this machine.
        options: Further options after `raysent sweep SPACE` on the head.
        workers: The number of workers at the same time, and what each has.
        data: Local task files; None for the embedded tasks.
        is_resumed: Whether it resumes the run at `remote`.
        fleet: The cluster that grows for it; None for one that stays as it is.
    """

    space: SearchSpace
    run: Path
    remote: str
    options: Sequence[str]
    workers: Workers
    data: Path | None = None
    is_resumed: bool = False
    fleet: FleetSettings | None = None


@dataclass(frozen=True)
class SubmittedSweep:
    """How a submitted sweep ended.

    Attributes:
        code: The sweep's exit code; 130 if it was interrupted.
        lines: What it printed, without events; the remote folder is replaced by the local one.
        message: Why the job could not run; empty if it did.
        is_detached: Whether it continues on the cluster, because the terminal was closed.
    """

    code: int
    lines: tuple[str, ...] = ()
    message: str = ""
    is_detached: bool = False

    @property
    def values(self) -> dict[str, Any] | None:
        """The JSON object that it printed, if it printed one."""
        start = next((number for number, line in enumerate(self.lines) if line == "{"), None)
        return None if start is None else parse_json("\n".join(self.lines[start:]))


def prepare_submission(  # noqa: PLR0913 - the options of a sweep that its job is given
    name: str,
    cluster: Path,
    overrides: Sequence[Override],
    *,
    run: Path,
    seed: int | None = None,
    data: Path | None = None,
    tasks: str | None = None,
    labels: str | None = None,
    as_json: bool = False,
) -> tuple[Launcher, Submission, list[str]]:
    """Return the launcher of a cluster file, the sweep for it, and notes on prices.

    Args:
        name: A search-space file, or the bare name of a shipped one.
        cluster: The cluster file.
        overrides: Values that the command line sets.
        run: The local folder for the results.
        seed: Seed of everything random.
        data: Local task files.
        tasks: Names of tasks, separated by commas.
        labels: Numbers of labels, separated by commas.
        as_json: Whether the sweep prints one JSON object.

    Raises:
        ConfigError: If a file is wrong, or the run folder is not empty.
    """
    file = read_cluster(cluster)
    space, notes = price_space(find_space(name), overrides, file)
    if run.exists() and any(run.iterdir()):
        raise ConfigError(f"{run}: must be empty; name another --run")
    given = {"--seed": seed, "--tasks": tasks, "--labels": labels}
    options = [text for flag, value in given.items() if value is not None for text in (flag, str(value))]
    workers = workers_for(file, space)
    remote = f"{file.settings.storage}/{run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    fleet = FleetSettings.of(file.limited(num_workers=workers.num, market=space.cost.market))
    options += ["--json"] if as_json else []
    submission = Submission(space, run, remote, options, workers, data, fleet=fleet)
    write_json(run / REMOTE_FILE, {"remote": remote})
    return Launcher(file), submission, list(notes)


def prepare_resumption(
    run: Path, cluster: Path, limits: Sequence[Override], *, new_run: Path, as_json: bool = False
) -> tuple[Launcher, Submission]:
    """Return the launcher of a cluster file, and a sweep that a cluster ran before, to be resumed.

    Args:
        run: The run folder: the one that its results were downloaded to, or the working folder of its s3:// address.
        cluster: The cluster file.
        limits: Another budget or deadline.
        new_run: The local folder for the results of a run that is named by its s3:// address.
        as_json: Whether the sweep prints one JSON object.

    Raises:
        ConfigError: If a file is wrong, or no cluster ran the sweep.
    """
    file, remote = read_cluster(cluster), _remote_of(run)
    record = load_record(open_folder(remote))
    space = with_overrides(record.space, limits)
    workers = workers_for(file, space)
    options = [text for limit in limits for text in limit.option.split(" ", 1)]
    local = run if (run / REMOTE_FILE).is_file() else new_run
    fleet = FleetSettings.of(file.limited(num_workers=workers.num, market=space.cost.market))
    options += ["--json"] if as_json else []
    submission = Submission(space, local, remote, options, workers, is_resumed=True, fleet=fleet)
    write_json(local / REMOTE_FILE, {"remote": remote})
    return Launcher(file), submission


def _remote_of(folder: Path) -> str:
    """Return where a cluster stores the run of a folder.

    Raises:
        ConfigError: If the run is on this machine only.
    """
    address = address_of(folder)
    if is_remote(address):
        return address
    if not (folder / REMOTE_FILE).is_file():
        raise ConfigError(f"{folder}: is on this machine only; name a run of --cluster, or its s3:// address")
    return str(read_json(folder / REMOTE_FILE)["remote"])


def run_submission(
    launcher: Cluster, submission: Submission, *, on_event: Listener, say: Say, keep: bool = False
) -> SubmittedSweep:
    """Launch a cluster, run a sweep on it, download the results, and terminate the cluster whatever happened.

    If the terminal is closed while the sweep runs, sweep and cluster continue without this process.

    Args:
        launcher: The cluster's launcher.
        submission: The sweep.
        on_event: Called with each event of the sweep's journal.
        say: Called with lines about the progress.
        keep: Whether the cluster stays afterwards.
    """
    say = _lasting(say)
    try:
        with _closed_terminal_raises(KeyboardInterrupt):
            inputs = s3_addresses(submission.space.document.values)
            launcher.up(sweep=submission.run.name, inputs=inputs, on_line=say)
            with launcher.tunnel() as address:
                ended = submit(address, read_token(launcher.token_file), submission, on_event=on_event, say=say)
        keep = keep or ended.is_detached
        return ended
    except KeyboardInterrupt:
        say("interrupted")
        return SubmittedSweep(INTERRUPTED)
    finally:
        if keep:
            say("the cluster stays, and costs money, until 'raysent cluster down'")
        else:
            with _uninterrupted(say):
                launcher.down(on_line=say)


def submit(address: str, token: str, submission: Submission, *, on_event: Listener, say: Say) -> SubmittedSweep:
    """Run a sweep through a job API; its results are downloaded however it ends.

    Args:
        address: The job API's address, such as ``http://127.0.0.1:8265``.
        token: The cluster's token.
        submission: The sweep.
        on_event: Called with each event of the sweep's journal.
        say: Called with lines about the progress.
    """
    jobs = Jobs(address, token=token)
    with tempfile.TemporaryDirectory(prefix="raysent-submit-") as scratch:
        command = _pack(submission, Path(scratch))
        fleet = {} if submission.fleet is None else submission.fleet.environment()
        environment = {EVENTS_VARIABLE: "1", **submission.workers.environment(), **fleet}
        job = jobs.submit(command, folder=Path(scratch), environment=environment)
    lines: list[str] = []
    try:
        with _closed_terminal_raises(_ClosedTerminal):
            ended = jobs.follow(job, _LineSorter(on_event, lines))
    except _ClosedTerminal:
        say(
            f"detached; the sweep continues on the cluster: 'raysent report {submission.remote}' shows how far it is, "
            "and 'raysent cluster down' ends the machines"
        )
        return SubmittedSweep(DETACHED, is_detached=True)
    except KeyboardInterrupt:
        say("interrupted; asking the sweep to stop")
        with _uninterrupted(say):
            jobs.stop(job)
            ended = JobResult(INTERRUPTED)
    with _uninterrupted(say):
        download(submission.remote, submission.run)
    local = tuple(line.replace(submission.remote, str(submission.run)) for line in lines)
    return SubmittedSweep(ended.code, local, ended.message)


@dataclass(frozen=True)
class _LineSorter:
    """Passes events to a listener and keeps all other lines."""

    on_event: Listener
    lines: list[str]

    def __call__(self, line: str) -> None:
        if not line.startswith(EVENT_MARK):
            self.lines.append(line)
            return
        with contextlib.suppress(ValueError):  # a line that a killed process left unfinished
            self.on_event(parse_json(line.removeprefix(EVENT_MARK)))


def _pack(submission: Submission, folder: Path) -> list[str]:
    """Put what the head needs into a folder; returns its command.

    Local files are shipped with the job, and stored beside the run, so that it can be resumed from anywhere.
    """
    options = ["--address", "auto", "--yes", *submission.options]
    stored = open_folder(submission.remote) / SHIPPED_FOLDER
    if submission.is_resumed:
        if stored.is_dir():
            shutil.copytree(stored, folder / SHIPPED_FOLDER)
        return ["python", "-m", "raysent", "resume", submission.remote, *submission.options]
    space = submission.space
    path = folder / _SPACE_FOLDER / f"{space.name}.yaml"
    write_json(path, ship(space.document.values, folder))
    command = ["python", "-m", "raysent", "sweep", str(path.relative_to(folder)), "--run", submission.remote]
    if submission.data is not None:
        command += ["--data", str(ship(f"{submission.data.absolute()}", folder))]
    for file in (folder / SHIPPED_FOLDER).rglob("*"):
        if file.is_file():
            with atomic_write(stored / file.relative_to(folder / SHIPPED_FOLDER)) as temporary:
                shutil.copyfile(file, temporary)
    return [*command, *options]


class _ClosedTerminal(BaseException):
    """The terminal of this process was closed (SIGHUP)."""


def _lasting(say: Say) -> Say:
    """Return a function that shows lines while there is a terminal."""

    def show(line: str) -> None:
        with contextlib.suppress(OSError):
            say(line)

    return show


@contextlib.contextmanager
def _closed_terminal_raises(error: type[BaseException]) -> Iterator[None]:
    """Raise an error inside the block when the terminal is closed; only in the main thread."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        yield
        return

    def close(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGHUP, close)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def _uninterrupted(say: Say) -> Iterator[None]:
    """Ignore a first Ctrl-C inside the block, because what it would leave costs money. A second one ends the block.

    A closed terminal is ignored.

    Does nothing outside the main thread, which alone receives Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ignore(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        say("still cleaning up; Ctrl-C again leaves machines that cost money: 'raysent cluster down' ends them")

    before = signal.signal(signal.SIGINT, ignore)
    closed = signal.signal(signal.SIGHUP, signal.SIG_IGN) if hasattr(signal, "SIGHUP") else None
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if closed is not None:
            signal.signal(signal.SIGHUP, closed)
