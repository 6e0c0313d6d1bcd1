"""A submitted sweep, followed by its stored run from any folder or computer; and the request to stop it.

The sweep does not depend on the process that follows it, which reads the journal that is stored with the run.

    job.json   written by the process that submits the sweep; why trials wait, and at its end exit code and
               printed lines, are added by the sweep's process
    stop.json  written by `raysent stop`, read by the sweep's process on the head

Both are in the run's folder, in a bucket or in a folder that the cluster shares with this machine. So a sweep can be
shown and stopped with access to the storage alone.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raysent.cluster.jobs import SubmittedSweep, download
from raysent.cluster.launcher import Head
from raysent.cluster.signs import Signs
from raysent.cluster.stored_sweep import is_alive
from raysent.config import Document
from raysent.cost.budget import LEASE_S
from raysent.errors import ArtifactError, CloudError, ConfigError, RaysentError
from raysent.reading import parse_json
from raysent.redaction import without_secrets_in
from raysent.storage import (
    NewLines,
    address_of,
    is_remote,
    read_json,
    remove,
    without_seal,
    working_folder,
    write_json,
)
from raysent.storage.layout import JOB_FILE, JOURNAL_FILE, REMOTE_FILE, STOP_FILE
from raysent.storage.object_store import S3, get_content, split_address
from raysent.sweeps import Listener
from raysent.sweeps.space import SearchSpace, parse_space

Say = Callable[[str], object]

# Exit code of a sweep that was interrupted.
INTERRUPTED = 130
# Seconds between two looks at a stored run, and the most that a stopped sweep is waited for.
POLL_S = 5.0
_STOP_WAIT_S = 300.0


@dataclass(frozen=True)
class JobRecord:
    """How a sweep was submitted, and how it ended.

    Attributes:
        job: Name of its job.
        cluster: Name of its cluster; empty if the cluster was not launched by raysent.
        region: Region of its cluster.
        space: Name and values of its search space.
        is_kept: Whether the cluster stays after the sweep.
        code: Exit code of the sweep; None until it has ended.
        lines: The last lines that it printed.
        waiting: Why its trials wait for machines; empty if they do not.
    """

    job: str
    cluster: str
    region: str
    space: Mapping[str, Any]
    is_kept: bool = False
    code: int | None = None
    lines: Sequence[str] = ()
    waiting: str = ""

    def search_space(self) -> SearchSpace:
        """Return the search space."""
        return parse_space(Document(self.space["values"]), name=str(self.space["name"]))


@dataclass(frozen=True)
class StoredRun:
    """A submitted sweep that is found by its run.

    Attributes:
        remote: The address of the run.
        folder: The local folder for its results.
        record: How it was submitted.
    """

    remote: str
    folder: Path
    record: JobRecord


def find_run(name: str, *, new_run: Path) -> StoredRun:
    """Return the submitted sweep of a run.

    Args:
        name: The run's address, or the local folder that its results are downloaded to.
        new_run: The local folder for the results of a run that is named by its address.

    Raises:
        ConfigError: If the run is on this machine only.
        ArtifactError: If no sweep was submitted there.
    """
    remote = remote_of(name)
    try:
        record = read_record(remote)
    except ArtifactError as error:
        raise _never_submitted(name, remote) or error from None
    if (Path(name) / REMOTE_FILE).is_file():
        folder = Path(name)
    else:
        folder = new_run
    return StoredRun(remote, folder, record)


def _never_submitted(name: str, remote: str) -> ArtifactError | None:
    """Return that the launch for a run never ended, and what it left; None if nothing is known of a launch."""
    path = Path(name) / REMOTE_FILE
    if is_remote(name) or not path.is_file():
        return None
    values = read_json(path)
    if not values.get("cluster"):
        return None
    head = Head(str(values["cluster"]), str(values.get("region", "us-east-1")))
    text = f"{remote}: its launch never ended, and no sweep was submitted"
    try:
        machines = head.account.machines(head.name)
    except CloudError as error:
        return ArtifactError(f"{text}; whether its head runs is not known ({error})")
    running = next((machine for machine in machines if machine.is_head), None)
    if running is None:
        return ArtifactError(f"{text}; no head of the cluster {head.name} runs; start it again")
    return ArtifactError(
        f"{text}; the head {running.name} of the cluster {head.name} runs since "
        f"{running.launched_at:%Y-%m-%d %H:%M} UTC; 'raysent cluster down FILE' ends it"
    )


def follow_run(
    run: StoredRun,
    *,
    on_event: Listener,
    say: Say,
    cluster: Head | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> SubmittedSweep:
    """Follow a submitted sweep from its first event to its end, and download its results. Ctrl-C detaches.

    Args:
        run: The sweep.
        on_event: Called with each event of the sweep's journal, once.
        say: Called with a line when the sweep is left.
        cluster: The head of its cluster; None for the one that its record names.
        wait: Waits for a number of seconds.

    Raises:
        CloudError: If the cluster ended before the sweep did.
    """
    head = cluster or _head_of(run)
    try:
        ended = follow_stored(run.remote, on_event, head, job=run.record.job, say=say, wait=wait)
    except KeyboardInterrupt:
        say(f"the sweep continues: {how_to_continue(run.remote)}")
        return SubmittedSweep(INTERRUPTED, is_detached=True)
    head.forget_inputs(Path(run.remote).name)
    write_remote(run.folder, run.remote, cluster=run.record.cluster, region=run.record.region)
    return finished(ended, remote=run.remote, folder=run.folder)


def how_to_continue(remote: str) -> str:
    """Return the commands that show and stop the sweep of a run."""
    return f"'raysent attach {remote}' shows it, 'raysent stop {remote}' stops it"


def finished(ended: SubmittedSweep, *, remote: str, folder: Path) -> SubmittedSweep:
    """Download the results of a sweep that has ended, and return how it ended, with the local folder in its lines."""
    download(remote, folder)
    return replace(ended, lines=tuple(line.replace(remote, str(folder)) for line in ended.lines))


def follow_stored(
    remote: str,
    on_event: Listener,
    cluster: Head,
    *,
    job: str = "",
    say: Say = lambda _: None,
    wait: Callable[[float], object] = time.sleep,
) -> SubmittedSweep:
    """Follow the journal that is stored with a run until the sweep ends.

    Args:
        remote: The address of the run.
        on_event: Called with each event of the journal once, and with why trials wait for machines.
        cluster: The head of the sweep's cluster.
        job: Name of the sweep's job; empty for the one of its record.
        say: Called with a line where the sweep cannot be read, or its process does not run.
        wait: Waits for a number of seconds.

    Raises:
        CloudError: If the sweep's process or the cluster ended before the sweep did.
    """
    # What is wrong from the start is an error, what fails later is tried again.
    record = read_record(remote)
    signs = Signs(remote, cluster, job or record.job, say=say)
    journal = NewLines(f"{remote}/{JOURNAL_FILE}")
    num_events = 0
    waiting = ""
    while True:
        signs.look(has_begun=num_events > 0)
        try:
            record = read_record(remote)
            for event in journal.read():
                num_events += 1
                on_event(event)
            signs.has_read()
        except ArtifactError as error:
            signs.cannot_read(error)
        else:
            if record.waiting != waiting:
                waiting = record.waiting
                on_event({"event": "waiting", "reason": waiting})
            if record.code is not None:
                return SubmittedSweep(record.code, tuple(record.lines))
            signs.check()
        wait(POLL_S)


def stop_run(run: StoredRun, *, say: Say) -> int | None:
    """Ask a submitted sweep to stop, wait until it has stopped, and take away what it may read.

    Args:
        run: The sweep.
        say: Called with lines about the progress.

    Returns:
        Its exit code; None if it has not stopped after five minutes.
    """
    code = run.record.code
    if code is None and is_alive(run.remote) is False:
        raise CloudError(
            f"{run.remote}: no process works on it any more, so that nothing can be stopped; its head ends itself "
            f"within {LEASE_S / 60:.0f} minutes; 'raysent cluster down FILE' ends it now"
        )
    if code is None:
        ask_to_stop(run.remote)
        say("asked the sweep to stop; it saves its trials first")
    for _ in range(int(_STOP_WAIT_S / POLL_S)):
        if code is None:
            time.sleep(POLL_S)
            with contextlib.suppress(ArtifactError):  # read again at the next look
                code = read_record(run.remote).code
        if code is not None:
            _head_of(run).forget_inputs(Path(run.remote).name)
            return code
    return None


def _head_of(run: StoredRun) -> Head:
    return Head(run.record.cluster, run.record.region or "us-east-1")


def remote_of(name: str | Path) -> str:
    """Return where a cluster stores a run.

    Args:
        name: The run's address, or the local folder that its results are downloaded to.

    Raises:
        ConfigError: If the run is on this machine only.
    """
    if is_remote(name):
        address = S3 + "/".join(split_address(name))
    else:
        address = address_of(Path(name))
    if (Path(address) / REMOTE_FILE).is_file():
        return str(read_json(Path(address) / REMOTE_FILE)["remote"])
    if is_remote(address) or (Path(address) / JOB_FILE).is_file():
        return address
    raise ConfigError(
        f"{name}: is on this machine only; name a run on a cluster, or its s3:// address"
    )


def write_remote(folder: Path, remote: str, *, cluster: str, region: str) -> None:
    """Write into the local folder of a run where it is stored, and by which cluster it is worked on."""
    values = {"remote": remote, "cluster": cluster, "region": region}
    write_json(folder / REMOTE_FILE, values)


def write_record(remote: str, record: JobRecord) -> None:
    """Store a record with the run."""
    folder = _folder(remote)
    write_json(folder / JOB_FILE, without_secrets_in(asdict(record)))


def read_record(remote: str) -> JobRecord:
    """Return the record of a run.

    Raises:
        ArtifactError: If there is none, or the storage does not answer.
    """
    values = _read(remote, JOB_FILE)
    try:
        return JobRecord(**values)
    except TypeError:
        raise ArtifactError(
            f"{remote}: must be a run on a cluster; it has no {JOB_FILE} of this version"
        ) from None


def note_waiting(folder: Path, reason: str) -> None:
    """Store with a run why its trials wait for machines; what cannot be stored now is only not shown."""
    with contextlib.suppress(RaysentError):
        record = replace(read_record(address_of(folder)), waiting=reason)
        write_json(folder / JOB_FILE, asdict(record))


def ask_to_stop(remote: str) -> None:
    """Ask the process of a sweep to stop; it reads the request within seconds. A second request stops it at once."""
    write_json(_folder(remote) / STOP_FILE, {"request": uuid.uuid4().hex})


def forget_request(remote: str) -> None:
    """Remove an earlier request to stop a run."""
    remove(_folder(remote) / STOP_FILE)


def stop_request(remote: str) -> str:
    """Return the name of the last request to stop a run; empty if there is none."""
    return str(_read(remote, STOP_FILE).get("request", ""))


def _folder(remote: str) -> Path:
    """Return the local folder of a run; nothing of a run in a bucket is downloaded."""
    return working_folder(remote)


def _read(remote: str, name: str) -> dict[str, Any]:
    if not is_remote(remote):
        path = Path(remote) / name
        if not path.exists():
            return {}
        values = read_json(path)
    else:
        content = get_content(f"{remote}/{name}")
        if content is None:
            return {}
        values = without_seal(parse_json(content.data), name=f"{remote}/{name}")
    if not isinstance(values, dict):
        return {}
    return values
