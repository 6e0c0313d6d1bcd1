"""The raysent that is running, packed as a wheel, so that the cluster runs the same bytes, published or not.

Ray's own launcher, driven: `ray up`, `ray down`, and a tunnel to the head's dashboard.

What it is given (the filled-in file, the token, the wheel) lies in a folder of the user's alone.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distribution, version
from pathlib import Path

import platformdirs

import raysent
from raysent.cluster.account import Account
from raysent.cluster.autoscaling import format_types
from raysent.cluster.cluster_file import TIME_FORM, ClusterFile, self_destruct
from raysent.config import SHIPPED, shipped_path
from raysent.errors import ArtifactError, CloudError
from raysent.storage import storage_errors, write_json

# Zip's own first day, so that the same code gives the same bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: raysent\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\nraysent = raysent.cli:main\n"


def wheel_name() -> str:
    """Return the file name of the wheel."""
    return f"raysent-{raysent.__version__}-py3-none-any.whl"


def write_wheel(folder: Path) -> Path:
    """Pack the package that is running and the requirements that it was installed with.

    Args:
        folder: Where the wheel is put.
    """
    files = _files_below(Path(raysent.__file__).parent, "raysent")
    for name in SHIPPED:
        files |= _files_below(shipped_path(name), f"raysent/{name}")
    about = f"raysent-{raysent.__version__}.dist-info"
    files |= {
        f"{about}/METADATA": _metadata().encode(),
        f"{about}/WHEEL": _WHEEL.encode(),
        f"{about}/entry_points.txt": _ENTRY_POINTS.encode(),
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    path = folder / wheel_name()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _WHEN), data, zipfile.ZIP_DEFLATED)
    return path


def _files_below(root: Path, name: str) -> dict[str, bytes]:
    """Return the content of a file, or of all files of a folder, by their names in the wheel."""
    if root.is_file():
        return {name: root.read_bytes()}
    return {
        f"{name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _metadata() -> str:
    """Return the metadata of the installed package; the name of their file depends on the installer."""
    installed = distribution("raysent")
    found = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    if found is None:
        raise ArtifactError("raysent: its metadata are not installed; install it with pip, or 'make setup'")
    if installed.version != raysent.__version__:
        raise ArtifactError(
            f"raysent: its metadata must be those of {raysent.__version__}; given {installed.version}; install it again"
        )
    return found


def _digest(data: bytes) -> str:
    """Return a digest in the form that a wheel's RECORD has."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


# A command of Ray's, what it says line by line -> its exit code.
Run = Callable[[Sequence[str], Callable[[str], object]], int]

DASHBOARD_PORT = 8265
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_TUNNEL_S = 60.0
# What sweeps may be called in a tag.
_NOT_IN_TAGS = re.compile(r"[^\w.:/=+@-]+")


class Launcher:
    """One cluster's launcher."""

    def __init__(self, cluster: ClusterFile, *, account: Account | None = None, run: Run | None = None) -> None:
        """Start nothing yet.

        Args:
            cluster: What is launched.
            account: Where; None for the one that boto3's credentials name.
            run: What runs a command of Ray's; None for a process of its own.
        """
        self.cluster = cluster
        self.account = account or Account(cluster.region)
        self.folder = clusters_folder() / cluster.name
        self._run = run or run_process

    @property
    def file(self) -> Path:
        """The filled-in file that Ray's launcher takes."""
        return self.folder / "cluster.json"

    @property
    def token_file(self) -> Path:
        """The file that holds the cluster's token, mode 0600."""
        return self.folder / "auth_token"

    def up(self, *, sweep: str = "", on_line: Callable[[str], object] = lambda _: None) -> None:
        """Bring the cluster up; one that stands is brought up to date.

        Args:
            sweep: What it is started for, for its tags.
            on_line: Hears what Ray's launcher says, line by line.

        Raises:
            RaysentError: If AWS or Ray's launcher refuses.
        """
        values = {**self._facts(sweep), **self.account.prepare(self.cluster)}
        private(self.folder)
        make_token(self.token_file)
        wheels = self.folder / "wheel"
        wheels.mkdir(exist_ok=True)
        write_wheel(wheels)
        write_json(self.file, self.cluster.render(values))
        self.file.chmod(0o600)
        self._ray(["up", "--yes", "--no-config-cache", str(self.file)], on_line)

    def down(self, *, on_line: Callable[[str], object] = lambda _: None) -> None:
        """Take the cluster down, and end what Ray's launcher leaves.

        Raises:
            RaysentError: If a machine could not be ended; then it ends itself at its time.
        """
        try:
            if self.file.exists():
                self._ray(["down", "--yes", str(self.file)], on_line)
        finally:
            # Its autoscaler may have asked for machines that Ray's launcher does not know of yet.
            self.account.terminate(self.account.machines(self.cluster.name))

    @contextlib.contextmanager
    def tunnel(self) -> Iterator[str]:
        """Yield the address of the head's dashboard and job API, through SSH, on this machine's loopback.

        Raises:
            CloudError: If it cannot be reached.
        """
        port = _free_port()
        arguments = [*_RAY, "dashboard", "--port", str(port), "--remote-port", str(DASHBOARD_PORT), str(self.file)]
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # SSH is a child of it
            process.wait()

    def _wait_for(self, port: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until a tunnel answers."""
        until = time.monotonic() + _TUNNEL_S
        while time.monotonic() < until and process.poll() is None:
            if answers("127.0.0.1", port, timeout_s=1.0):
                return
            time.sleep(0.2)
        see = f"see 'raysent cluster doctor {self.cluster.path}'"
        raise CloudError(f"{self.cluster.name}: the head cannot be reached over SSH; {see}")

    def _facts(self, sweep: str) -> Mapping[str, str]:
        """Return what stands for the names in the file that AWS need not be asked about."""
        expires = self.cluster.expires_at(datetime.datetime.now(datetime.UTC))
        return {
            "cluster": self.cluster.name,
            "sweep": _NOT_IN_TAGS.sub("-", sweep)[:200],
            "expires": expires.strftime(TIME_FORM),
            "self_destruct": self_destruct(expires),
            "token_file": str(self.token_file),
            "wheel_folder": str(self.folder / "wheel"),
            "wheel": wheel_name(),
            "ray_version": version("ray"),
            "node_types": format_types(self.cluster.autoscaling),
        }

    def _ray(self, arguments: Sequence[str], on_line: Callable[[str], object]) -> None:
        """Run a command of Ray's.

        Raises:
            CloudError: If it fails, with the last that it said.
        """
        last = [""]

        def heard(line: str) -> None:
            if line.strip():
                last[0] = " ".join(line.split())
            on_line(line)

        code = self._run([*_RAY, *arguments], heard)
        if code:
            raise CloudError(f"{self.cluster.name}: 'ray {arguments[0]}' ended with exit code {code}: {last[0][:300]}")


def clusters_folder() -> Path:
    """Return where clusters' tokens and filled-in files are kept."""
    return platformdirs.user_data_path("raysent") / "clusters"


def private(folder: Path) -> None:
    """Make a folder that is the user's alone."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def make_token(path: Path) -> None:
    """Write a new token where there is none; nobody else can read it at any moment."""
    with storage_errors(path), contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(secrets.token_hex(32))


def read_token(path: Path) -> str:
    """Return a token.

    Raises:
        ArtifactError: If there is none, or others can read it.
    """
    try:
        mode, token = path.stat().st_mode & 0o777, path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise ArtifactError(
            f"{path}: there is no token to read; bring the cluster up with 'raysent cluster up'"
        ) from None
    if mode & 0o077:
        raise ArtifactError(f"{path}: must be its owner's alone (mode 600); given {mode:o}; 'chmod 600 {path}'")
    if not token:
        raise ArtifactError(f"{path}: is empty; remove it, and bring the cluster up again")
    return token


def answers(host: str, port: int, *, timeout_s: float = 3.0) -> bool:
    """Whether anything takes a connection at a port."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def run_process(command: Sequence[str], on_line: Callable[[str], object]) -> int:
    """Run a command in a process of its own, line by line; one that is interrupted is ended."""
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=quiet,
        errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            for line in process.stdout or ():
                on_line(line.rstrip("\n"))
        except BaseException:
            process.terminate()
            raise
    return process.returncode


def _free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
