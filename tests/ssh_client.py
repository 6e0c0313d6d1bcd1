"""A client that follows a sweep through an SSH tunnel of its own, as a process: a test stops it and lets it go on.

    python ssh_client.py REMOTE FOLDER HEARD HEAD_PORT TOKEN_FILE SSHD_PORT KEY

It creates the file HEARD, waits for the file HEARD.go, so that the sweep begins after the client's imports, appends each
event to HEARD as a line of JSON, and ends with the sweep's exit code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machines import free_ports

from raysent.cluster import ConnectionLostError, find_run, follow_run
from raysent.cluster.launcher import answers


@dataclass(frozen=True)
class SshTunnel:
    """A tunnel to a head on this machine, through an SSH server on this machine.

    Attributes:
        port: The head's dashboard.
        token_file: The file with the head's token.
        sshd_port: The SSH server.
        key: The private key.
        is_reachable: Whether this computer has what a tunnel needs.
    """

    port: int
    token_file: Path
    sshd_port: int
    key: Path
    is_reachable: bool = True

    def is_running(self) -> bool | None:
        """Return that this is unknown."""
        return None

    @contextmanager
    def tunnel(self) -> Iterator[str]:
        """Open the tunnel, and yield the local address of the head's dashboard."""
        (local,) = free_ports(1)
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ExitOnForwardFailure=yes"]
        command = ["ssh", "-N", "-p", str(self.sshd_port), "-i", str(self.key), "-F", "none"]
        command += [part for option in options for part in ("-o", option)]
        command += ["-L", f"{local}:127.0.0.1:{self.port}", "127.0.0.1"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                until = time.monotonic() + 60
                while not answers("127.0.0.1", local, timeout_s=1.0):
                    if process.poll() is not None or time.monotonic() > until:
                        raise ConnectionLostError("ssh: no tunnel")
                    time.sleep(0.1)
                yield f"http://127.0.0.1:{local}"
            finally:
                process.terminate()


def main() -> None:
    """Follow the sweep to its end."""
    remote, folder, heard, port, token_file, sshd_port, key = sys.argv[1:]
    tunnel = SshTunnel(int(port), Path(token_file), int(sshd_port), Path(key))
    with Path(heard).open("a", buffering=1, encoding="utf-8") as lines:
        while not Path(f"{heard}.go").exists():
            time.sleep(0.05)
        ended = follow_run(
            find_run(remote, new_run=Path(folder)),
            on_event=lambda event: print(json.dumps(event), file=lines),
            say=lambda text: print(text, flush=True),
            cluster=tunnel,
        )
    sys.exit(ended.code)


if __name__ == "__main__":
    main()
