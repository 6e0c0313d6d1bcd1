"""Machines of this computer that see neither each other's processes nor each other's network but for one link."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PROGRAMS = ("setpriv", "unshare", "nsenter", "ip")
_READY_S = 30.0


def can_separate() -> bool:
    """Return whether this user may make namespaces and links between them."""
    if not all(map(shutil.which, _PROGRAMS)):
        return False
    try_out = "mount -t tmpfs none /mnt && ip link add a0 type veth peer name b0"
    command = ["unshare", "--fork", "--pid", "--mount-proc", "--net", "--uts", "sh", "-c", try_out]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        name: Its host name, which every other one knows.
        address: On the link.
        folder: Of its own, with a short name.
        init: Its first process; all others end with it.
        started: What was started on it.
    """

    name: str
    address: str
    folder: Path
    init: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def popen(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command on it; its process here is another one, which ends with it."""
        started = subprocess.Popen(
            [
                "nsenter",
                f"--target={self.init}",
                "--all",
                "sh",
                "-c",
                'cd "$0" && exec "$@"',
                str(cwd),
                *command,
            ],
            env={**env, "RAY_TMPDIR": str(self.folder)},
            stdin=subprocess.DEVNULL,
        )
        self.started.append(started)
        return started


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Run two machines, n1 and n2; everything on them ends with the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rs", dir="/tmp")))
        addresses = {"n1": "10.77.0.1", "n2": "10.77.0.2"}
        hosts = folder / "hosts"
        hosts.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{address} {name}\n" for name, address in addresses.items())
        )
        first, second = (
            stack.enter_context(_machine(name, address, folder, hosts))
            for name, address in addresses.items()
        )
        link = ["ip", "link", "add", "l0", "netns", str(first.init), "type", "veth"]
        subprocess.run([*link, "peer", "name", "l0", "netns", str(second.init)], check=True)
        for one in (first, second):
            up = f"ip address add {one.address}/24 dev l0 && ip link set l0 up"
            assert (
                one.popen(
                    ["sh", "-c", up], cwd=folder, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
                ).wait()
                == 0
            )
        yield first, second


@contextlib.contextmanager
def _machine(name: str, address: str, folder: Path, hosts: Path) -> Iterator[Machine]:
    (folder / name).mkdir()
    # The first process takes the exit codes of processes whose parents have ended.
    live = f"touch {folder / name}/ready && while :; do sleep 3600 & wait; done"
    set_up = f"hostname {name} && mount --bind {hosts} /etc/hosts && ip link set lo up && {live}"
    separate = [
        "setpriv",
        "--pdeathsig=KILL",
        "unshare",
        "--fork",
        "--kill-child",
        "--pid",
        "--mount-proc",
        "--net",
        "--uts",
        "--ipc",
    ]
    started: list[subprocess.Popen[bytes]] = []
    process = subprocess.Popen([*separate, "bash", "-c", set_up], start_new_session=True)
    try:
        until_s = time.monotonic() + _READY_S
        while not (folder / name / "ready").exists():
            assert process.poll() is None, f"{name} was not set up"
            assert time.monotonic() < until_s, f"{name} was not set up in time"
            time.sleep(0.02)
        [init] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Machine(name, address, folder / name, int(init), started)
    finally:
        process.kill()  # and with it its child, which is the first process of the machine
        for one in (process, *started):
            one.wait()
