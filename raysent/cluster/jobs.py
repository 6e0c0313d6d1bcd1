"""Commands on a cluster through Ray's job API, the files they need, and the download of their results."""

from __future__ import annotations

import contextlib
import glob
import logging
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any

import raysent
from raysent.errors import CloudError, ConfigError
from raysent.reading import parse_json
from raysent.storage import open_folder, storage_errors
from raysent.sweeps.space import named_files, with_files

_POLL_S = 1.0
# A new head answers with this message before it accepts jobs.
_NOT_YET = "No available agent"
_READY_S = 120.0
# The entry of a job's metadata with the address of its run.
_RUN_KEY = "raysent-run"
# Ray raises these for every failed request.
_FAILURES = (RuntimeError, OSError, ValueError)
# Modules of Ray whose loggers say what they pack and send.
_VERBOSE = (".dashboard_sdk", ".job.sdk", ".packaging")
# The subfolder of a job's folder, and of a run's, for local files that the search space names.
SHIPPED_FOLDER = "shipped"
# Ray uploads at most 500 MiB.
MAX_SHIPPED_BYTES = 400 * 2**20


@dataclass(frozen=True)
class SubmittedSweep:
    """How a submitted sweep ended, or how far it was followed.

    Attributes:
        code: The sweep's exit code; 130 if it was interrupted.
        lines: What it printed; the remote folder is replaced by the local one.
        message: Why the job could not run; empty if it did.
        is_detached: Whether it continues on the cluster.
        address: Its run folder in a bucket, which `attach` and `stop` take.
        folder: The local folder of its results.
    """

    code: int
    lines: tuple[str, ...] = ()
    message: str = ""
    is_detached: bool = False
    address: str = ""
    folder: Path = Path()

    @property
    def values(self) -> dict[str, Any] | None:
        """The JSON object that it printed, if it printed one."""
        match = re.search(r"^\{$.*?^\}$", "\n".join(self.lines), re.MULTILINE | re.DOTALL)
        if match is None:
            return None
        printed: dict[str, Any] = parse_json(match[0])
        return printed


class ConnectionLostError(CloudError):
    """The cluster does not answer at the moment; its jobs continue."""


class Jobs:
    """The job API of one cluster."""

    def __init__(self, address: str, *, token: str = "") -> None:
        """Connect.

        Args:
            address: Address of the dashboard, as in http://127.0.0.1:8265.
            token: The cluster's token; empty for a cluster without.

        Raises:
            RaysentError: If nothing answers, the token is rejected, or the extra `cluster` is not installed.
        """
        try:
            from ray.exceptions import AuthenticationError  # noqa: PLC0415 - needs the extra `cluster`
            from ray.job_submission import JobSubmissionClient  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(f"cluster: needs 'pip install raysent[cluster]' ({error})") from None
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("ray.") and name.endswith(_VERBOSE):
                logging.getLogger(name).setLevel(logging.ERROR)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            self._client: Any = JobSubmissionClient(address, headers=headers)
        except AuthenticationError:
            token_kind = "the token of another cluster" if token else "none"
            raise CloudError(f"{address}: requires its token; given {token_kind}") from None
        except (ConnectionError, RuntimeError, OSError) as error:
            raise ConnectionLostError(
                f"{address}: no job API of Ray answers ({_one_line(error)})"
            ) from None

    def submit(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        name: str = "",
        run: str = "",
    ) -> str:
        """Submit a command together with the code that is running here.

        Args:
            command: The command, run by the head in a copy of `folder`.
            folder: Folder that is copied to every machine of the job.
            environment: Environment variables of the job's processes.
            name: Name of the job, which the cluster accepts once; empty for a new one.
            run: Address of the run that the job works on.

        Returns:
            The name of the job.

        Raises:
            ConnectionLostError: If the connection ends; the job may have been submitted.
            CloudError: If the cluster rejects the job, or has one of this name.
        """
        runtime_env = {
            "working_dir": str(folder),
            "py_modules": [str(Path(raysent.__file__).parent)],
            "env_vars": dict(environment),
            "excludes": ["__pycache__"],
        }
        job_options: dict[str, Any] = {}
        if name:
            job_options = {"submission_id": name, "metadata": {_RUN_KEY: run}}
        until = time.monotonic() + _READY_S
        while True:
            try:
                return str(
                    self._client.submit_job(
                        entrypoint=join(command), runtime_env=runtime_env, **job_options
                    )
                )
            except _FAILURES as error:
                if _NOT_YET not in str(error) or time.monotonic() > until:
                    kind = ConnectionLostError if isinstance(error, OSError) else CloudError
                    raise kind(f"the job was rejected: {_one_line(error)}") from None
                time.sleep(_POLL_S)

    def of_run(self, run: str) -> dict[str, bool]:
        """Return the names of the jobs that work or worked on a run, and whether each has ended.

        Raises:
            ConnectionLostError: If the cluster does not answer.
        """
        with _answering("the list of jobs"):
            jobs = [
                job for job in self._client.list_jobs() if (job.metadata or {}).get(_RUN_KEY) == run
            ]
        return {str(job.submission_id): job.status.is_terminal() for job in jobs}

    def other_runs(self, run: str) -> list[str]:
        """Return the addresses of the other runs that jobs work on.

        Raises:
            ConnectionLostError: If the cluster does not answer.
        """
        with _answering("the list of jobs"):
            jobs = [job for job in self._client.list_jobs() if not job.status.is_terminal()]
        return sorted({(job.metadata or {}).get(_RUN_KEY, "") for job in jobs} - {"", run})

    def failure_to_start(self, name: str) -> str | None:
        """Wait until a job's command runs, and return why it does not; None if it does.

        A job that has ended is one whose command does not run: the caller knows whether its work was done.

        Raises:
            ConnectionLostError: If the cluster does not answer.
        """
        while True:
            with _answering(name):
                status = self._client.get_job_info(name).status
            if status.is_terminal():
                return self.why_ended(name)
            if status == "RUNNING":
                return None
            time.sleep(_POLL_S)

    def why_ended(self, name: str) -> str:
        """Return why a job has ended: its exit code, and the last line of its log or of Ray's message.

        Raises:
            ConnectionLostError: If the cluster does not answer.
        """
        with _answering(name):
            info = self._client.get_job_info(name)
        if info.driver_exit_code is None:
            return _last_line(info.message)
        log = ""
        with contextlib.suppress(*_FAILURES):
            log = self._client.get_job_logs(name)
        line = _last_line(log or info.message)
        return f"its command ended with exit code {info.driver_exit_code}: {line}"


@contextlib.contextmanager
def _answering(what: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise ConnectionLostError(
            f"{what}: the cluster does not answer ({_one_line(error)})"
        ) from None


def ship(values: Any, folder: Path) -> Any:
    """Copy the local files that a space's values name into a folder, and return the values with the copies' paths.

    Args:
        values: Plain values. A text with a dot or a slash, or of a setting that is a path, that names an existing file
            or folder is a local file; so is the table of a task with settings.
        folder: The folder that is uploaded to the cluster.
    """
    return with_files(values, lambda text, files: _copied(text, files, folder))


def check_shipped_size(values: Any) -> None:
    """Check that the local files that values name are not too many to be uploaded.

    Raises:
        ConfigError: If they are larger than Ray uploads.
    """
    files: list[Path] = []
    for path in named_files(values):
        if path.is_dir():
            files += path.rglob("*")
        else:
            files.append(path)
    num_bytes = sum(file.stat().st_size for file in files if file.is_file())
    if num_bytes > MAX_SHIPPED_BYTES:
        raise ConfigError(
            f"cluster: local files must be at most {MAX_SHIPPED_BYTES / 2**20:.0f} MiB together; given "
            f"{num_bytes / 2**20:.0f}; put them on S3 as s3://…"
        )


def _copied(text: str, files: list[Path], folder: Path) -> str | list[str]:
    copies = []
    for source in files:
        # A number before the name keeps files of equal names apart.
        shipped = folder / SHIPPED_FOLDER
        target = shipped / str(len(list(shipped.glob("*")))) / source.resolve().name
        target.parent.mkdir(parents=True)
        if source.is_dir():  # Ray leaves out what these files name
            shutil.copytree(
                source, target, ignore=shutil.ignore_patterns(".gitignore", ".rayignore")
            )
        else:
            shutil.copy2(source, target)
        copies.append(str(target.relative_to(folder)))
    return copies if glob.has_magic(text) else copies[0]


def download(remote: str, folder: Path) -> None:
    """Download a run from the cluster's storage.

    Args:
        remote: `s3://…`, or a folder that the cluster shares with this machine.
        folder: The run folder here; existing files are replaced.

    Raises:
        RaysentError: If the run cannot be read, or the folder cannot be written.
    """
    source = open_folder(remote, with_checkpoints=True)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(
                source,
                folder,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns(".*", SHIPPED_FOLDER),
            )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _last_line(text: str | None) -> str:
    lines = [line for line in (text or "").splitlines() if line.strip()]
    if not lines:
        return "it ended without a message"
    return " ".join(lines[-1].split())[:300]
