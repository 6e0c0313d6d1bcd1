"""`raysent sweep --cluster`: the cluster comes, the sweep is submitted and followed, its results come home, it goes."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raysent.cli.console import default_folder, messages, print_json, results
from raysent.cli.live import EVENT_MARK, EVENTS_VARIABLE, SweepView
from raysent.cluster import (
    SHIPPED_FOLDER,
    JobResult,
    Jobs,
    Launcher,
    download,
    price_space,
    read_cluster,
    read_token,
    ship,
    workers_for,
)
from raysent.config import Override
from raysent.errors import ConfigError
from raysent.storage import address_of, atomic_write, is_remote, open_folder, read_json, write_json
from raysent.storage.layout import REMOTE_FILE
from raysent.sweeps import Workers, load_record
from raysent.sweeps.space import SearchSpace, apply_overrides, find_space, parse_space

INTERRUPTED = 130
# In the folder here of a cluster's run: where the cluster keeps it.
_SPACE_FOLDER = "space"


class Cluster(Protocol):
    """What a submission needs of a cluster's launcher."""

    @property
    def token_file(self) -> Path:
        """The file that holds its token."""

    def up(self, *, sweep: str, on_line: Callable[[str], object]) -> None:
        """Bring it up."""

    def down(self, *, on_line: Callable[[str], object]) -> None:
        """Take it down."""

    def tunnel(self) -> AbstractContextManager[str]:
        """Yield the address of its job API."""


@dataclass(frozen=True)
class Submission:
    """One sweep for a cluster.

    Attributes:
        space: What is swept, overrides put in.
        run: The folder here that results come to.
        remote: Where the run is kept meanwhile: `s3://…`, or a folder that the cluster shares with this machine.
        options: What else follows `raysent sweep SPACE` on the head.
        workers: How many workers may stand at once, and what each has.
        data: Task files here; None for the embedded tasks.
        is_resumed: Whether it goes on with what is kept at `remote`.
    """

    space: SearchSpace
    run: Path
    remote: str
    options: Sequence[str]
    workers: Workers
    data: Path | None = None
    is_resumed: bool = False


def sweep(
    name: str,
    *,
    cluster: Path,
    overrides: Sequence[Override],
    run: Path | None,
    seed: int | None,
    data: Path | None,
    tasks: str | None,
    is_kept: bool,
    as_json: bool,
) -> int:
    """Sweep on a cluster that comes for it and goes after it; returns the exit code."""
    file = read_cluster(cluster)
    space, notes = price_space(find_space(name), overrides, file)
    folder = run or default_folder(space.name)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; name another --run")
    given = {"--seed": seed, "--tasks": tasks}
    options = [text for flag, value in given.items() if value is not None for text in (flag, str(value))]
    workers = workers_for(file, space)
    submission = Submission(
        space,
        folder,
        f"{file.settings.storage}/{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}",
        [*options, *(["--json"] if as_json else [])],
        workers,
        data,
    )
    for note in notes:
        messages.print(note, soft_wrap=True)
    write_json(folder / REMOTE_FILE, {"remote": submission.remote})
    limited = file.limited(num_workers=workers.num, market=space.cost.market)
    return run_on(Launcher(limited), submission, is_kept=is_kept, as_json=as_json)


def resume(
    folder: Path, *, cluster: Path, limits: Sequence[Override], is_kept: bool = False, as_json: bool = False
) -> int:
    """Go on with a sweep that a cluster began, on one that comes for it; returns the exit code.

    Args:
        folder: The run folder: where its results came to, or the working folder of its ``s3://`` address.
        cluster: The cluster file.
        limits: Another budget or deadline.
        is_kept: Whether the cluster stays afterwards.
        as_json: Whether standard output gets one JSON object.
    """
    file, remote = read_cluster(cluster), _remote_of(folder)
    record = load_record(open_folder(remote))
    space = parse_space(apply_overrides(record.space.document, limits), name=record.space.name)
    workers = workers_for(file, space)
    options = [text for limit in limits for text in limit.option.split(" ", 1)]
    home = folder if is_remote_note(folder) else default_folder(space.name)
    submission = Submission(space, home, remote, [*options, *(["--json"] if as_json else [])], workers, is_resumed=True)
    write_json(home / REMOTE_FILE, {"remote": remote})
    limited = file.limited(num_workers=workers.num, market=space.cost.market)
    return run_on(Launcher(limited), submission, is_kept=is_kept, as_json=as_json)


def is_remote_note(folder: Path) -> bool:
    """Whether a folder here is one that a cluster's results come to."""
    return (folder / REMOTE_FILE).is_file()


def _remote_of(folder: Path) -> str:
    """Return where a cluster keeps the run that a folder names.

    Raises:
        ConfigError: If the run lies on this machine only.
    """
    address = address_of(folder)
    if is_remote(address):
        return address
    if not is_remote_note(folder):
        raise ConfigError(f"{folder}: lies on this machine only; name a run of --cluster, or its s3:// address")
    return str(read_json(folder / REMOTE_FILE)["remote"])


def run_on(launcher: Cluster, submission: Submission, *, is_kept: bool = False, as_json: bool = False) -> int:
    """Bring a cluster up, run a submission on it, bring the results home, and take it down whatever happened.

    Args:
        launcher: The cluster's.
        submission: The sweep.
        is_kept: Whether the cluster stays afterwards.
        as_json: Whether standard output gets one JSON object.

    Returns:
        The sweep's own exit code; 130 if it was interrupted.
    """
    on_line = _quiet if as_json else _say
    try:
        launcher.up(sweep=submission.run.name, on_line=on_line)
        with launcher.tunnel() as address:
            return submit(address, read_token(launcher.token_file), submission, as_json=as_json)
    except KeyboardInterrupt:
        messages.print("interrupted")
        return INTERRUPTED
    finally:
        if is_kept:
            messages.print("the cluster stays, and is paid for, until 'raysent cluster down'", soft_wrap=True)
        else:
            with _uninterrupted():
                launcher.down(on_line=on_line)


def submit(address: str, token: str, submission: Submission, *, as_json: bool = False) -> int:
    """Run a submission through a job API; results come home however it ends.

    Args:
        address: Of the job API, as in http://127.0.0.1:8265.
        token: The cluster's token.
        submission: The sweep.
        as_json: Whether standard output gets one JSON object.

    Returns:
        The sweep's own exit code; 130 if it was interrupted.
    """
    jobs = Jobs(address, token=token)
    with tempfile.TemporaryDirectory(prefix="raysent-submit-") as scratch:
        command = _packed(submission, Path(scratch))
        environment = {EVENTS_VARIABLE: "1", **submission.workers.environment()}
        job = jobs.submit(command, folder=Path(scratch), environment=environment)
    said: list[str] = []
    try:
        ended = _follow(jobs, job, submission.space, said, as_json=as_json)
    except KeyboardInterrupt:
        messages.print("interrupted; the sweep is asked to stop")
        with _uninterrupted():
            jobs.stop(job)
            ended = JobResult(INTERRUPTED)
    with _uninterrupted():
        download(submission.remote, submission.run)
    _tell(said, ended, submission, as_json=as_json)
    return ended.code


def _packed(submission: Submission, folder: Path) -> list[str]:
    """Put what the head needs into a folder; returns its command.

    Local files go with the job, and are kept beside the run, so that it can be gone on with from anywhere.
    """
    options = ["--address", "auto", "--yes", *submission.options]
    kept = open_folder(submission.remote) / SHIPPED_FOLDER
    if submission.is_resumed:
        if kept.is_dir():
            shutil.copytree(kept, folder / SHIPPED_FOLDER)
        return ["python", "-m", "raysent", "resume", submission.remote, *submission.options]
    space = submission.space
    path = folder / _SPACE_FOLDER / f"{space.name}.yaml"
    write_json(path, ship(space.document.values, folder))
    command = ["python", "-m", "raysent", "sweep", str(path.relative_to(folder)), "--run", submission.remote]
    if submission.data is not None:
        command += ["--data", str(ship(f"{submission.data.absolute()}", folder))]
    for file in (folder / SHIPPED_FOLDER).rglob("*"):
        if file.is_file():
            with atomic_write(kept / file.relative_to(folder / SHIPPED_FOLDER)) as temporary:
                shutil.copyfile(file, temporary)
    return [*command, *options]


def _follow(jobs: Jobs, job: str, space: SearchSpace, said: list[str], *, as_json: bool) -> JobResult:
    """Show a job's sweep as one of this machine is shown; what else it says is kept for its end."""
    with SweepView(messages, space, is_quiet=as_json) as view:

        def hear(line: str) -> None:
            if not line.startswith(EVENT_MARK):
                said.append(line)
                return
            # A line that a killed process left half is no event.
            with contextlib.suppress(json.JSONDecodeError):
                view.hear(json.loads(line.removeprefix(EVENT_MARK)))

        return jobs.follow(job, hear)


def _tell(said: Sequence[str], ended: JobResult, submission: Submission, *, as_json: bool) -> None:
    """Print what the sweep itself printed."""
    # Where the run was, is here now.
    said = [line.replace(submission.remote, str(submission.run)) for line in said]
    begin = next((number for number, line in enumerate(said) if line == "{"), None)
    if as_json and begin is not None:
        print_json(json.loads("\n".join(said[begin:])))
        return
    for line in said:
        (messages if ended.code else results).print(line, soft_wrap=True)
    if ended.message:
        messages.print(f"error: the job could not run: {ended.message}", soft_wrap=True)
    messages.print(f"results: {submission.run}", soft_wrap=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a first Ctrl-C inside the block pass: what it would leave costs money. A second one ends the block."""

    def pass_over(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        messages.print(
            "still cleaning up; Ctrl-C again leaves what costs money: 'raysent cluster down'", soft_wrap=True
        )

    before = signal.signal(signal.SIGINT, pass_over)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _say(line: str) -> None:
    messages.print(line, style="dim", soft_wrap=True)


def _quiet(_: str) -> None:
    """Say nothing."""


__all__ = ["Submission", "run_on", "submit", "sweep"]
