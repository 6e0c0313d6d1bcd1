"""Commands on a cluster through Ray's job API, the files they need, and the download of their results."""

from __future__ import annotations

import asyncio
import glob
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any

import raysent
from raysent.errors import CloudError, ConfigError
from raysent.storage import open_folder, storage_errors
from raysent.sweeps.space import with_files

# Ray's own first lines of a job's output end with this one.
_PREFIX = "Running entrypoint for job "
_POLL_S = 1.0
# A new head answers with this message before it accepts jobs.
_NOT_YET, _READY_S = "No available agent", 120.0
# Loggers of Ray that set their own levels when they are imported.
_VERBOSE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
# The subfolder of a job's folder, and of a run's, for local files that the search space names.
SHIPPED_FOLDER = "shipped"
# Ray uploads at most 500 MiB.
MAX_SHIPPED_BYTES = 400 * 2**20


@dataclass(frozen=True)
class JobResult:
    """The result of a job.

    Attributes:
        code: Exit code of the command.
        message: Ray's message if the job could not run; empty if it ran.
    """

    code: int
    message: str = ""


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
            raise ConfigError(f"--cluster: needs 'pip install raysent[cluster]' ({error})") from None
        for module in _VERBOSE:
            logging.getLogger(module).setLevel(logging.ERROR)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            self._client: Any = JobSubmissionClient(address, headers=headers)
        except AuthenticationError:
            given = "the token of another cluster" if token else "none"
            raise CloudError(f"{address}: requires its token; given {given}") from None
        except (ConnectionError, RuntimeError, OSError) as error:
            raise CloudError(f"{address}: no job API of Ray answers ({' '.join(str(error).split())})") from None

    def submit(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> str:
        """Submit a command together with the code that is running here.

        Args:
            command: The command, run by the head in a copy of `folder`.
            folder: Folder that is copied to every machine of the job.
            environment: Environment variables of the job's processes.

        Returns:
            The name of the job.

        Raises:
            CloudError: If the cluster rejects the job.
        """
        runtime_env = {
            "working_dir": str(folder),
            "py_modules": [str(Path(raysent.__file__).parent)],
            "env_vars": dict(environment),
            "excludes": ["__pycache__"],
        }
        until = time.monotonic() + _READY_S
        while True:
            try:
                return str(self._client.submit_job(entrypoint=join(command), runtime_env=runtime_env))
            except (RuntimeError, ConnectionError, OSError, ValueError) as error:
                if _NOT_YET not in str(error) or time.monotonic() > until:
                    raise CloudError(f"the job was rejected: {' '.join(str(error).split())[:300]}") from None
                time.sleep(_POLL_S)

    def follow(self, name: str, on_line: Callable[[str], object]) -> JobResult:
        """Call `on_line` with every line of a job's output, until it ends.

        Raises:
            CloudError: If the cluster no longer answers.
        """
        try:
            asyncio.run(self._tail(name, _Lines(on_line)))
            while True:
                info = self._client.get_job_info(name)
                if info.status.is_terminal():
                    code = info.driver_exit_code
                    return JobResult(code, "") if code is not None else JobResult(1, _last_line(info.message))
                time.sleep(_POLL_S)
        except (RuntimeError, ConnectionError, OSError) as error:
            raise CloudError(f"{name}: the cluster no longer answers ({' '.join(str(error).split())[:300]})") from None

    def stop(self, name: str) -> None:
        """Ask a job to stop, and wait until it has stopped, at most 20 seconds.

        Raises:
            CloudError: If the cluster no longer answers.
        """
        try:
            self._client.stop_job(name)
            for _ in range(20):
                if self._client.get_job_status(name).is_terminal():
                    return
                time.sleep(_POLL_S)
        except (RuntimeError, ConnectionError, OSError) as error:
            raise CloudError(f"{name}: could not be stopped ({' '.join(str(error).split())[:300]})") from None

    async def _tail(self, name: str, lines: _Lines) -> None:
        async for text in self._client.tail_job_logs(name):
            lines.take(text)
        lines.end()


class _Lines:
    """Splits a stream of text into lines, without Ray's own lines before the command starts."""

    def __init__(self, on_line: Callable[[str], object]) -> None:
        self._on_line = on_line
        self._rest = ""
        self._has_started = False

    def take(self, text: str) -> None:
        """Take the next piece of text; a line may be split over several."""
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            if self._has_started:
                self._on_line(line)
            elif line.startswith(_PREFIX):
                self._has_started = True

    def end(self) -> None:
        """Pass on a last line without a line break."""
        if self._rest:
            self.take("\n")


def ship(values: Any, folder: Path) -> Any:
    """Copy the local files that a space's values name into a folder, and return the values with the copies' paths.

    Args:
        values: Plain values. A text with a dot or a slash that names an existing file or folder is a local file.
        folder: The folder that is uploaded to the cluster.

    Raises:
        ConfigError: If the files are larger than Ray uploads.
    """
    shipped = with_files(values, lambda text, found: _copied(text, found, folder))
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if num_bytes > MAX_SHIPPED_BYTES:
        raise ConfigError(
            f"--cluster: local files must be at most {MAX_SHIPPED_BYTES / 2**20:.0f} MiB together; given "
            f"{num_bytes / 2**20:.0f}; put them on S3 as s3://…"
        )
    return shipped


def _copied(text: str, found: list[Path], folder: Path) -> str | list[str]:
    """Copy the files of a value into a folder; return the path of the copy, or of all copies for a glob."""
    copies = []
    for source in found:
        # A number before the name keeps files of equal names apart.
        shipped = folder / SHIPPED_FOLDER
        target = shipped / str(len(list(shipped.glob("*")))) / source.resolve().name
        target.parent.mkdir(parents=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
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
            shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", SHIPPED_FOLDER))


def _last_line(text: str | None) -> str:
    """Return the last line of a message of Ray."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:300] if lines else "it ended without a message"
