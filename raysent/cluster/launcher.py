"""Ray's launcher: `ray up`, `ray down`, a tunnel to the head's dashboard, and the wheel that the machines install.

The inputs of the launcher (the rendered file, the token, the wheel) are in a folder that only the user can read. The
wheel holds the raysent that is running here, so the cluster runs the same code, whether it is published or not.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import hashlib
import math
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
from importlib.metadata import distribution, distributions, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from packaging.utils import canonicalize_name
from packaging.version import Version

import raysent
from raysent.cluster.account import Account, Machine, check_inputs, check_ready
from raysent.cluster.cluster_file import FLEET_FOLDER, LEASE_FILE, ClusterFile, self_destruct
from raysent.cluster.gate import tag_of
from raysent.cluster.jobs import ConnectionLostError
from raysent.config import SHIPPED, shipped_path
from raysent.errors import ArtifactError, CloudError
from raysent.platforms import user_folder
from raysent.storage import read_json, storage_errors, write_json

# A command of Ray, a callback for each line of its output -> its exit code.
Run = Callable[[Sequence[str], Callable[[str], object]], int]

_DASHBOARD_PORT = 8265
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_TUNNEL_S = 60.0
_LOCK_FILE = "up.lock"
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Ray's launcher numbers what it does on a machine: [6/7] Running setup commands.
_STEP = re.compile(r"\[(\d+)/(\d+)\]\s*([A-Z][^.(\[]*)")
_STAGES = {
    "Launched a new head node": "the head is launched; waiting for it",
    "Ray runtime started": "Ray runs on the head",
}
# The clocks of this computer and of AWS may differ by this much.
_LAUNCH_LAG_S = 120.0
# The first day of zip files: the same code then gives the same bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: raysent\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class Head:
    """The head of a cluster, as every computer reaches it that has the cluster's token and rendered file.

    Attributes:
        name: Name of the cluster.
        account: The AWS account.
        folder: The folder of this computer for the cluster.
        trouble: Why AWS did not say at the last look whether the head runs; empty if it did.
    """

    def __init__(
        self, name: str, region: str, *, account: Account | None = None, run: Run | None = None
    ) -> None:
        """Prepare; no request is sent yet.

        Args:
            name: Name of the cluster.
            region: Its AWS region.
            account: The AWS account; None for the account of boto3's credentials.
            run: Runs a command of Ray; None to run it in a process.
        """
        self.name = name
        self.account = account or Account(region)
        self.folder = user_folder("data") / "clusters" / name
        self.trouble = ""
        self._run = run or run_process

    @property
    def file(self) -> Path:
        """The rendered cluster file for Ray's launcher."""
        return self.folder / "cluster.json"

    @property
    def token_file(self) -> Path:
        """The file with the cluster's token, mode 0600."""
        return self.folder / "auth_token"

    @property
    def _own_file(self) -> Path:
        """The file with the id of the head that was launched from here; missing if it is unknown."""
        return self.folder / "head"

    @property
    def _launching_file(self) -> Path:
        """The file that is here from the moment a head is asked for until it is launched."""
        return self.folder / "launching.json"

    def stranger(self, head: Machine) -> str:
        """Return why a head that runs is not this computer's to use; empty if it was launched from here."""
        own_file = self._own_file
        if self.file.exists() and (not own_file.exists() or own_file.read_text() == head.name):
            return ""
        return (
            f"cluster_name: '{self.name}' is taken: its head {head.name} is running since "
            f"{head.launched_at:%Y-%m-%d %H:%M} UTC and was not launched from here; choose another name"
        )

    def unfinished(self, head: Machine) -> str:
        """Return that a head was left by a launch from here that never ended; empty if its launch ended."""
        if not self._was_left(head):
            return ""
        with contextlib.suppress(Timeout), FileLock(self.folder / _LOCK_FILE, timeout=0):
            return (
                f"its head {head.name} was left by a launch of {head.launched_at:%Y-%m-%d %H:%M} UTC "
                "that never ended; the next launch finishes it, and 'raysent cluster down FILE' ends it"
            )
        return f"its head {head.name} is being launched by another command"

    def _was_left(self, head: Machine) -> bool:
        """Return whether a head was asked for here by a command that has not seen it launched."""
        if self._own_file.exists() or not self._launching_file.exists():
            return False
        since = math.inf
        with contextlib.suppress(ArtifactError, KeyError, TypeError, ValueError):
            since = float(read_json(self._launching_file)["since"])
        return head.launched + _LAUNCH_LAG_S >= since

    def is_running(self) -> bool | None:
        """Return whether the cluster has a head; None if it has no name, or AWS does not answer: `trouble` says why."""
        if not self.name:
            return None
        try:
            is_running = any(machine.is_head for machine in self.account.machines(self.name))
        except CloudError as error:
            self.trouble = str(error)
            return None
        self.trouble = ""
        return is_running

    def keep(self, seconds: float) -> tuple[datetime.datetime, datetime.datetime | None]:
        """Renew the head's lease.

        Args:
            seconds: The head terminates after this time, unless a sweep or another call renews the lease.

        Returns:
            When the lease ends, and when the head's time to live ends if that is known.

        Raises:
            CloudError: If no head is running, or it cannot be reached from this computer.
        """
        head = next(
            (machine for machine in self.account.machines(self.name) if machine.is_head), None
        )
        if head is None:
            raise CloudError(f"{self.name}: no head is running; 'raysent cluster up' launches one")
        if not (self.file.exists() and self.token_file.exists()):
            raise CloudError(
                f"{self.name}: its head was not launched from this computer, which has no key for SSH"
            )
        lease = f"{FLEET_FOLDER}/{LEASE_FILE}"
        command = f"mkdir -p {FLEET_FOLDER} && echo {int(seconds)} > {lease}.new && mv {lease}.new {lease}"
        self._ray(["exec", str(self.file), command], lambda _: None)
        return datetime.datetime.now(datetime.UTC) + datetime.timedelta(
            seconds=seconds
        ), head.expires

    def down(self, *, on_line: Callable[[str], object] = lambda _: None) -> None:
        """Terminate the cluster, including machines that Ray's launcher leaves behind.

        Args:
            on_line: Called with each line of Ray's launcher.

        Raises:
            RaysentError: If a machine could not be terminated; it then terminates itself after its time to live.
        """
        try:
            if self.file.exists():
                self._ray(["down", "--yes", str(self.file)], on_line)
        finally:
            # The autoscaler may have requested machines that Ray's launcher does not know yet.
            self.account.terminate(self.account.machines(self.name))
        self.forget_inputs()

    def forget_inputs(self, sweep: str | None = None) -> None:
        """Take away what a sweep that has ended may read, or what all sweeps may; if AWS fails, it stays."""
        if self.name:
            with contextlib.suppress(CloudError):
                self.account.remove_inputs(self.name, sweep)

    @contextlib.contextmanager
    def tunnel(self) -> Iterator[str]:
        """Open an SSH tunnel and yield the local address of the head's dashboard and job API.

        Raises:
            ConnectionLostError: If the head cannot be reached.
        """
        port = _free_port()
        arguments = [
            *_RAY,
            "dashboard",
            "--port",
            str(port),
            "--remote-port",
            str(_DASHBOARD_PORT),
            str(self.file),
        ]
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
        until = time.monotonic() + _TUNNEL_S
        while time.monotonic() < until and process.poll() is None:
            if answers("127.0.0.1", port, timeout_s=1.0):
                return
            time.sleep(0.2)
        raise ConnectionLostError(
            f"{self.name}: the head cannot be reached over SSH; if this computer's public address has changed, "
            "'raysent cluster up FILE' allows the new one"
        )

    @property
    def log(self) -> Path:
        """The file with what Ray's launcher prints."""
        return self.folder / "ray.log"

    def _ray(self, arguments: Sequence[str], on_line: Callable[[str], object]) -> None:
        """Run a command of Ray. Its output goes to `log`; what it does is a line for each stage.

        Raises:
            CloudError: If it fails, with the last line of its output.
        """
        last = ""
        private(self.folder)
        with storage_errors(self.log), self.log.open("a", encoding="utf-8") as stream:
            stream.write(f"\n$ ray {' '.join(arguments)}\n")

            def receive(line: str) -> None:
                nonlocal last
                plain = _COLOURS.sub("", line)
                stream.write(f"{plain}\n")
                stream.flush()
                if plain.strip():
                    last = " ".join(plain.split())
                stage = stage_of(plain)
                if stage:
                    on_line(f"{self.name}: {stage}")

            if arguments[0] == "up":
                on_line(f"{self.name}: launching the head; Ray's log: {self.log}")
            code = self._run([*_RAY, *arguments], receive)
        if code:
            raise CloudError(
                f"{self.name}: 'ray {arguments[0]}' ended with exit code {code}: {last[:300]}; its log: {self.log}"
            )


class Launcher(Head):
    """The launcher of one cluster file.

    Attributes:
        cluster: The cluster file.
        has_launched: Whether `up` has launched the cluster, or has begun to.
        stays: Whether the cluster stays after its sweeps: the head was launched for none, or is to be kept.
    """

    def __init__(
        self, cluster: ClusterFile, *, account: Account | None = None, run: Run | None = None
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            cluster: The cluster to launch.
            account: The AWS account; None for the account of boto3's credentials.
            run: Runs a command of Ray; None to run it in a process.
        """
        super().__init__(cluster.name, cluster.region, account=account, run=run)
        self.cluster = cluster
        self.has_launched = False
        self.stays = True

    def up(
        self,
        *,
        sweep: str = "",
        is_kept: bool = False,
        inputs: Sequence[str] = (),
        update: bool = False,
        on_line: Callable[[str], object] = lambda _: None,
    ) -> bool:
        """Launch the cluster. A head that is running already is checked and left as it is.

        Args:
            sweep: The sweep that needs it; a head that is launched for a sweep ends with the last sweep on it.
            is_kept: Whether a head that is launched stays after its sweeps.
            inputs: ``s3://`` addresses that the sweep reads besides the runs.
            update: Whether to apply changes of the file and of raysent to a running head, which restarts Ray there.
            on_line: Called with each line of Ray's launcher.

        Returns:
            Whether it was launched; else a head was running.

        Raises:
            RaysentError: If the cluster cannot be launched as the file has it, AWS or Ray's launcher fails, or the head
                was launched by somebody else.
        """
        private(self.folder)
        # Another call finds the head that this one launches.
        with FileLock(self.folder / _LOCK_FILE):
            machines = self.account.machines(self.cluster.name)
            head = next((machine for machine in machines if machine.is_head), None)
            stranger = ""
            if head is not None:
                stranger = self.stranger(head)
            if stranger:
                raise CloudError(f"{self.cluster.path}: {stranger}")
            has_workers = any(not machine.is_head for machine in machines)
            is_left = head is not None and not has_workers and self._was_left(head)
            check_inputs(self.account, inputs)
            if head is None:
                check_ready(self.cluster, self.account)
                self.forget_inputs()  # of sweeps that nothing followed to their end
            owner = "" if is_kept else sweep
            if head is not None:
                owner = head.sweep
            self.stays = not owner
            values = {**self._placeholders(owner), **self.account.prepare(self.cluster)}
            self.account.allow_inputs(self.name, sweep, inputs)
            rendered = self._with_keys(self.cluster.render(values))
            if head is not None and not (update or is_left):
                if _lasting(read_json(self.file)) != _lasting(rendered):
                    on_line(
                        f"{self.name}: the file or raysent has changed since the head was launched; it stays as it is; "
                        f"'raysent cluster up {self.cluster.path} --update' applies the changes and restarts Ray"
                    )
                return False
            make_token(self.token_file)
            read_token(self.token_file)
            wheels = self.folder / "wheel"
            wheels.mkdir(exist_ok=True)
            write_wheel(wheels)
            write_constraints(wheels)
            write_json(self.file, rendered, sealed=False)
            self.file.chmod(0o600)
            self.has_launched = head is None or is_left
            self._own_file.unlink(missing_ok=True)
            if head is None:
                since = time.time()
            else:
                since = head.launched
            write_json(self._launching_file, {"since": since, "sweep": sweep}, sealed=False)
            self._ray(["up", "--yes", "--no-config-cache", str(self.file)], on_line)
            with contextlib.suppress(CloudError):
                for machine in self.account.machines(self.name):
                    if machine.is_head:
                        self._own_file.write_text(machine.name)
            self._launching_file.unlink(missing_ok=True)
            return self.has_launched

    def _with_keys(self, rendered: dict[str, Any]) -> dict[str, Any]:
        """Return a rendered file with the cluster's own keys, unless the file names one.

        The key of the head stays on this computer; the head gets the one of the workers, which opens nothing else.
        """
        if "ssh_private_key" in rendered["auth"]:
            return rendered
        files = {"head": self.folder / "head_key.pem", "workers": self.folder / "workers_key.pem"}
        names = {
            who: self.account.key_pair(f"raysent-{self.name}-{who}", file, self.name)
            for who, file in files.items()
        }
        for node_type, kind in rendered["available_node_types"].items():
            who = "head" if node_type == rendered["head_node_type"] else "workers"
            kind["node_config"].setdefault("KeyName", names[who])
        rendered["auth"]["ssh_private_key"] = str(files["workers"])
        rendered["provider"]["raysent"]["head_key"] = str(files["head"])
        return rendered

    def _placeholders(self, sweep: str) -> Mapping[str, str]:
        return {
            "cluster": self.cluster.name,
            "sweep": tag_of(sweep),
            "self_destruct": self_destruct(self.cluster),
            "token_file": str(self.token_file),
            "wheel_folder": str(self.folder / "wheel"),
            "wheel": wheel_name(),
            "ray_version": version("ray"),
        }


def stage_of(line: str) -> str:
    """Return the stage of a launch that a line of Ray's launcher begins; empty if it begins none."""
    step = _STEP.search(line)
    if step:
        return f"stage {step[1]} of {step[2]}: {step[3].strip().lower()}"
    return next((stage for start, stage in _STAGES.items() if start in line), "")


def private(folder: Path) -> None:
    """Create a folder that only the user can read."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def make_token(path: Path) -> None:
    """Write a new token if there is none; at no time can another user read it."""
    with storage_errors(path), contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(secrets.token_hex(32))


def read_token(path: Path) -> str:
    """Return a token.

    Raises:
        ArtifactError: If there is none, or other users can read it.
    """
    try:
        mode = path.stat().st_mode & 0o777
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise ArtifactError(
            f"{path}: no token to read; start the cluster with 'raysent cluster up'"
        ) from None
    if mode & 0o077:
        raise ArtifactError(
            f"{path}: must be readable by its owner only (mode 600); given {mode:o}; 'chmod 600 {path}'"
        )
    if not token:
        raise ArtifactError(f"{path}: is empty; remove it, and start the cluster again")
    return token


def answers(host: str, port: int, *, timeout_s: float = 3.0) -> bool:
    """Return whether a host accepts connections at a port."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def run_process(command: Sequence[str], on_line: Callable[[str], object]) -> int:
    """Run a command, pass on its output line by line, and return its exit code; terminate it on an interrupt."""
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _lasting(rendered: Mapping[str, Any]) -> dict[str, Any]:
    provider = {key: value for key, value in rendered["provider"].items() if key != "raysent"}
    return {**rendered, "provider": provider}


def wheel_version() -> str:
    """Return the version of the wheel, which names its content: pip then replaces another wheel of the release."""
    digest = hashlib.sha256()
    for name, data in sorted(_package_files().items()):
        digest.update(f"{name}:{len(data)}:".encode() + data)
    return f"{raysent.__version__}+{digest.hexdigest()[:12]}"


def wheel_name() -> str:
    """Return the file name of the wheel."""
    return f"raysent-{wheel_version()}-py3-none-any.whl"


def write_wheel(folder: Path) -> Path:
    """Write a wheel of the running package with the requirements that it was installed with.

    Args:
        folder: Folder for the wheel.
    """
    files = dict(_package_files())
    about = f"raysent-{wheel_version()}.dist-info"
    files |= {
        f"{about}/METADATA": _metadata()
        .replace(f"\nVersion: {raysent.__version__}\n", f"\nVersion: {wheel_version()}\n", 1)
        .encode(),
        f"{about}/WHEEL": _WHEEL.encode(),
        f"{about}/entry_points.txt": _entry_points().encode(),
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        for name, data in files.items()
    }
    record = "".join(
        f"{name},sha256={digests[name].decode().rstrip('=')},{len(files[name])}\n" for name in files
    )
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    path = folder / wheel_name()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _WHEN), data, zipfile.ZIP_DEFLATED)
    return path


def write_constraints(folder: Path) -> Path:
    """Write the versions of what is installed here, as constraints for pip, which reads those that it needs.

    A version with a local part, as in 2.13.0+cpu, becomes the release: a machine with a GPU installs its CUDA build.

    Args:
        folder: Folder for the file.
    """
    path = folder / "constraints.txt"
    pins = {
        canonicalize_name(package.name): Version(package.version).public
        for package in distributions()
        if package.name != "raysent"
    }
    path.write_text(
        "".join(f"{name}=={number}\n" for name, number in sorted(pins.items())), encoding="utf-8"
    )
    return path


@functools.cache
def _package_files() -> dict[str, bytes]:
    files = _files_below(Path(raysent.__file__).parent, "raysent")
    for name in SHIPPED:
        files |= _files_below(shipped_path(name), f"raysent/{name}")
    return files


def _files_below(root: Path, name: str) -> dict[str, bytes]:
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
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    if metadata is None:
        raise ArtifactError(
            "raysent: its metadata is not installed; install it with pip, or 'make setup'"
        )
    if installed.version != raysent.__version__:
        raise ArtifactError(
            f"raysent: its metadata must be of version {raysent.__version__}; given {installed.version}; reinstall it"
        )
    return metadata


def _entry_points() -> str:
    """Return the entry points of the installed package, by which commands and wings are found."""
    text = distribution("raysent").read_text("entry_points.txt") or ""
    if "[raysent.commands]" not in text:
        raise ArtifactError(
            "raysent: its installed entry points must be those of this version; reinstall it with pip, or 'make setup'"
        )
    return text
