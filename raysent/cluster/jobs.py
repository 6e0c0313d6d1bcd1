"""Commands submitted to a cluster through Ray's job API, followed line by line."""

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
_BEGINNING = "Running entrypoint for job "
_POLL_S = 1.0
# A head that has only just come answers before it takes jobs, and says so.
_NOT_YET, _READY_S = "No available agent", 120.0
# Of Ray's, which set their own levels when they are imported.
_TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
# Of a job's folder, and of a run's: local files that its space names.
SHIPPED_FOLDER = "shipped"
# Ray takes at most 500 MiB by this way.
MAX_SHIPPED_BYTES = 400 * 2**20


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        code: The command's exit code.
        message: What Ray says of a job that could not run; empty for one that did.
    """

    code: int
    message: str = ""


class Jobs:
    """The job API of one cluster."""

    def __init__(self, address: str, *, token: str = "") -> None:
        """Connect.

        Args:
            address: Of the dashboard, as in http://127.0.0.1:8265.
            token: The cluster's token; empty for one without.

        Raises:
            RaysentError: If nothing answers there, the token is refused, or the extra `cluster` is not installed.
        """
        try:
            from ray.exceptions import AuthenticationError  # noqa: PLC0415 - late: what needs the extra is named
            from ray.job_submission import JobSubmissionClient  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(f"--cluster: needs what 'pip install raysent[cluster]' installs ({error})") from None
        for module in _TALKATIVE:
            logging.getLogger(module).setLevel(logging.ERROR)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            self._client: Any = JobSubmissionClient(address, headers=headers)
        except AuthenticationError:
            given = "another cluster's token was given" if token else "none was given"
            raise CloudError(f"{address}: asks for its token; {given}") from None
        except (ConnectionError, RuntimeError, OSError) as error:
            raise CloudError(f"{address}: no job API of Ray answers there ({' '.join(str(error).split())})") from None

    def submit(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> str:
        """Submit a command; the code that is running here goes with it.

        Args:
            command: What the head runs, in a copy of the folder.
            folder: Goes to every machine that works for the job.
            environment: Variables of the job's processes.

        Returns:
            The job's name.

        Raises:
            CloudError: If it is refused.
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
                    raise CloudError(f"the job was refused: {' '.join(str(error).split())[:300]}") from None
                time.sleep(_POLL_S)

    def follow(self, name: str, on_line: Callable[[str], object]) -> JobResult:
        """Pass on every line that a job says, until it ends.

        Raises:
            CloudError: If the cluster no longer answers.
        """
        try:
            asyncio.run(self._tail(name, _Lines(on_line)))
            while True:
                told = self._client.get_job_info(name)
                if told.status.is_terminal():
                    code = told.driver_exit_code
                    return JobResult(code, "") if code is not None else JobResult(1, _last_line(told.message))
                time.sleep(_POLL_S)
        except (RuntimeError, ConnectionError, OSError) as error:
            raise CloudError(f"{name}: the cluster no longer answers ({' '.join(str(error).split())[:300]})") from None

    def stop(self, name: str) -> None:
        """Ask a job to end; it is given a moment to end by itself.

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
    """Cuts a stream of text into lines, and leaves out what Ray says before the command itself begins."""

    def __init__(self, on_line: Callable[[str], object]) -> None:
        self._on_line = on_line
        self._rest = ""
        self._has_begun = False

    def take(self, text: str) -> None:
        """Take the next piece; a line may come in several."""
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            if self._has_begun:
                self._on_line(line)
            elif line.startswith(_BEGINNING):
                self._has_begun = True

    def end(self) -> None:
        """Pass on a last line that nothing ended."""
        if self._rest:
            self.take("\n")


def ship(values: Any, folder: Path) -> Any:
    """Copy the local files that a space's values name into a folder, and name the copies instead.

    Args:
        values: Plain values; a text with a dot or a slash in it that names a file or a folder here counts.
        folder: What goes to the cluster.

    Raises:
        ConfigError: If it is more than Ray takes.
    """
    shipped = with_files(values, lambda text, found: _copied(text, found, folder))
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if num_bytes > MAX_SHIPPED_BYTES:
        raise ConfigError(
            f"--cluster: local files must be at most {MAX_SHIPPED_BYTES / 2**20:.0f} MiB together; given "
            f"{num_bytes / 2**20:.0f}; put them on S3 and name them s3://…"
        )
    return shipped


def _copied(text: str, found: list[Path], folder: Path) -> str | list[str]:
    """Copy what a value names into a folder; returns the copies' names, of a glob those of all that it matches."""
    copies = []
    for source in found:
        # A number before the name: two files of one name stay apart.
        shipped = folder / SHIPPED_FOLDER
        target = shipped / str(len(list(shipped.glob("*")))) / source.resolve().name
        target.parent.mkdir(parents=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
        copies.append(str(target.relative_to(folder)))
    return copies if glob.has_magic(text) else copies[0]


def download(remote: str, folder: Path) -> None:
    """Copy a run from where the cluster keeps it.

    Args:
        remote: `s3://…`, or a folder that the cluster shares with this machine.
        folder: The run folder here; what is there already is replaced.

    Raises:
        RaysentError: If it cannot be read, or nothing can be written here.
    """
    source = open_folder(remote, with_checkpoints=True)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", SHIPPED_FOLDER))


def _last_line(text: str | None) -> str:
    """Return the last line of what Ray says."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:300] if lines else "it ended without a word"
