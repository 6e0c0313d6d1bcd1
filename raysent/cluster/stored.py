"""A submitted sweep as its stored run describes it: how it was submitted, how it ended, its events, a request to stop.

    job.json   written by the process that submits the sweep; exit code and printed lines are added at its end
    stop.json  written by `raysent stop`, read by the sweep's process on the head

Both are in the run's folder, in a bucket or in a folder that the cluster shares with this machine. So a sweep can be
shown and stopped with access to the storage alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysent.config import Document
from raysent.errors import ArtifactError, ConfigError
from raysent.reading import parse_json
from raysent.storage import address_of, is_remote, open_folder, read_json, remove, write_json
from raysent.storage.layout import JOB_FILE, JOURNAL_FILE, REMOTE_FILE, STOP_FILE
from raysent.storage.object_store import get_content
from raysent.sweeps import Event
from raysent.sweeps.journal import read_events
from raysent.sweeps.space import SearchSpace, parse_space

# Exit code of a sweep that was interrupted.
INTERRUPTED = 130


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
        lines: The last lines that it printed, without events.
    """

    job: str
    cluster: str
    region: str
    space: Mapping[str, Any]
    is_kept: bool = False
    code: int | None = None
    lines: Sequence[str] = ()

    def search_space(self) -> SearchSpace:
        """Return the search space."""
        return parse_space(Document(self.space["values"]), name=str(self.space["name"]))


def remote_of(name: str | Path) -> str:
    """Return where a cluster stores a run.

    Args:
        name: The run's address, or the local folder that its results are downloaded to.

    Raises:
        ConfigError: If the run is on this machine only.
    """
    address = str(name) if is_remote(name) else address_of(Path(name))
    if (Path(address) / REMOTE_FILE).is_file():
        return str(read_json(Path(address) / REMOTE_FILE)["remote"])
    if is_remote(address) or (Path(address) / JOB_FILE).is_file():
        return address.rstrip("/")
    raise ConfigError(f"{name}: is on this machine only; name a run of --cluster, or its s3:// address")


def write_record(remote: str, record: JobRecord) -> None:
    """Store a record with the run, and remove an earlier request to stop."""
    folder = _folder(remote)
    if record.code is None:
        remove(folder / STOP_FILE)
    write_json(folder / JOB_FILE, asdict(record))


def read_record(remote: str) -> JobRecord:
    """Return the record of a run.

    Raises:
        ArtifactError: If there is none, or the storage does not answer.
    """
    values = _read(remote, JOB_FILE)
    try:
        return JobRecord(**values)
    except TypeError:
        raise ArtifactError(f"{remote}: must be a run of --cluster; it has no {JOB_FILE} of this version") from None


def ask_to_stop(remote: str) -> None:
    """Ask the process of a sweep to stop; it reads the request within seconds. A second request stops it at once."""
    write_json(_folder(remote) / STOP_FILE, {"request": uuid.uuid4().hex})


def stop_request(remote: str) -> str:
    """Return the name of the last request to stop a run; empty if there is none."""
    return str(_read(remote, STOP_FILE).get("request", ""))


def stored_events(remote: str) -> list[Event]:
    """Return the events of a run's journal so far."""
    return list(read_events(_folder(remote)))


def _folder(remote: str) -> Path:
    """Return the local folder of a run; of a run in a bucket, only the journal is downloaded."""
    return open_folder(f"{remote}/{JOURNAL_FILE}").parent


def _read(remote: str, name: str) -> dict[str, Any]:
    if not is_remote(remote):
        path = Path(remote) / name
        values = read_json(path) if path.exists() else {}
    else:
        found = get_content(f"{remote}/{name}")
        values = {} if found is None else parse_json(found.data)
    return values if isinstance(values, dict) else {}
