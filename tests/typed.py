"""A command line as it is typed, run in a process of its own, which may be killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

RAYSENT = [sys.executable, "-c", "from raysent.cli import main; main()"]


def typed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; returns what it left behind."""
    return subprocess.run(
        [*RAYSENT, *map(str, arguments)], capture_output=True, text=True, timeout=1200, check=False
    )


def begin(*arguments: object, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Start one command, out of reach of our own Ctrl-C; whoever pipes its standard error reads that."""
    command = [*RAYSENT, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=stderr, text=True, start_new_session=True
    )


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[str], *, timeout_s: float = 600
) -> None:
    """Wait until something is so; it must come before the process ends."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, f"the process ended too early: {process.communicate()}"
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.05)
