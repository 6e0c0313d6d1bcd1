"""A sweep on a cluster that is launched for it: up, submit, follow, download the results, down.

Once it is submitted, the sweep is followed by the run that is stored: events of its journal go to a listener, and what
it printed is returned at its end.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysent.cluster.fleet import FleetSettings
from raysent.cluster.following import (
    INTERRUPTED,
    JobRecord,
    Say,
    finished,
    follow_stored,
    forget_request,
    how_to_continue,
    read_record,
    write_record,
)
from raysent.cluster.jobs import SHIPPED_FOLDER, ConnectionLostError, Jobs, SubmittedSweep, ship
from raysent.cluster.launcher import Head, Launcher, read_token
from raysent.cluster.policies import s3_addresses
from raysent.cluster.usage import Users, users_of
from raysent.errors import ArtifactError, CloudError
from raysent.platforms import signals_handled
from raysent.storage import atomic_write, open_folder, remove, safe_name, write_json
from raysent.storage.layout import REMOTE_FILE
from raysent.sweeps import Listener, Workers
from raysent.sweeps.journal import EVENTS_VARIABLE
from raysent.sweeps.space import SearchSpace

_SPACE_FOLDER = "space"
# Waits between attempts to submit a sweep, where a connection broke.
WAITS_S = (1.0, 2.0, 4.0, 8.0)
# How long the job of a sweep that has ended may take to end.
_EXIT_S = 120


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
        tasks: The tasks to evaluate on; None for those of the space, or all.
        is_resumed: Whether it resumes the run at `remote`.
        fleet: The cluster that grows for it; None for one that stays as it is.
    """

    space: SearchSpace
    run: Path
    remote: str
    options: Sequence[str]
    workers: Workers
    data: Path | None = None
    tasks: Sequence[str] | None = None
    is_resumed: bool = False
    fleet: FleetSettings | None = None

    @property
    def sweep(self) -> str:
        """What the sweep is called on its cluster."""
        return Path(self.remote).name

    @property
    def named(self) -> list[Any]:
        """Everything that names files or ``s3://`` addresses."""
        return [self.space.written(), list(self.tasks or ())]


def run_submission(
    launcher: Launcher, submission: Submission, *, on_event: Listener, say: Say, keep: bool = False
) -> SubmittedSweep:
    """Launch a cluster, submit a sweep, follow it, download the results, and terminate the cluster.

    Only a cluster that this call launched is terminated, and only while no other sweep uses it. Before the sweep is
    submitted, Ctrl-C and every error terminate it. Afterwards the sweep is independent of this process: Ctrl-C or a
    closed terminal detach from it, and the head terminates the cluster after the
    last sweep on it. At the sweep's end this process terminates it at once.

    Args:
        launcher: The cluster's launcher.
        submission: The sweep.
        on_event: Called with each event of the sweep's journal.
        say: Called with lines about the progress.
        keep: Whether the cluster stays afterwards.
    """
    say = _lasting(say)
    job = SweepJob(submission, on_event, is_kept=keep)
    try:
        with _closed_terminal_raises(KeyboardInterrupt):
            inputs = s3_addresses(submission.named)
            launcher.up(sweep=submission.sweep, is_kept=keep, inputs=inputs, on_line=say)
            job.is_kept = keep or launcher.stays
            return submit(launcher, job, say=say)
    except KeyboardInterrupt:
        say("interrupted")
        return SubmittedSweep(INTERRUPTED)
    except CloudError:
        job.is_running = False
        raise
    finally:
        if job.is_running:
            say(f"the sweep continues: {job.how_to_continue()}")
        else:
            with _uninterrupted(say):
                _end(launcher, job, say=say)
                if (
                    not job.was_submitted and not submission.is_resumed
                ):  # the folder may be named again
                    remove(submission.run / REMOTE_FILE)


def _end(launcher: Launcher, job: SweepJob, *, say: Say) -> None:
    """Terminate a cluster that was launched for a sweep that does not run, unless it is kept or in use."""
    launcher.forget_inputs(job.submission.sweep)
    if not launcher.has_launched:
        return
    if job.is_kept:
        say("the cluster stays, and costs money, until 'raysent cluster down'")
        return
    is_over = not job.was_submitted or _has_ended(job.remote)
    try:
        users = users_of(launcher, ended=job.remote if is_over else "", connect=Jobs)
    except CloudError as error:
        users = Users()
        say(f"{error}")
    if users.sweeps:
        stays_for = users.sweeps[0]
        if stays_for == job.remote:
            say(f"the sweep still runs; {job.how_to_continue()}")
        else:
            say(f"the cluster stays for {stays_for}, and ends with the last sweep on it")
    elif job.was_submitted and not users.has_asked_jobs:
        say("its head cannot be asked; the head terminates the cluster after the last sweep on it")
    else:
        launcher.down(on_line=say)


def submit(cluster: Head, job: SweepJob, *, say: Say) -> SubmittedSweep:
    """Submit a sweep to a running cluster and follow it; its results are downloaded however it ends.

    Args:
        cluster: The cluster's head.
        job: The sweep.
        say: Called with lines about the progress.

    Raises:
        KeyboardInterrupt: If this process is interrupted before the sweep is submitted.
        CloudError: If the cluster rejects the sweep, or ends before it.
    """
    try:
        with _closed_terminal_raises(_ClosedTerminal):
            failure = _with_jobs(cluster, job)
            if failure:
                ended = SubmittedSweep(1, message=failure)
            else:
                ended = follow_stored(job.remote, job.on_event, cluster, job=job.name, say=say)
    except (_ClosedTerminal, KeyboardInterrupt):
        if not job.is_running:
            raise KeyboardInterrupt from None
        return SubmittedSweep(INTERRUPTED, is_detached=True)
    job.is_running = False
    with _uninterrupted(say):
        return finished(ended, remote=job.remote, folder=job.submission.run)


def _with_jobs(cluster: Head, job: SweepJob) -> str | None:
    """Submit a sweep through a tunnel, made again a few times where it breaks; return why its command did not start."""
    waits = list(WAITS_S)
    has_connected = False
    while True:
        try:
            with cluster.tunnel() as address:
                jobs = Jobs(address, token=read_token(cluster.token_file))
                has_connected = True
                return job(jobs)
        except ConnectionLostError:
            if not has_connected or not waits:
                raise
            time.sleep(waits.pop(0))


class SweepJob:
    """A sweep that is submitted once, whatever connections break meanwhile.

    Attributes:
        submission: The sweep.
        remote: The address of its run.
        name: Name of the job.
        on_event: Called with each event of the sweep's journal.
        is_running: Whether it was submitted and is not known to have ended.
        was_submitted: Whether it was submitted.
        is_kept: Whether the cluster stays afterwards.
    """

    def __init__(
        self, submission: Submission, on_event: Listener, *, is_kept: bool = False
    ) -> None:
        """Prepare; nothing is submitted yet.

        Args:
            submission: The sweep.
            on_event: Called with each event of the sweep's journal.
            is_kept: Whether the cluster stays afterwards.
        """
        self.submission = submission
        self.remote = submission.remote
        self.name = f"raysent-{Path(submission.remote).name}-{uuid.uuid4().hex[:8]}"
        self.on_event = on_event
        self.is_running = self.was_submitted = False
        self.is_kept = is_kept

    def __call__(self, jobs: Jobs) -> str | None:
        """Submit the sweep, if that was not done before, and return why its command did not start; None if it did.

        Raises:
            ConnectionLostError: If the connection ends before that is known; call again.
            CloudError: If another job works on the run.
        """
        if not self.is_running:
            self._submit(jobs)
            self.is_running = self.was_submitted = True
        failure = jobs.failure_to_start(self.name)
        # A sweep that stored its end has run, however short that was.
        if failure is not None and _has_ended(self.remote):
            return None
        return failure

    def how_to_continue(self) -> str:
        """Return the commands that show and stop the sweep."""
        end = "the cluster ends with it"
        if self.is_kept:
            end = "the cluster stays afterwards"
        return f"{how_to_continue(self.remote)}; {end}"

    def _submit(self, jobs: Jobs) -> None:
        ended_by_job = jobs.of_run(self.remote)
        if (
            self.name in ended_by_job
        ):  # submitted by a call whose connection was lost before the answer
            return
        for _ in range(_EXIT_S):
            if all(ended_by_job.values()) or not _has_ended(self.remote):
                break
            time.sleep(1)  # the sweep has ended, and its job is about to
            ended_by_job = jobs.of_run(self.remote)
        if not all(ended_by_job.values()):
            raise CloudError(
                f"{self.remote}: a job of this cluster works on it; 'raysent attach {self.remote}'"
            )
        submission = self.submission
        with tempfile.TemporaryDirectory(prefix="raysent-submit-") as scratch:
            command = _pack(submission, Path(scratch), is_kept=self.is_kept)
            forget_request(self.remote)
            write_record(self.remote, self._record())
            environment = {EVENTS_VARIABLE: "1", **submission.workers.environment()}
            if submission.fleet is not None:
                environment.update(submission.fleet.environment())
            jobs.submit(
                command,
                folder=Path(scratch),
                environment=environment,
                name=self.name,
                run=self.remote,
            )

    def _record(self) -> JobRecord:
        fleet = self.submission.fleet
        space = self.submission.space
        return JobRecord(
            job=self.name,
            cluster="" if fleet is None else fleet.cluster,
            region="" if fleet is None else fleet.region,
            space={"name": space.name, "values": space.written()},
            is_kept=self.is_kept,
        )


def _has_ended(remote: str) -> bool:
    try:
        return read_record(remote).code is not None
    except ArtifactError:
        return False


def _pack(submission: Submission, folder: Path, *, is_kept: bool) -> list[str]:
    """Put what the head needs into a folder; returns its command.

    Local files are shipped with the job, and stored beside the run, so that it can be resumed from anywhere.
    """
    options = ["--address", "auto", "--yes", *submission.options]
    job = [
        "python",
        "-m",
        f"{__package__}.head",
        "--run",
        submission.remote,
        *(["--keep"] if is_kept else []),
        "--",
    ]
    stored = open_folder(submission.remote) / SHIPPED_FOLDER
    if submission.is_resumed:
        if stored.is_dir():
            shutil.copytree(stored, folder / SHIPPED_FOLDER)
        return [*job, "resume", submission.remote, *submission.options]
    space = submission.space
    path = folder / _SPACE_FOLDER / f"{safe_name(space.name)}.yaml"
    write_json(path, ship(space.written(), folder), sealed=False)
    command = [*job, "sweep", str(path.relative_to(folder)), "--run", submission.remote]
    if submission.data is not None:
        command += ["--data", str(ship(f"{submission.data.absolute()}", folder))]
    command += [
        text for task in submission.tasks or () for text in ("--tasks", str(ship(task, folder)))
    ]
    for file in (folder / SHIPPED_FOLDER).rglob("*"):
        if file.is_file():
            with atomic_write(stored / file.relative_to(folder / SHIPPED_FOLDER)) as temporary:
                shutil.copyfile(file, temporary)
    return [*command, *options]


class _ClosedTerminal(BaseException):
    """The terminal of this process was closed (SIGHUP)."""


def _lasting(say: Say) -> Say:
    def show(line: str) -> None:
        with contextlib.suppress(OSError):
            say(line)

    return show


def _closed_terminal_raises(error: type[BaseException]) -> AbstractContextManager[None]:
    def close(*_: object) -> None:
        raise error

    return signals_handled({"SIGHUP": close})


def _uninterrupted(say: Say) -> AbstractContextManager[None]:
    """Ignore a first Ctrl-C inside the block, because what it would leave costs money. A second one ends the block.

    A closed terminal is ignored.
    """
    before = signal.getsignal(signal.SIGINT)

    def ignore(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        say(
            "still cleaning up; Ctrl-C again leaves machines that cost money: 'raysent cluster down' ends them"
        )

    return signals_handled({"SIGINT": ignore, "SIGHUP": signal.SIG_IGN})
